"""The role of each column of a table: the target, the weight of the rows, the features; and the `Schema` of the
features, by which new tables are read as the first one was.

Text, booleans and pandas' categories are categorical; numbers are numeric, unless they are named as categories.
"""

import warnings
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from regard.data.table_checks import (
    CATEGORICAL_OR_DROP,
    check_complete,
    check_finite,
    check_misread_numbers,
    check_no_dates,
    is_boolean,
    is_numeric,
    is_text,
    parse_numbers,
    row_location,
)
from regard.data.tables import Value, get_column, import_pandas, impute, quote_names, select_columns

if TYPE_CHECKING:
    from pandas import DataFrame, Series


def target_column(frame: "DataFrame", name: str, kind: str = "auto") -> "Series":
    """The column to predict: floats for regression, anything else for classes.

    kind    "auto" keeps numbers as numbers, "classification" takes whole ones as classes, "regression" needs numbers
    """
    target, alone = get_column(frame, name), select_columns(frame, [name])
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
    weight, alone = get_column(frame, name), select_columns(frame, [name])
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


def dropped_columns(frame: "DataFrame", text: str, needed: Collection[str | None]) -> list[str]:
    """Columns to leave out, as typed; they must exist, and not be needed."""
    names = list(select_columns(frame, split_names(text)).columns)
    for name in names:
        if name in needed:
            raise ValueError(f"column {name!r} is needed, as the target, the weight or the bag, and cannot be left out")
    return names


def feature_columns(
    frame: "DataFrame",
    others: Collection[str],
    categorical: Collection[str] = (),
    ordered: Mapping[str, list[str] | None] | None = None,
    otherwise: str = CATEGORICAL_OR_DROP,
) -> "DataFrame":
    """The columns to learn from: all but the `others`, which are the target, the weight and those to leave out.

    Columns named as categories get pandas' categorical dtype, the ordered ones in the given or the natural order.
    `otherwise` is the advice for a column that holds neither numbers nor words.
    """
    rows, ordered = select_columns(frame, [name for name in frame.columns if name not in others]), ordered or {}
    named = [*categorical, *ordered]
    select_columns(frame, named)
    for name in named:
        if name in others:
            raise ValueError(f"column {name!r} is the target or the weight, or left out, and cannot be a category too")
    if not len(rows.columns):
        raise ValueError("there is no column to learn from beside the target")
    plain = rows[[name for name in rows.columns if name not in named]]
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
    column is "number"; "text"; "truth", a boolean; or "code", a category that is written as a number.
    """

    target: str
    kinds: dict[str, str]  # of the features, in their order
    fill: dict[str, Value] | None = None  # for missing cells; None: those raise
    bag: str | None = None  # the column that names the bag of a row, if rows are instances

    @property
    def text(self) -> list[str]:
        """Names of the columns of text."""
        return [name for name, kind in self.kinds.items() if kind == "text"]

    def features(self, frame: "DataFrame") -> "DataFrame":
        """The features of a new table: by name, of the same kind, and without missing cells."""
        frame = select_columns(frame, self.kinds).copy()
        for name, kind in self.kinds.items():
            if kind in ("number", "code") and is_text(frame[name]):
                frame[name] = _number_column(frame, name, strict=kind == "number")
        if self.fill is not None:
            frame, _ = impute(frame, self.fill)
        check_complete(frame, "fill it in, leave the row out, or fit the model with --impute")
        check_finite(frame)
        return frame

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


def column_kinds(names: Iterable[str], categories: Mapping[str, Collection[Value | None]]) -> dict[str, str]:
    """The kinds of a model's features, given the values of the categorical ones."""
    return {name: "number" if name not in categories else _category_kind(categories[name]) for name in names}


def _category_kind(values: Collection[Value | None]) -> str:
    """The kind of a categorical column, by its values."""
    if all(isinstance(value, str) for value in values):
        return "text"
    return "truth" if all(isinstance(value, bool) for value in values) else "code"
