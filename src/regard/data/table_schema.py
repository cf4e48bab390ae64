"""What a model must know of the table it was fitted on: saved with it, as `table` in its `config.json`.

With it, new tables are read, picked and filled in as the first one was, whatever order their columns have.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from regard.data.table_checks import check_complete, check_finite, is_text, numbers_of, where
from regard.data.tables import impute, pick

if TYPE_CHECKING:
    from pandas import DataFrame, Series


@dataclass(frozen=True)
class Schema:
    """What a model must know of the table it was fitted on.

    Kinds of columns: "number"; "text"; "truth"; "code", a category that is written as a number.
    """

    target: str
    kinds: dict[str, str]  # of the features, in their order
    fill: dict[str, Any] | None = None  # what missing cells are filled in with; None: they are an error
    bag: str | None = None  # the column that says the bag of a row, where rows are instances

    @property
    def text(self) -> list[str]:
        return [name for name, kind in self.kinds.items() if kind == "text"]

    def rows(self, frame: "DataFrame") -> "DataFrame":
        """The features of a new table as the model knows them: by name, of the same kind, and complete."""
        frame = pick(frame, self.kinds).copy()
        for name, kind in self.kinds.items():
            if kind in ("number", "code") and is_text(frame[name]):
                frame[name] = numbers_in(frame, name, strict=kind == "number")
        if self.fill is not None:
            frame, _ = impute(frame, self.fill)
        check_complete(frame, "fill it in, leave the row out, or fit the model with --impute")
        check_finite(frame)
        return frame


def numbers_in(frame: "DataFrame", name: str, strict: bool) -> "Series":
    """The numbers in a column of text; what is none of them is an error, or stays a stranger."""
    found = numbers_of(frame, name)
    slip = (found.isna() & frame[name].notna()).to_numpy()
    if strict and slip.any():
        row = int(np.argmax(slip))
        raise ValueError(f"column {name!r} must hold numbers, got {frame[name].iloc[row]!r} in {where(frame, row)}")
    return found if not slip.any() else found.astype(object).where(~slip, frame[name])


def kinds_of(names: Iterable[str], categories: Mapping[str, Collection[Any]]) -> dict[str, str]:
    """The kinds of a model's features, given the values of those that are categories."""
    return {name: "number" if name not in categories else kind_of(categories[name]) for name in names}


def kind_of(values: Collection[Any]) -> str:
    """The kind of a category, by its values."""
    if all(isinstance(value, str) for value in values):
        return "text"
    return "truth" if all(isinstance(value, bool) for value in values) else "code"


def as_json(schema: Schema) -> dict[str, Any]:
    """The schema as a model's `config.json` holds it."""
    return asdict(schema)


def from_json(told: Any, folder: str | Path) -> Schema:
    """The schema that `as_json` told of."""
    try:
        return Schema(**told)
    except TypeError:
        raise ValueError(
            f"the table that {folder} tells of is broken, or of another version of regard: fit the model again"
        ) from None
