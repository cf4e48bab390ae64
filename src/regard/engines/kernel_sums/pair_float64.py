"""The `pairs` loops in float64, one query at a time, and what bounds the weight of a block of keys.

Keys are in blocks of neighbours, and blocks in groups; each has a bounding box, [2, features + columns]: low and high
corner, first of the coordinates, then of the codes of categories. The kernel at the least distance between two boxes
bounds the weight of every pair of points in them. A box of keys is skipped if

    K(least distance) · (weight of all keys) ≤ tolerance · (weight summed so far)

which keeps the sum of everything that is skipped below the tolerance, in whatever order boxes are visited.

In float64 a query is summed relative to the weight of its nearest key, so that nothing underflows. The moments that
local lines are fitted from are the means of offsets, and of their products.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from regard.compiled.math import EXACT, SUM, exponential
from regard.engines.kernel_sums.problem import Case, Data, Floats, Integers, Keys, Queries, Tree
from regard.kernels import KERNELS, Arithmetic, Gaussian

NUMBERS = {kernel: number for number, kernel in enumerate(KERNELS.values())}
"""Kernels as the loops know them: by their number in the table."""
GAUSSIAN = NUMBERS[Gaussian]


class Query(NamedTuple):
    """One query."""

    point: Floats  # [features]
    code: Floats  # [columns]
    left_out: int  # the key that it must not see, or -1


def by_number(formulas: list[Arithmetic]) -> Callable[..., Any]:
    """Compile the formulas of all kernels into one function of (number, u, u²).

    The number is a constant when the loops are compiled, so that only one formula is left of them.
    """
    number, formula = len(formulas) - 1, njit(fastmath=EXACT, forceinline=True)(formulas[-1])
    others = by_number(formulas[:-1]) if number else njit(forceinline=True)(lambda kernel, u, square: square)

    @njit(forceinline=True)
    def chosen(kernel: int, u: float, square: float) -> float:
        return formula(u, square) if kernel == number else others(kernel, u, square)  # type: ignore[no-any-return]

    return chosen


arithmetic = by_number([kernel.profile.arithmetic for kernel in KERNELS.values()])


@njit(fastmath=EXACT)
def log_kernel(case: Case, square: float) -> float:
    """The log of the kernel at a squared distance."""
    if not case.compact:
        return arithmetic(case.kernel, np.sqrt(square), square)  # type: ignore[no-any-return]
    if square >= 1:
        return -np.inf
    return np.log(arithmetic(case.kernel, np.sqrt(square), square))  # type: ignore[no-any-return]


@njit()
def bound(case: Case, box: Floats, other: Floats, keys: Keys) -> float:
    """The largest log weight that a point in one box can have for one in the other; keys weigh 1 at most."""
    square, penalty = 0.0, 0.0
    features = box.shape[1] - keys.per_change.shape[0]
    for feature in range(features):
        apart = max(0.0, max(box[0, feature] - other[1, feature], other[0, feature] - box[1, feature]))
        square += apart * apart
    for column in range(keys.per_change.shape[0]):
        side = features + column
        apart = max(0.0, max(box[0, side] - other[1, side], other[0, side] - box[1, side]))
        penalty += keys.per_step[column] * apart + (keys.per_change[column] if apart > 0 else 0.0)
    return log_kernel(case, square * (1 - 1e-14)) - penalty  # rounding must not hide a key at the edge


@njit()
def within(box: Floats, other: Floats, features: int, distance: float) -> bool:
    """Whether no two points of the boxes are farther apart than a distance."""
    square = 0.0
    for feature in range(features):
        apart = max(box[1, feature] - other[0, feature], other[1, feature] - box[0, feature])
        square += apart * apart
    return square <= distance * distance


@njit()
def nearest_group(case: Case, box: Floats, keys: Keys, tree: Tree) -> int:
    """The group that can weigh most for a box of queries."""
    nearest, highest = 0, -np.inf
    for group in range(tree.group_starts.shape[0] - 1):
        largest = bound(case, box, tree.group_boxes[group], keys)
        if largest > highest:
            nearest, highest = group, largest
    return nearest


@njit(fastmath=EXACT)
def from_nearest(rank: int, nearest: int) -> int:
    """The group at a rank in the order of visits: the nearest first, because its weight decides what is skipped."""
    if rank == 0:
        return nearest
    return rank - 1 if rank <= nearest else rank


@njit(fastmath=EXACT)
def fill_box(queries: Queries, block: int, box: Floats) -> None:
    """Fill in the box of a block of queries."""
    dimensions = queries.points.shape[0]
    for side in range(box.shape[1]):
        box[0, side], box[1, side] = np.inf, -np.inf
        some = queries.points[side] if side < dimensions else queries.codes[side - dimensions]
        for i in range(queries.starts[block], queries.starts[block + 1]):
            box[0, side], box[1, side] = min(box[0, side], some[i]), max(box[1, side], some[i])


@njit(fastmath=EXACT)
def largest_block(starts: Integers) -> int:
    """The number of keys in the largest block."""
    most = 0
    for block in range(starts.shape[0] - 1):
        most = max(most, starts[block + 1] - starts[block])
    return most


@njit(fastmath=EXACT)
def _compact_weight(case: Case, square: float) -> float:
    """A compact kernel itself: it cannot underflow, so no logarithm is needed."""
    return arithmetic(case.kernel, np.sqrt(square), square) if square < 1 else 0.0


@njit(fastmath=EXACT)
def _sum_penalties(code: Floats, keys: Keys, here: int, size: int, penalty: Floats) -> None:
    """What different codes subtract from the log weights of some keys."""
    for j in range(size):
        penalty[j] = 0
    for column in range(keys.per_change.shape[0]):
        some, own = keys.codes[column][here : here + size], code[column]
        for j in range(size):
            apart = abs(own - some[j])
            penalty[j] += keys.per_step[column] * apart + (keys.per_change[column] if apart > 0 else 0.0)


@njit(forceinline=True)
def _fill_weights(case: Case, query: Query, keys: Keys, here: int, size: int, room: Floats) -> None:
    """Log weights into room[0], or the weights themselves of a compact kernel; offsets of the keys into room[2:]."""
    compact = case.compact and not case.coded
    weight, penalty, mass = room[0], room[1], keys.log_mass[here : here + size]
    for j in range(size):
        weight[j] = 0
    for feature in range(query.point.shape[0]):
        others, coordinate, offset = keys.points[feature][here : here + size], query.point[feature], room[2 + feature]
        for j in range(size):
            apart = others[j] - coordinate
            penalty[j] = apart * apart
            if case.moments:
                offset[j] = apart
        # Added in a loop of its own, so that product and sum are not fused, because NumPy does not fuse them: at
        # the edge of a kernel that jumps, the last bit decides.
        for j in range(size):
            weight[j] += penalty[j]
    if compact:
        for j in range(size):
            weight[j] = _compact_weight(case, weight[j]) * exponential(mass[j])
    else:
        for j in range(size):
            weight[j] = log_kernel(case, weight[j]) + mass[j]
    if case.coded:
        _sum_penalties(query.code, keys, here, size, penalty)
        for j in range(size):
            weight[j] -= penalty[j]
    if 0 <= query.left_out - here < size:
        weight[query.left_out - here] = 0 if compact else -np.inf


@njit(fastmath=SUM, forceinline=True)
def add(moments: bool, features: int, column: Floats, room: Floats, here: int, size: int, sums: Floats) -> None:
    """Add the weights of some keys, in room[0], and their products with values and offsets, to the sums."""
    weight, index = room[0], 0
    for number in range(column.shape[0]):
        some, total = column[number][here : here + size], 0.0
        for j in range(size):
            total += weight[j] * some[j]
        sums[index] += total
        index += 1
    if not moments:
        return
    product = room[1]
    for feature in range(features):
        offset = room[2 + feature]
        for j in range(size):
            product[j] = weight[j] * offset[j]
        for number in range(column.shape[0]):
            some, total = column[number][here : here + size], 0.0
            for j in range(size):
                total += product[j] * some[j]
            sums[index] += total
            index += 1
        for other in range(feature + 1):
            some, total = room[2 + other], 0.0
            for j in range(size):
                total += product[j] * some[j]
            sums[index] += total
            index += 1


@njit(fastmath=EXACT)
def _point_box(query: Query) -> Floats:
    """The box of a single point."""
    features = query.point.shape[0]
    box = np.empty((2, features + query.code.shape[0]))
    for corner in range(2):
        for feature in range(features):
            box[corner, feature] = query.point[feature]
        for column in range(query.code.shape[0]):
            box[corner, features + column] = query.code[column]
    return box


@njit(fastmath=EXACT, forceinline=True)
def _highest_log_weight(case: Case, data: Data, query: Query, box: Floats, nearest: int, room: Floats) -> float:
    """The log weight of the key that weighs most for a query."""
    keys, tree, weight = data.keys, data.tree, room[0]
    highest = -np.inf
    for rank in range(tree.group_starts.shape[0] - 1):
        group = from_nearest(rank, nearest)
        if bound(case, box, tree.group_boxes[group], keys) <= highest:
            continue
        for block in range(tree.group_starts[group], tree.group_starts[group + 1]):
            if bound(case, box, tree.boxes[block], keys) <= highest:
                continue
            here, size = tree.starts[block], tree.starts[block + 1] - tree.starts[block]
            _fill_weights(case, query, keys, here, size, room)
            for j in range(size):
                highest = max(highest, weight[j])
    return highest


@njit(fastmath=EXACT, forceinline=True)
def sum_float64(case: Case, data: Data, i: int, nearest: int, room: Floats, sums: Floats) -> float:
    """Fill the sums of query i, relative to exp(the returned number), the log weight of its nearest key.

    A compact kernel cannot underflow, and is summed as it is.
    """
    queries, keys, tree, weight = data.queries, data.keys, data.tree, room[0]
    query = Query(queries.points[:, i].copy(), queries.codes[:, i].copy(), queries.left_out[i])
    compact, box = case.compact and not case.coded, _point_box(query)
    highest = 0.0 if compact else _highest_log_weight(case, data, query, box, nearest, room)
    for number in range(sums.shape[0]):
        sums[number] = 0
    if highest == -np.inf:
        return highest
    for rank in range(tree.group_starts.shape[0] - 1):
        group = from_nearest(rank, nearest)
        if np.exp(bound(case, box, tree.group_boxes[group], keys) - highest) <= data.limits.skipped * sums[0]:
            continue
        for block in range(tree.group_starts[group], tree.group_starts[group + 1]):
            if np.exp(bound(case, box, tree.boxes[block], keys) - highest) <= data.limits.skipped * sums[0]:
                continue
            here, size = tree.starts[block], tree.starts[block + 1] - tree.starts[block]
            _fill_weights(case, query, keys, here, size, room)
            if not compact:
                for j in range(size):
                    weight[j] = exponential(min(0.0, weight[j] - highest))
            add(case.moments, query.point.shape[0], keys.column, room, here, size, sums)
    return highest
