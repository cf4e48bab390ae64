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
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from regard.engines.job import Job
from regard.engines.kernel_sums import pairs
from regard.engines.kernel_sums.gauss_box import Box, Rows, fit_box, rows_within, sample_of, within
from regard.engines.kernel_sums.gauss_fft import PRECISIONS, Sums, transformed
from regard.engines.kernel_sums.problem import (
    GAUSSIAN,
    Array,
    Moments,
    Points,
    Pooled,
    from_job,
    reason_against,
    standards,
)
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


ENOUGH = 1e-3
"""Share of the tolerance that `near` may be: queries are trusted down to some 1e-5 of the summed weight."""
FAR, SLOPE_FAR = 1e-15, 5e-14
ROUNDING = 5e-16
"""What rounded positions add to `near`, in a box of width 1."""
FEWEST_PAIRS = {1: 10**7, 2: 10**8, 3: 10**9}
"""Below these, going through the pairs is quicker."""


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
