"""Sums of Gaussian kernels at a cost that grows with queries + keys, by non-uniform fast Fourier transforms.

On a box with periodic edges the kernel is a short Fourier series, K(u) = Σ_ω g(ω) exp(iωu). So

    Σ_k strength[k] K(query - k) = Σ_ω exp(iω query) g(ω) Σ_k strength[k] exp(-iωk)

is one transform of the keys, a product, and one transform to the queries; two real columns are transformed as one
complex column. The sums with u = key - query are derivatives by the query, from the same coefficients:

    Σ w u K = ∂ Σ w K          Σ w u_a u_b K = ∂_a ∂_b Σ w K + [a = b] Σ w K

The tolerance holds for every query: the mean of a column is off by at most tolerance × that column's standard
deviation (constant columns are exact), the log weight by at most tolerance; of moments, the offset and square by
tolerance, the product by tolerance × (deviation + |mean|).

Why it holds: the transform is linear, so its error is the sum of single keys' errors, and of these a bound was
measured: |error at distance u| ≤ near √K(u) + far. By Cauchy–Schwarz then, whatever the data are,

    |error of Σ strength K| ≤ √energy · (near √(Σ weight K) + far √(Σ weight))     energy = Σ strength² / weight

A query is trusted if this bound, divided by its weight, is within the tolerance. The others, far from most keys,
go to `pairs`.

The period of the `Box` of the transforms is as wide as queries and keys together, plus the reach of the kernel. If
points are spread so widely that the grid would be too large, queries at the edges are left out of the box, and go to
`pairs` too.
"""

import functools
import itertools
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from regard.engines.job import Job
from regard.engines.kernel_sums import pairs
from regard.engines.kernel_sums.problem import (
    Booleans,
    Floats,
    Integers,
    KernelEngine,
    Means,
    Moments,
    Points,
    Rows,
    standardise,
)
from regard.kernels import Gaussian

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


class _Precision(NamedTuple):
    """How exact the transforms are."""

    eps: float  # asked of finufft
    upsampling: float  # of its grid: with less, the grid is smaller, but each point touches more of it
    near: float  # 2 to 3 times the largest error seen, over keys and queries anywhere in small and large boxes
    gradient_near: float  # the same for the sums with u and u uᵀ


PRECISIONS = {
    1: [_Precision(1e-6, 1.25, 4e-7, 2e-6), _Precision(1e-12, 2.0, 4e-12, 2e-11)],
    2: [_Precision(1e-6, 1.25, 4e-7, 2e-6), _Precision(1e-12, 2.0, 4e-12, 2e-11)],
    3: [_Precision(3e-6, 1.25, 4e-7, 2e-6), _Precision(1e-8, 1.25, 7e-10, 6e-9), _Precision(1e-12, 1.5, 8e-13, 2e-12)],
}
"""By the number of features, the fastest first; the next is used if one would leave many queries to `pairs`."""


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
    fraction = 0.0 if box is None else float(np.mean(_within(_sample_of(points.query), box.low, box.high)))
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
    rows = _rows_within(points.query, box.low, box.high)
    value, centre, deviation = _standardise_sparse(points.value)
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


def _standardise_sparse(value: Floats) -> tuple[Floats, Floats, Floats]:
    """`standardise`, but a value that most keys have becomes 0: the transform of the keys leaves zeros out."""
    value, centre, deviation = standardise(value)
    common = np.median(value, axis=0) if len(value) else centre
    sparse = (value == common).mean(axis=0) > 0.5 if len(value) else centre > math.inf
    common = np.where(sparse, common, 0.0)
    return value - common, centre + common * deviation, deviation


def _mean_in_box(points: Points, box: Box, tolerance: float, *, moments: bool) -> tuple[Sums, Floats, Booleans]:
    """Means of the values, standardised, for queries in the box, their log weights, and which of them are trusted."""
    options = PRECISIONS[points.features]
    nears = [option.gradient_near if moments else option.near for option in options]
    choice = next((number for number, near in enumerate(nears) if near <= ENOUGH * tolerance), len(options) - 1)
    visible = _rows_within(points.key, box.key_low, box.key_high)
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


def fit_box(points: Points) -> Box | None:
    """The largest box whose grid is small enough; None if there is none, or no query is near the keys' range."""
    if not points.pairs:
        return None
    allowed = min(max(FEWEST_MODES, MODES_PER_POINT * (len(points.query) + len(points.key))), _MOST_MODES)
    nearest, farthest = points.key.min(axis=0), points.key.max(axis=0)
    ordered = np.sort(_sample_of(points.query), axis=0)
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


def _sample_of(points: Floats) -> Floats:
    """Some of the points, evenly taken."""
    return points[:: 1 + len(points) // _SAMPLE]


def _within(points: Floats, low: Floats, high: Floats) -> Booleans:
    """Which points are in a box."""
    return np.asarray(((points >= low) & (points <= high)).all(axis=1))


def _rows_within(points: Floats, low: Floats, high: Floats) -> Rows:
    """Their rows; a slice if all are, which copies nothing."""
    inside = _within(points, low, high)
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
        strength, key = strength[visible], points.key[visible]
        some = strength != 0
        if some.mean() < 0.5:  # finding them takes time too
            strength, key = strength[some], key[some]
        spectrum = make_transform(1, key, box, precision).execute(strength)
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
        nthreads=_threads() if len(position) + math.prod(box.modes) > _SMALL else 1,
    )
    middle, scale = (box.low + box.high) / 2, 2 * np.pi / box.period
    made.setpts(*((position[:, axis] - middle[axis]) * scale[axis] for axis in range(len(box.modes))))
    return made


def _threads() -> int:
    """As many as torch has. One in a forked process: the threads of its parent do not exist there."""
    return torch.get_num_threads() if os.getpid() == _first_process() else 1


@functools.cache
def _first_process() -> int:
    """The process that made the first transform; its forks inherit the number."""
    return os.getpid()


class Gauss(KernelEngine):
    """The Gaussian of 1 to 3 features under softmax, in time q + k, without gradients.

    tolerance   the largest error, as a fraction of the standard deviation of the values

    >>> import torch, regard
    >>> x, y = torch.randn(9, 1), torch.randn(9, 2)
    >>> regard.plan(x, x, y, score=regard.scores.Gaussian(0.5), engine=Gauss(tolerance=1e-3)).algorithm
    'gauss: Fourier transforms, and pairs for queries with little weight'
    """

    name = "gauss"
    _functions = algorithm, means

    def refuses(self, job: Job) -> str | None:
        reason = super().refuses(job)
        if reason is None and type(job.score) is not Gaussian:
            return f"gauss supports only the Gaussian kernel of numeric columns, got {job.score!r}"
        if reason is None and job.query.shape[-1] not in PRECISIONS:
            return f"gauss supports 1 to 3 features, got {job.query.shape[-1]}"
        return reason
