"""`AttentionRegressor` and `AttentionClassifier` on odd targets, weights, cells and dates."""

import warnings

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose

from regard import AttentionClassifier, AttentionRegressor
from regard.estimators.tables import stacking
from regard.estimators.tables.members.features import Length

TINY = stacking.Effort(3, 40, 1, 12, 0.2, Length(3, 20, 30), 16, Length(3, 20, 30))
"""All members, in a tenth of a second."""


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    """Make `effort="medium"` a matter of milliseconds."""
    monkeypatch.setitem(stacking.EFFORTS, "medium", TINY)


def numbers(rows=90, seed=0):
    random = np.random.default_rng(seed)
    x = random.normal(size=(rows, 3))
    return x, np.sin(2 * x[:, 0]) + x[:, 1] + 0.1 * random.normal(size=rows)


def fitted(x, y, **given):
    return AttentionRegressor(random_state=0).fit(x, y, **given)


def rebuilt(evidence, target):
    """Predictions from all weights of an evidence."""
    return (evidence.weight * np.where(evidence.index < 0, 0.0, np.asarray(target)[evidence.index])).sum(axis=1)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("power", [-600, -40, 40, 1000])
def test_the_unit_of_the_target_makes_no_difference(power):
    x, y = numbers()
    model, scaled = fitted(x, y), fitted(x, np.ldexp(y, power))
    assert scaled.weights_ == model.weights_
    assert scaled.left_out_score() == model.left_out_score()
    assert np.array_equal(np.ldexp(scaled.predict(x, interval=0.8), -power), model.predict(x, interval=0.8))


def test_targets_of_several_sizes_count_alike():
    x, y = numbers()
    both = np.stack([y, np.cos(x[:, 2])], axis=1)
    alike = fitted(x, both).predict(x)
    assert_allclose(fitted(x, both * [1, 2.0**30]).predict(x), alike * [1, 2.0**30])


@pytest.mark.slow
def test_the_other_target_of_a_row_left_out_is_not_seen_either(monkeypatch):
    """The size of a target says how much it counts; it is that of the rows that a member has seen."""
    seen = []
    monkeypatch.setattr(
        stacking, "choose_weights", lambda left_out, *_: seen.append(left_out) or dict.fromkeys(left_out, 0.25)
    )
    x, y = numbers(60)
    for change in (0.0, 1e6):
        both = np.stack([y, np.cos(x[:, 2])], axis=1)
        both[17] += change
        fitted(x, both)
    for name, before in seen[0].items():
        assert_allclose(seen[1][name][17], before[17], err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [AttentionRegressor, AttentionClassifier])
def test_weights_of_rows_are_relative(kind):
    x, y = numbers()
    target = y if kind is AttentionRegressor else y > 0
    weight = np.random.default_rng(1).uniform(0.5, 2, size=len(y))
    first, *others = [
        kind(random_state=0).fit(x, target, sample_weight=unit * weight) for unit in (1.0, 1e-9, 1e9, 1e305)
    ]
    for model in others:
        assert_allclose(model.rows_.weight, first.rows_.weight)
        assert_allclose(model.left_out_, first.left_out_, atol=1e-3)


@pytest.mark.slow
def test_weights_rebuild_predictions_far_from_0():
    x, y = numbers(150)
    y = y + 1e9
    model = AttentionRegressor(effort="low", random_state=0).fit(x, y)
    assert_allclose(rebuilt(model.evidence(x, top=None), y), model.predict(x), rtol=0, atol=1e-6 * y.std())


@pytest.mark.filterwarnings("error")
def test_a_huge_cell_is_an_outlier_not_the_median():
    x, y = numbers()
    x[:, 2] = 0
    x[0], x[1, 0], x[2, 2] = 1.7e308, -1.7e308, 1e200
    model = fitted(x, y)
    assert np.isfinite(model.predict(x)).all()
    scaled = model.encoder_(x).scaled
    assert (scaled[0, :2] > 2.9).all()
    assert scaled[1, 0] < -2.9


def dated(days):
    frame = pd.DataFrame({"sold": days, "size": np.linspace(0, 1, len(days))})
    return frame, np.arange(len(days)) % 5.0


def test_dates_of_all_years():
    days = ["0001-01-01", "9999-12-31 23:59:59", None, "2024-05-31 10:00:00"] * 8
    for column in (days, pd.to_datetime(pd.Series(days), format="ISO8601")):
        x, y = dated(column)
        model = fitted(x, y)
        assert model.column_kinds_["sold"] == "date"
        shown = model._evidence_table()["sold"]
        assert list(shown[:4].astype(str)) == [
            "0001-01-01T00:00:00",
            "9999-12-31T23:59:59",
            "NaT",
            "2024-05-31T10:00:00",
        ]
        assert np.isfinite(model.predict(x)).all()


@pytest.mark.filterwarnings("error")
def test_a_number_is_no_date():
    x, y = dated(pd.date_range("2024-01-01", periods=20))
    model = fitted(x, y)
    with pytest.raises(ValueError, match=r"'sold' must hold dates such as 2024-05-31, got '2024.0' in row 0"):
        model.predict(x.assign(sold=2024.0))
    assert np.isfinite(model.predict(x.assign(sold=np.nan))).all()


def test_dates_that_are_named_as_categories():
    x, y = dated(pd.Series(pd.to_datetime(["2024-01-01", "2024-01-02", None, "2024-01-03"] * 8)))
    for named in (["sold"], [0]):
        model = AttentionRegressor(categorical=named).fit(x, y)
        assert model.column_kinds_ == {"sold": "text", "size": "number"}
        assert np.isfinite(model.predict(x)).all()


def test_cells_of_nullable_types():
    """Those of pandas and Arrow, with missing cells, beside dates."""
    x, y = dated(pd.date_range("2024-01-01", periods=32))
    x["count"] = np.resize([1.0, 2.0, np.nan, 4.0], 32)
    x["new"] = np.resize(np.array([True, False, None], object), 32)
    plain = fitted(x, y)
    nullable = x.astype({"count": "Int64", "new": "boolean", "size": "Float64"})
    pytest.importorskip("pyarrow")
    for table in (nullable, x.convert_dtypes(dtype_backend="pyarrow")):
        model = fitted(table, y)
        assert model.column_kinds_ == plain.column_kinds_
        assert np.array_equal(model.predict(table), plain.predict(x))
        assert model.evidence(table[:2]).to_frame().shape == (10, 10)


def test_numbers_and_words_in_one_column():
    x, y = numbers(30)
    table = pd.DataFrame({"a": x[:, 0], "mixed": np.resize(np.array([1, "a", 2.5, None], object), 30)})
    assert fitted(table, y).column_kinds_ == {"a": "number", "mixed": "code"}


def test_columns_without_any_cell():
    x, y = numbers(30)
    table = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "town": ["Ulm", "Bonn", "Kiel"] * 10})
    model = fitted(table, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        none = model.predict(pd.DataFrame({name: [None] for name in table}))
    assert_allclose(none, model.predict(pd.DataFrame({"a": [np.nan], "b": [np.nan], "town": [np.nan]})))
    assert np.isfinite(fitted(table.assign(b=None), y).predict(table)).all()
    empty = table.assign(town=pd.Series([None] * 30, dtype="string"))
    assert fitted(empty, y).column_kinds_["town"] == "text"


def test_names_of_targets_in_an_arrow_table():
    arrow = pytest.importorskip("pyarrow")
    x, y = numbers(30)
    model = fitted(arrow.table({"a": x[:, 0]}), arrow.table({"price": y, "tax": -y}))
    assert model.targets_ == ["price", "tax"]
    assert model.predict(arrow.table({"a": x[:, 0]})).shape == (30, 2)


def test_effects_have_the_names_of_classes_or_targets():
    x, y = numbers(40)
    classes = AttentionClassifier(random_state=0).fit(x, np.where(y > 0, "dear", "cheap"))
    frame = classes.explain(x[:2]).to_frame()
    assert list(frame) == ["query", "column", "effect_cheap", "effect_dear", "evidence_distance"]
    assert_allclose(frame["effect_cheap"], -frame["effect_dear"], atol=1e-12)
    targets = fitted(x, pd.DataFrame({"price": y, "tax": -y}))
    assert {"effect_price", "effect_tax"} <= set(targets.explain(x[:2]).to_frame())
