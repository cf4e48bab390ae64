"""Grids of images by an encoder that is not trained, computed once and cached on disk.

    cached_grids(images, encoder, folder)[rows]  =  encoder(prepare(read_image(image))) of those rows

A grid is found by the content of its image and by its encoder. The folder has a subfolder for each encoder, named by a
hash of its weights and of how it scales pixels. In it are files of some hundred grids, with the hashes of their images.
So another folder of photos, another order or another encoder never gets a wrong grid.

Files are written atomically and never changed: a killed run leaves the files that it finished, and the next run
continues from there. Two runs at the same time do no harm. Files are safetensors, mapped into memory: only grids that
are used are read.

Grids are stored in float16, which halves the files and rounds each number by at most 1/2048 of it, or in float32 if a
number is too large for that. The grids that are returned are float32.
"""

import hashlib
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from regard.data.images import ImageSource, read_image, read_images
from regard.files import atomic_write, remove_leftovers
from regard.models.image_encoders import check_grid
from regard.progress import ProgressBar
from regard.torch_modes import restored_modes

_FORMAT = "1"
"""Must change if images are read, or files written, in another way."""
GRIDS_PER_FILE, BATCH = 256, 16
"""Grids in a file, and images that go through the encoder together."""
_TOLERANCE = 0.01
"""The largest difference of two grids of one image by rounding, relative to their largest number."""


class _CachedGrids:
    """Grids of images, in the order of the images, read from disk when they are used.

    `grids[rows]` is float32 [len(rows), channels, height, width] for a slice or an array of rows, in channels-last
    memory format.
    """

    def __init__(self, files: Sequence[Tensor], location: NDArray[np.int64]) -> None:
        self.files = files  # [n, height, width, channels] each
        self.location = location  # [images, 2]  file, and row in it
        height, width, channels = files[0].shape[1:]
        self.shape = (len(location), channels, height, width)

    def __len__(self) -> int:
        return len(self.location)

    def __getitem__(self, rows: int | slice | Sequence[int] | NDArray[np.int64] | Tensor) -> Tensor:
        chosen = np.arange(len(self))[rows]
        if chosen.ndim == 0:
            return self[[int(chosen)]][0]
        _, channels, height, width = self.shape
        grids = torch.empty(len(chosen), height, width, channels)
        for grid, (file, row) in zip(grids, self.location[chosen], strict=True):
            grid.copy_(self.files[file][row])
        return grids.movedim(-1, 1)  # [rows, channels, height, width]


class _Cache(NamedTuple):
    """The cached grids of one encoder."""

    encoder: nn.Module
    folder: Path
    fingerprint: str


def cached_grids(
    images: Sequence[ImageSource], encoder: nn.Module, folder: str | Path, *, progress: bool = True
) -> _CachedGrids:
    """The grids of images, from the folder; those that are not there are computed and written to it.

    images     paths or arrays, as for `read_image`
    encoder    one with `image_size` and `prepare`, as in `regard.models.image_encoders`; no gradients are computed
    """
    if not len(images):
        raise ValueError("images must have at least one image, got none")
    for name in ("image_size", "prepare"):
        if not hasattr(encoder, name):
            raise TypeError(f"encoder must have image_size and prepare, but {type(encoder).__name__} has no {name}")
    check_grid(encoder)
    digest = fingerprint(encoder)
    cache = _Cache(encoder, Path(folder) / f"{_encoder_name(encoder)}-{digest[:16]}", digest)
    cache.folder.mkdir(parents=True, exist_ok=True)
    remove_leftovers(cache.folder)
    keys = [image_hash(image, encoder.image_size) for image in images]  # type: ignore[arg-type]
    known = {key for _, stored in _read_files(cache) for key in stored}
    _add_grids(cache, {key: image for key, image in zip(keys, images, strict=True) if key not in known}, progress)
    files: list[Tensor] = []
    location: dict[str, tuple[int, int]] = {}
    for number, (grids, stored) in enumerate(_read_files(cache)):
        files.append(grids)
        location |= {key: (number, row) for row, key in enumerate(stored)}
    cached = _CachedGrids(files, np.array([location[key] for key in keys]))
    old_rows = {location[key][0]: row for row, key in reversed(list(enumerate(keys))) if key in known}
    for row in old_rows.values():  # one of each file
        _check_cached(cached[row], next(encode(cache, {keys[row]: images[row]}))[0], cache.folder)
    return cached


def _add_grids(cache: _Cache, missing: Mapping[str, ImageSource], progress: bool) -> None:
    """Compute the grids of images, by the images' hashes, and write them to the folder."""
    with ProgressBar("encoding images", len(missing), shown=progress) as bar:
        start_time = time.perf_counter()
        for start in range(0, len(missing), GRIDS_PER_FILE):
            part = dict(list(missing.items())[start : start + GRIDS_PER_FILE])
            grids: list[Tensor] = []
            try:
                for batch in encode(cache, part):
                    grids.append(batch)
                    done = start + sum(map(len, grids))
                    bar.update(done=done, **{"images/s": done / (time.perf_counter() - start_time)})
            finally:  # on an image that cannot be read, or an interrupt, the grids before it are not lost
                if grids:
                    write_file(cache, list(part)[: sum(map(len, grids))], torch.cat(grids))


def _check_cached(cached: Tensor, computed: Tensor, folder: Path) -> None:
    """Compare one grid of each file with a new one: an encoder may depend on more than its modules and weights."""
    cached = cached.movedim(0, -1)  # [height, width, channels]
    error = (cached - computed.float()).abs().max() if cached.shape == computed.shape else math.inf
    if error > _TOLERANCE * cached.abs().max():
        raise ValueError(
            f"{folder} has other grids than the encoder computes now (difference {error:.3g}): something other than"
            " its weights has changed. Delete the folder, or use another"
        )


def fingerprint(encoder: nn.Module) -> str:
    """A hash of all that a grid depends on besides the image: modules, weights, sizes, scaling."""
    digest = hashlib.sha256()

    def add(name: str, tensor: Tensor) -> None:
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())

    # "False" was a setting once; the hashes in checkpoints have it.
    digest.update(f"{_FORMAT} {_encoder_name(encoder)} {encoder.image_size} False {encoder}".encode())
    ramp = np.arange(256, dtype=np.uint8).repeat(3).reshape(1, 16, 16, 3)
    add("prepare", encoder.prepare(ramp))  # type: ignore[operator]
    for name, tensor in encoder.state_dict().items():
        add(name, tensor)
    return digest.hexdigest()


def _encoder_name(encoder: nn.Module) -> str:
    """The name of an encoder's class, or the name that it has in its `repr` instead."""
    name: str = encoder._get_name()  # type: ignore[no-untyped-call]
    return name


def image_hash(image: ImageSource, size: int) -> str:
    """A hash of an image: of its file, or of the pixels that the encoder gets."""
    if isinstance(image, str | os.PathLike) and Path(image).is_file():
        with Path(image).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    return hashlib.sha256(read_image(image, size).tobytes()).hexdigest()


def encode(cache: _Cache, images: Mapping[str, ImageSource]) -> Iterator[Tensor]:
    """Batches of grids [n, height, width, channels], in the type in which they are stored."""
    encoder = cache.encoder
    device = next(encoder.parameters(), torch.empty(0)).device
    sources = list(images.values())
    for start in range(0, len(sources), BATCH):
        some = sources[start : start + BATCH]
        prepared = encoder.prepare(read_images(some, encoder.image_size))  # type: ignore[operator, arg-type]
        with restored_modes(encoder), torch.inference_mode():
            grids = encoder.eval()(prepared.to(device)).float().cpu().movedim(1, -1)  # [n, height, width, channels]
        for number, grid in enumerate(grids):
            if not grid.isfinite().all():
                source = some[number]
                name = source if isinstance(source, str | os.PathLike) else f"image {start + number}"
                raise ValueError(f"the grid of {name} must be finite, got values up to {float(grid.abs().max()):g}")
        half = grids.half()
        yield (half if half.isfinite().all() else grids).contiguous()


def write_file(cache: _Cache, keys: list[str], grids: Tensor) -> None:
    """Write a file of grids and the hashes of their images."""
    name = hashlib.sha256("".join(keys).encode()).hexdigest()[:16]
    hashes = torch.tensor([list(bytes.fromhex(key)) for key in keys], dtype=torch.uint8)  # [n, 32]
    with atomic_write(cache.folder / f"{name}.safetensors", sync=True) as temporary:
        save_file({"grids": grids, "keys": hashes}, temporary, {"format": _FORMAT, "encoder": cache.fingerprint})


def _read_files(cache: _Cache) -> Iterator[tuple[Tensor, list[str]]]:
    """All grids of an encoder, mapped into memory, and the hashes of their images, file by file."""
    for path in sorted(cache.folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt") as file:
                metadata, grids, keys = file.metadata() or {}, file.get_tensor("grids"), file.get_tensor("keys")
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{path} is broken ({error}): delete it, and its grids are computed again") from None
        if metadata.get("encoder") != cache.fingerprint:
            raise ValueError(
                f"{path} must have grids of the encoder {cache.fingerprint[:16]}, got those of"
                f" {str(metadata.get('encoder'))[:16]}: delete it, or use another folder"
            )
        yield grids, [bytes(key).hex() for key in keys.numpy()]
