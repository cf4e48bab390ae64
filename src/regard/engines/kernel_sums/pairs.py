"""Kernels of distances on the CPU, without gradients: every pair that matters, in one fused pass.

Queries and keys are sorted into blocks of neighbours (the leaves of a k-d tree), and for each block of queries
whole blocks of keys that are too far to matter are skipped. The loops are in `pair_loops.py`.

The tolerance holds for every query: the mean of a column of values is off by at most that fraction of the column's
standard deviation, and the log weight by at most that number, or its own last digit.
"""

import math
from dataclasses import replace

import numpy as np
import torch

from regard.compiled.threads import spread
from regard.engines.kernel_sums.problem import (
    Blocks,
    Data,
    Floats,
    Integers,
    KernelEngine,
    Means,
    Moments,
    Points,
    standardise,
)

KEYS, QUERIES, _GROUP = 256, 64, 32
"""Keys in a block, queries in a block, blocks of keys in a group."""
_FEW = 256
"""Number of queries up to which sorting the keys does not pay off."""
_FLOAT32_TOLERANCE, _LARGEST_VALUE = 1e-6, 5.0
"""The least tolerance that float32 can keep, if no value is farther from the mean than so many standard deviations."""
_LARGEST_CODE = 2**24
"""Largest code of a category that float32 can represent with all smaller ones; above, different codes collide."""
_FLOAT32_FROM, _FLOAT32_FROM_COMPACT = 0.1, 0.2
"""The summed weight from which float32 has enough digits: below it, a query has only far keys. For a compact
kernel, the mean weight of all keys visited: at its edge, where 1 - u² loses digits, they have too few."""


FLOAT32, FLOAT64 = "pairs: float32 loops, float64 for far queries", "pairs: float64 loops"
"""The algorithms of this engine."""


def algorithm(points: Points, tolerance: float, *, moments: bool = False) -> str:
    """What `means` runs, or `moments`."""
    points = replace(points, value=standardise(points.value)[0])
    float32_from, _ = _precision(points, tolerance, moments)
    return FLOAT64 if float32_from == math.inf else FLOAT32


def means(points: Points, tolerance: float = 1e-6, *, skip: bool = True) -> Means:
    """Weighted means of the values, `[queries, values]`, and log weights `[queries]`.

    Without `skip`, no pair is skipped, however far: to measure the cost of a pair.
    """
    value, centre, deviation = standardise(points.value)
    mean, log_weight = _sum_pairs(replace(points, value=value), tolerance, moments=False, skip=skip)
    return Means(np.where((log_weight == -math.inf)[:, None], 0.0, mean * deviation + centre), log_weight)


def moments(points: Points, tolerance: float = 1e-6) -> Moments:
    """Weighted means of the values, the offsets and their products, which local lines are fitted from.

    The tolerance is in bandwidths for the offset and its square, times the deviation of the value for the product.
    """
    value, centre, deviation = standardise(points.value)
    columns, log_weight = _sum_pairs(replace(points, value=value), tolerance, moments=True)
    features, values = points.features, points.value.shape[1]
    mean, rest = columns[:, :values] * deviation + centre, columns[:, values:]
    rest = rest.reshape(len(mean), features, 1 + values + features)
    offset, product, lower = rest[..., 0], rest[..., 1 : 1 + values], rest[..., 1 + values :]
    square = lower + np.tril(lower, -1).transpose(0, 2, 1)
    product = product * deviation + offset[:, :, None] * centre
    return Moments(log_weight, np.where((log_weight == -math.inf)[:, None], 0.0, mean), offset, square, product)


def _sum_pairs(points: Points, tolerance: float, *, moments: bool, skip: bool = True) -> tuple[Floats, Floats]:
    """Means of the values, and of the moments behind them, and log weights."""
    queries, features, values = len(points.query), points.features, points.value.shape[1]
    extra = features * (1 + values + features) if moments else 0
    sums, shift = np.zeros((queries, 1 + values + extra)), np.zeros(queries)
    if not points.pairs:
        return sums[:, 1:], np.full(queries, -math.inf)
    # Here, because Numba takes a second to import.
    from regard.engines.kernel_sums.pair_loops import compile_loops, make_formulas

    heaviest = 1.0 if points.weight is None else float(points.weight.max())
    query_order, data = sort_points(points, heaviest, _precision(points, tolerance, moments), moments, skip=skip)
    sum_blocks, formulas = compile_loops(), make_formulas(points.kernel, points.features)
    blocks = len(data.query_starts) - 1
    size = max(1, blocks // (16 * torch.get_num_threads()))  # a call takes 50 µs
    sorted_sums, sorted_shift = np.zeros_like(sums), np.zeros_like(shift)

    def run(begin: int) -> None:
        end = min(begin + size, blocks)
        sum_blocks(begin, end, data, formulas, sorted_sums, sorted_shift)

    spread(run, range(0, blocks, size))
    sums[query_order], shift[query_order] = sorted_sums, sorted_shift
    sees = sums[:, 0] > 0
    total = np.where(sees, sums[:, 0], 1.0)
    return sums[:, 1:] / total[:, None], np.where(sees, shift + np.log(total) + math.log(heaviest), -math.inf)


def _precision(points: Points, tolerance: float, moments: bool) -> tuple[float, float]:
    """The summed weight from which float32 is precise enough, and the fraction of the weight that may be left out.

    What is left out may be the value farthest from the mean, while the tolerance is in standard deviations.
    """
    profile = points.kernel.profile
    farthest = float(np.abs(points.value).max(initial=1.0))
    light = points.weight is not None and profile.compact
    large_codes = any(
        np.abs(code).max(initial=0) > _LARGEST_CODE for code in (points.query_code, points.key_code) if code is not None
    )
    exact = (
        moments
        or tolerance < _FLOAT32_TOLERANCE
        or farthest > _LARGEST_VALUE
        or light
        or large_codes
        or not profile.float32
    )
    float32_from = math.inf if exact else _FLOAT32_FROM_COMPACT if profile.compact else _FLOAT32_FROM
    # What is left out of moments counts times its distance squared.
    return float32_from, 0.25 * tolerance / farthest * (tolerance if moments else 1.0)


def sort_points(
    points: Points, heaviest: float, precise: tuple[float, float], moments: bool, *, skip: bool
) -> tuple[Integers, Data]:
    """The order of the queries, and what the loops read."""
    query = points.query if points.query_code is None else np.hstack([points.query, points.query_code])
    key = points.key if points.key_code is None else np.hstack([points.key, points.key_code])
    # Codes are scaled so that they separate points as coordinates do.
    spacing = np.append(np.ones(points.features), np.sqrt(2 * (points.per_step + points.per_change)))
    query_order, query_starts = _sort_into_blocks(query * spacing, QUERIES)
    # For few queries, sorting all keys takes longer than visiting them.
    if len(query) > _FEW:
        key_order, starts = _sort_into_blocks(key * spacing, KEYS)
    else:
        key_order, starts = np.arange(len(key)), _block_starts(len(key), KEYS)
    left_out = np.full(len(query), -1)
    if points.left_out is not None:
        new_index = np.empty(len(key), np.int64)
        new_index[key_order] = np.arange(len(key))
        left_out = np.where(points.left_out < 0, -1, new_index[points.left_out])[query_order]
    mass = np.ones(len(key)) if points.weight is None else points.weight[key_order] / heaviest
    float32_from, skipped = precise
    column = np.ascontiguousarray(np.vstack([mass, points.value[key_order].T]))  # [1 + values, keys]
    column32 = np.vstack([mass, column[1:] * mass]) if float32_from < math.inf else column[:, :0]
    # With log2 K(u) = -uⁿ, the kernel costs a product less for each pair.
    profile = points.kernel.profile
    at_one = float(profile.arithmetic(np.float64(1), np.float64(1)))
    scale = (-math.log2(math.e) * at_one) ** (1 / profile.degree) if profile.degree else 1.0
    keys = key[key_order].T.copy()
    blocks = _make_blocks(starts, keys, keys)
    return query_order, Data(
        query[query_order].T.copy(),
        query_starts,
        left_out,
        keys,
        blocks,
        _make_blocks(_block_starts(len(starts) - 1, _GROUP), blocks.low, blocks.high),
        column,
        column32.astype(np.float32),
        np.stack([points.per_step, points.per_change]).astype(float),
        profile.compact,
        scale,
        moments,
        float32_from,
        skipped / float(mass.sum()) if skip else -1.0,
    )


def _sort_into_blocks(points: Floats, size: int) -> tuple[Integers, Integers]:
    """An order in which near points are near, and where blocks of at most `size` start in it, and the end."""
    count, features = points.shape
    if features == 1:
        order = np.argsort(points[:, 0], kind="stable")
    else:
        order = _split(points, np.arange(count), size) if features else np.arange(count)
    return order, _block_starts(count, size)


def _block_starts(count: int, size: int) -> Integers:
    """Where blocks start, and the end of the last one."""
    return np.append(np.arange(0, count, size), count)


def _split(points: Floats, order: Integers, size: int) -> Integers:
    """Halve along the widest side, at a multiple of the block size, until one block is left."""
    if len(order) <= size:
        return order
    some = points[order]
    side = np.argmax(some.max(axis=0) - some.min(axis=0))
    middle = math.ceil(math.ceil(len(order) / size) / 2) * size
    halves = order[np.argpartition(some[:, side], middle)]
    return np.concatenate([_split(points, halves[:middle], size), _split(points, halves[middle:], size)])


def _make_blocks(starts: Integers, low: Floats, high: Floats) -> Blocks:
    """Blocks of points, or of boxes, [dimensions, points]."""
    low, high = np.minimum.reduceat(low, starts[:-1], axis=1), np.maximum.reduceat(high, starts[:-1], axis=1)
    return Blocks(starts, np.ascontiguousarray(low), np.ascontiguousarray(high))


class Pairs(KernelEngine):
    """Kernels under softmax, in memory q + k, without gradients.

    tolerance   the largest error, as a fraction of the standard deviation of the values

    >>> import torch, regard
    >>> x, y = torch.randn(9, 3), torch.randn(9, 2)
    >>> regard.plan(x, x, y, score=regard.scores.Laplace(0.5), engine=Pairs(tolerance=1e-9)).algorithm
    'pairs: float64 loops'
    """

    name = "pairs"
    _functions = algorithm, means
