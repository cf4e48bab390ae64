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
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic, overload

from regard.compiled import compiled
from regard.compiled.dropout_hash import FIRST, SECOND

SUM = {"contract", "nsz", "reassoc"}  # a sum may be taken in any order; NaN and inf keep their meaning
EXACT = {"contract"}


def bitcast(_: Any, bits: Any) -> Any:
    """The float whose bits these are."""
    floats: dict[Any, Any] = {
        types.int32: (types.float32, ir.FloatType()),
        types.int64: (types.float64, ir.DoubleType()),
    }
    numba_type, llvm_type = floats[bits]
    return numba_type(bits), lambda _, builder, __, args: builder.bitcast(args[0], llvm_type)


as_float: Any = intrinsic(bitcast)


def exponential(x: Any) -> Any:
    """e^x for x ≤ 0, or as far above it as 2^n is a number: e^x = 2^n e^r, |r| ≤ ln 2 / 2, and Taylor's series for e^r.

    Below the normal range it is 0, which also spares the products that follow denormal numbers.
    """
    raise NotImplementedError("compiled code only")


@overload(exponential, jit_options={"fastmath": EXACT})
def _exponential(x: Any) -> Any:
    if x == types.float32:
        log2e, high, low = np.float32(1.4426950408889634), np.float32(0.693359375), np.float32(-2.12194440e-4)
        least = np.float32(-87.3)
        c2, c3, c4, c5, c6, c7 = (np.float32(1 / f) for f in (2, 6, 24, 120, 720, 5040))
        one, zero = np.float32(1), np.float32(0)

        def exponential32(x: Any) -> Any:
            y = least if x < least else x
            n = np.rint(y * log2e)
            r = (y - n * high) - n * low
            p = (((((c7 * r + c6) * r + c5) * r + c4) * r + c3) * r + c2) * r * r + r + one
            p = p * as_float(np.int32((np.int32(n) + np.int32(127)) << np.int32(23)))
            return zero if x < least else p

        return exponential32

    d = tuple(1 / float(f) for f in (2, 6, 24, 120, 720, 5040, 40320, 362880, 3628800, 39916800, 479001600, 6227020800))
    d2, d3, d4, d5, d6, d7, d8, d9, d10, d11, d12, d13 = d

    def exponential64(x: Any) -> Any:
        y = -708.0 if x < -708.0 else x
        n = np.rint(y * 1.4426950408889634)
        r = (y - n * 0.693147180369123816490) - n * 1.90821492927058770002e-10
        p = (((((d13 * r + d12) * r + d11) * r + d10) * r + d9) * r + d8) * r + d7
        p = (((((p * r + d6) * r + d5) * r + d4) * r + d3) * r + d2) * r * r + r + 1.0
        p = p * as_float((np.int64(n) + 1023) << 52)
        return 0.0 if x < -708.0 else p

    return exponential64


def peak(row: Any) -> Any:
    """The largest number of a row. NaN when there is one, except a negative one among others."""
    raise NotImplementedError("compiled code only")


@overload(peak)
def _peak(row: Any) -> Any:
    integer, sign = (np.int32, 31) if row.dtype == types.float32 else (np.int64, 63)
    rest, least = np.iinfo(integer).max, np.iinfo(integer).min

    def ordered_peak(row: Any) -> Any:
        bits = row.view(integer)
        best = integer(least)
        for j in range(bits.shape[0]):
            word = bits[j]
            # Negative floats are ordered backwards as integers: flip all but the sign.
            best = max(best, word ^ ((word >> integer(sign)) & integer(rest)))
        return as_float(integer(best ^ ((best >> integer(sign)) & integer(rest))))

    return ordered_peak


@njit
def rise(before: Any, row: Any) -> Any:
    """The larger of `before` and the row's peak; NaN rather than -inf where all that is seen is NaN."""
    best = peak(row)
    if before > best:
        best = before
    if best == -np.inf:
        for j in range(row.shape[0]):
            if np.isnan(row[j]):
                best = row[j]
    return best


@njit(inline="always")
def hashed(first: Any, second: Any, key: Any) -> Any:
    """The hash of `dropout.kept`, on unsigned 32-bit words."""
    word = np.uint32(first + np.uint32(key))
    word = np.uint32(np.uint32(word ^ (word >> np.uint32(16))) * np.uint32(FIRST))
    word = np.uint32(word ^ second)
    return np.uint32(np.uint32(word ^ (word >> np.uint32(15))) * np.uint32(SECOND))


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
        shift = rise(before, row)
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
                row[j] = nothing if hashed(one, two, j) < drop else weight * scale
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
                keep = nothing if hashed(one, two, j) < drop else scale
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
            if not peak(part) > scores[top - 1]:
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
        shift = rise(before, row)
        highest[i] = shift
        if shift != -np.inf:
            summed = block.dtype.type(0)
            for j in range(row.shape[0]):
                summed += exponential(row[j] - shift)
            total[i] = total[i] * exponential(before - shift) + summed
