"""Visit the stations one after the other, and keep the page up to date.

Each station has a folder of its own, a progress bar, and its own random numbers from one seed, so that it finds the
same alone as among the others. One that fails keeps what it has found, says why, and the next begins.
"""

import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from regard.progress import ProgressBar
from regard.tour.findings import Finding, Picture, Row, Station
from regard.tour.html import check_ours, write_page

DPI = 200


@dataclass
class Visited:
    """A station that was visited: what it found, and how long each finding took since the one before."""

    station: Station
    findings: list[Finding] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    error: str = ""  # in a line, where it failed
    trace: str = ""

    @property
    def rows(self) -> list[tuple[Row, float]]:
        """Lines of the table, each with the seconds since the one before."""
        made, spent = [], 0.0
        for finding, seconds in zip(self.findings, self.seconds, strict=True):
            spent += seconds
            if isinstance(finding, Row):
                made.append((finding, spent))
                spent = 0.0
        return made


def chosen(stations: Sequence[Station], only: Sequence[str]) -> list[Station]:
    """The stations of these names, in the order of the tour; all of them where none is named."""
    names = [station.name for station in stations]
    unknown = [name for name in only if name not in names]
    if unknown:
        raise ValueError(f"a station must be one of {', '.join(names)}, got {', '.join(map(repr, unknown))}")
    return [station for station in stations if not only or station.name in only]


def tour(stations: Sequence[Station], out: Path, seed: int = 0, quick: bool = False) -> Iterator[Visited]:
    """Visit each station; the page `index.html` in `out` is written anew after each, before it is given."""
    if out.exists() and not out.is_dir():
        raise FileExistsError(f"{out} is a file; the tour needs a folder")
    out.mkdir(parents=True, exist_ok=True)
    check_ours(out)
    done: list[Visited] = []
    try:
        for place, station in enumerate(stations, 1):
            describe = f"{station.title} ({place} of {len(stations)})"
            done.append(visited(station, out / station.name, seed, quick, describe))
            write_page(out, done, left=len(stations) - place, quick=quick)
            yield done[-1]
    except KeyboardInterrupt:
        if not done:
            raise
        path = write_page(out, done, left=len(stations) - len(done), quick=quick, stopped=True)
        raise KeyboardInterrupt(f"what was seen so far is in {path}") from None


def visited(station: Station, folder: Path, seed: int, quick: bool, describe: str) -> Visited:
    """What a station finds; a failure is a finding too."""
    visit = Visited(station)
    bar = ProgressBar(describe, station.findings)
    with torch.random.fork_rng(devices=[]), few_threads(station.threads), bar:
        torch.manual_seed(seed)
        since = time.perf_counter()
        bar.note(done=0)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for finding in station.visit(folder, seed, quick):
                if isinstance(finding, Picture):
                    finding.figure.savefig(folder / f"{finding.name}.png", dpi=DPI, pil_kwargs={"optimize": True})
                now = time.perf_counter()
                visit.findings.append(finding)
                visit.seconds.append(now - since)
                since = now
                bar.note(done=len(visit.findings))
        except Exception as error:  # whatever it is, the other stations go on
            visit.error = " ".join(f"{type(error).__name__}: {error}".split())
            visit.trace = traceback.format_exc()
    return visit


@contextmanager
def few_threads(most: int | None) -> Iterator[None]:
    """At most so many threads of torch and NumPy for the time: those of a small model mostly wait for each other."""
    from threadpoolctl import threadpool_limits  # scikit-learn needs it too

    before = torch.get_num_threads()
    fewer = most if most is not None and most < before else None
    torch.set_num_threads(fewer or before)
    try:
        with threadpool_limits(fewer, user_api="blas"):
            yield
    finally:
        torch.set_num_threads(before)
