"""Weighings beside softmax over several strips and blocks: any score, and few keys with a weight on the CPU."""

import itertools

import pytest
import torch
from helpers.cases import gradients, rand
from torch.testing import assert_close

import regard
from regard import masks, scores, weighing
from regard.engines import Stream

WEIGHINGS = [
    *[weighing.linear, weighing.sigmoid(-0.5), weighing.softpick, weighing.sparsemax, weighing.entmax15],
    weighing.sinks(0.4),
]
SCORES = [scores.scaled_dot, scores.Gaussian(2.0), lambda a, b: -torch.cdist(a, b)]


def long_cases():
    """Every weighing with every score; each of both with one group of heads and with two."""
    for (number, weigh), (other, score) in itertools.product(enumerate(WEIGHINGS), enumerate(SCORES)):
        yield pytest.param(weigh, score, 1 + (number + other) % 2, id=f"{weigh}-{other}")


@pytest.mark.slow
@pytest.mark.parametrize(("weigh", "score", "groups"), list(long_cases()))
def test_long_rows_agree_with_the_matrix(weigh, score, groups):
    """Several strips and blocks, of which few keys have a weight; masks with a reach; groups of heads."""
    query, key, value = (
        rand(2, h, n, 5, seed=n).requires_grad_() for h, n in ((2, 211), (2 // groups, 307), (2 // groups, 307))
    )
    for mask in (None, masks.both(masks.window(40), masks.padding(torch.tensor([307, 60])))):
        wanted = regard.attend(query, key, value, score=score, mask=mask, weigh=weigh, engine="dense")
        for engine in (Stream(), Stream((32, 100))):
            mean = regard.attend(query, key, value, score=score, mask=mask, weigh=weigh, engine=engine)
            assert_close(mean, wanted)
            assert_close(gradients([mean], [query, key, value]), gradients([wanted], [query, key, value]))


@pytest.mark.parametrize("weigh", [weighing.sparsemax, weighing.entmax15], ids=str)
@pytest.mark.parametrize("score", [scores.scaled_dot, scores.Gaussian(0.2)])
def test_few_keys_with_a_weight(weigh, score):
    query, key, value = (rand(n, 2, seed=n).requires_grad_() for n in (37, 1300, 1300))
    found = regard.attend(query, key, value, score=score, weigh=weigh, engine="stream")
    wanted = regard.attend(query, key, value, score=score, weigh=weigh, engine="dense")
    assert (regard.look(query, key, score=scores.Gaussian(0.2), weigh=weigh) > 0).float().mean() < 1 / 16
    assert_close(found, wanted)
    assert_close(gradients([found], [query, key, value]), gradients([wanted], [query, key, value]))


def test_blocks_out_of_reach_are_not_scored():
    seen = []

    def score(query, key):
        seen.append(query.shape[-2] * key.shape[-2])
        return query @ key.mT

    x = rand(400, 3)
    mean = regard.attend(x, x, x, score=score, mask=masks.window(5), weigh=weighing.entmax15, engine=Stream(20))
    assert sum(seen) < 400 * 400 / 4
    wanted = regard.attend(x, x, x, score=scores.dot, mask=masks.window(5), weigh=weighing.entmax15, engine="dense")
    assert_close(mean, wanted)
