"""Pairs of sentences: a source and its target, a line each, and batches of them with little padding.

    read_lines("train.de"), read_lines("train.en")      two files, line by line
    read_pairs("pairs.tsv")                             one file, source TAB target

A batch has so many tokens, not so many rows, and sentences of about one length: little of it is padding.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.data.text import read_text

PADDING, START, END = 0, 1, 2
SPECIAL = ("<padding>", "<start>", "<end>")
"""The first tokens of every vocabulary that sentences are written in."""


class PairBatch(NamedTuple):
    """Some pairs as a model takes them."""

    source: Tensor  # [rows, n], padded behind
    lengths: Tensor  # [rows]
    target: Tensor  # [rows, m], from START to END, padded behind


def read_lines(path: str | Path) -> list[str]:
    """The lines of a file of UTF-8."""
    return lines_of(read_text(path))


def lines_of(text: str) -> list[str]:
    """The lines of a text; the last may end, or not.

    >>> lines_of("one\\n\\nthree\\n")
    ['one', '', 'three']
    """
    lines = text.split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def read_pairs(path: str | Path) -> tuple[list[str], list[str]]:
    """Sources and targets of a file with a tab between them; what comes behind a second tab is left alone."""
    sources, targets = [], []
    lines = read_lines(path)
    while not lines[-1].strip() and "\t" not in lines[-1]:  # a tab alone is a pair, of nothing and nothing
        lines.pop()
    for number, line in enumerate(lines, 1):
        cells = line.split("\t")
        if len(cells) < 2:
            raise ValueError(
                f"{path} must have a source and a target in each line, with a tab between them, got none in line"
                f" {number}: {line[:60]!r}"
            )
        sources.append(cells[0])
        targets.append(cells[1])
    return sources, targets


class Pairs(NamedTuple):
    """Sources and their targets."""

    sources: list[str]
    targets: list[str]


def as_sentences(lines: Iterable[str], name: str = "sentences") -> list[str]:
    """Texts in their order, from a list, an array, a column of a table, or whatever gives them one by one."""
    if isinstance(lines, str):
        raise TypeError(f"{name} must be a list of texts, got one text: put it in a list")
    if isinstance(lines, Mapping) or hasattr(lines, "columns") or not isinstance(lines, Iterable):
        kind = type(lines).__name__
        raise TypeError(f"{name} must be a list of texts, got {kind}; of a table give one column")
    listed = list(lines)
    for place, line in enumerate(listed):
        if not isinstance(line, str):
            raise TypeError(f"{name} must be texts, got {type(line).__name__} in place {place}")
        if not line.isascii() and any("\ud800" <= mark <= "\udfff" for mark in line):
            raise ValueError(f"{name} must be texts that UTF-8 can hold, got half a surrogate pair in place {place}")
    return listed


def as_pairs(sources: Iterable[str], targets: Iterable[str]) -> Pairs:
    """Each source has its target, and both are sentences."""
    pairs = Pairs(as_sentences(sources, "sources"), as_sentences(targets, "targets"))
    if len(pairs.sources) != len(pairs.targets):
        raise ValueError(
            f"each source needs its target, got {len(pairs.sources)} sources and {len(pairs.targets)} targets"
        )
    if not pairs.sources:
        raise ValueError("there must be at least one pair of sentences, got none")
    return pairs


def padded(rows: Sequence[Sequence[int]]) -> Tensor:
    """Rows of tokens side by side, `[rows, longest]`."""
    whole = torch.full((len(rows), max(map(len, rows))), PADDING)
    for place, row in enumerate(rows):
        whole[place, : len(row)] = torch.tensor(row)
    return whole


def pair_batch(sources: Sequence[list[int]], targets: Sequence[list[int]]) -> PairBatch:
    """Pairs of tokens as a batch.

    >>> pair_batch([[5, 6], [7]], [[8], [9, 9]]).target.tolist()
    [[1, 8, 2, 0], [1, 9, 9, 2]]
    """
    lengths = torch.tensor([len(source) for source in sources])
    return PairBatch(padded(sources), lengths, padded([[START, *target, END] for target in targets]))


class TokenBatches:
    """The batches of an epoch: pairs of about one length, at most so many tokens on either side, drawn by a seed.

    Which pairs of one length are together, and which batch comes when, is drawn. How many batches there are is not.
    """

    def __init__(
        self, sources: Sequence[list[int]], targets: Sequence[list[int]], tokens: int, seed: tuple[int, int] = (0, 0)
    ) -> None:
        self.sources, self.targets = sources, targets
        random = np.random.default_rng(seed)
        source = np.array([len(row) for row in sources])
        target = np.array([len(row) for row in targets]) + 1  # START, or END, with it
        order = np.lexsort((random.random(len(source)), source, target))
        self.groups = [order[group].tolist() for group in grouped(np.maximum(source, target)[order], tokens)]
        random.shuffle(self.groups)

    def __len__(self) -> int:
        return len(self.groups)

    def __iter__(self) -> Iterator[PairBatch]:
        for group in self.groups:
            yield pair_batch([self.sources[i] for i in group], [self.targets[i] for i in group])


def grouped(lengths: Any, tokens: int) -> list[slice]:
    """Neighbours together, such that a group's count times its longest is at most `tokens`; a longer one is alone.

    >>> grouped([2, 3, 3, 9, 4], 9)
    [slice(0, 3, None), slice(3, 4, None), slice(4, 5, None)]
    """
    groups, start, longest = [], 0, 0
    for place, length in enumerate(lengths):
        longest = max(longest, int(length))
        if place > start and longest * (place + 1 - start) > tokens:
            groups.append(slice(start, place))
            start, longest = place, int(length)
    return [*groups, slice(start, len(lengths))] if len(lengths) else []
