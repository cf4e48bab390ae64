"""The tables of settings in the pages are those that the estimators declare."""

import re
import runpy
from pathlib import Path

import pytest

import regard

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {
    "tables": ["AttentionRegressor", "NadarayaWatson"],
    "statistics": ["PartiallyLinear"],
    "bags": ["BagClassifier"],
    "translation": ["Translator"],
    "captions": ["Captioner"],
    "language": ["Writer"],
}


@pytest.mark.parametrize("page", PAGES)
def test_the_tables_of_a_page_are_up_to_date(page):
    text = (DOCS / f"{page}.md").read_text()
    names = re.findall("<!-- settings: (.*) -->", text)
    assert names == PAGES[page]
    assert text == runpy.run_path(str(DOCS / "settings_tables.py"))["with_tables"](text), "run make settings"


@pytest.mark.parametrize("page", PAGES)
def test_a_table_has_a_row_for_each_setting(page):
    text = (DOCS / f"{page}.md").read_text()
    for name in PAGES[page]:
        assert [one for one in getattr(regard, name)().get_params() if f"| `{one}` |" not in text] == []


@pytest.mark.slow
def test_the_reference_lists_the_settings_of_an_estimator():
    griffe = pytest.importorskip("griffe")  # part of the docs extra
    extension = runpy.run_path(str(DOCS / "plain_docstrings.py"))["PlainDocstrings"]()
    module = griffe.load("regard.estimators.writing.estimator", extensions=griffe.Extensions(extension))
    docstring = module["Writer"].docstring.value
    assert "| `context` | `256` |" in docstring
    assert "```pycon\n>>> writer" in docstring
