"""Many short heads computed together and heads one by one: the same numbers, and dropout of the same weights."""

import math

import pytest
import torch
from torch.testing import assert_close

import regard
from regard import scores
from regard.engines import fused
from regard.engines.job import Job
from regard.engines.stream import Stream, has_short_heads
from regard.masks import both, causal, padding
from regard.weighing import softmax

LENGTHS = torch.tensor([3, 7, 1, 0, 5])
MASKS = {
    "none": None,
    "causal": causal,
    "padding": padding(LENGTHS),
    "both": both(causal, padding(LENGTHS)),
    "bias": torch.linspace(-2, 2, 11 * 7, dtype=torch.float64).view(11, 7),
    "by head": torch.arange(3).view(3, 1, 1) < torch.arange(7),
}


def case(dtype=torch.float64, keys=7):
    generator = torch.Generator().manual_seed(0)
    shapes = (5, 3, 11, 4), (5, 3, keys, 4), (5, 3, keys, 2)
    return [torch.randn(shape, generator=generator, dtype=dtype).requires_grad_() for shape in shapes]


def results(tensors, output_grad, **settings):
    torch.manual_seed(1)
    mean = regard.attend(*tensors, **settings)
    return mean, *torch.autograd.grad(mean, tensors, output_grad)


@pytest.fixture(autouse=True)
def _four_heads_together(monkeypatch):
    monkeypatch.setattr(fused, "TOGETHER", 4 * 11 * 7)  # four of fifteen heads


@pytest.fixture
def together(monkeypatch):
    """One entry for each call that computes heads together."""
    calls, apply = [], fused.ShortHeads.apply
    monkeypatch.setattr(fused.ShortHeads, "apply", lambda *tensors: calls.append(1) or apply(*tensors))
    return calls


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("dropout", [0.0, 0.4, 1.0])
def test_short_heads_agree_with_dense_in_value_and_gradient(name, dropout, together):
    tensors = case()
    output_grad = torch.randn(5, 3, 11, 2, dtype=torch.float64)
    ours = results(tensors, output_grad, mask=MASKS[name], dropout=dropout, engine="stream")
    assert together == [1]
    theirs = results(tensors, output_grad, mask=MASKS[name], dropout=dropout, engine="dense")
    for one, other in zip(ours, theirs, strict=True):
        assert_close(one, other)


def test_short_heads_drop_the_same_weights_as_single_heads(together):
    tensors, output_grad = case(torch.float32), torch.randn(5, 3, 11, 2)
    ours = results(tensors, output_grad, mask=MASKS["both"], dropout=0.5, engine="stream")
    alone = results(tensors, output_grad, mask=MASKS["both"], dropout=0.5, engine=Stream(block=512))
    assert together == [1]  # a given block size means head by head
    for one, other in zip(ours, alone, strict=True):
        assert_close(one, other)


def test_short_heads_give_log_weights():
    tensors = case()
    job = regard.attend_parts(*tensors, mask=MASKS["both"])
    assert_close(job.mean, regard.attend(*tensors, mask=MASKS["both"], engine="dense"))
    scores = (tensors[0] @ tensors[1].mT / 2).masked_fill(regard.look(*tensors[:2], mask=MASKS["both"]) == 0, -math.inf)
    assert_close(job.log_weight, scores.logsumexp(dim=-1))


def test_log_weights_have_gradients():
    tensors, output_grad = case(), torch.randn(5, 3, 11, dtype=torch.float64)
    job = Job(*tensors, scores.scaled_dot, None, softmax, 0.0)
    log_weight = fused.attend_short_heads(fused.prepare(job, 0, (512, 512))).log_weight
    plain = (tensors[0] @ tensors[1].mT / 2).logsumexp(dim=-1)
    for one, other in zip(
        torch.autograd.grad(log_weight, tensors[:2], output_grad),
        torch.autograd.grad(plain, tensors[:2], output_grad),
        strict=True,
    ):
        assert_close(one, other)


def test_a_query_without_visible_keys_gets_zeros_and_no_nan():
    tensors, output_grad = case(), torch.ones(5, 3, 11, 2, dtype=torch.float64)
    mean, *grads = results(tensors, output_grad, mask=MASKS["padding"], dropout=0.2, engine="stream")
    assert not mean[3].any()
    assert all(part.isfinite().all() for part in grads)
    assert not grads[0][3].any()


def test_gradients_of_broadcast_heads_and_views_add_up():
    query, key, value = case()
    key, value = (x.detach()[:, :1].requires_grad_() for x in (key, value))
    query = query.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()
    output_grad = torch.randn(5, 3, 11, 2, dtype=torch.float64)
    ours = results((query, key, value), output_grad, dropout=0.3, engine="stream")
    theirs = results((query, key, value), output_grad, dropout=0.3, engine="dense")
    for one, other in zip(ours, theirs, strict=True):
        assert_close(one, other)


@pytest.mark.parametrize(
    ("shape", "together"),
    [
        ((5, 3, 0, 7), False),
        ((5, 3, 11, 0), False),
        ((5, 3, 11, 7), True),
        ((1, 2, 11, 7), False),
        ((5, 3, 256, 256), False),
        ((64, 64, 64), True),
    ],
)
def test_only_many_short_heads_are_computed_together(shape, together, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    *leading, queries, keys = shape
    query, key = torch.zeros(*leading, queries, 3), torch.zeros(*leading, keys, 3)
    assert has_short_heads(Job(query, key, key, scores.scaled_dot, None, softmax)) == together
    assert not has_short_heads(Job(query, key, key, scores.Gaussian(1.0), None, softmax))
