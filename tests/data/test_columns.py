"""Columns of a table: roles, the schema of the features, categories, dates, other libraries' tables."""

import json
import re

import numpy as np
import pandas as pd
import pytest
from helpers.table_files import write_file
from numpy.testing import assert_allclose

from regard import NadarayaWatson
from regard.data import columns, tables
from regard.data.columns import Category, Columns


@pytest.mark.parametrize(
    "cells",
    [
        ["138,3", "1.234,5"],
        ["442,811", "1,7"],
        ["$442811", "-$5.25"],
        ["12 %", "3%"],
        ["1 234", "1'234.5"],
        ["€1.234", ""],
        ["1,5e3", "2,5E-3"],
        [",5", ",25"],
        ["−1,5", "−2"],
    ],
)
def test_numbers_in_other_formats_are_not_categories(tmp_path, cells):
    frame = tables.read_table(write_file(tmp_path, "n,a\n" + "".join(f'1,"{cell}"\n' for cell in cells)))
    message = re.escape(f"column 'a' holds what looks like numbers, {cells[0]!r} in row 1 (line 2 of")
    with pytest.raises(ValueError, match=message + r".*write them as 1234\.5, or name the column in --categorical"):
        columns.feature_columns(frame, ["n"])
    assert columns.feature_columns(frame, ["n"], ["a"])["a"].dtype == "category"
    if "" not in cells:
        with pytest.raises(ValueError, match=r"write them as 1234\.5, or use --kind classification"):
            columns.target_column(frame, "a")


@pytest.mark.parametrize("cells", [["1987-11-17", "2001-01-02 10:30"], ["17.11.1987", "2.1.2001"], ["11/17/87", ""]])
def test_dates_are_not_categories(tmp_path, cells):
    frame = tables.read_table(write_file(tmp_path, "n,a\n" + "".join(f'1,"{cell}"\n' for cell in cells)))
    with pytest.raises(ValueError, match=r"column 'a' holds dates, .* in row 1 .*such as days, or name the column in"):
        columns.feature_columns(frame, ["n"])
    pd.DataFrame({"a": pd.to_datetime(["1987-11-17", "2001-01-02"]), "n": [1, 2]}).to_parquet(tmp_path / "t.parquet")
    with pytest.raises(ValueError, match="column 'a' holds dates or times, '1987-11-17 00:00:00' in row 1: turn them"):
        columns.feature_columns(tables.read_table(tmp_path / "t.parquet"), ["n"])


@pytest.mark.parametrize(
    "cells", [["A1", "B2"], ["1.2.3", "2.0.1"], ["10-20", "30-40"], ["#a", "1,b"], ["1:30", "2:45"]]
)
def test_text_with_digits_is_text(tmp_path, cells):
    frame = tables.read_table(write_file(tmp_path, "n,a\n" + "".join(f'1,"{cell}"\n' for cell in cells)))
    assert columns.feature_columns(frame, ["n"])["a"].tolist() == cells


@pytest.mark.parametrize("cells", [["<5", "<7"], ["5+", "7+"], ["#12", "#13"], ["(1)", "(2)"]])
def test_text_with_signs_that_numbers_do_not_have_is_text(tmp_path, cells):
    frame = tables.read_table(write_file(tmp_path, "n,a\n" + "".join(f'1,"{cell}"\n' for cell in cells)))
    assert columns.feature_columns(frame, ["n"])["a"].tolist() == cells


def test_codes_with_leading_zeros_that_are_read_as_numbers_warn(tmp_path):
    frame = tables.read_table(write_file(tmp_path, "zip,n,y\n12,5,1\n00012,05x,2\n"))
    with pytest.warns(UserWarning, match="column 'zip' is read as numbers, '00012' in it as 12: if they are codes"):
        columns.feature_columns(frame, ["y"], ["n"])
    columns.feature_columns(frame, ["y"], ["zip", "n"])
    columns.feature_columns(frame, ["y", "zip"], ["n"])


def test_a_target_of_two_numbers_gives_a_hint():
    target = pd.Series([0.0, 1.0, 1.0], name="active")
    message = "active holds the numbers 0 and 1: for classes, use --kind classification"
    assert columns.target_hints(target, "auto") == [message]
    assert columns.target_hints(target, "regression") == columns.target_hints(target.cumsum(), "auto") == []


def test_a_negative_weight_raises_with_its_row(tmp_path):
    frame = tables.read_table(write_file(tmp_path, "w,y\n1,5\n-2,6\n"))
    with pytest.raises(ValueError, match=r"the weight 'w' must not be negative, got -2 in row 2 \(line 3"):
        columns.weight_column(frame, "w")


def test_a_target_is_numbers_or_classes():
    frame = pd.DataFrame({"n": [1, 2], "f": [0.5, 1], "t": ["a", "b"], "b": [True, False], "w": [1.0, np.nan]})
    assert columns.target_column(frame, "n").dtype == float
    assert columns.target_column(frame, "n", "classification").dtype == int
    assert columns.target_column(frame, "t").tolist() == ["a", "b"]
    assert columns.target_column(frame, "b").dtype == bool
    with pytest.raises(ValueError, match=r"classes must be whole numbers, or text: the target 'f' holds 0\.5"):
        columns.target_column(frame, "f", "classification")
    with pytest.raises(ValueError, match="target 't' must hold numbers for --kind regression, got 'a'"):
        columns.target_column(frame, "t", "regression")
    with pytest.raises(ValueError, match="column 'w', row 1: a target cannot be imputed"):
        columns.target_column(frame, "w")
    with pytest.raises(ValueError, match="weight 't' must hold numbers"):
        columns.weight_column(frame, "t")


def test_ordered_features_have_the_given_order():
    frame = pd.DataFrame({"size": ["M", "S", "L"], "grade": [3, 1, 2], "zip": [7, 7, 8], "y": [1.0, 2.0, 3.0]})
    made = columns.feature_columns(frame, ["y"], ["zip"], {"size": ["S", "M", "L"], "grade": None})
    assert made.columns.tolist() == ["size", "grade", "zip"]
    assert made["size"].cat.categories.tolist() == ["S", "M", "L"]
    assert made["grade"].cat.categories.tolist() == [1, 2, 3]
    assert not made["zip"].cat.ordered
    with pytest.raises(ValueError, match="column 'size' holds 'L', not among S, M"):
        columns.feature_columns(frame, ["y"], [], {"size": ["S", "M"]})
    with pytest.raises(ValueError, match="'y' is the target or the weight"):
        columns.feature_columns(frame, ["y"], ["y"])
    with pytest.raises(ValueError, match="no column to learn from"):
        columns.feature_columns(frame[["y"]], ["y"])


def test_a_wrong_cell_among_decimal_commas_raises(tmp_path):
    text = "x;s;y\n" + "".join(f"{row};{cell};1\n" for row, cell in enumerate(["0,5", "1,5", "-", "6,5"]))
    frame = tables.read_table(write_file(tmp_path, text))
    with pytest.raises(ValueError, match=r"column 's' holds numbers, but '-' in row 3 \(line 4"):
        columns.feature_columns(frame, ["y"])
    schema = columns.Schema("y", {"x": "number", "s": "number"})
    with pytest.raises(ValueError, match=r"column 's' must hold numbers, got '-' in row 3"):
        schema.features(frame)


def test_a_thousands_point_raises_beyond_the_sampled_rows(tmp_path):
    """In a row that is not read to detect the decimal comma."""
    path = tmp_path / "late.csv"
    path.write_text('y;a\n1;"0,5\n"\n' + "".join(f"{i};{i % 9},5\n" for i in range(1100)) + "5;1.234\n")
    with pytest.raises(ValueError, match=r"column 'a' holds numbers, but '1\.234' in row 1102 \(line 1104 of"):
        columns.feature_columns(tables.read_table(path), ["y"])


def test_dates_raise_as_features_and_as_target(tmp_path):
    frame = pd.DataFrame({"y": [1.0, 2.0], "t": pd.to_timedelta([1, 2], "h"), "d": pd.to_datetime(["2020", "2021"])})
    frame["o"] = frame["d"].dt.date
    for name in ("t", "d", "o"):
        with pytest.raises(ValueError, match=f"column '{name}' holds dates or times, .* or name the column in --drop$"):
            columns.feature_columns(frame[["y", name]], ["y"], otherwise=tables.DROP)
        with pytest.raises(ValueError, match=f"column '{name}' holds dates or times, .* or predict another column"):
            columns.target_column(frame, name)


def test_needed_columns_cannot_be_dropped():
    frame = pd.DataFrame({"y": [1.0, 2.0], "x": [1.0, 2.0]})
    assert columns.split_names(" x ,") == ["x"]
    assert columns.feature_columns(frame.assign(z=1.0), ["y"], drop=["x"]).columns.tolist() == ["z"]
    with pytest.raises(ValueError, match="column 'y' is needed, as the target, the weight or the bag"):
        columns.feature_columns(frame, ["y"], drop=["x", "y"])


def test_a_schema_reads_new_tables_like_the_first_one(tmp_path):
    schema = columns.Schema("y", {"n": "number", "code": "code", "word": "text"}, {"n": 5.0, "code": 1, "word": "u"})
    path = write_file(tmp_path, "word,extra,code,n\n01,9,2,\n,9,x,3\n")
    rows = schema.features(tables.read_table(path, text=schema.text))
    assert rows.columns.tolist() == ["n", "code", "word"]
    assert rows["word"].tolist() == ["01", "u"]
    assert rows["code"].tolist() == [2, "x"]  # 2 is what it was in training; "x" is an unseen category
    assert rows["n"].tolist() == [5.0, 3.0]
    with pytest.raises(ValueError, match=r"column 'n' must hold numbers, got 'two' in row 1 \(line 2"):
        schema.features(tables.read_table(write_file(tmp_path, "word,code,n\na,1,two\n")))
    with pytest.raises(ValueError, match="has no column 'code', 'word'"):
        schema.features(pd.DataFrame({"n": [1.0]}))


def test_kinds_of_columns():
    values = {"t": ("a", "b"), "b": (False, True), "c": (1, 2), "m": (1, "x")}
    categories = {index: Category(some, False) for index, some in enumerate(values.values(), start=1)}
    assert Columns(("n", *values), categories).kinds == {
        "n": "number",
        "t": "text",
        "b": "truth",
        "c": "code",
        "m": "code",
    }


def test_a_schema_survives_json_and_raises_if_it_is_broken():
    schema = columns.Schema("Größe", {"n": "number"}, {"n": 0.5})
    assert columns.Schema.from_json(json.loads(json.dumps(schema.to_json())), "model") == schema
    for config in ({"a": 1}, [], "text"):
        with pytest.raises(ValueError, match="the description of the table in model is broken"):
            columns.Schema.from_json(config, "model")


def test_an_unseen_category_differs_from_all_others_and_raises_if_they_are_ordered():
    frame = pd.DataFrame({"x": [0.0, 1.0, 0.0, 1.0], "colour": list("aabb")})
    y = np.array([0.0, 1.0, 10.0, 11.0])
    model = NadarayaWatson([0.3, 0.1]).fit(frame, y)
    unseen = pd.DataFrame({"x": [0.0], "colour": ["z"]})
    with pytest.warns(
        UserWarning, match="column 'colour': 1 of 1 rows hold a category that was not in the training data"
    ):
        assert model.predict(unseen)[0] == pytest.approx(5.0, abs=0.1)
    model = NadarayaWatson([0.3, 0.1], ordered=["colour"]).fit(frame, y)
    with pytest.raises(ValueError, match="'z' is not in the training data: its rank is unknown"):
        model.predict(unseen)


def test_unseen_categories_warn_with_their_number():
    frame = pd.DataFrame({"x": np.arange(9.0), "city": list("aabbaabba")})
    model = NadarayaWatson(bandwidth=1.0).fit(frame, frame["x"])
    model.predict(frame)
    with pytest.warns(UserWarning, match="column 'city': 2 of 3 rows hold a category that was not in .* such as 'c'"):
        model.predict(pd.DataFrame({"x": [1.0, 2.0, 3.0], "city": ["a", "c", "d"]}))


class Foreign:
    """A table of another library: it has names, and knows the way to pandas."""

    def __init__(self, frame):
        self.frame, self.columns, self.shape = frame, list(frame.columns), frame.shape

    def to_pandas(self):
        return self.frame


def test_a_table_of_another_library_is_converted_to_pandas():
    random = np.random.default_rng(0)
    frame = pd.DataFrame({"area": random.normal(size=40), "kind": random.choice(["flat", "house"], 40)})
    target = frame["area"] + 2 * (frame["kind"] == "house")
    ours, theirs = (NadarayaWatson("scott").fit(table, target) for table in (frame, Foreign(frame)))
    assert list(theirs.feature_names_in_) == ["area", "kind"]
    assert_allclose(theirs.predict(Foreign(frame[:5])), ours.predict(frame[:5]))
    assert_allclose(theirs.evidence(Foreign(frame[:5])).weight, ours.evidence(frame[:5]).weight)


def test_dates_raise_and_row_names_warn():
    n = 30
    frame = pd.DataFrame({"x": np.arange(n, dtype=float), "when": pd.date_range("2020-01-01", periods=n)})
    for column in (frame["when"], frame["when"] - frame["when"].min(), frame["when"].dt.date):
        with pytest.raises(ValueError, match=r"column 'when' holds dates or times, .* categorical=\[…\]"):
            NadarayaWatson("scott").fit(frame.assign(when=column), frame["x"])
    days = frame.assign(when=(frame["when"] - frame["when"].min()).dt.days)
    assert NadarayaWatson("scott").fit(days, frame["x"]).columns_.categories == {}
    named = frame[["x"]].assign(id=[f"u{number}" for number in range(n)])
    with pytest.warns(UserWarning, match="column 'id' has 30 categories in 30 rows: leave it out"):
        NadarayaWatson("scott").fit(named, frame["x"])
    NadarayaWatson("scott").fit(named.astype({"id": "category"}), frame["x"])  # somebody has decided it


def test_dates_raise_in_a_table_without_rows():
    with pytest.raises(ValueError, match="column 't' holds dates or times: turn them into numbers"):
        NadarayaWatson("scott").fit(pd.DataFrame({"t": pd.to_datetime([])}), [])
