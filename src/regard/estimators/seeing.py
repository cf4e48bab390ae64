"""What a captioner sees: an encoder that turns images into grids, trained along, or frozen and asked once an image."""

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.data.features import grids
from regard.data.images import read_images
from regard.models.grids import SmallResNet, check_grid, efficientnet_lite0

Array = Any
ENCODERS: dict[str, Callable[[], nn.Module]] = {"small": SmallResNet, "efficientnet-lite0": efficientnet_lite0}
USUAL = 224
"""The side in pixels of images for an encoder that does not say what it takes."""


class Sight(nn.Module):
    """An encoder, and what it takes: from uint8 images `[batch, side, side, 3]` to grids `[batch, cells, channels]`.

    encoder      from prepared images to `[batch, channels, rows, columns]`. Where it has them, `image_size` is the
                 side of its images and `prepare` makes its input; else that is `[batch, 3, side, side]`, in 0..1
    image_size   the side, where it is not the encoder's own
    """

    def __init__(self, encoder: nn.Module, image_size: int | None = None) -> None:
        super().__init__()
        self.encoder = encoder
        self.side = int(image_size or getattr(encoder, "image_size", USUAL))
        self.channels, *self.shape = check_grid(encoder, self.side)

    @property
    def frozen(self) -> bool:
        """Whether there is nothing to learn in it."""
        return not any(parameter.requires_grad for parameter in self.encoder.parameters())

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.encoder(self.prepared(images))
        return found.flatten(2).mT

    def prepared(self, images: Tensor) -> Tensor:
        """What the encoder takes."""
        if hasattr(self.encoder, "prepare"):
            made: Tensor = self.encoder.prepare(images)
            return made
        return images.permute(0, 3, 1, 2).float() / 255


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
        self.images = torch.from_numpy(read_images(images, seen.side))

    def __call__(self, places: Tensor) -> Tensor:
        """The grids of images by their places, `[batch, cells, channels]`."""
        which, back = places.unique(return_inverse=True)
        images = self.images[which]
        if self.mirror and self.sight.training:
            turned = torch.rand(len(images)) < 0.5
            images = torch.where(turned[:, None, None, None], images.flip(2), images)
        grid: Tensor = self.sight(images)
        return grid if len(which) == len(places) and bool((places[1:] > places[:-1]).all()) else grid[back]


class Kept:
    """Grids that a frozen encoder gave, each image once; with a folder, kept there for the next time too."""

    def __init__(self, seen: Sight, images: Sequence[Any], folder: str | Path | None, *, shown: bool) -> None:
        seen.eval()
        self.features = grids(seen.encoder, images, seen, folder, shown=shown)

    def __call__(self, places: Tensor) -> Tensor:
        """The grids of images by their places, `[batch, cells, channels]`."""
        return torch.from_numpy(self.features[places.numpy()]).float()
