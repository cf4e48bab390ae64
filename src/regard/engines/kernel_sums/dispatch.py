"""Kernel means of points by whichever engine is quickest: all rules are in `plan`.

dense   few pairs: the definition, in NumPy, with nothing to compile first
gauss   the Gaussian kernel, 1 to 3 features, many points: non-uniform Fourier transforms
pairs   all else: fused loops over the pairs that matter
"""

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from regard.engines.job import Plan, spans
from regard.engines.kernel_sums import gauss, pairs
from regard.engines.kernel_sums.problem import BOXCAR, EPANECHNIKOV, GAUSSIAN, LAPLACE, Array, Moments, Points, Pooled

FEW = 2**20
"""Pairs that are done before loops would be loaded."""
FINEST = 1e-9
"""The least tolerance that a transform is worth trying for."""
BLOCK = 2**18
"""Pairs at once in the dense sums."""


def plan(points: Points, tolerance: float = 1e-6) -> Plan:
    """The engine for these points, and why."""
    count = len(points.query) * len(points.key)
    if count <= FEW:
        return Plan("dense", f"there are only {count:,} pairs")
    reason = "gauss is not that exact" if tolerance < FINEST else gauss.suits(points)
    if reason is None:
        return Plan(
            "gauss", f"a Gaussian of {points.query.shape[1]} features and {count:,} pairs: by Fourier transform"
        )
    return Plan("pairs", f"every pair that matters, in one fused pass: {reason}")


def pool(points: Points, tolerance: float = 1e-6) -> Pooled:
    """Weighted means of the values, `[queries, values]`, and log weights `[queries]`."""
    return POOLS[plan(points, tolerance).engine](points, tolerance)


def moments(points: Points, tolerance: float = 1e-6) -> Moments:
    """Weighted means of the values, the offsets and their products: what a local line is fitted from."""
    return MOMENTS[plan(points, tolerance).engine](points, tolerance)


def dense_pool(points: Points, tolerance: float = 0.0) -> Pooled:
    """The definition; exact, whatever the tolerance."""
    return pool_blocks(dense_weights(points), points.value)


def dense_moments(points: Points, tolerance: float = 0.0) -> Moments:
    """The definition; exact, whatever the tolerance."""
    return moment_blocks(dense_weights(points, points.query.shape[1]), points.query, points.key, points.value)


Blocks = Iterable[tuple[slice, Array, Array]]
"""Normalised weights [some queries, keys] and their log sums, a block of queries at a time."""


def pool_blocks(blocks: Blocks, value: Array) -> Pooled:
    """Means and log weights from weights that are at hand."""
    parts = [(weight @ value, log_weight) for _, weight, log_weight in blocks]
    if not parts:
        return Pooled(np.empty((0, value.shape[1])), np.empty(0))
    return Pooled(*(np.concatenate(part) for part in zip(*parts, strict=True)))


def moment_blocks(blocks: Blocks, query: Array, key: Array, value: Array) -> Moments:
    """Moments from weights that are at hand."""
    features, values = query.shape[1], value.shape[1]
    parts = []
    for rows, weight, log_weight in blocks:
        offset = key - query[rows, None]  # [q, k, d]
        weighted = (weight[:, :, None] * offset).transpose(0, 2, 1)
        parts.append((log_weight, weight @ value, weighted.sum(axis=2), weighted @ offset, weighted @ value))
    if not parts:
        shapes: list[tuple[int, ...]] = [(), (values,), (features,), (features, features), (features, values)]
        return Moments(*(np.empty((0, *shape)) for shape in shapes))
    return Moments(*(np.concatenate(part) for part in zip(*parts, strict=True)))


def dense_weights(points: Points, width: int = 1) -> Iterator[tuple[slice, Array, Array]]:
    """The weights of a kernel, in `Blocks`; `width` numbers will be held for each pair."""
    with np.errstate(divide="ignore"):
        log_mass = 0.0 if points.weight is None else np.log(points.weight)
    for rows in spans(len(points.query), max(1, BLOCK // (max(1, len(points.key)) * max(1, width)))):
        square = np.zeros((rows.stop - rows.start, len(points.key)))
        for feature in range(points.query.shape[1]):
            square += np.square(points.key[:, feature] - points.query[rows, feature, None])
        score = log_kernel(points.kind, square) + log_mass
        for column in range(points.columns):
            assert points.query_code is not None
            assert points.key_code is not None
            apart = np.abs(points.key_code[:, column] - points.query_code[rows, column, None])
            score -= points.slope[column] * apart + points.jump[column] * (apart > 0)
        if points.own is not None:
            own = points.own[rows]
            score[np.flatnonzero(own >= 0), own[own >= 0]] = -np.inf
        yield rows, *softmax(score)


def softmax(score: Array) -> tuple[Array, Array]:
    """Normalised weights and their log sums; no NaN where nothing is seen."""
    highest = score.max(axis=1, initial=-np.inf, keepdims=True)
    highest[highest == -np.inf] = 0.0
    weight = np.exp(score - highest)
    total = weight.sum(axis=1, keepdims=True)
    with np.errstate(divide="ignore"):
        log_weight = (highest + np.log(total))[:, 0]
    return weight / np.where(total > 0, total, 1.0), log_weight


def log_kernel(kind: int, square: Array) -> Array:
    """The logarithm of a kernel of squared distances."""
    if kind == GAUSSIAN:
        return -0.5 * square
    if kind == LAPLACE:
        return -np.sqrt(square)
    inside = square < 1
    square = np.where(inside, square, 0.0)
    if kind == EPANECHNIKOV:
        return np.where(inside, np.log1p(-square), -np.inf)
    if kind == BOXCAR:
        return np.where(inside, 0.0, -np.inf)
    return np.where(inside, 3 * np.log1p(-(square**1.5)), -np.inf)


POOLS: dict[str, Callable[[Points, float], Pooled]] = {"dense": dense_pool, "gauss": gauss.pool, "pairs": pairs.pool}
MOMENTS: dict[str, Callable[[Points, float], Moments]] = {
    "dense": dense_moments,
    "gauss": gauss.moments,
    "pairs": pairs.moments,
}
