"""What the cells of a table must hold: an error names the column, the row and its line, and says what to do."""

import csv
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from regard.data.tables import NUMERIC_FRACTION, PARQUET, import_pandas, open_text, table_suffix

if TYPE_CHECKING:
    from pandas import DataFrame, Series

_NUMBER = (
    r"[-+−]?\s*[$€£¥]?\s*[-+−]?((\d{1,3}([.,' \u00a0\u202f]\d{3})+|\d+)([.,]\d*)?|[.,]\d+)([eE][-+−]?\d+)?"
    r"\s*[$€£¥%]?"
)
"""A number as people write it: 1.234,5 and $1,234.5 and −12 %."""
DATE = r"(\d{4}([-/.])\d{1,2}\2\d{1,2}|\d{1,2}([-/.])\d{1,2}\3(\d{4}|\d{2}))([ T]\d.*)?"
_DATE_TYPES = ("date", "datetime", "datetime64", "period", "time", "timedelta", "timedelta64")
"""The names that pandas has for dates and times."""
CATEGORICAL_OR_DROP, DROP = "name the column in --categorical or --drop", "name the column in --drop"
"""What else to do with a column, in a table of rows and in a table of bags."""


def check_complete(frame: "DataFrame", advice: str = "fill it in, leave the row out, or use --impute") -> None:
    """Raise on missing cells, and name the first, row by row."""
    missing = frame.isna().to_numpy()
    if missing.any():
        row, column = np.argwhere(missing)[0]
        count = int(missing.sum())
        others = "" if count == 1 else f", the first of {count:,} missing cells"
        raise ValueError(
            f"a cell is missing in column {frame.columns[column]!r}, {row_location(frame, row)}{others}: {advice}"
            " (a cell is missing if it is empty, or holds a word for it such as NA)"
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
        if wrong.sum() <= (1 - NUMERIC_FRACTION) * known.sum():
            raise ValueError(f"column {name!r} holds numbers, but {cell}: {correct}, or {otherwise}")
        if cells.str.fullmatch(DATE).all():
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


def check_no_dates(frame: "DataFrame", otherwise: str) -> None:
    """Raise on dates and times: they are not numbers, and each would become a category."""
    for name in frame.columns:
        if is_date(frame[name]):
            raise ValueError(
                f"column {name!r} holds dates or times, {str(frame[name].iloc[0])!r} in {row_location(frame, 0)}: turn"
                f" them into numbers, such as days, or {otherwise}"
            )


def row_location(frame: "DataFrame", index: int) -> str:
    """A row by its number, and by its line if it was read from a text file."""
    row = frame.index[index]
    line = _line_number(frame.attrs.get("source"), row, frame.attrs.get("separator", ","))
    return f"row {row}" + ("" if line is None else f" (line {line} of {frame.attrs['source']})")


def _line_number(source: str | None, row: object, separator: str) -> int | None:
    """The line on which a row of a text file ends: there may be blank lines, and cells of several lines."""
    if source is None or table_suffix(Path(source)) in PARQUET or not isinstance(row, int | np.integer):
        return None
    with open_text(source) as lines:
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


def is_date(column: "Series") -> bool:
    """Whether a column holds dates, times or durations."""
    kind = import_pandas().api.types.infer_dtype(column, skipna=True)
    return column.dtype.kind in "mM" or kind in _DATE_TYPES


def is_numeric(column: "Series") -> bool:
    """Whether a column holds numbers, and not True and False."""
    types = import_pandas().api.types
    return bool(types.is_numeric_dtype(column.dtype) and not types.is_bool_dtype(column.dtype))


def is_boolean(column: "Series") -> bool:
    """Whether a column holds True and False, some of them missing perhaps."""
    types = import_pandas().api.types
    return bool(types.is_bool_dtype(column.dtype) or types.infer_dtype(column, skipna=True) == "boolean")
