"""What the cells of a table must hold: an error names the column, the row and its line, and says what to do."""

import csv
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from regard.data.tables import ALIKE, PARQUET, opened, pandas, suffix_of

if TYPE_CHECKING:
    from pandas import DataFrame, Series

NUMBER = (
    r"[-+−]?\s*[$€£¥]?\s*[-+−]?((\d{1,3}([.,' \u00a0\u202f]\d{3})+|\d+)([.,]\d*)?|[.,]\d+)([eE][-+−]?\d+)?"
    r"\s*[$€£¥%]?"
)
"""A number as people write it: 1.234,5 and $1,234.5 and −12 %."""
DATE = r"(\d{4}([-/.])\d{1,2}\2\d{1,2}|\d{1,2}([-/.])\d{1,2}\3(\d{4}|\d{2}))([ T]\d.*)?"
TIMES = ("date", "datetime", "datetime64", "period", "time", "timedelta", "timedelta64")
"""What pandas calls columns of dates and times."""
CATEGORY, DROP = "name the column in --categorical or --drop", "name the column in --drop"
"""What else to do with a column, of rows and of bags."""


def check_complete(frame: "DataFrame", advice: str = "fill it in, leave the row out, or use --impute") -> None:
    """No cell may be missing; the error names the first, by rows."""
    missing = frame.isna().to_numpy()
    if missing.any():
        row, place = np.argwhere(missing)[0]
        count = int(missing.sum())
        others = "" if count == 1 else f", the first of {count:,} missing cells"
        raise ValueError(
            f"a cell is missing in column {frame.columns[place]!r}, {where(frame, row)}{others}: {advice}"
            " (a cell is missing where it is empty, or holds a word for it such as NA)"
        )


def check_finite(frame: "DataFrame") -> None:
    """No number may be infinite."""
    for name in frame.select_dtypes("number").columns:
        endless = np.isinf(frame[name].to_numpy(dtype=float, na_value=np.nan))
        if endless.any():
            raise ValueError(f"column {name!r} is infinite in {where(frame, int(np.argmax(endless)))}")


def check_numbers(frame: "DataFrame", mend: str = "mend it, empty it", instead: str = CATEGORY) -> None:
    """A column that is text because of how its numbers are written is an error, not a category for each of them."""
    for name in frame.columns:
        if not is_text(frame[name]):
            continue
        known = frame[name].notna().to_numpy()
        slip = known & numbers_of(frame, name).isna().to_numpy()
        if not slip.any():
            continue
        row, cells = int(np.argmax(slip)), frame[name][slip].astype(str).str.strip()
        cell = f"{frame[name].iloc[row]!r} in {where(frame, row)}"
        if slip.sum() <= (1 - ALIKE) * known.sum():
            raise ValueError(f"column {name!r} holds numbers, but {cell}: {mend}, or {instead}")
        if cells.str.fullmatch(DATE).all():
            raise ValueError(f"column {name!r} holds dates, {cell}: turn them into numbers, such as days, or {instead}")
        if cells.str.fullmatch(NUMBER).all():
            raise ValueError(
                f"column {name!r} holds what looks like numbers, {cell}: write them as 1234.5, or {instead}"
            )


def numbers_of(frame: "DataFrame", name: str) -> "Series":
    """The numbers in a column of text, with the decimals of its file; NaN for what is none."""
    column = frame[name]
    if frame.attrs.get("decimal") == ",":
        text = column.astype(str)
        text = text.mask(text.str.contains(".", regex=False), "?")  # beside a comma, a point is of thousands
        column = column.where(column.isna(), text.str.replace(",", ".", regex=False))
    found: Series = pandas().to_numeric(column, errors="coerce")
    return found


def check_no_times(frame: "DataFrame", instead: str) -> None:
    """Dates and times are no numbers, and a category for each says nothing."""
    for name in frame.columns:
        if is_time(frame[name]):
            raise ValueError(
                f"column {name!r} holds dates or times, {str(frame[name].iloc[0])!r} in {where(frame, 0)}: turn them"
                f" into numbers, such as days, or {instead}"
            )


def is_time(column: "Series") -> bool:
    """Whether a column holds dates, times or spans of them."""
    return column.dtype.kind in "mM" or pandas().api.types.infer_dtype(column, skipna=True) in TIMES


def where(frame: "DataFrame", position: int) -> str:
    """A row by its number, and by its line where it was read from text."""
    row = frame.index[position]
    line = line_of(frame.attrs.get("source"), row, frame.attrs.get("separator", ","))
    return f"row {row}" + ("" if line is None else f" (line {line} of {frame.attrs['source']})")


def line_of(source: str | None, row: Any, separator: str) -> int | None:
    """The line on which a row of a text file ends: lines may be blank, and cells may have several."""
    if source is None or suffix_of(Path(source)) in PARQUET or not isinstance(row, int | np.integer):
        return None
    with opened(source) as lines:
        reader = csv.reader(lines, delimiter=separator)
        seen = -1  # the header is row 0
        for cells in reader:
            seen += bool(cells)
            if seen == row:
                return reader.line_num
    return None


def is_text(column: "Series") -> bool:
    """Whether a column holds strings, whatever pandas calls it."""
    return bool(pandas().api.types.infer_dtype(column, skipna=True) in ("string", "mixed", "mixed-integer"))
