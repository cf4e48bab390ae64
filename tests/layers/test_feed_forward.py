"""Feed-forward and dropout equal their formulas in value and gradient; what they store for backward."""

import pytest
import torch
from helpers.cases import gradients, rand
from torch import nn
from torch.nn import functional
from torch.testing import assert_close

from regard.layers import Dropout, FeedForward, GatedActivation, gelu_tanh, swiglu

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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dropout_drops_its_fraction_and_scales_the_rest_in_value_and_gradient(dtype):
    drop, x, branch = Dropout(0.3), rand(7, 300, 11, dtype=dtype), rand(7, 300, 11, seed=1, dtype=dtype)
    x.requires_grad_()
    branch.requires_grad_()
    result = drop.add(x, branch)
    kept = (result - x).detach().abs() > 1e-9
    assert abs(kept.double().mean() - 0.7) < 0.01
    for axis in range(3):  # in all rows, columns and sequences alike
        others = [i for i in range(3) if i != axis]
        fraction = kept.double().mean(others)
        assert (fraction - 0.7).abs().max() < 5 * (0.21 / (kept.numel() / kept.shape[axis])) ** 0.5
    expected = x + torch.where(kept, branch / 0.7, 0.0)
    assert_close(result, expected)
    assert_close(gradients([result], [x, branch]), gradients([expected], [x, branch]))
    torch.manual_seed(4)
    alone = drop(branch)
    kept = alone != 0
    assert_close(alone, torch.where(kept, branch / 0.7, 0.0))
    assert_close(gradients([alone], [branch]), gradients([torch.where(kept, branch / 0.7, 0.0)], [branch]))
    torch.manual_seed(4)
    assert torch.equal(drop(branch), alone)
    assert not torch.equal(drop(branch), alone)


def test_dropout_uses_the_hash_of_the_engines(monkeypatch):
    from regard.compiled import dropout_hash as dropout
    from regard.ops import hashed_dropout

    x = rand(2, 5, 3)
    monkeypatch.setattr(dropout, "draw_seed", lambda: 3**37)
    first, second = dropout.row_hashes(3**37, torch.tensor(0), torch.arange(10).unsqueeze(-1))
    kept = dropout.keep_mask(0.4, first, second, torch.arange(3)).view(2, 5, 3)
    expected = torch.where(kept, x / 0.6, 0.0)
    assert_close(hashed_dropout.dropped(x, 0.4), expected)
    monkeypatch.setattr(hashed_dropout, "SINGLE_THREAD_LIMIT", 2)
    threads = torch.get_num_threads()
    torch.set_num_threads(3)  # whatever the threads
    try:
        assert_close(hashed_dropout.dropped(x, 0.4), expected)
    finally:
        torch.set_num_threads(threads)
    assert_close(hashed_dropout.dropped(x.transpose(0, 1), 0.4).shape, x.transpose(0, 1).shape)
    assert_close(hashed_dropout.add_dropped(x, x, 0.4), x + expected)


@pytest.mark.parametrize("shape", [(3,), (0, 4), (4, 0), (1, 1)])
def test_dropout_of_small_and_empty_tensors(shape):
    x = rand(*shape)
    assert Dropout(0.5)(x).shape == shape
    assert_close(Dropout(1.0)(x), torch.zeros(shape).double())
    assert_close(Dropout(1.0).add(x, x), x)
    assert Dropout(0.0)(x) is x
    assert_close(Dropout(0.5).eval().add(x, x), 2 * x)


def test_dropout_stores_no_mask():
    stored = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: stored.append(t) or t, lambda t: t):
        Dropout(0.5).add(rand(3, 4).requires_grad_(), rand(3, 4).requires_grad_())
    assert stored == []
