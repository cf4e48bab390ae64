"""Images are read as a viewer shows them."""

import io
import struct
import sys
import zlib

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image

from regard.data.images import read_image, read_images


def quarters(height=20, width=20):
    """Red and green above, blue and white below."""
    picture = np.zeros((height, width, 3), np.uint8)
    picture[: height // 2, : width // 2, 0] = 255
    picture[: height // 2, width // 2 :, 1] = 255
    picture[height // 2 :, : width // 2, 2] = 255
    picture[height // 2 :, width // 2 :] = 255
    return picture


def corners(read):
    """The colours of the four corners, by name."""
    names = {
        (255, 0, 0): "red",
        (0, 255, 0): "green",
        (0, 0, 255): "blue",
        (255, 255, 255): "white",
        (0, 0, 0): "black",
    }
    return [names[tuple(round(v / 255) * 255 for v in read[y, x])] for y, x in ((0, 0), (0, -1), (-1, 0), (-1, -1))]


def saved(tmp_path, image, name="image.png", **settings):
    path = tmp_path / name
    image.save(path, **settings)
    return path


def by_hand(picture, size):
    """Mean over whole blocks of the middle square: the slow definition, for sides that divide."""
    height, width, _ = picture.shape
    side = min(height, width)
    top, left, block = (height - side) // 2, (width - side) // 2, side // size
    middle = picture[top : top + side, left : left + side].astype(float)
    return middle.reshape(size, block, size, block, 3).mean((1, 3))


@pytest.mark.parametrize("shape", [(33, 55), (55, 33), (33, 33)])
def test_it_is_the_middle_square_scaled(tmp_path, shape):
    rows, columns = np.mgrid[: shape[0], : shape[1]]
    picture = np.stack([rows * 4, columns * 4, rows + columns], -1).astype(np.uint8)
    read = read_image(saved(tmp_path, Image.fromarray(picture)), 11)
    assert (read.shape, read.dtype) == ((11, 11, 3), np.uint8)
    # Inside, a straight slope has the same mean under every kernel that is even.
    assert_allclose(read[2:-2, 2:-2], by_hand(picture, 11)[2:-2, 2:-2], atol=1)
    assert_array_equal(read_image(picture, 11), read)
    assert_array_equal(read_image(Image.fromarray(picture), 11), read)


def test_an_image_of_that_size_stays_as_it_is(tmp_path):
    picture = np.random.default_rng(0).integers(0, 256, (7, 7, 3), dtype=np.uint8)
    assert_array_equal(read_image(saved(tmp_path, Image.fromarray(picture)), 7), picture)
    assert_array_equal(read_image(picture, 7), picture)


def test_one_pixel_is_enough():
    assert_array_equal(read_image(np.full((1, 1, 3), 9, np.uint8), 5), np.full((5, 5, 3), 9))
    assert read_image(quarters(3, 500), 1).shape == (1, 1, 3)


def test_large_photos_are_decoded_small_and_keep_what_can_be_seen(tmp_path):
    squares = np.random.default_rng(0).integers(0, 2, (200, 200, 1), dtype=np.uint8).repeat(3, -1) * 255
    picture = np.kron(squares, np.ones((4, 4, 1), np.uint8))
    path = saved(tmp_path, Image.fromarray(picture), "photo.jpg", quality=95, subsampling=0)
    with Image.open(path) as image:
        image.draft(None, (400, 400))
        assert image.size == (400, 400)
    assert np.abs(read_image(path, 200).astype(int) - read_image(picture, 200)).mean() < 20


def test_grey_palette_and_sixteen_bits(tmp_path):
    ramp = np.linspace(0, 255, 8).round().astype(np.uint8)[None].repeat(8, 0)
    grey = np.repeat(ramp[..., None], 3, -1)
    assert_array_equal(read_image(saved(tmp_path, Image.fromarray(ramp)), 8), grey)
    assert_array_equal(read_image(saved(tmp_path, Image.fromarray(ramp), "g.gif"), 8), grey)
    wide = ramp.astype(np.uint16) * 257
    assert_array_equal(read_image(saved(tmp_path, Image.fromarray(wide), "wide.png"), 8), grey)
    assert_array_equal(read_image(saved(tmp_path, Image.fromarray(wide), "wide.tif"), 8), grey)
    floats = Image.fromarray((ramp / 255).astype(np.float32))
    assert_array_equal(read_image(saved(tmp_path, floats, "float.tif"), 8), grey)
    palette = Image.fromarray(quarters()).convert("P", palette=Image.Palette.ADAPTIVE)
    assert corners(read_image(saved(tmp_path, palette), 20)) == ["red", "green", "blue", "white"]
    inks = Image.fromarray(quarters()).convert("CMYK")
    assert corners(read_image(saved(tmp_path, inks, "inks.jpg", quality=95), 20)) == ["red", "green", "blue", "white"]
    two = Image.fromarray(ramp > 100)
    assert_array_equal(read_image(saved(tmp_path, two, "two.png"), 8), np.where(grey > 100, 255, 0))


def test_what_is_transparent_stands_on_white(tmp_path):
    clear = np.dstack([quarters(), np.full((20, 20), 255, np.uint8)])
    clear[:10, :10, 3] = 0
    clear[:10, 10:, 3] = 128
    read = read_image(saved(tmp_path, Image.fromarray(clear)), 20)
    assert_array_equal(read[0, 0], [255, 255, 255])
    assert_allclose(read[0, -1], [127, 255, 127], atol=1)
    assert_array_equal(read[-1, 0], [0, 0, 255])
    palette = Image.fromarray(quarters()).convert("P", palette=Image.Palette.ADAPTIVE)
    path = saved(tmp_path, palette, "p.png", transparency=palette.getpixel((0, 0)))
    assert corners(read_image(path, 20)) == ["white", "green", "blue", "white"]
    grey = Image.fromarray(np.dstack([np.zeros((4, 4), np.uint8), np.zeros((4, 4), np.uint8)]), "LA")
    assert_array_equal(read_image(saved(tmp_path, grey, "la.png"), 4), np.full((4, 4, 3), 255))


@pytest.mark.parametrize(
    ("orientation", "expected"),
    [
        (1, ["red", "green", "blue", "white"]),
        (2, ["green", "red", "white", "blue"]),  # mirrored
        (3, ["white", "blue", "green", "red"]),  # half a turn
        (6, ["blue", "red", "white", "green"]),  # a quarter to the right
        (8, ["green", "white", "red", "blue"]),  # a quarter to the left
    ],
)
def test_it_is_turned_as_its_camera_says(tmp_path, orientation, expected):
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = saved(tmp_path, Image.fromarray(quarters(40, 40)), "photo.jpg", exif=exif, quality=95)
    assert corners(read_image(path, 20)) == expected


def test_missing_broken_and_foreign_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no image .*none\.jpg"):
        read_image(tmp_path / "none.jpg", 8)
    with pytest.raises(IsADirectoryError, match="is a folder; an image is a file"):
        read_image(tmp_path, 8)
    text = tmp_path / "text.jpg"
    text.write_text("no picture")
    with pytest.raises(ValueError, match=r"text\.jpg is no image that Pillow can read: convert it to PNG or JPEG"):
        read_image(str(text), 8)
    text.write_bytes(b"")
    with pytest.raises(ValueError, match=r"text\.jpg is empty"):
        read_image(text, 8)


@pytest.mark.parametrize("kind", ["jpg", "png", "gif", "tif", "bmp", "webp"])
def test_a_file_that_is_cut_short_is_named(tmp_path, kind):
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    path = saved(tmp_path, Image.fromarray(noise), f"cut.{kind}")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=rf"cut\.{kind} is (cut short or broken: fetch or copy it again|no image)"):
        read_image(path, 8)


def header(width, height):
    """A PNG of a few bytes that says how large it is."""
    chunk = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = b"IDAT" + zlib.compress(b"\0")
    ended = b"".join(
        struct.pack(">I", len(c) - 4) + c + struct.pack(">I", zlib.crc32(c)) for c in (chunk, data, b"IEND")
    )
    return b"\x89PNG\r\n\x1a\n" + ended


@pytest.mark.parametrize(("width", "height"), [(10_000, 8_001), (10_000, 10_000), (65_000, 65_000)])
def test_more_pixels_than_memory_are_refused_before_they_are_decoded(tmp_path, width, height):
    path = tmp_path / "bomb.png"
    path.write_bytes(header(width, height))
    with pytest.raises(ValueError, match=rf"bomb\.png has {width * height:,} pixels; at most 80,000,000 are read"):
        read_image(path, 8)


def test_a_limit_that_was_set_in_pillow_holds_too(tmp_path, monkeypatch):
    path = saved(tmp_path, Image.fromarray(quarters()))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(ValueError, match=r"image\.png is refused by Pillow's own limit: .*400 pixels"):
        read_image(path, 8)


def test_a_large_image_within_the_limit_is_decoded(tmp_path):
    path = tmp_path / "large.png"
    path.write_bytes(header(10_000, 8_000))
    with pytest.raises(ValueError, match=r"large\.png is cut short or broken"):
        read_image(path, 8)


def test_arrays_say_what_they_are():
    picture = quarters()
    assert_array_equal(read_image(picture / 255.0, 20), picture)
    assert_array_equal(read_image((picture / 255.0).astype(np.float32), 20), picture)
    assert_array_equal(read_image(picture[..., 0], 20), np.repeat(picture[..., :1], 3, -1))
    assert_array_equal(read_image(picture[:, ::-1], 20), picture[:, ::-1])


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((4, 4, 4), np.uint8), r"got uint8 of shape \[4, 4, 4\], from 0 to 0"),
        (np.zeros((3, 5, 7), np.uint8), r"got uint8 of shape \[3, 5, 7\]"),
        (np.full((4, 4, 3), 255.0), r"got float64 of shape \[4, 4, 3\], from 255 to 255"),
        (np.full((4, 4, 3), -0.5), "from -0.5 to -0.5"),
        (np.full((4, 4, 3), np.nan), "from nan to nan"),
        (np.zeros((4, 4, 3), np.int64), "got int64"),
        (np.zeros((0, 4, 3), np.uint8), r"got uint8 of shape \[0, 4, 3\]$"),
        (np.zeros((4, 4), bool), "got bool"),
        (None, "got object"),
        ([["a"]], r"got <U1 of shape \[1, 1\]$"),
    ],
)
def test_other_arrays_are_refused(array, message):
    with pytest.raises(ValueError, match=message):
        read_image(array, 8)


def test_numbers_out_of_range_in_a_file_are_refused(tmp_path):
    path = saved(tmp_path, Image.fromarray(np.full((4, 4), 7.0, np.float32)), "f.tif")
    with pytest.raises(ValueError, match=r"f\.tif must have values from 0 to 1, got 7 to 7: save it with 8 bits"):
        read_image(path, 4)
    path = saved(tmp_path, Image.fromarray(np.full((4, 4), np.nan, np.float32)), "n.tif")
    with pytest.raises(ValueError, match=r"n\.tif must have values from 0 to 1, got nan to nan"):
        read_image(path, 4)
    path = saved(tmp_path, Image.fromarray(np.full((4, 4), -3, np.int32)), "i.tif")
    with pytest.raises(ValueError, match=r"i\.tif must have values from 0 to 65535, got -3 to -3"):
        read_image(path, 4)


def test_a_size_is_a_number_of_pixels():
    with pytest.raises(ValueError, match="size must be at least 1 pixel, got 0"):
        read_image(quarters(), 0)


def test_several_are_stacked_in_their_order(tmp_path):
    path = saved(tmp_path, Image.fromarray(quarters()))
    read = read_images([quarters()[::-1], path, quarters()], 10)
    assert read.shape == (3, 10, 10, 3)
    assert corners(read[0]) == ["blue", "white", "red", "green"]
    assert_array_equal(read[1], read[2])
    assert read_images([], 10).shape == (0, 10, 10, 3)


def test_pillow_is_asked_for_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(ModuleNotFoundError, match=r'images need the package pillow: pip install "regard\[all\]"'):
        read_image(quarters(), 8)


def test_bytes_are_no_image(tmp_path):
    buffer = io.BytesIO()
    Image.fromarray(quarters()).save(buffer, "PNG")
    with pytest.raises(ValueError, match="an image must be"):
        read_image(buffer.getvalue(), 8)
