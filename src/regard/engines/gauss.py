"""Sums of Gaussian kernels at a cost that grows with queries + keys, by non-uniform fast Fourier transforms.

On a box with periodic edges the kernel is a short Fourier series, K(u) = Σ_ω g(ω) exp(iωu). So

    Σ_k strength[k] K(query - k) = Σ_ω exp(iω query) g(ω) Σ_k strength[k] exp(-iωk)

is one transform of the keys, a product, and one transform to the queries. Two real columns travel as one
complex one. The sums with u = key - query are slopes in the query, from the same coefficients:

    Σ w u K = ∂ Σ w K          Σ w u_a u_b K = ∂_a ∂_b Σ w K + [a = b] Σ w K

The promise: for every query, the mean of a column is right to tolerance × that column's standard deviation
(constant columns: exactly), the log weight to tolerance; of moments, the offset and square to tolerance, the
product to tolerance × (deviation + |mean|).

Why it can be kept: the transform is linear, so its error is the sum of single keys' errors, and of these a
bound was measured: |error at distance u| ≤ near √K(u) + far. By Cauchy–Schwarz then, whatever the data are,

    |error of Σ strength K| ≤ √energy · (near √(Σ weight K) + far √(Σ weight))     energy = Σ strength² / weight

A query is trusted where this bound, divided by its weight, keeps the promise. The others, far from most keys,
go to `pairs`, as do those outside of the box, where widely spread points would need too large a grid.
"""

import functools
import itertools
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.engines import pairs
from regard.engines.job import Job
from regard.engines.points import GAUSSIAN, Array, Moments, Points, Pooled, from_job, reason_against, standards
from regard.kernels import Gaussian
from regard.parts import Attended


@dataclass(frozen=True)
class Gauss:
    """The Gaussian of 1 to 3 features under softmax, in time q + k, to a share of the spread of the values."""

    tolerance: float = 1e-6
    name = "gauss"

    def __post_init__(self) -> None:
        pairs.check_tolerance(self.tolerance)

    def refuses(self, job: Job) -> str | None:
        reason = reason_against("gauss", job)
        if reason is None and type(job.score) is not Gaussian:
            return f"gauss is for the Gaussian kernel of numbers, got {job.score!r}"
        if reason is None and job.query.shape[-1] not in PRECISIONS:
            return f"gauss takes 1 to 3 features, got {job.query.shape[-1]}"
        return reason

    def attend(self, job: Job) -> Tensor:
        return self.attend_parts(job).mean

    def attend_parts(self, job: Job) -> Attended:
        return from_job(job, lambda points: pool(points, self.tolerance))


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
ENOUGH = 1e-3
"""Share of the tolerance that `near` may be: queries are trusted down to some 1e-5 of the summed weight."""
FAR, SLOPE_FAR = 1e-15, 5e-14
ROUNDING = 5e-16
"""What rounded positions add to `near`, in a box of width 1."""
BAND = 8.2
"""The highest frequency, where the kernel's Fourier transform has fallen to 1e-15."""
REACH = 8.6
"""Of the kernel, in bandwidths: farther than that it is 1e-16 and left out."""
FEWEST_PAIRS = {1: 10**7, 2: 10**8, 3: 10**9}
"""Below these, going through the pairs is quicker."""
FEWEST_MODES, MODES_PER_POINT, MOST_MODES = 2**20, 3, 2**23
"""Size of the grid before upsampling: what is always cheap, what points pay for, what memory allows."""
TRIMS = (0.0, 1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 0.03, 0.1)
"""Shares of the queries cut off at each side of each feature, tried in turn until the grid is small enough."""
SAMPLE, SMALL = 2**16, 2**16
"""Queries to judge the spread by; points and modes below which threads cost more than they do."""

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


class Sums(NamedTuple):
    """Sums over the keys. The first column is the weight, the others are the weighted values, standardised."""

    plain: Array  # [1 + values, queries]                of 1
    slope: Array  # [features, 1 + values, queries]      of u, or empty
    square: Array  # [features, features, queries]       of u uᵀ, of the weight only, or empty


def suits(points: Points) -> str | None:
    """Why not, in words, where this engine is not the one to use."""
    features = points.query.shape[1]
    count = len(points.query) * len(points.key)
    if points.kind != GAUSSIAN:
        return "gauss is for the Gaussian kernel"
    if points.columns:
        return f"gauss is for numbers only, got {points.columns} categorical columns"
    if features not in PRECISIONS:
        return f"gauss takes 1 to 3 features, got {features}"
    if count < FEWEST_PAIRS[features]:
        return f"{count} pairs are few: gauss pays off from {FEWEST_PAIRS[features]}"
    box = fit_box(points)
    share = 0.0 if box is None else float(np.mean(within(sample_of(points.query), box.low, box.high)))
    if share < 0.5:
        return f"too wide against the bandwidth: a grid that fits in memory would hold {share:.0%} of the queries"
    return None


def pool(points: Points, tolerance: float) -> Pooled:
    """Means of the values, and log weights."""
    box = fit_box(points)
    if box is None or uneven(points):
        return pairs.pool(points, tolerance)
    rows = rows_within(points.query, box.low, box.high)
    centre, spread = standards(points.value)
    means, log_weight, trusted = averaged(points.asked(rows), box, tolerance, slopes=False)
    some = Pooled(means.plain[1:].T * spread + centre, log_weight)
    return Pooled(*completed(points, rows, trusted, some, lambda rest: pairs.pool(rest, tolerance)))


def moments(points: Points, tolerance: float) -> Moments:
    """Means of the values, the offsets and their products, and log weights."""
    box = fit_box(points)
    if box is None or uneven(points):
        return pairs.moments(points, tolerance)
    rows = rows_within(points.query, box.low, box.high)
    centre, spread = standards(points.value)
    means, log_weight, trusted = averaged(points.asked(rows), box, tolerance, slopes=True)
    offset = means.slope[:, 0].T
    product = np.moveaxis(means.slope[:, 1:], 2, 0) * spread + offset[:, :, None] * centre
    some = Moments(log_weight, means.plain[1:].T * spread + centre, offset, np.moveaxis(means.square, 2, 0), product)
    return Moments(*completed(points, rows, trusted, some, lambda rest: pairs.moments(rest, tolerance)))


def uneven(points: Points) -> bool:
    """Whether keys weigh so differently, or so little, that their sums would lose the light ones."""
    return points.weight is not None and not (points.weight.min() > 1e-30 and points.weight.max() < 1e30)


def completed(
    points: Points, rows: Rows, trusted: Array, some: tuple[Array, ...], exactly: Callable[[Points], tuple[Array, ...]]
) -> list[Array]:
    """All queries' results: those of the transform for `rows` where it is trusted, exact ones elsewhere."""
    left = np.ones(len(points.query), dtype=bool)
    left[rows] = ~trusted
    rest = np.flatnonzero(left)
    whole = [part if isinstance(rows, slice) else np.empty((len(left), *part.shape[1:])) for part in some]
    exact = exactly(points.asked(rest)) if len(rest) else some
    for result, part, better in zip(whole, some, exact, strict=True):
        if not isinstance(rows, slice):
            result[rows] = part
        if len(rest):
            result[rest] = better
    return whole


def averaged(points: Points, box: Box, tolerance: float, slopes: bool) -> tuple[Sums, Array, Array]:
    """Means of standardised columns for queries in the box, their log weights, and which of them are trusted."""
    options = PRECISIONS[points.query.shape[1]]
    nears = [option.slope_near if slopes else option.near for option in options]
    choice = next((place for place, near in enumerate(nears) if near <= ENOUGH * tolerance), len(options) - 1)
    seen = rows_within(points.key, box.key_low, box.key_high)
    columns = strengths(points)
    sums = transformed(points, columns, seen, box, options[choice], slopes)
    near = (nears[choice] + ROUNDING * box.period.max()) * np.sqrt(np.maximum(sums.plain[0], 0))
    far = (SLOPE_FAR if slopes else FAR) * math.sqrt(columns[0].sum())
    error = math.sqrt(energy(columns)) * (near + far)
    if points.own is not None:
        forget_own(points, points.own, columns, sums)
    found = sums.plain[0] > 0
    weight = np.where(found, sums.plain[0], np.inf)
    for part in sums:
        part /= weight
    largest = functools.reduce(np.maximum, (np.abs(row) for part in sums for row in part.reshape(-1, len(weight))))
    return sums, np.log(weight), found & (error * (1 + largest) <= tolerance * weight)


def energy(columns: Array) -> float:
    """The greatest Σ strength² / weight of two columns that travel together."""
    each = [float((column * column / columns[0]).sum()) for column in columns]
    return max(sum(each[first : first + 2]) for first in range(0, len(each), 2))


def strengths(points: Points) -> Array:
    """The weight and the weighted values, standardised, as rows: [1 + values, keys]."""
    centre, spread = standards(points.value)
    columns = np.ones((1 + points.value.shape[1], len(points.key)))
    columns[1:] = ((points.value - centre) / np.where(spread > 0, spread, 1.0)).T
    return columns if points.weight is None else columns * points.weight


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


def forget_own(points: Points, own: Array, columns: Array, sums: Sums) -> None:
    """Takes from each query's sums the key that it must not see; one outside of the box weighs less than `FAR`."""
    offset = (points.key[own] - points.query).T
    kernel = np.exp(-0.5 * np.square(offset).sum(axis=0)) * (own >= 0)
    for column, plain in zip(columns, sums.plain, strict=True):
        plain -= column[own] * kernel
    for a, slope in enumerate(sums.slope):
        for column, row in zip(columns, slope, strict=True):
            row -= column[own] * kernel * offset[a]
        sums.square[a] -= columns[0, own] * kernel * offset[a] * offset


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
