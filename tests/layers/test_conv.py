"""Self-attention on a grid equals the formula, cell by cell."""

import pytest
import torch
from helpers.cases import gradients, rand
from torch.testing import assert_close

from regard import masks
from regard.layers import ConvSelfAttention

BATCH, CHANNELS, SIZE, HEADS, HEIGHT, WIDTH = 2, 5, 6, 3, 3, 7


def plain(layer, x, heads, allowed=None):
    """Cells as rows: a 1×1 convolution is a linear map of each."""
    rows = x.flatten(2).transpose(1, 2)  # [batch, cells, channels]
    weight, bias = layer.input.weight.flatten(1), layer.input.bias
    query, key, value = (rows @ weight.T + bias).chunk(3, dim=-1)
    outputs = []
    for q, k, v in zip(*(part.chunk(heads, dim=-1) for part in (query, key, value)), strict=True):
        logits = q @ k.mT / q.shape[-1] ** 0.5
        if allowed is not None:
            logits = logits.masked_fill(~allowed, -torch.inf)
        outputs.append(logits.softmax(-1) @ v)
    out = torch.cat(outputs, dim=-1) @ layer.output.weight.flatten(1).T + layer.output.bias
    return x + layer.gain * out.transpose(1, 2).reshape(x.shape)


@pytest.mark.parametrize(("size", "heads"), [(SIZE, HEADS), (SIZE, 1), (None, 1)])
def test_it_is_the_formula_in_value_and_gradient(size, heads):
    layer = ConvSelfAttention(CHANNELS, size, heads).double()
    with torch.no_grad():
        layer.gain.fill_(0.7)
    x = rand(BATCH, CHANNELS, HEIGHT, WIDTH).requires_grad_()
    result, expected = layer(x), plain(layer, x, heads)
    assert_close(result, expected)
    tensors = [x, *layer.parameters()]
    assert_close(gradients([result], tensors), gradients([expected], tensors))


def test_it_starts_as_the_identity_and_has_a_gradient():
    layer, x = ConvSelfAttention(CHANNELS).double(), rand(BATCH, CHANNELS, HEIGHT, WIDTH)
    assert torch.equal(layer(x), x)
    (layer(x) * rand(BATCH, CHANNELS, HEIGHT, WIDTH, seed=3)).sum().backward()
    assert layer.gain.grad.abs() > 1e-3


def test_any_grid_and_a_mask_over_cells():
    layer = ConvSelfAttention(CHANNELS, SIZE, HEADS).double()
    with torch.no_grad():
        layer.gain.fill_(1.0)
    for shape in ((1, 1), (4, 2), (1, 9)):
        x = rand(1, CHANNELS, *shape)
        assert_close(layer(x), plain(layer, x, HEADS))
    x, cells = rand(BATCH, CHANNELS, HEIGHT, WIDTH), torch.arange(HEIGHT * WIDTH)
    near = (cells[:, None] - cells).abs() <= 2
    assert_close(layer(x, mask=masks.window(2)), plain(layer, x, HEADS, near))


def test_look_returns_the_weights_of_the_cells():
    layer, x = ConvSelfAttention(CHANNELS, SIZE, HEADS).double(), rand(BATCH, CHANNELS, HEIGHT, WIDTH)
    weight = layer.look(x)
    assert weight.shape == (BATCH, HEADS, 21, 21)
    query, key, _ = layer._project(x)
    assert_close(weight, (query @ key.mT / 2**0.5).softmax(-1))
    top = layer.look(x, top=4)
    assert_close(top.weight, weight.topk(4).values)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: ConvSelfAttention(5, 7, heads=2), ValueError, "heads must divide size, got size=7 and heads=2"),
        (lambda: ConvSelfAttention(5, heads=2), ValueError, "heads must divide size, got size=5 and heads=2"),
        (lambda: ConvSelfAttention(0), ValueError, "channels must be a positive whole number, got 0"),
        (
            lambda: ConvSelfAttention(5)(torch.ones(2, 4, 3, 3)),
            ValueError,
            r"x must be \[batch, 5, height, width\], got \[2, 4, 3, 3\]",
        ),
        (lambda: ConvSelfAttention(5)(torch.ones(5, 3, 3)), ValueError, r"height, width\], got \[5, 3, 3\]"),
        (lambda: ConvSelfAttention(5)("grid"), TypeError, "x must be a torch tensor, got str"),
    ],
)
def test_wrong_arguments_raise(call, error, message):
    with pytest.raises(error, match=message):
        call()
