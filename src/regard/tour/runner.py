"""Run the stations one after the other, and rewrite the page after each.

Each station has its own folder, its own progress bar and its own random numbers from one seed: alone it yields the
same as among the others. If one fails, its findings so far stay, its error is shown, and the next one starts.

The page is one HTML file that contains its pictures, loads nothing and runs no script. Its template is `page.html`.
"""

import base64
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from regard.files import write_text
from regard.progress import ProgressBar
from regard.torch_modes import small_steps
from regard.tour.findings import COLUMNS, Picture, Row, Station, Visit

PAGE, _TITLE = "index.html", "<title>The tour of Regard</title>"
_DPI, _QUICK_DPI = 200, 100


def select_stations(stations: Sequence[Station], only: Sequence[str]) -> list[Station]:
    """The stations with these names, in the order of the tour; all by default."""
    names = [station.name for station in stations]
    unknown = [name for name in only if name not in names]
    if unknown:
        raise ValueError(f"a station must be one of {', '.join(names)}, got {', '.join(map(repr, unknown))}")
    return [station for station in stations if not only or station.name in only]


def run_stations(stations: Sequence[Station], out: Path, seed: int = 0, quick: bool = False) -> Iterator[Visit]:
    """Run each station; the page `index.html` in `out` is rewritten before a visit is yielded."""
    if out.exists() and not out.is_dir():
        raise FileExistsError(f"{out} is a file; the tour needs a folder")
    out.mkdir(parents=True, exist_ok=True)
    _check_page(out / PAGE)
    done: list[Visit] = []
    try:
        for number, station in enumerate(stations, 1):
            describe = f"{station.title} ({number} of {len(stations)})"
            done.append(_visit(station, out / station.name, seed, quick, describe))
            _write_page(out, done, left=len(stations) - number, quick=quick)
            yield done[-1]
    except KeyboardInterrupt:
        if not done:
            raise
        _write_page(out, done, left=len(stations) - len(done), quick=quick, stopped=True)
        raise KeyboardInterrupt(f"the results so far are in {out / PAGE}") from None


def _check_page(path: Path) -> None:
    """Raise rather than overwrite a page that the tour did not write."""
    if path.exists() and _TITLE not in path.read_text(encoding="utf-8", errors="replace"):
        raise FileExistsError(f"{path} was not written by the tour and would be overwritten: choose another folder")


def _write_page(out: Path, done: Sequence[Visit], left: int, quick: bool, stopped: bool = False) -> None:
    """Write the page with the stations so far; `left` is the number of stations that are missing."""
    from jinja2 import Template  # torch needs it too

    def image(station: str, name: str) -> str:
        """The content of a picture's file, as text."""
        return base64.b64encode((out / station / f"{name}.png").read_bytes()).decode()

    text = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    template = Template(text, autoescape=True, trim_blocks=True)
    state = {"left": left, "quick": quick, "stopped": stopped}
    write_text(out / PAGE, template.render(done=done, **state, columns=COLUMNS, image=image, zip=zip))


def _visit(station: Station, folder: Path, seed: int, quick: bool, describe: str) -> Visit:
    """Run one station; an error is part of the result."""
    from threadpoolctl import threadpool_limits  # scikit-learn needs it too

    visit = Visit(station)
    bar = ProgressBar(describe, station.findings)
    with torch.random.fork_rng(devices=[]), small_steps(), threadpool_limits(1, user_api="blas"), bar:
        torch.manual_seed(seed)
        since = time.perf_counter()
        bar.update(done=0)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for finding in station.visit(folder, seed, quick):
                if isinstance(finding, Picture):
                    path = folder / f"{finding.name}.png"
                    finding.figure.savefig(path, dpi=_QUICK_DPI if quick else _DPI, pil_kwargs={"optimize": True})
                if isinstance(finding, Row):
                    now = time.perf_counter()
                    visit.rows.append((finding, now - since))
                    since = now
                visit.findings.append(finding)
                bar.update(done=len(visit.findings))
        except Exception as error:  # the other stations run all the same
            visit.error = " ".join(f"{type(error).__name__}: {error}".split())
            visit.trace = traceback.format_exc()
    return visit
