"""Captions are read with the image that they belong to."""

import pytest

from regard.data import images
from regard.data.images import read_captions


@pytest.fixture
def folder(tmp_path):
    """Three images, one of them in a folder of its own."""
    place = tmp_path / "photos"
    (place / "more").mkdir(parents=True)
    for name in ("a.jpg", "b.PNG", "more/c.jpg"):
        (place / name).write_bytes(b"x")
    (place / "notes.txt").write_text("no image")
    return place


def written(tmp_path, text, name="captions.tsv"):
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
def test_captions_are_gathered_by_image(tmp_path, folder, name):
    found = read_captions(written(tmp_path, TABLES[name], name), str(folder))
    assert found.images == [folder / "b.PNG", folder / "a.jpg", folder / "more/c.jpg"]
    assert found.captions == [['A dog , "Rex" .', "Two dogs"], ["A cat ."], ["A tree"]]
    assert found.left_out == images.LeftOut(0, [], [], [])
    assert str(found.left_out) == ""


def test_what_has_no_image_or_no_caption_is_counted_and_listed(tmp_path, folder):
    path = written(tmp_path, "a.jpg\tA cat\nz.jpg\tone\nz.jpg\ttwo\ny.jpg\tthree\nb.PNG\t \nb.PNG\t\nx.jpg\t\n")
    images, captions, left = read_captions(path, folder)
    assert (images, captions) == ([folder / "a.jpg"], [["A cat"]])
    assert left == (3, ["z.jpg", "y.jpg"], ["b.PNG", "more/c.jpg"], [5, 6, 7])
    assert str(left) == (
        "3 captions without their image ('z.jpg', 'y.jpg'), 2 images without a caption ('b.PNG', 'more/c.jpg'), "
        "3 empty captions (the first in line 5)"
    )


def test_it_is_an_error_when_nothing_is_left(tmp_path, folder):
    path = written(tmp_path, "".join(f"{n}.jpg\tA cat\n" for n in range(7)))
    with pytest.raises(ValueError, match=r"no image in .*photos has a caption in .*captions\.tsv: 7 captions") as error:
        read_captions(path, folder)
    assert "('0.jpg', '1.jpg', '2.jpg', '3.jpg', '4.jpg', and 2 more), 3 images" in str(error.value)
    with pytest.raises(NotADirectoryError, match="elsewhere is no folder; the images of"):
        read_captions(path, tmp_path / "elsewhere")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"a.jpg\tA cat\nb.PNG\tA \xffdog\n", "is not UTF-8: line 2 has the byte 0xff"),
        ("a.jpg\tA cat\nb.PNG\n", r"must have 2 columns, image and caption among them; line 2 has 1: 'b.PNG'"),
        ("a.jpg,A cat, and a dog\n", r"line 1 has 3: 'a.jpg \| A cat \|  and a dog' \(between commas"),
        ("image,caption,n\na.jpg,A cat\n", "must have 3 columns, .*; line 2 has 2"),
        ('a.jpg,"A cat\nb.PNG,A dog\n', "line 3: unexpected end of data; is a quotation mark left open"),
        ("\n \n", "is empty"),
    ],
)
def test_broken_tables_are_refused_by_their_line(tmp_path, folder, text, message):
    with pytest.raises(ValueError, match=message):
        read_captions(written(tmp_path, text), folder)
