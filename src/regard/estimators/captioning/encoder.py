"""What a captioner sees: an encoder that turns images into grids, trained along, or frozen and asked once an image."""

import copy
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.data.encoder_cache import features
from regard.data.images import read_images
from regard.models.image_encoders import SmallResNet, check_grid, efficientnet_lite0

Array = Any
ENCODERS: dict[str, Callable[[], nn.Module]] = {"small": SmallResNet, "efficientnet-lite0": efficientnet_lite0}
USUAL = 224
"""The side in pixels of images for an encoder that does not say what it takes."""


class Sight(nn.Module):
    """An encoder, and what it takes.

    encoder      from prepared images to `[batch, channels, rows, columns]`. Where it has them, `image_size` is the
                 side of its images and `prepare` makes its input; else that is `[batch, 3, side, side]`, in 0..1
    image_size   the side, where it is not the encoder's own
    """

    def __init__(self, encoder: nn.Module, image_size: int | None = None) -> None:
        super().__init__()
        self.encoder = encoder
        self.image_size = int(image_size or getattr(encoder, "image_size", USUAL) or USUAL)
        self.channels, rows, columns = check_grid(encoder, self.image_size)
        self.shape = rows, columns

    @property
    def frozen(self) -> bool:
        """Whether there is nothing to learn in it."""
        return not any(parameter.requires_grad for parameter in self.encoder.parameters())

    def prepare(self, images: Array) -> Tensor:
        """What the encoder takes, of uint8 images `[batch, side, side, 3]`."""
        if hasattr(self.encoder, "prepare"):
            made: Tensor = self.encoder.prepare(images)  # type: ignore[operator]
            return made
        return torch.as_tensor(images).movedim(-1, 1).float() / 255

    def forward(self, prepared: Tensor) -> Tensor:
        found: Tensor = self.encoder(prepared)
        return found

    def grids(self, images: Array) -> Tensor:
        """The grids of uint8 images, `[batch, cells, channels]`."""
        found: Tensor = self(self.prepare(images))
        return found.flatten(2).mT


def sight(encoder: Any, image_size: int | None) -> Sight:
    """What the setting asks for, with weights of its own; a user's encoder is copied, not changed."""
    if isinstance(encoder, nn.Module):
        return Sight(copy.deepcopy(encoder), image_size)
    if not isinstance(encoder, str) or encoder not in ENCODERS:
        raise ValueError(f"encoder must be {', '.join(ENCODERS)}, or an nn.Module of your own, got {encoder!r}")
    return Sight(ENCODERS[encoder](), image_size)


class Shown:
    """Images that go through the encoder whenever they are looked at: it is trained along.

    mirror   half of them, drawn anew each time, are turned left to right
    """

    def __init__(self, seen: Sight, images: Sequence[Any], mirror: bool = False) -> None:
        self.sight, self.mirror = seen, mirror
        self.images = torch.from_numpy(read_images(images, seen.image_size))

    def __call__(self, places: Tensor) -> Tensor:
        """The grids of images by their places, `[batch, cells, channels]`."""
        which, back = torch.unique(places, return_inverse=True)  # an image with several captions goes through once
        images = self.images[which]
        if self.mirror and self.sight.training:
            turned = torch.rand(len(images)) < 0.5
            images = torch.where(turned[:, None, None, None], images.flip(2), images)
        return self.sight.grids(images)[back]


class Kept:
    """Grids that a frozen encoder gave of images, each once, from a folder."""

    def __init__(self, seen: Sight, images: Sequence[Any], folder: str | Path, *, progress: bool) -> None:
        folder = Path(folder) / type(seen.encoder).__name__
        self.grids = features(images, seen.eval(), folder, progress=progress)

    def __call__(self, places: Tensor) -> Tensor:
        """The grids of images by their places, `[batch, cells, channels]`."""
        return self.grids[places.numpy()].flatten(2).mT


@contextmanager
def kept(seen: Sight, images: Sequence[Any], folder: str | Path | None, *, progress: bool) -> Iterator[Kept]:
    """Grids of images while they are learned from; without a folder, they are gone then."""
    place = tempfile.TemporaryDirectory(prefix="regard-") if folder is None else nullcontext(str(folder))
    with place as there:
        yield Kept(seen, images, there, progress=progress)
