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

    def cells(self, seconds: float) -> tuple[str, ...]:
        """The texts of its COLUMNS, after the first, which is the station."""
        score, baseline = f"{self.measure} {number(self.score)}", f"{number(self.baseline_score)}, {self.baseline}"
        return self.data, self.model, score, baseline, f"{seconds:.1f}"


COLUMNS = ("Station", "Data", "Model", "Score", "Baseline", "Seconds")


def number(value: float) -> str:
    """Three digits; a tiny number with its power of ten."""
    return f"{value:.1e}" if 0 < abs(value) < 5e-4 else f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


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


class Command(NamedTuple):
    """A command that opens a saved model."""

    line: str


def command(*words: str | Path) -> Command:
    """A command, quoted for a shell.

    >>> command("regard", "info", "my tour/model").line
    "regard info 'my tour/model'"
    """
    return Command(shlex.join(map(str, words)))


Finding = Row | Picture | Passage | Command


@dataclass(frozen=True)
class Station:
    """One part of the tour: its name on the command line, its title, a sentence or two, and its generator.

    findings   the number of findings, for the progress bar
    chapter    its place in the tour: the chapter of the course
    """

    name: str
    title: str
    text: str
    visit: Callable[[Path, int, bool], Iterator[Finding]]  # (folder, seed, quick)
    findings: int
    chapter: int


@dataclass
class Visit:
    """What a station yielded."""

    station: Station
    findings: list[Finding] = field(default_factory=list)
    rows: list[tuple[Row, float]] = field(default_factory=list)  # each with the seconds since the row before
    error: str = ""  # one line, if it failed
    trace: str = ""

    @property
    def behind(self) -> list[str]:
        """The models that are not better than their baselines."""
        return [row.model for row, _ in self.rows if not row.better]

    @property
    def exhibits(self) -> list[Picture | Passage]:
        """What is shown beside the table."""
        return [finding for finding in self.findings if isinstance(finding, Picture | Passage)]

    @property
    def commands(self) -> list[str]:
        """The lines of its commands."""
        return [finding.line for finding in self.findings if isinstance(finding, Command)]
