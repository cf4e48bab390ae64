"""What counts something and what is a number: one rule for all settings, and one error."""

import operator
from numbers import Real
from typing import Any


def positive(name: str, number: Any) -> int:
    """A size or a count, once it is one: an int, or what stands for one, as NumPy's do.

    >>> positive("size", 3)
    3
    """
    if not is_count(number):
        raise ValueError(f"{name} must be a positive whole number, got {number!r}")
    return operator.index(number)


def is_count(value: Any) -> bool:
    """Whether something is a positive whole number."""
    try:
        return not isinstance(value, bool) and operator.index(value) >= 1
    except TypeError:
        return False


def is_number(value: Any) -> bool:
    """Whether something is a number, and not true or false."""
    return isinstance(value, Real) and not isinstance(value, bool)
