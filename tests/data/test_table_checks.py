"""What the cells of a table must hold, and what its columns are to a model."""

import re

import numpy as np
import pandas as pd
import pytest
from helpers.table_files import written

from regard.data import table_checks as cells
from regard.data import table_roles as roles
from regard.data import table_schema as schema
from regard.data import tables


def test_a_missing_cell_is_named_with_its_line(tmp_path):
    # A blank line, and a cell of two lines: row 3 ends on line 6.
    path = written(tmp_path, 'a,b\n1,x\n\n2,"y\nz"\n3,\n,w\n')
    with pytest.raises(ValueError, match=r"column 'b', row 3 \(line 6 of .*table\.csv\), the first of 2") as error:
        cells.check_complete(tables.read_table(path))
    assert "--impute" in str(error.value)
    # A frame of some of the rows and columns still knows where they were.
    with pytest.raises(ValueError, match=r"column 'a', row 4 \(line 7 of .*\): mend it"):
        cells.check_complete(tables.read_table(path).loc[[1, 4], ["a"]], "mend it")


def test_a_missing_cell_of_parquet_is_named_by_its_row(tmp_path):
    pd.DataFrame({"a": [1.0, 2.0], "b": ["x", None]}).to_parquet(tmp_path / "t.parquet")
    with pytest.raises(ValueError, match=r"column 'b', row 2: "):
        cells.check_complete(tables.read_table(tmp_path / "t.parquet"))
    cells.check_complete(pd.DataFrame({"a": [1.0]}))


def test_infinity_and_slips_are_named(tmp_path):
    frame = tables.read_table(written(tmp_path, "a,b,c\n1,2,u\n2,-inf,v\n?,4,1\n5,6,w\n"))
    with pytest.raises(ValueError, match=r"column 'b' is infinite in row 2 \(line 3"):
        cells.check_finite(frame)
    with pytest.raises(ValueError, match=r"column 'a' holds numbers, but '\?' in row 3 \(line 4.*--categorical"):
        cells.check_numbers(frame)
    cells.check_numbers(frame[["b", "c"]])  # text with a number in it is text


@pytest.mark.parametrize(
    "found",
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
def test_numbers_as_people_write_them_are_no_categories(tmp_path, found):
    frame = tables.read_table(written(tmp_path, "n,a\n" + "".join(f'1,"{cell}"\n' for cell in found)))
    said = re.escape(f"column 'a' holds what looks like numbers, {found[0]!r} in row 1 (line 2 of")
    with pytest.raises(ValueError, match=said + r".*write them as 1234\.5, or name the column in --categorical"):
        roles.features_of(frame, ["n"])
    assert roles.features_of(frame, ["n"], ["a"])["a"].dtype == "category"
    if "" not in found:
        with pytest.raises(ValueError, match=r"write them as 1234\.5, or say --kind classification"):
            roles.target_of(frame, "a")


@pytest.mark.parametrize("found", [["1987-11-17", "2001-01-02 10:30"], ["17.11.1987", "2.1.2001"], ["11/17/87", ""]])
def test_dates_are_no_categories(tmp_path, found):
    frame = tables.read_table(written(tmp_path, "n,a\n" + "".join(f'1,"{cell}"\n' for cell in found)))
    with pytest.raises(ValueError, match=r"column 'a' holds dates, .* in row 1 .*such as days, or name the column in"):
        roles.features_of(frame, ["n"])
    pd.DataFrame({"a": pd.to_datetime(["1987-11-17", "2001-01-02"]), "n": [1, 2]}).to_parquet(tmp_path / "t.parquet")
    with pytest.raises(ValueError, match="column 'a' holds dates or times, '1987-11-17 00:00:00' in row 1: turn them"):
        roles.features_of(tables.read_table(tmp_path / "t.parquet"), ["n"])


@pytest.mark.parametrize(
    "found", [["A1", "B2"], ["1.2.3", "2.0.1"], ["10-20", "30-40"], ["#a", "1,b"], ["1:30", "2:45"]]
)
def test_what_only_has_digits_in_it_is_text(tmp_path, found):
    frame = tables.read_table(written(tmp_path, "n,a\n" + "".join(f'1,"{cell}"\n' for cell in found)))
    assert roles.features_of(frame, ["n"])["a"].tolist() == found


def test_codes_with_zeros_in_front_are_warned_of_where_they_are_taken_for_numbers(tmp_path):
    frame = tables.read_table(written(tmp_path, "zip,n,y\n12,5,1\n00012,05x,2\n"))
    with pytest.warns(UserWarning, match="column 'zip' is read as numbers, '00012' in it as 12: if they are codes"):
        roles.features_of(frame, ["y"], ["n"])
    roles.features_of(frame, ["y"], ["zip", "n"])
    roles.features_of(frame, ["y", "zip"], ["n"])


def test_two_numbers_may_be_classes():
    target = pd.Series([0.0, 1.0, 1.0], name="active")
    said = "active holds the numbers 0 and 1: for classes, say --kind classification"
    assert roles.hints_of(target, "auto") == [said]
    assert roles.hints_of(target, "regression") == roles.hints_of(target.cumsum(), "auto") == []


def test_a_negative_weight_is_named_by_its_row(tmp_path):
    frame = tables.read_table(written(tmp_path, "w,y\n1,5\n-2,6\n"))
    with pytest.raises(ValueError, match=r"the weight 'w' must not be negative, got -2 in row 2 \(line 3"):
        roles.weight_of(frame, "w")


def test_a_target_is_numbers_or_classes():
    frame = pd.DataFrame({"n": [1, 2], "f": [0.5, 1], "t": ["a", "b"], "b": [True, False], "w": [1.0, np.nan]})
    assert roles.target_of(frame, "n").dtype == float
    assert roles.target_of(frame, "n", "classification").dtype == int
    assert roles.target_of(frame, "t").tolist() == ["a", "b"]
    assert roles.target_of(frame, "b").dtype == bool
    with pytest.raises(ValueError, match=r"classes must be whole numbers, or text: the target 'f' holds 0\.5"):
        roles.target_of(frame, "f", "classification")
    with pytest.raises(ValueError, match="target 't' must hold numbers for --kind regression, got 'a'"):
        roles.target_of(frame, "t", "regression")
    with pytest.raises(ValueError, match="column 'w', row 1: a target cannot be imputed"):
        roles.target_of(frame, "w")
    with pytest.raises(ValueError, match="weight 't' must hold numbers"):
        roles.weight_of(frame, "t")


def test_features_have_the_order_that_was_given():
    frame = pd.DataFrame({"size": ["M", "S", "L"], "grade": [3, 1, 2], "zip": [7, 7, 8], "y": [1.0, 2.0, 3.0]})
    made = roles.features_of(frame, ["y"], ["zip"], {"size": ["S", "M", "L"], "grade": None})
    assert made.columns.tolist() == ["size", "grade", "zip"]
    assert made["size"].cat.categories.tolist() == ["S", "M", "L"]
    assert made["grade"].cat.categories.tolist() == [1, 2, 3]
    assert not made["zip"].cat.ordered
    with pytest.raises(ValueError, match="column 'size' holds 'L', not among S, M"):
        roles.features_of(frame, ["y"], [], {"size": ["S", "M"]})
    with pytest.raises(ValueError, match="'y' is the target or the weight"):
        roles.features_of(frame, ["y"], ["y"])
    with pytest.raises(ValueError, match="no column to learn from"):
        roles.features_of(frame[["y"]], ["y"])


def test_a_slip_among_decimal_commas_is_found(tmp_path):
    text = "x;s;y\n" + "".join(f"{row};{cell};1\n" for row, cell in enumerate(["0,5", "1,5", "-", "6,5"]))
    frame = tables.read_table(written(tmp_path, text))
    with pytest.raises(ValueError, match=r"column 's' holds numbers, but '-' in row 3 \(line 4"):
        roles.features_of(frame, ["y"])
    known = schema.Schema("y", {"x": "number", "s": "number"})
    with pytest.raises(ValueError, match=r"column 's' must hold numbers, got '-' in row 3"):
        known.rows(frame)


def test_a_point_of_thousands_is_a_slip_however_late_it_comes(tmp_path):
    """Beyond the rows by which the decimal comma is known."""
    path = tmp_path / "late.csv"
    path.write_text('y;a\n1;"0,5\n"\n' + "".join(f"{i};{i % 9},5\n" for i in range(1100)) + "5;1.234\n")
    with pytest.raises(ValueError, match=r"column 'a' holds numbers, but '1\.234' in row 1102 \(line 1104 of"):
        roles.features_of(tables.read_table(path), ["y"])


@pytest.mark.parametrize("found", [["<5", "<7"], ["5+", "7+"], ["#12", "#13"], ["(1)", "(2)"]])
def test_signs_that_no_number_has_make_it_text(tmp_path, found):
    frame = tables.read_table(written(tmp_path, "n,a\n" + "".join(f'1,"{cell}"\n' for cell in found)))
    assert roles.features_of(frame, ["n"])["a"].tolist() == found


def test_times_are_refused_wherever_they_stand(tmp_path):
    frame = pd.DataFrame({"y": [1.0, 2.0], "t": pd.to_timedelta([1, 2], "h"), "d": pd.to_datetime(["2020", "2021"])})
    frame["o"] = frame["d"].dt.date
    for name in ("t", "d", "o"):
        with pytest.raises(ValueError, match=f"column '{name}' holds dates or times, .* or name the column in --drop$"):
            roles.features_of(frame[["y", name]], ["y"], instead=cells.DROP)
        with pytest.raises(ValueError, match=f"column '{name}' holds dates or times, .* or predict another column"):
            roles.target_of(frame, name)


def test_what_is_needed_is_not_left_out():
    frame = pd.DataFrame({"y": [1.0, 2.0], "x": [1.0, 2.0]})
    assert roles.dropped(frame, " x ,", ["y", None]) == ["x"]
    with pytest.raises(ValueError, match="column 'y' is needed, as the target, the weight or the bag"):
        roles.dropped(frame, "x,y", ["y"])
