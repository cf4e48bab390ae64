"""The exact part of the `pairs` loops: one query in float64, relative to its nearest key, where nothing underflows.

Also the moments that local lines are fitted from: the means of offsets, and of their products.
"""

from typing import Any

import numpy as np
from numba import njit

from regard.engines.fused_loops import EXACT, SUM, exponential
from regard.engines.kernel_sums.pair_bounds import bound, from_nearest, log_kernel
from regard.engines.kernel_sums.problem import BOXCAR, EPANECHNIKOV


@njit(fastmath=EXACT)
def compact_weight(kind: Any, square: Any) -> Any:
    """A kernel that ends; none underflows, so that no logarithm is needed."""
    if square >= 1:
        return 0.0
    if kind == EPANECHNIKOV:
        return 1 - square
    if kind == BOXCAR:
        return 1.0
    rest = 1 - square * np.sqrt(square)
    return rest * rest * rest


@njit(fastmath=EXACT)
def penalties(code: Any, known: Any, here: Any, size: Any, penalty: Any) -> None:
    """What differing codes take off the log weights of some keys."""
    for j in range(size):
        penalty[j] = 0
    for column in range(known.jump.shape[0]):
        some, own = known.codes[column][here : here + size], code[column]
        for j in range(size):
            apart = abs(own - some[j])
            penalty[j] += known.slope[column] * apart + (known.jump[column] if apart > 0 else 0.0)


@njit(forceinline=True)
def log_weights(
    kind: Any, coded: Any, moments: Any, point: Any, code: Any, own: Any, known: Any, here: Any, size: Any, room: Any
) -> None:
    """Into room[0], or the weights themselves of a compact kernel; and the offsets of the keys into room[2:]."""
    compact = kind >= EPANECHNIKOV and not coded
    weight, penalty, mass = room[0], room[1], known.log_mass[here : here + size]
    for j in range(size):
        weight[j] = 0
    for feature in range(point.shape[0]):
        others, coordinate, offset = known.points[feature][here : here + size], point[feature], room[2 + feature]
        for j in range(size):
            apart = others[j] - coordinate
            penalty[j] = apart * apart
            if moments:
                offset[j] = apart
        # Added in a loop of its own, so that product and sum are not fused, as NumPy does not: at the very edge of
        # a kernel that jumps, the last bit decides.
        for j in range(size):
            weight[j] += penalty[j]
    if compact:
        for j in range(size):
            weight[j] = compact_weight(kind, weight[j]) * exponential(mass[j])
    else:
        for j in range(size):
            weight[j] = log_kernel(kind, weight[j]) + mass[j]
    if coded:
        penalties(code, known, here, size, penalty)
        for j in range(size):
            weight[j] -= penalty[j]
    if 0 <= own - here < size:
        weight[own - here] = 0 if compact else -np.inf


@njit(fastmath=SUM, forceinline=True)
def add(moments: Any, weight: Any, column: Any, room: Any, here: Any, size: Any, features: Any, sums: Any) -> None:
    """Add some keys' weights, and their products with values and offsets, to the sums."""
    place = 0
    for number in range(column.shape[0]):
        some, total = column[number][here : here + size], 0.0
        for j in range(size):
            total += weight[j] * some[j]
        sums[place] += total
        place += 1
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
            sums[place] += total
            place += 1
        for other in range(feature + 1):
            some, total = room[2 + other], 0.0
            for j in range(size):
                total += product[j] * some[j]
            sums[place] += total
            place += 1


@njit(fastmath=EXACT)
def point_box(point: Any, code: Any) -> Any:
    """The box of a single point."""
    box = np.empty((2, point.shape[0] + code.shape[0]))
    for corner in range(2):
        for feature in range(point.shape[0]):
            box[corner, feature] = point[feature]
        for column in range(code.shape[0]):
            box[corner, point.shape[0] + column] = code[column]
    return box


@njit(fastmath=EXACT, forceinline=True)
def careful(
    kind: Any, coded: Any, moments: Any, i: Any, asked: Any, known: Any, tree: Any, allowed: Any, nearest: Any,
    room: Any, sums: Any
) -> Any:  # fmt: skip
    """Fill the sums of query i, relative to exp(what is returned), the log weight of the nearest key.

    A kernel that ends underflows nowhere, and needs no such care.
    """
    point, code, own = asked.points[:, i].copy(), asked.codes[:, i].copy(), asked.own[i]
    compact = kind >= EPANECHNIKOV and not coded
    groups, box, weight = tree.group_starts.shape[0] - 1, point_box(point, code), room[0]
    highest = 0.0 if compact else -np.inf
    if not compact:
        for place in range(groups):
            group = from_nearest(place, nearest)
            if bound(kind, box, tree.group_boxes[group], known.slope, known.jump) <= highest:
                continue
            for block in range(tree.group_starts[group], tree.group_starts[group + 1]):
                if bound(kind, box, tree.boxes[block], known.slope, known.jump) <= highest:
                    continue
                here, size = tree.starts[block], tree.starts[block + 1] - tree.starts[block]
                log_weights(kind, coded, moments, point, code, own, known, here, size, room)
                for j in range(size):
                    highest = max(highest, weight[j])
    for number in range(sums.shape[0]):
        sums[number] = 0
    if highest == -np.inf:
        return highest
    for place in range(groups):
        group = from_nearest(place, nearest)
        reach = bound(kind, box, tree.group_boxes[group], known.slope, known.jump)
        if np.exp(reach - highest) <= allowed * sums[0]:
            continue
        for block in range(tree.group_starts[group], tree.group_starts[group + 1]):
            reach = bound(kind, box, tree.boxes[block], known.slope, known.jump)
            if np.exp(reach - highest) <= allowed * sums[0]:
                continue
            here, size = tree.starts[block], tree.starts[block + 1] - tree.starts[block]
            log_weights(kind, coded, moments, point, code, own, known, here, size, room)
            if not compact:
                for j in range(size):
                    weight[j] = exponential(min(0.0, weight[j] - highest))
            add(moments, weight, known.column, room, here, size, point.shape[0], sums)
    return highest
