"""The loops of the `pairs` engine, in Numba: kernels of distances, fused, by blocks of near points.

Keys lie in blocks of neighbours, and those in groups; each has its bounding box (`pair_bounds.py`). For a block of
queries, what the kernel is at a box's least distance bounds the weight of all that is in it, and what cannot
matter is passed over: nearest first, until

    K(least distance) · (weight of all keys) ≤ tolerance · (weight found so far)

which keeps the sum of all that is left out below the tolerance, in whatever order it is met.

Most pairs are done in float32 (`pair_quick.py`). A query whose keys are all far is done in float64 and relative to
the nearest, where nothing underflows; so are all of them where the tolerance asks for it, and all moments
(`pair_exact.py`).

The kernel, the number of features and the like are constants of the one closure, `make_pool`, and all else is
compiled into it, so that the compiler unrolls and prunes. A closure over plain numbers is kept on disk; one over
functions would be compiled anew by every process.
"""

from typing import Any

import numpy as np
from numba import njit

from regard.compiled import compiled
from regard.engines.fused_loops import EXACT
from regard.engines.kernel_sums.pair_bounds import nearest_group
from regard.engines.kernel_sums.pair_float32 import quick, unit
from regard.engines.kernel_sums.pair_float64 import careful
from regard.engines.kernel_sums.problem import EPANECHNIKOV

NEAR = -4.5
"""The log weight that some block must reach for float32: of keys that are all farther, it rounds the exponents."""
FAINT = 3e-6
"""The mean weight of the keys met below which the sum may be one of far keys only, however large."""
UNROLLED = 8
"""Features up to which loops are compiled for their very number."""


@njit(fastmath=EXACT)
def box_of(asked: Any, block: Any, box: Any) -> None:
    """Fill in the box of a block of queries."""
    dimensions = asked.points.shape[0]
    for number in range(box.shape[1]):
        box[0, number], box[1, number] = np.inf, -np.inf
        some = asked.points[number] if number < dimensions else asked.codes[number - dimensions]
        for i in range(asked.starts[block], asked.starts[block + 1]):
            box[0, number], box[1, number] = min(box[0, number], some[i]), max(box[1, number], some[i])


@njit(fastmath=EXACT)
def largest_block(starts: Any) -> Any:
    """How many keys there are in the fullest block."""
    most = 0
    for block in range(starts.shape[0] - 1):
        most = max(most, starts[block + 1] - starts[block])
    return most


def make_pool(kind: int, features: int, coded: bool, moments: bool, version: int) -> Any:
    """The sums of some blocks of queries over all keys, for one kernel and a number of features (0: any).

    `version` is that of the source: what is on disk of another one must not be found.
    """
    scale = unit(kind)

    @compiled(nogil=True, fastmath=EXACT)
    def pool(first: Any, last: Any, asked: Any, known: Any, tree: Any, limits: Any, sums: Any, shift: Any) -> None:
        """Fill in the sums [queries, 1 + values], relative to exp(shift [queries]), of some blocks of queries.

        With moments, behind them for each feature: of the offset, of the offset times each value, and of
        its products with those of this and earlier features.
        """
        if version < 0:
            return
        dimensions, columns = asked.points.shape[0], asked.codes.shape[0]
        most = largest_block(tree.starts)
        box, room = np.empty((2, dimensions + columns)), np.empty((2 + dimensions, most))
        for block in range(first, last):
            begin, end = asked.starts[block], asked.starts[block + 1]
            box_of(asked, block, box)
            nearest = nearest_group(kind, box, known, tree)
            met, closest = 0, -np.inf
            for i in range(begin, end):
                shift[i], sums[i, 0] = 0, 0
            if not moments and limits.trusted < np.inf:
                found, met, closest = quick(
                    kind, features if features else dimensions, coded, scale, block, box, asked, known, tree, limits,
                    nearest, most,
                )  # fmt: skip
                for i in range(begin, end):
                    for number in range(known.column.shape[0]):
                        sums[i, number] = found[number, i - begin]
            for i in range(begin, end):
                enough = limits.trusted * met if kind >= EPANECHNIKOV else max(limits.trusted, FAINT * met)
                if not (enough <= sums[i, 0] < np.inf) or met == 0 or closest < NEAR:
                    shift[i] = careful(
                        kind, coded, moments, i, asked, known, tree, limits.allowed, nearest, room, sums[i]
                    )

    return pool
