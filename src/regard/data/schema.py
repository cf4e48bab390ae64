"""What a model must know of the table it was fitted on: saved beside it, as `table.json`.

With it, new tables are read, picked and filled in as the first one was, whatever order their columns have.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from regard.data.tables import check_complete, check_finite, impute, is_text, pandas, pick, where

if TYPE_CHECKING:
    from pandas import DataFrame, Series

SCHEMA = "table.json"
MODEL = "config.json"
"""What makes a folder a model."""


@dataclass(frozen=True)
class Schema:
    """What a model must know of the table it was fitted on.

    Kinds of columns: "number"; "text"; "truth"; "code", a category that is written as a number.
    """

    target: str
    kinds: dict[str, str]  # of the features, in their order
    fill: dict[str, Any] | None = None  # what missing cells are filled in with; None: they are an error
    format: int = 1

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
    found = pandas().to_numeric(frame[name], errors="coerce")
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


def check_place(folder: str | Path) -> None:
    """A model may go where nothing is, or in the place of a model."""
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder} is a file; a model is a folder")
    if folder.exists() and any(folder.iterdir()) and not (folder / MODEL).exists():
        raise FileExistsError(f"{folder} is not empty and holds no model: choose another folder")


def save(model: Any, folder: str | Path, schema: Schema) -> Path:
    """Save a model and its schema as one folder: a killed run leaves the old ones or the new, never one of each."""
    check_place(folder)
    folder = Path(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    room = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    made, old = room / "new", room / "old"
    try:
        model.save(made)
        written = json.dumps(asdict(schema), indent=2, ensure_ascii=False, allow_nan=False)
        (made / SCHEMA).write_text(written + "\n", encoding="utf-8")
        if folder.exists():
            os.replace(folder, old)
        os.replace(made, folder)
    except BaseException:
        if old.exists() and not folder.exists():
            os.replace(old, folder)
        raise
    finally:
        shutil.rmtree(room, ignore_errors=True)
    return folder


def read_schema(folder: str | Path) -> Schema | None:
    """The schema beside a model; None where there is none, as with a model that was saved from Python."""
    path = Path(folder) / SCHEMA
    if not path.exists():
        return None
    try:
        return Schema(**json.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    except TypeError:
        raise ValueError(f"{path} is broken, or of another version of regard: fit the model again") from None
