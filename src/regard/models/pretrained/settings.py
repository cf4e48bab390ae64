"""The settings of a folder in Hugging Face's layout: what its `config.json` says.

Each is asked for by name, and with what it is where it is absent. What is not a number, is not known or is not
supported is an error that names the file, the setting and its value.
"""

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch.nn import functional

from regard.checks import fraction, is_number, positive
from regard.layers.feed_forward import Activation, gelu_tanh

CONFIG = "config.json"

ACTIVATIONS: dict[str, Activation] = {
    "gelu": functional.gelu,
    "gelu_new": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
    "relu": torch.relu,
    "silu": functional.silu,
}

T = TypeVar("T")


class Settings(NamedTuple):
    """What a `config.json` says. A setting that is null counts as absent."""

    path: Path
    values: dict[str, Any]

    @classmethod
    def read(cls, folder: Path) -> "Settings":
        path = folder / CONFIG
        if not path.is_file():
            what = "no such file or folder" if not folder.exists() else f"no {CONFIG} in it"
            raise FileNotFoundError(f"{folder} is no model folder: {what}")
        return cls(path, read_json(path))

    def size(self, name: str, default: int | None = None) -> int:
        """A positive whole number; without a default it must be there."""
        value = self.get(name, default)
        if value is None:
            raise ValueError(f"{self.path} must say {name}")
        with self.named():
            return positive(name, value)

    def number(self, name: str, default: float | None = None) -> float:
        """A positive number; without a default it must be there."""
        value = self.get(name, default)
        if value is None:
            raise ValueError(f"{self.path} must say {name}")
        if not is_number(value) or not value > 0:
            raise ValueError(f"{self.path}: {name} must be a positive number, got {value!r}")
        return float(value)

    def dropout(self, name: str, default: float) -> float:
        """A share that is dropped in training."""
        with self.named():
            return fraction(name, self.get(name, default))

    def flag(self, name: str, default: bool) -> bool:
        """Yes or no."""
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise ValueError(f"{self.path}: {name} must be true or false, got {value!r}")
        return value

    def choice(self, name: str, default: str, known: Mapping[str, T]) -> T:
        """What stands for the word that is given."""
        value = self.get(name, default)
        if not isinstance(value, str) or value not in known:
            raise ValueError(f"{self.path}: {name} {value!r} is not supported; supported are {listed(known)}")
        return known[value]

    def only(self, name: str, supported: Any) -> None:
        """A setting that must be absent, or what is supported."""
        value = self.get(name, supported)
        if value != supported:
            raise ValueError(f"{self.path}: {name} {value!r} is not supported, only {supported!r}")

    def get(self, name: str, default: Any = None) -> Any:
        """The value; the default where it is absent."""
        value = self.values.get(name)
        return default if value is None else value

    @contextlib.contextmanager
    def named(self) -> Iterator[None]:
        """Errors of a setting say which file it is in."""
        try:
            yield
        except ValueError as error:
            raise ValueError(f"{self.path}: {error}") from None


def read_json(path: Path) -> dict[str, Any]:
    """A file that holds a JSON object."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(values, dict):
        raise ValueError(f"{path} must hold a JSON object, got {type(values).__name__}")
    return values


def listed(names: Iterable[str], most: int = 5) -> str:
    """Names for an error message, the first few."""
    every = list(names)
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(map(repr, every[:most])) + more
