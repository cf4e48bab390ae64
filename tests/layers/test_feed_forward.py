"""Feed-forward and dropout equal their formulas in value and gradient; what they store for backward."""

import pytest
import torch
from helpers.cases import gradients, rand
from torch import nn
from torch.nn import functional
from torch.testing import assert_close

from regard.layers import FeedForward, GatedActivation, gelu_tanh, swiglu

BATCH, LENGTH, SIZE, HIDDEN = 2, 5, 12, 17


ACTIVATIONS = {
    "gelu": functional.gelu,
    "gelu_tanh": gelu_tanh,
    "relu": torch.relu,
    "module": nn.SiLU(),
    "in place": nn.ReLU(inplace=True),
    "swiglu": swiglu,
    "geglu": GatedActivation(gelu_tanh),
    "own": lambda x: x * x.sigmoid(),
    "learned": nn.PReLU(dtype=torch.float64),
}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_feed_forward_is_the_formula_in_value_and_gradient(name, bias):
    activation = ACTIVATIONS[name]
    layer = FeedForward(SIZE, HIDDEN, activation=activation, bias=bias).double()
    x = rand(BATCH, LENGTH, SIZE).requires_grad_()
    hidden = x @ layer.input.weight.T + (layer.input.bias if bias else 0.0)
    expected = activation(hidden) @ layer.output.weight.T + (layer.output.bias if bias else 0.0)
    result = layer(x)
    assert_close(result, expected)
    tensors = [x, *layer.parameters()]
    assert_close(gradients([result], tensors), gradients([expected], tensors))
    with torch.no_grad():
        assert_close(layer(x), expected)


def test_the_gate_of_llama():
    x = rand(3, 8)
    assert_close(swiglu(x), x[:, :4] * x[:, :4].sigmoid() * x[:, 4:])
    assert FeedForward(6, 5, activation=swiglu).input.weight.shape == (10, 6)
