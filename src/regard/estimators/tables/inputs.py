"""A table of numbers, categories, dates and missing cells as the members of the stack take it.

    numbers      in robust deviations from the median, outliers pulled in; and as normal scores by rank
    missing      the median, and an indicator of its own
    categories   one-hot, the most frequent ones
    dates        days, and beside them the day of the week, the month and the hour where those vary
    trees        get every column in bins, with a bin for missing cells

All of it is learned from the columns alone: no target has a part in it.
"""

from collections.abc import Collection
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from regard.data.columns import Columns, Floats, Scale, fit_scale, is_frame
from regard.data.tables import holds_dates, import_pandas, is_numeric, row_location
from regard.estimators.tables.members.base import Inputs

if TYPE_CHECKING:
    from pandas import Series

_BINS = 254
"""Most bins of a column, beside the one for missing cells."""
_ONE_HOT = 64
"""Most categories of a column that get a number of their own, the most frequent ones."""
_PULL = 3.0
"""Deviations from the median beyond which numbers are pulled in."""
_LARGEST, _MOST_STEPS = 1e150, 1e100
"""Limits of cells and of deviations, whose squares are finite."""


def expand_dates(
    table: object, dates: Collection[int] | None = None, categorical: Collection[str | int] = ()
) -> tuple[object, dict[int, int]]:
    """The table with dates as days since 1970, and their parts as new columns at its end.

    Dates are the columns of these indices; by default those that hold dates, or text such as 2024-05-31, and are not
    named as categories. Also returns which column each new one belongs to: its index → the index of the date.
    """
    if not is_frame(table):
        return table, {}
    frame = table.copy()
    owner: dict[int, int] = {}
    for index in range(table.shape[1]) if dates is None else sorted(dates):
        column = table.iloc[:, index]
        named = column.name in categorical or index in categorical
        if dates is None and (named or not holds_dates(column)):
            continue
        column = _as_dates(column)
        frame.isetitem(index, _days(column))
        for part in ("day_of_week", "month", "hour"):
            owner[frame.shape[1]] = index
            frame[f"{frame.columns[index]} {part}"] = getattr(column.dt, part).astype(float)
    return frame, owner


def _as_dates(column: "Series") -> "Series":
    """A column as dates in UTC, without a time zone; a cell that is none raises, with its row."""
    pd = import_pandas()
    if is_numeric(column):  # without dates: a number is none
        dates = pd.Series(pd.NaT, index=column.index, dtype="datetime64[s]")
    else:
        dates = pd.to_datetime(column, errors="coerce", utc=True, format="ISO8601").dt.tz_localize(None)
    wrong = (dates.isna() & column.notna()).to_numpy()
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ValueError(
            f"column {str(column.name)!r} must hold dates such as 2024-05-31, got {str(column.iloc[row])!r} in"
            f" {row_location(column.to_frame(), row)}"
        )
    return dates


def _days(column: "Series") -> "Series":
    """Dates as days since 1970, NaN for a missing one."""
    pd = import_pandas()
    # In seconds: nanoseconds end in the year 2262.
    return (column - pd.Timestamp(0).as_unit("s")) / pd.Timedelta(days=1)


@dataclass(frozen=True)
class Encoder:
    """What was learned of the columns. Cells [n, d] are numbers and codes of categories; NaN is missing."""

    categorical: NDArray[np.bool_]  # [d]
    median: Floats  # [numbers]
    deviation: Floats  # [numbers]  robust
    quantiles: Floats  # [q, numbers]  for the normal scores
    edge: Floats  # []
    gaps: NDArray[np.bool_]  # [d]  which columns have missing cells
    edges: Floats  # [d, bins]  upper ends of bins; inf after the last one
    level_column: NDArray[np.int64]  # [one-hot]  which column of cells
    level: Floats  # [one-hot]  which code

    @classmethod
    def fit(cls, cells: Floats, columns: Columns) -> Self:
        """Learn from cells, without their targets."""
        cells = np.clip(cells, -_LARGEST, _LARGEST)
        categorical = np.zeros(cells.shape[1], bool)
        categorical[columns.codes] = True
        gaps = np.asarray(np.isnan(cells).any(axis=0))
        number = cells[:, ~categorical]
        median = np.array([np.median(_known(column)) for column in number.T])
        filled = np.where(np.isnan(number), median, number)
        scale = fit_scale(filled, None, "rank")
        quantiles = np.zeros((2, 0)) if scale.quantiles is None else scale.quantiles
        levels = [(index, level) for index in np.flatnonzero(categorical) for level in _frequent(cells[:, index])]
        return cls(
            categorical,
            median,
            np.array([_robust_deviation(column) for column in filled.T]),
            quantiles,
            np.array(scale.edge),
            gaps,
            np.array([_bin_edges(column) for column in cells.T]).reshape(cells.shape[1], _BINS - 1),
            np.array([index for index, _ in levels], dtype=np.int64),
            np.array([level for _, level in levels], dtype=np.float64),
        )

    def __call__(self, cells: Floats) -> Inputs:
        cells = np.clip(cells, -_LARGEST, _LARGEST)
        number = cells[:, ~self.categorical]
        number = np.where(np.isnan(number), self.median, number)
        with np.errstate(over="ignore"):
            steps = np.clip((number - self.median) / self.deviation, -_MOST_STEPS, _MOST_STEPS)
        steps = steps / np.sqrt(1 + np.square(steps / _PULL))
        width = len(self.median)
        scale = Scale(np.zeros(width), np.ones(width), self.quantiles if width else None, self.edge.item())
        other = [np.isnan(cells[:, self.gaps]), cells[:, self.level_column] == self.level]
        rest = np.hstack(other).astype(np.float32)  # [n, gaps + one-hot]
        ranks = scale(number) if width else number
        bins = np.zeros(cells.shape, np.uint8)
        for index, (column, edges) in enumerate(zip(cells.T, self.edges, strict=True)):
            known = ~np.isnan(column)
            bins[known, index] = 1 + np.searchsorted(edges, column[known], side="left")
        return Inputs(
            np.hstack([steps.astype(np.float32), rest]),
            np.hstack([ranks.astype(np.float32), rest]),
            bins,
            width,
            self.categorical,
        )

    def distances(self, cells: Floats, others: Floats) -> Floats:
        """How far rows are from others, by column, [m, d]: in normal scores; 1 for another category."""
        distance = np.where(np.isnan(cells) | np.isnan(others), 1.0, cells != others).astype(np.float64)
        both_missing = np.isnan(cells) & np.isnan(others)
        a, b = (self(x).ranked[:, : len(self.median)] for x in (cells, others))
        number = np.abs(a - b).astype(np.float64)
        known = ~(np.isnan(cells) | np.isnan(others))[:, ~self.categorical]
        distance[:, ~self.categorical] = np.where(known, number, 1.0)
        return np.where(both_missing, 0.0, distance)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """What was learned, by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def _known(column: Floats) -> Floats:
    """The cells that are not missing; one 0 if all are."""
    known = column[~np.isnan(column)]
    return known if len(known) else np.zeros(1)


def _robust_deviation(column: Floats) -> float:
    """The standard deviation by quartiles, or the usual one if half of the cells are equal; 1 for a constant."""
    low, high = np.quantile(column, [0.25, 0.75])
    return float((high - low) / 1.349 or column.std() or 1.0)


def _bin_edges(column: Floats) -> Floats:
    """Upper ends of the bins: between neighbouring values, or of many values at their quantiles."""
    values = np.unique(_known(column))
    if len(values) > _BINS:
        values = np.unique(np.quantile(_known(column), np.linspace(0, 1, _BINS)))
    middle = values[:-1] + (values[1:] - values[:-1]) / 2
    return np.append(middle, np.full(_BINS - 1 - len(middle), np.inf))


def _frequent(codes: Floats) -> Floats:
    """The codes that get a column: of two the first, of many the most frequent."""
    values, counts = np.unique(_known(codes), return_counts=True)
    values = values[values >= 0]
    counts = counts[-len(values) :] if len(values) else counts[:0]
    if len(values) == 2:
        return values[:1]
    return np.sort(values[np.argsort(-counts, kind="stable")[:_ONE_HOT]])
