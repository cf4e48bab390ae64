"""The fused recurrence: torch's GRU and LSTM, and the same with attention step by step, in values and gradients."""

import pytest
import torch
from helpers.cases import gradients, rand
from torch import nn
from torch.nn import functional
from torch.testing import assert_close

import regard
from regard.masks import padding
from regard.ops import attentive_rnn as engine
from regard.ops.attentive_rnn import Looking, attentive, recurrence

STEPS, ROWS, SIZE, HIDDEN, KEYS, ALIGN, VALUES = 7, 5, 3, 11, 13, 2, 17
LENGTHS = torch.tensor([13, 1, 4, 0, 8])
cells = pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM], ids=["gru", "lstm"])


def starting(kind, rows=ROWS):
    return [rand(rows, HIDDEN, seed=seed).requires_grad_() for seed in range(2 if kind is nn.LSTM else 1)]


def cell(kind, size=SIZE):
    torch.manual_seed(1)
    rnn = kind(size, HIDDEN).double()
    for parameter in rnn.parameters():
        nn.init.normal_(parameter, std=0.5)
    return rnn


def ours(rnn, x, start):
    gates = functional.linear(x, rnn.weight_ih_l0, rnn.bias_ih_l0)
    return recurrence(gates, tuple(start), rnn.weight_hh_l0, rnn.bias_hh_l0)


def theirs(rnn, x, start):
    first = [part.unsqueeze(0) for part in start]
    return rnn(x, tuple(first) if len(first) == 2 else first[0])[0]


@cells
@pytest.mark.parametrize("steps", [1, 2, STEPS])
def test_without_attention_it_is_torchs(kind, steps):
    rnn, start, x = cell(kind), starting(kind), rand(steps, ROWS, SIZE).requires_grad_()
    found, expected = ours(rnn, x, start), theirs(rnn, x, start)
    assert_close(found, expected, rtol=1e-12, atol=1e-13)
    learned = [x, *start, *rnn.parameters()]
    assert_close(gradients([found], learned), gradients([expected], learned), rtol=1e-10, atol=1e-12)


def looking():
    """What is attended to, and its tensors that learn."""
    shapes = (ALIGN, HIDDEN), (ALIGN,), (ROWS, KEYS, ALIGN), (ALIGN,), (ROWS, KEYS, VALUES)
    return [rand(*shape, seed=seed).requires_grad_() for seed, shape in enumerate(shapes)]


def with_attention(rnn, x, start, looks, lengths=LENGTHS):
    query, bias, key, weight, value = looks
    gates = functional.linear(x, rnn.weight_ih_l0[:, :SIZE], rnn.bias_ih_l0)
    parts = Looking(query, bias, key, weight, value, lengths, rnn.weight_ih_l0[:, SIZE:])
    return attentive(gates, tuple(start), rnn.weight_hh_l0, rnn.bias_hh_l0, parts)


def step_by_step(rnn, x, start, looks):
    query, bias, key, weight, value = looks
    state, found = [part.unsqueeze(0) for part in start], []

    def score(query, key):
        return torch.tanh(query.unsqueeze(-2) + key.unsqueeze(-3)) @ weight

    for row in x:
        asked = functional.linear(state[0][0], query, bias).unsqueeze(1)
        context = regard.attend(asked, key, value, score=score, mask=padding(LENGTHS), engine="dense")[:, 0]
        share = regard.look(asked, key, score=score, mask=padding(LENGTHS))[:, 0]
        after = rnn(torch.cat([row, context], dim=-1).unsqueeze(0), tuple(state) if len(state) == 2 else state[0])[1]
        state = list(after) if len(state) == 2 else [after]
        found.append((state[0][0], context, share))
    return [torch.stack(part) for part in zip(*found, strict=True)]


@cells
def test_with_attention_it_is_the_loop(kind):
    rnn, start, looks = cell(kind, SIZE + VALUES), starting(kind), looking()
    x = rand(STEPS, ROWS, SIZE).requires_grad_()
    found, expected = with_attention(rnn, x, start, looks), step_by_step(rnn, x, start, looks)
    assert_close(list(found), expected, rtol=1e-11, atol=1e-12)
    learned = [x, *start, *looks, *rnn.parameters()]
    for which in ((0, 1, 2), (0,), (1,), (2,)):
        mine, other = ([some[number] for number in which] for some in (found, expected))
        assert_close(gradients(mine, learned), gradients(other, learned), rtol=1e-9, atol=1e-11)


@cells
def test_threads_give_the_same(kind, monkeypatch):
    rnn, start, looks = cell(kind, SIZE + VALUES), starting(kind), looking()
    x = rand(STEPS, ROWS, SIZE).requires_grad_()
    learned = [x, *start, *looks, *rnn.parameters()]
    one = with_attention(rnn, x, start, looks)
    alone = gradients(one, learned)
    monkeypatch.setattr(engine, "LEAST", 1)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert len(engine.pieces(ROWS)) == 2
        several = with_attention(rnn, x, start, looks)
        assert_close(several, one, rtol=1e-12, atol=1e-13)
        assert_close(gradients(several, learned), alone, rtol=1e-11, atol=1e-12)
    finally:
        torch.set_num_threads(before)


def test_float32_is_as_near_as_torch():
    exact = cell(nn.GRU)
    x, start = rand(31, 17, SIZE), [rand(17, HIDDEN)]
    best = ours(exact, x, start)
    single, x, start = cell(nn.GRU).float(), x.float(), [start[0].float()]
    error, torchs = ((f(single, x, start).double() - best).abs().max() for f in (ours, theirs))
    assert error <= 2 * torchs + 1e-7


def test_what_is_changed_afterwards_is_noticed():
    rnn, x = cell(nn.GRU), rand(STEPS, ROWS, SIZE).requires_grad_()
    states = ours(rnn, x, starting(nn.GRU))
    with torch.no_grad():
        states[0] += 1
    with pytest.raises(RuntimeError, match="modified inplace"):
        states.sum().backward()


def test_rows_are_shared_out_and_few_are_not():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert [part.stop - part.start for part in engine.pieces(33)] == [17, 16]
        assert len(engine.pieces(15)) == 1
        assert engine.pieces(0) == []
    finally:
        torch.set_num_threads(before)
