"""Sums over keys by non-uniform fast Fourier transforms: from keys to modes, a product, and from modes to queries.

`gauss.py` has the formulas and uses the sums; two real columns are transformed as one complex column. A `_Precision`
says how exact the transforms are; its errors were measured.

They are made in a `Box`. The kernel is taken for one with periodic edges, so the period is as wide as queries and keys
together, plus the reach of the kernel. If points are spread so widely that the grid would be too large, queries at the
edges are left out of the box: they are computed pair by pair.
"""

import functools
import itertools
import math
import os
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from regard.engines.kernel_sums.problem import Booleans, Floats, Points, Rows

if TYPE_CHECKING:
    from finufft import Plan as Transform

_Complex = NDArray[np.complex128]
_BAND = 8.2
"""The highest frequency, at which the Fourier transform of the kernel is 1e-15."""
_REACH = 8.6
"""Of the kernel, in bandwidths: farther away it is 1e-16 and left out."""
FEWEST_MODES, MODES_PER_POINT, _MOST_MODES = 2**20, 3, 2**23
"""Size of the grid before upsampling: what is always cheap, what points pay for, what fits into memory."""
_TRIMS = (0.0, 1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 0.03, 0.1)
"""Fractions of the queries cut off at each side of each feature, tried in turn until the grid is small enough."""
_SAMPLE = 2**16
"""Number of queries to measure the spread by."""
_SMALL = 2**16
"""Points and modes below which threads cost more than they save."""


class _Precision(NamedTuple):
    """How exact the transforms are."""

    eps: float  # asked of finufft
    upsampling: float  # of its grid: with less, the grid is smaller, but each point touches more of it
    near: float  # 2 to 3 times the largest error seen, over keys and queries anywhere in small and large boxes
    gradient_near: float  # the same for the sums with u and u uᵀ


PRECISIONS = {
    1: [_Precision(1e-12, 2.0, 4e-12, 2e-11)],
    2: [_Precision(1e-12, 2.0, 4e-12, 2e-11)],
    3: [_Precision(1e-8, 1.25, 7e-10, 6e-9), _Precision(1e-12, 1.5, 8e-13, 2e-12)],
}
"""By the number of features. The first is fast; the next is used if the first would leave many queries to `pairs`."""


class Box(NamedTuple):
    """The queries that the transforms answer, the keys that they can see, and the grid of frequencies."""

    low: Floats  # [features], of queries
    high: Floats
    key_low: Floats
    key_high: Floats
    period: Floats  # [features]
    modes: tuple[int, ...]


class Sums(NamedTuple):
    """Sums over the keys. The first column is the weight, the others are the weighted values, standardised."""

    plain: Floats  # [1 + values, queries]                of 1
    gradient: Floats  # [features, 1 + values, queries]   of u, or empty
    square: Floats  # [features, features, queries]       of u uᵀ, of the weight only, or empty


def fit_box(points: Points) -> Box | None:
    """The largest box whose grid is small enough; None if there is none, or no query is near the keys' range."""
    if not points.pairs:
        return None
    allowed = min(max(FEWEST_MODES, MODES_PER_POINT * (len(points.query) + len(points.key))), _MOST_MODES)
    nearest, farthest = points.key.min(axis=0), points.key.max(axis=0)
    ordered = np.sort(sample_of(points.query), axis=0)
    for trim in _TRIMS:
        cut = round(trim * len(ordered))
        low, high = (ordered[cut], ordered[-1 - cut]) if trim else (points.query.min(axis=0), points.query.max(axis=0))
        low, high = np.maximum(low, nearest - _REACH), np.minimum(high, farthest + _REACH)
        key_low, key_high = np.maximum(nearest, low - _REACH), np.minimum(farthest, high + _REACH)
        # A query must be farther than the reach from the periodic images of all keys.
        period = np.maximum(high - key_low, key_high - low) + _REACH
        modes = 2 * np.ceil(_BAND * period / (2 * np.pi)) + 1
        if (high < low).any():
            return None
        if np.prod(modes) <= allowed:
            return Box(low, high, key_low, key_high, period, tuple(int(n) for n in modes))
    return None


def sample_of(points: Floats) -> Floats:
    """Some of the points, evenly taken."""
    return points[:: 1 + len(points) // _SAMPLE]


def within(points: Floats, low: Floats, high: Floats) -> Booleans:
    """Which points are in a box."""
    return np.asarray(((points >= low) & (points <= high)).all(axis=1))


def rows_within(points: Floats, low: Floats, high: Floats) -> Rows:
    """Their rows; a slice if all are, which copies nothing."""
    inside = within(points, low, high)
    return slice(None) if inside.all() else np.flatnonzero(inside)


def transform(
    points: Points, columns: Floats, visible: Rows, box: Box, precision: _Precision, *, moments: bool
) -> Sums:
    """Sums over the visible keys, whose strengths are `columns` [1 + values, keys]."""
    features, count = len(box.modes), len(points.query)
    depth = features if moments else 0
    sums = Sums(
        np.zeros((len(columns), count)),
        np.zeros((depth, len(columns), count)),
        np.zeros((depth, depth, count)),
    )
    frequency = [
        np.arange(-(n // 2), n // 2 + 1) * (2 * np.pi / period) for n, period in zip(box.modes, box.period, strict=True)
    ]
    for first in range(0, len(columns), 2):
        two = slice(first, first + 2)
        strength = columns[first] + 1j * columns[first + 1] if len(columns[two]) == 2 else columns[first] + 0j
        spectrum = make_transform(1, points.key[visible], box, precision).execute(strength[visible])
        for axis, along in enumerate(frequency):
            spectrum *= _along_axis(np.exp(-0.5 * along**2) * (math.sqrt(2 * np.pi) / box.period[axis]), axis, features)
        to_queries = make_transform(2, points.query, box, precision)
        _split_complex(to_queries.execute(spectrum), sums.plain[two])
        for axis in range(depth):
            derivative = spectrum * _along_axis(1j * frequency[axis], axis, features)
            _split_complex(to_queries.execute(derivative), sums.gradient[axis, two])
        if first == 0 and moments:
            _fill_squares(to_queries, spectrum, frequency, sums)
    return sums


def _fill_squares(to_queries: "Transform", spectrum: _Complex, frequency: list[Floats], sums: Sums) -> None:
    """The sums of the weight with u uᵀ, two at a time."""
    features = len(frequency)
    spectrum = 0.5 * (spectrum + np.flip(spectrum).conj())  # the weight is the real one of the two columns
    grid = [_along_axis(along, axis, features) for axis, along in enumerate(frequency)]
    entries = list(itertools.combinations_with_replacement(range(features), 2))
    for first in range(0, len(entries), 2):
        (a, b), (c, d) = entries[first], entries[min(first + 1, len(entries) - 1)]
        both = to_queries.execute(spectrum * (-grid[a] * grid[b] - 1j * grid[c] * grid[d]))
        sums.square[a, b] = sums.square[b, a] = both.real
        sums.square[c, d] = sums.square[d, c] = both.imag
    for axis in range(features):
        sums.square[axis, axis] += sums.plain[0]


def _along_axis(numbers: Floats | _Complex, axis: int, features: int) -> Floats | _Complex:
    """A vector along one axis of a grid: [n] -> [1, …, n, …, 1]."""
    return numbers.reshape([-1 if other == axis else 1 for other in range(features)])


def _split_complex(both: _Complex, rows: Floats) -> None:
    """The two columns that were transformed as one; the last may have been alone."""
    rows[0] = both.real
    rows[1:] = both.imag


def make_transform(kind: int, position: Floats, box: Box, precision: _Precision) -> "Transform":
    """A transform from points to modes (1) or from modes to points (2). Making it is fast: it sorts the points."""
    import finufft

    made = finufft.Plan(
        kind,
        box.modes,
        eps=precision.eps,
        isign=-1 if kind == 1 else 1,
        upsampfac=precision.upsampling,
        nthreads=threads() if len(position) + math.prod(box.modes) > _SMALL else 1,
    )
    middle, scale = (box.low + box.high) / 2, 2 * np.pi / box.period
    made.setpts(*((position[:, axis] - middle[axis]) * scale[axis] for axis in range(len(box.modes))))
    return made


def threads() -> int:
    """As many as torch has. One in a forked process: the threads of its parent do not exist there."""
    return torch.get_num_threads() if os.getpid() == _first_process() else 1


@functools.cache
def _first_process() -> int:
    """The process that made the first transform; its forks inherit the number."""
    return os.getpid()
