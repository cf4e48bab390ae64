"""The report of the tour: one HTML file with its pictures inside. It asks nothing of the network, and runs no script.

The page is written under a temporary name and renamed: whoever opens it while the tour goes on sees a whole one.
"""

import base64
import html
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from regard.files import write_text
from regard.tour.findings import Finding, Passage, Picture, Row, Saved

if TYPE_CHECKING:
    from regard.tour.runner import Visited

PAGE, TITLE = "index.html", "<title>The tour of Regard</title>"
STYLE = """
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
TYPED = (
    "Where the tour was started, with its environment active (after <code>make demo</code>:"
    " <code>source .venv/bin/activate</code>):"
)
BEHIND = (
    "No better here than what came before: {}. What is said of the pictures is what to see when they are trained for"
    " long enough."
)
RULE = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
"""What the browser may load for the page: nothing that is not in it."""


def check_ours(out: Path) -> None:
    """A page that some other program wrote, or a person, is not written over."""
    path = out / PAGE
    if path.exists() and TITLE not in path.read_text(encoding="utf-8", errors="replace"):
        raise FileExistsError(f"{path} is not a page of the tour, and would be written over: give another folder")


def write_page(out: Path, done: "Sequence[Visited]", left: int = 0, quick: bool = False, stopped: bool = False) -> Path:
    """Write the page of what was visited so far; `left` says how many stations are still to come, or never will."""
    path = out / PAGE
    write_text(path, page(out, done, left, quick, stopped))
    return path


def page(out: Path, done: "Sequence[Visited]", left: int, quick: bool, stopped: bool) -> str:
    """The whole page."""
    notes = [
        "A quick tour: less data and fewer steps. Scores are worse than those of the whole one, and much that is said"
        " of the pictures can only be seen there."
        if quick
        else "",
        f"The tour was stopped: {left} of its stations are not here." if stopped else "",
        f"The tour is still under way: {left} more to come." if left and not stopped else "",
    ]
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{RULE}">
<link rel="icon" href="data:,">
{TITLE}
<style>{STYLE}</style>
</head>
<body>
<header>
<h1>From kernel regression to the Transformer</h1>
<p>Attention is one operation, score → weigh → average. Every station puts other parts into it, trains it here, on this
machine, and shows what it looked at and how it compares with what came before it.</p>
{"".join(f'<p class="soft">{note}</p>' for note in notes if note)}
</header>
<main>
{table(done)}
{"".join(section(out, visit) for visit in done)}
</main>
</body>
</html>
"""


def table(done: "Sequence[Visited]") -> str:
    """All rows of all stations; a station that failed says so."""
    lines = []
    for visit in done:
        link = f'<a href="#{visit.station.name}">{escaped(visit.station.title)}</a>'
        lines += [line([link, *map(escaped, cells(row, seconds))], row.better) for row, seconds in visit.rows]
        if visit.error:
            lines.append(f'<tr><td>{link}</td><td colspan="5" class="alarm">failed: {escaped(visit.error)}</td></tr>\n')
    head = "".join(f'<th scope="col">{name}</th>' for name in COLUMNS)
    return f"<table><thead><tr>{head}</tr></thead><tbody>\n{''.join(lines)}</tbody></table>\n"


def cells(row: Row, seconds: float) -> tuple[str, ...]:
    """A line of the table but its station, as text."""
    score, baseline = f"{row.measure} {number(row.score)}", f"{number(row.baseline_score)}, {row.baseline}"
    return row.data, row.model, score, baseline, f"{seconds:.1f}"


def number(value: float) -> str:
    """Three digits; what is as good as 0 by its power of ten."""
    return f"{value:.1e}" if 0 < abs(value) < 5e-4 else f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def line(contents: Sequence[str], better: bool) -> str:
    """A line of the table; on a phone, each cell stands below the other with its name."""
    marks = {"Score": ' class="better"'} if better else {}
    made = "".join(
        f'<td data-name="{name}"{marks.get(name, "")}>{content}</td>'
        for name, content in zip(COLUMNS, contents, strict=True)
    )
    return f"<tr>{made}</tr>\n"


def section(out: Path, visit: "Visited") -> str:
    """A station: what it is, what there is to see, and which models are left to try."""
    station = visit.station
    shown = "".join(block(out, station.name, found) for found in visit.findings if not isinstance(found, Saved))
    saved = [found for found in visit.findings if isinstance(found, Saved)]
    commands = "\n".join(command for found in saved for command in found.commands)
    tried = f"<h3>Try it yourself</h3>\n<p>{TYPED}</p>\n<pre>{escaped(commands)}</pre>\n" if saved else ""
    short = [row.model for row, _ in visit.rows if not row.better]
    behind = f'<p class="soft">{BEHIND.format(escaped(", ".join(short)))}</p>\n' if short else ""
    failed = ""
    if visit.error:
        failed = (
            f'<p class="alarm">This station failed: {escaped(visit.error)}</p>\n'
            f"<details><summary>where</summary><pre>{escaped(visit.trace)}</pre></details>\n"
        )
    return (
        f'<section id="{station.name}">\n<h2>{escaped(station.title)}</h2>\n<p>{escaped(station.text)}</p>\n'
        f'{failed}{behind}<div class="findings">\n{shown}</div>\n{tried}</section>\n'
    )


def block(out: Path, station: str, found: Finding) -> str:
    """A picture or a passage, with its title and its text."""
    if isinstance(found, Picture):
        data = base64.b64encode((out / station / f"{found.name}.png").read_bytes()).decode()
        image = f'<img alt="{escaped(found.alt)}" src="data:image/png;base64,{data}">'
        return (
            f"<figure>\n<figcaption><h3>{escaped(found.title)}</h3></figcaption>\n{image}\n"
            f"<p>{escaped(found.text)}</p>\n</figure>\n"
        )
    if isinstance(found, Passage):
        return (
            f"<figure>\n<figcaption><h3>{escaped(found.title)}</h3></figcaption>\n<pre>{escaped(found.passage)}</pre>\n"
            f"<p>{escaped(found.text)}</p>\n</figure>\n"
        )
    return ""


def escaped(text: str) -> str:
    """Text as HTML has it."""
    return html.escape(text)
