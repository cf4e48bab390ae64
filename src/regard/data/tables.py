"""A user's table in and out: CSV, TSV and Parquet, by the file's suffix.

Real tables are broken in ways that end in a wrong model rather than in an error: a cell that is empty, one "?"
that turns a column of numbers into text, numbers written as "138,3", dates, two columns of one name, row numbers that
were saved as a feature, a code "01" that is read as 1. Here each of them is an error, or a warning, that
names the column and the row, and says what to do. Rows are numbered from 1, in messages and in the frame's index.
"""

import contextlib
import csv
import gzip
import itertools
import sys
import warnings
from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from regard.files import atomic_write

if TYPE_CHECKING:
    from pandas import DataFrame, Series

SEPARATORS = {".csv": ",", ".csv.gz": ",", ".tsv": "\t", ".tsv.gz": "\t"}
PARQUET = (".parquet", ".pq")
SUFFIXES = (*SEPARATORS, *PARQUET)
INSTALL = 'pip install "regard[all]"'
ALIKE = 0.5
"""The share of numbers from which a column of text is taken for numbers with a slip in it."""
COMMA = r"[-+]?(\d+(,\d*)?|,\d+)([eE][-+]?\d+)?"
"""A number with a decimal comma."""
SEEN = 1000
"""Rows by which codes with zeros in front, and a decimal comma, are known."""


def read_table(path: str | Path, text: Collection[str] = ()) -> "DataFrame":
    """A table from a file, its rows numbered from 1. Columns named in `text` are text, whatever they look like."""
    path = Path(path)
    suffix = suffix_of(path)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; a table is a file")
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}")
    frame = read_parquet(path, text) if suffix in PARQUET else read_csv(path, SEPARATORS[suffix], text)
    check_names(path, list(frame.columns))
    if not len(frame) or not len(frame.columns):
        raise ValueError(f"{path} is empty: it has {len(frame.columns)} columns and no rows")
    frame.index = pandas().RangeIndex(1, len(frame) + 1)
    frame.attrs["source"] = str(path)
    return frame


def read_csv(path: Path, separator: str, text: Collection[str]) -> "DataFrame":
    """Cells with a header; columns without a name are left out, with a warning.

    They are separated by what the name says, or by tabs or semicolons, as spreadsheets have it where decimals have a
    comma. That is read too, where cells are not separated by it.
    """
    pd = pandas()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)
            separator = separator_in(path, separator)
            first = pd.read_csv(path, sep=separator, header=None, nrows=1, dtype=str, keep_default_na=False)
            names = [str(name) for name in first.iloc[0]]
            check_names(path, [name for name in names if name])
            some = pd.read_csv(path, sep=separator, index_col=False, dtype=str, nrows=SEEN)
            decimal = "." if separator == "," else decimal_in(some)
            frame = pd.read_csv(
                path,
                sep=separator,
                decimal=decimal,
                index_col=False,
                low_memory=False,
                dtype={place: str for place, name in enumerate(names) if name in text},
            )
    except pd.errors.EmptyDataError:
        raise ValueError(f"{path} is empty: a table needs a header and rows") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text: save it as UTF-8 ({error})") from None
    except (pd.errors.ParserError, pd.errors.ParserWarning, EOFError, gzip.BadGzipFile) as error:
        wide = isinstance(error, pd.errors.ParserWarning)
        said = "its rows have more cells than its header" if wide else str(error).rpartition("C error: ")[2]
        raise ValueError(f"{path} cannot be read: {said}") from None
    nameless = [place + 1 for place, name in enumerate(names) if not name]
    if nameless:
        which = ", ".join(map(str, nameless))
        warnings.warn(
            f"{path}: columns without a name are left out: number {which} (row numbers, perhaps?)", stacklevel=3
        )
        frame = frame.iloc[:, [place for place, name in enumerate(names) if name]]
    frame = frame.set_axis([name for name in names if name], axis=1)
    frame.attrs |= {"codes": codes_in(names, some), "separator": separator, "decimal": decimal}
    return frame


def codes_in(names: list[str], cells: "DataFrame") -> dict[str, str]:
    """Columns of which some cell has zeros in front, and the first, such as 00012: a number would have none."""
    found = {}
    for place, name in enumerate(names):
        column = cells.iloc[:, place].dropna()
        code = column[column.str.fullmatch(r"\s*0\d+\s*")]
        if len(code):
            found[name] = str(code.iloc[0])
    return found


def read_parquet(path: Path, text: Collection[str]) -> "DataFrame":
    """A Parquet file, which knows the types of its columns."""
    pd = pandas()
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
    """Write a table to a file by its suffix, or as CSV to stdout. A killed run leaves no half of it."""
    if path is None:
        frame.to_csv(sys.stdout, index=False, lineterminator="\n")
        sys.stdout.flush()  # so that a reader who has gone is noticed here
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
                separator = SEPARATORS[suffix]
                frame.to_csv(temporary, index=False, sep=separator, compression=compression, lineterminator="\n")
    except ImportError:
        raise ImportError(f"writing Parquet needs pyarrow: {INSTALL}") from None


def check_destination(path: str | Path) -> str:
    """The suffix of a table that is to be written, if it can be: better known before the work than after it."""
    if Path(path).is_dir():
        raise IsADirectoryError(f"{path} is a folder; a table is a file")
    return suffix_of(Path(path))


def suffix_of(path: Path) -> str:
    """The suffix that says what a file is."""
    found = [suffix for suffix in SUFFIXES if path.name.lower().endswith(suffix)]
    if not found:
        raise ValueError(f"the name of a table must end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}, got {path}")
    return max(found, key=len)


def pandas() -> Any:
    """Pandas, which not every install has."""
    try:
        import pandas
    except ImportError:
        raise ImportError(f"tables need pandas: {INSTALL}") from None
    return pandas


def check_names(path: Path, names: list[str]) -> None:
    """Columns are known by their names, so no two may have the same."""
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"{path} has more than one column named {', '.join(map(repr, twice))}: rename them")


def opened(path: str | Path) -> IO[str]:
    """The text of a table, packed or not, as `csv` reads it."""
    unpack: Any = gzip.open if str(path).lower().endswith(".gz") else open
    text: IO[str] = unpack(path, "rt", encoding="utf-8-sig", newline="")
    return text


def separator_in(path: Path, usual: str) -> str:
    """What separates the cells of a file: what cuts its header and its first rows into as many cells, two or more; what
    its name says, where nothing does. A comma is asked last: it also stands in numbers, and in names.
    """
    for mark in ("\t", ";", ","):
        with opened(path) as lines, contextlib.suppress(csv.Error):
            filled = (cells for cells in csv.reader(lines, delimiter=mark) if cells)
            widths = {len(cells) for cells in itertools.islice(filled, 5)}
            if len(widths) == 1 and widths != {1}:
                return mark
    return usual


def decimal_in(cells: "DataFrame") -> str:
    """What stands before decimals: a comma, where most of some column are numbers with one, and no other has a point.

    1,200 may be a thousand: where a comma has three digits behind it in all cells, nothing is taken for granted.
    """
    columns = [column.dropna().str.strip() for _, column in cells.items()]
    commas = any(
        column.str.fullmatch(COMMA).mean() >= ALIKE
        and column.str.fullmatch(r"[-+]?(\d+,(\d{1,2}|\d{4,})|,\d+|\d*,\d+[eE][-+]?\d+)").any()
        for column in columns
        if len(column)
    )
    points = any(column.str.fullmatch(r"[-+]?\d*\.\d+").any() for column in columns)
    return "," if commas and not points else "."


def column(frame: "DataFrame", name: str) -> "Series":
    """One column, or an error that names those there are."""
    pick(frame, [name])
    return frame[name]


def pick(frame: "DataFrame", names: Iterable[str]) -> "DataFrame":
    """Columns by name, in the order asked for."""
    names = list(names)
    missing = [name for name in names if name not in frame.columns]
    if missing:
        near = get_close_matches(missing[0], list(frame.columns), n=1)
        known = f"did you mean {near[0]!r}?" if near else f"its columns are {listed(frame.columns)}"
        source = frame.attrs.get("source", "the table")
        raise ValueError(f"{source} has no column {listed(missing)}; {known}")
    return frame[names]


def listed(names: Iterable[str], most: int = 20) -> str:
    """Names in a row, the first of them where there are many."""
    names = list(names)
    more = f", and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(repr, names[:most])) + more


def counted(things: Any, name: str) -> str:
    """How many there are, in words."""
    return f"{len(things):,} {name}" + ("" if len(things) == 1 else "s")


def impute(frame: "DataFrame", fill: Mapping[str, Any] | None = None) -> tuple["DataFrame", dict[str, Any]]:
    """Fill missing cells in, and say with what: the median of numbers, the most frequent of categories.

    With `fill`, the values of an earlier call are used, so that new rows are filled in as those of training were.
    """
    values = {name: usual(frame[name]) for name in frame.columns} if fill is None else dict(fill)
    filled = {name: completed(frame[name], values[name]) if name in values else frame[name] for name in frame.columns}
    made = pandas().DataFrame(filled, index=frame.index)
    made.attrs = frame.attrs
    return made, values


def usual(column: "Series") -> Any:
    """The median of a column of numbers, the most frequent value of another; the first in order among equals."""
    types = pandas().api.types
    known = column.dropna()
    if not len(known):
        raise ValueError(f"column {column.name!r} has no value in any row, so nothing to fill it in with: leave it out")
    if types.is_numeric_dtype(column.dtype) and not types.is_bool_dtype(column.dtype):
        return float(known.median())
    value = known.mode().iloc[0]
    value = value.item() if isinstance(value, np.generic) else value
    return value if isinstance(value, str | int | float | bool) else str(value)


def completed(column: "Series", value: Any) -> "Series":
    """A column with a value in its missing cells."""
    pd = pandas()
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
