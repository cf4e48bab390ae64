"""Tables in and out: CSV, TSV and Parquet, by the file's suffix.

Real tables have defects that lead to a wrong model rather than to an error: an empty cell, one "?" that turns a column
of numbers into text, numbers written as "138,3", dates, two columns of one name, row numbers that were saved as a
feature, a code "01" that is read as 1. Here each of them is an error or a warning that names the column and the row,
and says what to do. Rows are numbered from 1, in messages and in the frame's index.
"""

import contextlib
import csv
import gzip
import importlib
import itertools
import sys
import tempfile
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sized
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, TextIO, cast

import numpy as np

from regard.checks import optional_import, quote_names
from regard.files import atomic_write

if TYPE_CHECKING:
    from pandas import DataFrame, Series

Value = str | int | float | bool
"""What a cell holds, as JSON can hold it."""

_SEPARATORS = {".csv": ",", ".csv.gz": ",", ".tsv": "\t", ".tsv.gz": "\t"}
_PARQUET = (".parquet", ".pq")
_SUFFIXES = (*_SEPARATORS, *_PARQUET)
_NUMERIC_FRACTION = 0.5
"""The fraction of numbers from which a column of text is taken for numbers with errors."""
_DECIMAL_COMMA = r"[-+]?(\d+(,\d*)?|,\d+)([eE][-+]?\d+)?"
"""A number with a decimal comma."""
_SAMPLE_ROWS = 1000
"""The number of rows in which leading zeros and decimal commas are looked for."""
_NUMBER = (
    r"[-+−]?\s*[$€£¥]?\s*[-+−]?((\d{1,3}([.,' \u00a0\u202f]\d{3})+|\d+)([.,]\d*)?|[.,]\d+)([eE][-+−]?\d+)?"
    r"\s*[$€£¥%]?"
)
"""A number as people write it: 1.234,5 and $1,234.5 and −12 %."""
_DATE = r"(\d{4}([-/.])\d{1,2}\2\d{1,2}|\d{1,2}([-/.])\d{1,2}\3(\d{4}|\d{2}))([ T]\d.*)?"
_ISO_DATE = r"\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}|$)"
_DATE_TYPES = ("date", "datetime", "datetime64", "period", "time", "timedelta", "timedelta64")
"""The names that pandas has for dates and times."""
_NUMBER_TYPES = ("integer", "floating", "mixed-integer-float", "decimal", "empty")
"""The names that pandas has for the contents of a column of objects that are numbers, or all missing."""
CATEGORICAL_OR_DROP, DROP = "name the column in --categorical or --drop", "name the column in --drop"
"""What else to do with a column, in a table of rows and in a table of bags."""


def read_table(path: str | Path, text: Collection[str] = ()) -> "DataFrame":
    """A table from a file, its rows numbered from 1. Columns named in `text` are text, whatever they look like."""
    path = Path(path)
    suffix = table_suffix(path)
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}")
    frame = _read_parquet(path, text) if suffix in _PARQUET else _read_csv(path, _SEPARATORS[suffix], text)
    repeated = sorted(set(frame.columns[frame.columns.duplicated()]))
    if repeated:
        raise ValueError(f"{path} has more than one column named {quote_names(repeated)}: rename them")
    if not len(frame) or not len(frame.columns):
        raise ValueError(f"{path} is empty: it has {len(frame.columns)} columns and no rows")
    frame.index = import_pandas().RangeIndex(1, len(frame) + 1)
    frame.attrs["source"] = str(path)
    return frame


@contextlib.contextmanager
def as_file(path: Path, suffix: str | None = None) -> Iterator[Path]:
    """A file whose suffix says its format: the path itself; or stdin, if it is "-", or a file of another suffix.

    suffix   the format, such as csv; by default that of the path, and CSV for stdin
    """
    if str(path) != "-" and suffix is None:
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        link = Path(folder) / f"{'stdin' if str(path) == '-' else path.name}.{suffix or 'csv'}"
        table_suffix(link)
        if str(path) == "-":
            link.write_bytes(sys.stdin.buffer.read())
        elif path.exists():
            link.symlink_to(path.resolve())
        else:
            raise FileNotFoundError(f"there is no file {path}")
        yield link


def read_header(path: Path) -> list[str]:
    """The names of the columns of a table."""
    suffix = table_suffix(path)
    if suffix in _PARQUET:
        with optional_import("reading Parquet needs pyarrow"):
            parquet = importlib.import_module("pyarrow.parquet")
        return [str(name) for name in parquet.read_schema(path).names]
    with _open_text(path) as lines:
        return next(csv.reader(lines, delimiter=_detect_separator(path, _SEPARATORS[suffix])), [])


def _read_csv(path: Path, separator: str, text: Collection[str]) -> "DataFrame":
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


def _read_parquet(path: Path, text: Collection[str]) -> "DataFrame":
    """A Parquet file, which has the types of its columns."""
    pd = import_pandas()
    try:
        with optional_import("reading Parquet needs pyarrow"):
            frame = pd.read_parquet(path)
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
    suffix = table_suffix(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with optional_import("writing Parquet needs pyarrow"), atomic_write(path) as temporary:
        if suffix in _PARQUET:
            frame.to_parquet(temporary, index=False)
        else:
            compression = "gzip" if suffix.endswith(".gz") else None
            separator = _SEPARATORS[suffix]
            frame.to_csv(temporary, index=False, sep=separator, compression=compression, lineterminator="\n")


def table_suffix(path: str | Path) -> str:
    """The suffix of a table's file, which says its format. Call it before long work whose result goes to the file."""
    if Path(path).is_dir():
        raise IsADirectoryError(f"{path} is a folder; a table is a file")
    matches = [suffix for suffix in _SUFFIXES if str(path).lower().endswith(suffix)]
    if not matches:
        raise ValueError(f"the name of a table must end in {', '.join(_SUFFIXES[:-1])} or {_SUFFIXES[-1]}, got {path}")
    return max(matches, key=len)


def import_pandas() -> ModuleType:
    """The module pandas, which is an optional dependency."""
    with optional_import("tables need pandas"):
        import pandas
    return cast(ModuleType, pandas)


def _open_text(path: str | Path) -> TextIO:
    """A text file, compressed or not, as `csv` reads it."""
    if str(path).lower().endswith(".gz"):
        return cast(TextIO, gzip.open(path, "rt", encoding="utf-8-sig", newline=""))
    return open(path, encoding="utf-8-sig", newline="")


def _detect_separator(path: Path, default: str) -> str:
    """The separator that gives the header and the first rows the same number of cells, two or more; or the default.

    The comma comes last: it also occurs in numbers and in names.
    """
    for separator in ("\t", ";", ","):
        with _open_text(path) as lines, contextlib.suppress(csv.Error):
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
        column.str.fullmatch(_DECIMAL_COMMA).mean() >= _NUMERIC_FRACTION
        and column.str.fullmatch(r"[-+]?(\d+,(\d{1,2}|\d{4,})|,\d+|\d*,\d+[eE][-+]?\d+)").any()
        for column in columns
        if len(column)
    )
    points = any(column.str.fullmatch(r"[-+]?\d*\.\d+").any() for column in columns)
    return "," if commas and not points else "."


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


def count_text(things: Sized, noun: str) -> str:
    """The number of things in words, such as "3 rows"."""
    return f"{len(things):,} {noun}" + ("" if len(things) == 1 else "s")


def check_complete(
    frame: "DataFrame", advice: str = "fill it in, leave the row out, or use --impute", prefix: str = ""
) -> None:
    """Raise on missing cells, and name the first, row by row."""
    missing = frame.isna().to_numpy()
    if missing.any():
        row, column = np.argwhere(missing)[0]
        count = int(missing.sum())
        others = "" if count == 1 else f", the first of {count:,} missing cells"
        raise ValueError(
            f"{prefix}a cell is missing in column {frame.columns[column]!r}, {row_location(frame, row)}{others}:"
            f" {advice} (a cell is missing if it is empty, or holds a word for it such as NA)"
        )


def check_finite(frame: "DataFrame") -> None:
    """Raise on infinite numbers."""
    for name in frame.select_dtypes("number").columns:
        infinite = np.isinf(frame[name].to_numpy(dtype=float, na_value=np.nan))
        if infinite.any():
            raise ValueError(f"column {name!r} is infinite in {row_location(frame, int(np.argmax(infinite)))}")


def check_misread_numbers(
    frame: "DataFrame", correct: str = "correct it, empty it", otherwise: str = CATEGORICAL_OR_DROP
) -> None:
    """Raise on columns of numbers or dates that pandas has read as text: each value would become a category."""
    for name in frame.columns:
        if not is_text(frame[name]):
            continue
        known = frame[name].notna().to_numpy()
        wrong = known & parse_numbers(frame, name).isna().to_numpy()
        if not wrong.any():
            continue
        row, cells = int(np.argmax(wrong)), frame[name][wrong].astype(str).str.strip()
        cell = f"{frame[name].iloc[row]!r} in {row_location(frame, row)}"
        if wrong.sum() <= (1 - _NUMERIC_FRACTION) * known.sum():
            raise ValueError(f"column {name!r} holds numbers, but {cell}: {correct}, or {otherwise}")
        if cells.str.fullmatch(_DATE).all():
            raise ValueError(
                f"column {name!r} holds dates, {cell}: turn them into numbers, such as days, or {otherwise}"
            )
        if cells.str.fullmatch(_NUMBER).all():
            raise ValueError(
                f"column {name!r} holds what looks like numbers, {cell}: write them as 1234.5, or {otherwise}"
            )


def parse_numbers(frame: "DataFrame", name: str) -> "Series":
    """The numbers in a column of text, with the decimal separator of its file; NaN for all else."""
    column = frame[name]
    if frame.attrs.get("decimal") == ",":
        text = column.astype(str)
        text = text.mask(text.str.contains(".", regex=False), "?")  # beside a decimal comma, a point groups thousands
        column = column.where(column.isna(), text.str.replace(",", ".", regex=False))
    return import_pandas().to_numeric(column, errors="coerce")


def convert_objects(frame: "DataFrame") -> "DataFrame":
    """The table with numeric columns where they hold Python's numbers, or decimals, as objects."""
    if not frame.columns.is_unique:
        repeated = quote_names(sorted({str(name) for name in frame.columns[frame.columns.duplicated()]}))
        raise ValueError(f"more than one column is named {repeated}: evidence could not tell them apart, rename them")
    infer = import_pandas().api.types.infer_dtype
    objects = [name for name, column in frame.items() if column.dtype == object]
    numbers = [name for name in objects if infer(frame[name], skipna=True) in _NUMBER_TYPES]
    return frame.astype(dict.fromkeys(numbers, float)) if numbers else frame


def check_no_dates(frame: "DataFrame", otherwise: str) -> None:
    """Raise on dates and times: they are not numbers, and each would become a category."""
    types = import_pandas().api.types
    for name, column in frame.items():
        if column.dtype.kind in "mM" or types.infer_dtype(column, skipna=True) in _DATE_TYPES:
            example = f", {str(column.iloc[0])!r} in {row_location(frame, 0)}" if len(column) else ""
            raise ValueError(
                f"column {name!r} holds dates or times{example}: turn them into numbers, such as days, or {otherwise}"
            )


def holds_dates(column: "Series") -> bool:
    """Whether a column holds dates, or text that is dates as ISO 8601 writes them."""
    pd = import_pandas()
    kind = pd.api.types.infer_dtype(column, skipna=True)
    if column.dtype.kind == "M" or kind in ("date", "datetime", "datetime64"):
        return True
    known = column.dropna()
    if kind != "string" or not len(known) or not known.iloc[:1].str.match(_ISO_DATE).all():
        return False
    return bool(
        known.str.match(_ISO_DATE).all()
        and pd.to_datetime(known, errors="coerce", utc=True, format="ISO8601").notna().all()
    )


def row_location(frame: "DataFrame", index: int) -> str:
    """A row by its number, and by its line if it was read from a text file."""
    row = frame.index[index]
    line = _line_number(frame.attrs.get("source"), row, frame.attrs.get("separator", ","))
    return f"row {row}" + ("" if line is None else f" (line {line} of {frame.attrs['source']})")


def _line_number(source: str | None, row: object, separator: str) -> int | None:
    """The line on which a row of a text file ends: there may be blank lines, and cells of several lines."""
    if source is None or table_suffix(source) in _PARQUET or not isinstance(row, int | np.integer):
        return None
    with _open_text(source) as lines:
        reader = csv.reader(lines, delimiter=separator)
        count = -1  # the header is row 0
        for cells in reader:
            count += bool(cells)
            if count == row:
                return reader.line_num
    return None


def is_text(column: "Series") -> bool:
    """Whether a column holds strings, whatever its dtype."""
    return bool(import_pandas().api.types.infer_dtype(column, skipna=True) in ("string", "mixed", "mixed-integer"))


def is_numeric(column: "Series") -> bool:
    """Whether a column holds numbers, and not True and False."""
    types = import_pandas().api.types
    return bool(types.is_numeric_dtype(column.dtype) and not types.is_bool_dtype(column.dtype))


def is_boolean(column: "Series") -> bool:
    """Whether a column holds True and False, some of them missing perhaps."""
    types = import_pandas().api.types
    return bool(types.is_bool_dtype(column.dtype) or types.infer_dtype(column, skipna=True) == "boolean")


def impute(frame: "DataFrame", fill: Mapping[str, Value] | None = None) -> tuple["DataFrame", dict[str, Value]]:
    """The table without missing cells, and the values they were filled with: medians, or the most frequent category.

    With `fill`, the values of an earlier call are used, so that new rows are filled like those of training.
    """
    values = {name: _fill_value(frame[name]) for name in frame.columns} if fill is None else dict(fill)
    filled = {name: _fill_missing(frame[name], value) for name, value in values.items() if name in frame.columns}
    return frame.assign(**filled), values


def _fill_value(column: "Series") -> Value:
    """The median of a numeric column, the most frequent value of another; the first in order among equals."""
    known = column.dropna()
    if not len(known):
        raise ValueError(f"column {column.name!r} has no value in any row, so nothing to fill it in with: leave it out")
    if is_numeric(column):
        return float(known.median())
    value = known.mode().iloc[0]
    value = value.item() if isinstance(value, np.generic) else value
    return value if isinstance(value, str | int | float | bool) else str(value)


def _fill_missing(column: "Series", value: Value) -> "Series":
    if not column.isna().any():
        return column
    if import_pandas().api.types.is_numeric_dtype(column.dtype) and isinstance(value, float):
        return column.astype("float64").fillna(value)
    if hasattr(column, "cat") and value in column.cat.categories:
        return column.fillna(value)
    return column.astype(object).where(column.notna(), value)
