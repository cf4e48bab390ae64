"""A table's columns as numbers: which are categories, and in what units the others are measured.

Numbers stay as they are, or are scaled to standard deviations, or to normal scores by rank. Categories become
codes; what they count for is the kernel's affair (`regard.kernels.Mixed`).
"""

import operator
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.special import ndtri

from regard.data.table_checks import is_time

SCALES = ("rank", "standard")
MANY = 20
"""Categories from which there may be too many."""
QUANTILES = 1000
"""Points at which the ranks of a column are kept."""


@dataclass(frozen=True)
class Category:
    """A categorical column: its values in the order of their codes."""

    values: tuple[Any, ...]
    ordered: bool


@dataclass(frozen=True)
class Columns:
    """What was seen of the columns in `fit`."""

    names: tuple[str, ...]  # for messages: the frame's, or "0", "1", …
    categories: dict[int, Category] = field(default_factory=dict)  # by the column's place

    @property
    def numbers(self) -> list[int]:
        return [place for place in range(len(self.names)) if place not in self.categories]

    @property
    def codes(self) -> list[int]:
        return sorted(self.categories)

    def encode(self, X: Any) -> Any:  # noqa: N803
        """The table with categories as codes; a frame stays one, so that its names can be checked."""
        check_missing(X)
        frame = is_frame(X)
        if frame:
            self.check_numbers(X)
        if not self.categories:
            return X
        if not frame and np.asarray(X).ndim != 2:
            return X  # scikit-learn's own message is better
        encoded: Any = X.copy() if frame else np.array(X, dtype=object)
        for place, category in self.categories.items():
            if place >= encoded.shape[1]:
                return encoded
            column = X.iloc[:, place] if frame else encoded[:, place]
            codes = coded(column, category, self.names[place])
            warn_of_strangers(column, codes, self.names[place])
            if frame:
                encoded.isetitem(place, codes)
            else:
                encoded[:, place] = codes
        return encoded

    def check_numbers(self, X: Any) -> None:  # noqa: N803
        """A column of text that is no category is an error that names it."""
        for place in range(min(len(self.names), X.shape[1])):
            column = X.iloc[:, place]
            if place not in self.categories and is_category(column) and not is_truth(column):
                raise ValueError(
                    f"column {self.names[place]!r} must hold numbers, got {column.iloc[0]!r}:"
                    " name it in categorical=[…] if it is a category"
                )


def as_frame(X: Any) -> Any:  # noqa: N803
    """A table of another library, Arrow's or Polars's, as pandas has it; anything else as it is."""
    return X.to_pandas() if hasattr(X, "to_pandas") and not hasattr(X, "iloc") else X


def seen_in(X: Any, categorical: Any, ordered: Sequence[str | int] | None) -> Columns:  # noqa: N803
    """The columns of a table, and which of them are categories: those named, or those of such a dtype."""
    frame = is_frame(X)
    shape = X.shape if frame else np.asarray(X).shape
    width = shape[1] if len(shape) == 2 else 0  # anything else scikit-learn refuses
    names = tuple(str(name) for name in X.columns) if frame else tuple(str(place) for place in range(width))
    places = {} if not frame else dict(zip(X.columns, range(width), strict=True))
    categories: dict[int, Category] = {}
    if categorical == "dtype" and frame:
        categories = {place: by_dtype(X.iloc[:, place]) for place in range(width) if is_category(X.iloc[:, place])}
        warn_of_many(X, categories)
    elif not isinstance(categorical, str) and categorical is not None:
        for name in categorical:
            place = place_of(name, places, width)
            categories[place] = by_value(X.iloc[:, place] if frame else np.asarray(X, dtype=object)[:, place], False)
    elif isinstance(categorical, str) and categorical != "dtype":
        raise ValueError(f"categorical must be 'dtype', or a list of column names or places, got {categorical!r}")
    if isinstance(ordered, str):
        raise ValueError(f"ordered must be a list of column names or places, got {ordered!r}")
    for name in () if ordered is None else ordered:
        place = place_of(name, places, width)
        categories[place] = by_value(X.iloc[:, place] if frame else np.asarray(X, dtype=object)[:, place], True)
    return Columns(names, categories)


def warn_of_many(X: Any, categories: dict[int, Category]) -> None:  # noqa: N803
    """A category that stands in one row says nothing of others: names of rows, or numbers that were read as text.

    Of columns that somebody made categories nothing is said.
    """
    for place, category in categories.items():
        if len(category.values) > max(MANY, len(X) / 2) and not hasattr(X.iloc[:, place], "cat"):
            warnings.warn(
                f"column {str(X.columns[place])!r} has {len(category.values):,} categories in {len(X):,} rows: leave it"
                " out if it names the rows, or turn it into numbers if it holds any",
                stacklevel=4,
            )


def is_frame(X: Any) -> bool:  # noqa: N803
    """Whether a table is one of pandas."""
    return hasattr(X, "columns") and hasattr(X, "iloc")


def place_of(name: str | int, places: dict[Any, int], width: int) -> int:
    """Where a column stands that was named."""
    if name in places:
        return places[name]
    if hasattr(name, "__index__") and not isinstance(name, bool) and 0 <= operator.index(name) < width:
        return operator.index(name)
    known = ", ".join(map(str, places)) if places else f"0 to {width - 1}"
    raise ValueError(f"there is no column {name!r} to be categorical; columns are {known}")


def is_category(column: Any) -> bool:
    """Whether a pandas column holds no numbers."""
    from pandas.api.types import is_numeric_dtype

    return is_truth(column) or not is_numeric_dtype(column.dtype)


def is_truth(column: Any) -> bool:
    """Whether a pandas column holds True and False."""
    from pandas.api.types import is_bool_dtype

    return bool(is_bool_dtype(column.dtype))


def by_dtype(column: Any) -> Category:
    """The categories of a column, in the order that its dtype gives them."""
    if is_time(column):
        example = f", {str(column.iloc[0])!r}" if len(column) else ""
        raise ValueError(
            f"column {column.name!r} holds dates or times{example}: turn it into numbers, such as days,"
            " or name it in categorical=[…]"
        )
    if hasattr(column, "cat"):
        return Category(tuple(plain(value) for value in column.cat.categories), bool(column.cat.ordered))
    return by_value(column, False)


def by_value(column: Any, ordered: bool) -> Category:
    """The categories of a column in the order of their dtype, or sorted."""
    if hasattr(column, "cat"):
        return Category(tuple(plain(value) for value in column.cat.categories), ordered)
    found = {value for value in map(plain, np.asarray(column, dtype=object)) if not is_missing(value)}
    try:
        return Category(tuple(sorted(found)), ordered)
    except TypeError:
        return Category(tuple(sorted(found, key=str)), ordered)


def plain(value: Any) -> Any:
    """A value as Python's own type, which JSON can hold; 1 and 1.0 and True are one category."""
    value = value.item() if isinstance(value, np.generic) else value
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)


def is_missing(value: Any) -> bool:
    """Whether a cell holds nothing."""
    return value is None or value != value


def coded(column: Any, category: Category, name: str) -> Any:
    """Codes of the values; one that was never seen differs from all others, if there is no order to place it in."""
    places = {value: code for code, value in enumerate(category.values)}
    cells = [plain(value) for value in np.asarray(column, dtype=object)]
    missing = next((row for row, value in enumerate(cells) if is_missing(value)), None)
    if missing is not None:
        raise ValueError(f"Input X contains NaN: a missing value in the categorical column {name!r}, row {missing}")
    codes = np.array([places.get(value, -1) for value in cells], dtype=float)
    if category.ordered and (codes < 0).any():
        stranger = np.asarray(column, dtype=object)[int(np.argmax(codes < 0))]
        raise ValueError(f"column {name!r} is ordered, and {stranger!r} was not in the training data: where is it?")
    return codes


def warn_of_strangers(column: Any, codes: Any, name: str) -> None:
    """Rows with a category that was never seen are predicted all the same, by their other columns."""
    strange = codes < 0
    if strange.any():
        warnings.warn(
            f"column {name!r}: {int(strange.sum()):,} of {len(codes):,} rows hold a category that was not in the"
            f" training data, such as {np.asarray(column, dtype=object)[int(np.argmax(strange))]!r}: it is unlike all"
            " that were",
            stacklevel=4,
        )


def check_missing(X: Any) -> None:  # noqa: N803
    """A frame's first missing cell, by name."""
    if not (hasattr(X, "columns") and hasattr(X, "isna")):
        return
    missing = X.isna().to_numpy()
    if missing.any():
        row, place = np.argwhere(missing)[0]
        raise ValueError(
            f"Input X contains NaN: {int(missing.sum())} missing values, the first in column"
            f" {str(X.columns[place])!r}, row {X.index[row]!r}; fill them in, or leave those rows out"
        )


@dataclass(frozen=True)
class Scale:
    """Units of the numeric columns: x → (x - centre) / spread, or to normal scores by rank."""

    centre: Any  # [d]
    spread: Any  # [d]
    quantiles: Any = None  # [QUANTILES, d] where columns are turned to ranks
    edge: float = 0.0  # the rank of the least, and 1 less that of the greatest: (½)/n of n rows

    def __call__(self, x: Any) -> Any:
        if self.quantiles is None:
            return (x - self.centre) / self.spread
        return np.stack([self.score(x[:, place], place) for place in range(x.shape[1])], axis=1) if x.size else x * 1.0

    def score(self, column: Any, place: int) -> Any:
        """Normal scores; equal values get the middle of their ranks."""
        known = self.quantiles[:, place]
        steps = np.linspace(0, 1, len(known))
        rank = 0.5 * (np.interp(column, known, steps) - np.interp(-column, -known[::-1], -steps[::-1]))
        return ndtri(self.edge + (1 - 2 * self.edge) * rank)

    def slope(self, x: Any) -> Any:
        """The derivative of each scaled column by what it was made of, [m, d]."""
        if self.quantiles is None:
            return np.broadcast_to(1 / self.spread, x.shape).copy()
        slopes = np.zeros(x.shape)
        for place in range(x.shape[1]):
            known = self.quantiles[:, place]
            after = np.clip(np.searchsorted(known, x[:, place], side="right"), 1, len(known) - 1)
            width = known[after] - known[after - 1]
            inside = (width > 0) & (x[:, place] >= known[0]) & (x[:, place] <= known[-1])
            score = self.score(x[:, place], place)
            rise = np.sqrt(2 * np.pi) * np.exp(0.5 * score**2) * (1 - 2 * self.edge) / (len(known) - 1)
            slopes[:, place] = np.where(inside, rise / np.where(width > 0, width, 1.0), 0.0)
        return slopes


def scale_of(x: Any, weight: Any, how: str | None) -> Scale:
    """The units of columns [n, d], by the name of a scale."""
    if how not in (None, *SCALES):
        raise ValueError(f"scale must be one of 'rank', 'standard' or None, got {how!r}")
    still = np.zeros(x.shape[1]), np.ones(x.shape[1])
    if how is None or not x.shape[1]:
        return Scale(*still)
    if how == "standard":
        return Scale(np.average(x, axis=0, weights=weight), spread_of(x, weight))
    count = counted(weight, len(x))
    ranks = np.linspace(0, 1, int(min(QUANTILES, max(2, round(count)))))
    edge = 0.5 / max(count, 1.0)
    if weight is None:
        return Scale(*still, np.quantile(x, ranks, axis=0), edge)
    weight = weight * (count / weight.sum())
    return Scale(*still, np.stack([weighted_quantile(column, weight, ranks) for column in x.T], axis=1), edge)


def counted(weight: Any, rows: int) -> float:
    """How many rows there are. Whole weights count them; others only say how much each is worth (Kish 1965)."""
    if weight is None:
        return float(rows)
    if (weight == np.rint(weight)).all():
        return float(weight.sum())
    return float(weight.sum() ** 2 / np.square(weight).sum())


def weighted_quantile(column: Any, weight: Any, ranks: Any) -> Any:
    """Quantiles of a column whose rows count more or less."""
    order = np.argsort(column, kind="stable")
    first = np.cumsum(weight[order]) - weight[order]
    last = first + np.maximum(weight[order] - 1, 0)  # a weight of 3 is three rows, at places 0, 1 and 2
    steps = np.stack([first, last], axis=1).ravel()
    return np.interp(ranks * steps[-1], steps, np.repeat(column[order], 2))


def spread_of(x: Any, weight: Any) -> Any:
    """Standard deviations of the columns; 1 for one that is constant, which tells nothing in any unit."""
    if not x.shape[1]:
        return np.ones(0)
    centre = np.average(x, axis=0, weights=weight)
    spread = np.sqrt(np.average(np.square(x - centre), axis=0, weights=weight))
    return np.where((spread > 0) & (np.ptp(x, axis=0) > 0), spread, 1.0)
