"""Images in, and the captions that belong to them.

    read_image(path, size)          any image that Pillow reads → uint8 [size, size, 3]: the middle square of it, scaled
    read_captions(path, folder)     a table of image and caption, several lines an image → paths, and their captions

What an image looks like to a viewer is what is read: it is turned as its camera says (EXIF), what is transparent stands
on white, 16 bits become 8, and grey has three equal channels.
"""

import csv
import os
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from regard.data.tables import INSTALL, quote_names
from regard.data.text import read_text

if TYPE_CHECKING:
    from PIL import Image

Array = Any
MOST_PIXELS = 80_000_000
"""More are refused: a file of some kilobytes may say that it has so many that no memory holds them."""
SUFFIXES = frozenset((".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"))
LISTED = 5
"""Names that a message gives, of many."""


def pillow() -> Any:
    """The package's modules, or what to do without it."""
    try:
        import PIL.Image
        import PIL.ImageOps
    except ImportError:
        raise ModuleNotFoundError(f"images need the package pillow: {INSTALL}") from None
    return PIL


def read_image(source: Any, size: int) -> Array:
    """The middle square of an image, scaled to uint8 [size, size, 3].

    source   a path, a Pillow image, or an array [height, width, 3] or [height, width]: uint8, or floats in 0..1

    >>> import numpy as np
    >>> read_image(np.full((5, 7), 0.5), 3)[0, 0].tolist()
    [128, 128, 128]
    """
    if size < 1:
        raise ValueError(f"size must be at least 1 pixel, got {size}")
    package = pillow()
    if isinstance(source, str | os.PathLike):
        return of_file(Path(source), size, package)
    if isinstance(source, package.Image.Image):
        return fitted(opaque(source, "the image", package), size, package)
    return fitted(package.Image.fromarray(bytes_of(source)), size, package)


def read_images(sources: Sequence[Any], size: int) -> Array:
    """Several images, [count, size, size, 3], some at a time."""
    if not len(sources):
        return np.empty((0, size, size, 3), np.uint8)
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:  # Pillow lets other threads run while it decodes
        return np.stack(list(pool.map(read_image, sources, repeat(size))))


def of_file(path: Path, size: int, package: Any) -> Array:
    """The image of a file; an error names it, and says what to do."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; an image is a file")
    if not path.exists():
        raise FileNotFoundError(f"there is no image {path}")
    if not path.stat().st_size:
        raise ValueError(f"{path} is empty: fetch or copy the image again")
    pixels = package.Image
    try:
        with pixels.open(path) as image:
            refuse_huge(path, image.width * image.height)
            image.draft(None, (2 * size, 2 * size))  # a large JPEG is decoded at a half, a quarter or an eighth
            return fitted(opaque(image, str(path), package), size, package)
    except (pixels.DecompressionBombError, pixels.DecompressionBombWarning) as error:
        said = re.search(r"\d+", str(error))
        refuse_huge(path, int(said[0]) if said else 2 * MOST_PIXELS)
        raise RefusedError(f"{path} is refused by Pillow's own limit: {error}") from None
    except package.UnidentifiedImageError:
        raise ValueError(f"{path} is no image that Pillow can read: convert it to PNG or JPEG") from None
    except (RefusedError, MemoryError):
        raise
    except Exception as error:  # a broken file makes Pillow's readers fail in ways of their own
        raise ValueError(f"{path} is cut short or broken: fetch or copy it again ({error})") from None


class RefusedError(ValueError):
    """Ours, and not one of Pillow's."""


def refuse_huge(path: Path, pixels: int) -> None:
    """Before anything is decoded."""
    if pixels > MOST_PIXELS:
        raise RefusedError(f"{path} has {pixels:,} pixels; at most {MOST_PIXELS:,} are read: scale it down")


def opaque(image: "Image.Image", name: str, package: Any) -> "Image.Image":
    """The image turned as it is to be seen, in RGB, on white where it is transparent."""
    image = package.ImageOps.exif_transpose(image)
    if image.mode == "F" or image.mode.startswith("I"):
        return package.Image.fromarray(eight_bits(image, name))  # type: ignore[no-any-return]
    if not image.has_transparency_data:
        return image.convert("RGB")
    over = image.convert("RGBA")
    white = package.Image.new("RGBA", over.size, "white")
    return package.Image.alpha_composite(white, over).convert("RGB")  # type: ignore[no-any-return]


def eight_bits(image: "Image.Image", name: str) -> Array:
    """Grey in 16 bits, or in floats from 0 to 1, as uint8 [height, width]."""
    values = np.asarray(image)
    top = 1.0 if image.mode == "F" else 65535.0
    low, high = float(values.min()), float(values.max())
    if not (low >= 0 and high <= top):  # NaN is refused too
        raise RefusedError(f"{name} must have values from 0 to {top:g}, got {low:g} to {high:g}: save it with 8 bits")
    return np.rint(values * (255.0 / top)).astype(np.uint8)


def fitted(image: "Image.Image", size: int, package: Any) -> Array:
    """The middle square, scaled: the short side becomes `size`, and of the long one the ends are cut."""
    side = min(image.size)
    left, top = (image.width - side) / 2, (image.height - side) / 2
    box = (left, top, left + side, top + side)
    square = image.convert("RGB").resize((size, size), package.Image.Resampling.BICUBIC, box=box)
    return np.asarray(square)


def bytes_of(values: Any) -> Array:
    """An array as uint8; one that may mean something else is refused."""
    array = np.asarray(values)
    fits = array.ndim == 2 or (array.ndim == 3 and array.shape[2] == 3)
    kind = array.dtype == np.uint8 or np.issubdtype(array.dtype, np.floating)
    if fits and kind and array.size:
        if array.dtype == np.uint8:
            return np.ascontiguousarray(array)
        if array.min() >= 0 and array.max() <= 1:
            return np.rint(array * 255.0).astype(np.uint8)
    spread = ""
    if array.size and np.issubdtype(array.dtype, np.number) and not np.iscomplexobj(array):
        spread = f", from {array.min():g} to {array.max():g}"
    raise ValueError(
        "an image must be [height, width, 3] or [height, width], uint8 or floats from 0 to 1,"
        f" got {array.dtype} of shape {list(array.shape)}{spread}"
    )


class LeftOut(NamedTuple):
    """What of a table and a folder could not be used."""

    captions: int  # how many have no image
    missing: list[str]  # the images that they name
    images: list[str]  # in the folder, without a caption
    blank: list[int]  # lines whose caption is empty

    def __str__(self) -> str:
        parts = (
            (self.missing, f"{self.captions} captions without their image ({quote_names(self.missing, LISTED)})"),
            (self.images, f"{len(self.images)} images without a caption ({quote_names(self.images, LISTED)})"),
            (self.blank, f"{len(self.blank)} empty captions (the first in line {self.blank[0]})" if self.blank else ""),
        )
        return ", ".join(said for found, said in parts if found)


class Captions(NamedTuple):
    """Images, each with one or more captions, in the order of the table."""

    images: list[Path]
    captions: list[list[str]]
    left_out: LeftOut


def read_captions(path: str | Path, folder: str | Path) -> Captions:
    """A table of images and captions, by tabs or commas, a caption a line; several lines may name one image.

    The columns are image and caption, in this order, or as a first line names them. Between tabs a caption is taken as
    it stands; between commas one with a comma or a quotation mark in it is quoted. `#0` behind an image's name counts
    its captions, and is dropped. Images are named from `folder`; what has none, or no caption, is said in `left_out`.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "dog.jpg").write_bytes(b"")
    ...     table = Path(folder, "captions.tsv")
    ...     _ = table.write_text("dog.jpg\\ta dog\\ndog.jpg\\tit runs\\ngone.jpg\\ta cat\\n")
    ...     found = read_captions(table, folder)
    >>> found.captions, found.left_out.missing
    ([['a dog', 'it runs']], ['gone.jpg'])
    """
    path, folder = Path(path), Path(folder)
    if not folder.is_dir():
        raise NotADirectoryError(f"{folder} is no folder; the images of {path} must be in one")
    found: dict[str, list[str]] = {}
    blank = []
    for line, name, caption in captions_in(path):
        said = found.setdefault(re.sub(r"#\d+$", "", name.strip()), [])
        if caption.strip():
            said.append(caption.strip())
        else:
            blank.append(line)
    missing = [name for name, said in found.items() if said and not (folder / name).is_file()]
    used = {name: said for name, said in found.items() if said and name not in set(missing)}
    there = (file.relative_to(folder) for file in sorted(folder.rglob("*")) if file.suffix.lower() in SUFFIXES)
    named = {Path(name) for name in used}
    idle = [str(file) for file in there if file not in named]
    left = LeftOut(sum(len(found[name]) for name in missing), missing, idle, blank)
    if not used:
        raise ValueError(f"no image in {folder} has a caption in {path}: {left}")
    return Captions([folder / name for name in used], list(used.values()), left)


def captions_in(path: Path) -> Iterator[tuple[int, str, str]]:
    """Line, image and caption."""
    image, caption, count = 0, 1, 2
    for place, (line, row) in enumerate(rows_of(path)):
        names = [cell.strip().lower() for cell in row]
        if place == 0 and {"image", "caption"} <= set(names):
            image, caption, count = names.index("image"), names.index("caption"), len(names)
            continue
        if len(row) != count:
            raise ValueError(
                f"{path} must have {count} columns, image and caption among them; line {line} has {len(row)}: "
                f"{' | '.join(row)[:80]!r} (between commas, a caption with a comma in it must be quoted)"
            )
        yield line, row[image], row[caption]


def rows_of(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Line and cells of what is not blank, between tabs where the first line has one, else between commas."""
    lines = read_text(path).split("\n")
    if "\t" in next(line for line in lines if line.strip()):
        yield from ((number, line.split("\t")) for number, line in enumerate(lines, 1) if line.strip())
        return
    reader = csv.reader((line + "\n" for line in lines), strict=True)
    try:
        for row in reader:
            if any(cell.strip() for cell in row):
                yield reader.line_num, row
    except csv.Error as error:
        raise ValueError(f"{path}, line {reader.line_num}: {error}; is a quotation mark left open?") from None
