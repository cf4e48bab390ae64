"""The partially linear model: coefficients and standard errors against statsmodels, saving, wrong input."""

import warnings

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from numpy.testing import assert_allclose
from sklearn.utils.estimator_checks import parametrize_with_checks
from typer.testing import CliRunner

import regard
from regard import NadarayaWatson, PartiallyLinear
from regard.cli.app import app


@pytest.mark.slow
@parametrize_with_checks(
    [PartiallyLinear(bandwidth=0.7), PartiallyLinear(linear=[0], bandwidth=0.7)],
    expected_failed_checks=lambda model: (
        dict.fromkeys(
            ["check_sample_weight_equivalence_on_dense_data"],
            "a row is left out whole, whatever its weight: two copies of it would see each other",
        )
        if model.linear
        else {}
    ),
)
def test_scikit_learns_checks(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(estimator)


def table(rows=83, seed=0):
    random = np.random.default_rng(seed)
    frame = pd.DataFrame(random.normal(size=(rows, 3)), columns=["a", "b", "c"])
    frame["a"] += np.sin(frame["c"])
    frame["town"] = random.choice(["u", "v", "w"], rows)
    price = 2 * frame["a"] - frame["b"] + np.cos(2 * frame["c"]) + (frame["town"] == "v")
    return frame, (price + 0.2 * random.normal(size=rows)).rename("price"), random.uniform(0.5, 2, rows)


@pytest.mark.parametrize("covariance", ["HC3", "nonrobust"])
@pytest.mark.parametrize("weighted", [False, True])
def test_coefficients_are_those_of_least_squares_on_what_is_left_over(weighted, covariance):
    frame, price, weight = table()
    weight = weight if weighted else None
    model = PartiallyLinear(["a", "b"], bandwidth=[0.5, 0.2], covariance=covariance)
    model.fit(frame, price, sample_weight=weight)
    z = frame[["c", "town"]]
    left_over = []
    for value in (price, frame["a"], frame["b"]):
        smooth = NadarayaWatson(bandwidth=[0.5, 0.2]).fit(z, value, sample_weight=weight)
        whole = smooth.evidence(z, top=None)
        others = np.zeros((len(z), len(z)))
        np.put_along_axis(others, whole.index, whole.weight, axis=1)
        np.fill_diagonal(others, 0)
        left_over.append(value - others @ value / others.sum(axis=1))
    y, *x = left_over
    peer = sm.WLS(y, np.stack(x, axis=1), weights=1 if weight is None else weight)
    peer = peer.fit(cov_type=covariance, use_t=True)
    found = model.summary().to_frame()
    assert found.index.tolist() == ["a", "b"]
    expected = [peer.params, peer.bse, peer.tvalues, peer.pvalues, *peer.conf_int().T.to_numpy()]
    assert_allclose(found.to_numpy(), np.stack(expected, axis=1), rtol=1e-6, atol=1e-12)
    assert_allclose(model.standard_error_, peer.bse)


def test_a_prediction_is_the_linear_part_and_the_weighted_rest():
    frame, price, _ = table()
    model = PartiallyLinear(["a", "b"], bandwidth=[0.5, 0.2]).fit(frame[:70], price[:70])
    new = frame[70:]
    linear = new[["a", "b"]].to_numpy() @ model.coef_
    evidence = model.evidence(new, top=None)
    rest = price[:70].to_numpy() - frame[["a", "b"]][:70].to_numpy() @ model.coef_
    rebuilt = linear + np.einsum("mk,mk->m", evidence.weight, rest[evidence.index])
    assert_allclose(model.predict(new), rebuilt, atol=1e-6)
    assert_allclose(evidence.prediction[:, 0], rebuilt, atol=1e-6)
    first = model.evidence(new, top=2).to_frame().iloc[0]
    assert first["price - linear part"] == pytest.approx(rest[first["row"] - 0])
    assert {"price", "a", "b", "c", "town"} <= set(first.index)
    assert model.score(new, price[70:]) > 0.9


def test_an_array_gives_what_a_frame_gives_and_its_categories_are_renumbered():
    frame, price, _ = table()
    codes = frame.assign(town=frame["town"].map({"u": 0, "v": 1, "w": 2})).to_numpy(dtype=float)
    by_name = PartiallyLinear(["b", "a"], bandwidth=[0.5, 0.2]).fit(frame, price)
    by_index = PartiallyLinear([1, 0], bandwidth=[0.5, 0.2], categorical=[3]).fit(codes, price.to_numpy())
    assert_allclose(by_index.coef_, by_name.coef_)
    assert_allclose(by_index.predict(codes), by_name.predict(frame))
    assert list(by_index.column_kinds_) == ["0", "1", "2", "3"]
    assert by_index.summary().names == ["x1", "x0"]


def test_without_linear_columns_it_is_kernel_regression():
    frame, price, _ = table()
    model = PartiallyLinear(bandwidth=[0.5, 0.5, 0.5, 0.2]).fit(frame, price)
    alone = NadarayaWatson(bandwidth=[0.5, 0.5, 0.5, 0.2]).fit(frame, price)
    assert_allclose(model.predict(frame), alone.predict(frame))
    assert model.left_out_score() == pytest.approx(alone.left_out_score())
    assert model.summary().names == []


@pytest.mark.slow
def test_intervals_cover_the_coefficient():
    covered = 0
    for seed in range(200):
        random = np.random.default_rng(seed)
        z = random.uniform(-2, 2, 100)
        x = np.sin(z) + random.normal(size=100)
        y = 1.5 * x + z**2 + np.exp(0.3 * x) * random.normal(size=100)
        model = PartiallyLinear([0], bandwidth=0.3).fit(np.stack([x, z], axis=1), y)
        row = model.summary().to_frame().iloc[0]
        covered += row["[0.025"] < 1.5 < row["0.975]"]
    assert 0.9 <= covered / 200 <= 0.99


def test_saved_and_loaded(tmp_path):
    frame, price, _ = table()
    model = PartiallyLinear(["a"], bandwidth=[0.5, 0.5, 0.2]).fit(frame, price)
    again = regard.load(model.save(tmp_path / "model"))
    assert_allclose(again.predict(frame), model.predict(frame))
    assert str(again.summary()) == str(model.summary())
    assert again.evidence(frame[:3]).to_frame().equals(model.evidence(frame[:3]).to_frame())


@pytest.mark.parametrize(
    ("linear", "message"),
    [
        (["d"], "there is no column 'd' to be linear"),
        ("a", "linear must be a list of column names or indices, got 'a'"),
        (["a", 0], "linear names a column twice"),
        (["town"], "linear column 'town' must hold numbers, got "),
        (["a", "b", "c", "town"], "linear column 'town' must hold numbers"),
        (["twice", "a"], "linear columns must not be constant, nor follow from each other"),
        (["one"], "linear columns must not be constant, nor follow from each other"),
    ],
)
def test_wrong_columns(linear, message):
    frame, price, _ = table()
    frame = frame.assign(twice=2 * frame["a"], one=1.0)
    with pytest.raises(ValueError, match=message):
        PartiallyLinear(linear, bandwidth=0.5).fit(frame, price)


def test_wrong_rows_and_targets():
    frame, price, _ = table()
    with pytest.raises(ValueError, match=r"one column at least must be smooth, got n_features=1, all linear"):
        PartiallyLinear(["a"], bandwidth=0.5).fit(frame[["a"]], price)
    with pytest.raises(ValueError, match=r"1 linear columns need 3 rows, got n_samples=2"):
        PartiallyLinear(["a"], bandwidth=0.5).fit(frame[["a", "b"]][:2], price[:2])
    with pytest.raises(ValueError, match=r"y should be a 1d array, got an array of shape \(83, 2\)"):
        PartiallyLinear(["a"], bandwidth=0.5).fit(frame, np.stack([price, price], axis=1))
    with pytest.raises(ValueError, match="column 0 cannot be both linear and categorical"):
        PartiallyLinear([0], bandwidth=0.5, categorical=[0]).fit(frame[["a", "b"]].to_numpy(), price)


@pytest.mark.slow
def test_the_command(tmp_path):
    frame, price, _ = table()
    frame.assign(price=price).to_csv(tmp_path / "houses.csv", index=False)
    out = str(tmp_path / "model")
    start = ["fit", "table", str(tmp_path / "houses.csv"), "--target", "price", "--out", out]
    runner = CliRunner()
    fitted = runner.invoke(app, [*start, "--model", "partially-linear", "--linear", "a,b", "--bandwidth", "scott"])
    assert fitted.exit_code == 0, fitted.stderr
    assert "leave-one-out R²: 0.9" in fitted.stderr
    assert "coefficient 2.0" in runner.invoke(app, ["info", out]).stdout
    assert "P>|t|" in runner.invoke(app, ["summary", out]).stdout
    predicted = runner.invoke(app, ["predict", out, str(tmp_path / "houses.csv")])
    assert predicted.stdout.startswith("price\n")
    wrong = runner.invoke(app, [*start, "--linear", "a"])
    assert "--linear is not a setting of AttentionRegressor; settings of another model need" in wrong.stderr
    frame.assign(price=price > 0).to_csv(tmp_path / "houses.csv", index=False)
    wrong = runner.invoke(app, [*start, "--model", "partially-linear", "--kind", "classification"])
    assert "--model partially-linear predicts numbers" in wrong.stderr
