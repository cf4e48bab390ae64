"""Every public name says what it is and its shapes, and has an example that runs; the reference shows all of them.

What is public is what the reference shows. The examples themselves are run as doctests, by pytest.
"""

import importlib
import inspect
import re
from pathlib import Path

import pytest

import regard

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^::: (\S+)\n    options:\n      members: \[([^\]]+)\]$", re.MULTILINE)
SHOWN = [
    (module, name.strip())
    for page in sorted((ROOT / "docs" / "reference").glob("*.md"))
    for module, names in BLOCK.findall(page.read_text())
    for name in names.split(",")
]
LISTED = ("regard", "regard.layers", "regard.estimators", "regard.decoding", "regard.training")
PLAIN = {"masks", "scores", "weighing", "layers", "NOTHING", "Step"}
"""Modules, a constant, and a type: they have no docstring of their own to put an example in."""


def written(module, name):
    """What a public name says of itself: a callable object that is made once, its class."""
    found = getattr(importlib.import_module(module), name)
    return found if inspect.isclass(found) or inspect.isroutine(found) else type(found)


def without_example(things):
    """Those whose own docstring has none."""
    return [thing.__qualname__ for thing in things if ">>> " not in (thing.__doc__ or "")]


def test_all_that_is_public_is_in_the_reference():
    assert len(SHOWN) == len(set(SHOWN)) > 80
    shown = {name for _, name in SHOWN}
    for home in LISTED:
        assert set(importlib.import_module(home).__all__) - PLAIN - shown == set(), home
    for page in (ROOT / "docs" / "reference").glob("*.md"):
        assert page.read_text().count(":::") == len(BLOCK.findall(page.read_text())), page.name
        assert f"reference/{page.name}" in (ROOT / "mkdocs.yml").read_text()


@pytest.mark.parametrize("module", sorted({module for module, _ in SHOWN}))
def test_every_public_name_has_an_example(module):
    names = [name for home, name in SHOWN if home == module]
    assert without_example(written(module, name) for name in names) == []
    assert inspect.getdoc(importlib.import_module(module))


def test_a_name_without_an_example_is_noticed():
    class Plain:
        """It has none."""

    class Child(regard.Captioner):
        pass

    assert without_example([Plain, Child, regard.attend]) == [Plain.__qualname__, Child.__qualname__]
