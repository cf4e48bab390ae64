"""The columns of a table: their roles (target, weight, features), their kinds, and their units.

Text, booleans and pandas' categories are categorical; numbers are numeric, unless they are named as categories.
Categories become codes; the kernel decides what a difference of codes means (`regard.kernels.Mixed`). Numeric columns
stay as they are, or are scaled to standard deviations, or to normal scores by rank. The `Schema` of a saved model says
how new tables are read, so that they are treated as the first one was.
"""

import operator
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeGuard

import numpy as np
from numpy.typing import NDArray

from regard.checks import quote_names
from regard.data.tables import (
    CATEGORICAL_OR_DROP,
    Value,
    check_complete,
    check_finite,
    check_misread_numbers,
    check_no_dates,
    convert_objects,
    holds_dates,
    import_pandas,
    impute,
    is_boolean,
    is_numeric,
    is_text,
    parse_numbers,
    row_location,
    select_columns,
)

if TYPE_CHECKING:
    from pandas import DataFrame, Series

Floats = NDArray[np.float64]
_Reals = NDArray[np.floating[Any]]
_Cells = NDArray[np.object_]

_MANY_CATEGORIES = 20
"""Number of categories up to which there is never a warning of too many."""
_QUANTILES = 1000
"""Number of quantiles that a scale by rank stores for each column."""


def target_column(frame: "DataFrame", name: str, kind: str = "auto") -> "Series":
    """The column to predict: floats for regression, anything else for classes.

    kind    "auto" keeps numbers as numbers, "classification" takes whole ones as classes, "regression" needs numbers
    """
    alone = select_columns(frame, [name])
    target = alone[name]
    check_complete(alone, "a target cannot be imputed: leave the row out")
    check_no_dates(alone, "predict another column")
    if kind != "classification":
        check_misread_numbers(alone, "correct it", "use --kind classification")
    check_finite(alone)
    if is_numeric(target) and kind != "classification":
        return target.astype(float)
    if is_numeric(target):
        fractions = target[target != target.round()]
        if len(fractions):
            raise ValueError(f"classes must be whole numbers, or text: the target {name!r} holds {fractions.iloc[0]}")
        return target.astype(int)
    if kind == "regression":
        raise ValueError(f"the target {name!r} must hold numbers for --kind regression, got {target.iloc[0]!r}")
    return target.astype(bool if is_boolean(target) else object)


def target_hints(target: "Series", kind: str) -> list[str]:
    """A hint if a numeric target holds only two numbers, which are classes perhaps."""
    if kind != "auto" or target.dtype != float or target.nunique() != 2:
        return []
    two = " and ".join(f"{number:g}" for number in sorted(target.unique()))
    return [f"{target.name} holds the numbers {two}: for classes, use --kind classification"]


def weight_column(frame: "DataFrame", name: str) -> "Series":
    """The weight of each row."""
    alone = select_columns(frame, [name])
    weight = alone[name]
    check_complete(alone, "a weight cannot be imputed: fill it in, or leave the row out")
    if not is_numeric(weight):
        raise ValueError(f"the weight {name!r} must hold numbers, got {weight.iloc[0]!r}")
    check_finite(alone)
    if (weight < 0).any():
        row = int((weight < 0).to_numpy().argmax())
        where = row_location(frame, row)
        raise ValueError(f"the weight {name!r} must not be negative, got {weight.iloc[row]:g} in {where}")
    return weight


def split_names(text: str) -> list[str]:
    """Names of columns as typed: a,b."""
    return [name.strip() for name in text.split(",") if name.strip()]


def split_orders(text: str) -> dict[str, list[str] | None]:
    """Ordered columns as typed, grade,size=S:M:L; None if the order is not given."""
    parts = [name.partition("=") for name in split_names(text)]
    return {name: [value.strip() for value in order.split(":")] if mark else None for name, mark, order in parts}


def feature_columns(
    frame: "DataFrame",
    used: Collection[str],
    categorical: Collection[str] = (),
    ordered: Mapping[str, list[str] | None] | None = None,
    drop: Collection[str] = (),
    otherwise: str = CATEGORICAL_OR_DROP,
    dates: bool = False,
) -> "DataFrame":
    """The columns to learn from: all but those to `drop`, and those `used` as the target, the weight or the bag.

    Columns named as categories get pandas' categorical dtype, the ordered ones in the given or the natural order.
    `otherwise` is the advice for a column that holds neither numbers nor words. `dates`: columns of dates may be there.
    """
    ordered = ordered or {}
    named = [*categorical, *ordered]
    select_columns(frame, [*named, *drop])
    for name in drop:
        if name in used:
            raise ValueError(f"column {name!r} is needed, as the target, the weight or the bag, and cannot be left out")
    for name in named:
        if name in (*used, *drop):
            raise ValueError(f"column {name!r} is the target or the weight, or left out, and cannot be a category too")
    rows = frame[[name for name in frame.columns if name not in (*used, *drop)]]
    if not len(rows.columns):
        raise ValueError("there is no column to learn from beside the target")
    plain = rows[[name for name in rows.columns if name not in named]]
    if dates:
        plain = plain[[name for name in plain.columns if not holds_dates(plain[name])]]
    check_misread_numbers(plain, otherwise=otherwise)
    check_no_dates(plain, otherwise)
    for name, code in frame.attrs.get("codes", {}).items():
        if name in plain.columns and is_numeric(plain[name]):
            warnings.warn(
                f"column {name!r} is read as numbers, {code!r} in it as {int(code)}: if they are codes, {otherwise}",
                stacklevel=2,
            )
    check_finite(rows)
    changed = {name: rows[name].astype("category") for name in categorical if name not in ordered}
    changed |= {name: _as_ordered(rows[name], order) for name, order in ordered.items()}
    return rows.assign(**changed)


def _as_ordered(column: "Series", order: list[str] | None) -> "Series":
    """A column as ordered categories: in the given order, or from low to high, or alphabetically."""
    pd = import_pandas()
    if order is None and hasattr(column, "cat"):
        return column.cat.as_ordered()
    values = sorted(column.dropna().unique(), key=lambda value: (isinstance(value, str), value))
    if order is not None:
        by_name = {f"{value:g}" if isinstance(value, float) else str(value): value for value in values}
        unknown = [name for name in by_name if name not in order]
        if unknown:
            raise ValueError(f"column {column.name!r} holds {quote_names(unknown)}, not among {', '.join(order)}")
        values = [by_name[name] for name in order if name in by_name]
    return column.astype(pd.CategoricalDtype(values, ordered=True))


@dataclass(frozen=True)
class Schema:
    """What a model knows of the table it was fitted on: saved with it, as `table` in its `config.json`.

    With it, new tables are read and imputed as the first one was, in whatever order their columns are. The kind of a
    column is "number"; "text"; "truth", a boolean; "code", a category that is written as a number; or "date".
    """

    target: str
    kinds: dict[str, str]  # of the features, in their order
    fill: dict[str, Value] | None = None  # for missing cells; None: those raise
    bag: str | None = None  # the column that names the bag of a row, if rows are instances
    missing: bool = False  # whether the model takes missing cells

    @property
    def text(self) -> list[str]:
        """Names of the columns of text."""
        return [name for name, kind in self.kinds.items() if kind == "text"]

    def features(self, frame: "DataFrame") -> "DataFrame":
        """The features of a new table, by name, of the same kind, and without missing cells; and its column of bags."""
        extra_columns = {} if self.bag is None else {self.bag: select_columns(frame, [self.bag])[self.bag]}
        frame = select_columns(frame, self.kinds).copy()
        for name, kind in self.kinds.items():
            if kind in ("number", "code") and is_text(frame[name]):
                frame[name] = _number_column(frame, name, strict=kind == "number")
        if self.fill is not None:
            frame, _ = impute(frame, self.fill)
        if not self.missing:
            check_complete(frame, "fill it in, leave the row out, or fit the model with --impute")
        check_finite(frame)
        return frame.assign(**extra_columns)

    def to_json(self) -> dict[str, object]:
        """The schema as a model's `config.json` holds it."""
        return asdict(self)

    @classmethod
    def from_json(cls, config: Any, folder: str | Path) -> Self:
        """The schema in the config of a model folder."""
        try:
            return cls(**config)
        except TypeError:
            raise ValueError(
                f"the description of the table in {folder} is broken, or of another version of regard: fit the model"
                " again"
            ) from None


def _number_column(frame: "DataFrame", name: str, strict: bool) -> "Series":
    """A column of text as numbers; other text raises if `strict`, and stays as an unseen category if not."""
    numbers = parse_numbers(frame, name)
    wrong = (numbers.isna() & frame[name].notna()).to_numpy()
    if strict and wrong.any():
        row = int(np.argmax(wrong))
        where = row_location(frame, row)
        raise ValueError(f"column {name!r} must hold numbers, got {frame[name].iloc[row]!r} in {where}")
    return numbers if not wrong.any() else numbers.astype(object).where(~wrong, frame[name])


@dataclass(frozen=True)
class Category:
    """A categorical column: its values in the order of their codes."""

    values: tuple[Value | None, ...]
    ordered: bool

    @property
    def kind(self) -> str:
        """The kind of the column in a `Schema`."""
        if all(isinstance(value, str) for value in self.values):
            return "text"
        return "truth" if all(isinstance(value, bool) for value in self.values) else "code"


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

    @property
    def kinds(self) -> dict[str, str]:
        """The kind of each column, as in a `Schema`."""
        categories = self.categories
        return {
            name: categories[index].kind if index in categories else "number" for index, name in enumerate(self.names)
        }

    def encode(self, X: object, allow_missing: bool = False) -> object:  # noqa: N803
        """The table with categories as codes; a frame stays one, so that its names can be checked.

        A missing cell raises, or with `allow_missing` becomes NaN. What is not a table is returned as it is:
        scikit-learn's own error is better.
        """
        if is_frame(X):
            if not allow_missing:
                check_complete(X, "fill it in, or leave the row out", prefix="Input X contains NaN: ")
            encoded = X.copy() if self.categories else X
            for index, (name, (_, column)) in enumerate(zip(self.names, X.items(), strict=False)):
                if index in self.categories:
                    codes = self._codes_of(np.asarray(column, dtype=object), index, allow_missing)
                    encoded.isetitem(index, codes)
                elif not import_pandas().api.types.is_numeric_dtype(column.dtype):
                    raise ValueError(
                        f"column {name!r} must hold numbers, got {column.iloc[0]!r}:"
                        " name it in categorical=[…] if it is a category"
                    )
            return encoded
        if not self.categories or np.asarray(X).ndim != 2:
            return X
        cells: _Cells = np.array(X, dtype=object)
        for index in self.categories:
            if index < cells.shape[1]:
                cells[:, index] = self._codes_of(cells[:, index], index, allow_missing)
        return cells

    def _codes_of(self, column: _Cells, index: int, allow_missing: bool) -> Floats:
        """Codes of a column's values. An unseen one gets -1, which differs from all others, and a warning.

        If the categories have an order, it raises.
        """
        name, category = self.names[index], self.categories[index]
        known = {value: code for code, value in enumerate(category.values)}
        cells = [_as_value(value) for value in column]
        missing = [is_missing(value) for value in cells]
        if any(missing) and not allow_missing:
            row = missing.index(True)
            raise ValueError(f"Input X contains NaN: a missing value in the categorical column {name!r}, row {row}")
        codes = np.array([known.get(value, -1) for value in cells], dtype=float)
        codes[missing] = np.nan
        unseen = codes < 0
        if not unseen.any():
            return codes
        example = column[int(np.argmax(unseen))]
        if category.ordered:
            raise ValueError(
                f"column {name!r} is ordered, and {example!r} is not in the training data: its rank is unknown"
            )
        warnings.warn(
            f"column {name!r}: {int(unseen.sum()):,} of {len(codes):,} rows hold a category that was not in the"
            f" training data, such as {example!r}: it is treated as different from all others",
            stacklevel=5,
        )
        return codes


def as_frame(X: object) -> object:  # noqa: N803
    """A table of another library as a pandas frame, objects that are numbers as numbers; anything else as it is."""
    if hasattr(X, "collect") and not hasattr(X, "to_pandas"):
        raise ValueError("a lazy table has no rows yet: call .collect() first")
    X = X.to_pandas() if hasattr(X, "to_pandas") and not hasattr(X, "iloc") else X  # noqa: N806
    return convert_objects(X) if is_frame(X) else X


def is_frame(X: object) -> "TypeGuard[DataFrame]":  # noqa: N803
    """Whether a table is a pandas frame."""
    return hasattr(X, "columns") and hasattr(X, "iloc")


def find_columns(X: object, categorical: object, ordered: Sequence[str | int] | None) -> Columns:  # noqa: N803
    """The columns of a table. Categorical are those named, or ("dtype") those whose dtype is not numeric."""
    frame = X if is_frame(X) else None
    shape = np.asarray(X).shape if frame is None else frame.shape
    width = shape[1] if len(shape) == 2 else 0  # scikit-learn raises on anything else
    names = range(width) if frame is None else frame.columns
    by_dtype = isinstance(categorical, str) and categorical == "dtype"
    if categorical is not None and not by_dtype and not _is_list(categorical):
        raise ValueError(f"categorical must be 'dtype', or a list of column names or indices, got {categorical!r}")
    if ordered is not None and not _is_list(ordered):
        raise ValueError(f"ordered must be a list of column names or indices, got {ordered!r}")

    def read_column(name: str | int, ordered: bool) -> tuple[int, Category]:
        index = column_index(name, list(names))
        column = np.asarray(X, dtype=object)[:, index] if frame is None else frame.iloc[:, index]
        return index, _read_category(column, ordered)

    categories: dict[int, Category] = {}
    if by_dtype and frame is not None:
        columns = {index: column for index, (_, column) in enumerate(frame.items()) if not is_numeric(column)}
        check_no_dates(frame.iloc[:, list(columns)], "name the column in categorical=[…]")
        for index, column in columns.items():
            categories[index] = _read_category(column, hasattr(column, "cat") and bool(column.cat.ordered))
            _warn_many(column, categories[index])
    elif _is_list(categorical):
        categories = dict(read_column(name, False) for name in categorical)
    categories |= dict(read_column(name, True) for name in (() if ordered is None else ordered))
    return Columns(tuple(map(str, names)), categories)


def _is_list(value: object) -> TypeGuard[Iterable[str | int]]:
    """Whether a value can be iterated over, and is no string."""
    return hasattr(value, "__iter__") and not isinstance(value, str)


def column_index(name: str | int, names: Sequence[str | int], use: str = "categorical") -> int:
    """The index of a column, given its name or its index; `use` says in errors what it was to be."""
    if name in names:
        return names.index(name)
    if hasattr(name, "__index__") and not isinstance(name, bool) and 0 <= operator.index(name) < len(names):
        return operator.index(name)
    raise ValueError(f"there is no column {name!r} to be {use}; columns are {quote_names(map(str, names))}")


def _read_category(column: "Series | _Cells", ordered: bool) -> Category:
    """The categories of a column, in the order of its dtype, or sorted."""
    if hasattr(column, "cat"):
        return Category(tuple(_as_value(value) for value in column.cat.categories), ordered)
    values = {value for value in map(_as_value, np.asarray(column, dtype=object)) if not is_missing(value)}
    try:
        return Category(tuple(sorted(values)), ordered)  # type: ignore[type-var]
    except TypeError:  # numbers and text
        return Category(tuple(sorted(values, key=str)), ordered)


def _as_value(value: object) -> Value | None:
    """A cell as a plain Python value, None if it is missing; 1 and 1.0 and True are one category."""
    value = value.item() if isinstance(value, np.generic) else value
    if is_missing(value):
        return None
    return value if isinstance(value, str | int | float | bool) else str(value)


def is_missing(value: object) -> bool:
    """Whether a cell is None, NaN, or a missing value of pandas, which need not be installed."""
    is_nan = isinstance(value, float) and value != value
    return value is None or type(value).__name__ in ("NAType", "NaTType") or is_nan


def _warn_many(column: "Series", category: Category) -> None:
    """Warn of a text column with a category for almost each row: row names, or numbers that were read as text."""
    if len(category.values) > max(_MANY_CATEGORIES, len(column) / 2) and not hasattr(column, "cat"):
        warnings.warn(
            f"column {str(column.name)!r} has {len(category.values):,} categories in {len(column):,} rows:"
            " leave it out if it names the rows, or turn it into numbers if it holds any",
            stacklevel=4,
        )


@dataclass(frozen=True)
class Scale:
    """Units of the numeric columns: x → (x - centre) / spread, or to normal scores by rank."""

    centre: Floats  # [d]
    spread: Floats  # [d]
    quantiles: Floats | None = None  # [q, d], if columns are turned to ranks
    edge: float = 0.0  # rank of the least value, and 1 minus that of the greatest: (½)/n for n rows

    @property
    def unit(self) -> str:
        """The unit in a word: rank, standard or none."""
        if self.quantiles is not None:
            return "rank"
        return "standard" if (self.spread != 1).any() or self.centre.any() else "none"

    def __call__(self, x: _Reals) -> Floats:
        if self.quantiles is None:
            scaled: Floats = (x - self.centre) / self.spread
            return scaled
        scores = [self.normal_score(column, known) for column, known in zip(x.T, self.quantiles.T, strict=True)]
        return np.stack(scores, axis=1) if x.size else np.zeros(x.shape)  # [m, d]

    def normal_score(self, column: _Reals, known: Floats) -> Floats:
        """Normal scores [m] of one column, given its quantiles; equal values get the mean of their ranks."""
        from scipy.special import ndtri  # most tables need none, and scipy takes long to import

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


Unit = Literal["standard", "root mean square", "rank"]


def fit_scale(x: _Reals, weight: Floats | None, unit: Unit | None) -> Scale:
    """The scale of columns [n, d]; without a unit they stay as they are."""
    unchanged = np.zeros(x.shape[1]), np.ones(x.shape[1])
    if unit is None or not x.shape[1]:
        return Scale(*unchanged)
    if unit == "standard":
        return Scale(np.average(x, axis=0, weights=weight), standard_deviation(x, weight))
    if unit == "root mean square":
        size: Floats = np.sqrt(np.average(np.square(x), axis=0, weights=weight))
        return Scale(unchanged[0], np.where(size > 0, size, 1.0))
    count = effective_count(weight, len(x))
    ranks = np.linspace(0, 1, int(min(_QUANTILES, max(2, round(count)))))
    quantiles: Floats = np.quantile(x, ranks, axis=0, weights=weight, method="inverted_cdf")
    return Scale(*unchanged, quantiles, 0.5 / max(count, 1.0))


def effective_count(weight: Floats | None, rows: int) -> float:
    """The effective number of rows. Whole weights are numbers of rows; others are relative (Kish 1965)."""
    if weight is None:
        return float(rows)
    if (weight == np.rint(weight)).all():
        return float(weight.sum())
    return float(weight.sum() ** 2 / np.square(weight).sum())


def standard_deviation(x: _Reals, weight: Floats | None) -> Floats:
    """Standard deviations of the columns [n, d]; 1 for a constant one, which no unit changes."""
    if not x.shape[1]:
        return np.ones(0)
    centre = np.average(x, axis=0, weights=weight)
    deviation = np.sqrt(np.average(np.square(x - centre), axis=0, weights=weight))
    units: Floats = np.where((deviation > 0) & (np.ptp(x, axis=0) > 0), deviation, 1.0)
    return units
