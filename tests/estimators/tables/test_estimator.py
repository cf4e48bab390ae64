"""Kernel regression and classification: scikit-learn's checks, and the formulas."""

import math
import pickle
import warnings

import numpy as np
import pytest
from helpers.kernel_cases import KERNELS, slowly, table
from numpy.testing import assert_allclose
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_iris
from sklearn.metrics import r2_score
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KernelDensity
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import regard
from regard import NadarayaWatson, NadarayaWatsonClassifier
from regard.estimators.tables import smoother as smoothing


@parametrize_with_checks(
    [
        NadarayaWatson(),
        NadarayaWatson(bandwidth="cv", order=1),
        NadarayaWatson(bandwidth=0.7, kernel="laplace", scale="rank"),
        NadarayaWatsonClassifier(),
        NadarayaWatsonClassifier(bandwidth="learn", metric="diagonal"),
    ],
    expected_failed_checks=lambda model: (
        {}
        if model.bandwidth not in ("cv", "learn")
        else dict.fromkeys(
            ["check_sample_weight_equivalence_on_dense_data"],
            "a row is left out whole, whatever its weight: two copies of it would see each other",
        )
    ),
)
def test_scikit_learn_finds_nothing(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(estimator)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("order", [0, 1])
def test_predictions_are_the_formula(kernel, order):
    x, y = table()
    query, _ = table(rows=37, seed=1)
    bandwidth = np.array([1.9, 2.3, 3.1]) * (1.0 if kernel in ("gaussian", "laplace") else 1.5)
    weight = np.random.default_rng(2).uniform(0.1, 3, len(x))
    for given in (None, weight):
        model = NadarayaWatson(bandwidth, kernel=kernel, order=order).fit(x, y, given)
        expected = slowly(kernel, x, y, query, bandwidth, order, 1.0 if given is None else given)
        assert_allclose(model.predict(query), expected, rtol=1e-6, atol=1e-9)


def test_a_matrix_a_vector_and_a_number_are_the_same_bandwidth():
    x, y = table()
    expected = slowly("gaussian", x, y, x, 0.7)
    for bandwidth in (0.7, [0.7] * 3, 0.7 * np.eye(3)):
        assert_allclose(NadarayaWatson(bandwidth).fit(x, y).predict(x), expected, rtol=1e-9)
    turned = np.array([[1.0, 0.5, 0.0], [0.0, 0.8, 0.2], [0.3, 0.0, 1.2]])
    model = NadarayaWatson(turned).fit(x, y)
    assert_allclose(
        model.predict(x), slowly("gaussian", x @ np.linalg.inv(turned).T, y, x @ np.linalg.inv(turned).T, 1)
    )


def test_several_outputs_are_predicted_as_each_alone():
    x, y = table()
    both = np.stack([y, -3 * y + x[:, 0]], axis=1)
    model = NadarayaWatson(0.5, order=1).fit(x, both)
    assert model.predict(x).shape == (len(x), 2)
    for column in range(2):
        assert_allclose(model.predict(x)[:, column], NadarayaWatson(0.5, order=1).fit(x, both[:, column]).predict(x))


def test_a_line_is_found_exactly_by_order_1_and_not_by_order_0():
    x = np.linspace(0, 1, 40)[:, None]
    y = 3 * x[:, 0] - 1
    assert_allclose(NadarayaWatson(0.2, order=1).fit(x, y).predict(x), y, atol=1e-7)
    assert abs(NadarayaWatson(0.2).fit(x, y).predict(x)[0] - y[0]) > 0.2  # the bias at the edge


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize(("kernel", "scale"), [("gaussian", None), ("laplace", "standard"), ("gaussian", "rank")])
def test_marginal_effects_are_the_slope_of_the_prediction(order, kernel, scale):
    x, y = table(rows=200)
    model = NadarayaWatson(0.8, kernel=kernel, order=order, scale=scale).fit(x, y)
    query = table(rows=11, seed=3)[0] * 0.5
    effects = model.marginal_effects(query)
    assert effects.shape == (11, 3)
    for feature in range(3):
        step = np.zeros(3)
        step[feature] = 1e-6
        slope = (model.predict(query + step) - model.predict(query - step)) / 2e-6
        assert_allclose(effects[:, feature], slope, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("features", [1, 2, 5])
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [("gaussian", "gaussian"), ("laplace", "exponential"), ("epanechnikov", "epanechnikov"), ("boxcar", "tophat")],
)
def test_log_density_is_the_kernel_density(ours, theirs, features):
    x, y = table(columns=features)
    model = NadarayaWatson(1.3, kernel=ours).fit(x, y)
    with np.errstate(divide="ignore"):
        expected = KernelDensity(bandwidth=1.3, kernel=theirs).fit(x).score_samples(x * 1.1)
    assert_allclose(model.log_density(x * 1.1), expected, rtol=1e-6)


def test_tricube_is_a_density_too():
    x = np.array([[0.0]])
    grid = np.linspace(-2, 2, 4001)[:, None]
    density = np.exp(NadarayaWatson(1.5, kernel="tricube").fit(x, [1.0]).log_density(grid))
    assert density.sum() * 0.001 == pytest.approx(1.0, abs=1e-4)


def test_the_spread_is_that_of_the_weighted_targets():
    x, y = table()
    mean, spread = NadarayaWatson(0.6).fit(x, y).predict(x, return_std=True)
    for place in range(0, len(x), 7):
        w = np.exp(-0.5 * (((x - x[place]) / 0.6) ** 2).sum(axis=1))
        assert mean[place] == pytest.approx(np.average(y, weights=w))
        assert spread[place] == pytest.approx(np.sqrt(np.average((y - mean[place]) ** 2, weights=w)))
    line = 3 * x[:, 0] + 1
    _, spread = NadarayaWatson(1.6, order=1).fit(x, line).predict(x * 0.3, return_std=True)
    assert_allclose(spread, 0.0, atol=1e-6)  # nothing is left about a line


def test_average_pooling_ignores_the_query():
    x, y = table()
    model = NadarayaWatson(kernel="constant").fit(x, y)
    assert_allclose(model.predict(x * 100), y.mean())
    assert_allclose(model.evidence(x[:2], top=3).weight, 1 / len(x))
    assert_allclose(model.marginal_effects(x[:2]), 0.0)


def test_a_score_of_the_users_own():
    x, y = table()
    ours = NadarayaWatson(0.6).fit(x, y)
    for kernel in (regard.scores.Gaussian(0.6), lambda q, k: -0.5 * ((q[:, None] - k) / 0.6).square().sum(-1)):
        model = NadarayaWatson(kernel=kernel).fit(x, y)
        assert_allclose(model.predict(x), ours.predict(x), rtol=1e-6)
        assert_allclose(model.evidence(x[:3], top=2).weight, ours.evidence(x[:3], top=2).weight, rtol=1e-6)
        assert_allclose(model.predict(x, return_std=True)[1], ours.predict(x, return_std=True)[1], rtol=1e-6)
    line = NadarayaWatson(kernel=regard.scores.Gaussian(0.9), order=1).fit(x, y)
    assert_allclose(line.predict(x), NadarayaWatson(0.9, order=1).fit(x, y).predict(x), rtol=1e-4)
    with pytest.raises(ValueError, match="cannot be saved"):
        line.save("nowhere")


def test_probabilities_are_the_weights_of_the_classes():
    x, y = load_iris(return_X_y=True)
    model = NadarayaWatsonClassifier("cv", metric="diagonal").fit(x, y)
    assert model.score(x, y) > 0.95
    whole = model.evidence(x[:5], top=None)
    for label in range(3):
        expected = (whole.weight * (y[whole.index] == label)).sum(axis=1)
        assert_allclose(model.predict_proba(x[:5])[:, label], expected, atol=1e-9)


def test_in_a_pipeline_and_a_grid_search():
    x, y = load_diabetes(return_X_y=True, as_frame=True)
    search = GridSearchCV(
        make_pipeline(StandardScaler(), NadarayaWatson()), {"nadarayawatson__bandwidth": [0.3, 0.9, 2.7]}, cv=3
    ).fit(x, y)
    assert search.best_params_ == {"nadarayawatson__bandwidth": 0.9}
    model = NadarayaWatson(0.05).fit(x, y)
    assert list(model.feature_names_in_) == list(x.columns)
    with pytest.raises(ValueError, match="feature names"):
        model.predict(x.rename(columns={"age": "years"}))
    again = pickle.loads(pickle.dumps(model))
    assert_allclose(again.predict(x[:5]), model.predict(x[:5]))
    assert clone(model).bandwidth == 0.05


def test_the_plan_says_which_engine_and_why():
    x, y = table(rows=2000, columns=1)
    model = NadarayaWatson().fit(x, y)
    assert model.plan(x[:5]) == ("dense", "there are only 10,000 pairs")
    many = np.random.default_rng(0).normal(size=(10_000, 1))
    assert model.plan(many).engine == "gauss"
    assert NadarayaWatson(kernel="laplace").fit(x, y).plan(many).engine == "pairs"
    assert "score of your own" in NadarayaWatson(kernel=regard.scores.dot).fit(x, y).plan(x).why


def test_widths_and_masses_are_those_of_the_kernels():
    """By summing over a grid in one dimension."""
    u = np.linspace(-40, 40, 800_001)
    for name, kernel in KERNELS.items():
        weight = kernel(np.abs(u))
        kind = smoothing.KINDS[smoothing.KERNELS[name]]
        assert math.exp(smoothing.log_mass(kind, 1)) == pytest.approx(weight.sum() * 1e-4, rel=1e-3)
        assert smoothing.width_of(name, 1) == pytest.approx(np.sqrt(np.average(u**2, weights=weight)), rel=1e-3)


@pytest.mark.parametrize("order", [0, 1])
def test_the_score_of_rows_left_out_is_that_of_models_without_them(order):
    drawn = np.random.default_rng(1)
    x, weight = drawn.normal(size=(23, 2)), drawn.integers(1, 4, 23).astype(float)
    y = np.stack([np.sin(x[:, 0]), x[:, 1] ** 2], axis=1)
    for weights in (None, weight):
        model = NadarayaWatson(bandwidth=0.7, order=order).fit(x, y, sample_weight=weights)
        alone = []
        for row in range(len(x)):
            others = np.arange(len(x)) != row
            kept = None if weights is None else weights[others]
            less = NadarayaWatson(bandwidth=0.7, order=order).fit(x[others], y[others], sample_weight=kept)
            alone.append(less.predict(x[[row]])[0])
        assert model.left_out_score() == pytest.approx(r2_score(y, np.stack(alone), sample_weight=weights), abs=1e-9)


def test_classes_of_rows_left_out_are_counted():
    x, y = load_iris(return_X_y=True)
    model = NadarayaWatsonClassifier(bandwidth=0.5).fit(x, y)
    right = 0
    for row in range(len(x)):
        others = np.arange(len(x)) != row
        right += NadarayaWatsonClassifier(bandwidth=0.5).fit(x[others], y[others]).predict(x[[row]])[0] == y[row]
    assert model.left_out_score() == pytest.approx(right / len(x))
    with pytest.raises(ValueError, match="to leave a row out there must be two, got 1"):
        NadarayaWatson(bandwidth=1.0).fit(x[:1], [1.0]).left_out_score()
