"""Sums over keys by non-uniform fast Fourier transforms: from keys to modes, a product, and from modes to queries.

A `Precision` says how exact they are; its errors were measured. `gauss.py` has the formulas and uses the sums.
"""

import functools
import itertools
import math
import os
from typing import Any, NamedTuple

import numpy as np
import torch

from regard.engines.kernel_sums.gauss_box import Box, Rows
from regard.engines.kernel_sums.problem import Array, Points


class Precision(NamedTuple):
    """How exact the transforms are."""

    eps: float  # asked of finufft
    upsampling: float  # of its grid: with less, the grid is smaller, and each point touches more of it
    near: float  # 2 to 3 times the largest seen, over keys and queries anywhere in small and large boxes
    slope_near: float  # the same for the sums with u and u uᵀ


PRECISIONS = {
    1: [Precision(1e-12, 2.0, 4e-12, 2e-11)],
    2: [Precision(1e-12, 2.0, 4e-12, 2e-11)],
    3: [Precision(1e-8, 1.25, 7e-10, 6e-9), Precision(1e-12, 1.5, 8e-13, 2e-12)],
}
"""By the number of features. The first is quick; the next is for when that would leave many queries to `pairs`."""
SMALL = 2**16
"""Points and modes below which threads cost more than they do."""


class Sums(NamedTuple):
    """Sums over the keys. The first column is the weight, the others are the weighted values, standardised."""

    plain: Array  # [1 + values, queries]                of 1
    slope: Array  # [features, 1 + values, queries]      of u, or empty
    square: Array  # [features, features, queries]       of u uᵀ, of the weight only, or empty


def transformed(points: Points, columns: Array, seen: Rows, box: Box, precision: Precision, slopes: bool) -> Sums:
    """Sums over the keys of those rows."""
    features, count = len(box.modes), len(points.query)
    depth = features if slopes else 0
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
        spectrum = planned(1, points.key[seen], box, precision).execute(strength[seen])
        for axis, along in enumerate(frequency):
            spectrum *= lying(np.exp(-0.5 * along**2) * (math.sqrt(2 * np.pi) / box.period[axis]), axis, features)
        plan = planned(2, points.query, box, precision)
        take(plan.execute(spectrum), sums.plain[two])
        for axis in range(depth):
            take(plan.execute(spectrum * lying(1j * frequency[axis], axis, features)), sums.slope[axis, two])
        if first == 0 and slopes:
            curve(plan, spectrum, frequency, sums)
    return sums


def curve(plan: Any, spectrum: Array, frequency: list[Array], sums: Sums) -> None:
    """The sums with u uᵀ, two at a time, of the weight: the part of its spectrum that is a real function's."""
    features = len(frequency)
    spectrum = 0.5 * (spectrum + np.flip(spectrum).conj())
    grid = [lying(along, axis, features) for axis, along in enumerate(frequency)]
    places = list(itertools.combinations_with_replacement(range(features), 2))
    for first in range(0, len(places), 2):
        (a, b), (c, d) = places[first], places[min(first + 1, len(places) - 1)]
        both = plan.execute(spectrum * (-grid[a] * grid[b] - 1j * grid[c] * grid[d]))
        sums.square[a, b] = sums.square[b, a] = both.real
        sums.square[c, d] = sums.square[d, c] = both.imag
    for axis in range(features):
        sums.square[axis, axis] += sums.plain[0]


def lying(numbers: Array, axis: int, features: int) -> Array:
    """A vector laid along one axis of a grid."""
    return numbers.reshape([-1 if place == axis else 1 for place in range(features)])


def take(both: Array, rows: Array) -> None:
    """The two columns that travelled as one; the last may have gone alone."""
    rows[0] = both.real
    rows[1:] = both.imag


def planned(kind: int, position: Array, box: Box, precision: Precision) -> Any:
    """A transform from points to modes (1) or from modes to points (2). It is soon made: the sort is quick."""
    import finufft

    plan = finufft.Plan(
        kind,
        box.modes,
        eps=precision.eps,
        isign=-1 if kind == 1 else 1,
        upsampfac=precision.upsampling,
        nthreads=threads() if len(position) + math.prod(box.modes) > SMALL else 1,
    )
    middle, scale = (box.low + box.high) / 2, 2 * np.pi / box.period
    plan.setpts(*((position[:, axis] - middle[axis]) * scale[axis] for axis in range(len(box.modes))))
    return plan


def threads() -> int:
    """As many as torch has. In a process that was forked from one with threads at work, one: they are not there."""
    return torch.get_num_threads() if os.getpid() == first_process() else 1


@functools.cache
def first_process() -> int:
    """The process in which the first transform was made, which its forks remember."""
    return os.getpid()
