"""A model or a checkpoint as a folder: JSON in `config.json`, arrays in `model.safetensors`. Nothing is pickled.

Texts in a format of their own, such as a tokenizer, have files beside them, `tokenizer.json`.

A new folder is written under a temporary name and renamed. In a folder that already holds a model, the new arrays and
texts are written beside the old ones; then `config.json`, which names the files that belong to it, is replaced. So a
process that is killed leaves the old model or the new one, never a mixture.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load, save_file
from torch import Tensor

from regard.files import atomic_write, write_text

Array = NDArray[Any] | Tensor
_Json = str | int | float | bool | list[Any] | None
FORMAT = 1
CONFIG, _ARRAYS, _OTHER_ARRAYS = "config.json", "model.safetensors", "model-2.safetensors"
"""The names of arrays alternate when a model is replaced."""
_TEXT_NAME = re.compile(r"[a-z_]+(-2)?\.json")


def check_folder(folder: str | Path) -> None:
    """Raise FileExistsError unless a model may be written to the folder: it is absent, empty, or holds a model."""
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder} is a file; a model is a folder")
    if folder.exists() and any(folder.iterdir()) and not _holds_model(folder):
        raise FileExistsError(f"{folder} is not empty and holds no model of regard: choose another folder")


def _holds_model(folder: Path) -> bool:
    """Whether a folder has a config of ours, or a damaged one."""
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return False
    except (ValueError, RecursionError):
        return True
    return not isinstance(config, dict) or {"format", "arrays"} <= set(config)


def write_folder(
    folder: str | Path, config: dict[str, Any], arrays: Mapping[str, Array], texts: Mapping[str, str] | None = None
) -> Path:
    """Write a model. An existing folder is replaced if it is empty or holds a model.

    `read_folder` adds each text to the config, under its name.
    """
    folder, texts = Path(folder), texts or {}
    check_folder(folder)
    if (folder / CONFIG).exists():
        _replace_files(folder, config, arrays, texts)
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(folder) as temporary:
        temporary.mkdir()
        _write_files(temporary, config, arrays, texts, "")
        if folder.exists():  # it is empty: the complete one takes its name
            try:
                folder.rmdir()
            except OSError as error:  # it is the working directory, or a mount point
                advice = f"choose a folder in it, such as {folder / 'model'}"
                raise FileExistsError(f"{folder} cannot be replaced ({error.strerror}): {advice}") from None
    return folder


def _replace_files(folder: Path, config: dict[str, Any], arrays: Mapping[str, Array], texts: Mapping[str, str]) -> None:
    """Replace the model in a folder by another."""
    try:
        before = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        old = {before["arrays"], *before.get("texts", {}).values()}
    except (ValueError, AttributeError, KeyError, TypeError):
        old = set()  # a damaged model is replaced too
    new = _write_files(folder, config, arrays, texts, "-2" if _ARRAYS in old else "")
    for name in {_ARRAYS, _OTHER_ARRAYS, *old} - new:
        if name in (_ARRAYS, _OTHER_ARRAYS) or _TEXT_NAME.fullmatch(name):
            (folder / name).unlink(missing_ok=True)


def _write_files(
    folder: Path, config: dict[str, Any], arrays: Mapping[str, Array], texts: Mapping[str, str], suffix: str
) -> set[str]:
    """Write all files of a model, the config last; returns the names of the others, which have the suffix."""
    text_names = {name: f"{name}{suffix}.json" for name in texts}
    array_name = f"model{suffix}.safetensors"
    with atomic_write(folder / array_name) as temporary:
        save_file({name: _to_tensor(array) for name, array in arrays.items()}, temporary)
    for name, text in texts.items():
        write_text(folder / text_names[name], text)
    whole = {"format": FORMAT, "arrays": array_name, **({"texts": text_names} if text_names else {}), **config}
    write_text(folder / CONFIG, json.dumps(whole, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    return {array_name, *text_names.values()}


def _to_tensor(array: Array) -> Tensor:
    """An array in memory of its own: safetensors writes no tensors that share theirs."""
    array = array if isinstance(array, Tensor) else np.asarray(array, order="C")
    return torch.asarray(array, copy=True, device="cpu").contiguous()


def to_array(tensor: Tensor) -> Array:
    """A tensor as an array; if NumPy does not have its type, the tensor on the CPU."""
    tensor = tensor.detach().cpu()
    try:
        return tensor.numpy()
    except TypeError:
        return tensor


def to_json(value: object) -> _Json:
    """A setting or a label as a value that JSON has; other objects become their text."""
    if isinstance(value, np.ndarray):
        return value.tolist()  # type: ignore[no-any-return]
    if isinstance(value, np.generic):
        return to_json(value.item())
    if isinstance(value, tuple):
        return [to_json(one) for one in value]
    return value if isinstance(value, str | int | float | bool | list | type(None)) else str(value)


def read_folder(folder: str | Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The config, with its texts, and the arrays; an error says what is missing or damaged."""
    folder = Path(folder)
    config = _read_config(folder)
    name = config.get("arrays")
    if name not in (_ARRAYS, _OTHER_ARRAYS):
        raise ValueError(f"{folder / CONFIG} names {name!r} for its arrays; it must be {_ARRAYS} or {_OTHER_ARRAYS}")
    try:
        tensors = load((folder / name).read_bytes())  # not mapped: the file may be replaced
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{folder / name} cannot be read: {error}") from None
    names = config.pop("texts", {})
    if not isinstance(names, dict):
        raise ValueError(f"{folder / CONFIG} names {names!r} for its texts; it must be an object of names")
    for text, file in names.items():
        if not isinstance(file, str) or not _TEXT_NAME.fullmatch(file):
            raise ValueError(f"{folder / CONFIG} names {file!r} for its {text}; it must be a .json beside it")
        try:
            config[text] = (folder / file).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ValueError(f"{folder / file} cannot be read: {error}") from None
    return config, {name: to_array(tensor) for name, tensor in tensors.items()}


def _read_config(folder: Path) -> dict[str, Any]:
    """The content of `config.json`, if it is of our format."""
    if not (folder / CONFIG).is_file():
        reason = f"it has no {CONFIG}" if folder.exists() else "no such folder"
        raise FileNotFoundError(f"{folder} is not a model folder: {reason}")
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{folder / CONFIG} is not JSON: {error}") from None
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        got = config.get("format") if isinstance(config, dict) else None
        raise ValueError(f"{folder} has format {got!r}; this version of regard reads format {FORMAT}")
    return config
