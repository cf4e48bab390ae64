"""The fused recurrence: torch's GRU and LSTM, and the same with attention step by step, in values and gradients."""

import math

import pytest
import torch
from helpers.cases import gradients, rand
from torch import nn
from torch.nn import functional
from torch.testing import assert_close

import regard
from regard.masks import padding
from regard.ops import attentive_rnn
from regard.ops.attentive_rnn import Draw, RecurrentAttention, attentive_recurrence, draw_keys, recurrence

STEPS, ROWS, SIZE, HIDDEN, KEYS, ALIGN, VALUES = 7, 5, 3, 11, 13, 2, 17
LENGTHS = torch.tensor([13, 1, 4, 0, 8])
cells = pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM], ids=["gru", "lstm"])


def initial_state(kind, rows=ROWS):
    return [rand(rows, HIDDEN, seed=seed).requires_grad_() for seed in range(2 if kind is nn.LSTM else 1)]


def cell(kind, size=SIZE):
    torch.manual_seed(1)
    rnn = kind(size, HIDDEN).double()
    for parameter in rnn.parameters():
        nn.init.normal_(parameter, std=0.5)
    return rnn


def run_fused(rnn, x, start):
    gates = functional.linear(x, rnn.weight_ih_l0, rnn.bias_ih_l0)
    return recurrence(gates, tuple(start), rnn.weight_hh_l0, rnn.bias_hh_l0)


def run_torch(rnn, x, start):
    first = [part.unsqueeze(0) for part in start]
    return rnn(x, tuple(first) if len(first) == 2 else first[0])[0]


@cells
@pytest.mark.parametrize("steps", [1, 2, STEPS])
def test_without_attention_it_equals_torch(kind, steps):
    rnn, start, x = cell(kind), initial_state(kind), rand(steps, ROWS, SIZE).requires_grad_()
    actual, expected = run_fused(rnn, x, start), run_torch(rnn, x, start)
    assert_close(actual, expected, rtol=1e-12, atol=1e-13)
    parameters = [x, *start, *rnn.parameters()]
    assert_close(gradients([actual], parameters), gradients([expected], parameters), rtol=1e-10, atol=1e-12)


def attention_tensors():
    """Query map, query bias, key, weight and value, which require gradients."""
    shapes = (ALIGN, HIDDEN), (ALIGN,), (ROWS, KEYS, ALIGN), (ALIGN,), (ROWS, KEYS, VALUES)
    return [rand(*shape, seed=seed).requires_grad_() for seed, shape in enumerate(shapes)]


def with_attention(rnn, x, start, tensors, lengths=LENGTHS):
    query, bias, key, weight, value = tensors
    gates = functional.linear(x, rnn.weight_ih_l0[:, :SIZE], rnn.bias_ih_l0)
    parts = RecurrentAttention(key, value, weight, query, bias, rnn.weight_ih_l0[:, SIZE:], lengths)
    (states, *_), attended = attentive_recurrence(gates, tuple(start), rnn.weight_hh_l0, rnn.bias_hh_l0, parts)
    assert (attended.chosen == -1).all()
    return states, attended.context, attended.weights


def step_by_step(rnn, x, start, tensors):
    query, bias, key, weight, value = tensors
    state, found = [part.unsqueeze(0) for part in start], []

    def score(query, key):
        return torch.tanh(query.unsqueeze(-2) + key.unsqueeze(-3)) @ weight

    for row in x:
        projected = functional.linear(state[0][0], query, bias).unsqueeze(1)
        context = regard.attend(projected, key, value, score=score, mask=padding(LENGTHS), engine="dense")[:, 0]
        weights = regard.look(projected, key, score=score, mask=padding(LENGTHS))[:, 0]
        after = rnn(torch.cat([row, context], dim=-1).unsqueeze(0), tuple(state) if len(state) == 2 else state[0])[1]
        state = list(after) if len(state) == 2 else [after]
        found.append((state[0][0], context, weights))
    return [torch.stack(part) for part in zip(*found, strict=True)]


@cells
def test_with_attention_it_equals_a_loop_over_steps(kind):
    rnn, start, tensors = cell(kind, SIZE + VALUES), initial_state(kind), attention_tensors()
    x = rand(STEPS, ROWS, SIZE).requires_grad_()
    actual, expected = with_attention(rnn, x, start, tensors), step_by_step(rnn, x, start, tensors)
    assert_close(list(actual), expected, rtol=1e-11, atol=1e-12)
    parameters = [x, *start, *tensors, *rnn.parameters()]
    for which in ((0, 1, 2), (0,), (1,), (2,)):
        mine, other = ([some[number] for number in which] for some in (actual, expected))
        assert_close(gradients(mine, parameters), gradients(other, parameters), rtol=1e-9, atol=1e-11)


@cells
def test_threads_give_the_same(kind, monkeypatch):
    rnn, start, tensors = cell(kind, SIZE + VALUES), initial_state(kind), attention_tensors()
    x = rand(STEPS, ROWS, SIZE).requires_grad_()
    parameters = [x, *start, *tensors, *rnn.parameters()]
    one = with_attention(rnn, x, start, tensors)
    one_thread = gradients(one, parameters)
    monkeypatch.setattr(attentive_rnn, "MIN_ROWS_PER_THREAD", 1)
    torch.set_num_threads(2)
    assert len(attentive_rnn._slices_of_rows(ROWS)) == 2
    several = with_attention(rnn, x, start, tensors)
    assert_close(several, one, rtol=1e-12, atol=1e-13)
    assert_close(gradients(several, parameters), one_thread, rtol=1e-11, atol=1e-12)


def test_float32_is_as_precise_as_torch():
    exact = cell(nn.GRU)
    x, start = rand(31, 17, SIZE), [rand(17, HIDDEN)]
    best = run_fused(exact, x, start)
    single, x, start = cell(nn.GRU).float(), x.float(), [start[0].float()]
    error, torchs = ((run(single, x, start).double() - best).abs().max() for run in (run_fused, run_torch))
    assert error <= 2 * torchs + 1e-7


def test_an_output_changed_in_place_raises_in_backward():
    rnn, x = cell(nn.GRU), rand(STEPS, ROWS, SIZE).requires_grad_()
    states = run_fused(rnn, x, initial_state(nn.GRU))
    with torch.no_grad():
        states[0] += 1
    with pytest.raises(RuntimeError, match="modified inplace"):
        states.sum().backward()


def test_rows_are_divided_among_threads_unless_there_are_few():
    torch.set_num_threads(2)
    assert [part.stop - part.start for part in attentive_rnn._slices_of_rows(33)] == [17, 16]
    assert len(attentive_rnn._slices_of_rows(15)) == 1
    assert attentive_rnn._slices_of_rows(0) == []


@pytest.mark.parametrize(
    ("weights", "uniform", "key"),
    [
        ([0.5, 0.25, 0.25], 0.0, 0),
        ([0.5, 0.25, 0.25], math.nextafter(0.5, 0), 0),
        ([0.5, 0.25, 0.25], 0.5, 1),
        ([0.5, 0.25, 0.25], math.nextafter(1, 0), 2),
        ([0.0, 0.5, 0.25, 0.0], 0.0, 1),  # a weight of 0 is never drawn, at either end
        ([0.0, 0.5, 0.25, 0.0], math.nextafter(1, 0), 2),
        ([0.0, 0.5, 0.25, 0.0], 0.5, 1),  # weights that do not sum to 1 are normalised
        ([0.0, 0.5, 0.25, 0.0], 0.75, 2),
        ([math.nan, 0.5], 0.5, 1),  # NaN raises no error
    ],
)
def test_keys_are_drawn_by_inversion(weights, uniform, key):
    number = torch.tensor([uniform], dtype=torch.float64)
    for dtype in (torch.float32, torch.float64):
        assert draw_keys(torch.tensor([weights], dtype=dtype), number).tolist() == [key]


def gated(kind, draw, fused=True, layout=lambda x: x):
    """Outputs and gradients of a recurrence with a gate."""
    rnn, start, x = cell(kind, SIZE + VALUES), initial_state(kind), rand(STEPS, ROWS, SIZE).requires_grad_()
    query, bias, key, weight, value = attention_tensors()
    key, value = (layout(x.detach()).requires_grad_() for x in (key, value))
    gate, gate_bias = rand(VALUES, HIDDEN, seed=8).requires_grad_(), rand(VALUES, seed=9).requires_grad_()
    gates = functional.linear(x, rnn.weight_ih_l0[:, :SIZE], rnn.bias_ih_l0)
    maps = torch.cat([query, gate]), torch.cat([bias, gate_bias])
    parts = RecurrentAttention(key, value, weight, *maps, rnn.weight_ih_l0[:, SIZE:], LENGTHS.clamp(min=1), draw)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attentive_rnn, "fusible", lambda *_: fused)
        (states, *_), attended = attentive_recurrence(gates, tuple(start), rnn.weight_hh_l0, rnn.bias_hh_l0, parts)
    parameters = [x, *start, key, value, weight, query, bias, gate, gate_bias, *rnn.parameters()]
    outputs = states, attended.context, attended.weights
    return *outputs, attended.chosen, *gradients(outputs, parameters)


DRAWS = {
    "soft": None,
    "best": Draw(None, torch.tensor([False, True, False, True, False])),
    "drawn": Draw(torch.linspace(0, 0.99, STEPS * ROWS).view(STEPS, ROWS).double(), torch.arange(ROWS) == 2),
}


@cells
@pytest.mark.parametrize("draw", DRAWS)
def test_a_gate_and_chosen_keys_equal_a_loop_over_steps(kind, draw):
    fused, plain = gated(kind, DRAWS[draw]), gated(kind, DRAWS[draw], fused=False)
    assert_close(fused, plain, rtol=1e-9, atol=1e-11)
    chosen = fused[3]
    assert ((chosen < 0).all(dim=0) == (torch.ones(ROWS).bool() if draw == "soft" else DRAWS[draw].expected)).all()


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("draw", DRAWS)
def test_keys_and_values_need_not_be_contiguous(draw, fused):
    turned = gated(nn.LSTM, DRAWS[draw], fused, lambda x: x.mT.contiguous().mT)
    assert_close(turned, gated(nn.LSTM, DRAWS[draw], fused))
