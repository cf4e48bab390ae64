"""A model as a folder: `config.json` for what JSON can hold, `model.safetensors` for arrays. Nothing is pickled.

A new folder is written under a temporary name and renamed. In a folder that holds a model already, the new arrays
are written beside the old ones, and then `config.json`, which names the arrays it belongs to, is replaced: a run
that is killed leaves the old model or the new one, never a part of each.
"""

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

FORMAT = 1
CONFIG, ARRAYS, OTHER_ARRAYS = "config.json", "model.safetensors", "model-2.safetensors"


def check_place(folder: str | Path) -> None:
    """A model may go where nothing is, or in the place of a model."""
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder} is a file; a model is a folder")
    if folder.exists() and any(folder.iterdir()) and not (folder / CONFIG).exists():
        raise FileExistsError(f"{folder} is not empty and holds no model: choose another folder")


def write(folder: str | Path, config: dict[str, Any], arrays: dict[str, Any]) -> Path:
    """Write a model. A folder that is in its place is replaced if it holds a model, or nothing."""
    folder = Path(folder)
    check_place(folder)
    if (folder / CONFIG).exists():
        renew(folder, config, arrays)
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        write_arrays(made / ARRAYS, arrays)
        write_config(made / CONFIG, config, ARRAYS)
        made.chmod(0o777 & ~umask())
        if folder.exists():
            folder.rmdir()
        os.replace(made, folder)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return folder


def renew(folder: Path, config: dict[str, Any], arrays: dict[str, Any]) -> None:
    """Put a model in the place of another."""
    try:
        before = json.loads((folder / CONFIG).read_text(encoding="utf-8")).get("arrays")
    except (ValueError, AttributeError):
        before = None  # what is broken is replaced too
    name = OTHER_ARRAYS if before == ARRAYS else ARRAYS
    write_arrays(folder / name, arrays)
    write_config(folder / CONFIG, config, name)
    for other in {ARRAYS, OTHER_ARRAYS} - {name}:
        (folder / other).unlink(missing_ok=True)


def write_arrays(path: Path, arrays: dict[str, Any]) -> None:
    """Arrays to a file that is complete as soon as it has its name."""
    made = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, made)
        made.chmod(0o666 & ~umask())
        os.replace(made, path)
    finally:
        made.unlink(missing_ok=True)


def write_config(path: Path, config: dict[str, Any], arrays: str) -> None:
    """The same for what JSON can hold."""
    made = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        whole = {"format": FORMAT, "arrays": arrays, **config}
        made.write_text(json.dumps(whole, indent=2, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")
        os.replace(made, path)
    finally:
        made.unlink(missing_ok=True)


def jsonable(value: Any) -> Any:
    """A setting or a label as JSON can hold it."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return jsonable(value.item())
    if isinstance(value, tuple):
        return [jsonable(one) for one in value]
    return value if isinstance(value, str | int | float | bool | list | type(None)) else str(value)


def umask() -> int:
    """The mask that new files get: temporary ones are made for their owner alone."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def read(folder: str | Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What was written; an error says what is missing or broken."""
    folder = Path(folder)
    if not (folder / CONFIG).is_file():
        what = "no such folder" if not folder.exists() else f"no {CONFIG} in it"
        raise FileNotFoundError(f"{folder} is no model folder: {what}")
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{folder / CONFIG} is not JSON: {error}") from None
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        found = config.get("format") if isinstance(config, dict) else None
        raise ValueError(f"{folder} has format {found!r}; this version of regard reads format {FORMAT}")
    name = config.get("arrays")
    if name not in (ARRAYS, OTHER_ARRAYS):
        raise ValueError(f"{folder / CONFIG} names {name!r} for its arrays; it must be {ARRAYS} or {OTHER_ARRAYS}")
    try:
        arrays = load_file(folder / name)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{folder / name} cannot be read: {error}") from None
    return config, arrays
