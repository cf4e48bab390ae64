"""Texts: UTF-8 files, pairs of sentences, and batches of pairs with little padding.

    read_lines("train.de"), read_lines("train.en")      two files, line by line
    read_pairs("pairs.tsv")                             one file, source TAB target

A batch has a maximum number of tokens, not of rows, and sentences of similar length: little of it is padding.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from regard.data.tokenizers import END, PADDING, START

Group = TypeVar("Group")
Batch = TypeVar("Batch")


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
    return read_text(text) if is_name or os.path.isfile(text) else text


def checked_text(name: str, text: object) -> str:
    """The text; raises TypeError if it is not a string, ValueError if UTF-8 cannot encode it (half a surrogate)."""
    if not isinstance(text, str):
        raise TypeError(f"{name} must be a text, got {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} is not UTF-8 at character {error.start + 1}: write it in UTF-8") from None
    return text


class Pairs(NamedTuple):
    """Sources and their targets."""

    sources: list[str]
    targets: list[str]


def read_pairs(path: str | Path) -> Pairs:
    """Sources and targets of a file with a tab between them; further columns are ignored."""
    pairs = Pairs([], [])
    lines = read_lines(path)
    while not lines[-1].strip() and "\t" not in lines[-1]:  # a line with a tab alone is a pair of empty sentences
        lines.pop()
    for number, line in enumerate(lines, 1):
        source, *others = line.split("\t")
        if not others:
            raise ValueError(
                f"{path} must have a source and a target in each line, with a tab between them, got none in line"
                f" {number}: {line[:60]!r}"
            )
        pairs.sources.append(source)
        pairs.targets.append(others[0])
    return pairs


def as_sentences(lines: Iterable[str], name: str = "sentences") -> list[str]:
    """A list of texts from a list, an array, a column of a table, or any other iterable."""
    if isinstance(lines, str):
        raise TypeError(f"{name} must be a list of texts, got one text: put it in a list")
    if isinstance(lines, Mapping) or hasattr(lines, "columns") or not isinstance(lines, Iterable):
        kind = type(lines).__name__
        raise TypeError(f"{name} must be a list of texts, got {kind}; of a table give one column")
    return [checked_text(f"{name}[{index}]", line) for index, line in enumerate(lines)]


def as_pairs(sources: Iterable[str], targets: Iterable[str]) -> Pairs:
    """Sources and targets as lists; raises unless each source has its target."""
    pairs = Pairs(as_sentences(sources, "sources"), as_sentences(targets, "targets"))
    if len(pairs.sources) != len(pairs.targets):
        raise ValueError(
            f"each source needs its target, got {len(pairs.sources)} sources and {len(pairs.targets)} targets"
        )
    if not pairs.sources:
        raise ValueError("there must be at least one pair of sentences, got none")
    return pairs


class PairBatch(NamedTuple):
    """Pairs of sentences as a model takes them."""

    source: Tensor  # [rows, n], padded at the end
    lengths: Tensor  # [rows]
    target: Tensor  # [rows, m], from START to END, padded at the end


def pad_rows(rows: Sequence[Sequence[int]]) -> Tensor:
    """Rows of tokens as one tensor `[rows, longest]`, padded at the end."""
    return pad_sequence([torch.tensor(row, dtype=torch.long) for row in rows], batch_first=True, padding_value=PADDING)


def pair_batch(sources: Sequence[list[int]], targets: Sequence[list[int]]) -> PairBatch:
    """The tokens of pairs as a batch.

    >>> pair_batch([[5, 6], [7]], [[8], [9, 9]]).target.tolist()
    [[1, 8, 2, 0], [1, 9, 9, 2]]
    """
    lengths = torch.tensor([len(source) for source in sources])
    return PairBatch(pad_rows(sources), lengths, pad_rows([[START, *target, END] for target in targets]))


@dataclass(frozen=True)
class Batches(Generic[Group, Batch]):
    """The batches of an epoch, each made of its group when the loop takes it."""

    groups: Sequence[Group]
    make: Callable[[Group], Batch]

    def __len__(self) -> int:
        return len(self.groups)

    def __iter__(self) -> Iterator[Batch]:
        return map(self.make, self.groups)


def token_batches(
    sources: Sequence[list[int]], targets: Sequence[list[int]], tokens: int, seed: tuple[int, int] = (0, 0)
) -> Batches[list[int], PairBatch]:
    """The batches of an epoch: pairs of similar length, with a maximum number of tokens on either side."""
    source = np.array([len(row) for row in sources])
    target = np.array([len(row) for row in targets]) + 1  # START, or END, with it
    groups = shuffled_groups((source, target), np.maximum(source, target), tokens, seed)
    return Batches(groups, lambda group: pair_batch([sources[i] for i in group], [targets[i] for i in group]))


def shuffled_groups(
    lengths: tuple[NDArray[np.int64], ...], costs: NDArray[np.int64], limit: int, seed: tuple[int, int]
) -> list[list[int]]:
    """Indices of sentences of similar length, in groups with at most `limit` rows times the largest cost.

    The seed decides which sentences of equal length are together, and the order of the groups; not their number.

    lengths   to sort by, the last one first
    """
    random = np.random.default_rng(seed)
    order = np.lexsort((random.random(len(costs)), *lengths))
    groups = [order[group].tolist() for group in group_by_tokens(costs[order], limit)]
    random.shuffle(groups)
    return groups


def group_by_tokens(lengths: Iterable[int], tokens: int) -> list[slice]:
    """Consecutive sentences in groups: rows times the longest length is at most `tokens`, except for a single row.

    >>> group_by_tokens([2, 3, 3, 9, 4], 9)
    [slice(0, 3, None), slice(3, 4, None), slice(4, 5, None)]
    """
    groups, start, longest, end = [], 0, 0, 0
    for index, length in enumerate(lengths):
        longest, end = max(longest, int(length)), index + 1
        if index > start and longest * (end - start) > tokens:
            groups.append(slice(start, index))
            start, longest = index, int(length)
    return [*groups, slice(start, end)] if end else []
