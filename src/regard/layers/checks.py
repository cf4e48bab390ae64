"""What the layers ask of their sizes and inputs; an error says what must hold and what was got."""

import operator
from typing import SupportsIndex

from torch import Tensor


def positive(name: str, number: SupportsIndex) -> int:
    """A size or a count, once it is one: an int, or what stands for one, as NumPy's do."""
    try:
        whole = 0 if isinstance(number, bool) else operator.index(number)
    except TypeError:
        whole = 0
    if whole < 1:
        raise ValueError(f"{name} must be a positive whole number, got {number!r}")
    return whole


def share(name: str, number: float) -> float:
    """A share, once it is one."""
    if isinstance(number, bool) or not isinstance(number, float | int) or not 0 <= number <= 1:
        raise ValueError(f"{name} must be a number between 0 and 1, got {number!r}")
    return float(number)


def check_rows(name: str, x: Tensor, size: int, rank: int | None = None) -> None:
    """A layer is given `[..., length, size]` of the size it was made for; one with heads, three dimensions."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a torch tensor, got {type(x).__name__}")
    shape = x.shape
    if len(shape) < 2 or shape[-1] != size or (rank is not None and len(shape) != rank):
        leading = "batch" if rank == 3 else "..."
        raise ValueError(f"{name} must be [{leading}, length, {size}], got {list(shape)}")
