r"""A model folder in Hugging Face's layout: `config.json`, and weights in safetensors, whole or in shards.

    settings = Settings.read(folder)
    settings.size("hidden_size")                     a positive whole number, or an error with file and name

    with open_weights(folder, prefix="model.") as weights:
        weights.take("norm.weight", 64)              float32, of this shape, or an error with its name
        weights.check_rest(r"rotary_emb\.inv_freq$") raises if other weights are left

Nothing is ever unpickled.
"""

import contextlib
import json
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from regard.checks import fraction, is_count, is_number, positive, quote_names

CONFIG, _WHOLE, _INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
_OUTPUT = "lm_head.weight"
_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_OLD_NAMES = {"weight": "gamma", "bias": "beta"}
"""What the first BERTs call the weight and the bias of a norm."""

T = TypeVar("T")


class Settings(NamedTuple):
    """The content of a `config.json`. A setting that is null counts as absent.

    Each setting is read by name, with its default; without a default it must be there. A value that is wrong or not
    supported raises an error with the file, the setting and the value.
    """

    path: Path
    values: dict[str, Any]
    other_names: Mapping[str, str] = {}  # what a folder calls a setting, if not by its usual name

    @classmethod
    def read(cls, folder: Path) -> "Settings":
        path = folder / CONFIG
        if not path.is_file():
            reason = f"it has no {CONFIG}" if folder.exists() else "no such file or folder"
            raise FileNotFoundError(f"{folder} is not a model folder: {reason}")
        return cls(path, _read_json(path))

    def size(self, name: str, default: int | None = None) -> int:
        value = self._required(name, default)
        with self.name_file():
            return positive(self.stored(name), value)

    def whole_number(self, name: str, default: int) -> int:
        value = self.get(name, default)
        if not is_count(value) and value != 0:
            raise ValueError(f"{self.path}: {self.stored(name)} must be a whole number of at least 0, got {value!r}")
        return int(value)

    def number(self, name: str, default: float | None = None) -> float:
        value = self._required(name, default)
        if not is_number(value) or not value > 0:
            raise ValueError(f"{self.path}: {self.stored(name)} must be a positive number, got {value!r}")
        return float(value)

    def _required(self, name: str, default: float | None) -> Any:
        value = self.get(name, default)
        if value is None:
            raise ValueError(f"{self.path} must have the setting {self.stored(name)}")
        return value

    def dropout(self, name: str, default: float) -> float:
        with self.name_file():
            return fraction(self.stored(name), self.get(name, default))

    def flag(self, name: str, default: bool) -> bool:
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise ValueError(f"{self.path}: {name} must be true or false, got {value!r}")
        return value

    def choice(self, name: str, default: str | None, known: Mapping[str, T]) -> T:
        value = self.get(name, default)
        if not isinstance(value, str) or value not in known:
            raise ValueError(
                f"{self.path}: {self.stored(name)} {value!r} is not supported; supported are {quote_names(known)}"
            )
        return known[value]

    def require(self, name: str, supported: object) -> None:
        value = self.get(name, supported)
        if value != supported:
            raise ValueError(f"{self.path}: {name} {value!r} is not supported, only {supported!r}")

    def get(self, name: str, default: Any = None) -> Any:
        value = self.values.get(self.stored(name))
        return default if value is None else value

    def stored(self, name: str) -> str:
        """The name of a setting in the file."""
        return self.other_names.get(name, name)

    @contextlib.contextmanager
    def name_file(self) -> Iterator[None]:
        """Put the path of the file before the message of a ValueError."""
        try:
            yield
        except ValueError as error:
            raise ValueError(f"{self.path}: {error}") from None


class Weights:
    """The weights of a model; each is taken once, by name. `tensors` are functions that read them."""

    def __init__(self, path: Path, prefix: str, tensors: Mapping[str, Callable[[], Tensor]]) -> None:
        self.path, self.prefix = path, prefix  # "model." comes before the names if the model was saved with a head
        self.rest = dict(tensors)  # those that were not taken

    def find(self, name: str) -> str | None:
        """The name as the file has it, or None."""
        module, _, part = name.rpartition(".")
        old = f"{module}.{_OLD_NAMES.get(part, part)}"
        return next((known for known in (self.prefix + name, name, self.prefix + old, old) if known in self.rest), None)

    def take(self, name: str, *shape: int) -> Tensor:
        """The weight in float32; it must have this shape. It is a copy: the file may be changed afterwards."""
        stored = self.find(name)
        if stored is None:
            raise ValueError(f"{self.path} has no weight {name!r}")
        weight = self.rest.pop(stored)()
        if weight.shape != shape:
            raise ValueError(f"{self.path}: the weight {stored!r} must be {list(shape)}, got {list(weight.shape)}")
        if weight.dtype not in _FLOATS:
            raise ValueError(f"{self.path}: the weight {stored!r} must be floating point, got {weight.dtype}")
        return weight.to(torch.float32, copy=True)

    def has_output(self, name: str) -> bool:
        """Whether the model was saved with its matrix to the logits, given the name of any weight below it.

        One with its head, but without that matrix, is an incomplete file.
        """
        return self.find(_OUTPUT) is not None or self.prefix + name in self.rest

    def take_output(self, tied: bool, tokens: Tensor) -> dict[str, Tensor]:
        """The matrix from rows to logits, `[vocabulary, size]`; none if it is tied to the token embedding."""
        if tied and self.find(_OUTPUT) is None:
            return {}
        weight = self.take(_OUTPUT, *tokens.shape)
        if tied and not torch.equal(weight, tokens):
            raise ValueError(f"{self.path}: tie_word_embeddings is true, but {_OUTPUT} is not the token embedding")
        return {} if tied else {"read.weight": weight}

    def check_rest(self, ignored: str, heads: str) -> None:
        """Raise if weights are left whose names match neither pattern; warn of those that match `heads`."""
        rest = [name for name in self.rest if not re.search(f"{ignored}|{heads}", name)]
        if rest:
            raise ValueError(f"{self.path} has weights that the model does not use: {quote_names(rest, 5)}")
        left_out = sorted({name.rpartition(".")[0] for name in self.rest if re.search(heads, name)})
        if left_out:
            warnings.warn(f"{self.path}: only the encoder is loaded, without {quote_names(left_out, 5)}", stacklevel=4)


@contextlib.contextmanager
def open_weights(folder: Path, prefix: str = "") -> Iterator[Weights]:
    """The weights of a folder, whole or in shards."""
    with contextlib.ExitStack() as stack:
        tensors: dict[str, Callable[[], Tensor]] = {}
        for path, expected in _shards(folder).items():
            try:
                file = stack.enter_context(safe_open(path, framework="pt"))
            except (SafetensorError, OSError) as error:
                raise ValueError(f"{path} cannot be read: {error}") from None
            names = set(file.keys())
            missing = [name for name in expected if name not in names]
            if missing:
                raise ValueError(f"{path} lacks weights that {_INDEX} assigns to it: {quote_names(missing, 5)}")
            tensors |= {name: partial(file.get_tensor, name) for name in sorted(names)}
        yield Weights(folder, prefix, tensors)


def _shards(folder: Path) -> dict[Path, list[str]]:
    """The files with weights, and the names that an index assigns to each."""
    if (folder / _WHOLE).is_file():
        return {folder / _WHOLE: []}
    if not (folder / _INDEX).is_file():
        pickles = sorted(path.name for path in folder.glob("*.bin"))
        if pickles:
            raise ValueError(
                f"{folder} has its weights in {pickles[0]}, which is a pickle and may run any code when it is read. "
                f"Pickles are not supported: if you trust it, load it with transformers' from_pretrained and write "
                f"{_WHOLE} with save_pretrained"
            )
        raise FileNotFoundError(f"{folder} has no weights: neither {_WHOLE} nor {_INDEX}")
    names = _read_json(folder / _INDEX).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise ValueError(f"{folder / _INDEX} must have a weight_map with the file of each weight")
    files: dict[Path, list[str]] = {}
    for name, file in names.items():
        if not isinstance(file, str) or Path(file).name != file or not file.endswith(".safetensors"):
            raise ValueError(f"{folder / _INDEX} must name safetensors files beside it, got {file!r} for {name!r}")
        if not (folder / file).is_file():
            raise FileNotFoundError(f"{folder} has no {file}, which {_INDEX} names")
        files.setdefault(folder / file, []).append(name)
    return files


def _read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(values, dict):
        raise ValueError(f"{path} must hold a JSON object, got {type(values).__name__}")
    return values
