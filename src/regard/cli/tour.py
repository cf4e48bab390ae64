"""`regard tour`: run the stations, print their rows as they finish, and say where the page is."""

import io
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from regard.estimators import SUBJECTS, subject_module
from regard.tour import layers
from regard.tour.findings import COLUMNS, Visit
from regard.tour.runner import PAGE, run_stations, select_stations

STATIONS = sorted(
    [*layers.STATIONS, *(each for name in SUBJECTS for each in subject_module(name, "station").STATIONS)],
    key=lambda each: each.chapter,
)
"""The stations of all subjects, in the order of the course."""
_FILE_WIDTH = 100
"""Width of the table, in characters, where stdout is not a terminal."""


def run(out: Path, only: str, seed: int, quick: bool) -> bool:
    """Run the stations and print their rows. Returns whether all succeeded."""
    stations = select_stations(STATIONS, [name.strip() for name in only.split(",") if name.strip()])
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a console without Greek letters shows "?" instead
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = _FILE_WIDTH
    succeeded = True
    for number, visit in enumerate(run_stations(stations, out, seed, quick)):
        console.print(_rows(visit, heading=number == 0))
        if visit.error:
            console.print(f"{visit.station.title} failed: {visit.error}", soft_wrap=True)
        succeeded = succeeded and not visit.error
    console.print(f"\nlook at {out / PAGE}", soft_wrap=True)
    return succeeded


def _rows(visit: Visit, heading: bool) -> Table:
    """A station's part of the table. Widths depend on the terminal alone, so that the parts line up."""
    table = Table(box=None, show_header=heading, expand=True, padding=(0, 2, 0, 0), header_style="bold")
    for name, ratio in zip(COLUMNS, (5, 7, 6, 5, 6, 0), strict=True):
        if ratio:
            table.add_column(name, ratio=ratio)
        else:
            table.add_column(name, width=7, justify="right")
    for row, seconds in visit.rows:
        table.add_row(visit.station.title, *row.cells(seconds))
    return table
