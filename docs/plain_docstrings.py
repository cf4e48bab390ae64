"""Docstrings in the reference: columns, formulas and examples keep their lines, and estimators list their settings."""

import importlib
import re
from typing import Any

import griffe

COLUMNS = re.compile(r"^\S.*?\S {3,}\S", re.MULTILINE)


class PlainDocstrings(griffe.Extension):
    """Converts each docstring to Markdown."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        if obj.docstring:
            first, *rest = map(as_markdown, obj.docstring.value.split("\n\n"))
            obj.docstring.value = "\n\n".join([first, *settings(obj), *rest])


def as_markdown(paragraph: str) -> str:
    """A paragraph of a docstring as Markdown: examples and columns are fenced."""
    if paragraph.lstrip().startswith(">>>"):
        return f"```pycon\n{paragraph}\n```"
    if paragraph.startswith("    ") or COLUMNS.search(paragraph):
        return f"```text\n{paragraph}\n```"
    return paragraph


def settings(obj: Any) -> list[str]:
    """The table of settings of a class that declares them, which the source of its docstring does not have."""
    if not obj.is_class or not any("with_settings" in str(decorator.value) for decorator in obj.decorators):
        return []
    from regard.estimators.settings import settings_table

    return [settings_table(getattr(importlib.import_module(obj.module.path), obj.name))]
