"""Grids of images, computed once by an encoder that is not trained, and kept on disk.

    features(images, encoder, folder)[rows]  =  encoder(prepare(read_image(image))) of those rows

A row is found by what is in its image and by which encoder made it: the folder has a folder for each encoder, named by
a hash of its weights and of what it does to pixels; in that are files of some hundred grids with the hashes of their
images. So another folder of photos, another order or another encoder never gets a grid that is not its own.

A file is written under a temporary name and then renamed, and never changed: a run that is killed keeps all files that
it finished, and the next one goes on from there. Two runs at once do no harm. Files are safetensors, mapped into
memory: what is not looked at is not read.

Grids are stored in float16 unless told otherwise, which halves the files and rounds each number by at most 1 in 2048 of
it; what is given out is float32.
"""

import hashlib
import math
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from regard.data.images import read_image, read_images
from regard.files import atomic_write, remove_leftovers
from regard.models.image_encoders import check_grid, evaluating
from regard.progress import ProgressBar

Array = Any
FORMAT = "1"
"""Changes where images are read otherwise, or files written otherwise, than before."""
IN_FILE, AT_ONCE = 256, 16
"""Grids in a file, and images that go through the encoder together."""
NEAR = 0.01
"""How much grids of one image may differ by rounding, as a share of the largest number in them."""


class Features:
    """Grids of images, in the images' order, read from disk as they are asked for.

    `features[rows]` is float32 [len(rows), channels, height, width] for numbers, a slice or an array of rows, in memory
    a cell after the other.
    """

    def __init__(self, parts: Sequence[Tensor], places: Array) -> None:
        self.parts, self.places = parts, places  # [n, height, width, channels] each; [count, 2] part and row
        height, width, channels = parts[0].shape[1:]
        self.shape = (len(places), channels, height, width)

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, rows: Any) -> Tensor:
        chosen = np.arange(len(self))[rows]
        if chosen.ndim == 0:
            return self[[int(chosen)]][0]
        _, channels, height, width = self.shape
        grid = torch.empty(len(chosen), height, width, channels)
        for to, (part, row) in zip(grid, self.places[chosen], strict=True):
            to.copy_(self.parts[part][row])
        return grid.movedim(-1, 1)


def features(
    images: Sequence[Any], encoder: nn.Module, folder: str | Path, *, half: bool = True, progress: bool = True
) -> Features:
    """The grids of images, from the folder where they are there, else computed and put there.

    images     paths or arrays, as for `read_image`
    encoder    one with `image_size` and `prepare`, as in `regard.models.image_encoders`; no gradients are computed
    half       whether to store float16
    """
    if not len(images):
        raise ValueError("images must be at least one, got none")
    for needed in ("image_size", "prepare"):
        if not hasattr(encoder, needed):
            raise TypeError(
                f"features need an encoder with image_size and prepare, {type(encoder).__name__} has no {needed}"
            )
    check_grid(encoder)
    made_by = fingerprint(encoder, half)
    place = Path(folder) / f"{type(encoder).__name__}-{made_by[:16]}"
    place.mkdir(parents=True, exist_ok=True)
    remove_leftovers(place)
    keys = [key_of(image, encoder.image_size) for image in images]  # type: ignore[arg-type]
    known = {key for _, found in stored(place, made_by) for key in found}
    missing = {key: image for key, image in zip(keys, images, strict=True) if key not in known}
    with ProgressBar("features", len(missing), shown=progress) as bar:
        began = time.perf_counter()
        for start in range(0, len(missing), IN_FILE):
            part = dict(list(missing.items())[start : start + IN_FILE])
            grids: list[Tensor] = []
            try:
                for grid in encoded(part, encoder, half):
                    grids.append(grid)
                    done = start + sum(map(len, grids))
                    bar.note(done=done, **{"images/s": done / (time.perf_counter() - began)})
            finally:  # an image that cannot be read, or a reader who has had enough, costs no more than itself
                if grids:
                    write(place, made_by, list(part)[: sum(map(len, grids))], torch.cat(grids))
    parts: list[Tensor] = []
    at: dict[str, tuple[int, int]] = {}
    for number, (grids_of, found) in enumerate(stored(place, made_by)):
        parts.append(grids_of)
        at |= {key: (number, row) for row, key in enumerate(found)}
    made = Features(parts, np.array([at[key] for key in keys]))
    checked: set[int] = set()
    for row, key in enumerate(keys):
        number, _ = at[key]
        if key in known and number not in checked:
            compare(made[row], next(encoded({key: images[row]}, encoder, half))[0], place)
            checked.add(number)
    return made


def compare(kept: Tensor, fresh: Tensor, place: Path) -> None:
    """A grid of each file is made anew: what an encoder does may depend on more than its parts and weights."""
    kept = kept.movedim(0, -1)
    off = (kept - fresh.float()).abs().max() if kept.shape == fresh.shape else math.inf
    if off > NEAR * kept.abs().max():
        raise ValueError(
            f"{place} holds grids that the encoder does not make now, off by {off:.3g}: something besides its weights"
            " has changed. Delete the folder, or give another"
        )


def fingerprint(encoder: nn.Module, half: bool) -> str:
    """A hash of what a stored grid depends on but the image: parts, weights, sizes, scaling of pixels, rounding."""
    digest = hashlib.sha256()

    def add(name: str, tensor: Tensor) -> None:
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())

    digest.update(f"{FORMAT} {type(encoder).__qualname__} {encoder.image_size} {half} {encoder}".encode())
    ramp = np.arange(256, dtype=np.uint8).repeat(3).reshape(1, 16, 16, 3)
    add("prepare", encoder.prepare(ramp))  # type: ignore[operator]
    for name, tensor in encoder.state_dict().items():
        add(name, tensor)
    return digest.hexdigest()


def key_of(image: Any, size: int) -> str:
    """A hash of an image: of the file as it is, or of the pixels that the encoder would see."""
    if isinstance(image, str | os.PathLike) and Path(image).is_file():
        with Path(image).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    return hashlib.sha256(read_image(image, size).tobytes()).hexdigest()


def encoded(images: dict[str, Any], encoder: nn.Module, half: bool) -> Iterator[Tensor]:
    """Grids [n, height, width, channels] of some images at a time, as they are to be stored."""
    like = next(encoder.parameters(), torch.empty(0))
    sources = list(images.values())
    for start in range(0, len(sources), AT_ONCE):
        some = sources[start : start + AT_ONCE]
        prepared = encoder.prepare(read_images(some, encoder.image_size))  # type: ignore[operator, arg-type]
        with evaluating(encoder), torch.inference_mode():
            grid = encoder(prepared.to(like.device)).float().cpu().movedim(1, -1)
        kept = grid.to(torch.float16 if half else torch.float32).contiguous()
        for number, fine in enumerate(kept.isfinite().flatten(1).all(1).tolist()):
            if not fine:
                named = some[number] if isinstance(some[number], str | os.PathLike) else f"image {start + number}"
                most = float(grid[number].abs().max())
                raise ValueError(
                    f"the grid of {named} must be finite{' in float16' if half else ''}, got values up to {most:g}"
                    + (": use half=False" if half and grid[number].isfinite().all() else "")
                )
        yield kept


def write(place: Path, made_by: str, keys: list[str], grids: Tensor) -> None:
    """A file of grids and their images' hashes: whole, or not there."""
    name = hashlib.sha256("".join(keys).encode()).hexdigest()[:16]
    numbers = torch.tensor([list(bytes.fromhex(key)) for key in keys], dtype=torch.uint8)
    with atomic_write(place / f"{name}.safetensors", sync=True) as temporary:
        save_file({"grids": grids, "keys": numbers}, temporary, {"format": FORMAT, "encoder": made_by})


def stored(place: Path, made_by: str) -> Iterator[tuple[Tensor, list[str]]]:
    """All grids of an encoder, mapped into memory, and their images' hashes."""
    for path in sorted(place.glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt") as file:
                said, grids, keys = file.metadata() or {}, file.get_tensor("grids"), file.get_tensor("keys")
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{path} is broken ({error}): delete it, and its grids are computed again") from None
        if said.get("encoder") != made_by:
            raise ValueError(
                f"{path} holds grids of another encoder, {str(said.get('encoder'))[:16]}, where those of {made_by[:16]}"
                " belong: delete it, or give another folder"
            )
        yield grids, [bytes(key).hex() for key in keys.numpy()]
