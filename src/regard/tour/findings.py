"""What a station of the tour is, and what it finds.

A station is a generator, `(folder, seed, quick) -> findings`, which may write into its folder. What it has found
before it fails is kept. The page and the table are made of findings alone: a station draws and measures, and knows
nothing of either.
"""

import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple


class Row(NamedTuple):
    """A line of the table: how a model does, and how what came before it does on the same data."""

    data: str
    model: str
    measure: str  # what the scores are: "error", "accuracy"
    score: float
    baseline: str  # the model it is compared with
    baseline_score: float
    lower: bool = False  # whether a lower score is the better one

    @property
    def better(self) -> bool:
        """Whether the model is better than its baseline."""
        return self.score < self.baseline_score if self.lower else self.score > self.baseline_score


class Picture(NamedTuple):
    """A figure to look at."""

    name: str  # of its file
    figure: Any  # a matplotlib Figure, some five inches wide: as wide as a phone shows at the size of its letters
    title: str  # what there is to see
    text: str  # two or three sentences
    alt: str  # what is in it, for who does not see it


class Passage(NamedTuple):
    """Something to read."""

    title: str
    text: str
    passage: str


class Saved(NamedTuple):
    """A model folder, and commands that open it."""

    folder: Path
    commands: tuple[str, ...]


def typed(*words: str | Path) -> str:
    """A command as it is typed into a shell.

    >>> typed("regard", "info", "my tour/model")
    "regard info 'my tour/model'"
    """
    return shlex.join(map(str, words))


Finding = Row | Picture | Passage | Saved
Visit = Callable[[Path, int, bool], Iterator[Finding]]


@dataclass(frozen=True)
class Station:
    """One stop: its name on the command line, its title, a sentence or two, and what happens there.

    findings   the number of findings, for the progress bar
    chapter    its place in the tour: the chapter of the course
    threads    how many the small models there are quickest with; None: all there are
    """

    name: str
    title: str
    text: str
    visit: Visit
    findings: int
    chapter: int
    threads: int | None = 1
