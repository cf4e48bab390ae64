"""A model as a folder: `config.json` for what JSON can hold, `model.safetensors` for arrays. Nothing is pickled.

A text of its own kind, such as a tokenizer, has a file beside them, `tokenizer.json`.

A new folder is written under a temporary name and renamed. In a folder that holds a model already, the new arrays
and texts are written beside the old ones, and then `config.json`, which names the files that belong to it, is
replaced: a run that is killed leaves the old model or the new one, never a part of each.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors import torch as safetensors_torch
from safetensors.numpy import load_file, save_file
from torch import Tensor

from regard.files import atomic_write, write_text

FORMAT = 1
CONFIG, ARRAYS, OTHER_ARRAYS = "config.json", "model.safetensors", "model-2.safetensors"
NUMPYS = {"BOOL", "U8", "I8", "U16", "I16", "F16", "U32", "I32", "F32", "U64", "I64", "F64", "C64"}
"""The types of arrays that NumPy has, as a file names them."""
TEXT = re.compile(r"[a-z_]+(-2)?\.json")


def check_place(folder: str | Path) -> None:
    """A model may go where nothing is, or in the place of a model."""
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder} is a file; a model is a folder")
    if folder.exists() and any(folder.iterdir()) and not holds_model(folder):
        raise FileExistsError(f"{folder} is not empty and holds no model of regard: choose another folder")


def holds_model(folder: Path) -> bool:
    """Whether a folder has a config of ours, or what is left of one."""
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return False
    except (ValueError, RecursionError):
        return True
    return not isinstance(config, dict) or {"format", "arrays"} <= set(config)


def write(
    folder: str | Path, config: dict[str, Any], arrays: dict[str, Any], texts: Mapping[str, str] | None = None
) -> Path:
    """Write a model. A folder that is in its place is replaced if it holds a model, or nothing.

    Of the texts, `read` finds each again under its name in the config.
    """
    folder, texts = Path(folder), texts or {}
    check_place(folder)
    if (folder / CONFIG).exists():
        renew(folder, config, arrays, texts)
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(folder) as temporary:
        temporary.mkdir()
        write_files(temporary, config, arrays, texts, "")
        if folder.exists():
            make_way(folder)
    return folder


def make_way(folder: Path) -> None:
    """An empty folder goes, so that a whole one can take its name."""
    try:
        folder.rmdir()
    except OSError as error:  # it is where we are, or where a disk is mounted
        raise FileExistsError(
            f"{folder} cannot be replaced ({error.strerror}): choose a folder in it, such as {folder / 'model'}"
        ) from None


def renew(folder: Path, config: dict[str, Any], arrays: dict[str, Any], texts: Mapping[str, str]) -> None:
    """Put a model in the place of another."""
    try:
        before = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        old = {before["arrays"], *before.get("texts", {}).values()}
    except (ValueError, AttributeError, KeyError, TypeError):
        old = set()  # what is broken is replaced too
    new = write_files(folder, config, arrays, texts, "-2" if ARRAYS in old else "")
    for name in {ARRAYS, OTHER_ARRAYS, *old} - new:
        if name in (ARRAYS, OTHER_ARRAYS) or TEXT.fullmatch(name):
            (folder / name).unlink(missing_ok=True)


def write_files(
    folder: Path, config: dict[str, Any], arrays: dict[str, Any], texts: Mapping[str, str], mark: str
) -> set[str]:
    """All files of a model, the config last; the names of the others, which have the mark."""
    names = {name: f"{name}{mark}.json" for name in texts}
    held = f"model{mark}.safetensors"
    write_arrays(folder / held, arrays)
    for name, text in texts.items():
        write_text(folder / names[name], text)
    whole = {"format": FORMAT, "arrays": held, **({"texts": names} if names else {}), **config}
    write_text(folder / CONFIG, json.dumps(whole, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    return {held, *names.values()}


def write_arrays(path: Path, arrays: dict[str, Any]) -> None:
    """Arrays to a file that is complete as soon as it has its name; tensors among them keep their type."""
    with atomic_write(path) as temporary:
        if any(isinstance(array, Tensor) for array in arrays.values()):
            copied = {name: torch.asarray(array, copy=True, device="cpu") for name, array in arrays.items()}
            safetensors_torch.save_file({name: tensor.contiguous() for name, tensor in copied.items()}, temporary)
        else:
            save_file({name: np.asarray(array, order="C") for name, array in arrays.items()}, temporary)


def read_arrays(path: Path) -> dict[str, Any]:
    """The arrays of a file; those of a type that NumPy does not have, such as bfloat16, are tensors."""
    with safe_open(path, framework="pt") as file:
        if {file.get_slice(name).get_dtype() for name in file.keys()} <= NUMPYS:  # noqa: SIM118
            return load_file(path)
    return {name: array_of(tensor) for name, tensor in safetensors_torch.load_file(path).items()}


def array_of(tensor: Tensor) -> Any:
    """A tensor as an array; as it is, on the CPU, where NumPy does not have its type."""
    tensor = tensor.detach().cpu()
    try:
        return tensor.numpy()
    except TypeError:
        return tensor


def jsonable(value: Any) -> Any:
    """A setting or a label as JSON can hold it."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return jsonable(value.item())
    if isinstance(value, tuple):
        return [jsonable(one) for one in value]
    return value if isinstance(value, str | int | float | bool | list | type(None)) else str(value)


def read(folder: str | Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What was written; an error says what is missing or broken."""
    folder = Path(folder)
    if not (folder / CONFIG).is_file():
        what = "no such folder" if not folder.exists() else f"no {CONFIG} in it"
        raise FileNotFoundError(f"{folder} is no model folder: {what}")
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{folder / CONFIG} is not JSON: {error}") from None
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        found = config.get("format") if isinstance(config, dict) else None
        raise ValueError(f"{folder} has format {found!r}; this version of regard reads format {FORMAT}")
    name = config.get("arrays")
    if name not in (ARRAYS, OTHER_ARRAYS):
        raise ValueError(f"{folder / CONFIG} names {name!r} for its arrays; it must be {ARRAYS} or {OTHER_ARRAYS}")
    try:
        arrays = read_arrays(folder / name)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{folder / name} cannot be read: {error}") from None
    named = config.pop("texts", {})
    if not isinstance(named, dict):
        raise ValueError(f"{folder / CONFIG} names {named!r} for its texts; it must be a name for each")
    for text, file in named.items():
        if not isinstance(file, str) or not TEXT.fullmatch(file):
            raise ValueError(f"{folder / CONFIG} names {file!r} for its {text}; it must be a .json beside it")
        try:
            config[text] = (folder / file).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ValueError(f"{folder / file} cannot be read: {error}") from None
    return config, arrays
