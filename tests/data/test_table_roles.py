"""Roles of columns: target, weight, features; and the schema of the features."""

import json
import re

import numpy as np
import pandas as pd
import pytest
from helpers.table_files import write_file

from regard.data import table_checks, table_roles, tables


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
        table_roles.feature_columns(frame, ["n"])
    assert table_roles.feature_columns(frame, ["n"], ["a"])["a"].dtype == "category"
    if "" not in cells:
        with pytest.raises(ValueError, match=r"write them as 1234\.5, or use --kind classification"):
            table_roles.target_column(frame, "a")


@pytest.mark.parametrize("cells", [["1987-11-17", "2001-01-02 10:30"], ["17.11.1987", "2.1.2001"], ["11/17/87", ""]])
def test_dates_are_not_categories(tmp_path, cells):
    frame = tables.read_table(write_file(tmp_path, "n,a\n" + "".join(f'1,"{cell}"\n' for cell in cells)))
    with pytest.raises(ValueError, match=r"column 'a' holds dates, .* in row 1 .*such as days, or name the column in"):
        table_roles.feature_columns(frame, ["n"])
    pd.DataFrame({"a": pd.to_datetime(["1987-11-17", "2001-01-02"]), "n": [1, 2]}).to_parquet(tmp_path / "t.parquet")
    with pytest.raises(ValueError, match="column 'a' holds dates or times, '1987-11-17 00:00:00' in row 1: turn them"):
        table_roles.feature_columns(tables.read_table(tmp_path / "t.parquet"), ["n"])


@pytest.mark.parametrize(
    "cells", [["A1", "B2"], ["1.2.3", "2.0.1"], ["10-20", "30-40"], ["#a", "1,b"], ["1:30", "2:45"]]
)
def test_text_with_digits_is_text(tmp_path, cells):
    frame = tables.read_table(write_file(tmp_path, "n,a\n" + "".join(f'1,"{cell}"\n' for cell in cells)))
    assert table_roles.feature_columns(frame, ["n"])["a"].tolist() == cells


@pytest.mark.parametrize("cells", [["<5", "<7"], ["5+", "7+"], ["#12", "#13"], ["(1)", "(2)"]])
def test_text_with_signs_that_numbers_do_not_have_is_text(tmp_path, cells):
    frame = tables.read_table(write_file(tmp_path, "n,a\n" + "".join(f'1,"{cell}"\n' for cell in cells)))
    assert table_roles.feature_columns(frame, ["n"])["a"].tolist() == cells


def test_codes_with_leading_zeros_that_are_read_as_numbers_warn(tmp_path):
    frame = tables.read_table(write_file(tmp_path, "zip,n,y\n12,5,1\n00012,05x,2\n"))
    with pytest.warns(UserWarning, match="column 'zip' is read as numbers, '00012' in it as 12: if they are codes"):
        table_roles.feature_columns(frame, ["y"], ["n"])
    table_roles.feature_columns(frame, ["y"], ["zip", "n"])
    table_roles.feature_columns(frame, ["y", "zip"], ["n"])


def test_a_target_of_two_numbers_gives_a_hint():
    target = pd.Series([0.0, 1.0, 1.0], name="active")
    message = "active holds the numbers 0 and 1: for classes, use --kind classification"
    assert table_roles.target_hints(target, "auto") == [message]
    assert table_roles.target_hints(target, "regression") == table_roles.target_hints(target.cumsum(), "auto") == []


def test_a_negative_weight_raises_with_its_row(tmp_path):
    frame = tables.read_table(write_file(tmp_path, "w,y\n1,5\n-2,6\n"))
    with pytest.raises(ValueError, match=r"the weight 'w' must not be negative, got -2 in row 2 \(line 3"):
        table_roles.weight_column(frame, "w")


def test_a_target_is_numbers_or_classes():
    frame = pd.DataFrame({"n": [1, 2], "f": [0.5, 1], "t": ["a", "b"], "b": [True, False], "w": [1.0, np.nan]})
    assert table_roles.target_column(frame, "n").dtype == float
    assert table_roles.target_column(frame, "n", "classification").dtype == int
    assert table_roles.target_column(frame, "t").tolist() == ["a", "b"]
    assert table_roles.target_column(frame, "b").dtype == bool
    with pytest.raises(ValueError, match=r"classes must be whole numbers, or text: the target 'f' holds 0\.5"):
        table_roles.target_column(frame, "f", "classification")
    with pytest.raises(ValueError, match="target 't' must hold numbers for --kind regression, got 'a'"):
        table_roles.target_column(frame, "t", "regression")
    with pytest.raises(ValueError, match="column 'w', row 1: a target cannot be imputed"):
        table_roles.target_column(frame, "w")
    with pytest.raises(ValueError, match="weight 't' must hold numbers"):
        table_roles.weight_column(frame, "t")


def test_ordered_features_have_the_given_order():
    frame = pd.DataFrame({"size": ["M", "S", "L"], "grade": [3, 1, 2], "zip": [7, 7, 8], "y": [1.0, 2.0, 3.0]})
    made = table_roles.feature_columns(frame, ["y"], ["zip"], {"size": ["S", "M", "L"], "grade": None})
    assert made.columns.tolist() == ["size", "grade", "zip"]
    assert made["size"].cat.categories.tolist() == ["S", "M", "L"]
    assert made["grade"].cat.categories.tolist() == [1, 2, 3]
    assert not made["zip"].cat.ordered
    with pytest.raises(ValueError, match="column 'size' holds 'L', not among S, M"):
        table_roles.feature_columns(frame, ["y"], [], {"size": ["S", "M"]})
    with pytest.raises(ValueError, match="'y' is the target or the weight"):
        table_roles.feature_columns(frame, ["y"], ["y"])
    with pytest.raises(ValueError, match="no column to learn from"):
        table_roles.feature_columns(frame[["y"]], ["y"])


def test_a_wrong_cell_among_decimal_commas_raises(tmp_path):
    text = "x;s;y\n" + "".join(f"{row};{cell};1\n" for row, cell in enumerate(["0,5", "1,5", "-", "6,5"]))
    frame = tables.read_table(write_file(tmp_path, text))
    with pytest.raises(ValueError, match=r"column 's' holds numbers, but '-' in row 3 \(line 4"):
        table_roles.feature_columns(frame, ["y"])
    schema = table_roles.Schema("y", {"x": "number", "s": "number"})
    with pytest.raises(ValueError, match=r"column 's' must hold numbers, got '-' in row 3"):
        schema.features(frame)


def test_a_thousands_point_raises_beyond_the_sampled_rows(tmp_path):
    """In a row that is not read to detect the decimal comma."""
    path = tmp_path / "late.csv"
    path.write_text('y;a\n1;"0,5\n"\n' + "".join(f"{i};{i % 9},5\n" for i in range(1100)) + "5;1.234\n")
    with pytest.raises(ValueError, match=r"column 'a' holds numbers, but '1\.234' in row 1102 \(line 1104 of"):
        table_roles.feature_columns(tables.read_table(path), ["y"])


def test_dates_raise_as_features_and_as_target(tmp_path):
    frame = pd.DataFrame({"y": [1.0, 2.0], "t": pd.to_timedelta([1, 2], "h"), "d": pd.to_datetime(["2020", "2021"])})
    frame["o"] = frame["d"].dt.date
    for name in ("t", "d", "o"):
        with pytest.raises(ValueError, match=f"column '{name}' holds dates or times, .* or name the column in --drop$"):
            table_roles.feature_columns(frame[["y", name]], ["y"], otherwise=table_checks.DROP)
        with pytest.raises(ValueError, match=f"column '{name}' holds dates or times, .* or predict another column"):
            table_roles.target_column(frame, name)


def test_needed_columns_cannot_be_dropped():
    frame = pd.DataFrame({"y": [1.0, 2.0], "x": [1.0, 2.0]})
    assert table_roles.dropped_columns(frame, " x ,", ["y", None]) == ["x"]
    with pytest.raises(ValueError, match="column 'y' is needed, as the target, the weight or the bag"):
        table_roles.dropped_columns(frame, "x,y", ["y"])


def test_a_schema_reads_new_tables_like_the_first_one(tmp_path):
    schema = table_roles.Schema(
        "y", {"n": "number", "code": "code", "word": "text"}, {"n": 5.0, "code": 1, "word": "u"}
    )
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
    assert table_roles.column_kinds(["n", *values], values) == {
        "n": "number",
        "t": "text",
        "b": "truth",
        "c": "code",
        "m": "code",
    }


def test_a_schema_survives_json_and_raises_if_it_is_broken():
    schema = table_roles.Schema("Größe", {"n": "number"}, {"n": 0.5})
    assert table_roles.Schema.from_json(json.loads(json.dumps(schema.to_json())), "model") == schema
    for config in ({"a": 1}, [], "text"):
        with pytest.raises(ValueError, match="the description of the table in model is broken"):
            table_roles.Schema.from_json(config, "model")
