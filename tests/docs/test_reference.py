"""The reference lists every public name, and each has a docstring with an example.

A name is public if the reference shows it. pytest runs the examples as doctests.
"""

import importlib
import inspect
import re
from pathlib import Path

import pytest

import regard

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "reference").glob("*.md"))
BLOCK = re.compile(r"^::: (\S+)\n    options:\n      members: \[([^\]]+)\]$", re.MULTILINE)
PUBLIC = [
    (module, name.strip())
    for page in PAGES
    for module, names in BLOCK.findall(page.read_text())
    for name in names.split(",")
]
PACKAGES = ("regard", "regard.distributed", "regard.layers", "regard.estimators", "regard.decoding", "regard.training")
WITHOUT_DOCSTRING = {"masks", "scores", "weighing", "distributed", "layers", "NOTHING", "Step"}
"""Modules, a constant and a type alias, which have no docstring of their own."""


def documented(module, name):
    """The class or function that documents a public name: for an instance, its class."""
    value = getattr(importlib.import_module(module), name)
    return value if inspect.isclass(value) or inspect.isroutine(value) else type(value)


def without_example(objects):
    """Names of the objects whose own docstring has no example."""
    return [value.__qualname__ for value in objects if ">>> " not in (value.__doc__ or "")]


def test_every_public_name_is_in_the_reference():
    assert len(PUBLIC) == len(set(PUBLIC)) > 80
    names = {name for _, name in PUBLIC}
    for package in PACKAGES:
        assert set(importlib.import_module(package).__all__) - WITHOUT_DOCSTRING - names == set(), package
    for page in PAGES:
        assert page.read_text().count(":::") == len(BLOCK.findall(page.read_text())), page.name


@pytest.mark.parametrize("module", sorted({module for module, _ in PUBLIC}))
def test_every_public_name_has_an_example(module):
    names = [name for home, name in PUBLIC if home == module]
    assert without_example(documented(module, name) for name in names) == []
    assert inspect.getdoc(importlib.import_module(module))


def test_a_name_without_an_example_is_found():
    class NoExample:
        """It has none."""

    class Child(regard.Captioner):
        pass

    assert without_example([NoExample, Child, regard.attend]) == [NoExample.__qualname__, Child.__qualname__]
