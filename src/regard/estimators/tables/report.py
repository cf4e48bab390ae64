"""Results as a table to read: facts, then a row for each column; as text, in a notebook, and as a frame."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from regard.data.columns import Floats
from regard.data.tables import import_pandas

if TYPE_CHECKING:
    from pandas import DataFrame

Cell = str | float
_RULE = "="


@dataclass(frozen=True, repr=False)
class Report:
    """A title, facts by name, and a table with a name for each row; `notes` say how the numbers are meant.

    >>> report = Report("Fit", {"rows": "20"}, ["x"], {"bandwidth": [0.25]})
    >>> print(report)
    Fit
    ============
    rows      20
    ------------
       bandwidth
    x       0.25
    ============
    >>> report.to_frame().bandwidth.tolist()
    [0.25]
    """

    title: str
    facts: Mapping[str, str]
    names: Sequence[str]  # of the rows
    table: Mapping[str, Sequence[Cell]]  # columns by name
    notes: Sequence[str] = field(default=())

    def to_frame(self) -> "DataFrame":
        """The table: a row for each name, with unrounded numbers."""
        return import_pandas().DataFrame(dict(self.table), index=list(self.names))

    def __repr__(self) -> str:
        rows = [["", *self.table], *([name, *cells] for name, cells in zip(self.names, self._cells(), strict=True))]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join([row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))])
            for row in rows
        ]
        known = max(map(len, self.facts), default=0)
        width = max([*map(len, lines), *(known + 4 + len(value) for value in self.facts.values())])
        facts = [f"{name:<{known}}{value:>{width - known}}" for name, value in self.facts.items()]
        body = [self.title, _RULE * width, *facts, "-" * width, *lines, _RULE * width, *self.notes]
        return "\n".join(line.rstrip() for line in body)

    def _repr_html_(self) -> str:
        """The same for a notebook."""
        facts = "".join(f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in self.facts.items())
        head = "".join(f"<th>{escape(name)}</th>" for name in ("", *self.table))
        rows = "".join(
            f"<tr><th>{escape(name)}</th>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"
            for name, cells in zip(self.names, self._cells(), strict=True)
        )
        notes = "".join(f"<p>{escape(note)}</p>" for note in self.notes)
        return f"<p>{escape(self.title)}</p><table>{facts}</table><table><tr>{head}</tr>{rows}</table>{notes}"

    def _cells(self) -> list[list[str]]:
        """The cells of the table as text, row by row."""
        return [[_shown(column[row]) for column in self.table.values()] for row in range(len(self.names))]


def coefficient_table(coefficient: Floats, error: Floats, freedom: int) -> dict[str, list[float]]:
    """Coefficients with standard errors, t, p-values and 95 % intervals, as statsmodels has them."""
    from scipy import stats  # it takes long to import

    with np.errstate(divide="ignore", invalid="ignore"):
        t = coefficient / error
    reach = stats.t.ppf(0.975, freedom) * error
    columns = {
        "coef": coefficient,
        "std err": error,
        "t": t,
        "P>|t|": 2 * stats.t.sf(np.abs(t), freedom),
        "[0.025": coefficient - reach,
        "0.975]": coefficient + reach,
    }
    return {name: column.tolist() for name, column in columns.items()}


def _shown(cell: Cell) -> str:
    """A number with four digits; nothing for NaN."""
    if isinstance(cell, str):
        return cell
    return "" if cell != cell else f"{cell:.4g}"
