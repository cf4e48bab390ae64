"""Fast elementwise math for compiled loops: exp, tanh, the maximum of a row, and the dropout hash.

LLVM vectorises these functions, for float32 and float64. What it needs, and why they are written so:

* `exponential` is our own, since `np.exp` stays a scalar call. It is compiled without `reassoc`, which would fold the
  two-word ln 2 of its range reduction into one and lose the digits it is there for.
* The maximum of a row is taken over integers of the same order as the floats: LLVM vectorises that, and a NaN comes
  out on top instead of being skipped.
* 32-bit integer arithmetic is written with casts, because Numba widens it to 64 bits.
* Division is NumPy's (`error_model`): Python's check for zero would keep it from being vectorised.
"""

from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import overload
from numpy.typing import NDArray

from regard.compiled.dropout_hash import FIRST, SECOND

SUM = {"contract", "nsz", "reassoc"}  # a sum may be taken in any order; NaN and inf keep their meaning
EXACT = {"contract"}

Float = np.floating[Any]
Floats = NDArray[Float]
"""float32 or float64: loops are compiled for each."""
Words = NDArray[np.uint32]

# float32 times float64 is float64: these serve both.
ONE, _TANH_IS_ONE = np.float32(1), np.float32(20)


def exponential(x: Float | float) -> Float:
    """e^x for x ≤ 0, or as far above as 2^n is finite: e^x = 2^n e^r, |r| ≤ ln 2 / 2, with Taylor's series for e^r.

    Below the normal range it is 0, which also spares the products that follow denormal numbers.
    """
    raise NotImplementedError("compiled code only")


@overload(exponential, jit_options={"fastmath": EXACT})
def _exponential(x: Any) -> object:
    if x == types.float32:
        log2e, high, low = np.float32(1.4426950408889634), np.float32(0.693359375), np.float32(-2.12194440e-4)
        least = np.float32(-87.3)
        c2, c3, c4, c5, c6, c7 = (np.float32(1 / f) for f in (2, 6, 24, 120, 720, 5040))
        one, zero = np.float32(1), np.float32(0)

        def exponential32(x: Any) -> np.float32:
            y = least if x < least else x
            n = np.rint(y * log2e)
            r = (y - n * high) - n * low
            p = (((((c7 * r + c6) * r + c5) * r + c4) * r + c3) * r + c2) * r * r + r + one
            p = p * np.int32((np.int32(n) + np.int32(127)) << np.int32(23)).view(np.float32)
            return zero if x < least else p

        return exponential32

    d = tuple(1 / float(f) for f in (2, 6, 24, 120, 720, 5040, 40320, 362880, 3628800, 39916800, 479001600, 6227020800))
    d2, d3, d4, d5, d6, d7, d8, d9, d10, d11, d12, d13 = d

    def exponential64(x: Any) -> float:
        y = -708.0 if x < -708.0 else x
        n = np.rint(y * 1.4426950408889634)
        r = (y - n * 0.693147180369123816490) - n * 1.90821492927058770002e-10
        p = (((((d13 * r + d12) * r + d11) * r + d10) * r + d9) * r + d8) * r + d7
        p = (((((p * r + d6) * r + d5) * r + d4) * r + d3) * r + d2) * r * r + r + 1.0
        p = p * np.int64((np.int64(n) + 1023) << 52).view(np.float64)
        return 0.0 if x < -708.0 else p

    return exponential64


# 2^f for |f| ≤ ½, by the polynomial with the smallest maximum relative error: 7.5e-8.
_P0, _P1, _P2 = np.float32(1.00000007165), np.float32(0.693146967037), np.float32(0.240221197267)
_P3, _P4, _P5 = np.float32(0.055507133185), np.float32(0.00967554121833), np.float32(0.00132764574456)
_ROUND = np.float32(1.5 * 2**23)
"""Added to a number, it leaves the nearest integer in the low bits."""
_LARGEST_POWER = np.float32(100)
"""Above it, 2^-x times a small value would be subnormal, which is slow on CPUs."""


@njit(fastmath=EXACT)
def negative_power_of_two(x: np.float32) -> np.float32:
    """2^-x for x ≥ 0, to 2e-7; 8e-31 if it would be less. Two thirds of the operations of `exponential`."""
    x = _LARGEST_POWER if x > _LARGEST_POWER else x
    rounded = np.float32(_ROUND - x)
    f = (_ROUND - rounded) - x
    p = np.float32(((((_P5 * f + _P4) * f + _P3) * f + _P2) * f + _P1) * f + _P0)
    exponent = np.int32(rounded.view(np.int32) << np.int32(23))
    return np.int32(p.view(np.int32) + exponent).view(np.float32)


@njit(fastmath=EXACT, error_model="numpy")
def tanh(x: Float) -> Float:
    """tanh x = (e − 1) / (e + 1) with e = exp(2x), to 2e-7 in float32, and to 4e-8 near 0."""
    clipped = _TANH_IS_ONE if x > _TANH_IS_ONE else x
    e = exponential(clipped + clipped)
    return (e - ONE) / (e + ONE)


def row_max(row: Floats) -> Float:
    """The largest number of a row. NaN when there is one, except a negative one among others."""
    raise NotImplementedError("compiled code only")


@overload(row_max)
def _row_max(row: Any) -> object:
    integer, real, sign = (np.int32, np.float32, 31) if row.dtype == types.float32 else (np.int64, np.float64, 63)
    rest, least = np.iinfo(integer).max, np.iinfo(integer).min

    def ordered_max(row: Any) -> Float:
        bits = row.view(integer)
        best = integer(least)
        for j in range(bits.shape[0]):
            word = bits[j]
            # Negative floats are ordered backwards as integers: flip all but the sign.
            best = max(best, word ^ ((word >> integer(sign)) & integer(rest)))
        largest: Float = integer(best ^ ((best >> integer(sign)) & integer(rest))).view(real)
        return largest

    return ordered_max


@njit()
def running_max(before: Float, row: Floats) -> Float:
    """The larger of `before` and the row's maximum; NaN rather than -inf where every score so far is NaN."""
    best = row_max(row)
    if before > best:
        best = before
    if best == -np.inf:
        for j in range(row.shape[0]):
            if np.isnan(row[j]):
                best = row[j]
    return best


@njit(inline="always")
def hash_word(first: np.uint32, second: np.uint32, key: int) -> np.uint32:
    """The hash of `dropout_hash.keep_mask`, on unsigned 32-bit words."""
    word = np.uint32(first + np.uint32(key))
    word = np.uint32(np.uint32(word ^ (word >> np.uint32(16))) * np.uint32(FIRST))
    word = np.uint32(word ^ second)
    return np.uint32(np.uint32(word ^ (word >> np.uint32(15))) * np.uint32(SECOND))
