"""The default bandwidth: no settings, and respectable."""

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.kernel_cases import slow_regression, table
from numpy.testing import assert_allclose
from sklearn.datasets import load_diabetes, load_iris, load_wine
from sklearn.metrics import log_loss
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor

from regard import NadarayaWatson, NadarayaWatsonClassifier
from regard.estimators.tables import default_bandwidth, metric_learning
from regard.estimators.tables.metric_learning import Rows, SameDtypeGaussian, Stretch
from regard.kernels import Gaussian, Mixed


@pytest.fixture(autouse=True)
def few_steps(monkeypatch):
    monkeypatch.setattr(metric_learning, "START_STEPS", 30)


def friedman(rows, seed=0):
    """Three columns that matter, in other units, and two that do not."""
    random = np.random.default_rng(seed)
    x = random.uniform(size=(rows, 5))
    y = np.sin(np.pi * x[:, 0] * x[:, 1]) + 2 * (x[:, 2] - 0.5) ** 2 + 0.1 * random.normal(size=rows)
    return x * [1.0, 100.0, 0.01, 10.0, 1.0], y


def test_regression_without_settings_is_ahead_of_nearest_neighbours_without_settings():
    for (x, y), (query, truth) in (
        (
            [part[:300] for part in load_diabetes(return_X_y=True)],
            [part[300:] for part in load_diabetes(return_X_y=True)],
        ),
        (friedman(150), friedman(500, seed=1)),
    ):
        ours, theirs = (model.fit(x, y).score(query, truth) for model in (NadarayaWatson(), KNeighborsRegressor()))
        assert ours > theirs


@pytest.mark.slow
def test_classification_without_settings_is_ahead_of_nearest_neighbours_without_settings():
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    for x, y in (load_iris(return_X_y=True), load_wine(return_X_y=True)):
        ours, theirs = (
            cross_val_predict(model, x, y, cv=folds, method="predict_proba")
            for model in (NadarayaWatsonClassifier(), KNeighborsClassifier())
        )
        assert log_loss(y, ours) < log_loss(y, theirs)
        assert (ours.argmax(axis=1) == y).mean() >= (theirs.argmax(axis=1) == y).mean()


def test_columns_that_do_not_matter_get_a_wide_bandwidth():
    x, y = friedman(300)
    width = NadarayaWatson(scale=None).fit(x, y).bandwidth_ / x.std(axis=0)
    assert width[3:].min() > 2 * width[:3].max()


def test_units_are_ranks_where_that_predicts_better_and_only_if_nobody_chose():
    random = np.random.default_rng(0)
    x = np.exp(3 * random.normal(size=(300, 1)))
    y = np.sin(2 * np.log(x[:, 0])) + 0.1 * random.normal(size=300)
    assert NadarayaWatson().fit(x, y).scale_.quantiles is not None
    assert NadarayaWatson(scale=None).fit(x, y).scale_.quantiles is None
    assert NadarayaWatson("scott").fit(x, y).scale_.quantiles is None


@pytest.mark.slow
def test_categories_are_learned_with_the_columns():
    random = np.random.default_rng(0)
    x, colour, name = random.uniform(size=300), random.integers(0, 4, 300), random.integers(0, 100, 300)
    y = np.sin(6 * x) + np.array([0.0, 2.0, -2.0, 5.0])[colour] + 0.1 * random.normal(size=300)
    frame = pd.DataFrame({"x": x, "colour": np.array(list("abcd"))[colour], "name": [f"n{number}" for number in name]})
    for bandwidth in ("auto", "learn"):
        metric = {"metric": "diagonal"} if bandwidth == "learn" else {}
        model = NadarayaWatson(bandwidth, **metric, random_state=0).fit(frame, y)
        assert model.bandwidth_[1] < 0.05
        assert model.bandwidth_[2] > 0.5
        assert model.left_out_score() > 0.98


@pytest.mark.parametrize("ordered", [False, True])
def test_indicators_have_the_inner_products_of_the_kernel_of_categories(ordered):
    """Up to a constant for each query, which no weight depends on."""
    random = torch.Generator().manual_seed(0)
    codes = torch.randint(0, 5, (41, 1), generator=random).double()
    codes[0] = 7.0  # occurs once
    points = torch.cat([torch.rand(41, 2, dtype=torch.float64, generator=random), codes], dim=-1)
    model = Stretch.of(Rows(points, points[:, :1], ordered=[ordered]))
    model.log_root.data.fill_(0.3)
    model.log_stretch.data.fill_(0.7)
    embedded = model(points.float())
    found = SameDtypeGaussian(embedded.shape[1] - 2)(embedded, embedded)
    penalty = model.penalty()
    zero = torch.zeros(1, dtype=torch.float64)
    per_step, per_change = (penalty, zero + np.log(2)) if ordered else (zero, penalty)
    expected = Mixed(Gaussian(model.bandwidth("diagonal")), per_step, per_change)(points, points)
    others = ~torch.eye(41, dtype=torch.bool)  # a code that occurs once is not told from itself: no row sees itself
    for row in range(41):
        difference = (found[row] - expected[row])[others[row]]
        assert_allclose(difference.detach(), difference[0].item(), atol=1e-4)


def test_the_criterion_is_the_error_of_rows_left_out():
    x, y = table(rows=60, columns=2)
    y[7] += 40 * y.std()
    model = NadarayaWatson(scale=None).fit(x, y)
    left_out = slow_regression("gaussian", x, y, x, model.bandwidth_, left_out=np.arange(60))
    error = np.square((y - left_out) / y.std())
    assert error.max() > 16
    assert model.criterion_ == pytest.approx(np.minimum(error, 16).mean(), rel=1e-6)
    label = np.where(y > np.median(y), "up", "down")
    model = NadarayaWatsonClassifier(scale=None).fit(x, label)
    up = slow_regression("gaussian", x, (label == "up") * 1.0, x, model.bandwidth_, left_out=np.arange(60))
    assert model.criterion_ == pytest.approx(log_loss(label == "up", up), rel=1e-6)


def test_one_outlier_does_not_decide():
    x, y = friedman(200)
    spoiled = y.copy()
    spoiled[0] += 50 * y.std()
    query, truth = friedman(200, seed=1)
    error = np.abs(NadarayaWatson().fit(x, spoiled).predict(query) - truth)
    assert np.median(error) < 0.5 * np.median(np.abs(truth - np.median(truth)))


def test_lines_are_no_worse_than_the_mean():
    x, y = load_diabetes(return_X_y=True)
    model = NadarayaWatson(order=1).fit(x[:300], y[:300])
    assert model.score(x[300:], y[300:]) > 0.4
    shuffled = x[300:].copy()
    shuffled[:, 4] = np.random.default_rng(0).permutation(shuffled[:, 4])
    predicted = model.predict(shuffled)
    assert y.min() - y.std() < predicted.min() < predicted.max() < y.max() + y.std()
    noise = np.random.default_rng(0).normal(size=(400, 12))
    model.fit(noise[:100, :11], noise[:100, 11])
    assert model.score(noise[100:, :11], noise[100:, 11]) > -0.1


def test_probabilities_of_a_wide_table_are_not_overconfident():
    random = np.random.default_rng(0)
    x, y = random.normal(size=(80, 300)), random.integers(0, 2, 80)
    model = NadarayaWatsonClassifier().fit(x[:60], y[:60])
    assert log_loss(y[60:], model.predict_proba(x[60:])) < 0.8


@pytest.mark.slow
@pytest.mark.parametrize("keys", [100_000, 800])
def test_the_factor_is_that_of_all_rows(keys, monkeypatch):
    """Learned from 200 rows, fitted with 3,000; or with 800, from which the rate leads to 3,000."""
    x, y = friedman(3000)
    for name, value in {"_SAMPLE": 200, "_FEWEST": 500, "_OPERATIONS": 0, "_KEYS": keys}.items():
        monkeypatch.setattr(default_bandwidth, name, value)
    model = NadarayaWatson(scale=None).fit(x, y)
    assert len(model.smoother_.rows) == 3000
    factors = [
        NadarayaWatson(model.bandwidth_ * factor).fit(x, y).score(*friedman(1000, seed=1)) for factor in (0.5, 1, 2)
    ]
    assert max(factors) == factors[1]


def test_one_seed_one_result():
    x, y = friedman(100)
    first, second = (NadarayaWatson(random_state=1).fit(x, y).bandwidth_ for _ in range(2))
    assert first.tolist() == second.tolist()


def test_few_rows_take_the_rule_and_what_cannot_be_chosen_raises():
    x, y = friedman(7)
    assert_allclose(NadarayaWatson().fit(x, y).bandwidth_, NadarayaWatson("scott").fit(x, y).bandwidth_)
    with pytest.raises(ValueError, match="bandwidth='auto' needs a kernel by name"):
        NadarayaWatson("auto", kernel=lambda query, key: query @ key.mT).fit(x, y)
    with pytest.raises(ValueError, match="metric='full' is learned by gradient: it needs bandwidth='learn'"):
        NadarayaWatson(metric="full").fit(x, y)


@pytest.mark.parametrize("kernel", ["laplace", "epanechnikov", "boxcar"])
def test_every_kernel_has_a_default(kernel):
    x, y = friedman(150)
    assert NadarayaWatson(kernel=kernel).fit(x, y).left_out_score() > 0.6
    assert NadarayaWatson(kernel="constant").fit(x, y).predict(x[:3]) == pytest.approx(y.mean())


@pytest.mark.slow
def test_a_constant_column_equal_rows_and_weights_of_0():
    x, y = friedman(60)
    padded = np.hstack([x, np.full((60, 1), 3.0)])
    assert np.isfinite(NadarayaWatson().fit(padded, y).predict(padded)).all()
    assert np.isfinite(NadarayaWatson().fit(np.ones((30, 2)), y[:30]).predict(x[:, :2])).all()
    assert np.isfinite(NadarayaWatson().fit(x, np.ones(60)).predict(x)).all()
    weight = (np.arange(60) < 40) * 1.0
    assert_allclose(NadarayaWatson().fit(x, y, weight).predict(x), NadarayaWatson().fit(x[:40], y[:40]).predict(x))
