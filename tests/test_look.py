"""look as a user meets it: the weights that attend averages with, all of them or the largest."""

import re

import numpy as np
import pytest
import torch
from helpers.cases import KEYS, SCORES, inputs, mask_case, rand, score_case
from torch.testing import assert_close

import regard
from regard import masks, scores

Q, K = rand(2, 3, 5, dtype=torch.float32), rand(2, 7, 5, dtype=torch.float32)


@pytest.mark.parametrize("score_name", SCORES)
@pytest.mark.parametrize("mask_name", ["none", "both", "boolean", "bias", "relative"])
def test_look_is_what_attend_averages_with(score_name, mask_name):
    score, mask = score_case(score_name), mask_case(mask_name)
    query, key, value = (x.detach() for x in inputs())
    weight = regard.look(query, key, score=score.ours, mask=mask.ours)
    assert_close(weight @ value, regard.attend(query, key, value, score=score.ours, mask=mask.ours))
    for top in (1, 3, KEYS, KEYS + 4):
        found = regard.look(query, key, score=score.ours, mask=mask.ours, top=top)
        check_top(found, weight.detach(), top)


def check_top(found, weight, top):
    """The largest weights, falling, each with its own key; -1 and 0 where there are no more."""
    assert found.index.shape == found.weight.shape == (*weight.shape[:-1], top)
    wanted = torch.cat([weight, torch.zeros(*weight.shape[:-1], top, dtype=weight.dtype)], dim=-1)
    assert_close(found.weight, wanted.sort(dim=-1, descending=True).values[..., :top])
    seen = found.index >= 0
    assert torch.equal(seen, found.weight > 0)
    assert_close(weight.gather(-1, found.index.clamp(min=0))[seen], found.weight[seen])
    pairs = found.index.masked_fill(~seen, 0) + (~seen) * (1000 + torch.arange(top))
    assert all(row.unique().numel() == top for row in pairs.reshape(-1, top))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("score", [scores.scaled_dot, scores.Laplace(0.5)])
def test_look_at_the_top_over_many_blocks(score, dtype):
    query, key = rand(3, 601, 2, seed=1, dtype=dtype), rand(3, 1301, 2, seed=2, dtype=dtype)
    for mask in (None, masks.causal):
        check_top(
            regard.look(query, key, score=score, mask=mask, top=5), regard.look(query, key, score=score, mask=mask), 5
        )


@pytest.mark.parametrize("top", [3, 66])
def test_look_gives_equal_weights_in_the_order_of_the_keys(top):
    found = regard.look(torch.zeros(1, 4), torch.zeros(700, 4), top=top)
    assert found.index.tolist() == [list(range(top))]
    assert_close(found.weight, torch.full((1, top), 1 / 700))


@pytest.mark.parametrize("top", [1, 8, 64, 65, 130])
@pytest.mark.parametrize("keys", [1, 63, 64, 67, 130, 515])
def test_the_largest_are_found_however_many_keys_and_wherever_they_are(keys, top):
    """Rising, falling and random scores; some keys twice; some hidden."""
    steps = torch.linspace(-3, 3, keys).unsqueeze(-1)
    key = torch.cat([steps, -steps, rand(keys, 1, seed=3)[torch.arange(keys) // 2]], dim=-1).float()
    query = torch.cat([torch.eye(3), 2 * torch.eye(3), torch.randn(5, 3)])
    for mask in (None, masks.padding(torch.tensor(max(1, keys - 5))), torch.arange(keys) % 3 == 0):
        check_top(regard.look(query, key, mask=mask, top=top), regard.look(query, key, mask=mask), top)


def test_look_raises_on_a_matrix_above_two_gibibytes_and_says_what_to_do():
    long = torch.zeros(1, 1, 1).expand(4, 12_000, 1)
    with pytest.raises(ValueError, match=re.escape("[4, 12000, 12000] would take 2.1 GiB")) as caught:
        regard.look(long, long)
    assert "top=8" in str(caught.value)
    assert regard.look(long[:, :3], long, top=2).weight.shape == (4, 3, 2)


@pytest.mark.parametrize("top", [0, -1, 1.5, True])
def test_look_raises_on_a_top_that_is_no_number_of_keys(top):
    with pytest.raises(ValueError, match=r"^top must be a positive whole number"):
        regard.look(Q, K, top=top)


def test_look_takes_any_whole_number_and_holds_no_more_than_the_matrix():
    assert regard.look(Q, K, top=np.int64(3)).index.shape == (2, 3, 3)
    seen = []

    class Heavy:
        width = 3

        def __call__(self, query, key):
            seen.append(query.shape[-2])
            return query @ key.mT

    assert_close(
        regard.look(Q, K, score=Heavy(), mask=masks.causal), regard.look(Q, K, score=scores.dot, mask=masks.causal)
    )
    assert seen == [1, 1, 1]


def test_look_at_no_keys_and_by_no_queries():
    assert regard.look(Q, K[:, :0], top=2).index.tolist() == [[[-1, -1]] * 3] * 2
    assert regard.look(Q[:, :0], K, top=2).index.shape == (2, 0, 2)
    assert regard.look(Q, K[:, :0]).shape == (2, 3, 0)
