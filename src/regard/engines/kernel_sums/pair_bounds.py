"""How much a box of keys can weigh at most, for the loops of the `pairs` engine.

A box is [2, features + columns]: low and high corner, first of the coordinates, then of the codes of categories.
What the kernel is at two boxes' least distance bounds the weight of every pair of points in them.
"""

from typing import Any

import numpy as np
from numba import njit

from regard.engines.fused_loops import EXACT
from regard.engines.kernel_sums.problem import BOXCAR, EPANECHNIKOV, GAUSSIAN, LAPLACE


@njit(fastmath=EXACT)
def log_kernel(kind: Any, square: Any) -> Any:
    """The logarithm of the kernel of a squared distance."""
    if kind == GAUSSIAN:
        return -0.5 * square
    if kind == LAPLACE:
        return -np.sqrt(square)
    if square >= 1:
        return -np.inf
    if kind == EPANECHNIKOV:
        return np.log1p(-square)
    if kind == BOXCAR:
        return 0.0
    return 3 * np.log1p(-square * np.sqrt(square))


@njit
def bound(kind: Any, box: Any, other: Any, slope: Any, jump: Any) -> Any:
    """The largest log weight that a point in one box can have for one in the other; keys weigh 1 at most."""
    square, penalty = 0.0, 0.0
    features = box.shape[1] - jump.shape[0]
    for feature in range(features):
        apart = max(0.0, max(box[0, feature] - other[1, feature], other[0, feature] - box[1, feature]))
        square += apart * apart
    for column in range(jump.shape[0]):
        place = features + column
        apart = max(0.0, max(box[0, place] - other[1, place], other[0, place] - box[1, place]))
        penalty += slope[column] * apart + (jump[column] if apart > 0 else 0.0)
    return log_kernel(kind, square * (1 - 1e-14)) - penalty  # rounding must not hide a key at the edge


@njit
def within(box: Any, other: Any, features: Any, distance: Any) -> Any:
    """Whether no two points of the boxes are farther apart than a distance."""
    square = 0.0
    for feature in range(features):
        apart = max(box[1, feature] - other[0, feature], other[1, feature] - box[0, feature])
        square += apart * apart
    return square <= distance * distance


@njit
def nearest_group(kind: Any, box: Any, known: Any, tree: Any) -> Any:
    """The group that can weigh most for a box of queries."""
    nearest, highest = 0, -np.inf
    for group in range(tree.group_starts.shape[0] - 1):
        reach = bound(kind, box, tree.group_boxes[group], known.slope, known.jump)
        if reach > highest:
            nearest, highest = group, reach
    return nearest


@njit(fastmath=EXACT)
def from_nearest(place: Any, nearest: Any) -> Any:
    """The group at a place in the order: the nearest first, whose weight says what can be passed over."""
    if place == 0:
        return nearest
    return place - 1 if place <= nearest else place
