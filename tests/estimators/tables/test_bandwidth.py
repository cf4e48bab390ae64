"""The bandwidth of a kernel regression: rules, searches and learning, with categories too."""

import numpy as np
import pandas as pd
import pytest
from helpers.kernel_cases import slow_regression, table
from numpy.testing import assert_allclose
from statsmodels.nonparametric.kernel_regression import KernelReg

import regard
from regard import NadarayaWatson
from regard.estimators.tables import metric_learning

# statsmodels draws the start of its search from NumPy's old generator, and says so.
pytestmark = pytest.mark.filterwarnings("ignore:After 0.17:FutureWarning")


@pytest.fixture(autouse=True)
def few_steps(monkeypatch):
    """The metrics of these tests need fewer steps."""
    for name, steps in {"STRETCH": 80, "MIXING": 100, "LINEAR": 40, "LAST": 20}.items():
        monkeypatch.setattr(metric_learning, f"{name}_STEPS", steps)


@pytest.mark.parametrize("order", [0, 1])
def test_the_search_is_as_good_as_statsmodels(order):
    x, y = table(rows=70, columns=1)
    theirs = KernelReg(y, x, "c", reg_type=["lc", "ll"][order], bw="cv_ls")
    ours = NadarayaWatson("cv", order=order).fit(x, y)
    assert ours.criterion_ <= theirs.cv_loo(theirs.bw, theirs.est[theirs.reg_type]) * 1.001
    left_out = slow_regression("gaussian", x, y, x, ours.bandwidth_, order, left_out=np.arange(len(x)))
    # Our lines through rows that all but coincide are flattened.
    assert ours.criterion_ == pytest.approx(np.mean((y - left_out) ** 2), rel=1e-6 if order == 0 else 0.1)


@pytest.mark.parametrize("order", [0, 1])
def test_aicc_matches_the_formula_and_is_its_minimum(order):
    x, y = table(rows=70, columns=1)

    def aicc(bandwidth):
        """From the hat matrix, whose columns are the fits to ones at a single row."""
        hat = slow_regression("gaussian", x, np.eye(len(x)), x, bandwidth, order)
        trace = np.trace(hat)
        return np.log(np.mean((y - hat @ y) ** 2)) + (1 + trace / 70) / (1 - (trace + 2) / 70)

    model = NadarayaWatson("aicc", order=order).fit(x, y)
    assert model.criterion_ == pytest.approx(aicc(model.bandwidth_), rel=1e-6 if order == 0 else 1e-3)
    assert aicc(model.bandwidth_) <= min(aicc(model.bandwidth_ * factor) for factor in (0.7, 0.9, 1.1, 1.5))


def test_rules_of_thumb():
    x, y = table(columns=2)
    spread = x.std(axis=0)
    assert_allclose(NadarayaWatson("scott").fit(x, y).bandwidth_, spread * len(x) ** (-1 / 6))
    assert_allclose(NadarayaWatson("silverman").fit(x, y).bandwidth_, spread * len(x) ** (-1 / 6))
    x, y = table(columns=1)
    silverman = NadarayaWatson("silverman").fit(x, y).bandwidth_
    assert_allclose(silverman, x.std() * (len(x) * 3 / 4) ** -0.2)


def test_learning_concentrates_the_weights_and_lowers_the_error():
    random = np.random.default_rng(0)
    x = np.sort(random.uniform(0, 5, 50))
    y = 2 * np.sin(x) + x**0.8 + 0.5 * random.normal(size=50)
    grid = np.linspace(0, 5, 101)
    truth = 2 * np.sin(grid) + grid**0.8
    errors, peaks = [], []
    for settings in ({"kernel": "constant"}, {"bandwidth": 1.0}, {"bandwidth": "learn"}):
        model = NadarayaWatson(**settings).fit(x[:, None], y)
        errors.append(np.mean((model.predict(grid[:, None]) - truth) ** 2))
        peaks.append(model.evidence(grid[:, None], top=1).weight.mean())
    assert errors[0] > errors[1] > errors[2]
    assert peaks[2] > 1.5 * peaks[1] > 1.5 * peaks[0]


@pytest.mark.slow
@pytest.mark.parametrize("ordered", [False, True])
def test_categories_agree_with_statsmodels(ordered):
    random = np.random.default_rng(0)
    x, colour = random.normal(size=80), random.integers(0, 4, 80)
    y = np.sin(x) + colour * 0.5 + 0.1 * random.normal(size=80)
    frame = pd.DataFrame({"x": x, "colour": pd.Categorical.from_codes(colour, list("abcd"), ordered=ordered)})
    theirs = KernelReg(y, [x, colour], "co" if ordered else "cu", reg_type="lc", bw=[0.4, 0.2])
    model = NadarayaWatson([0.4, 0.2]).fit(frame, y)
    assert_allclose(model.predict(frame), theirs.fit()[0], rtol=1e-6)
    by_name = NadarayaWatson([0.4, 0.2], **({"ordered": [1]} if ordered else {"categorical": [1]}))
    assert_allclose(by_name.fit(np.stack([x, colour], 1), y).predict(np.stack([x, colour], 1)), model.predict(frame))
    best = NadarayaWatson("cv", metric="diagonal").fit(frame, y)
    theirs = KernelReg(y, [x, colour], "co" if ordered else "cu", reg_type="lc", bw="cv_ls")
    assert best.criterion_ <= theirs.cv_loo(theirs.bw, theirs.est["lc"]) * 1.01
    assert np.isnan(best.marginal_effects(frame)[:, 1]).all()


@pytest.mark.slow
def test_learning_works_with_categorical_columns():
    random = np.random.default_rng(0)
    x, colour = random.normal(size=(200, 2)), random.integers(0, 3, 200)
    y = np.sin(2 * x[:, 0]) + 2.0 * colour
    frame = pd.DataFrame({"x": x[:, 0], "noise": x[:, 1], "colour": np.array(["r", "g", "b"])[colour]})
    model = NadarayaWatson("learn", metric="diagonal", random_state=0).fit(frame, y)
    width, noise, blur = model.bandwidth_
    assert noise > 3 * width
    assert blur < 0.2
    assert model.score(frame, y) > 0.95
    turned = NadarayaWatson("learn", metric="full", random_state=0).fit(frame, y)
    assert turned.score(frame, y) > 0.95


@pytest.mark.slow
def test_the_same_seed_gives_the_same_result():
    x, y = table(rows=150)
    first, second = (NadarayaWatson("learn", metric="full", random_state=3).fit(x, y).bandwidth_ for _ in range(2))
    assert (first == second).all()


@pytest.mark.parametrize("bandwidth", ["aicc", "cv", "scott", "learn"])
@pytest.mark.parametrize("scale", [None, "rank"])
def test_only_the_ratios_of_weights_matter(bandwidth, scale):
    x, y = table()
    weight = np.random.default_rng(0).uniform(0.5, 2, len(x))
    first, second = (
        NadarayaWatson(bandwidth, scale=scale).fit(x, y, weight * factor).bandwidth_ for factor in (1.0, 1e-3)
    )
    assert_allclose(first, second, rtol=1e-3)
    assert NadarayaWatson("aicc").fit(x, y, weight).predict(x) != pytest.approx(y, abs=1e-3)


def test_aicc_raises_with_too_few_rows():
    x, y = table(rows=3)
    for metric in ("scalar", "diagonal"):
        with pytest.raises(ValueError, match="found no bandwidth to judge among 3 rows"):
            NadarayaWatson("aicc", metric=metric).fit(x, y)


@pytest.mark.slow
def test_the_learned_criterion_is_the_leave_one_out_error_and_is_saved(tmp_path):
    x, y = table(rows=120, columns=2)
    both = np.stack([y, 1000 * y], axis=1)
    model = NadarayaWatson("learn", metric="full", random_state=0).fit(x, both)
    turned = x @ np.linalg.inv(model.bandwidth_).T
    left_out = slow_regression("gaussian", turned, both, turned, 1.0, left_out=np.arange(len(x)))
    assert model.criterion_ == pytest.approx(np.mean((both - left_out) ** 2), rel=1e-6)
    assert regard.load(model.save(tmp_path / "model")).criterion_ == model.criterion_
    assert not hasattr(model.set_params(bandwidth=1.0, metric="scalar").fit(x, y), "criterion_")


def test_one_number_is_lambda_if_all_columns_are_categorical():
    frame = pd.DataFrame({"a": list("abc") * 20})
    assert NadarayaWatson(0.3).fit(frame, np.arange(60.0)).bandwidth_ == 0.3
    with pytest.raises(ValueError, match="between 0 and 1"):
        NadarayaWatson(0.9).fit(frame, np.arange(60.0))


def test_learning_works_for_columns_of_any_magnitude():
    x, y = table(rows=100)
    model = NadarayaWatson("learn", metric="diagonal").fit(x * [1e60, 1.0, 1e-60], y)
    assert model.score(x * [1e60, 1.0, 1e-60], y) > 0.7


def test_equal_rows_see_each_other_when_one_is_left_out():
    x, y = table(rows=40, columns=1)
    twice, targets = np.vstack([x, x]), np.append(y, y)
    model = NadarayaWatson("cv").fit(twice, targets)
    assert np.isfinite(model.bandwidth_).all()
    assert model.criterion_ < 0.01 * targets.var()  # the other twin knows
    assert np.isfinite(NadarayaWatson("learn").fit(twice, targets).predict(twice)).all()


def test_a_table_of_categorical_columns_only():
    frame = pd.DataFrame({"a": list("xxyyzz") * 5, "b": list("uvuvuv") * 5})
    y = np.arange(30.0) % 6
    for settings in ({}, {"bandwidth": "cv"}, {"bandwidth": "learn"}, {"bandwidth": "cv", "scale": "rank"}):
        model = NadarayaWatson(**settings).fit(frame, y)
        assert model.predict(frame).shape == (30,)
    assert_allclose(NadarayaWatson([0.0, 0.0]).fit(frame, y).predict(frame), y, atol=1e-12)


def test_a_constant_column_and_one_row():
    x, y = table(columns=2)
    padded = np.hstack([x, np.full((len(x), 1), 7.0)])
    assert_allclose(
        NadarayaWatson("cv").fit(padded, y).predict(padded), NadarayaWatson("cv").fit(x, y).predict(x), rtol=0.05
    )
    for bandwidth in (None, 0.3, "silverman"):
        assert NadarayaWatson(bandwidth).fit([[1.0, 2.0]], [3.0]).predict([[9.0, 9.0]]) == pytest.approx(3.0)
    for bandwidth in ("cv", "aicc", "learn"):
        with pytest.raises(ValueError, match="n_samples=1"):
            NadarayaWatson(bandwidth).fit([[1.0, 2.0]], [3.0])


@pytest.mark.parametrize("bandwidth", ["scott", 0.5, [0.5, 1.0, 2.0]])
def test_a_metric_without_search_or_learning_raises(bandwidth):
    x, y = np.random.default_rng(0).normal(size=(2, 30, 3))
    with pytest.raises(ValueError, match="metric='diagonal' says what is searched or learned: it needs bandwidth='cv'"):
        NadarayaWatson(bandwidth, metric="diagonal").fit(x, y[:, 0])


@pytest.mark.parametrize("bandwidth", ["cv", "aicc", "learn"])
def test_rows_of_weight_0_do_not_count_as_rows(bandwidth):
    x, y = table(rows=10)
    with pytest.raises(ValueError, match="n_samples=1"):
        NadarayaWatson(bandwidth).fit(x, y, np.arange(10) == 2)
    with pytest.raises(ValueError, match="sample_weight"):
        NadarayaWatson(bandwidth).fit(x, y, np.ones(9))
