"""Sums of Gaussian kernels at a cost that grows with queries + keys, by non-uniform fast Fourier transforms.

On a box with periodic edges the kernel is a short Fourier series, K(u) = Σ_ω g(ω) exp(iωu). So

    Σ_k strength[k] K(query - k) = Σ_ω exp(iω query) g(ω) Σ_k strength[k] exp(-iωk)

is one transform of the keys, a product, and one transform to the queries (`gauss_fft.py`). The sums with
u = key - query are derivatives by the query, from the same coefficients:

    Σ w u K = ∂ Σ w K          Σ w u_a u_b K = ∂_a ∂_b Σ w K + [a = b] Σ w K

The tolerance holds for every query: the mean of a column is off by at most tolerance × that column's standard
deviation (constant columns are exact), the log weight by at most tolerance; of moments, the offset and square by
tolerance, the product by tolerance × (deviation + |mean|).

Why it holds: the transform is linear, so its error is the sum of single keys' errors, and of these a bound was
measured: |error at distance u| ≤ near √K(u) + far. By Cauchy–Schwarz then, whatever the data are,

    |error of Σ strength K| ≤ √energy · (near √(Σ weight K) + far √(Σ weight))     energy = Σ strength² / weight

A query is trusted if this bound, divided by its weight, is within the tolerance. The others, far from most keys,
go to `pairs`, as do those outside of the box, if widely spread points would need too large a grid.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from regard.engines.job import Job
from regard.engines.kernel_sums import pairs
from regard.engines.kernel_sums.gauss_fft import (
    PRECISIONS,
    Box,
    Sums,
    fit_box,
    rows_within,
    sample_of,
    transform,
    within,
)
from regard.engines.kernel_sums.problem import (
    Booleans,
    Floats,
    Integers,
    KernelEngine,
    Means,
    Moments,
    Points,
    standardise,
)
from regard.kernels import Gaussian

ENOUGH = 1e-3
"""Fraction of the tolerance that `near` may be: queries are trusted down to some 1e-5 of the summed weight."""
FAR, GRADIENT_FAR = 1e-15, 5e-14
"""The part of the error bound that does not fall with the distance; of sums, and of sums with u."""
_ROUNDING = 5e-16
"""What rounded coordinates add to `near`, in a box of width 1."""
FEWEST_PAIRS = {1: 10**7, 2: 10**8, 3: 10**9}
"""By the number of features: below these, computing the pairs is faster."""


FOURIER = "gauss: Fourier transforms, and pairs for queries with little weight"
"""The algorithm of this engine, if its transforms can be used at all."""


class Gauss(KernelEngine):
    """The Gaussian of 1 to 3 features under softmax, in time q + k, without gradients.

    tolerance   the largest error, as a fraction of the standard deviation of the values

    >>> import torch, regard
    >>> x, y = torch.randn(9, 1), torch.randn(9, 2)
    >>> regard.plan(x, x, y, score=regard.scores.Gaussian(0.5), engine=Gauss(tolerance=1e-3)).algorithm
    'gauss: Fourier transforms, and pairs for queries with little weight'
    """

    name = "gauss"

    def refuses(self, job: Job) -> str | None:
        reason = super().refuses(job)
        if reason is None and type(job.score) is not Gaussian:
            return f"gauss supports only the Gaussian kernel of numeric columns, got {job.score!r}"
        if reason is None and job.query.shape[-1] not in PRECISIONS:
            return f"gauss supports 1 to 3 features, got {job.query.shape[-1]}"
        return reason

    def _algorithm(self, points: Points) -> str:
        return algorithm(points, self.tolerance)

    def _means(self, points: Points) -> Means:
        return means(points, self.tolerance)


def unsuitable(points: Points) -> str | None:
    """Why `pairs` is the better engine for these points; None if this one is."""
    if points.kernel is not Gaussian:
        return "gauss supports only the Gaussian kernel"
    if points.columns:
        return f"gauss supports only numeric columns, got {points.columns} categorical ones"
    if points.features not in PRECISIONS:
        return f"gauss supports 1 to 3 features, got {points.features}"
    if points.pairs < FEWEST_PAIRS[points.features]:
        return f"{points.pairs:,} pairs are few: gauss is faster from {FEWEST_PAIRS[points.features]:,}"
    box = fit_box(points)
    fraction = 0.0 if box is None else float(np.mean(within(sample_of(points.query), box.low, box.high)))
    if fraction < 0.5:
        return (
            "points are too far apart relative to the bandwidth: a grid that fits into memory would hold"
            f" {fraction:.0%} of the queries"
        )
    if _uneven(points):
        return "the weights of the keys differ too much for gauss"
    return None


def algorithm(points: Points, tolerance: float, *, moments: bool = False) -> str:
    """What `means` runs, or `moments`."""
    return FOURIER if _usable_box(points) else pairs.algorithm(points, tolerance, moments=moments)


def _usable_box(points: Points) -> Box | None:
    """The box of the transforms; None if they cannot be used at all."""
    return None if _uneven(points) else fit_box(points)


def _uneven(points: Points) -> bool:
    """Whether keys weigh so differently, or so little, that sums would lose the light ones."""
    return points.weight is not None and not (points.weight.min() > 1e-30 and points.weight.max() < 1e30)


def means(points: Points, tolerance: float) -> Means:
    """Means of the values, and log weights."""
    return Means(*_compute(points, tolerance, moments=False))


def moments(points: Points, tolerance: float) -> Moments:
    """Means of the values, the offsets and their products, and log weights."""
    return Moments(*_compute(points, tolerance, moments=True))


def _compute(points: Points, tolerance: float, *, moments: bool) -> Sequence[Floats]:
    """The parts of `Means` or `Moments`: by transforms for queries where they are precise, by `pairs` for the rest."""
    by_pairs: Callable[[Points, float], Sequence[Floats]] = pairs.moments if moments else pairs.means
    box = _usable_box(points)
    if box is None:
        return by_pairs(points, tolerance)
    rows = rows_within(points.query, box.low, box.high)
    value, centre, deviation = standardise(points.value)
    inside = replace(points.for_queries(rows), value=value)
    averages, log_weight, trusted = _mean_in_box(inside, box, tolerance, moments=moments)
    mean = averages.plain[1:].T * deviation + centre
    parts: Sequence[Floats] = Means(mean, log_weight)
    if moments:
        offset, square = averages.gradient[:, 0].T, np.moveaxis(averages.square, 2, 0)  # queries first
        product = np.moveaxis(averages.gradient[:, 1:], 2, 0) * deviation + offset[:, :, None] * centre
        parts = Moments(log_weight, mean, offset, square, product)
    untrusted = np.ones(len(points.query), dtype=bool)
    untrusted[rows] = ~trusted
    results = [np.empty((len(untrusted), *part.shape[1:])) for part in parts]
    for result, part in zip(results, parts, strict=True):
        result[rows] = part
    if untrusted.any():
        exact = by_pairs(points.for_queries(np.flatnonzero(untrusted)), tolerance)
        for result, part in zip(results, exact, strict=True):
            result[untrusted] = part
    return results


def _mean_in_box(points: Points, box: Box, tolerance: float, *, moments: bool) -> tuple[Sums, Floats, Booleans]:
    """Means of the values, standardised, for queries in the box, their log weights, and which of them are trusted."""
    options = PRECISIONS[points.features]
    nears = [option.gradient_near if moments else option.near for option in options]
    choice = next((number for number, near in enumerate(nears) if near <= ENOUGH * tolerance), len(options) - 1)
    visible = rows_within(points.key, box.key_low, box.key_high)
    columns = _strengths(points)
    sums = transform(points, columns, visible, box, options[choice], moments=moments)
    near = (nears[choice] + _ROUNDING * box.period.max()) * np.sqrt(np.maximum(sums.plain[0], 0))
    far = (GRADIENT_FAR if moments else FAR) * math.sqrt(columns[0].sum())
    error = math.sqrt(_energy(columns)) * (near + far)
    if points.left_out is not None:
        _subtract_left_out(points, points.left_out, columns, sums)
    positive = sums.plain[0] > 0
    weight = np.where(positive, sums.plain[0], np.inf)
    for part in sums:
        part /= weight
    # [..., queries] -> [all sums of a query, queries]
    largest = functools.reduce(np.maximum, (np.abs(row) for part in sums for row in part.reshape(-1, len(weight))))
    return sums, np.log(weight), positive & (error * (1 + largest) <= tolerance * weight)


def _energy(columns: Floats) -> float:
    """The greatest Σ strength² / weight of two columns that are transformed together."""
    each = [float((column * column / columns[0]).sum()) for column in columns]
    return max(sum(each[first : first + 2]) for first in range(0, len(each), 2))


def _strengths(points: Points) -> Floats:
    """The weight and the weighted values as rows: [1 + values, keys]."""
    columns = np.vstack([np.ones(len(points.key)), points.value.T])
    return columns if points.weight is None else columns * points.weight


def _subtract_left_out(points: Points, left_out: Integers, columns: Floats, sums: Sums) -> None:
    """Subtract from each query's sums the key that it must not see; one outside of the box weighs less than `FAR`."""
    offset = (points.key[left_out] - points.query).T  # [features, queries]
    kernel = np.exp(-0.5 * np.square(offset).sum(axis=0)) * (left_out >= 0)
    for column, plain in zip(columns, sums.plain, strict=True):
        plain -= column[left_out] * kernel
    for a, gradient in enumerate(sums.gradient):
        for column, row in zip(columns, gradient, strict=True):
            row -= column[left_out] * kernel * offset[a]
        sums.square[a] -= columns[0, left_out] * kernel * offset[a] * offset
