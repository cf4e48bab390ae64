"""Kernel regression and classification as scikit-learn estimators: checks, settings, wrong input, saving."""

import math
import pickle
import warnings
from dataclasses import replace
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.kernel_cases import table
from numpy.testing import assert_allclose
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_iris
from sklearn.exceptions import NotFittedError
from sklearn.metrics import r2_score
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import regard
from regard import NadarayaWatson, NadarayaWatsonClassifier
from regard.estimators.tables.bandwidth import GRID, RIDGES


@pytest.mark.slow
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
        if model.bandwidth not in (None, "cv", "learn")
        else dict.fromkeys(
            ["check_sample_weight_equivalence_on_dense_data"],
            "a row is left out whole, whatever its weight: two copies of it would see each other",
        )
    ),
)
def test_scikit_learns_checks(estimator, check, monkeypatch):
    # The checks are of the interface: a coarse search and a short training are enough.
    monkeypatch.setattr("regard.estimators.tables.bandwidth.GRID", GRID[::4])
    monkeypatch.setattr("regard.estimators.tables.bandwidth.RIDGES", RIDGES[:1])
    monkeypatch.setattr("regard.estimators.tables.metric_learning.STRETCH_STEPS", 20)
    monkeypatch.setattr("regard.estimators.tables.metric_learning.START_STEPS", 10)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(estimator)


def test_probabilities_are_the_summed_weights_of_the_classes():
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


@pytest.mark.parametrize("order", [0, 1])
def test_left_out_score_matches_models_fitted_without_each_row(order):
    random = np.random.default_rng(1)
    x, weight = random.normal(size=(23, 2)), random.integers(1, 4, 23).astype(float)
    y = np.stack([np.sin(x[:, 0]), x[:, 1] ** 2], axis=1)
    for weights in (None, weight):
        model = NadarayaWatson(bandwidth=0.7, order=order).fit(x, y, sample_weight=weights)
        alone = []
        for row in range(len(x)):
            others = np.arange(len(x)) != row
            other_weights = None if weights is None else weights[others]
            less = NadarayaWatson(bandwidth=0.7, order=order).fit(x[others], y[others], sample_weight=other_weights)
            alone.append(less.predict(x[[row]])[0])
        assert model.left_out_score() == pytest.approx(r2_score(y, np.stack(alone), sample_weight=weights), abs=1e-9)


def test_left_out_score_of_a_classifier_is_its_accuracy():
    x, y = load_iris(return_X_y=True)
    model = NadarayaWatsonClassifier(bandwidth=0.5).fit(x, y)
    right = 0
    for row in range(len(x)):
        others = np.arange(len(x)) != row
        right += NadarayaWatsonClassifier(bandwidth=0.5).fit(x[others], y[others]).predict(x[[row]])[0] == y[row]
    assert model.left_out_score() == pytest.approx(right / len(x))
    with pytest.raises(ValueError, match="leaving a row out needs two rows, got 1"):
        NadarayaWatson(bandwidth=1.0).fit(x[:1], [1.0]).left_out_score()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bandwidth": 0.0}, "bandwidth must be positive, got 0.0"),
        ({"bandwidth": -1}, "bandwidth must be positive"),
        ({"bandwidth": [1.0, 2.0]}, "one for each of 3 columns, got 2"),
        ({"bandwidth": np.zeros((3, 3))}, "must be invertible"),
        ({"bandwidth": np.eye(2)}, r"must be \[3, 3\]"),
        ({"bandwidth": {"a": 1}}, "bandwidth must be a number"),
        ({"ordered": "grade"}, "ordered must be a list"),
        ({"bandwidth": "best"}, "one per column, or one of auto, scott, silverman, cv, aicc, learn, got 'best'"),
        ({"bandwidth": "cv", "metric": "full"}, "bandwidth='learn'"),
        ({"kernel": "round"}, "kernel must be gaussian, laplace, .* or a score of your own, got 'round'"),
        ({"metric": "round"}, "metric must be scalar, diagonal, full or index, got 'round'"),
        ({"order": 2}, "order must be 0 or 1, got 2"),
        ({"scale": "log"}, "scale must be auto, rank, standard or None, got 'log'"),
        ({"tol": -1}, "tol must be a number of at least 0 and below 1, got -1"),
        ({"categorical": ["colour"]}, "there is no column 'colour'"),
    ],
)
def test_wrong_settings_raise(settings, message):
    x, y = table()
    with pytest.raises(ValueError, match=message):
        NadarayaWatson(**settings).fit(x, y)


def test_missing_and_infinite_cells_raise_with_their_position():
    x, y = table(columns=2)
    frame = pd.DataFrame(x, columns=["length", "width"])
    frame.loc[17, "width"] = np.nan
    with pytest.raises(ValueError, match="Input X contains NaN: a cell is missing in column 'width', row 17"):
        NadarayaWatson(1.0).fit(frame, y)
    for bad in (np.nan, np.inf):
        broken = x.copy()
        broken[3, 1] = bad
        with pytest.raises(ValueError, match=r"NaN|infinity"):
            NadarayaWatson(1.0).fit(broken, y)
        with pytest.raises(ValueError, match=r"NaN|infinity"):
            NadarayaWatson(1.0).fit(x, y).predict(broken)
    with pytest.raises(NotFittedError):
        NadarayaWatson(1.0).predict(x)
    with pytest.raises(ValueError, match="at least one non-zero"):
        NadarayaWatson().fit(x, y, np.zeros(len(x)))


def test_a_loaded_model_is_equal_to_the_saved_one(tmp_path):
    random = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"x": random.normal(size=50), "colour": list("ab") * 25}, index=[f"row {n}" for n in range(50)]
    )
    target = pd.Series(random.normal(size=50), name="price")
    for model in (
        NadarayaWatson([0.3, 0.1], order=1, scale="rank").fit(frame, target, np.r_[0.0, random.uniform(1, 2, 49)]),
        NadarayaWatson("learn", metric="full", scale="standard").fit(
            frame[["x"]].assign(z=1.5 * frame["x"] ** 2), target
        ),
        NadarayaWatsonClassifier(0.4, kernel="tricube").fit(frame[["x"]], np.where(target > 0, "up", "down")),
    ):
        table = (
            frame[["x"]].assign(z=1.5 * frame["x"] ** 2)
            if model.n_features_in_ == 2 and model.metric == "full"
            else frame
        )
        table = table[list(model.feature_names_in_)]
        again = regard.load(model.save(tmp_path / "model"))
        assert_allclose(again.smoother_.bandwidth, model.smoother_.bandwidth)
        assert (again.predict(table) == model.predict(table)).all()
        pd.testing.assert_frame_equal(again.evidence(table).to_frame(), model.evidence(table).to_frame())
        assert again.get_params() == model.get_params()


def test_a_model_does_not_change_with_the_callers_arrays(tmp_path):
    x, y = table()
    model = NadarayaWatson(0.5).fit(x, y)
    before = model.predict(x)
    evidence = model.evidence(x[:3]).to_frame()
    query = x.copy()
    x[:], y[:] = 0, 0
    assert (model.predict(query) == before).all()
    pd.testing.assert_frame_equal(model.evidence(query[:3]).to_frame(), evidence)
    assert (regard.load(model.save(tmp_path / "model")).predict(query) == before).all()


def test_columns_of_any_name_and_rows_of_any_label(tmp_path):
    y = np.arange(6.0)
    cells = pd.DataFrame(zip(np.arange(6.0), "ababab", np.arange(6) % 2 == 0, strict=True), columns=[0, 1, 7])
    model = NadarayaWatson([0.5, 0.1, 0.1]).fit(cells, y)
    assert_allclose(model.predict(cells), y, atol=0.5)
    for index in (
        pd.date_range("2026-01-01", periods=6),
        pd.MultiIndex.from_product([["a", "b"], [1, 2, 3]]),
        pd.period_range("2026-01", periods=6, freq="M"),
        ["x"] * 6,
    ):
        frame = pd.DataFrame({"x": np.arange(6.0)}, index=index)
        model = NadarayaWatson(0.5, random_state=np.random.RandomState(0)).fit(frame, y)
        again = regard.load(model.save(tmp_path / "model"))
        pd.testing.assert_frame_equal(again.evidence(frame).to_frame(), model.evidence(frame).to_frame())


def test_missing_values_raise_wherever_they_are():
    x, y = table()
    with pytest.raises(ValueError, match="Input y contains NaN"):
        NadarayaWatson().fit([[1.0], [2.0], [3.0]], np.array([1.0, None, 2.0], dtype=object))
    with pytest.raises(ValueError, match="got NaN or"):
        NadarayaWatson(kernel=lambda q, k: torch.full((len(q), len(k)), math.nan).double()).fit(x, y).predict(x)
    with pytest.raises(ValueError, match="categorical column '1', row 2"):
        NadarayaWatson(1.0, categorical=[1]).fit(np.array([[1.0, 1], [2.0, 2], [3.0, np.nan]]), [0.0, 1, 2])
    with pytest.raises(ValueError, match="column 'b' must hold numbers, got 'u'"):
        NadarayaWatson(categorical=None).fit(pd.DataFrame({"a": [1.0, 2.0], "b": ["u", "v"]}), [0.0, 1.0])
    for early in (lambda model: model.plan(x), lambda model: model.bandwidth_):
        with pytest.raises(NotFittedError):
            early(NadarayaWatson())


def test_words_as_regression_targets_raise():
    with pytest.raises(
        ValueError, match="targets must be numbers, got 'lo': NadarayaWatsonClassifier predicts classes"
    ):
        NadarayaWatson().fit([[0.0], [1.0], [2.0]], ["lo", "hi", "lo"])


def test_settings_may_be_numpy_scalars():
    x, y = table()
    expected = NadarayaWatson(0.5, order=1).fit(x, y).predict(x)
    model = NadarayaWatson(np.float64(0.5), order=np.int64(1), kernel=np.str_("gaussian"), verbose=np.bool_(False))
    assert_allclose(model.fit(x, y).predict(x), expected)


def test_the_ridge_of_lines_is_visible_and_gives_the_model_again():
    x, y = table(rows=60)
    for bandwidth in (0.8, None, "cv", "learn"):
        model = NadarayaWatson(bandwidth, order=1, scale=None).fit(x, y)
        again = NadarayaWatson(model.bandwidth_, order=1).fit(x, y)
        again.smoother_ = replace(again.smoother_, ridge=model.ridge_)
        assert_allclose(again.predict(x), model.predict(x))
    assert not hasattr(NadarayaWatson(0.8).fit(x, y), "ridge_")
    assert not hasattr(NadarayaWatson(0.8).fit(x, y), "criterion_")


def test_class_weight_is_a_weight_of_rows():
    x, y = load_iris(return_X_y=True)
    x, y = x[:110], y[:110]  # 50, 50 and 10
    weight = np.array([0.5, 2.0, 4.0])
    expected = NadarayaWatsonClassifier(0.5).fit(x, y, weight[y]).predict_proba(x)
    given = NadarayaWatsonClassifier(0.5, class_weight=dict(enumerate(weight))).fit(x, y)
    assert_allclose(given.predict_proba(x), expected)
    balanced = NadarayaWatsonClassifier(0.5, class_weight="balanced").fit(x, y)
    even = NadarayaWatsonClassifier(0.5).fit(x, y, (110 / 3 / np.bincount(y))[y])
    assert_allclose(balanced.predict_proba(x), even.predict_proba(x))
    with pytest.raises(ValueError, match="class_weight must be 'balanced', or a weight for each class, got 'even'"):
        NadarayaWatsonClassifier(0.5, class_weight="even").fit(x, y)


def test_log_probabilities_and_arguments_of_another_class():
    x, y = load_iris(return_X_y=True)
    model = NadarayaWatsonClassifier(0.5).fit(x, y)
    assert_allclose(np.exp(model.predict_log_proba(x)), model.predict_proba(x), atol=1e-12)
    with pytest.raises(TypeError, match=r"NadarayaWatsonClassifier.* got an unexpected keyword argument 'order'"):
        NadarayaWatsonClassifier(order=1)
    with pytest.raises(ValueError, match="y should be a 1d array"):
        model.fit(x, np.stack([y, y], axis=1))


def test_object_columns_of_numbers_are_numbers():
    x, y = table(rows=60, columns=2)
    plain = pd.DataFrame(x.round(3), columns=["a", "b"])
    expected = NadarayaWatson(0.5).fit(plain, y).predict(plain)
    for change in (lambda x: x, lambda x: Decimal(str(x)), np.float64):
        frame = plain.assign(b=[change(value) for value in plain["b"]]).astype({"b": object})
        model = NadarayaWatson(0.5).fit(frame, y)
        assert model.column_kinds_ == {"a": "number", "b": "number"}
        assert_allclose(model.predict(frame), expected)
    named = NadarayaWatson([0.5, 0.5], categorical=["b"]).fit(frame, y)
    assert named.column_kinds_["b"] == "code"


def test_the_number_of_threads_does_not_change_the_result_and_is_set_back():
    x, y = table(rows=60)
    before = torch.get_num_threads()
    first, second = (NadarayaWatson(0.5, n_jobs=jobs).fit(x, y).predict(x) for jobs in (1, 2))
    assert_allclose(first, second, rtol=1e-12)
    assert torch.get_num_threads() == before
    with pytest.raises(ValueError, match="n_jobs must be"):
        NadarayaWatson(0.5, n_jobs=0).fit(x, y)


def test_frames_of_other_libraries_and_lazy_ones():
    class Lazy:
        def collect(self):
            """As a LazyFrame of Polars."""

    with pytest.raises(ValueError, match=r"a lazy table has no rows yet: call .collect\(\) first"):
        NadarayaWatson(0.5).fit(Lazy(), [1.0, 2.0])
    twice = pd.DataFrame([[1.0, 2.0], [3.0, 5.0], [5.0, 6.0]], columns=["a", "a"])
    with pytest.raises(ValueError, match="more than one column is named 'a'"):
        NadarayaWatson(0.5).fit(twice, [1.0, 2.0, 3.0])
