"""Text files: UTF-8, read with errors that name the line."""

from pathlib import Path


def read_text(path: str | Path) -> str:
    """The content of a UTF-8 file; raises ValueError with the number of the first line that is not UTF-8."""
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder, expected a text file")
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}")
    text = decode_utf8(path.read_bytes(), str(path))
    if not text.strip():
        raise ValueError(f"{path} is empty")
    return text


def decode_utf8(raw: bytes, name: str) -> str:
    """Bytes of UTF-8 as text with \\n at the line ends; `name` is shown in the error."""
    try:
        return raw.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise ValueError(f"{name} is not UTF-8: line {line} has the byte 0x{raw[error.start]:02x}") from None


def split_lines(text: str) -> list[str]:
    """The lines of a text; a line end after the last one is optional.

    >>> split_lines("one\\n\\nthree\\n")
    ['one', '', 'three']
    """
    lines = text.split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def read_lines(path: str | Path) -> list[str]:
    """The lines of a UTF-8 file."""
    return split_lines(read_text(path))


def text_or_file(text: str | Path) -> str:
    """The content of a file, or the text itself.

    A string is a path if such a file exists, or if it ends in .txt and has no white space.
    """
    if isinstance(text, Path):
        return read_text(text)
    if not isinstance(text, str):
        raise TypeError(f"text must be a path or a text, got {type(text).__name__}")
    if not text.strip():
        raise ValueError("the text is empty")
    is_name = text.endswith(".txt") and not any(character.isspace() for character in text)
    return read_text(text) if is_name or is_file(text) else text


def is_file(text: str) -> bool:
    """Whether a text is the path of a file; most texts are too long to be a path."""
    try:
        return Path(text).is_file()
    except (OSError, ValueError):
        return False


def checked_text(name: str, text: object) -> str:
    """The text; raises TypeError if it is not a string, ValueError if UTF-8 cannot encode it (half a surrogate)."""
    if not isinstance(text, str):
        raise TypeError(f"{name} must be a text, got {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} is not UTF-8 at character {error.start + 1}: write it in UTF-8") from None
    return text
