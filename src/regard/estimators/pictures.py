"""Pictures, where matplotlib is installed."""

from collections.abc import Callable
from typing import Any

from regard.data.tables import INSTALL


def drawn(plot: Callable[[], Any]) -> Any:
    """The axes that a function draws on, or what to do without matplotlib."""
    try:
        return plot()
    except ImportError:
        raise ImportError(f"pictures need matplotlib: {INSTALL}") from None
