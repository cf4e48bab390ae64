"""One decoder step with additive attention against `attend` for one query per row, in values and gradients."""

import math

import numpy as np
import pytest
import torch
from helpers.cases import gradients, rand
from torch.testing import assert_close

import regard
from regard.compiled.threads import spread
from regard.masks import padding
from regard.ops import attentive_rnn
from regard.ops.attentive_rnn import RecurrentAttention, additive_scores, attentive_recurrence

ROWS, KEYS, HIDDEN, VALUES = 5, 11, 7, 3
LENGTHS = torch.tensor([11, 0, 1, 6, 4])


def inputs(dtype=torch.float64, rows=ROWS, keys=KEYS, hidden=HIDDEN, values=VALUES):
    """Query, key, weight and value, which require gradients."""
    shapes = (rows, hidden), (rows, keys, hidden), (hidden,), (rows, keys, values)
    return [rand(*shape, seed=seed).to(dtype).requires_grad_() for seed, shape in enumerate(shapes)]


def additive_step(query, key, weight, value, lengths=None):
    """The mean and the weights of the first step of a recurrence whose state is the query."""
    size, zero = query.shape[1], query.new_zeros
    attention = RecurrentAttention(
        key, value, weight, torch.eye(size).to(query), zero(size), zero(3 * size, value.shape[2]), lengths
    )
    gates = zero(1, len(query), 3 * size)
    _, attended = attentive_recurrence(gates, (query,), zero(3 * size, size), zero(3 * size), attention)
    return attended.context[0], attended.weights[0]


def by_attend(query, key, weight, value, lengths=None):
    def score(query, key):
        return torch.tanh(query.unsqueeze(-2) + key.unsqueeze(-3)) @ weight

    mask = None if lengths is None else padding(lengths)
    query = query.unsqueeze(1)
    mean = regard.attend(query, key, value, score=score, mask=mask, engine="dense")
    return mean.squeeze(1), regard.look(query, key, score=score, mask=mask).squeeze(1)


@pytest.mark.parametrize("lengths", [LENGTHS, None, LENGTHS.to(torch.int32)], ids=["lengths", "all", "int32"])
def test_it_equals_attend(lengths):
    tensors = inputs()
    ours, theirs = additive_step(*tensors, lengths), by_attend(*tensors, lengths)
    assert_close(ours, theirs, rtol=1e-12, atol=1e-13)
    assert_close(gradients(ours, tensors), gradients(theirs, tensors), rtol=1e-10, atol=1e-12)


def test_mean_and_weights_have_gradients_separately():
    tensors = inputs()
    for which in (0, 1):
        ours, theirs = additive_step(*tensors, LENGTHS)[which], by_attend(*tensors, LENGTHS)[which]
        assert_close(gradients([ours], tensors), gradients([theirs], tensors), rtol=1e-10, atol=1e-12)


@pytest.mark.slow
def test_gradients_equal_finite_differences():
    assert torch.autograd.gradcheck(lambda *x: additive_step(*x, LENGTHS), inputs())


@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (3, 4, 64, 65), (2, 5, 1, 2), (0, 3, 2, 4), (3, 0, 2, 4)])
def test_sizes_at_the_edges(sizes):
    tensors = inputs(torch.float64, *sizes)
    ours, theirs = additive_step(*tensors), by_attend(*tensors)
    assert_close(ours, theirs, rtol=1e-12, atol=1e-13)
    assert_close(gradients(ours, tensors), gradients(theirs, tensors), rtol=1e-10, atol=1e-12)


def test_float32_is_as_precise_as_torch():
    exact = inputs(rows=17, keys=19, hidden=256, values=61)
    single = [x.detach().float().requires_grad_() for x in exact]
    best, ours, theirs = by_attend(*exact), additive_step(*single), by_attend(*single)
    all_gradients = gradients(best, exact), gradients(ours, single), gradients(theirs, single)
    for some, limit in ((zip(best, ours, theirs, strict=True), 2), (zip(*all_gradients, strict=True), 3)):
        for right, one, other in some:
            error, torchs = ((x.double() - right).abs().max() for x in (one, other))
            assert error <= limit * torchs + 1e-7 * right.abs().max()


def test_scores_of_any_size_give_no_nan():
    query, key, weight, value = inputs(torch.float32)
    with torch.no_grad():
        mean, weights = additive_step(1e30 * query, -1e30 * key, 1e30 * weight, value)
        assert torch.isfinite(mean).all()
        assert_close(weights.sum(dim=1), torch.ones(ROWS))
        assert additive_step(query, key, weight * math.nan, value)[0].isnan().all()


def test_keys_beyond_the_length_may_be_nan():
    query, key, weight, value = inputs()
    expected = additive_step(query, key, weight, value, LENGTHS)
    hidden = torch.arange(KEYS) >= LENGTHS[:, None]
    other = [x.detach().clone().masked_fill(hidden.unsqueeze(-1), math.nan).requires_grad_() for x in (key, value)]
    found = additive_step(query, other[0], weight, other[1], LENGTHS)
    assert_close(found, expected)
    assert all(torch.isfinite(grad).all() for grad in gradients(found, [query, other[0], weight, other[1]]))
    assert (found[0][1] == 0).all()
    assert (found[1][1] == 0).all()


def test_threads_give_the_same(monkeypatch):
    tensors = inputs(rows=13)
    one = additive_step(*tensors)
    one_thread = gradients(one, tensors)
    monkeypatch.setattr(attentive_rnn, "SINGLE_THREAD_LIMIT", 0)
    monkeypatch.setattr(attentive_rnn, "MIN_ROWS_PER_THREAD", 1)
    torch.set_num_threads(3)
    several = additive_step(*tensors)
    assert len(attentive_rnn._slices_of_rows(13)) == 3
    assert_close(several, one, rtol=0, atol=0)
    assert_close(gradients(several, tensors), one_thread, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("lengths", [LENGTHS, None], ids=["lengths", "all"])
def test_the_torch_fallback_equals_the_loops(lengths, monkeypatch):
    tensors = inputs()
    fused = additive_step(*tensors, lengths)
    fused_gradients = gradients(fused, tensors)
    monkeypatch.setattr(attentive_rnn, "fusible", lambda *_: False)
    plain = additive_step(*tensors, lengths)
    assert_close(plain, fused, rtol=1e-10, atol=1e-12)
    assert_close(gradients(plain, tensors), fused_gradients, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_scores_of_rows_that_share_keys(fused, dtype, monkeypatch):
    query, key, weight, _ = inputs(dtype)
    index = torch.tensor([2, 0, 0, 4, 2])
    expected = torch.stack([torch.tanh(one + key[number]) @ weight for one, number in zip(query, index, strict=True)])
    if not fused:
        monkeypatch.setattr(attentive_rnn, "fusible", lambda *_: False)
    found = additive_scores(query, key, weight, index)
    assert_close(found, expected.detach())
    assert not found.requires_grad
    monkeypatch.setattr(attentive_rnn, "SINGLE_THREAD_LIMIT", 0)
    slices = []
    monkeypatch.setattr(attentive_rnn, "spread", lambda task, work: slices.append(len(work)) or spread(task, work))
    torch.set_num_threads(3)
    turned = key.detach().transpose(0, 1).contiguous().transpose(0, 1)
    assert_close(additive_scores(query, turned, weight, index), expected.detach())
    assert slices == ([3] if fused else [])
    assert additive_scores(query[:0], key, weight, index[:0]).shape == (0, KEYS)


@pytest.mark.parametrize(("dtype", "rounding"), [(torch.float32, 2**-23), (torch.float64, 2**-52)])
def test_tanh_is_precise_to_the_rounding_of_1_and_better_near_0(dtype, rounding):
    nothing = torch.zeros(1, 1, 1, dtype=dtype), torch.ones(1, dtype=dtype)  # a key of 0, and weight 1
    for far, most in ((30.0, 1.5), (0.01, 0.4)):
        x = torch.linspace(-far, far, 4001, dtype=dtype).unsqueeze(1)
        found = additive_scores(x, *nothing, torch.zeros(4001).long())
        exact = torch.from_numpy(np.tanh(x.numpy().astype(np.longdouble)).astype(np.float64))
        assert (found.double() - exact).abs().max() <= most * rounding
    extremes = torch.tensor([[math.inf], [-math.inf], [1e30], [-1e30], [math.nan]], dtype=dtype)
    found = additive_scores(extremes, *nothing, torch.zeros(5).long())
    assert_close(found[:, 0], torch.tensor([1, -1, 1, -1, math.nan], dtype=dtype), equal_nan=True, rtol=0, atol=0)


def test_inputs_need_not_be_contiguous():
    query, key, weight, value = inputs()
    turned = [x.detach().transpose(0, 1).contiguous().transpose(0, 1) for x in (query, key, value)]
    assert_close(additive_step(turned[0], turned[1], weight, turned[2]), additive_step(query, key, weight, value))


def test_wrong_lengths_raise():
    query, key, weight, value = inputs()
    with pytest.raises(ValueError, match=r"lengths must be \[5\], between 0 and 11, got \[12, 1, 1, 1, 1\]"):
        additive_step(query, key, weight, value, torch.tensor([12, 1, 1, 1, 1]))
    with pytest.raises(ValueError, match=r"lengths must be \[5\], between 0 and 11, got \[-1, 1, 1, 1, 1\]"):
        additive_step(query, key, weight, value, torch.tensor([-1, 1, 1, 1, 1]))
