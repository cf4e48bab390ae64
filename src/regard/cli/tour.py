"""What the command line says of the tour: a table that grows, and where the page is."""

import io
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from regard.estimators import SUBJECTS, subject_module
from regard.tour import Visited, chosen, layers, tour
from regard.tour.html import COLUMNS, PAGE, cells

STATIONS = sorted(
    [*layers.STATIONS, *(each for name in SUBJECTS for each in subject_module(name, "station").STATIONS)],
    key=lambda each: each.chapter,
)
"""The stations of all subjects, in the order of the course."""
NARROWEST = 100
"""Columns of a table that goes to a file."""


def run(out: Path, only: str, seed: int, quick: bool) -> bool:
    """Visit the stations, and print the rows of each as soon as it is done. Whether all went well."""
    stations = chosen(STATIONS, [name.strip() for name in only.split(",") if name.strip()])
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a console that has no ε shall not end the tour
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = NARROWEST
    well = True
    for place, visit in enumerate(tour(stations, out, seed, quick)):
        console.print(rows_of(visit, heading=place == 0))
        if visit.error:
            console.print(f"{visit.station.title} failed: {visit.error}", soft_wrap=True)
        well = well and not visit.error
    console.print(f"\nlook at {out / PAGE}", soft_wrap=True)
    return well


def rows_of(visit: Visited, heading: bool) -> Table:
    """A station's part of the table. Widths depend on the terminal alone, so that the parts stand in line."""
    table = Table(box=None, show_header=heading, expand=True, padding=(0, 2, 0, 0), header_style="bold")
    for name, share in zip(COLUMNS, (5, 7, 6, 5, 6, 0), strict=True):
        if share:
            table.add_column(name, ratio=share)
        else:
            table.add_column(name, width=7, justify="right")
    for row, seconds in visit.rows:
        table.add_row(visit.station.title, *cells(row, seconds))
    return table
