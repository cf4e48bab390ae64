"""The report of the tour: one HTML file that contains its pictures. It loads nothing and runs no script.

The page is written under a temporary name and renamed, so that it is complete whenever it is opened.
"""

import base64
import html
from collections.abc import Sequence
from pathlib import Path

from regard.files import write_text
from regard.tour.findings import Finding, Passage, Picture, Row, Saved, Visit

PAGE, _TITLE = "index.html", "<title>The tour of Regard</title>"
_STYLE = """
:root { color-scheme: light dark; --ink: #1d2733; --soft: #5b6875; --paper: #ffffff; --wash: #f3f6f9; --line: #d5dde5;
  --link: #0072b2; --alarm: #b34000; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6ebf0; --soft: #a3afbb; --paper: #14191f; --wash: #1d242c;
  --line: #35404b; --link: #6cc0f0; --alarm: #ff9f66; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 74rem; padding: 1rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.55 system-ui, sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: .5rem 0; }
h2 { font-size: 1.3rem; line-height: 1.25; margin: 3rem 0 .25rem; padding-top: .75rem;
  border-top: 1px solid var(--line); }
h3 { font-size: 1.02rem; line-height: 1.3; margin: .9rem 0 .2rem; }
p { margin: .3rem 0 .7rem; max-width: 46rem; }
a { color: var(--link); }
.soft { color: var(--soft); }
.alarm { color: var(--alarm); font-weight: 600; }
table { border-collapse: collapse; width: 100%; font-size: .92rem; margin: 1rem 0; }
th, td { text-align: left; vertical-align: top; padding: .4rem .7rem .4rem 0; border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 600; }
.better { font-weight: 600; }
.findings { columns: 27rem 2; column-gap: 2rem; }
figure { margin: 0; padding: .5rem 0 1rem; break-inside: avoid; }
figure img { display: block; width: 100%; height: auto; background: #ffffff; border: 1px solid var(--line);
  border-radius: .4rem; padding: .4rem; }
pre { background: var(--wash); border: 1px solid var(--line); border-radius: .4rem; padding: .7rem; margin: .5rem 0;
  font: .85rem/1.45 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere; }
summary { cursor: pointer; }
@media (max-width: 46rem) {
  thead { display: none; }
  tr { display: block; padding: .6rem 0; border-bottom: 1px solid var(--line); }
  td { display: grid; grid-template-columns: 5.5rem 1fr; border: 0; padding: .1rem 0; }
  td:first-child { display: block; }
  td + td::before { content: attr(data-name); color: var(--soft); font-weight: 400; }
}
"""
COLUMNS = ("Station", "Data", "Model", "Score", "Baseline", "Seconds")
_COMMANDS = (
    "In the folder where the tour was started, with its environment active (after <code>make demo</code>:"
    " <code>source .venv/bin/activate</code>):"
)
_BEHIND = "Not better than the baseline here: {}. The captions of the pictures describe what longer training gives."
_CONTENT_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
"""The browser may load nothing that is not in the page."""


def check_page(out: Path) -> None:
    """Raise rather than overwrite a page that the tour did not write."""
    path = out / PAGE
    if path.exists() and _TITLE not in path.read_text(encoding="utf-8", errors="replace"):
        raise FileExistsError(f"{path} was not written by the tour and would be overwritten: choose another folder")


def write_page(out: Path, done: Sequence[Visit], left: int = 0, quick: bool = False, stopped: bool = False) -> Path:
    """Write the page with the stations so far; `left` is the number of stations that are missing."""
    path = out / PAGE
    write_text(path, _page(out, done, left, quick, stopped))
    return path


def _page(out: Path, done: Sequence[Visit], left: int, quick: bool, stopped: bool) -> str:
    """The whole page."""
    notes = [
        "A quick tour: less data and fewer steps. Scores are worse than those of the full tour, and some pictures do"
        " not show yet what their captions say."
        if quick
        else "",
        f"The tour was stopped: {left} of its stations are missing." if stopped else "",
        f"The tour is still running: {left} more stations to come." if left and not stopped else "",
    ]
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_CONTENT_POLICY}">
<link rel="icon" href="data:,">
{_TITLE}
<style>{_STYLE}</style>
</head>
<body>
<header>
<h1>From kernel regression to the Transformer</h1>
<p>Attention is one operation, score → weigh → average. Every station uses other parts in it, trains it on this
machine, and shows what it looked at, and its score beside that of a baseline.</p>
{"".join(f'<p class="soft">{note}</p>' for note in notes if note)}
</header>
<main>
{_table(done)}
{"".join(_section(out, visit) for visit in done)}
</main>
</body>
</html>
"""


def _table(done: Sequence[Visit]) -> str:
    """All rows of all stations; a station that failed says so."""
    lines = []
    for visit in done:
        link = f'<a href="#{visit.station.name}">{html.escape(visit.station.title)}</a>'
        lines += [_table_row([link, *map(html.escape, cells(row, seconds))], row.better) for row, seconds in visit.rows]
        if visit.error:
            lines.append(
                f'<tr><td>{link}</td><td colspan="5" class="alarm">failed: {html.escape(visit.error)}</td></tr>\n'
            )
    head = "".join(f'<th scope="col">{name}</th>' for name in COLUMNS)
    return f"<table><thead><tr>{head}</tr></thead><tbody>\n{''.join(lines)}</tbody></table>\n"


def cells(row: Row, seconds: float) -> tuple[str, ...]:
    """A row of the table without its station, as text."""
    score, baseline = f"{row.measure} {number(row.score)}", f"{number(row.baseline_score)}, {row.baseline}"
    return row.data, row.model, score, baseline, f"{seconds:.1f}"


def number(value: float) -> str:
    """Three digits; a tiny number with its power of ten."""
    return f"{value:.1e}" if 0 < abs(value) < 5e-4 else f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def _table_row(contents: Sequence[str], better: bool) -> str:
    """A row of the table; on a phone its cells are below each other, each with its name."""
    marks = {"Score": ' class="better"'} if better else {}
    cells_html = "".join(
        f'<td data-name="{name}"{marks.get(name, "")}>{content}</td>'
        for name, content in zip(COLUMNS, contents, strict=True)
    )
    return f"<tr>{cells_html}</tr>\n"


def _section(out: Path, visit: Visit) -> str:
    """A station: its text, its findings, and the commands that open its models."""
    station = visit.station
    shown = "".join(_block(out, station.name, found) for found in visit.findings if not isinstance(found, Saved))
    saved = [found for found in visit.findings if isinstance(found, Saved)]
    commands = "\n".join(command for found in saved for command in found.commands)
    tried = f"<h3>Try it yourself</h3>\n<p>{_COMMANDS}</p>\n<pre>{html.escape(commands)}</pre>\n" if saved else ""
    short = [row.model for row, _ in visit.rows if not row.better]
    behind = f'<p class="soft">{_BEHIND.format(html.escape(", ".join(short)))}</p>\n' if short else ""
    failed = ""
    if visit.error:
        failed = (
            f'<p class="alarm">This station failed: {html.escape(visit.error)}</p>\n'
            f"<details><summary>where</summary><pre>{html.escape(visit.trace)}</pre></details>\n"
        )
    return (
        f'<section id="{station.name}">\n<h2>{html.escape(station.title)}</h2>\n<p>{html.escape(station.text)}</p>\n'
        f'{failed}{behind}<div class="findings">\n{shown}</div>\n{tried}</section>\n'
    )


def _block(out: Path, station: str, found: Finding) -> str:
    """A picture or a passage, with its title and its text."""
    if isinstance(found, Picture):
        data = base64.b64encode((out / station / f"{found.name}.png").read_bytes()).decode()
        image = f'<img alt="{html.escape(found.alt)}" src="data:image/png;base64,{data}">'
        return (
            f"<figure>\n<figcaption><h3>{html.escape(found.title)}</h3></figcaption>\n{image}\n"
            f"<p>{html.escape(found.text)}</p>\n</figure>\n"
        )
    if isinstance(found, Passage):
        return (
            f"<figure>\n<figcaption><h3>{html.escape(found.title)}</h3></figcaption>\n<pre>{html.escape(found.passage)}</pre>\n"
            f"<p>{html.escape(found.text)}</p>\n</figure>\n"
        )
    return ""
