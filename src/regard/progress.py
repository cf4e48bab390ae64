"""A progress bar on stderr, for work that takes longer than a second. All long work uses this one.

A bar inside another bar's work is a line of the same display: a second display would overwrite the first.
"""

import time
from contextvars import ContextVar
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

DELAY = 1.0
"""Seconds before a bar is shown."""


_DISPLAYS: ContextVar[tuple[Progress, ...]] = ContextVar("displays", default=())
"""The displays of a thread's running bars, the innermost last."""


class ProgressBar:
    """A bar with some numbers beside it.

    Nothing is written if stderr is not a terminal, and the bar is removed at the end.
    """

    def __init__(self, description: str, total: float, *, shown: bool = True) -> None:
        self.inner = shown and bool(_DISPLAYS.get())
        self.bar = _DISPLAYS.get()[-1] if self.inner else _make_display(shown)
        self.task = self.bar.add_task(description, total=total, numbers="", visible=not self.inner)
        self.show_at = time.monotonic() + DELAY
        self.numbers: dict[str, float] = {}

    def __enter__(self) -> Self:
        _DISPLAYS.set((*_DISPLAYS.get(), self.bar))
        return self

    def __exit__(self, *error: object) -> None:
        _DISPLAYS.set(_DISPLAYS.get()[:-1])
        if self.inner:
            self.bar.remove_task(self.task)
        else:
            self.bar.stop()

    def update(self, done: float | None = None, **numbers: float) -> None:
        """Set the amount of work done, and numbers to show by name."""
        if self.bar.disable:
            return
        self.numbers |= numbers
        text = "  ".join(f"{name} {number:.4g}" for name, number in self.numbers.items())
        self.bar.update(self.task, completed=done, numbers=text)
        if time.monotonic() > self.show_at:
            self.bar.update(self.task, visible=True)
            self.bar.start()


def _make_display(shown: bool) -> Progress:
    """An empty display; it stays disabled if stderr is not a terminal."""
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[numbers]}"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        redirect_stdout=False,  # otherwise what is printed meanwhile would go to stderr
        disable=not (shown and console.is_terminal),
    )
