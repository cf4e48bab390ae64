"""The box that non-uniform Fourier transforms answer in: which queries, which keys, and how fine a grid.

The kernel is taken for one with periodic edges, so that the period is as wide as queries and keys together, and as far
as the kernel reaches. Where points are spread so widely that the grid would be too large, queries at the edges are left
out of the box: they are answered pair by pair.
"""

from typing import Any, NamedTuple

import numpy as np

from regard.engines.kernel_sums.problem import Array, Points

BAND = 8.2
"""The highest frequency, where the kernel's Fourier transform has fallen to 1e-15."""
REACH = 8.6
"""Of the kernel, in bandwidths: farther than that it is 1e-16 and left out."""
FEWEST_MODES, MODES_PER_POINT, MOST_MODES = 2**20, 3, 2**23
"""Size of the grid before upsampling: what is always cheap, what points pay for, what memory allows."""
TRIMS = (0.0, 1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 0.03, 0.1)
"""Shares of the queries cut off at each side of each feature, tried in turn until the grid is small enough."""
SAMPLE = 2**16
"""Queries to judge the spread by."""
Rows = slice | Any
"""All rows, or an array of their numbers."""


class Box(NamedTuple):
    """The queries that the transform answers, the keys that they can see, and the grid of frequencies."""

    low: Array  # [features], of queries
    high: Array
    key_low: Array
    key_high: Array
    period: Array  # [features]
    modes: tuple[int, ...]


def fit_box(points: Points) -> Box | None:
    """The largest box whose grid is small enough; None where there is none, or no query is near the keys' range."""
    if not (len(points.query) and len(points.key)):
        return None
    allowed = min(max(FEWEST_MODES, MODES_PER_POINT * (len(points.query) + len(points.key))), MOST_MODES)
    nearest, farthest = points.key.min(axis=0), points.key.max(axis=0)
    ordered = np.sort(sample_of(points.query), axis=0)
    for trim in TRIMS:
        cut = round(trim * len(ordered))
        low, high = (ordered[cut], ordered[-1 - cut]) if trim else (points.query.min(axis=0), points.query.max(axis=0))
        low, high = np.maximum(low, nearest - REACH), np.minimum(high, farthest + REACH)
        key_low, key_high = np.maximum(nearest, low - REACH), np.minimum(farthest, high + REACH)
        # A query must be farther than the reach from the periodic images of all keys.
        period = np.maximum(high - key_low, key_high - low) + REACH
        modes = 2 * np.ceil(BAND * period / (2 * np.pi)) + 1
        if (high < low).any():
            return None
        if np.prod(modes) <= allowed:
            return Box(low, high, key_low, key_high, period, tuple(int(n) for n in modes))
    return None


def sample_of(position: Array) -> Array:
    """Points to judge all by."""
    return position[:: 1 + len(position) // SAMPLE]


def within(position: Array, low: Array, high: Array) -> Array:
    """Which points are in a box."""
    return np.logical_and(position >= low, position <= high).all(axis=1)


def rows_within(position: Array, low: Array, high: Array) -> Rows:
    """Their rows; a slice where it is all of them, which copies nothing."""
    inside = within(position, low, high)
    return slice(None) if inside.all() else np.flatnonzero(inside)
