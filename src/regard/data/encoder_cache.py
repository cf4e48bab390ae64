"""Grids of images by an encoder that is not trained, computed once and cached on disk.

    cached_grids(images, encoder, folder)(rows)  =  encoder(prepare(read_image(image))) of those rows

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from regard.data.images import ImageSource, read_image, read_images
from regard.files import atomic_write, remove_leftovers
from regard.progress import ProgressBar
from regard.torch_modes import restored_modes

_FORMAT = "1"
"""Must change if images are read, or files written, in another way."""
GRIDS_PER_FILE, BATCH = 256, 16
"""Grids in a file, and images that go through the encoder together."""
_TOLERANCE = 0.01
"""The largest difference of two grids of one image by rounding, relative to their largest number."""


def cached_grids(
    images: Sequence[ImageSource], encoder: nn.Module, folder: str | Path, *, progress: bool = True
) -> Callable[[Tensor], Tensor]:
    """A function from the indices of images, `[batch]`, to their grids, `[batch, cells, channels]` in float32.

    Grids that are not in the folder are computed, without gradients, and written to it.

    images     paths or arrays, as for `read_image`
    encoder    one with `image_size` and `prepare`, as in `regard.models.image_encoders`
    """
    folder = Path(folder) / f"{_encoder_name(encoder)}-{fingerprint(encoder)[:16]}"
    folder.mkdir(parents=True, exist_ok=True)
    remove_leftovers(folder)
    keys = [image_hash(image, encoder.image_size) for image in images]  # type: ignore[arg-type]
    missing = dict(zip(keys, images, strict=True))
    for grids in _read_files(folder):
        key = next((key for key in grids if key in missing), None)
        if key is not None:  # one of each file
            _check_cached(grids[key], next(encode(encoder, [missing[key]]))[0], folder)
        missing = {key: image for key, image in missing.items() if key not in grids}
    _add_grids(folder, encoder, missing, progress)
    cached = {key: grid for grids in _read_files(folder) for key, grid in grids.items()}
    ordered = [cached[key] for key in keys]

    def read(indices: Tensor) -> Tensor:
        return torch.stack([ordered[index] for index in indices.tolist()]).float().flatten(1, 2)

    return read


def _add_grids(folder: Path, encoder: nn.Module, missing: Mapping[str, ImageSource], progress: bool) -> None:
    """Compute the grids of images, by the images' hashes, and write them to the folder."""
    with ProgressBar("encoding images", len(missing), shown=progress) as bar:
        start_time = time.perf_counter()
        for start in range(0, len(missing), GRIDS_PER_FILE):
            keys = list(missing)[start : start + GRIDS_PER_FILE]
            grids: list[Tensor] = []
            try:
                for batch in encode(encoder, [missing[key] for key in keys]):
                    grids.append(batch)
                    done = start + sum(map(len, grids))
                    bar.update(done=done, **{"images/s": done / (time.perf_counter() - start_time)})
            finally:  # on an image that cannot be read, or an interrupt, the grids before it are not lost
                if grids:
                    write_file(folder, keys[: sum(map(len, grids))], torch.cat(grids))


def _check_cached(cached: Tensor, computed: Tensor, folder: Path) -> None:
    """Compare a grid of a file with a new one: an encoder may depend on more than its modules and weights."""
    error = (cached.float() - computed.float()).abs().max() if cached.shape == computed.shape else math.inf
    if error > _TOLERANCE * cached.abs().max():
        raise ValueError(
            f"{folder} has other grids than the encoder computes now (difference {error:.3g}): something other than"
            " its weights has changed. Delete the folder, or use another"
        )


def fingerprint(encoder: nn.Module) -> str:
    """A hash of all that a grid depends on besides the image: modules, weights, sizes, scaling."""
    # "False" was a setting once; the hashes in checkpoints have it.
    digest = hashlib.sha256(f"{_FORMAT} {_encoder_name(encoder)} {encoder.image_size} False {encoder}".encode())
    ramp = np.arange(256, dtype=np.uint8).repeat(3).reshape(1, 16, 16, 3)
    prepared: Tensor = encoder.prepare(ramp)  # type: ignore[operator]
    for name, tensor in [("prepare", prepared), *encoder.state_dict().items()]:
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
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


def encode(encoder: nn.Module, images: Sequence[ImageSource]) -> Iterator[Tensor]:
    """Batches of grids [n, height, width, channels], in the type in which they are stored."""
    device = next(encoder.parameters(), torch.empty(0)).device
    for start in range(0, len(images), BATCH):
        some = images[start : start + BATCH]
        prepared = encoder.prepare(read_images(some, encoder.image_size))  # type: ignore[operator, arg-type]
        with restored_modes(encoder), torch.inference_mode():
            grids = encoder.eval()(prepared.to(device)).float().cpu().movedim(1, -1)  # [n, height, width, channels]
        for number, (source, grid) in enumerate(zip(some, grids, strict=True), start):
            if not grid.isfinite().all():
                name = source if isinstance(source, str | os.PathLike) else f"image {number}"
                raise ValueError(f"the grid of {name} must be finite, got values up to {float(grid.abs().max()):g}")
        half = grids.half()
        yield (half if half.isfinite().all() else grids).contiguous()


def write_file(folder: Path, keys: list[str], grids: Tensor) -> None:
    """Write a file of grids and the hashes of their images."""
    name = hashlib.sha256("".join(keys).encode()).hexdigest()[:16]
    hashes = torch.tensor([list(bytes.fromhex(key)) for key in keys], dtype=torch.uint8)  # [n, 32]
    with atomic_write(folder / f"{name}.safetensors", sync=True) as temporary:
        save_file({"grids": grids, "keys": hashes}, temporary)


def _read_files(folder: Path) -> Iterator[dict[str, Tensor]]:
    """The grids [height, width, channels] of each file, mapped into memory, by the hashes of their images."""
    for path in sorted(folder.glob("*.safetensors")):
        try:
            arrays = load_file(path)
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{path} is broken ({error}): delete it, and its grids are computed again") from None
        keys = [bytes(key).hex() for key in arrays["keys"].numpy()]
        yield dict(zip(keys, arrays["grids"], strict=True))
