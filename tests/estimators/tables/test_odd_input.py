"""Kernel regression on odd tables: bad settings, missing cells, names of any kind, and what is saved."""

import math
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.kernel_cases import table
from numpy.testing import assert_allclose
from sklearn.exceptions import NotFittedError

import regard
from regard import NadarayaWatson, NadarayaWatsonClassifier


@pytest.mark.parametrize("kernel", ["epanechnikov", "boxcar", "tricube"])
@pytest.mark.parametrize("order", [0, 1])
def test_who_sees_nothing_gets_the_nearest_row_and_a_warning(kernel, order):
    x, y = np.array([[0.0], [1.0], [5.0]]), np.array([1.0, 2.0, 3.0])
    model = NadarayaWatson(0.5, kernel=kernel, order=order).fit(x, y)
    with pytest.warns(UserWarning, match="2 of 3 rows see no training row"):
        assert_allclose(model.predict([[0.0], [2.0], [99.0]]), [1.0, 2.0, 3.0])
    with pytest.warns(UserWarning, match="2 of 3 rows"):
        assert_allclose(model.predict([[0.0], [2.0], [99.0]], return_std=True)[1], 0.0)
    found = model.evidence([[0.0], [2.0], [99.0]], top=2)
    assert found.index.tolist() == [[0, -1], [1, -1], [2, -1]]
    assert found.weight.tolist() == [[1, 0], [1, 0], [1, 0]]
    assert model.log_density([[99.0]])[0] == -math.inf


def test_a_bandwidth_below_all_distances_takes_the_nearest_row():
    x, y = table()
    query = x + 1e-3
    for order in (0, 1):
        for bandwidth in (1e-9, 1e-200):
            predicted = NadarayaWatson(bandwidth, order=order).fit(x, y).predict(query)
            assert_allclose(predicted, y, atol=1e-6)


def test_twins_see_each_other_when_one_is_left_out():
    x, y = table(rows=40, columns=1)
    twice, targets = np.vstack([x, x]), np.append(y, y)
    model = NadarayaWatson("cv").fit(twice, targets)
    assert np.isfinite(model.bandwidth_).all()
    assert model.criterion_ < 0.01 * targets.var()  # the other twin knows
    assert np.isfinite(NadarayaWatson("learn").fit(twice, targets).predict(twice)).all()


def test_a_table_of_categories_only():
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
        ({"bandwidth": "best"}, "one of scott, silverman, cv, aicc, learn, got 'best'"),
        ({"bandwidth": "cv", "metric": "full"}, "bandwidth='learn'"),
        ({"kernel": "round"}, "kernel must be one of gaussian"),
        ({"metric": "round"}, "metric must be one of scalar, diagonal, full"),
        ({"order": 2}, "order must be 0"),
        ({"scale": "log"}, "scale must be one of"),
        ({"tol": -1}, "tol must be at least 0"),
        ({"categorical": ["colour"]}, "there is no column 'colour'"),
    ],
)
def test_settings_that_make_no_sense_say_so(settings, message):
    x, y = table()
    with pytest.raises(ValueError, match=message):
        NadarayaWatson(**settings).fit(x, y)


def test_missing_and_infinite_cells_say_where():
    x, y = table(columns=2)
    frame = pd.DataFrame(x, columns=["length", "width"])
    frame.loc[17, "width"] = np.nan
    with pytest.raises(ValueError, match="first in column 'width', row 17"):
        NadarayaWatson().fit(frame, y)
    for bad in (np.nan, np.inf):
        broken = x.copy()
        broken[3, 1] = bad
        with pytest.raises(ValueError, match=r"NaN|infinity"):
            NadarayaWatson().fit(broken, y)
        with pytest.raises(ValueError, match=r"NaN|infinity"):
            NadarayaWatson().fit(x, y).predict(broken)
    with pytest.raises(NotFittedError):
        NadarayaWatson().predict(x)
    with pytest.raises(ValueError, match="at least one non-zero"):
        NadarayaWatson().fit(x, y, np.zeros(len(x)))


def test_saved_and_loaded_it_is_the_same(tmp_path):
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


def test_a_tiny_matrix_and_a_lopsided_one():
    random = np.random.default_rng(0)
    x, y = random.normal(size=(30, 2)), np.arange(30.0)
    assert_allclose(NadarayaWatson(np.eye(2) * 1e-160).fit(x, y).predict(x + 1e-6), y)
    lopsided = np.diag([1e-9, 1e9])
    assert_allclose(NadarayaWatson(lopsided).fit(x, y).predict(x), y)
    scored = NadarayaWatson(np.diag([1.0, 2.0]), kernel=regard.scores.Gaussian()).fit(x, y)
    assert_allclose(scored.predict(x), NadarayaWatson([1.0, 2.0]).fit(x, y).predict(x))


def test_missing_values_are_found_wherever_they_hide():
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


@pytest.mark.parametrize("bandwidth", ["scott", 0.5, [0.5, 1.0, 2.0]])
def test_a_metric_that_nothing_is_searched_by_is_refused(bandwidth):
    x, y = np.random.default_rng(0).normal(size=(2, 30, 3))
    with pytest.raises(ValueError, match="metric='diagonal' says what is searched or learned: it needs bandwidth='cv'"):
        NadarayaWatson(bandwidth, metric="diagonal").fit(x, y[:, 0])


class Foreign:
    """A table of another library: it has names, and knows the way to pandas."""

    def __init__(self, frame):
        self.frame, self.columns, self.shape = frame, list(frame.columns), frame.shape

    def to_pandas(self):
        return self.frame


def test_a_table_of_another_library_is_read_as_pandas_has_it():
    random = np.random.default_rng(0)
    frame = pd.DataFrame({"area": random.normal(size=40), "kind": random.choice(["flat", "house"], 40)})
    target = frame["area"] + 2 * (frame["kind"] == "house")
    ours, theirs = (NadarayaWatson().fit(table, target) for table in (frame, Foreign(frame)))
    assert list(theirs.feature_names_in_) == ["area", "kind"]
    assert_allclose(theirs.predict(Foreign(frame[:5])), ours.predict(frame[:5]))
    assert_allclose(theirs.evidence(Foreign(frame[:5])).weight, ours.evidence(frame[:5]).weight)


@pytest.mark.parametrize("kernel", ["gaussian", "laplace", "epanechnikov"])
@pytest.mark.parametrize("far", [1e160, 1e300, -1e250])
def test_a_sentinel_beyond_all_bounds_is_no_number_beside_the_targets(kernel, far):
    x, c = np.array([[0.0, 0.0], [1.0, 0.5], [2.0, 1.0]]), np.array(["a", "b", "b"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # where the kernel ends, it says so
        found = NadarayaWatson(0.5, kernel=kernel).fit(x, [9.0, 10.0, 11.0]).predict([[far, 0.0]])
        odds = NadarayaWatsonClassifier(0.5, kernel=kernel).fit(x, c).predict_proba([[far, 0.0]])
        evidence = NadarayaWatson(0.5, kernel=kernel).fit(x, [9.0, 10.0, 11.0]).evidence([[far, 0.0]])
    assert 9 <= found[0] <= 11
    assert_allclose(odds.sum(), 1)
    assert_allclose(evidence.weight.sum() + evidence.rest.sum(), 1)


def test_words_are_classes():
    with pytest.raises(
        ValueError, match="targets must be numbers, got 'lo': NadarayaWatsonClassifier predicts classes"
    ):
        NadarayaWatson().fit([[0.0], [1.0], [2.0]], ["lo", "hi", "lo"])


def test_dates_and_names_of_rows_are_not_categories_in_silence():
    n = 30
    frame = pd.DataFrame({"x": np.arange(n, dtype=float), "when": pd.date_range("2020-01-01", periods=n)})
    for column in (frame["when"], frame["when"] - frame["when"].min(), frame["when"].dt.date):
        with pytest.raises(ValueError, match=r"column 'when' holds dates or times, .* categorical=\[…\]"):
            NadarayaWatson().fit(frame.assign(when=column), frame["x"])
    days = frame.assign(when=(frame["when"] - frame["when"].min()).dt.days)
    assert NadarayaWatson().fit(days, frame["x"]).columns_.categories == {}
    named = frame[["x"]].assign(id=[f"u{number}" for number in range(n)])
    with pytest.warns(UserWarning, match="column 'id' has 30 categories in 30 rows: leave it out"):
        NadarayaWatson().fit(named, frame["x"])
    NadarayaWatson().fit(named.astype({"id": "category"}), frame["x"])  # somebody has decided it


def test_categories_never_seen_are_counted():
    frame = pd.DataFrame({"x": np.arange(9.0), "city": list("aabbaabba")})
    model = NadarayaWatson(bandwidth=1.0).fit(frame, frame["x"])
    model.predict(frame)
    with pytest.warns(UserWarning, match="column 'city': 2 of 3 rows hold a category that was not in .* such as 'c'"):
        model.predict(pd.DataFrame({"x": [1.0, 2.0, 3.0], "city": ["a", "c", "d"]}))


def test_times_in_a_table_without_rows_are_named_too():
    with pytest.raises(ValueError, match="column 't' holds dates or times: turn it into numbers"):
        NadarayaWatson().fit(pd.DataFrame({"t": pd.to_datetime([])}), [])
