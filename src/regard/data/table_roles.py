"""What the columns of a table are to a model: its target, the weight of its rows, and its features.

Text, truths and pandas' categories are categorical; numbers are numbers, unless they are named as categories.
"""

import warnings
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from regard.data.table_checks import CATEGORY, check_complete, check_finite, check_no_times, check_numbers, where
from regard.data.tables import column, listed, pandas, pick

if TYPE_CHECKING:
    from pandas import DataFrame, Series


def target_of(frame: "DataFrame", name: str, kind: str = "auto") -> "Series":
    """The column to predict: floats are for regression, anything else is classes.

    kind "auto" takes numbers as such; "classification" takes whole ones as classes; "regression" wants numbers.
    """
    target, alone = column(frame, name), pick(frame, [name])
    check_complete(alone, "a target cannot be imputed: leave the row out")
    check_no_times(alone, "predict another column")
    if kind != "classification":
        check_numbers(alone, "mend it", "say --kind classification")
    check_finite(alone)
    if is_number(target) and kind != "classification":
        return target.astype(float)
    if is_number(target):
        part = target[target != target.round()]
        if len(part):
            raise ValueError(f"classes must be whole numbers, or text: the target {name!r} holds {part.iloc[0]}")
        return target.astype(int)
    if kind == "regression":
        raise ValueError(f"the target {name!r} must hold numbers for --kind regression, got {target.iloc[0]!r}")
    return target.astype(bool if is_truth(target) else object)


def hints_of(target: "Series", kind: str) -> list[str]:
    """What there is to say of a target of two numbers, which were classes perhaps."""
    if kind != "auto" or target.dtype != float or target.nunique() != 2:
        return []
    two = " and ".join(f"{number:g}" for number in sorted(target.unique()))
    return [f"{target.name} holds the numbers {two}: for classes, say --kind classification"]


def weight_of(frame: "DataFrame", name: str) -> "Series":
    """How much each row counts."""
    weight, alone = column(frame, name), pick(frame, [name])
    check_complete(alone, "a weight cannot be imputed: fill it in, or leave the row out")
    if not is_number(weight):
        raise ValueError(f"the weight {name!r} must hold numbers, got {weight.iloc[0]!r}")
    check_finite(alone)
    if (weight < 0).any():
        row = int((weight < 0).to_numpy().argmax())
        raise ValueError(f"the weight {name!r} must not be negative, got {weight.iloc[row]:g} in {where(frame, row)}")
    return weight


def names_in(text: str) -> list[str]:
    """Names of columns as typed: a,b."""
    return [name.strip() for name in text.split(",") if name.strip()]


def dropped(frame: "DataFrame", text: str, needed: Collection[str | None]) -> list[str]:
    """Columns to leave out, as typed; they must be there, and not needed."""
    names = list(pick(frame, names_in(text)).columns)
    for name in names:
        if name in needed:
            raise ValueError(f"column {name!r} is needed, as the target, the weight or the bag, and cannot be left out")
    return names


def features_of(
    frame: "DataFrame",
    others: Collection[str],
    categorical: Collection[str] = (),
    ordered: Mapping[str, list[str] | None] | None = None,
    instead: str = CATEGORY,
) -> "DataFrame":
    """The columns to learn from: all but the `others`, which are target, weight, and what is to be left out.

    `instead` is what else to do with a column that is neither numbers nor words.

    Those named as categories are turned to pandas' own, and ordered ones have the order given, or a natural one.
    """
    rows, ordered = pick(frame, [name for name in frame.columns if name not in others]), ordered or {}
    named = [*categorical, *ordered]
    pick(frame, named)
    for name in named:
        if name in others:
            raise ValueError(f"column {name!r} is the target or the weight, or left out, and cannot be a category too")
    if not len(rows.columns):
        raise ValueError("there is no column to learn from beside the target")
    plain = rows[[name for name in rows.columns if name not in named]]
    check_numbers(plain, instead=instead)
    check_no_times(plain, instead)
    for name, code in frame.attrs.get("codes", {}).items():
        if name in plain.columns and is_number(plain[name]):
            warnings.warn(
                f"column {name!r} is read as numbers, {code!r} in it as {int(code)}: if they are codes, {instead}",
                stacklevel=2,
            )
    check_finite(rows)
    made = {name: rows[name].astype("category") for name in categorical if name not in ordered}
    made |= {name: in_order(rows[name], order) for name, order in ordered.items()}
    return rows.assign(**made)


def is_number(column: "Series") -> bool:
    """Whether a column holds numbers that count something."""
    types = pandas().api.types
    return bool(types.is_numeric_dtype(column.dtype) and not types.is_bool_dtype(column.dtype))


def is_truth(column: "Series") -> bool:
    """Whether a column holds True and False, some of them missing perhaps."""
    types = pandas().api.types
    return bool(types.is_bool_dtype(column.dtype) or types.infer_dtype(column, skipna=True) == "boolean")


def in_order(column: "Series", order: list[str] | None) -> "Series":
    """A column as ordered categories: in the order given, or from low to high, or by the alphabet."""
    pd = pandas()
    if order is None and hasattr(column, "cat"):
        return column.cat.as_ordered()
    values = sorted(column.dropna().unique(), key=lambda value: (isinstance(value, str), value))
    if order is not None:
        by_name = {f"{value:g}" if isinstance(value, float) else str(value): value for value in values}
        strangers = [name for name in by_name if name not in order]
        if strangers:
            raise ValueError(f"column {column.name!r} holds {listed(strangers)}, not among {', '.join(order)}")
        values = [by_name[name] for name in order if name in by_name]
    return column.astype(pd.CategoricalDtype(values, ordered=True))
