"""Kernel regression and classification: scikit-learn's checks, the formulas, the evidence, and bad input."""

import math
import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.testing import assert_allclose
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_iris
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KernelDensity
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from statsmodels.nonparametric.kernel_regression import KernelReg

import regard
from regard import NadarayaWatson, NadarayaWatsonClassifier
from regard.estimators import smoother as smoothing

# statsmodels draws the start of its search from NumPy's old generator, and says so.
pytestmark = pytest.mark.filterwarnings("ignore:After 0.17:FutureWarning")
KERNELS = {
    "gaussian": lambda u: np.exp(-0.5 * u**2),
    "laplace": lambda u: np.exp(-u),
    "epanechnikov": lambda u: np.maximum(1 - u**2, 0),
    "boxcar": lambda u: (u < 1) * 1.0,
    "tricube": lambda u: np.maximum(1 - u**3, 0) ** 3,
}


def table(rows=83, columns=3, seed=0):
    random = np.random.default_rng(seed)
    x = random.normal(size=(rows, columns))
    return x, np.sin(2 * x[:, 0]) + x[:, -1] ** 2 + 0.1 * random.normal(size=rows)


def slowly(kernel, x, y, query, bandwidth, order=0, weight=1.0, own=None):
    """The definition, one query at a time."""
    predictions = []
    for number, point in enumerate(query):
        u = np.linalg.norm((x - point) / bandwidth, axis=1)
        w = KERNELS[kernel](u) * weight
        if own is not None:
            w = np.where(np.arange(len(x)) == own[number], 0.0, w)
        if order == 0:
            predictions.append(w @ y / w.sum())
        else:
            design = np.hstack([np.ones((len(x), 1)), x - point])
            root = np.sqrt(w)[:, None]
            predictions.append(np.linalg.lstsq(design * root, y * root[:, 0], rcond=None)[0][0])
    return np.array(predictions)


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


@pytest.mark.parametrize("order", [0, 1])
def test_the_search_finds_what_statsmodels_finds(order):
    x, y = table(rows=70, columns=1)
    theirs = KernelReg(y, x, "c", reg_type=["lc", "ll"][order], bw="cv_ls")
    ours = NadarayaWatson("cv", order=order).fit(x, y)
    assert ours.criterion_ <= theirs.cv_loo(theirs.bw, theirs.est[theirs.reg_type]) * 1.001
    left_out = slowly("gaussian", x, y, x, ours.bandwidth_, order, own=np.arange(len(x)))
    # Our lines through rows that all but coincide are flattened.
    assert ours.criterion_ == pytest.approx(np.mean((y - left_out) ** 2), rel=1e-6 if order == 0 else 0.1)


@pytest.mark.parametrize("order", [0, 1])
def test_aicc_is_the_formula_and_its_minimum(order):
    x, y = table(rows=70, columns=1)

    def aicc(bandwidth):
        """From the hat matrix, whose columns are the fits to ones at a single row."""
        hat = np.stack([slowly("gaussian", x, one, x, bandwidth, order) for one in np.eye(len(x))], axis=1)
        trace = np.trace(hat)
        return np.log(np.mean((y - hat @ y) ** 2)) + (1 + trace / 70) / (1 - (trace + 2) / 70)

    model = NadarayaWatson("aicc", order=order).fit(x, y)
    assert model.criterion_ == pytest.approx(aicc(model.bandwidth_), rel=1e-6 if order == 0 else 1e-3)
    assert aicc(model.bandwidth_) <= min(aicc(model.bandwidth_ * factor) for factor in (0.7, 0.9, 1.1, 1.5))


def test_rules_of_thumb():
    x, y = table(columns=2)
    spread = x.std(axis=0)
    assert_allclose(NadarayaWatson().fit(x, y).bandwidth_, spread * len(x) ** (-1 / 6))
    assert_allclose(NadarayaWatson("silverman").fit(x, y).bandwidth_, spread * len(x) ** (-1 / 6))
    x, y = table(columns=1)
    silverman = NadarayaWatson("silverman").fit(x, y).bandwidth_
    assert_allclose(silverman, x.std() * (len(x) * 3 / 4) ** -0.2)


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


def test_evidence_makes_the_prediction():
    x, y = table()
    query = x[:9] + 0.1
    for order in (0, 1):
        model = NadarayaWatson(0.9, order=order).fit(x, y)
        whole = model.evidence(query, top=None)
        assert_allclose((whole.weight * y[whole.index]).sum(axis=1), model.predict(query), rtol=1e-9)
        assert_allclose(whole.rest, 0.0, atol=1e-12)
        some = model.evidence(query, top=4)
        assert_allclose(some.weight, whole.weight[:, :4])
        assert_allclose(some.rest, 1 - some.weight.sum(axis=1), atol=1e-12)
        assert (np.diff(np.abs(some.weight), axis=1) <= 0).all()


def test_evidence_by_a_tree_is_the_same(monkeypatch):
    x, y = table(rows=300)
    for kernel in ("gaussian", "epanechnikov"):
        model = NadarayaWatson(0.7, kernel=kernel).fit(x, y)
        direct = model.evidence(x[:50] * 1.2, top=6)
        with monkeypatch.context() as patch:
            patch.setattr("regard.estimators.rows.TREE_FROM", 0)
            tree = model.evidence(x[:50] * 1.2, top=6)
        assert_allclose(tree.weight, direct.weight, atol=1e-9)
        assert_allclose(tree.rest, direct.rest, atol=1e-9)
        assert (tree.index == direct.index).all()


def test_evidence_as_a_frame_names_the_rows():
    x, y = table(rows=5, columns=2)
    frame = pd.DataFrame(x, columns=["length", "width"], index=list("abcde"))
    model = NadarayaWatson(0.5).fit(frame, pd.Series(y, name="price"))
    found = model.evidence(frame.iloc[[3]], top=2).to_frame()
    assert list(found.columns) == ["query", "rank", "row", "weight", "rest", "price", "length", "width"]
    assert found["row"].iloc[0] == "d"
    assert found["query"].tolist() == ["d", "d"]
    assert found["price"].iloc[0] == y[3]
    assert found["weight"].sum() + found["rest"].iloc[0] == pytest.approx(1)


def test_rows_without_weight_are_not_there_and_evidence_still_counts_all():
    x, y = table()
    weight = np.ones(len(x))
    weight[:40] = 0
    model = NadarayaWatson(0.5).fit(x, y, weight)
    assert_allclose(model.predict(x), NadarayaWatson(0.5).fit(x[40:], y[40:]).predict(x))
    assert model.evidence(x, top=3).index.min() >= 40


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


def test_a_category_never_seen_differs_from_all_unless_there_is_an_order():
    frame = pd.DataFrame({"x": [0.0, 1.0, 0.0, 1.0], "colour": list("aabb")})
    y = np.array([0.0, 1.0, 10.0, 11.0])
    model = NadarayaWatson([0.3, 0.1]).fit(frame, y)
    stranger = pd.DataFrame({"x": [0.0], "colour": ["z"]})
    assert model.predict(stranger)[0] == pytest.approx(5.0, abs=0.1)
    model = NadarayaWatson([0.3, 0.1], ordered=["colour"]).fit(frame, y)
    with pytest.raises(ValueError, match="'z' was not in the training data"):
        model.predict(stranger)


def test_learning_works_beside_categories():
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


def test_all_weights_of_too_many_rows_are_refused(monkeypatch):
    x, y = table()
    model = NadarayaWatson(0.5).fit(x, y)
    monkeypatch.setattr("regard.estimators.evidence.WHOLE_LIMIT", 2 * 8 * 83 * 83 - 1)
    with pytest.raises(ValueError, match="ask for top=8"):
        model.evidence(x, top=None)
    assert len(model.evidence(x[:82], top=None)) == 82
    for top in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match="top must be a positive whole number"):
            model.evidence(x, top=top)


def test_one_seed_gives_one_result():
    x, y = table(rows=150)
    first, second = (NadarayaWatson("learn", metric="full", random_state=3).fit(x, y).bandwidth_ for _ in range(2))
    assert (first == second).all()


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


def test_evidence_makes_the_prediction_of_blind_rows_too(monkeypatch):
    frame = pd.DataFrame({"x": [0.0, 5.0, 50.0, 50.0], "g": list("abaa")})
    model = NadarayaWatson([1.0, 0.3], kernel="epanechnikov").fit(frame, [1.0, 2.0, 3.0, 5.0])
    query = pd.DataFrame({"x": [2.9, 40.0], "g": ["a", "a"]})
    with pytest.warns(UserWarning, match="2 of 2 rows"):
        assert_allclose(model.predict(query), [1.0, 4.0])
    found = model.evidence(query, top=2)
    assert_allclose((found.weight * np.array([1.0, 2.0, 3.0, 5.0])[found.index]).sum(axis=1), [1.0, 4.0])
    model = NadarayaWatson(1.0, kernel="boxcar").fit(frame[["x"]], [1.0, 2.0, 3.0, 5.0])
    monkeypatch.setattr("regard.estimators.rows.TREE_FROM", 0)
    found = model.evidence(query[["x"]], top=2)
    assert found.weight.tolist() == [[1.0, 0.0], [0.5, 0.5]]
    nothing = NadarayaWatson(kernel=lambda q, k: torch.full((len(q), len(k)), -math.inf).double())
    with pytest.warns(UserWarning, match="by the average of all"):
        assert_allclose(nothing.fit(frame[["x"]], [1.0, 2.0, 3.0, 5.0]).predict(query[["x"]]), 2.75)


@pytest.mark.parametrize("bandwidth", ["aicc", "cv", "scott", "learn"])
@pytest.mark.parametrize("scale", [None, "rank"])
def test_only_the_proportions_of_weights_count_unless_they_count_rows(bandwidth, scale):
    x, y = table()
    weight = np.random.default_rng(0).uniform(0.5, 2, len(x))
    first, second = (
        NadarayaWatson(bandwidth, scale=scale).fit(x, y, weight * factor).bandwidth_ for factor in (1.0, 1e-3)
    )
    assert_allclose(first, second, rtol=1e-3)
    assert NadarayaWatson("aicc").fit(x, y, weight).predict(x) != pytest.approx(y, abs=1e-3)


def test_too_few_rows_for_aicc_say_so():
    x, y = table(rows=3)
    for metric in ("scalar", "diagonal"):
        with pytest.raises(ValueError, match="found no bandwidth to judge among 3 rows"):
            NadarayaWatson("aicc", metric=metric).fit(x, y)


def test_what_was_learned_is_what_is_reported_and_saved(tmp_path):
    x, y = table(rows=120, columns=2)
    both = np.stack([y, 1000 * y], axis=1)
    model = NadarayaWatson("learn", metric="full", random_state=0).fit(x, both)
    turned = x @ np.linalg.inv(model.bandwidth_).T
    left_out = slowly("gaussian", turned, both, turned, 1.0, own=np.arange(len(x)))
    assert model.criterion_ == pytest.approx(np.mean((both - left_out) ** 2), rel=1e-6)
    assert regard.load(model.save(tmp_path / "model")).criterion_ == model.criterion_
    assert model.set_params(bandwidth=1.0).fit(x, y).criterion_ is None


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


def test_one_number_is_lambda_where_there_are_only_categories():
    frame = pd.DataFrame({"a": list("abc") * 20})
    assert NadarayaWatson(0.3).fit(frame, np.arange(60.0)).bandwidth_ == 0.3
    with pytest.raises(ValueError, match="between 0 and 1"):
        NadarayaWatson(0.9).fit(frame, np.arange(60.0))


def test_columns_of_any_size_can_be_learned_from():
    x, y = table(rows=100)
    model = NadarayaWatson("learn", metric="diagonal").fit(x * [1e60, 1.0, 1e-60], y)
    assert model.score(x * [1e60, 1.0, 1e-60], y) > 0.7
