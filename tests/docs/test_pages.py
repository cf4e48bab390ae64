"""The code in README and the pages runs, README prints what it shows, and links point to existing files."""

import contextlib
import io
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
CHAPTERS = sorted(f"course/{page.stem}" for page in (ROOT / "docs" / "course").glob("*.md"))
SLOW = (
    "bags",
    "captions",
    "language",
    "statistics",
    "tables",
    "translation",
    "course/3-sequence-to-sequence",
    "course/4-captions",
)
"""Pages whose code trains models for several seconds."""
SHORTER = {
    "captions": {"scenes(200,": "scenes(40,", "epochs=2": "epochs=1"},
    "language": {"[:120_000]": "[:30_000]", "steps=150": "steps=10"},
    "translation": {"dates(1500)": "dates(100)", "epochs=5": "epochs=1"},
    "course/3-sequence-to-sequence": {"dates(1000)": "dates(100)", "epochs=3": "epochs=1"},
    "course/4-captions": {"scenes(150,": "scenes(40,", "epochs=2": "epochs=1"},
    "course/7-the-language-model": {"[:60_000]": "[:30_000]", "steps=60": "steps=10"},
}
"""Of these pages, which claim no quality, the amounts of data and training, and those that the tests use instead."""
PAGES = [pytest.param(page, marks=pytest.mark.slow) for page in SLOW]
PAGES += [page for page in ("layers", "distributed", "watch", "huggingface", *CHAPTERS) if page not in SLOW]


def run(code, name):
    """The output of a block of code."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile(code, name, "exec"), {})
    return output.getvalue()


@pytest.mark.slow
def test_code_in_the_readme_is_short_and_prints_what_it_shows():
    [(code, shown)] = re.findall(r"```python\n(.*?)```\s*```text\n(.*?)```", README, re.DOTALL)
    assert len([line for line in code.splitlines() if line and not line.startswith(("import", "from"))]) <= 12
    assert run(code, "README.md") == shown


def test_links_point_to_existing_files():
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert (page.parent / target).exists() or target.startswith("https://"), f"{page.name}: {target}"


def test_every_page_is_in_the_navigation():
    nav = (ROOT / "mkdocs.yml").read_text()
    pages = [page.relative_to(ROOT / "docs") for page in (ROOT / "docs").rglob("*.md")]
    assert len(pages) > 20
    assert [str(page) for page in pages if str(page) not in nav] == []


def test_every_chapter_has_a_formula_one_line_of_attention_a_figure_and_an_exercise():
    assert CHAPTERS
    for chapter in CHAPTERS:
        text = (ROOT / "docs" / f"{chapter}.md").read_text()
        assert text.count("# this is the line") == 1, chapter
        assert re.search(r"regard\.attend\(.*# this is the line", text), chapter
        for part in ("## What to notice", "## Exercise", "!["):
            assert part in text, chapter
        assert re.search(r"^    \S.*[=←]", text, re.MULTILINE), chapter


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_code_in_the_pages_runs(page):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / f"{page}.md").read_text(), re.DOTALL)
    assert blocks
    for amount, less in SHORTER.get(page, {}).items():
        assert sum(code.count(amount) for code in blocks) == 1, amount
        blocks = [code.replace(amount, less) for code in blocks]
    for code in blocks:
        run(code, f"{page}.md")


def test_glossary_is_alphabetical():
    terms = re.findall(r"^\*\*(.+?)\*\*", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)
    keys = [re.sub("[^a-z]", "", term.lower()) for term in terms]
    assert len(terms) > 40
    assert keys == sorted(set(keys))
