"""Images, and the captions that belong to them.

    read_image(path, size)            any image that Pillow reads → uint8 [size, size, 3]: its middle square, scaled
    read_captions(path, folder)       a table of images and captions → paths and their captions
    match_captions(images, captions)  the images that have captions, and these
    caption_batches(…)                tokens of captions of similar length, each with the index of its image

An image is read as a viewer shows it: rotated by its EXIF tag, on white where it is transparent, with 8 bits and three
channels.
"""

import csv
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.checks import as_uint8, optional_import, quote_names
from regard.data.columns import is_missing
from regard.data.text import Batches, pad_rows, read_text, shuffled_groups
from regard.data.tokenizers import END, START

if TYPE_CHECKING:
    from PIL import Image
    from tokenizers import Tokenizer

ImageSource: TypeAlias = "str | os.PathLike[str] | NDArray[np.generic] | Image.Image"
_Pixels: TypeAlias = NDArray[np.uint8]

_MAX_PIXELS = 80_000_000
"""Larger images raise an error: a file of some kilobytes may claim more pixels than fit into memory."""
SUFFIXES = frozenset((".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"))
_LISTED = 5
"""The number of names that a message lists."""


def read_image(source: ImageSource, size: int) -> _Pixels:
    """The middle square of an image, scaled to uint8 [size, size, 3].

    source   a path, a Pillow image, or an array [height, width, 3] or [height, width]: uint8, or floats in 0..1

    >>> import numpy as np
    >>> read_image(np.full((5, 7), 0.5), 3)[0, 0].tolist()
    [128, 128, 128]
    """
    if size < 1:
        raise ValueError(f"size must be at least 1 pixel, got {size}")
    with optional_import("images need the package pillow"):
        from PIL import Image, ImageOps
    if isinstance(source, str | os.PathLike):
        image = _read_image_file(Path(source), size)
    elif isinstance(source, Image.Image):
        image = _to_opaque(source, "the image")
    else:
        image = Image.fromarray(as_uint8(np.asarray(source)))
    return np.asarray(ImageOps.fit(image.convert("RGB"), (size, size)))


def read_images(sources: Sequence[ImageSource], size: int) -> _Pixels:
    """Several images, [count, size, size, 3], read by several threads."""
    if not len(sources):
        return np.empty((0, size, size, 3), np.uint8)
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:  # Pillow releases the GIL while it decodes
        return np.stack(list(pool.map(read_image, sources, repeat(size))))


def _read_image_file(path: Path, size: int) -> "Image.Image":
    """The image in a file, of at least this size; an error names the file and says what to do."""
    from PIL import Image, UnidentifiedImageError

    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; an image is a file")
    if not path.exists():
        raise FileNotFoundError(f"there is no image {path}")
    if not path.stat().st_size:
        raise ValueError(f"{path} is empty: fetch or copy the image again")
    try:
        with Image.open(path) as image:
            pixels = image.width * image.height
            if pixels > _MAX_PIXELS:
                raise _ImageError(f"{path} must have at most {_MAX_PIXELS:,} pixels, got {pixels:,}: scale it down")
            image.draft(None, (2 * size, 2 * size))  # a large JPEG is decoded at 1/2, 1/4 or 1/8 of its size
            return _to_opaque(image, str(path))
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ValueError(f"{path} has more pixels than Pillow's own limit: scale it down ({error})") from None
    except UnidentifiedImageError:
        raise ValueError(f"{path} is not an image that Pillow can read: convert it to PNG or JPEG") from None
    except (_ImageError, MemoryError):
        raise
    except Exception as error:  # Pillow raises errors of many types on broken files
        raise ValueError(f"{path} is cut short or broken: fetch or copy it again ({error})") from None


class _ImageError(ValueError):
    """An error with a message of ours, as distinct from Pillow's errors."""


def _to_opaque(image: "Image.Image", name: str) -> "Image.Image":
    """A copy of the image, rotated by its EXIF tag, on white where it is transparent, with 8 bits."""
    from PIL import Image, ImageOps

    image = ImageOps.exif_transpose(image)
    if image.mode == "F" or image.mode.startswith("I"):
        return Image.fromarray(_to_eight_bits(image, name))
    if not image.has_transparency_data:
        return image.convert("RGB")
    over = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", over.size, "white"), over)


def _to_eight_bits(image: "Image.Image", name: str) -> _Pixels:
    """A grey image with 16 bits, or with floats from 0 to 1, as uint8 [height, width]."""
    values = np.asarray(image)
    maximum = 1.0 if image.mode == "F" else 65535.0
    low, high = float(values.min()), float(values.max())
    if not (low >= 0 and high <= maximum):  # also raises on NaN
        raise _ImageError(
            f"{name} must have values from 0 to {maximum:g}, got {low:g} to {high:g}: save it with 8 bits"
        )
    return np.rint(values * (255.0 / maximum)).astype(np.uint8)


class _CaptionTable(NamedTuple):
    """Images, each with one or more captions, in the order of the table."""

    images: list[Path]
    captions: list[list[str]]
    left_out: dict[str, list[str]]  # names of what cannot be used, by its kind


def read_captions(path: str | Path, folder: str | Path) -> _CaptionTable:
    """Read a table of images and captions, separated by tabs or commas, one caption per line.

    The columns are image and caption, in this order, or as a header names them. Several lines may name one image.
    Between tabs a caption is taken as it is; between commas, one with a comma or a quotation mark must be quoted. A
    `#0` after the name of an image is the number of its caption, and is dropped. Names of images are relative to
    `folder`. `left_out` has images without captions, captions without images, and empty captions.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "dog.jpg").write_bytes(b"")
    ...     path = Path(folder, "captions.tsv")
    ...     _ = path.write_text("dog.jpg\\ta dog\\ndog.jpg\\tit runs\\ngone.jpg\\ta cat\\n")
    ...     table = read_captions(path, folder)
    >>> table.captions, describe_left_out(table.left_out)
    ([['a dog', 'it runs']], "1 captions without their image ('gone.jpg')")
    """
    path, folder = Path(path), Path(folder)
    if not folder.is_dir():
        raise NotADirectoryError(f"{folder} is not a folder; it must be the folder of the images in {path}")
    by_image: dict[str, list[str]] = {}
    blank = []
    for line, name, caption in _table_lines(path):
        captions = by_image.setdefault(re.sub(r"#\d+$", "", name.strip()), [])
        if caption.strip():
            captions.append(caption.strip())
        else:
            blank.append(f"line {line}")
    used = {name: captions for name, captions in by_image.items() if captions and (folder / name).is_file()}
    files = (file.relative_to(folder) for file in sorted(folder.rglob("*")) if file.suffix.lower() in SUFFIXES)
    named = {Path(name) for name in used}
    left_out = {
        "captions without their image": [name for name in by_image if name not in used for _ in by_image[name]],
        "images without a caption": [str(file) for file in files if file not in named],
        "empty captions": blank,
    }
    if not used:
        raise ValueError(f"no image in {folder} has a caption in {path}: {describe_left_out(left_out)}")
    return _CaptionTable([folder / name for name in used], list(used.values()), left_out)


def _table_lines(path: Path) -> Iterator[tuple[int, str, str]]:
    """Line number, image and caption of lines that are not blank; commas separate them if the first has no tab."""
    lines = read_text(path).split("\n")
    has_tabs = "\t" in next(line for line in lines if line.strip())
    dialect = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if has_tabs else {"strict": True}
    reader = csv.reader((line + "\n" for line in lines), **dialect)
    header: list[str] | None = None
    try:
        for row in reader:
            names = [cell.strip().lower() for cell in row]
            if not any(names):
                continue
            if header is None:
                header = names if {"image", "caption"} <= set(names) else ["image", "caption"]
            if len(row) != len(header):
                raise ValueError(
                    f"{path} must have {len(header)} columns, image and caption among them; line {reader.line_num} has"
                    f" {len(row)}: {' | '.join(row)[:80]!r} (between commas, a caption with a comma must be quoted)"
                )
            if names != header:
                yield reader.line_num, row[header.index("image")], row[header.index("caption")]
    except csv.Error as error:
        raise ValueError(f"{path}, line {reader.line_num}: {error}; is a quotation mark not closed?") from None


def as_images(images: Sequence[ImageSource]) -> Sequence[ImageSource]:
    """Several images by index: paths, arrays, or one array of all.

    >>> import pandas as pd
    >>> as_images(pd.Series(["a.jpg", "b.jpg"], index=[1, 0]))[0]
    'a.jpg'
    """
    if isinstance(images, str | bytes) or not hasattr(images, "__len__") or not hasattr(images, "__getitem__"):
        raise TypeError(f"images must be a list of paths or arrays, got {type(images).__name__}: put one in a list")
    shape = getattr(images, "shape", None)
    if shape is not None and len(shape) in (2, 3):
        raise ValueError(f"images must be [count, height, width, 3], got one array of shape {list(shape)}")
    return images if shape is not None and len(shape) == 4 else list(images)


def describe_left_out(left_out: Mapping[str, int | Sequence[str]]) -> str:
    """The number of each kind that was not used, with the first of their names if they have names.

    >>> describe_left_out({"images without a caption": ["a.jpg", "b.jpg"], "long captions": 3, "empty captions": 0})
    "2 images without a caption ('a.jpg', 'b.jpg'), 3 long captions"
    """
    counts = {kind: some if isinstance(some, int) else len(some) for kind, some in left_out.items()}
    names = {kind: some for kind, some in left_out.items() if not isinstance(some, int)}
    lists = {kind: f" ({quote_names(dict.fromkeys(some), _LISTED)})" for kind, some in names.items()}
    return ", ".join(f"{count} {kind}{lists.get(kind, '')}" for kind, count in counts.items() if count)


def match_captions(
    images: Sequence[ImageSource], captions: Sequence[str | Sequence[str | None] | None]
) -> tuple[list[int], list[list[str]], list[int], int]:
    """The indices of images that have captions, and the captions of each; the other indices, and blank captions.

    captions   for each image a text, or several; None, NaN and blank texts are skipped, and those of the images that
               are used counted
    """
    if isinstance(captions, str) or not hasattr(captions, "__len__"):
        raise TypeError("captions must be a list: for each image a text, or a list of texts")
    if len(images) != len(captions):
        raise ValueError(f"images and captions must have the same length, got {len(images)} and {len(captions)}")
    indices: list[int] = []
    matched: list[list[str]] = []
    without: list[int] = []
    blank = 0
    for index, given in enumerate(captions):
        several = [given] if isinstance(given, str) or not isinstance(given, Iterable) else list(given)
        wrong = next((one for one in several if not isinstance(one, str) and not is_missing(one)), None)
        if wrong is not None:
            raise TypeError(f"captions must be texts, got {wrong!r} for image {index}")
        texts = [one.strip() for one in several if isinstance(one, str) and one.strip()]
        if texts:
            blank += len(several) - len(texts)
            indices.append(index)
            matched.append(texts)
        else:
            without.append(index)
    if not indices:
        raise ValueError(f"at least one image must have a caption, got {len(images)} images without captions")
    return indices, matched, without, blank


def encode_captions(
    tokenizer: "Tokenizer", captions: Sequence[list[str]], longest: int
) -> tuple[list[int], list[list[int]], dict[str, int]]:
    """The image and the tokens of each caption that is neither too long nor empty, and the numbers of those."""
    images = [index for index, several in enumerate(captions) for _ in several]
    tokens = [one.ids for one in tokenizer.encode_batch_fast([one for several in captions for one in several])]
    skipped = {"long": sum(len(ids) > longest for ids in tokens), "empty": sum(not ids for ids in tokens)}
    used = [number for number, ids in enumerate(tokens) if 0 < len(ids) <= longest]
    if not used:
        raise ValueError(
            f"no caption is left to train on: of {len(tokens)}, {skipped['long']} have more than longest={longest}"
            f" words, and {skipped['empty']} have none"
        )
    return [images[number] for number in used], [tokens[number] for number in used], skipped


class CaptionBatch(NamedTuple):
    """Some captions as a decoder takes them."""

    images: Tensor  # [rows]  the index of each caption's image
    words: Tensor  # [rows, m + 1]  from START to END, padded at the end


def caption_batches(
    images: Sequence[int], captions: Sequence[list[int]], size: int, seed: tuple[int, int] = (0, 0)
) -> Batches[list[int], CaptionBatch]:
    """The batches of an epoch: at most `size` captions of similar length, so that there is little padding.

    images     the index of each caption's image
    captions   the tokens of each, without START and END
    """
    lengths = np.array([len(caption) for caption in captions])

    def make(group: list[int]) -> CaptionBatch:
        words = pad_rows([[START, *captions[index], END] for index in group])
        return CaptionBatch(torch.tensor([images[index] for index in group]), words)

    return Batches(shuffled_groups((lengths,), np.ones_like(lengths), size, seed), make)
