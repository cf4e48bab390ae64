"""Text files: what is read, and what an error says."""

import pytest

from regard.data.text import checked_text, read_lines, split_lines, text_or_file


def test_lines_keep_their_number(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfeins\r\n\r\nzwei drei\n")
    assert read_lines(path) == ["eins", "", "zwei drei"]
    path.write_text("ohne Ende")
    assert read_lines(path) == ["ohne Ende"]
    assert split_lines("") == []


def test_a_text_is_a_file_or_itself(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "book").write_text("the content\n")
    assert text_or_file("book") == text_or_file(tmp_path / "book") == "the content\n"
    for text in ("see notes.txt", "a\nb.txt", "x" * 10_000, "null\0byte"):
        assert text_or_file(text) == text


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (None, FileNotFoundError, r"there is no file .*text\.txt"),
        (b"good\nba\xffd\n", ValueError, "not UTF-8: line 2 has the byte 0xff"),
        (b"\n \n", ValueError, r"text\.txt is empty"),
    ],
)
def test_a_file_that_cannot_be_read_raises(tmp_path, content, error, message):
    path = tmp_path / "text.txt"
    if content is not None:
        path.write_bytes(content)
    for given in (path, str(path)):
        with pytest.raises(error, match=message):
            text_or_file(given)


def test_invalid_texts_raise(tmp_path):
    with pytest.raises(IsADirectoryError, match="is a folder, expected a text file"):
        text_or_file(tmp_path)
    with pytest.raises(TypeError, match="a path or a text, got bytes"):
        text_or_file(b"text")
    with pytest.raises(ValueError, match="the text is empty"):
        text_or_file(" \n")
    with pytest.raises(TypeError, match="prompt must be a text, got int"):
        checked_text("prompt", 3)
    with pytest.raises(ValueError, match="prompt is not UTF-8 at character 4: write it in UTF-8"):
        checked_text("prompt", "caf\udce9")
    assert checked_text("prompt", "café ☃") == "café ☃"
