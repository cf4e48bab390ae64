"""Several short heads computed together and heads one by one: the same numbers, and dropout of the same weights."""

import math

import pytest
import torch
from torch.testing import assert_close

import regard
from regard import scores
from regard.engines import fused
from regard.engines.job import Job
from regard.engines.stream import Stream
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
    monkeypatch.setattr(fused, "BLOCK", (4 * 11, 7))  # four of fifteen heads
    torch.set_num_threads(2)


@pytest.fixture
def together(monkeypatch):
    """The number of heads of each task."""
    numbers, spread = [], fused.spread

    def recorded(run, tasks):
        numbers.extend(heads.stop - heads.start for heads, _ in tasks)
        return spread(run, tasks)

    monkeypatch.setattr(fused, "spread", recorded)
    return numbers


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("dropout", [0.0, 0.4, 1.0])
def test_short_heads_agree_with_dense_in_value_and_gradient(name, dropout, together):
    tensors = case()
    output_grad = torch.randn(5, 3, 11, 2, dtype=torch.float64)
    ours = results(tensors, output_grad, mask=MASKS[name], dropout=dropout, engine="stream")
    assert together == [4, 4, 4, 3] * 2  # forward and backward
    theirs = results(tensors, output_grad, mask=MASKS[name], dropout=dropout, engine="dense")
    for one, other in zip(ours, theirs, strict=True):
        assert_close(one, other)


def test_short_heads_drop_the_same_weights_as_single_heads(together):
    tensors, output_grad = case(torch.float32), torch.randn(5, 3, 11, 2)
    ours = results(tensors, output_grad, mask=MASKS["both"], dropout=0.5, engine="stream")
    alone = results(tensors, output_grad, mask=MASKS["both"], dropout=0.5, engine=Stream((11, 7)))
    assert together == [4, 4, 4, 3] * 2 + [1] * 15 * 2
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
    log_weight = fused.attend_heads(job, 0, (512, 512)).log_weight
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
    ("shape", "tasks"),
    [
        ((5, 3, 0, 7), []),
        ((5, 3, 11, 0), [8, 7]),
        ((5, 3, 11, 7), [8, 7]),  # two threads
        ((1, 2, 11, 7), [1, 1]),
        ((5, 3, 256, 256), [4, 4, 4, 3]),  # four fill a block
        ((3, 2000, 10), [2] * 4 + [1] * 4),
        ((3, 513, 257), [1] * 6),
    ],
)
@pytest.mark.parametrize("score", [scores.scaled_dot, scores.Gaussian(1.0)])
def test_as_many_heads_as_fit_a_block_are_computed_together(shape, tasks, score):
    *leading, queries, keys = shape
    query, key = torch.zeros(*leading, queries, 3), torch.zeros(*leading, keys, 3)
    job = Job(query, key, key, score, None, softmax)
    blocks, *_ = fused.prepare(job, 0, (512, 512))
    assert [task.heads.stop - task.heads.start for task in blocks.tasks()] == tasks
