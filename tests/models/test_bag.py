"""Attention over ragged bags: against the padded definition in values and gradients, and against `attend`."""

import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import regard
from regard.models.bag import (
    BagAttention,
    BagModel,
    GatedScore,
    MaxPooling,
    MeanPooling,
    TanhScore,
    linear_score,
    segment_max,
    segment_softmax,
    segment_sum,
)

SIZES = [3, 1, 7, 2, 11]
BAG = torch.repeat_interleave(torch.arange(len(SIZES)), torch.tensor(SIZES))


def random_tensor(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def padded_softmax(score):
    """The definition: bag by bag, in a padded matrix of -inf."""
    dense = torch.full((len(SIZES), max(SIZES), score.shape[1]), -math.inf, dtype=score.dtype)
    seen = torch.arange(max(SIZES)) < torch.tensor(SIZES)[:, None]
    dense = dense.index_put(tuple(seen.nonzero().T), score)
    return torch.softmax(dense, dim=1)[seen]


def test_segment_softmax_equals_the_padded_softmax_in_value_and_gradient():
    score, gradient = random_tensor(len(BAG), 3), torch.randn(len(BAG), 3, dtype=torch.float64)
    ours, theirs = segment_softmax(score, BAG, len(SIZES)), padded_softmax(score)
    assert_close(ours, theirs)
    assert_close(
        *(torch.autograd.grad((weight * gradient).sum(), score)[0] for weight in (ours, theirs)), rtol=1e-10, atol=1e-12
    )
    assert torch.autograd.gradcheck(lambda x: segment_softmax(x, BAG, len(SIZES)), score)


def test_the_order_of_instances_does_not_matter():
    score, order = random_tensor(len(BAG), 2), torch.randperm(len(BAG))
    whole = segment_softmax(score, BAG, len(SIZES))
    assert_close(segment_softmax(score[order], BAG[order], len(SIZES)), whole[order])


def test_extreme_scores_and_empty_bags_give_no_nan():
    score = torch.tensor([1e4, -1e4, -1e300, -math.inf, 0.0, -math.inf, -math.inf], dtype=torch.float64)
    score.requires_grad_()
    bag = torch.tensor([0, 0, 1, 1, 2, 3, 3])
    weight = segment_softmax(score, bag, 5)  # bag 4 has no instance
    assert weight.tolist() == [1, 0, 1, 0, 1, 0, 0]
    weight.square().sum().backward()
    assert torch.isfinite(score.grad).all()


def test_segment_sums_and_maxima():
    values = random_tensor(len(BAG), 2, 3)
    parts = values.split(SIZES)
    assert_close(segment_sum(values, BAG, len(SIZES)), torch.stack([part.sum(0) for part in parts]))
    assert_close(segment_max(values, BAG, len(SIZES)), torch.stack([part.amax(0) for part in parts]))
    assert segment_max(values, BAG, len(SIZES) + 1)[-1].unique().tolist() == [-math.inf]


def test_one_bag_equals_attend():
    score = linear_score(5, heads=3).double()
    bag = random_tensor(7, 5)
    ours = BagAttention(score, heads=3)(bag, torch.zeros(7, dtype=torch.long), 1)
    assert_close(ours[0], regard.attend(score.weight, bag, bag, score=regard.scores.dot))


def test_a_batch_equals_its_bags_one_by_one():
    x = random_tensor(len(BAG), 5)
    for score in (linear_score(5, 2), TanhScore(5, 4, 2), GatedScore(5, 4, 2)):
        pool = BagAttention(score.double(), heads=2)
        alone = [pool(part, torch.zeros(len(part), dtype=torch.long), 1)[0] for part in x.split(SIZES)]
        assert_close(pool(x, BAG, len(SIZES)), torch.stack(alone))


def test_scores_are_equations_8_and_9():
    h = random_tensor(6, 5)
    for kind in (TanhScore, GatedScore):
        score = kind(5, 4, 2).double()
        inner = torch.tanh(h @ score.content.weight.T + score.content.bias)
        if kind is GatedScore:
            inner = inner / (1 + torch.exp(-(h @ score.gate.weight.T + score.gate.bias)))
        assert_close(score(h), inner @ score.query.weight.T)


def test_mean_and_max_pooling_in_value_and_gradient():
    x = random_tensor(len(BAG), 5)
    for pool, expected in ((MeanPooling(), lambda part: part.mean(0)), (MaxPooling(), lambda part: part.amax(0))):
        pooled, theirs = pool(x, BAG, len(SIZES)), torch.stack([expected(part) for part in x.split(SIZES)])
        assert_close(pooled[:, 0], theirs)
        gradient = torch.randn_like(theirs)
        ours = torch.autograd.grad((pooled[:, 0] * gradient).sum(), x)[0]
        assert_close(ours, torch.autograd.grad((theirs * gradient).sum(), x)[0])


def test_instances_that_tie_share_the_maximum():
    x = torch.tensor([[1.0, 5.0], [1.0, 2.0]])
    assert MaxPooling().weights(x, torch.tensor([0, 0]), 1)[:, 0].tolist() == [[0.5, 1.0], [0.5, 0.0]]


@pytest.mark.parametrize(
    "pool", [lambda: BagAttention(TanhScore(4, 3, 2), heads=2), MeanPooling, MaxPooling], ids=["softmax", "mean", "max"]
)
def test_contributions_and_bias_add_up_to_the_output(pool):
    model = BagModel(nn.Sequential(nn.Linear(5, 4), nn.ReLU()), pool(), 4, 3).double()
    x = random_tensor(len(BAG), 5)
    weight, added = model.explain(x, BAG, len(SIZES))
    assert_close(segment_sum(weight, BAG, len(SIZES)), torch.ones(len(SIZES), dtype=torch.float64))
    assert_close(segment_sum(added, BAG, len(SIZES)) + model.read.bias, model(x, BAG, len(SIZES)))
