"""The largest scores of each row of a block and the sum of their exponentials, in Numba: the loops of `top_weights`.

Most numbers of a row are passed over by vectors of the CPU: the maxima of groups of keys give a bound below which no
number is among the largest, and only groups that reach it are looked at one by one.
"""

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from regard.compiled import compiled
from regard.compiled.math import SUM, Float, Floats, exponential, running_max

Counts = NDArray[np.int64]

GROUPS = 64
"""Groups of the keys of a row, some vectors of a CPU: key j is in group j modulo this."""


class Candidates(NamedTuple):
    """What is known of a row, in memory that all rows of a block use."""

    maxima: Floats  # [GROUPS]
    larger: NDArray[np.int32]  # [GROUPS]  how many other maxima are larger
    groups: Counts  # [GROUPS + 1]  those whose maximum reaches the bound
    keys: Counts  # [keys + 1]  those whose score reaches it


@compiled(nogil=True, fastmath=SUM)
def update_top(
    block: Floats,
    visible: Counts,
    top_score: Floats,
    top_key: Counts,
    largest: Floats,
    total: Floats,
    start: int,
) -> None:
    """Update each row's top scores, their keys, and the running sums with a block; of equal scores the first is larger.

    visible, start       as for `softmax_block`
    top_score, top_key   [rows, top]  the largest scores so far, in descending order; -inf and -1 where there are none
    """
    found = Candidates(
        np.empty(GROUPS, block.dtype),
        np.empty(GROUPS, np.int32),
        np.empty(GROUPS + 1, np.int64),
        np.empty(block.shape[1] + 1, np.int64),
    )
    for i in range(block.shape[0]):
        first, row = visible[0, i], block[i, visible[0, i] : visible[1, i]]
        if row.shape[0] == 0:
            continue
        find_maxima(row, found.maxima)
        before = largest[i]
        peak = running_max(before, found.maxima)
        if peak == -np.inf:
            peak = running_max(before, row)  # the maxima may have lost a NaN
        largest[i] = peak
        if peak > top_score[i, -1]:
            count = find_candidates(row, top_score[i], found)
            for j in found.keys[:count]:
                insert(top_score[i], top_key[i], row[j], start + first + j)
        if peak != -np.inf:
            summed = block.dtype.type(0)
            for j in range(row.shape[0]):
                summed += exponential(row[j] - peak)
            total[i] = total[i] * exponential(before - peak) + summed


@njit(fastmath=SUM)
def find_maxima(row: Floats, maxima: Floats) -> None:
    """The largest number of each group of a row."""
    maxima[:] = -np.inf
    whole = row.shape[0] - row.shape[0] % GROUPS
    for begin in range(0, whole, GROUPS):
        part = row[begin : begin + GROUPS]
        for group in range(GROUPS):
            maxima[group] = maxima[group] if maxima[group] > part[group] else part[group]
    for group in range(row.shape[0] - whole):
        maxima[group] = max(maxima[group], row[whole + group])


@njit(fastmath=SUM)
def find_candidates(row: Floats, scores: Floats, found: Candidates) -> int:
    """Find all keys whose score may be among the largest, a few more than `scores` holds, and return their number.

    The loops have no branches, which a CPU could not predict.
    """
    bound = max(scores[-1], lower_bound(found, scores.shape[0]))
    chosen = np.uint64(0)
    for group in range(GROUPS):
        found.groups[chosen] = group
        chosen += np.uint64(found.maxima[group] >= bound)
    count = np.uint64(0)
    for group in found.groups[:chosen]:
        for j in range(group, row.shape[0], GROUPS):
            found.keys[count] = j
            count += np.uint64(row[j] >= bound)
    return int(count)


@njit(fastmath=SUM)
def lower_bound(found: Candidates, top: int) -> Float:
    """A number that at least `top` numbers of the row reach: the maximum at that rank."""
    maxima, larger = found.maxima, found.larger
    if top > GROUPS:
        return maxima.dtype.type(-np.inf)
    larger[:] = 0
    for other in range(GROUPS):
        for group in range(GROUPS):
            larger[group] += np.int32(maxima[other] > maxima[group])
    bound = maxima.dtype.type(np.inf)
    for group in range(GROUPS):
        bound = maxima[group] if larger[group] < top and maxima[group] < bound else bound
    return bound


@njit(fastmath=SUM)
def insert(scores: Floats, keys: Counts, score: Float, key: int) -> None:
    """Insert a score among the largest, in descending order, if it is one of them."""
    rank = scores.shape[0]
    while rank > 0 and (score > scores[rank - 1] or (score == scores[rank - 1] and key < keys[rank - 1])):
        rank -= 1
        if rank + 1 < scores.shape[0]:
            scores[rank + 1], keys[rank + 1] = scores[rank], keys[rank]
    if rank < scores.shape[0]:
        scores[rank], keys[rank] = score, key
