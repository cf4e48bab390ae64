"""Bands of the regression function and marginal effects: their definition, their coverage, and bad input."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm

from regard import NadarayaWatson, NadarayaWatsonClassifier
from regard.estimators.tables import bands as module
from regard.estimators.tables import effects


def curve(rows, shape="normal", seed=0):
    random = np.random.default_rng(seed)
    x = random.uniform(size=(rows, 1))
    error = random.exponential(size=rows) - 1 if shape == "skewed" else random.normal(size=rows)
    error = (0.3 + 1.4 * x[:, 0]) * error if shape == "heteroscedastic" else error
    return x, np.sin(6 * x[:, 0]) + 0.3 * error


def hat(model, query, rows):
    """The weight of each target in each prediction: predictions of unit vectors."""
    x, y, width, order = model.X_, model.y_[:, 0], model.bandwidth_, model.order
    one = NadarayaWatson(order=order, bandwidth=width).fit(x, np.eye(len(x)))
    assert len(y) == rows
    return one.predict(query)


@pytest.mark.parametrize("order", [0, 1])
def test_asymptotic_bands_are_those_of_the_definition(order):
    x, y = curve(47)
    query = np.array([[0.1], [0.5], [0.93]])
    width = 0.15
    model = NadarayaWatson(order=order, bandwidth=width, tol=1e-12).fit(x, y)
    wide = NadarayaWatson(order=order, bandwidth=width * np.sqrt(2), tol=1e-12).fit(x, y)
    left_out = hat(model, x, 47)
    own = np.diag(left_out)
    residual = (y - left_out @ y) / (1 - own)
    near = np.exp(-0.5 * ((x - x.T) / (2 * width)) ** 2)
    variance = (near @ residual**2) / near.sum(axis=1)
    weight = 2 * hat(model, query, 47) - hat(wide, query, 47)
    found = model.bands(query, level=0.9)
    np.testing.assert_allclose(found.prediction, weight @ y, rtol=1e-5)
    half = norm.ppf(0.95) * np.sqrt(weight**2 @ variance)
    np.testing.assert_allclose(found.upper - found.prediction, half, rtol=1e-4)
    ignored = model.bands(query, level=0.9, bias="ignored")
    np.testing.assert_allclose(ignored.prediction, model.predict(query))
    half = norm.ppf(0.95) * np.sqrt(hat(model, query, 47) ** 2 @ variance)
    np.testing.assert_allclose(ignored.prediction - ignored.lower, half, rtol=1e-4)


def test_bootstrap_by_pairs_and_by_columns_of_values_agree(monkeypatch):
    x, y = curve(60)
    query = np.linspace(0, 1, 13)[:, None]
    targets = np.stack([y, 2 - 3 * y], axis=1)
    model = NadarayaWatson(bandwidth=0.1, tol=1e-12).fit(x, targets, sample_weight=1 + np.arange(60) % 2)
    for kind in ("pointwise", "simultaneous"):
        by_pairs = model.bands(query, kind=kind, method="bootstrap", samples=2000)
        monkeypatch.setattr(module, "_PAIRS", 0)
        monkeypatch.setattr(module, "_NUMBERS", 5000)
        by_columns = model.bands(query, kind=kind, method="bootstrap", samples=2000)
        monkeypatch.undo()
        for a, b in zip(by_pairs, by_columns, strict=True):
            np.testing.assert_allclose(a, b, atol=0.03)
        np.testing.assert_allclose(by_pairs.upper[:, 1], 2 - 3 * by_pairs.lower[:, 0], rtol=1e-6)
        again = model.bands(query, kind=kind, method="bootstrap", samples=2000)
        np.testing.assert_array_equal(by_pairs.upper, again.upper)
    pointwise, simultaneous = model.bands(query, samples=999), model.bands(query, kind="simultaneous", samples=999)
    wider = (simultaneous.upper - simultaneous.lower) / (pointwise.upper - pointwise.lower)
    assert (wider > 1.2).all()
    assert (wider < 2).all()


@pytest.mark.slow
@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("shape", ["normal", "skewed", "heteroscedastic"])
def test_bands_cover_the_function(shape, order):
    query = np.linspace(0.1, 0.9, 17)[:, None]
    truth = np.sin(6 * query[:, 0])
    held, whole, naive = [], [], []
    for seed in range(150):
        model = NadarayaWatson(order=order, bandwidth=0.06).fit(*curve(250, shape, seed))
        for kind, list_ in (("pointwise", held), ("simultaneous", whole)):
            _, low, high = model.bands(query, kind=kind)
            list_.append((low <= truth) & (truth <= high))
        _, low, high = model.bands(query, bias="ignored")
        naive.append((low <= truth) & (truth <= high))
    # The bias of averages depends on which rows happen to be near.
    assert (0.9, 0.93)[order] < np.mean(held) < 0.975
    assert (0.7, 0.88)[order] < np.mean(np.all(whole, axis=1)) < 0.99
    assert np.mean(naive) < np.mean(held)


def test_a_classifier_has_bands_and_effects_of_probabilities():
    random = np.random.default_rng(0)
    x = random.normal(size=(300, 1))
    y = np.where(random.random(300) < 1 / (1 + np.exp(-2 * x[:, 0])), "yes", "no")
    model = NadarayaWatsonClassifier(bandwidth=0.5).fit(x, y)
    prediction, low, high = model.bands([[-3.0], [0.0]])
    assert prediction.shape == (2, 2)
    np.testing.assert_allclose(prediction.sum(axis=1), 1, atol=1e-6)
    assert (low >= 0).all()
    assert (high <= 1).all()
    effect, error = model.marginal_effects([[0.0]], return_std=True)
    np.testing.assert_allclose(effect[0, 0, 0], -effect[0, 0, 1])
    assert effect[0, 0, 1] > 3 * error[0, 0, 1]


@pytest.mark.parametrize("order", [0, 1])
def test_errors_of_marginal_effects_are_those_of_the_definition(order, monkeypatch):
    x, y = curve(80)
    query = np.array([[0.3], [0.7]])
    model = NadarayaWatson(order=order, bandwidth=0.2, tol=1e-12).fit(x, y)
    deviation = module.error_sizes(model.smoother_, 0)[:, 0]
    weight = NadarayaWatson(order=order, bandwidth=0.2, tol=1e-12).fit(x, np.eye(80)).marginal_effects(query)[:, 0]
    effect, error = model.marginal_effects(query, return_std=True)
    np.testing.assert_allclose(effect[:, 0], weight @ y, rtol=1e-5)
    np.testing.assert_array_equal(effect, model.marginal_effects(query))
    np.testing.assert_allclose(error[:, 0], np.sqrt(weight**2 @ deviation**2), rtol=0.15)  # of 399 samples
    average, average_error = model.average_marginal_effects(query)
    np.testing.assert_allclose(average[0], (weight @ y).mean(), rtol=1e-5)
    np.testing.assert_allclose(average_error[0], np.sqrt(weight.mean(axis=0) ** 2 @ deviation**2), rtol=0.15)
    monkeypatch.setattr(effects, "_NUMBERS", 3000)
    np.testing.assert_allclose(model.marginal_effects(query, return_std=True)[1], error, rtol=1e-6)


def test_average_effects_of_training_rows_by_weight_in_units_of_the_column():
    x, y = curve(90)
    frame = pd.DataFrame({"a": 100 * x[:, 0], "b": np.where(x[:, 0] > 0.5, "u", "v")})
    weight = np.append(np.zeros(10), 1 + np.arange(80) % 3)
    model = NadarayaWatson(bandwidth=[0.2, 0.3], scale="standard").fit(frame, y, sample_weight=weight)
    average, error = model.average_marginal_effects()
    expected = np.average(model.marginal_effects(frame[10:])[:, 0], weights=weight[10:])
    np.testing.assert_allclose(average[0], expected, rtol=1e-6)
    assert error[0] > 0
    assert np.isnan([average[1], error[1]]).all()


@pytest.mark.slow
def test_errors_of_average_effects_cover_the_slope():
    held = []
    for seed in range(200):
        random = np.random.default_rng(seed)
        x = random.uniform(size=(200, 1))
        y = 2 * x[:, 0] + 0.5 * random.normal(size=200)
        average, error = NadarayaWatson(order=1, bandwidth=0.15).fit(x, y).average_marginal_effects()
        held.append(abs(average[0] - 2) <= 1.96 * error[0])
    assert 0.9 < np.mean(held) < 0.99


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"level": 1}, "level must be a number above 0 and below 1, such as 0.95, got 1"),
        ({"level": np.nan}, "level must be a number above 0 and below 1"),
        ({"kind": "both"}, "kind must be one of pointwise, simultaneous, got 'both'"),
        ({"method": "exact"}, "method must be one of asymptotic, bootstrap, got 'exact'"),
        ({"bias": "none"}, "bias must be one of corrected, undersmoothed, ignored, got 'none'"),
        ({"kind": "simultaneous", "method": "asymptotic"}, "kind='simultaneous' needs method='bootstrap'"),
        ({"samples": 0}, "samples must be a whole number of at least"),
        ({"kind": "simultaneous", "samples": 18}, r"at least 1 / \(1 - level\) - 1, got 18"),
    ],
)
def test_bad_settings_raise(wrong, message):
    model = NadarayaWatson(bandwidth=1.0).fit([[0.0], [1.0]], [0.0, 1.0])
    with pytest.raises(ValueError, match=message):
        model.bands([[0.0]], **wrong)
