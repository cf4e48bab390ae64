"""Kernels of distances on the CPU, without gradients: every pair that matters, in one fused pass.

Queries and keys are sorted into blocks of neighbours (a k-d tree's leaves), and for each block of queries
what lies too far to matter is passed over by whole blocks. The loops are in `pair_loops.py`.

The tolerance is a promise for every query: the mean of a column of values is off by at most that share of
the column's standard deviation, and the log weight by at most that number, or its own last digit.
"""

import functools
import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from regard.compiled.threads import spread
from regard.engines.job import Job
from regard.engines.kernel_sums.pair_parts import Asked, Known, Limits, Tree
from regard.engines.kernel_sums.problem import (
    BOXCAR,
    EPANECHNIKOV,
    GAUSSIAN,
    LAPLACE,
    TRICUBE,
    Array,
    Moments,
    Points,
    Pooled,
    from_job,
    reason_against,
    standards,
)
from regard.parts import Attended

KEYS, QUERIES, GROUP = 256, 64, 32
"""Keys in a block, queries in a block, blocks of keys in a group."""
FEW = 256
"""Queries for which keys are not worth sorting."""
SINGLE = 1e-6
"""The least tolerance that float32 keeps, for values of which none is further from the mean than
`OUTLIER` standard deviations."""
OUTLIER = 5.0
TRUSTED = {GAUSSIAN: 0.1, LAPLACE: 0.1, EPANECHNIKOV: 0.2, BOXCAR: math.inf, TRICUBE: 0.2}
"""The summed weight from which float32 has digits enough: below it, a query has only far keys. A kernel that
ends has too few of them at its edge, where 1 - u² loses them: here it is the mean weight of all keys met. One
that jumps there needs all of them."""


@dataclass(frozen=True)
class Pairs:
    """Kernels under softmax, in memory q + k, to a tolerance relative to the spread of the values."""

    tolerance: float = 1e-6
    name = "pairs"

    def __post_init__(self) -> None:
        check_tolerance(self.tolerance)

    def refuses(self, job: Job) -> str | None:
        return reason_against("pairs", job)

    def attend(self, job: Job) -> Tensor:
        return self.attend_parts(job).mean

    def attend_parts(self, job: Job) -> Attended:
        return from_job(job, lambda points: pool(points, self.tolerance))


def check_tolerance(tolerance: float) -> None:
    """A share of the spread."""
    if not 0 <= tolerance < 1:
        raise ValueError(f"tolerance must be at least 0 and below 1, got {tolerance}")


def pool(points: Points, tolerance: float = 1e-6, *, skip: bool = True) -> Pooled:
    """Weighted means of the values, `[queries, values]`, and log weights `[queries]`.

    Without `skip`, no pair is passed over, however far: to measure what a pair costs.
    """
    centre, deviation = standards(points.value)
    means, log_weight = summed(standardised(points, centre, deviation), tolerance, moments=False, skip=skip)
    return Pooled(np.where((log_weight == -math.inf)[:, None], 0.0, means * deviation + centre), log_weight)


def moments(points: Points, tolerance: float = 1e-6) -> Moments:
    """Weighted means of the values, the offsets and their products: what a local line is fitted from.

    To the tolerance: the offset and its square in bandwidths, the product in those times the deviation of the value.
    """
    centre, deviation = standards(points.value)
    means, log_weight = summed(standardised(points, centre, deviation), tolerance, moments=True)
    features, values = points.query.shape[1], points.value.shape[1]
    mean, rest = means[:, :values] * deviation + centre, means[:, values:]
    offset, square = np.empty((len(mean), features)), np.empty((len(mean), features, features))
    product = np.empty((len(mean), features, values))
    place = 0
    for feature in range(features):
        offset[:, feature] = rest[:, place]
        product[:, feature] = rest[:, place + 1 : place + 1 + values]
        before = rest[:, place + values + 1 : place + values + 2 + feature]
        square[:, feature, : feature + 1] = square[:, : feature + 1, feature] = before
        place += values + 2 + feature
    product = product * deviation + offset[:, :, None] * centre
    return Moments(log_weight, np.where((log_weight == -math.inf)[:, None], 0.0, mean), offset, square, product)


def standardised(points: Points, centre: Array, deviation: Array) -> Points:
    """Values in standard deviations from their mean: neither they nor their products overflow or underflow."""
    return replace(points, value=(points.value - centre) / np.where(deviation > 0, deviation, 1.0))


def summed(points: Points, tolerance: float, *, moments: bool, skip: bool = True) -> tuple[Array, Array]:
    """Means of the values, and of the moments behind them, and log weights."""
    query, key = points.query, points.key
    features, values = query.shape[1], points.value.shape[1]
    extra = sum(values + 2 + feature for feature in range(features)) if moments else 0
    sums, shift = np.zeros((len(query), 1 + values + extra)), np.zeros(len(query))
    if not len(query) or not len(key):
        return sums[:, 1:], np.full(len(query), -math.inf)
    query_code = np.zeros((len(query), 0)) if points.query_code is None else points.query_code
    key_code = np.zeros((len(key), 0)) if points.key_code is None else points.key_code
    scale = np.sqrt(2 * (points.slope + points.jump))  # so that categories part as coordinates do
    query_order, query_starts = neighbours(np.hstack([query, query_code * scale]), QUERIES)
    # For few queries, sorting all keys takes longer than looking at them.
    if len(query) > FEW:
        key_order, starts = neighbours(np.hstack([key, key_code * scale]), KEYS)
    else:
        key_order, starts = np.arange(len(key)), cuts(len(key), KEYS)
    own = np.full(len(query), -1)
    if points.own is not None:
        went = np.empty(len(key), np.int64)
        went[key_order] = np.arange(len(key))
        own = np.where(points.own < 0, -1, went[points.own])[query_order]
    heaviest = 1.0 if points.weight is None else float(points.weight.max())
    mass = np.ones(len(key)) if points.weight is None else points.weight[key_order] / heaviest
    trusted, share = precision(points, tolerance, moments)
    allowed = share / float(mass.sum()) if skip else -1.0
    column = np.vstack([np.ones(len(key)), points.value[key_order].T])
    single = (column * mass).astype(np.float32) if trusted < math.inf else np.empty((1 + values, 0), np.float32)
    keys, codes = key[key_order].T.copy(), key_code[key_order].T.copy()
    with np.errstate(divide="ignore"):  # a key without weight is not seen
        log_mass = np.log(mass)
    asked = Asked(query[query_order].T.copy(), query_code[query_order].T.copy(), query_starts, own)
    known = Known(keys, codes, points.slope.astype(float), points.jump.astype(float), log_mass, column, single)
    tree = boxed(np.vstack([keys, codes]), starts)
    limits = Limits(trusted, allowed, points.weight is not None, points.own is not None)
    run = compiled(points.kind, features if not moments else 0, points.columns > 0, moments)
    blocks = len(query_starts) - 1
    size = max(1, -(-blocks // 128))
    found, relative = np.zeros_like(sums), np.zeros_like(shift)
    spread(
        lambda begin: run(begin, min(begin + size, blocks), asked, known, tree, limits, found, relative),
        range(0, blocks, size),
    )
    sums[query_order], shift[query_order] = found, relative
    seen = sums[:, 0] > 0
    total = np.where(seen, sums[:, 0], 1.0)
    return sums[:, 1:] / total[:, None], np.where(seen, shift + np.log(total) + math.log(heaviest), -math.inf)


def precision(points: Points, tolerance: float, moments: bool) -> tuple[float, float]:
    """The summed weight from which float32 will do, and what share of the weight may be left out.

    What is left out may be the value furthest from the mean, while the promise is in standard deviations.
    """
    worst = float(np.abs(points.value).max(initial=1.0))
    light = points.weight is not None and points.kind not in (GAUSSIAN, LAPLACE)
    exact = moments or tolerance < SINGLE or worst > OUTLIER or light
    # What is left out of moments counts times its distance squared.
    return math.inf if exact else TRUSTED[points.kind], 0.25 * tolerance / worst * (tolerance if moments else 1.0)


@functools.cache
def compiled(kind: int, features: int, coded: bool, moments: bool) -> Callable[..., None]:
    """The loops for one kernel and a number of features; compiled once, and then kept on disk."""
    from regard.engines.kernel_sums import pair_loops

    unrolled = features if features <= pair_loops.UNROLLED else 0
    loop: Any = pair_loops.make_pool(kind, unrolled, coded, moments, source_version())
    return loop  # type: ignore[no-any-return]


@functools.cache
def source_version() -> int:
    """A number that changes with the loops' sources: Numba looks at the one file only that a function stands in."""
    package = Path(__file__).parents[2]
    sources = [package / "compiled/simd.py", package / "engines/fused_loops.py", *Path(__file__).parent.glob("*.py")]
    return zlib.crc32(b"".join(source.read_bytes() for source in sorted(sources)))


def neighbours(points: Array, size: int) -> tuple[Array, Array]:
    """An order in which near points are near, and where blocks of at most `size` begin in it, and the end."""
    count, features = points.shape
    if features == 1:
        order = np.argsort(points[:, 0], kind="stable")
    else:
        order = split(points, np.arange(count), size) if features else np.arange(count)
    return order, cuts(count, size)


def cuts(count: int, size: int) -> Array:
    """Where blocks begin, and where the last one ends."""
    return np.append(np.arange(0, count, size), count)


def split(points: Array, order: Array, size: int) -> Array:
    """Halve along the widest side, on a multiple of the block size, until a block is left."""
    if len(order) <= size:
        return order
    some = points[order]
    side = np.argmax(some.max(axis=0) - some.min(axis=0))
    middle = math.ceil(math.ceil(len(order) / size) / 2) * size
    parted = order[np.argpartition(some[:, side], middle)]
    return np.concatenate([split(points, parted[:middle], size), split(points, parted[middle:], size)])


def boxed(points: Array, starts: Array) -> Tree:
    """Blocks and groups of blocks of points `[dimensions, points]`, with their boxes `[boxes, 2, dimensions]`."""
    low, high = (extreme.reduceat(points, starts[:-1], axis=1) for extreme in (np.minimum, np.maximum))
    group_starts = np.append(np.arange(0, len(starts) - 1, GROUP), len(starts) - 1)
    group_low = np.minimum.reduceat(low, group_starts[:-1], axis=1)
    group_high = np.maximum.reduceat(high, group_starts[:-1], axis=1)
    boxes, group_boxes = (np.stack([a.T, b.T], axis=1) for a, b in ((low, high), (group_low, group_high)))
    return Tree(starts, np.ascontiguousarray(boxes), group_starts, np.ascontiguousarray(group_boxes))
