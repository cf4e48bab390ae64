"""The fused CPU loops of the `stream` engine, in Numba: one pass over a block of scores.

Each works in place on a block `[rows, keys]`, releases the GIL, and is compiled once for float32 and
once for float64 and kept on disk. What the compiler needs, and why it is written so:

* `exponential` is our own, since `np.exp` stays a scalar call. It is compiled without `reassoc`, which
  would fold the two-word ln 2 of its range reduction into one and lose the digits it is there for.
* The row maximum is taken over integers of the same order as the floats: LLVM vectorises that, and a
  NaN comes out on top instead of being skipped.
* 32-bit integer arithmetic is written with casts, because Numba widens it to 64 bits.
"""

from typing import Any

import numpy as np
from numba import njit

from regard.compiled import compiled
from regard.compiled.math import EXACT, SUM, exponential, hash_word, row_max, running_max


@njit(fastmath=EXACT)
def apart(here: Any, there: Any, rest: Any, other_rest: Any) -> Any:
    """there - here, for numbers kept in two words."""
    return (there - here) + (other_rest - rest)


@compiled(nogil=True, fastmath=EXACT)
def distances(query: Any, query_rest: Any, key: Any, key_rest: Any, block: Any) -> None:
    """block[i, j] = -½‖query_i - key_j‖². Coordinates are [features, points], each with what it was rounded by."""
    half = block.dtype.type(-0.5)
    for i in range(block.shape[0]):
        row = block[i]
        row[:] = 0
        for feature in range(query.shape[0]):
            here, rest, others, rests = query[feature, i], query_rest[feature, i], key[feature], key_rest[feature]
            for j in range(row.shape[0]):
                step = apart(others[j], here, rests[j], rest)
                row[j] += step * step
        for j in range(row.shape[0]):
            row[j] *= half


@compiled(nogil=True, fastmath=SUM)
def distances_backward(
    slope: Any, query: Any, query_rest: Any, key: Any, key_rest: Any, query_slope: Any, key_slope: Any
) -> None:
    """Add slope[i, j] · (key_j - query_i) to the slope of query_i, and take it from that of key_j."""
    for i in range(slope.shape[0]):
        row = slope[i]
        for feature in range(query.shape[0]):
            here, rest, others, rests = query[feature, i], query_rest[feature, i], key[feature], key_rest[feature]
            against = key_slope[feature]
            summed = slope.dtype.type(0)
            for j in range(row.shape[0]):
                # Subtracted and rounded as a pair before anything is summed: it is the small difference that counts.
                pull = row[j] * apart(here, others[j], rest, rests[j])
                summed += pull
                against[j] -= pull
            query_slope[feature, i] += summed


@compiled(nogil=True, fastmath=SUM)
def soften(
    block: Any,
    reach: Any,
    highest: Any,
    total: Any,
    summed: Any,
    first: Any,
    second: Any,
    start: Any,
    drop: Any,
    scale: Any,
) -> None:
    """Scores become exp(score - highest), dropped and scaled; the running sums are brought up to date.

    reach                   how many keys the first row sees, each further row one more; what it does not see is 0
    highest, total [rows]   the largest score so far, and the sum of exp(score - highest), kept or not
    summed [rows, values]   the values weighted so far; it fades as `highest` rises
    first, second [rows]    the rows' dropout keys; start: the index of the block's first key
    drop, scale             the dropout threshold (0: none) and what kept weights are multiplied by
    """
    nothing = block.dtype.type(0)
    for i in range(block.shape[0]):
        count = min(block.shape[1], max(0, reach + i))
        row = block[i, :count]
        block[i, count:] = 0
        if count == 0:
            continue
        before = highest[i]
        shift = running_max(before, row)
        highest[i] = shift
        if shift == -np.inf:  # nothing to be seen so far
            row[:] = 0
            continue
        fade = exponential(before - shift)
        for v in range(summed.shape[1]):
            summed[i, v] *= fade
        weights = nothing
        if drop == 0:
            for j in range(row.shape[0]):
                weight = exponential(row[j] - shift)
                weights += weight
                row[j] = weight
        else:
            one, two = np.uint32(first[i] + np.uint32(start)), second[i]
            for j in range(row.shape[0]):
                weight = exponential(row[j] - shift)
                weights += weight
                row[j] = nothing if hash_word(one, two, j) < drop else weight * scale
        total[i] = total[i] * fade + weights


@compiled(nogil=True, fastmath=EXACT)
def normalise(total: Any, summed: Any) -> None:
    """Sums become means; who saw nothing keeps a mean of 0, and a total of 1 so that its logarithm is 0."""
    for i in range(summed.shape[0]):
        if total[i] == 0:
            total[i] = 1
        for v in range(summed.shape[1]):
            summed[i, v] /= total[i]


@compiled(nogil=True, fastmath=SUM)
def soften_backward(
    block: Any,
    slope: Any,
    reach: Any,
    highest: Any,
    total: Any,
    offset: Any,
    first: Any,
    second: Any,
    start: Any,
    drop: Any,
    scale: Any,
) -> None:
    """Scores become the weights that met the values; slopes by weight become slopes by score.

    slope [rows, keys]      in: mean' · value, out: d loss / d score
    highest, total [rows]   of the forward pass; the log weight they add up to has fewer digits
    offset [rows]           mean' · mean - log_weight': what softmax takes off every slope of the row
    """
    nothing = block.dtype.type(0)
    for i in range(block.shape[0]):
        count = min(block.shape[1], max(0, reach + i))
        block[i, count:] = 0
        slope[i, count:] = 0
        row, slopes, shift, share, off = block[i, :count], slope[i, :count], highest[i], 1 / total[i], offset[i]
        if shift == -np.inf:
            row[:] = 0
            slopes[:] = 0
        elif drop == 0:
            for j in range(row.shape[0]):
                weight = exponential(row[j] - shift) * share
                row[j] = weight
                slopes[j] = weight * (slopes[j] - off)
        else:
            one, two = np.uint32(first[i] + np.uint32(start)), second[i]
            for j in range(row.shape[0]):
                weight = exponential(row[j] - shift) * share
                keep = nothing if hash_word(one, two, j) < drop else scale
                row[j] = weight * keep
                slopes[j] = weight * (slopes[j] * keep - off)


@compiled(nogil=True, fastmath=EXACT)
def hide(block: Any, reach: Any) -> None:
    """-inf where a row does not see a key: the first row sees `reach` keys, each further row one more."""
    for i in range(block.shape[0]):
        block[i, max(0, reach + i) :] = -np.inf


@compiled(nogil=True, fastmath=SUM)
def keep_best(block: Any, best: Any, index: Any, highest: Any, total: Any, start: Any) -> None:
    """Bring each row's best scores, their keys, and the running sums up to date with a block.

    best, index [rows, top]   the largest scores so far, falling, and their keys; -inf and -1 where none
    """
    top = best.shape[1]
    for i in range(block.shape[0]):
        row, scores, keys = block[i], best[i], index[i]
        for begin in range(0, row.shape[0], 64):
            part = row[begin : begin + 64]
            if not row_max(part) > scores[top - 1]:
                continue
            for j in range(part.shape[0]):
                score = part[j]
                if not score > scores[top - 1]:
                    continue
                place = top - 1
                while place > 0 and score > scores[place - 1]:
                    scores[place], keys[place] = scores[place - 1], keys[place - 1]
                    place -= 1
                scores[place], keys[place] = score, start + begin + j
        before = highest[i]
        shift = running_max(before, row)
        highest[i] = shift
        if shift != -np.inf:
            summed = block.dtype.type(0)
            for j in range(row.shape[0]):
                summed += exponential(row[j] - shift)
            total[i] = total[i] * exponential(before - shift) + summed
