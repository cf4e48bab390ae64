"""A progress bar on stderr for a reader who has waited a second. All long work shows the same one.

Work within other work has its line below that of the other: a second display would write over the first.
"""

import threading
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

PATIENCE_OF_READER = 1.0
"""Seconds that work may take before it shows a bar."""


class Open(threading.local):
    """The displays of a thread's work that is under way, the innermost last."""

    def __init__(self) -> None:
        self.displays: list[Progress] = []


OPEN = Open()


class ProgressBar:
    """A bar with some numbers beside it.

    Nothing is written where stderr is no terminal, and nothing is left of the bar when it is done.
    """

    def __init__(self, describe: str, total: float, *, shown: bool = True) -> None:
        self.inner = shown and bool(OPEN.displays)
        self.bar = OPEN.displays[-1] if self.inner else display(shown)
        self.task = self.bar.add_task(describe, total=total, numbers="", visible=not self.inner)
        self.due = time.monotonic() + PATIENCE_OF_READER
        self.numbers: dict[str, float] = {}

    def __enter__(self) -> Self:
        OPEN.displays.append(self.bar)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        OPEN.displays.pop()
        if self.inner:
            self.bar.remove_task(self.task)
        else:
            self.bar.stop()

    def note(self, done: float | None = None, **numbers: float) -> None:
        """What is new: how much is done, and numbers to show by name."""
        if self.bar.disable:
            return
        self.numbers |= numbers
        shown = "  ".join(f"{name} {number:.4g}" for name, number in self.numbers.items())
        self.bar.update(self.task, completed=done, numbers=shown)
        if time.monotonic() > self.due:
            self.bar.update(self.task, visible=True)
            self.bar.start()


def display(shown: bool) -> Progress:
    """An empty display, for a reader who sits at a terminal."""
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[numbers]}"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        redirect_stdout=False,  # else what is printed meanwhile would go to stderr
        disable=not (shown and console.is_terminal),
    )
