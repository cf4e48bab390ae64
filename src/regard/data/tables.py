"""Tables in and out: CSV, TSV and Parquet, by the file's suffix.

Real tables have defects that lead to a wrong model rather than to an error: an empty cell, one "?" that turns a column
of numbers into text, numbers written as "138,3", dates, two columns of one name, row numbers that were saved as a
feature, a code "01" that is read as 1. Here and in `table_checks` each of them is an error or a warning that names the
column and the row, and says what to do. Rows are numbered from 1, in messages and in the frame's index.
"""

import contextlib
import csv
import gzip
import itertools
import sys
import warnings
from collections.abc import Collection, Iterable, Mapping, Sized
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, TextIO, cast

import numpy as np

from regard.files import atomic_write

if TYPE_CHECKING:
    from pandas import DataFrame, Series

Value = str | int | float | bool
"""What a cell holds, as JSON can hold it."""

_SEPARATORS = {".csv": ",", ".csv.gz": ",", ".tsv": "\t", ".tsv.gz": "\t"}
PARQUET = (".parquet", ".pq")
SUFFIXES = (*_SEPARATORS, *PARQUET)
INSTALL = 'pip install "regard[all]"'
NUMERIC_FRACTION = 0.5
"""The fraction of numbers from which a column of text is taken for numbers with errors."""
_DECIMAL_COMMA = r"[-+]?(\d+(,\d*)?|,\d+)([eE][-+]?\d+)?"
"""A number with a decimal comma."""
_SAMPLE_ROWS = 1000
"""The number of rows in which leading zeros and decimal commas are looked for."""


def read_table(path: str | Path, text: Collection[str] = ()) -> "DataFrame":
    """A table from a file, its rows numbered from 1. Columns named in `text` are text, whatever they look like."""
    path = Path(path)
    suffix = table_suffix(path)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; a table is a file")
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}")
    frame = read_parquet(path, text) if suffix in PARQUET else read_csv(path, _SEPARATORS[suffix], text)
    _check_names(path, list(frame.columns))
    if not len(frame) or not len(frame.columns):
        raise ValueError(f"{path} is empty: it has {len(frame.columns)} columns and no rows")
    frame.index = import_pandas().RangeIndex(1, len(frame) + 1)
    frame.attrs["source"] = str(path)
    return frame


def read_csv(path: Path, separator: str, text: Collection[str]) -> "DataFrame":
    """A text file with a header; columns without a name are left out, with a warning.

    Cells are separated by what the suffix says, or by tabs or semicolons, as spreadsheets do where the decimal
    separator is a comma. Decimal commas are read too, unless the comma separates cells.
    """
    pd = import_pandas()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)
            separator = _detect_separator(path, separator)
            first = pd.read_csv(path, sep=separator, header=None, nrows=1, dtype=str, keep_default_na=False)
            names = [str(name) for name in first.iloc[0]]
            _check_names(path, [name for name in names if name])
            sample = pd.read_csv(path, sep=separator, index_col=False, dtype=str, nrows=_SAMPLE_ROWS)
            decimal = "." if separator == "," else _detect_decimal(sample)
            frame = pd.read_csv(
                path,
                sep=separator,
                decimal=decimal,
                index_col=False,
                low_memory=False,
                dtype={index: str for index, name in enumerate(names) if name in text},
            )
    except pd.errors.EmptyDataError:
        raise ValueError(f"{path} is empty: a table needs a header and rows") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text: save it as UTF-8 ({error})") from None
    except (pd.errors.ParserError, pd.errors.ParserWarning, EOFError, gzip.BadGzipFile) as error:
        wide = isinstance(error, pd.errors.ParserWarning)
        reason = "its rows have more cells than its header" if wide else str(error).rpartition("C error: ")[2]
        raise ValueError(f"{path} cannot be read: {reason}") from None
    nameless = [index + 1 for index, name in enumerate(names) if not name]
    if nameless:
        which = ", ".join(map(str, nameless))
        warnings.warn(
            f"{path}: columns without a name are left out: number {which} (row numbers, perhaps?)", stacklevel=3
        )
        frame = frame.iloc[:, [index for index, name in enumerate(names) if name]]
    frame = frame.set_axis([name for name in names if name], axis=1)
    frame.attrs |= {"codes": _leading_zeros(names, sample), "separator": separator, "decimal": decimal}
    return frame


def _leading_zeros(names: list[str], cells: "DataFrame") -> dict[str, str]:
    """Columns with leading zeros in some cell, and the first such cell, such as 00012: numbers have none."""
    codes = {}
    for index, name in enumerate(names):
        column = cells.iloc[:, index].dropna()
        code = column[column.str.fullmatch(r"\s*0\d+\s*")]
        if len(code):
            codes[name] = str(code.iloc[0])
    return codes


def read_parquet(path: Path, text: Collection[str]) -> "DataFrame":
    """A Parquet file, which has the types of its columns."""
    pd = import_pandas()
    try:
        frame = pd.read_parquet(path)
    except ImportError:
        raise ImportError(f"reading Parquet needs pyarrow: {INSTALL}") from None
    except (ValueError, OSError) as error:
        raise ValueError(f"{path} cannot be read as Parquet: {error}") from None
    frame.columns = [str(name) for name in frame.columns]
    for name in frame.columns.intersection(list(text)):
        frame[name] = frame[name].astype(str).where(frame[name].notna(), None)
    return frame


def write_table(frame: "DataFrame", path: str | Path | None) -> None:
    """Write a table to a file by its suffix, atomically, or as CSV to stdout."""
    if path is None:
        frame.to_csv(sys.stdout, index=False, lineterminator="\n")
        sys.stdout.flush()  # a closed pipe raises here, not at exit
        return
    path = Path(path)
    suffix = check_destination(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with atomic_write(path) as temporary:
            if suffix in PARQUET:
                frame.to_parquet(temporary, index=False)
            else:
                compression = "gzip" if suffix.endswith(".gz") else None
                separator = _SEPARATORS[suffix]
                frame.to_csv(temporary, index=False, sep=separator, compression=compression, lineterminator="\n")
    except ImportError:
        raise ImportError(f"writing Parquet needs pyarrow: {INSTALL}") from None


def check_destination(path: str | Path) -> str:
    """The suffix of a table to write; raises if it cannot be written. Call it before long work, not after."""
    if Path(path).is_dir():
        raise IsADirectoryError(f"{path} is a folder; a table is a file")
    return table_suffix(Path(path))


def table_suffix(path: Path) -> str:
    """The suffix of a table's file, which says its format."""
    matches = [suffix for suffix in SUFFIXES if path.name.lower().endswith(suffix)]
    if not matches:
        raise ValueError(f"the name of a table must end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}, got {path}")
    return max(matches, key=len)


def import_pandas() -> ModuleType:
    """The module pandas, which is an optional dependency."""
    try:
        import pandas
    except ImportError:
        raise ImportError(f"tables need pandas: {INSTALL}") from None
    return cast(ModuleType, pandas)


def _check_names(path: Path, names: list[str]) -> None:
    """Raise if two columns have the same name."""
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(f"{path} has more than one column named {', '.join(map(repr, repeated))}: rename them")


def open_text(path: str | Path) -> TextIO:
    """A text file, compressed or not, as `csv` reads it."""
    if str(path).lower().endswith(".gz"):
        return cast(TextIO, gzip.open(path, "rt", encoding="utf-8-sig", newline=""))
    return open(path, encoding="utf-8-sig", newline="")


def _detect_separator(path: Path, default: str) -> str:
    """The separator that gives the header and the first rows the same number of cells, two or more; or the default.

    The comma comes last: it also occurs in numbers and in names.
    """
    for separator in ("\t", ";", ","):
        with open_text(path) as lines, contextlib.suppress(csv.Error):
            filled = (cells for cells in csv.reader(lines, delimiter=separator) if cells)
            widths = {len(cells) for cells in itertools.islice(filled, 5)}
            if len(widths) == 1 and widths != {1}:
                return separator
    return default


def _detect_decimal(cells: "DataFrame") -> str:
    """The decimal separator: a comma if most cells of some column are numbers with one, and no column has a point.

    1,200 may be a thousand: if all commas have three digits behind them, they are not taken for decimal.
    """
    columns = [column.dropna().str.strip() for _, column in cells.items()]
    commas = any(
        column.str.fullmatch(_DECIMAL_COMMA).mean() >= NUMERIC_FRACTION
        and column.str.fullmatch(r"[-+]?(\d+,(\d{1,2}|\d{4,})|,\d+|\d*,\d+[eE][-+]?\d+)").any()
        for column in columns
        if len(column)
    )
    points = any(column.str.fullmatch(r"[-+]?\d*\.\d+").any() for column in columns)
    return "," if commas and not points else "."


def get_column(frame: "DataFrame", name: str) -> "Series":
    """One column, or an error that names those there are."""
    return select_columns(frame, [name])[name]


def select_columns(frame: "DataFrame", names: Iterable[str]) -> "DataFrame":
    """Columns by name, in the given order."""
    names = list(names)
    missing = [name for name in names if name not in frame.columns]
    if missing:
        near = get_close_matches(missing[0], list(frame.columns), n=1)
        known = f"did you mean {near[0]!r}?" if near else f"its columns are {quote_names(frame.columns)}"
        source = frame.attrs.get("source", "the table")
        raise ValueError(f"{source} has no column {quote_names(missing)}; {known}")
    return frame[names]


def quote_names(names: Iterable[str], most: int = 20) -> str:
    """Names in quotes, separated by commas; only the first `most` of them."""
    names = list(names)
    more = f", and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(repr, names[:most])) + more


def count_text(things: Sized, noun: str) -> str:
    """The number of things in words, such as "3 rows"."""
    return f"{len(things):,} {noun}" + ("" if len(things) == 1 else "s")


def impute(frame: "DataFrame", fill: Mapping[str, Value] | None = None) -> tuple["DataFrame", dict[str, Value]]:
    """The table without missing cells, and the values they were filled with: medians, or the most frequent category.

    With `fill`, the values of an earlier call are used, so that new rows are filled like those of training.
    """
    values = {name: _fill_value(frame[name]) for name in frame.columns} if fill is None else dict(fill)
    columns = {name: frame[name] for name in frame.columns}
    columns |= {name: _fill_missing(column, values[name]) for name, column in columns.items() if name in values}
    filled = import_pandas().DataFrame(columns, index=frame.index)
    filled.attrs = frame.attrs
    return filled, values


def _fill_value(column: "Series") -> Value:
    """The median of a numeric column, the most frequent value of another; the first in order among equals."""
    types = import_pandas().api.types
    known = column.dropna()
    if not len(known):
        raise ValueError(f"column {column.name!r} has no value in any row, so nothing to fill it in with: leave it out")
    if types.is_numeric_dtype(column.dtype) and not types.is_bool_dtype(column.dtype):
        return float(known.median())
    value = known.mode().iloc[0]
    value = value.item() if isinstance(value, np.generic) else value
    return value if isinstance(value, str | int | float | bool) else str(value)


def _fill_missing(column: "Series", value: Value) -> "Series":
    """A column with a value in its missing cells."""
    pd = import_pandas()
    missing = column.isna().to_numpy()
    if not missing.any():
        return column
    if pd.api.types.is_numeric_dtype(column.dtype) and isinstance(value, float):
        return column.astype("float64").fillna(value)
    if hasattr(column, "cat") and value in column.cat.categories:
        return column.fillna(value)
    cells = column.to_numpy(dtype=object, copy=True)
    cells[missing] = value
    return pd.Series(cells, index=column.index, name=column.name, dtype=object)
