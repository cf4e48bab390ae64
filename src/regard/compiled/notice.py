"""One line on stderr when loops are compiled for the first time, which takes seconds; then they are cached on disk."""

import functools
import sys
import threading
from typing import Any

DELAY = 1.0
"""Seconds of compiling before the line is written."""
TEXT = (
    "regard: compiling loops, once for this machine: up to a minute; later processes read them from NUMBA_CACHE_DIR\n"
)


class Notice:
    """Told when a compilation begins and ends; compilations nest."""

    def __init__(self) -> None:
        self.depth = 0
        self.written = False
        self.timer: threading.Timer | None = None

    def begin(self) -> None:
        self.depth += 1
        if self.depth == 1 and not self.written:
            self.timer = threading.Timer(DELAY, self.write)
            self.timer.daemon = True
            self.timer.start()

    def end(self) -> None:
        self.depth -= 1
        if self.depth == 0 and self.timer is not None:
            self.timer.cancel()

    def write(self) -> None:
        """Write the line, once in a process."""
        if not self.written:
            self.written = True
            sys.stderr.write(TEXT)


@functools.cache
def announce_compilation() -> Notice:
    """Write a line if Numba compiles for longer than a second."""
    from numba.core import event

    notice = Notice()

    class Listener(event.Listener):
        def on_start(self, event: Any) -> None:
            notice.begin()

        def on_end(self, event: Any) -> None:
            notice.end()

    event.register("numba:compile", Listener())  # type: ignore[no-untyped-call]
    return notice
