"""Reading and writing tables, with every defect that users' tables have."""

import json
import os
import re
import stat
import sys

import numpy as np
import pandas as pd
import pytest
from helpers.table_files import write_file

from regard.data import tables


@pytest.fixture
def frame():
    random = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "area": random.normal(size=7),
            "rooms": random.integers(1, 9, 7),
            "city": ["Rome", "Oslo", "Rome", "São Paulo", 'a "quoted", name', "Oslo", "two\nlines"],
            "garden": [True, False, False, True, True, False, True],
        }
    )


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.tsv", "t.tsv.gz", "t.parquet", "t.pq", "T.CSV"])
def test_a_written_table_is_read_back(frame, tmp_path, name):
    path = tmp_path / "deep" / name
    tables.write_table(frame, path)
    back = tables.read_table(path)
    assert back.index.tolist() == [1, 2, 3, 4, 5, 6, 7]
    pd.testing.assert_frame_equal(back.reset_index(drop=True), frame)
    assert os.listdir(path.parent) == [name]
    assert (path.read_bytes()[:2] == b"\x1f\x8b") == name.endswith(".gz")
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask()


def umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_without_a_path_csv_goes_to_stdout(capsys):
    tables.write_table(pd.DataFrame({"a": [0.1, 1 / 3], "b": ["x", "y"]}), None)
    assert capsys.readouterr().out == "a,b\n0.1,x\n0.3333333333333333,y\n"


def test_a_failed_write_leaves_the_old_table(frame, tmp_path, monkeypatch):
    path = tmp_path / "t.csv"
    tables.write_table(frame, path)
    before = path.read_bytes()

    def half(self, made, **_):
        made.write_text("hal")
        raise KeyboardInterrupt

    monkeypatch.setattr(pd.DataFrame, "to_csv", half)
    with pytest.raises(KeyboardInterrupt):
        tables.write_table(frame, path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["t.csv"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty: a table needs a header and rows"),
        ("a,b\n", "is empty: it has 2 columns and no rows"),
        ("a,b,a\n1,2,3\n", "more than one column named 'a'"),
        ("a,b\n1,2\n3,4,5\n", "Expected 2 fields in line 3, saw 3"),
        ("a,b\n1,2,3\n4,5,6\n", "more cells than its header"),
        (b"a,b\n\xff,2\n", "not UTF-8"),
    ],
)
def test_a_broken_file_raises(tmp_path, text, message):
    path = write_file(tmp_path, text)
    with pytest.raises(ValueError, match=message) as error:
        tables.read_table(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    ("text", "size", "price"),
    [
        ("size;price;to\n138,3;442,5;a\n75;321;b\n", [138.3, 75.0], [442.5, 321.0]),  # as spreadsheets have it
        ("size;price;to\n138.3;442;a\n75;321;b\n", [138.3, 75.0], [442, 321]),
        ("size\tprice\tto\n138,3\t442\ta\n75,0\t321\tb\n", [138.3, 75.0], [442, 321]),
        ("size;price;to\n138,3;442.5;a\n75,0;321.5;b\n", ["138,3", "75,0"], [442.5, 321.5]),  # who could tell
        ("size;price;to\n138,300;442;a\n75,000;321;b\n", ["138,300", "75,000"], [442, 321]),  # thousands, perhaps
        ("size;price;to\n1,5e3;442,5;a\n75;321;b\n", [1500.0, 75.0], [442.5, 321.0]),
        ("size;price;to\n1,5e3;442;a\n75;321;b\n", [1500.0, 75.0], [442, 321]),
        ("size;price;to\n,5;442;a\n75;321;b\n", [0.5, 75.0], [442, 321]),
    ],
)
def test_other_separators_are_read_with_their_decimals(tmp_path, text, size, price):
    frame = tables.read_table(write_file(tmp_path, text))
    assert frame["size"].tolist() == size
    assert frame["price"].tolist() == price
    assert frame["to"].tolist() == ["a", "b"]
    missing = re.sub(r"\n75(,0+)?", "\n", text)
    with pytest.raises(ValueError, match=r"column 'size', row 2 \(line 3 of"):
        tables.check_complete(tables.read_table(write_file(tmp_path, missing)))


def test_the_separator_is_detected_whatever_the_suffix(tmp_path):
    assert tables.read_table(write_file(tmp_path, "a,b\n1,2.5\n", "t.tsv"))["b"].tolist() == [2.5]
    assert tables.read_table(write_file(tmp_path, "a,b;c\n1,2\n")).columns.tolist() == ["a", "b;c"]
    assert tables.read_table(write_file(tmp_path, '"a",b\n"1,5",2\n'))["a"].tolist() == ["1,5"]
    assert tables.read_table(write_file(tmp_path, "Größe, m²;Preis\n12,5;300\n"))["Größe, m²"].tolist() == [12.5]
    assert tables.read_table(write_file(tmp_path, "a;b\n,5;x\n,25;y\n"))["a"].tolist() == [0.5, 0.25]
    assert tables.read_table(write_file(tmp_path, '"a";"b, c";y\n1,5;x;3\n')).columns.tolist() == ["a", "b, c", "y"]


def test_wrong_files_raise(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no file .*none\.csv"):
        tables.read_table(tmp_path / "none.csv")
    (tmp_path / "d.csv").mkdir()
    with pytest.raises(IsADirectoryError, match="is a folder"):
        tables.read_table(tmp_path / "d.csv")
    with pytest.raises(ValueError, match=r"must end in \.csv, .* or \.pq, got .*t\.xlsx"):
        tables.read_table(tmp_path / "t.xlsx")
    with pytest.raises(ValueError, match="must end in"):
        tables.write_table(pd.DataFrame({"a": [1]}), tmp_path / "t.json")
    with pytest.raises(ValueError, match="cannot be read as Parquet"):
        tables.read_table(write_file(tmp_path, "a,b\n1,2\n", "t.parquet"))
    with pytest.raises(ValueError, match="Not a gzipped file"):
        tables.read_table(write_file(tmp_path, "a,b\n1,2\n", "t.csv.gz"))


def test_without_pandas_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r'pandas: pip install "regard\[all\]"'):
        tables.read_table(write_file(tmp_path, "a\n1\n"))


def test_without_pyarrow_the_error_says_what_to_install(frame, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise ImportError("Missing optional dependency 'pyarrow'")

    path = tmp_path / "t.parquet"
    tables.write_table(frame, path)
    monkeypatch.setattr(pd, "read_parquet", refuse)
    monkeypatch.setattr(pd.DataFrame, "to_parquet", refuse)
    with pytest.raises(ImportError, match=r'pyarrow: pip install "regard\[all\]"'):
        tables.read_table(path)
    with pytest.raises(ImportError, match=r'pyarrow: pip install "regard\[all\]"'):
        tables.write_table(frame, path)


def test_row_numbers_that_pandas_wrote_are_left_out(tmp_path):
    with pytest.warns(UserWarning, match="without a name are left out: number 1"):
        frame = tables.read_table(write_file(tmp_path, ",a,b\n0,5,6\n1,7,8\n"))
    assert frame.columns.tolist() == ["a", "b"]
    assert frame["a"].tolist() == [5, 7]


def test_columns_named_as_text_stay_text(tmp_path):
    path = write_file(tmp_path, "code,n\n01,01\n2,2\n")
    assert tables.read_table(path)["code"].tolist() == [1, 2]
    assert tables.read_table(path, text=["code", "absent"])["code"].tolist() == ["01", "2"]
    pd.DataFrame({"code": [1, None]}, dtype="Int64").to_parquet(tmp_path / "t.parquet")
    read = tables.read_table(tmp_path / "t.parquet", text=["code"])["code"]
    assert read.iloc[0] == "1"
    assert pd.isna(read.iloc[1])


def test_a_missing_column_raises_with_the_nearest_name(frame):
    with pytest.raises(ValueError, match="no column 'gardens'; did you mean 'garden'"):
        tables.select_columns(frame, ["area", "gardens"])
    with pytest.raises(ValueError, match="no column 'xyzzy'; its columns are 'area', 'rooms', 'city', 'garden'"):
        tables.select_columns(frame, ["xyzzy"])


def test_impute_fills_with_medians_and_most_frequent_values():
    frame = pd.DataFrame(
        {
            "number": [1.0, 2.0, np.nan, 9.0],
            "count": pd.array([1, None, 2, 2], dtype="Int64"),
            "word": ["b", "a", "b", None],
            "truth": pd.Series([True, None, True, False], dtype=object),
            "grade": pd.Categorical(["lo", "hi", None, "hi"], ["lo", "hi"], ordered=True),
        }
    )
    made, fill = tables.impute(frame)
    assert fill == {"number": 2.0, "count": 2.0, "word": "b", "truth": True, "grade": "hi"}
    assert json.loads(json.dumps(fill)) == fill
    assert made["number"].tolist() == [1, 2, 2, 9]
    assert made["count"].tolist() == [1, 2, 2, 2]
    assert made["word"].tolist() == ["b", "a", "b", "b"]
    assert made["truth"].tolist() == [True, True, True, False]
    assert made["grade"].tolist() == ["lo", "hi", "hi", "hi"]
    assert made["grade"].cat.ordered
    assert frame["number"].isna().sum() == 1  # the user's own is untouched

    again, same = tables.impute(pd.DataFrame({"word": ["c", None, "c"], "number": [7.0, 8.0, np.nan]}), fill)
    assert again["word"].tolist() == ["c", "b", "c"]  # not the "c" that is most frequent here
    assert again["number"].tolist() == [7, 8, 2]
    assert same == fill


def test_impute_raises_on_an_empty_column():
    with pytest.raises(ValueError, match="column 'a' has no value in any row"):
        tables.impute(pd.DataFrame({"a": [np.nan, np.nan]}))


def test_a_missing_cell_raises_with_its_line(tmp_path):
    # A blank line, and a cell of two lines: row 3 ends on line 6.
    path = write_file(tmp_path, 'a,b\n1,x\n\n2,"y\nz"\n3,\n,w\n')
    with pytest.raises(ValueError, match=r"column 'b', row 3 \(line 6 of .*table\.csv\), the first of 2") as error:
        tables.check_complete(tables.read_table(path))
    assert "--impute" in str(error.value)
    # A frame of some of the rows and columns still knows where they were.
    with pytest.raises(ValueError, match=r"column 'a', row 4 \(line 7 of .*\): correct it"):
        tables.check_complete(tables.read_table(path).loc[[1, 4], ["a"]], "correct it")


def test_a_missing_cell_of_parquet_raises_with_its_row(tmp_path):
    pd.DataFrame({"a": [1.0, 2.0], "b": ["x", None]}).to_parquet(tmp_path / "t.parquet")
    with pytest.raises(ValueError, match=r"column 'b', row 2: "):
        tables.check_complete(tables.read_table(tmp_path / "t.parquet"))
    tables.check_complete(pd.DataFrame({"a": [1.0]}))


def test_infinity_and_a_wrong_cell_raise_with_their_position(tmp_path):
    frame = tables.read_table(write_file(tmp_path, "a,b,c\n1,2,u\n2,-inf,v\n?,4,1\n5,6,w\n"))
    with pytest.raises(ValueError, match=r"column 'b' is infinite in row 2 \(line 3"):
        tables.check_finite(frame)
    with pytest.raises(ValueError, match=r"column 'a' holds numbers, but '\?' in row 3 \(line 4.*--categorical"):
        tables.check_misread_numbers(frame)
    tables.check_misread_numbers(frame[["b", "c"]])  # text with a number in it is text
