"""A model as a folder: `config.json` for what JSON can hold, `model.safetensors` for arrays. Nothing is pickled.

A folder is written beside its place under a temporary name and then renamed, so that a killed run leaves
either the old model or the new one.
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
CONFIG, ARRAYS = "config.json", "model.safetensors"


def write(folder: str | Path, config: dict[str, Any], arrays: dict[str, Any]) -> Path:
    """Write a model. A folder that is in its place is replaced if it holds a model, or nothing."""
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder} is a file; a model is a folder")
    if folder.exists() and any(folder.iterdir()) and not (folder / CONFIG).exists():
        raise FileExistsError(f"{folder} is not empty and holds no model: choose another folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        text = json.dumps({"format": FORMAT, **config}, indent=2, ensure_ascii=False, allow_nan=False)
        (made / CONFIG).write_text(text + "\n", encoding="utf-8")
        save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, made / ARRAYS)
        made.chmod(0o777 & ~umask())
        if folder.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
            os.replace(folder, old)
            os.replace(made, folder)
            shutil.rmtree(old)
        else:
            os.replace(made, folder)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return folder


def umask() -> int:
    """The mask that new files get: `mkdtemp` makes folders for their owner alone."""
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
    try:
        arrays = load_file(folder / ARRAYS)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{folder / ARRAYS} cannot be read: {error}") from None
    return config, arrays
