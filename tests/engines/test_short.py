"""Many short heads at once against one after the other: the same numbers, the same weights dropped."""

import math

import pytest
import torch
from torch.testing import assert_close

import regard
from regard import scores
from regard.engines import fused, short
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
    drawn = torch.Generator().manual_seed(0)
    shapes = (5, 3, 11, 4), (5, 3, keys, 4), (5, 3, keys, 2)
    return [torch.randn(shape, generator=drawn, dtype=dtype).requires_grad_() for shape in shapes]


def found(given, slope, **settings):
    torch.manual_seed(1)
    mean = regard.attend(*given, **settings)
    return mean, *torch.autograd.grad(mean, given, slope)


@pytest.fixture(autouse=True)
def _some_at_a_time(monkeypatch):
    monkeypatch.setattr(short, "AT_ONCE", 4 * 11 * 7)  # four of fifteen heads


@pytest.fixture
def together(monkeypatch):
    """How often heads were taken together."""
    calls, apply = [], short.Together.apply
    monkeypatch.setattr(short.Together, "apply", lambda *given: calls.append(1) or apply(*given))
    return calls


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("dropout", [0.0, 0.4, 1.0])
def test_it_is_the_definition_in_value_and_gradient(name, dropout, together):
    given = case()
    slope = torch.randn(5, 3, 11, 2, dtype=torch.float64)
    ours = found(given, slope, mask=MASKS[name], dropout=dropout, engine="stream")
    assert together == [1]
    theirs = found(given, slope, mask=MASKS[name], dropout=dropout, engine="dense")
    for one, other in zip(ours, theirs, strict=True):
        assert_close(one, other)


def test_it_drops_what_head_by_head_drops(together):
    given, slope = case(torch.float32), torch.randn(5, 3, 11, 2)
    ours = found(given, slope, mask=MASKS["both"], dropout=0.5, engine="stream")
    alone = found(given, slope, mask=MASKS["both"], dropout=0.5, engine=Stream(block=512))
    assert together == [1]  # a block of one's own is head by head
    for one, other in zip(ours, alone, strict=True):
        assert_close(one, other)


def test_log_weights_are_those_of_the_parts():
    given = case()
    job = regard.attend_parts(*given, mask=MASKS["both"])
    assert_close(job.mean, regard.attend(*given, mask=MASKS["both"], engine="dense"))
    scores = (given[0] @ given[1].mT / 2).masked_fill(regard.look(*given[:2], mask=MASKS["both"]) == 0, -math.inf)
    assert_close(job.log_weight, scores.logsumexp(dim=-1))


def test_log_weights_have_gradients_too():
    given, drawn = case(), torch.randn(5, 3, 11, dtype=torch.float64)
    fold, *vectors = fused.prepared(Job(*given, regard.scores.scaled_dot, None, softmax, 0.0), 0, (512, 512))
    _, log_weight = short.Together.apply(fold, *vectors)
    plain = (given[0] @ given[1].mT / 2).logsumexp(dim=-1)
    for one, other in zip(
        torch.autograd.grad(log_weight, given[:2], drawn), torch.autograd.grad(plain, given[:2], drawn), strict=True
    ):
        assert_close(one, other)


def test_who_sees_nothing_gets_zeros_and_no_nan():
    given, slope = case(), torch.ones(5, 3, 11, 2, dtype=torch.float64)
    mean, *slopes = found(given, slope, mask=MASKS["padding"], dropout=0.2, engine="stream")
    assert not mean[3].any()
    assert all(part.isfinite().all() for part in slopes)
    assert not slopes[0][3].any()


def test_broadcast_heads_and_views_add_up_their_gradients():
    query, key, value = case()
    key, value = (x.detach()[:, :1].requires_grad_() for x in (key, value))
    query = query.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()
    slope = torch.randn(5, 3, 11, 2, dtype=torch.float64)
    ours = found((query, key, value), slope, dropout=0.3, engine="stream")
    theirs = found((query, key, value), slope, dropout=0.3, engine="dense")
    for one, other in zip(ours, theirs, strict=True):
        assert_close(one, other)


@pytest.mark.parametrize(
    ("shape", "fits"),
    [
        ((5, 3, 0, 7), False),
        ((5, 3, 11, 0), False),
        ((5, 3, 11, 7), True),
        ((1, 2, 11, 7), False),
        ((5, 3, 256, 256), False),
        ((64, 64, 64), True),
    ],
)
def test_it_is_for_short_heads_of_which_there_are_many(shape, fits, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    *leading, queries, keys = shape
    query, key = torch.zeros(*leading, queries, 3), torch.zeros(*leading, keys, 3)
    assert has_short_heads(Job(query, key, key, scores.scaled_dot, None, softmax)) == fits
    assert not has_short_heads(Job(query, key, key, scores.Gaussian(1.0), None, softmax))
