"""Tokenizers of pretrained models: text to the ids a model was trained on, and back.

    encode(text) -> list[int]      with the tokens that the model expects around a text
    decode(ids) -> str             without them

A `tokenizer.json` is read by the package `tokenizers`. llama2.c's `tokenizer.bin` is read here: pieces with scores, of
which pairs are joined, best first (byte-pair encoding as sentencepiece has it, Kudo and Richardson 2018).
"""

import heapq
import re
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

JSON = "tokenizer.json"


class Tokenizer(Protocol):
    """What every tokenizer here can do."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Iterable[int]) -> str: ...


def tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer of a model: a folder with `tokenizer.json`, that file itself, or llama2.c's `.bin`.

    >>> import tempfile
    >>> from regard.data.text import characters
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     characters("banana").save(f"{folder}/tokenizer.json")
    ...     words = tokenizer(folder)
    >>> words.decode(words.encode("nab"))
    'nab'
    """
    path = Path(path)
    if path.is_dir():
        path = path / JSON
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not there: a tokenizer is a folder with {JSON}, or llama2.c's .bin")
    return BinTokenizer(path) if path.suffix == ".bin" else JsonTokenizer(path)


class JsonTokenizer:
    """A `tokenizer.json`. Texts are neither cut nor padded, whatever the file says; `inner` is the package's own."""

    def __init__(self, path: str | Path) -> None:
        try:
            import tokenizers
        except ImportError:
            raise ImportError(f"{path} needs the package tokenizers: pip install 'regard[all]'") from None
        try:
            self.inner: tokenizers.Tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the package raises nothing narrower
            raise ValueError(f"{path} is no tokenizer: {error}") from None
        self.inner.no_padding()
        self.inner.no_truncation()

    def encode(self, text: str) -> list[int]:
        return list(self.inner.encode(text).ids)

    def decode(self, ids: Iterable[int]) -> str:
        return str(self.inner.decode(list(ids)))


class BinTokenizer:
    """llama2.c's `tokenizer.bin`.

    Int32 longest piece; then, for each token, float32 score, int32 length and so many bytes of UTF-8. The first
    three tokens stand for what is unknown, for the begin and for the end of a text; 256 pieces `<0x00>` … `<0xFF>` are
    bytes, for characters without a piece. `encode` starts with `begin`, and with a space before the first word, as
    sentencepiece does; `decode` leaves both.
    """

    begin, end = 1, 2

    def __init__(self, path: str | Path) -> None:
        pairs = read_pieces(Path(path))
        self.pieces = [piece for piece, _ in pairs]
        self.joined: dict[bytes, tuple[float, int]] = {}  # piece: (-score, id)
        self.byte: dict[int, int] = {}  # byte: id
        for number, (piece, score) in enumerate(pairs):
            raw = re.fullmatch(rb"<0x([0-9A-F]{2})>", piece)
            if raw:
                self.byte[int(raw[1], 16)] = number
                self.pieces[number] = bytes.fromhex(raw[1].decode())
            elif number > self.end:
                self.joined.setdefault(piece, (-score, number))
        self.text = {number: piece for piece, (_, number) in self.joined.items()}  # what may be joined
        if len(self.byte) < 256:
            raise ValueError(f"{path} must have a piece <0x00> … <0xFF> for each of 256 bytes, found {len(self.byte)}")

    def encode(self, text: str) -> list[int]:
        return [self.begin, *self.join(" " + text)] if text else [self.begin]

    def decode(self, ids: Iterable[int]) -> str:
        found, first = b"", False
        for number in ids:
            if not 0 <= number < len(self.pieces):
                raise ValueError(f"ids must be at least 0 and below {len(self.pieces)}, got {number}")
            if number > self.end:
                piece = self.pieces[number]
                found += piece[1:] if first and piece.startswith(b" ") else piece
            first = number == self.begin
        return found.decode("utf-8", errors="replace")

    def join(self, text: str) -> list[int]:
        """Pairs of neighbours that are a piece are joined, the best score first, the leftmost of equals."""
        ids: list[int] = []  # -1: gone into the neighbour to the left
        for letter in text:
            raw = letter.encode("utf-8", errors="replace")
            ids += [self.joined[raw][1]] if raw in self.joined else [self.byte[byte] for byte in raw]
        after, before = list(range(1, len(ids) + 1)), list(range(-1, len(ids) - 1))
        waiting: list[tuple[float, int, int, int, int]] = []  # -score, place, its id, the id to the right, the new id

        def offer(left: int) -> None:
            if left < 0 or after[left] >= len(ids):
                return
            one, other = ids[left], ids[after[left]]
            found = self.joined.get(self.text.get(one, b"") + self.text.get(other, b""))
            if one in self.text and other in self.text and found is not None:
                heapq.heappush(waiting, (found[0], left, one, other, found[1]))

        for left in range(len(ids) - 1):
            offer(left)
        while waiting:
            _, left, one, other, new = heapq.heappop(waiting)
            right = after[left]
            if ids[left] != one or right >= len(ids) or ids[right] != other:
                continue  # one of the two has been joined with another since
            ids[left], ids[right] = new, -1
            after[left] = after[right]
            if after[left] < len(ids):
                before[after[left]] = left
            offer(before[left])
            offer(left)
        return [number for number in ids if number >= 0]


def read_pieces(path: Path) -> list[tuple[bytes, float]]:
    """The pieces and scores of a `tokenizer.bin`."""
    raw, place, found = path.read_bytes(), 4, list[tuple[bytes, float]]()
    while place < len(raw):
        score, length = struct.unpack_from("<fi", raw, place) if place + 8 <= len(raw) else (0.0, 0)
        start, place = place + 8, place + 8 + length
        if length < 0 or place > len(raw):
            where = f"token {len(found)} ends at byte {place} of {len(raw)}"
            raise ValueError(f"{path} is torn, or no tokenizer of llama2.c: {where}")
        found.append((raw[start:place], score))
    return found
