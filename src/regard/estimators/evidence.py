"""Checks that all kinds of evidence share: the number of weights, and the memory for them."""

import operator
from typing import SupportsIndex

from regard.checks import is_count

WHOLE_LIMIT = 2 * 2**30
"""Limit on the bytes of all weights together."""


def checked_top(top: SupportsIndex | None, most: int, of: str) -> int:
    """The number of weights to show, at most `most`; None means all."""
    if top is not None and not is_count(top):
        raise ValueError(f"top must be a positive whole number, or None for all {of}, got {top!r}")
    return most if top is None else min(operator.index(top), most)


def check_memory(queries: int, wide: int, of: str, numbers: int = 2) -> None:
    """Raise if weights [queries, wide], each with its index and other `numbers`, would take too much memory."""
    size = numbers * 8 * queries * wide
    if size > WHOLE_LIMIT:
        raise ValueError(
            f"{wide:,} weights of each of {queries:,} {of} would take {size / 2**30:.1f} GiB, above the limit"
            f" of 2 GiB: ask for top=8, or for fewer {of} at a time"
        )
