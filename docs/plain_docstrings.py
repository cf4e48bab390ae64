"""Docstrings as the reference shows them: what stands in columns, formulas and examples keep their lines."""

import re
from typing import Any

import griffe

COLUMNS = re.compile(r"^\S.*?\S {3,}\S", re.MULTILINE)


class PlainDocstrings(griffe.Extension):
    """Fences the paragraphs of each docstring that are no prose."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = "\n\n".join(map(shown, obj.docstring.value.split("\n\n")))


def shown(paragraph: str) -> str:
    """A paragraph as Markdown."""
    if paragraph.lstrip().startswith(">>>"):
        return f"```pycon\n{paragraph}\n```"
    if paragraph.startswith("    ") or COLUMNS.search(paragraph):
        return f"```text\n{paragraph}\n```"
    return paragraph
