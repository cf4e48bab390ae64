"""Planted bags have the answer that their formula gives."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from regard.data.samples.planted import planted


@pytest.mark.parametrize("attention", ["linear", "softmax"])
def test_the_answer_is_the_formula(attention):
    bags, y, u, v = planted(11, features=3, size=7, attention=attention, noise=0.0, seed=5)
    assert bags.shape == (11, 7, 3)
    for bag, seen in zip(bags, y, strict=True):
        weight = bag @ v
        if attention == "softmax":
            weight = np.exp(3.0 * weight / np.linalg.norm(v))
            weight = weight / weight.sum()
        assert_allclose(sum(a * (u @ x) for a, x in zip(weight, bag, strict=True)), seen, rtol=1e-10)
    assert_allclose(y.std(), 1)


def test_noise_is_in_standard_deviations_and_seeds_are_kept():
    clear, seen = planted(4000, noise=0.0, seed=2), planted(4000, noise=0.3, seed=2)
    assert_array_equal(clear.bags, seen.bags)
    assert_allclose((seen.y - clear.y).std(), 0.3, rtol=0.05)
    assert_array_equal(planted(9, seed=2).y, planted(9, seed=2).y)
    assert np.abs(planted(9, seed=2).y - planted(9, seed=3).y).max() > 0.1


def test_one_of_each_is_enough():
    assert planted(1, features=1, size=1, noise=0.0).y.shape == (1,)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"count": 0}, "must be at least 1, got 0, 20 and 5"),
        ({"count": 3, "attention": "hard"}, "attention must be 'linear' or 'softmax', got 'hard'"),
        ({"count": 3, "noise": -1.0}, "noise must be a standard deviation, 0 or more, got -1.0"),
        ({"count": 3, "noise": float("nan")}, "noise must be .* got nan"),
    ],
)
def test_what_makes_no_sense_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        planted(**settings)
