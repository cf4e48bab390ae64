"""Prediction intervals of kernel regression: coverage, and what must hold."""

import numpy as np
import pytest

from regard import NadarayaWatson


def noisy(rows, shape, seed):
    """Rows and targets with errors of a shape: normal, skewed, or larger to the right."""
    random = np.random.default_rng(seed)
    x = random.uniform(size=(rows, 1))
    error = {
        "normal": lambda: random.normal(size=rows),
        "skewed": lambda: random.exponential(size=rows) - 1,
        "heteroscedastic": lambda: (0.2 + 2 * x[:, 0]) * random.normal(size=rows),
    }[shape]()
    return x, np.sin(6 * x[:, 0]) + 0.3 * error


@pytest.mark.slow
@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("shape", ["normal", "skewed", "heteroscedastic"])
def test_intervals_hold_their_fraction_of_new_targets(shape, order):
    held, below = [], []
    for seed in range(100):
        x, y = noisy(200, shape, seed)
        new, target = noisy(200, shape, seed + 10_000)
        model = NadarayaWatson(order=order, bandwidth=0.1).fit(x, y)
        _, low, high = model.predict(new, interval=0.9)
        held.append(((low <= target) & (target <= high)).mean())
        below.append((target < low).mean())
    assert 0.885 < np.mean(held) < 0.925
    assert 0.035 < np.mean(below) < 0.065


def test_intervals_are_wider_where_targets_scatter_more():
    x, y = noisy(900, "heteroscedastic", 0)
    _, low, high = NadarayaWatson(bandwidth=0.1).fit(x, y).predict([[0.05], [0.95]], interval=0.8)
    width = high - low
    assert 2 < width[1] / width[0] < 12


def test_intervals_are_nested_weighted_and_of_each_target():
    x, y = noisy(90, "normal", 1)
    targets = np.stack([y, 10 * y], axis=1)
    model = NadarayaWatson(bandwidth=0.1).fit(x, targets, sample_weight=1 + np.arange(90) % 2)
    mean, low, high = model.predict(x, interval=0.5)
    _, lower, higher = model.predict(x, interval=0.95)
    assert (lower <= low).all()
    assert (low <= mean).all()
    assert (high <= higher).all()
    np.testing.assert_allclose(10 * high[:, 0], high[:, 1], rtol=1e-6)
    np.testing.assert_array_equal(model.predict(x), mean)


def test_weights_of_rows_count_their_residuals():
    """Rows of weight 0 have no part; a row of a large weight has more."""
    x, y = np.zeros((21, 1)), np.append(np.linspace(-1, 1, 20), 50.0)
    light = np.append(np.ones(20), 1e-6)
    high = NadarayaWatson(bandwidth=1.0).fit(x, y, sample_weight=light).predict([[0.0]], interval=0.8)[2]
    assert high[0] < 2
    high = NadarayaWatson(bandwidth=1.0).fit(x, y).predict([[0.0]], interval=0.95)[2]
    assert high[0] > 40


def test_bad_intervals_raise():
    model = NadarayaWatson(bandwidth=1.0).fit([[0.0], [1.0]], [0.0, 1.0])
    for wrong in (0, 1, -0.5, "0.9", np.nan, True):
        with pytest.raises(ValueError, match="interval must be a number above 0 and below 1"):
            model.predict([[0.0]], interval=wrong)
    with pytest.raises(ValueError, match="intervals need two rows, to leave one out, got 1"):
        NadarayaWatson(bandwidth=1.0).fit([[0.0]], [0.0]).predict([[0.0]], interval=0.9)
    with pytest.raises(ValueError, match="one of return_std and interval at a time"):
        model.predict([[0.0]], return_std=True, interval=0.9)
