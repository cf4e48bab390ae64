"""Predictions, densities and derivatives of a kernel regression, compared with the formulas."""

import math
import warnings

import numpy as np
import pytest
import torch
from helpers.kernel_cases import slow_regression, table
from numpy.testing import assert_allclose
from sklearn.neighbors import KernelDensity
from torch.testing import assert_close

import regard
from regard import NadarayaWatson, NadarayaWatsonClassifier, scores
from regard.attend import attend
from regard.estimators.tables.smoother import local_linear
from regard.kernels import KERNELS
from regard.masks import both


def points(rows, features, seed=0):
    return torch.rand(rows, features, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("order", [0, 1])
def test_predictions_match_the_formula(kernel, order):
    x, y = table()
    query, _ = table(rows=37, seed=1)
    bandwidth = np.array([1.9, 2.3, 3.1]) * (1.0 if kernel in ("gaussian", "laplace") else 1.5)
    weight = np.random.default_rng(2).uniform(0.1, 3, len(x))
    for given in (None, weight):
        model = NadarayaWatson(bandwidth, kernel=kernel, order=order).fit(x, y, given)
        expected = slow_regression(kernel, x, y, query, bandwidth, order, 1.0 if given is None else given)
        assert_allclose(model.predict(query), expected, rtol=1e-6, atol=1e-9)


def test_a_matrix_a_vector_and_a_number_are_the_same_bandwidth():
    x, y = table()
    expected = slow_regression("gaussian", x, y, x, 0.7)
    for bandwidth in (0.7, [0.7] * 3, 0.7 * np.eye(3)):
        assert_allclose(NadarayaWatson(bandwidth).fit(x, y).predict(x), expected, rtol=1e-9)
    turned = np.array([[1.0, 0.5, 0.0], [0.0, 0.8, 0.2], [0.3, 0.0, 1.2]])
    model = NadarayaWatson(turned).fit(x, y)
    assert_allclose(
        model.predict(x), slow_regression("gaussian", x @ np.linalg.inv(turned).T, y, x @ np.linalg.inv(turned).T, 1)
    )


def test_several_outputs_are_predicted_as_each_output_alone():
    x, y = table()
    both = np.stack([y, -3 * y + x[:, 0]], axis=1)
    model = NadarayaWatson(0.5, order=1).fit(x, both)
    assert model.predict(x).shape == (len(x), 2)
    for column in range(2):
        assert_allclose(model.predict(x)[:, column], NadarayaWatson(0.5, order=1).fit(x, both[:, column]).predict(x))


def test_order_1_reproduces_a_line_and_order_0_does_not():
    x = np.linspace(0, 1, 40)[:, None]
    y = 3 * x[:, 0] - 1
    assert_allclose(NadarayaWatson(0.2, order=1).fit(x, y).predict(x), y, atol=1e-7)
    assert abs(NadarayaWatson(0.2).fit(x, y).predict(x)[0] - y[0]) > 0.2  # the bias at the edge


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize(("kernel", "scale"), [("gaussian", None), ("laplace", "standard"), ("gaussian", "rank")])
def test_marginal_effects_are_the_derivative_of_the_prediction(order, kernel, scale):
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
def test_log_density_matches_scikit_learns_kernel_density(ours, theirs, features):
    x, y = table(columns=features)
    model = NadarayaWatson(1.3, kernel=ours).fit(x, y)
    with np.errstate(divide="ignore"):
        expected = KernelDensity(bandwidth=1.3, kernel=theirs).fit(x).score_samples(x * 1.1)
    assert_allclose(model.log_density(x * 1.1), expected, rtol=1e-6)


def test_the_tricube_density_integrates_to_1():
    x = np.array([[0.0]])
    grid = np.linspace(-2, 2, 4001)[:, None]
    density = np.exp(NadarayaWatson(1.5, kernel="tricube").fit(x, [1.0]).log_density(grid))
    assert density.sum() * 0.001 == pytest.approx(1.0, abs=1e-4)


def test_the_standard_deviation_is_that_of_the_weighted_targets():
    x, y = table()
    mean, spread = NadarayaWatson(0.6).fit(x, y).predict(x, return_std=True)
    for row in range(0, len(x), 7):
        w = np.exp(-0.5 * (((x - x[row]) / 0.6) ** 2).sum(axis=1))
        assert mean[row] == pytest.approx(np.average(y, weights=w))
        assert spread[row] == pytest.approx(np.sqrt(np.average((y - mean[row]) ** 2, weights=w)))
    line = 3 * x[:, 0] + 1
    _, spread = NadarayaWatson(1.6, order=1).fit(x, line).predict(x * 0.3, return_std=True)
    assert_allclose(spread, 0.0, atol=1e-6)  # nothing is left about a line


def test_the_constant_kernel_ignores_the_query():
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


def test_plan_names_the_engine_and_the_reason():
    x, y = table(rows=2000, columns=1)
    model = NadarayaWatson("scott").fit(x, y)
    assert model.plan(x[:5]) == ("dense", "only 10,000 pairs", "dense: the whole matrix")
    many = np.random.default_rng(0).normal(size=(10_000, 1))
    assert model.plan(many).engine == "gauss"
    laplace = NadarayaWatson("scott", kernel="laplace").fit(x, np.sin(y)).plan(many)
    assert (laplace.engine, laplace.algorithm) == ("pairs", "pairs: float32 loops, float64 for far queries")
    for settings in ({"tol": 1e-9}, {"order": 1}):
        exact = NadarayaWatson("scott", kernel="laplace", **settings)
        assert exact.fit(x, np.sin(y)).plan(many).algorithm == "pairs: float64 loops"
    assert "score of your own" in NadarayaWatson(kernel=regard.scores.dot).fit(x, y).plan(x).why


@pytest.mark.parametrize("kernel", [name for name, kernel in KERNELS.items() if kernel.profile.compact])
@pytest.mark.parametrize("order", [0, 1])
def test_a_query_without_visible_rows_gets_the_nearest_row_and_a_warning(kernel, order):
    x, y = np.array([[0.0], [1.0], [5.0]]), np.array([1.0, 2.0, 3.0])
    model = NadarayaWatson(0.5, kernel=kernel, order=order).fit(x, y)
    with pytest.warns(UserWarning, match="2 of 3 rows see no training row"):
        assert_allclose(model.predict([[0.0], [2.0], [99.0]]), [1.0, 2.0, 3.0])
    with pytest.warns(UserWarning, match="2 of 3 rows"):
        assert_allclose(model.predict([[0.0], [2.0], [99.0]], return_std=True)[1], 0.0)
    evidence = model.evidence([[0.0], [2.0], [99.0]], top=2)
    assert evidence.index.tolist() == [[0, -1], [1, -1], [2, -1]]
    assert evidence.weight.tolist() == [[1, 0], [1, 0], [1, 0]]
    assert model.log_density([[99.0]])[0] == -math.inf


def test_a_bandwidth_below_all_distances_predicts_the_nearest_row():
    x, y = table()
    query = x + 1e-3
    for order in (0, 1):
        for bandwidth in (1e-9, 1e-200):
            predicted = NadarayaWatson(bandwidth, order=order).fit(x, y).predict(query)
            assert_allclose(predicted, y, atol=1e-6)


def test_a_tiny_and_an_ill_conditioned_matrix():
    random = np.random.default_rng(0)
    x, y = random.normal(size=(30, 2)), np.arange(30.0)
    assert_allclose(NadarayaWatson(np.eye(2) * 1e-160).fit(x, y).predict(x + 1e-6), y)
    lopsided = np.diag([1e-9, 1e9])
    assert_allclose(NadarayaWatson(lopsided).fit(x, y).predict(x), y)
    scored = NadarayaWatson(np.diag([1.0, 2.0]), kernel=regard.scores.Gaussian()).fit(x, y)
    assert_allclose(scored.predict(x), NadarayaWatson([1.0, 2.0]).fit(x, y).predict(x))


@pytest.mark.parametrize("kernel", ["gaussian", "laplace", "epanechnikov"])
@pytest.mark.parametrize("far", [1e160, 1e300, -1e250])
def test_an_extreme_query_is_predicted_within_the_range_of_the_targets(kernel, far):
    x, c = np.array([[0.0, 0.0], [1.0, 0.5], [2.0, 1.0]]), np.array(["a", "b", "b"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # where the kernel ends, it says so
        predicted = NadarayaWatson(0.5, kernel=kernel).fit(x, [9.0, 10.0, 11.0]).predict([[far, 0.0]])
        odds = NadarayaWatsonClassifier(0.5, kernel=kernel).fit(x, c).predict_proba([[far, 0.0]])
        evidence = NadarayaWatson(0.5, kernel=kernel).fit(x, [9.0, 10.0, 11.0]).evidence([[far, 0.0]])
    assert 9 <= predicted[0] <= 11
    assert_allclose(odds.sum(), 1)
    assert_allclose(evidence.weight.sum() + evidence.rest.sum(), 1)


def slow_local_linear(query, key, value, log_weight, ridge):
    """Weighted least squares at one query after the other: the intercept is not penalised."""
    levels = []
    for point, logs in zip(query.numpy(), log_weight.numpy(), strict=True):
        weight = np.exp(logs - logs.max())
        weight = weight / weight.sum()
        design = np.column_stack([np.ones(len(key)), key.numpy() - point])
        penalty = ridge * np.diag([0.0] + [1.0] * key.shape[-1])
        normal = design.T @ (weight[:, None] * design) + penalty
        levels.append(np.linalg.solve(normal, design.T @ (weight[:, None] * value.numpy()))[0])
    return torch.tensor(np.array(levels))


@pytest.mark.parametrize("kernel", [scores.Gaussian, scores.Laplace])
@pytest.mark.parametrize("ridge", [1e-6, 0.01, 10.0])
def test_local_linear_is_weighted_least_squares(kernel, ridge):
    query, key, value = 3 * points(7, 3) + 50, 3 * points(41, 3, seed=1) + 50, points(41, 2, seed=2) + 100
    bias = points(1, 41, seed=3).log()
    hidden = torch.arange(41) % 5 != torch.arange(7).unsqueeze(-1) % 5
    expected = slow_local_linear(
        query, key, value, (kernel(1.0)(query, key) + bias).masked_fill(~hidden, -math.inf), ridge
    )
    for engine in (None, "stream", "dense"):
        mask = both(hidden, bias)
        level = local_linear(query, key, value, score=kernel(1.0), mask=mask, ridge=ridge, engine=engine)
        assert_close(level, expected, rtol=1e-9, atol=1e-9)
    # In float32 the covariance has digits to lose, and the ridge bounds what is made of them.
    rounded = local_linear(
        *(x.float() for x in (query, key, value)), score=kernel(1.0), mask=both(hidden, bias.float())
    )
    exact = local_linear(query, key, value, score=kernel(1.0), mask=both(hidden, bias))
    assert_close(rounded.double(), exact, rtol=1e-5, atol=0)


def test_local_linear_reproduces_a_linear_function_beyond_the_keys():
    query, key = 4 * points(5, 3) - 1, 2 * points(37, 3, seed=1)
    slope = torch.tensor([[1.0, -2.0], [0.5, 3.0], [7.0, 0.0]]).double()
    level = local_linear(query, key, key @ slope + 5, score=scores.Gaussian(0.7), ridge=1e-12)
    assert_close(level, query @ slope + 5, rtol=1e-6, atol=1e-6)


def test_local_linear_with_a_large_ridge_is_attention():
    query, key, value = points(5, 3), points(37, 3, seed=1), points(37, 2, seed=2)
    level = local_linear(query, key, value, score=scores.Gaussian(0.4), ridge=1e12)
    assert_close(level, attend(query, key, value, score=scores.Gaussian(0.4)))


@pytest.mark.slow
def test_local_linear_has_gradients():
    query, key, value = (
        x.requires_grad_() for x in (2 * points(3, 2), 2 * points(11, 2, seed=1), points(11, 2, seed=2))
    )
    assert torch.autograd.gradcheck(
        lambda *tensors: local_linear(*tensors, score=scores.Gaussian(1.0), engine="dense"),
        [x.requires_grad_() for x in (query, key, value)],
    )


def test_local_linear_without_visible_keys_is_the_mean():
    key, value = points(11, 2), points(11, 1, seed=2)
    level = local_linear(key[:1] + 100, key, value, score=scores.Epanechnikov(1.0))
    assert_close(level, value.mean(dim=0, keepdim=True))
