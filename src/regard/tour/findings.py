"""What a station of the tour is, and what it yields.

A station is a generator, `(folder, seed, quick) -> findings`, which may write into its folder. If it fails, the
findings so far stay. The page and the table are made of findings alone: a station draws and measures, and does not
know how it is shown.
"""

import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Row(NamedTuple):
    """A row of the table: the score of a model and of its baseline on the same data."""

    data: str
    model: str
    measure: str  # the name of the score: "error", "accuracy"
    score: float
    baseline: str  # the model it is compared with
    baseline_score: float
    lower: bool = False  # whether a lower score is better

    @property
    def better(self) -> bool:
        """Whether the model is better than its baseline."""
        return self.score < self.baseline_score if self.lower else self.score > self.baseline_score


class Picture(NamedTuple):
    """A figure."""

    name: str  # of its file, without .png
    figure: "Figure"  # about five inches wide, so that a phone shows its letters at their size
    title: str  # what it shows
    text: str  # two or three sentences about it
    alt: str  # a description for people who cannot see it


class Passage(NamedTuple):
    """A text to read."""

    title: str
    text: str
    passage: str


class Saved(NamedTuple):
    """A model folder, and commands that open it."""

    folder: Path
    commands: tuple[str, ...]


def command(*words: str | Path) -> str:
    """A command, quoted for a shell.

    >>> command("regard", "info", "my tour/model")
    "regard info 'my tour/model'"
    """
    return shlex.join(map(str, words))


Finding = Row | Picture | Passage | Saved
_Findings = Callable[[Path, int, bool], Iterator[Finding]]  # (folder, seed, quick)


@dataclass(frozen=True)
class Station:
    """One part of the tour: its name on the command line, its title, a sentence or two, and its generator.

    findings   the number of findings, for the progress bar
    chapter    its place in the tour: the chapter of the course
    threads    the number of threads that its small models are fastest with; None: all
    """

    name: str
    title: str
    text: str
    visit: _Findings
    findings: int
    chapter: int
    threads: int | None = 1


@dataclass
class Visit:
    """What a station yielded, and the seconds that each finding took."""

    station: Station
    findings: list[Finding] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    error: str = ""  # one line, if it failed
    trace: str = ""

    @property
    def rows(self) -> list[tuple[Row, float]]:
        """Rows of the table, each with the seconds since the row before."""
        rows, spent = [], 0.0
        for finding, seconds in zip(self.findings, self.seconds, strict=True):
            spent += seconds
            if isinstance(finding, Row):
                rows.append((finding, spent))
                spent = 0.0
        return rows
