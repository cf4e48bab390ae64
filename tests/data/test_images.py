"""Images are read as a viewer shows them, captions with their images; batches of captions."""

import io
import struct
import sys
import zlib

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image

from regard.data.images import (
    as_images,
    caption_batches,
    describe_left_out,
    encode_captions,
    match_captions,
    read_captions,
    read_image,
    read_images,
)
from regard.data.tokenizers import UNKNOWN, word_tokenizer


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
def test_the_middle_square_is_scaled(tmp_path, shape):
    rows, columns = np.mgrid[: shape[0], : shape[1]]
    picture = np.stack([rows * 4, columns * 4, rows + columns], -1).astype(np.uint8)
    read = read_image(saved(tmp_path, Image.fromarray(picture)), 11)
    assert (read.shape, read.dtype) == ((11, 11, 3), np.uint8)
    # Inside, a linear function has the same mean under every symmetric kernel.
    assert_allclose(read[2:-2, 2:-2], by_hand(picture, 11)[2:-2, 2:-2], atol=1)
    assert_array_equal(read_image(picture, 11), read)
    assert_array_equal(read_image(Image.fromarray(picture), 11), read)


def test_an_image_of_the_right_size_is_unchanged(tmp_path):
    picture = np.random.default_rng(0).integers(0, 256, (7, 7, 3), dtype=np.uint8)
    assert_array_equal(read_image(saved(tmp_path, Image.fromarray(picture)), 7), picture)
    assert_array_equal(read_image(picture, 7), picture)


def test_one_pixel_is_enough():
    assert_array_equal(read_image(np.full((1, 1, 3), 9, np.uint8), 5), np.full((5, 5, 3), 9))
    assert read_image(quarters(3, 500), 1).shape == (1, 1, 3)


def test_large_photos_are_decoded_at_a_smaller_size(tmp_path):
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


def test_transparent_pixels_are_white(tmp_path):
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
def test_an_image_is_rotated_by_its_exif_tag(tmp_path, orientation, expected):
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = saved(tmp_path, Image.fromarray(quarters(40, 40)), "photo.jpg", exif=exif, quality=95)
    assert corners(read_image(path, 20)) == expected


def test_errors_name_missing_and_foreign_files(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no image .*none\.jpg"):
        read_image(tmp_path / "none.jpg", 8)
    with pytest.raises(IsADirectoryError, match="is a folder; an image is a file"):
        read_image(tmp_path, 8)
    text = tmp_path / "text.jpg"
    text.write_text("no picture")
    with pytest.raises(ValueError, match=r"text\.jpg is not an image that Pillow can read: convert it to PNG or JPEG"):
        read_image(str(text), 8)
    text.write_bytes(b"")
    with pytest.raises(ValueError, match=r"text\.jpg is empty"):
        read_image(text, 8)


@pytest.mark.parametrize("kind", ["jpg", "png", "gif", "tif", "bmp", "webp"])
def test_an_error_names_a_file_that_is_cut_short(tmp_path, kind):
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    path = saved(tmp_path, Image.fromarray(noise), f"cut.{kind}")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=rf"cut\.{kind} is (cut short or broken: fetch or copy it again|not an image)"):
        read_image(path, 8)


def header(width, height):
    """A PNG of a few bytes, with a size in its header."""
    chunk = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = b"IDAT" + zlib.compress(b"\0")
    ended = b"".join(
        struct.pack(">I", len(c) - 4) + c + struct.pack(">I", zlib.crc32(c)) for c in (chunk, data, b"IEND")
    )
    return b"\x89PNG\r\n\x1a\n" + ended


@pytest.mark.parametrize(("width", "height"), [(10_000, 8_001), (10_000, 10_000), (65_000, 65_000)])
def test_too_many_pixels_raise_before_they_are_decoded(tmp_path, width, height):
    path = tmp_path / "bomb.png"
    path.write_bytes(header(width, height))
    ours = rf"must have at most 80,000,000 pixels, got {width * height:,}: scale it down"
    pillows = rf"has more pixels than Pillow's own limit: scale it down .*{width * height} pixels"
    with pytest.raises(ValueError, match=rf"bomb\.png ({ours}|{pillows})"):
        read_image(path, 8)


def test_the_limit_of_pillow_holds_too(tmp_path, monkeypatch):
    path = saved(tmp_path, Image.fromarray(quarters()))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(
        ValueError, match=r"image\.png has more pixels than Pillow's own limit: scale it down .*400 pixels"
    ):
        read_image(path, 8)


def test_a_large_image_within_the_limit_is_decoded(tmp_path):
    path = tmp_path / "large.png"
    path.write_bytes(header(10_000, 8_000))
    with pytest.raises(ValueError, match=r"large\.png is cut short or broken"):
        read_image(path, 8)


def test_arrays_of_each_type_are_read():
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
def test_other_arrays_raise(array, message):
    with pytest.raises(ValueError, match=message):
        read_image(array, 8)


def test_values_out_of_range_in_a_file_raise(tmp_path):
    path = saved(tmp_path, Image.fromarray(np.full((4, 4), 7.0, np.float32)), "f.tif")
    with pytest.raises(ValueError, match=r"f\.tif must have values from 0 to 1, got 7 to 7: save it with 8 bits"):
        read_image(path, 4)
    path = saved(tmp_path, Image.fromarray(np.full((4, 4), np.nan, np.float32)), "n.tif")
    with pytest.raises(ValueError, match=r"n\.tif must have values from 0 to 1, got nan to nan"):
        read_image(path, 4)
    path = saved(tmp_path, Image.fromarray(np.full((4, 4), -3, np.int32)), "i.tif")
    with pytest.raises(ValueError, match=r"i\.tif must have values from 0 to 65535, got -3 to -3"):
        read_image(path, 4)


def test_size_must_be_positive():
    with pytest.raises(ValueError, match="size must be at least 1 pixel, got 0"):
        read_image(quarters(), 0)


def test_several_images_are_stacked_in_their_order(tmp_path):
    path = saved(tmp_path, Image.fromarray(quarters()))
    read = read_images([quarters()[::-1], path, quarters()], 10)
    assert read.shape == (3, 10, 10, 3)
    assert corners(read[0]) == ["blue", "white", "red", "green"]
    assert_array_equal(read[1], read[2])
    assert read_images([], 10).shape == (0, 10, 10, 3)


def test_an_error_says_how_to_install_pillow(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ModuleNotFoundError, match=r'images need the package pillow: pip install "regard\[all\]"'):
        read_image(quarters(), 8)


def test_bytes_raise(tmp_path):
    buffer = io.BytesIO()
    Image.fromarray(quarters()).save(buffer, "PNG")
    with pytest.raises(ValueError, match="an image must be"):
        read_image(buffer.getvalue(), 8)


@pytest.fixture
def folder(tmp_path):
    """Three images, one of them in a subfolder."""
    photos = tmp_path / "photos"
    (photos / "more").mkdir(parents=True)
    for name in ("a.jpg", "b.PNG", "more/c.jpg"):
        (photos / name).write_bytes(b"x")
    (photos / "notes.txt").write_text("no image")
    return photos


def write_table(tmp_path, text, name="captions.tsv"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


TABLES = {
    "tabs.tsv": 'b.PNG\tA dog , "Rex" .\na.jpg\tA cat .\nb.PNG\tTwo dogs\nmore/c.jpg\tA tree\n',
    "headed.tsv": 'image\tcaption\nb.PNG\tA dog , "Rex" .\na.jpg\tA cat .\nb.PNG\tTwo dogs\nmore/c.jpg\tA tree\n',
    "swapped.tsv": (
        'Caption\tn\tImage\nA dog , "Rex" .\t1\tb.PNG\nA cat .\t1\ta.jpg\nTwo dogs\t2\tb.PNG\nA tree\t1\tmore/c.jpg'
    ),
    "commas.csv": 'b.PNG,"A dog , ""Rex"" ."\na.jpg,A cat .\nb.PNG,Two dogs\n\nmore/c.jpg,A tree\n',
    "headed.txt": 'image,caption\r\nb.PNG,"A dog , ""Rex"" ."\r\na.jpg,A cat .\r\nb.PNG,Two dogs\r\nmore/c.jpg,A tree',
    "counted.txt": 'b.PNG#0\tA dog , "Rex" .\na.jpg#0\tA cat .\nb.PNG#1\tTwo dogs\nmore/c.jpg#0\tA tree\n',
    "marked.tsv": '\ufeffimage\tcaption\nb.PNG\tA dog , "Rex" .\na.jpg\tA cat .\nb.PNG\tTwo dogs\nmore/c.jpg\t A tree',
}


@pytest.mark.parametrize("name", TABLES)
def test_captions_are_grouped_by_image(tmp_path, folder, name):
    table = read_captions(write_table(tmp_path, TABLES[name], name), str(folder))
    assert table.images == [folder / "b.PNG", folder / "a.jpg", folder / "more/c.jpg"]
    assert table.captions == [['A dog , "Rex" .', "Two dogs"], ["A cat ."], ["A tree"]]
    assert not any(table.left_out.values())
    assert describe_left_out(table.left_out) == ""


def test_images_without_captions_and_captions_without_images_are_listed(tmp_path, folder):
    path = write_table(tmp_path, "a.jpg\tA cat\nz.jpg\tone\nz.jpg\ttwo\ny.jpg\tthree\nb.PNG\t \nb.PNG\t\nx.jpg\t\n")
    images, captions, left_out = read_captions(path, folder)
    assert (images, captions) == ([folder / "a.jpg"], [["A cat"]])
    assert list(left_out.values()) == [
        ["z.jpg", "z.jpg", "y.jpg"],
        ["b.PNG", "more/c.jpg"],
        ["line 5", "line 6", "line 7"],
    ]
    assert describe_left_out(left_out) == (
        "3 captions without their image ('z.jpg', 'y.jpg'), 2 images without a caption ('b.PNG', 'more/c.jpg'), "
        "3 empty captions ('line 5', 'line 6', 'line 7')"
    )


def test_a_table_without_any_image_raises(tmp_path, folder):
    path = write_table(tmp_path, "".join(f"{n}.jpg\tA cat\n" for n in range(7)))
    with pytest.raises(ValueError, match=r"no image in .*photos has a caption in .*captions\.tsv: 7 captions") as error:
        read_captions(path, folder)
    assert "('0.jpg', '1.jpg', '2.jpg', '3.jpg', '4.jpg', and 2 more), 3 images" in str(error.value)
    with pytest.raises(NotADirectoryError, match="elsewhere is not a folder; it must be the folder of the images in"):
        read_captions(path, tmp_path / "elsewhere")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"a.jpg\tA cat\nb.PNG\tA \xffdog\n", "is not UTF-8: line 2 has the byte 0xff"),
        ("a.jpg\tA cat\nb.PNG\n", r"must have 2 columns, image and caption among them; line 2 has 1: 'b.PNG'"),
        ("a.jpg,A cat, and a dog\n", r"line 1 has 3: 'a.jpg \| A cat \|  and a dog' \(between commas"),
        ("image,caption,n\na.jpg,A cat\n", "must have 3 columns, .*; line 2 has 2"),
        ('a.jpg,"A cat\nb.PNG,A dog\n', "line 3: unexpected end of data; is a quotation mark not closed"),
        ("\n \n", "is empty"),
    ],
)
def test_errors_in_tables_name_the_line(tmp_path, folder, text, message):
    with pytest.raises(ValueError, match=message):
        read_captions(write_table(tmp_path, text), folder)


def test_every_caption_is_in_one_batch_with_captions_of_similar_length():
    captions = [[number + 10] * (1 + number % 7) for number in range(53)]
    images = [number // 2 for number in range(53)]
    batches = caption_batches(images, captions, 8, (0, 3))
    assert len(batches) == 7
    numbers = []
    for batch in batches:
        lengths = (batch.words != 0).sum(dim=1) - 2
        assert lengths.max() - lengths.min() <= 2
        for image, row, length in zip(batch.images.tolist(), batch.words.tolist(), lengths.tolist(), strict=True):
            assert row[0] == 1
            assert row[length + 1] == 2
            number = row[1] - 10
            assert row[1 : length + 1] == captions[number]
            assert image == images[number]
            numbers.append(number)
    assert sorted(numbers) == list(range(53))
    again = caption_batches(images, captions, 8, (0, 3))
    assert [batch.images.tolist() for batch in again] == [batch.images.tolist() for batch in batches]
    other = caption_batches(images, captions, 8, (0, 4))
    assert [batch.images.tolist() for batch in other] != [batch.images.tolist() for batch in batches]


def test_an_image_has_one_or_several_captions_or_is_skipped():
    names = ["a", "b", "c", "d", "e"]
    indices, captions, without, blank = match_captions(
        names, ["one ", ["two", " ", "three", float("nan")], [], None, float("nan")]
    )
    assert indices == [0, 1]
    assert captions == [["one"], ["two", "three"]]
    assert (without, blank) == ([2, 3, 4], 2)


def test_wrong_types_and_lengths_raise():
    with pytest.raises(ValueError, match=r"images and captions must have the same length, got 2 and 1"):
        match_captions(["a", "b"], ["one"])
    with pytest.raises(ValueError, match=r"at least one image must have a caption, got 2 images without captions"):
        match_captions(["a", "b"], ["", []])
    for wrong in (3, [3], [None, 3]):
        with pytest.raises(TypeError, match=r"captions must be texts, got 3 for image 1"):
            match_captions(["a", "b"], ["one", wrong])
    with pytest.raises(TypeError, match=r"captions must be a list"):
        match_captions(["a"], "one")
    with pytest.raises(TypeError, match=r"images must be a list of paths or arrays, got str"):
        as_images("photo.jpg")
    with pytest.raises(
        ValueError, match=r"images must be \[count, height, width, 3\], got one array of shape \[5, 7, 3\]"
    ):
        as_images(np.zeros((5, 7, 3)))
    assert as_images(np.zeros((2, 5, 7, 3))).shape == (2, 5, 7, 3)
    assert as_images(np.array(["a.jpg", "b.jpg"])) == ["a.jpg", "b.jpg"]


def test_a_column_of_a_frame_is_taken_in_its_order():
    frame = pd.DataFrame({"image": ["a", "b", "c"], "caption": ["one", "two", "three"]}).iloc[[2, 0]]
    assert as_images(frame["image"]) == ["c", "a"]
    assert match_captions(frame["image"], frame["caption"])[:2] == ([0, 1], [["three"], ["one"]])


def test_captions_that_are_too_long_or_empty_are_counted():
    tokenizer = word_tokenizer(["a b c d"], special=("<padding>", "<start>", "<end>"))
    images, tokens, skipped = encode_captions(tokenizer, [["a b", "a b c d"], ["!"], ["d x"]], 3)
    assert images == [0, 2]
    assert [tokenizer.decode(ids) for ids in tokens] == ["a b", f"d {UNKNOWN}"]
    assert skipped == {"long": 1, "empty": 1}
    with pytest.raises(
        ValueError, match=r"no caption is left to train on: of 2, 1 have more than longest=1 words, and 1 have none"
    ):
        encode_captions(tokenizer, [["a b"], ["?"]], 1)
