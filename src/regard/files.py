"""Atomic writes: a file or a folder is complete as soon as it has its name.

The new content is written under a temporary name in the same folder and then renamed. A process that is killed leaves
the old content or the new one, never a mixture. What it may leave is the temporary file: the next write of the same
name removes it, once it is old enough not to belong to a process that still runs.
"""

import glob
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LEFTOVER_AGE = 3600.0
"""Seconds after which a temporary file is taken to be left by a killed process."""


@contextmanager
def atomic_write(path: Path, *, sync: bool = False) -> Iterator[Path]:
    """A temporary path to write to: a file or a folder. It replaces `path` at the end, and is removed on an error.

    A symbolic link stays: the file it points to is replaced.

    sync    whether to wait until a file is on disk before it is renamed: a power failure leaves no empty file
    """
    path = path.resolve() if path.is_symlink() else path
    remove_leftovers(path.parent, path.name)
    temporary = _temporary_path(path)
    try:
        mode = _new_file_mode(temporary)
        yield temporary
        if temporary.is_file():
            temporary.chmod(mode)  # safetensors writes files that only their owner can read
            if sync:
                with temporary.open("rb+") as file:
                    os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        remove(temporary)


def _temporary_path(path: Path) -> Path:
    """A hidden name in the same folder, which no other process or thread uses."""
    return path.parent / f".{path.name}.{secrets.token_hex(4)}.tmp"


def _new_file_mode(path: Path) -> int:
    """The permissions that a new file at this path gets by the umask."""
    path.touch()
    mode = path.stat().st_mode
    path.unlink()
    return mode


def remove(path: Path) -> None:
    """Remove a file or a folder, if it exists."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def remove_leftovers(folder: Path, name: str | None = None) -> None:
    """Remove the temporary files that killed processes left in a folder: of one name, or all."""
    pattern = "*" if name is None else glob.escape(name)
    for path in folder.glob(f".{pattern}.{'[0-9a-f]' * 8}.tmp"):
        try:
            if time.time() - path.stat().st_mtime > LEFTOVER_AGE:
                remove(path)
        except FileNotFoundError:
            continue  # its process renamed or removed it in between


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically. A pipe or a device cannot be replaced, and is written to directly."""
    if _is_stream(path):
        path.write_text(text, encoding="utf-8")
        return
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _is_stream(path: Path) -> bool:
    """Whether the path exists and is no file: a pipe or a device."""
    return path.exists() and not path.is_file()


def check_writable(path: Path) -> None:
    """Raise OSError if no text file can be written at this path: call it before long work, not after."""
    if _is_stream(path):
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _new_file_mode(_temporary_path(path))
    except OSError as error:
        raise type(error)(f"{path} cannot be written: {error.strerror}") from None
