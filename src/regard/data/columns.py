"""Columns of a table as numbers: which are categorical, and the units of the numeric ones.

Numeric columns stay as they are, or are scaled to standard deviations, or to normal scores by rank. Categories become
codes; the kernel decides what a difference of codes means (`regard.kernels.Mixed`).
"""

import operator
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from regard.data.table_checks import is_date
from regard.data.tables import Value

if TYPE_CHECKING:
    from pandas import DataFrame, Series

Floats = NDArray[np.float64]
_Reals = NDArray[np.floating[Any]]

_MANY_CATEGORIES = 20
"""Number of categories up to which there is never a warning of too many."""
_QUANTILES = 1000
"""Number of quantiles that a scale by rank stores for each column."""


@dataclass(frozen=True)
class Category:
    """A categorical column: its values in the order of their codes."""

    values: tuple[Value | None, ...]
    ordered: bool


@dataclass(frozen=True)
class Columns:
    """The columns of the training table."""

    names: tuple[str, ...]  # for messages: the frame's, or "0", "1", …
    categories: dict[int, Category] = field(default_factory=dict)  # by the index of the column

    @property
    def numbers(self) -> list[int]:
        """Indices of the numeric columns."""
        return [index for index in range(len(self.names)) if index not in self.categories]

    @property
    def codes(self) -> list[int]:
        """Indices of the categorical columns."""
        return sorted(self.categories)

    def encode(self, X: object) -> object:  # noqa: N803
        """The table with categories as codes; a frame stays one, so that its names can be checked.

        What is not a table is returned as it is: scikit-learn's own error is better.
        """
        if is_frame(X):
            _check_missing(X)
            self.check_numeric(X)
            encoded = X.copy() if self.categories else X
            for index, codes in self.encoded_columns([X.iloc[:, index] for index in range(X.shape[1])]):
                encoded.isetitem(index, codes)
            return encoded
        if not self.categories or np.asarray(X).ndim != 2:
            return X
        cells: NDArray[np.object_] = np.array(X, dtype=object)
        for index, codes in self.encoded_columns(list(cells.T)):
            cells[:, index] = codes
        return cells

    def encoded_columns(self, columns: "Sequence[Series | NDArray[np.object_]]") -> Iterator[tuple[int, Floats]]:
        """Index and codes of each categorical column."""
        for index, category in self.categories.items():
            if index >= len(columns):
                return
            codes = _encode_column(columns[index], category, self.names[index])
            _warn_unseen(columns[index], codes, self.names[index])
            yield index, codes

    def check_numeric(self, frame: "DataFrame") -> None:
        """Raise on a column of text that is not categorical."""
        from pandas.api.types import is_numeric_dtype

        for index in range(min(len(self.names), frame.shape[1])):
            column = frame.iloc[:, index]
            if index not in self.categories and not is_numeric_dtype(column.dtype):
                raise ValueError(
                    f"column {self.names[index]!r} must hold numbers, got {column.iloc[0]!r}:"
                    " name it in categorical=[…] if it is a category"
                )


def as_frame(X: object) -> object:  # noqa: N803
    """A table of another library, such as Arrow or Polars, as a pandas frame; anything else as it is."""
    return X.to_pandas() if hasattr(X, "to_pandas") and not hasattr(X, "iloc") else X


def is_frame(X: object) -> "TypeGuard[DataFrame]":  # noqa: N803
    """Whether a table is a pandas frame."""
    return hasattr(X, "columns") and hasattr(X, "iloc")


def find_columns(X: object, categorical: object, ordered: Sequence[str | int] | None) -> Columns:  # noqa: N803
    """The columns of a table. Categorical are those named, or ("dtype") those whose dtype is not numeric."""
    frame = X if is_frame(X) else None
    shape = np.asarray(X).shape if frame is None else frame.shape
    width = shape[1] if len(shape) == 2 else 0  # scikit-learn raises on anything else
    names = tuple(map(str, range(width) if frame is None else frame.columns))
    indices = {} if frame is None else dict(zip(frame.columns, range(width), strict=True))
    by_dtype = isinstance(categorical, str) and categorical == "dtype"
    if categorical is not None and not by_dtype and not _is_list(categorical):
        raise ValueError(f"categorical must be 'dtype', or a list of column names or indices, got {categorical!r}")
    if ordered is not None and not _is_list(ordered):
        raise ValueError(f"ordered must be a list of column names or indices, got {ordered!r}")

    def read_column(name: str | int, ordered: bool) -> tuple[int, Category]:
        index = _column_index(name, indices, width)
        column = np.asarray(X, dtype=object)[:, index] if frame is None else frame.iloc[:, index]
        return index, _category_of_values(column, ordered)

    categories: dict[int, Category] = {}
    if by_dtype and frame is not None:
        columns = {index: frame.iloc[:, index] for index in range(width)}
        categories = {index: _category_of_dtype(column) for index, column in columns.items() if _is_category(column)}
        _warn_many(frame, categories)
    elif _is_list(categorical):
        categories = dict(read_column(name, False) for name in categorical)
    categories |= dict(read_column(name, True) for name in (() if ordered is None else ordered))
    return Columns(names, categories)


def _is_list(value: object) -> TypeGuard[Sequence[str | int]]:
    """Whether a value can be iterated over, and is no string."""
    return hasattr(value, "__iter__") and not isinstance(value, str)


def _column_index(name: str | int, indices: Mapping[str | int, int], width: int) -> int:
    """The index of a column, given its name or its index."""
    if name in indices:
        return indices[name]
    if hasattr(name, "__index__") and not isinstance(name, bool) and 0 <= operator.index(name) < width:
        return operator.index(name)
    known = ", ".join(map(str, indices)) if indices else f"0 to {width - 1}"
    raise ValueError(f"there is no column {name!r} to be categorical; columns are {known}")


def _is_category(column: "Series") -> bool:
    """Whether the dtype of a pandas column is not numeric."""
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    return bool(is_bool_dtype(column.dtype) or not is_numeric_dtype(column.dtype))


def _category_of_dtype(column: "Series") -> Category:
    """The categories of a column, in the order of its dtype."""
    if is_date(column):
        example = f", {str(column.iloc[0])!r}" if len(column) else ""
        raise ValueError(
            f"column {column.name!r} holds dates or times{example}: turn it into numbers, such as days,"
            " or name it in categorical=[…]"
        )
    return _category_of_values(column, hasattr(column, "cat") and bool(column.cat.ordered))


def _category_of_values(column: "Series | NDArray[np.object_]", ordered: bool) -> Category:
    """The categories of a column, in the order of its dtype, or sorted."""
    if hasattr(column, "cat"):
        return Category(tuple(_as_value(value) for value in column.cat.categories), ordered)
    values = {value for value in map(_as_value, np.asarray(column, dtype=object)) if not is_missing(value)}
    try:
        return Category(tuple(sorted(values)), ordered)  # type: ignore[type-var]
    except TypeError:  # numbers and text
        return Category(tuple(sorted(values, key=str)), ordered)


def _as_value(value: object) -> Value | None:
    """A cell as a plain Python value; 1 and 1.0 and True are one category."""
    value = value.item() if isinstance(value, np.generic) else value
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)


def is_missing(value: Value | None) -> bool:
    """Whether a cell is None or NaN."""
    return value is None or value != value


def _encode_column(column: "Series | NDArray[np.object_]", category: Category, name: str) -> Floats:
    """Codes of the values. An unseen one gets -1, which differs from all others; it raises if they have an order."""
    known = {value: code for code, value in enumerate(category.values)}
    cells = [_as_value(value) for value in np.asarray(column, dtype=object)]
    missing = next((row for row, value in enumerate(cells) if is_missing(value)), None)
    if missing is not None:
        raise ValueError(f"Input X contains NaN: a missing value in the categorical column {name!r}, row {missing}")
    codes = np.array([known.get(value, -1) for value in cells], dtype=float)
    if category.ordered and (codes < 0).any():
        unseen = np.asarray(column, dtype=object)[int(np.argmax(codes < 0))]
        raise ValueError(f"column {name!r} is ordered, and {unseen!r} is not in the training data: its rank is unknown")
    return codes


def _warn_many(frame: "DataFrame", categories: Mapping[int, Category]) -> None:
    """Warn of text columns with a category for almost each row: row names, or numbers that were read as text."""
    for index, category in categories.items():
        if len(category.values) > max(_MANY_CATEGORIES, len(frame) / 2) and not hasattr(frame.iloc[:, index], "cat"):
            warnings.warn(
                f"column {str(frame.columns[index])!r} has {len(category.values):,} categories in {len(frame):,} rows:"
                " leave it out if it names the rows, or turn it into numbers if it holds any",
                stacklevel=4,
            )


def _warn_unseen(column: "Series | NDArray[np.object_]", codes: Floats, name: str) -> None:
    """Warn of unseen categories: such rows are predicted by their other columns."""
    unseen = codes < 0
    if unseen.any():
        example = np.asarray(column, dtype=object)[int(np.argmax(unseen))]
        warnings.warn(
            f"column {name!r}: {int(unseen.sum()):,} of {len(codes):,} rows hold a category that was not in the"
            f" training data, such as {example!r}: it is treated as different from all others",
            stacklevel=5,
        )


def _check_missing(frame: "DataFrame") -> None:
    """Raise on missing cells, and name the first."""
    missing = frame.isna().to_numpy()
    if missing.any():
        row, column = np.argwhere(missing)[0]
        raise ValueError(
            f"Input X contains NaN: {int(missing.sum())} missing values, the first in column"
            f" {str(frame.columns[column])!r}, row {frame.index[row]!r}; fill them in, or leave those rows out"
        )


@dataclass(frozen=True)
class Scale:
    """Units of the numeric columns: x → (x - centre) / spread, or to normal scores by rank."""

    centre: Floats  # [d]
    spread: Floats  # [d]
    quantiles: Floats | None = None  # [q, d], if columns are turned to ranks
    edge: float = 0.0  # rank of the least value, and 1 minus that of the greatest: (½)/n for n rows

    def __call__(self, x: _Reals) -> Floats:
        if self.quantiles is None:
            scaled: Floats = (x - self.centre) / self.spread
            return scaled
        scores = [self.normal_score(column, known) for column, known in zip(x.T, self.quantiles.T, strict=True)]
        return np.stack(scores, axis=1) if x.size else np.zeros(x.shape)  # [m, d]

    def normal_score(self, column: _Reals, known: Floats) -> Floats:
        """Normal scores [m] of one column, given its quantiles; equal values get the mean of their ranks."""
        steps = np.linspace(0, 1, len(known))
        rank = 0.5 * (np.interp(column, known, steps) - np.interp(-column, -known[::-1], -steps[::-1]))
        score: Floats = ndtri(self.edge + (1 - 2 * self.edge) * rank)
        return score

    def derivative(self, x: Floats) -> Floats:
        """The derivative of each scaled column by the column itself, [m, d]."""
        if self.quantiles is None:
            return np.broadcast_to(1 / self.spread, x.shape).copy()
        derivative = np.zeros(x.shape)
        for index, (column, known) in enumerate(zip(x.T, self.quantiles.T, strict=True)):
            after = np.clip(np.searchsorted(known, column, side="right"), 1, len(known) - 1)
            width = known[after] - known[after - 1]
            inside = (width > 0) & (column >= known[0]) & (column <= known[-1])
            score = self.normal_score(column, known)
            rise = np.sqrt(2 * np.pi) * np.exp(0.5 * score**2) * (1 - 2 * self.edge) / (len(known) - 1)
            derivative[:, index] = np.where(inside, rise / np.where(width > 0, width, 1.0), 0.0)
        return derivative


def fit_scale(x: _Reals, weight: Floats | None, name: str | None) -> Scale:
    """The units of columns [n, d], by the name of a scale: "standard", "rank" or None."""
    unchanged = np.zeros(x.shape[1]), np.ones(x.shape[1])
    if name is None or not x.shape[1]:
        return Scale(*unchanged)
    if name == "standard":
        return Scale(np.average(x, axis=0, weights=weight), standard_deviation(x, weight))
    count = effective_count(weight, len(x))
    ranks = np.linspace(0, 1, int(min(_QUANTILES, max(2, round(count)))))
    edge = 0.5 / max(count, 1.0)
    if weight is None:
        return Scale(*unchanged, np.quantile(x, ranks, axis=0), edge)
    weight = weight * (count / weight.sum())
    return Scale(*unchanged, np.stack([_weighted_quantile(column, weight, ranks) for column in x.T], axis=1), edge)


def effective_count(weight: Floats | None, rows: int) -> float:
    """The effective number of rows. Whole weights are numbers of rows; others are relative (Kish 1965)."""
    if weight is None:
        return float(rows)
    if (weight == np.rint(weight)).all():
        return float(weight.sum())
    return float(weight.sum() ** 2 / np.square(weight).sum())


def _weighted_quantile(column: _Reals, weight: Floats, ranks: Floats) -> Floats:
    """Quantiles of a column whose rows have weights."""
    order = np.argsort(column, kind="stable")
    first = np.cumsum(weight[order]) - weight[order]
    last = first + np.maximum(weight[order] - 1, 0)  # a weight of 3 is three rows, at positions 0, 1 and 2
    steps = np.stack([first, last], axis=1).ravel()
    quantiles: Floats = np.interp(ranks * steps[-1], steps, np.repeat(column[order], 2))
    return quantiles


def standard_deviation(x: _Reals, weight: Floats | None) -> Floats:
    """Standard deviations of the columns [n, d]; 1 for a constant one, which no unit changes."""
    if not x.shape[1]:
        return np.ones(0)
    centre = np.average(x, axis=0, weights=weight)
    deviation = np.sqrt(np.average(np.square(x - centre), axis=0, weights=weight))
    units: Floats = np.where((deviation > 0) & (np.ptp(x, axis=0) > 0), deviation, 1.0)
    return units
