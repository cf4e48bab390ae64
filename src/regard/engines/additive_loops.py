"""The loops of `additive.py`, in Numba: one query a row against its own keys, score to mean in one pass, and back.

Arrays are `[rows, …]` with each row contiguous, compiled for float32 and float64. Numba's division is told to be
NumPy's: with Python's check for zero it would not be vectorised.
"""

from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from regard.engines.compiling import compiled
from regard.engines.loops import EXACT, SUM, exponential


def bend(x: Any) -> Any:
    """tanh x = ±(1 − e) / (1 + e) with e = exp(−2|x|), to 1e-7 in float32."""
    raise NotImplementedError("compiled code only")


@overload(bend, jit_options={"fastmath": EXACT, "error_model": "numpy"})
def _bend(x: Any) -> Any:
    one = np.float32(1) if x == types.float32 else np.float64(1)

    def bend_one(x: Any) -> Any:
        e = exponential(-abs(x + x))
        size = (one - e) / (one + e)
        return size if x > 0 else -size

    return bend_one


@compiled(nogil=True, fastmath=SUM, error_model="numpy")
def forward(query: Any, key: Any, weight: Any, value: Any, counts: Any, mean: Any, share: Any) -> None:
    """share = softmax(weightᵀ tanh(query + key)) over the first `counts` keys of each row; mean = Σ share · value.

    query [rows, h or more], of which the first h count; key [rows, n, h]; value [rows, n, v]
    mean [rows, v], share [rows, n]: written; both 0 where a row has no keys
    """
    size = key.shape[2]
    for row in range(key.shape[0]):
        asked, shares, into, count = query[row, :size], share[row], mean[row], counts[row]
        highest = shares.dtype.type(-np.inf)
        for i in range(count):
            there, score = key[row, i], shares.dtype.type(0)
            for j in range(size):
                score += weight[j] * bend(asked[j] + there[j])
            shares[i] = score
            highest = max(highest, score)
        total = shares.dtype.type(0)
        for i in range(count):
            shares[i] = exponential(shares[i] - highest)
            total += shares[i]
        shares[count:] = 0
        into[:] = 0
        for i in range(count):
            shares[i] /= total
        i = 0
        while i + 4 <= count:  # four at a time: the mean is read and written a quarter as often
            a, b, c, d = shares[i], shares[i + 1], shares[i + 2], shares[i + 3]
            first, second, third, fourth = value[row, i], value[row, i + 1], value[row, i + 2], value[row, i + 3]
            for j in range(into.shape[0]):
                into[j] += a * first[j] + b * second[j] + c * third[j] + d * fourth[j]
            i += 4
        while i < count:
            a, first = shares[i], value[row, i]
            for j in range(into.shape[0]):
                into[j] += a * first[j]
            i += 1


@compiled(nogil=True, fastmath=SUM, error_model="numpy")
def backward(
    query: Any,
    key: Any,
    weight: Any,
    value: Any,
    counts: Any,
    share: Any,
    mean_slope: Any,
    share_slope: Any,
    query_slope: Any,
    key_slope: Any,
    weight_slope: Any,
) -> None:
    """From the slopes of mean and share to those of query (written), key and weight (added to).

    share_slope [rows, n]   what the loss gains with the weights by themselves; it is used as scratch
    query_slope             [rows, h or more], of which the first h are written

    The slope of the values, share ⊗ mean_slope, is a product of matrices over several queries: it is not done here.
    """
    size = key.shape[2]
    one = weight.dtype.type(1)
    for row in range(key.shape[0]):
        asked, shares, pull, count = query[row, :size], share[row], mean_slope[row], counts[row]
        slopes, into = share_slope[row], query_slope[row, :size]
        total = weight.dtype.type(0)
        for i in range(count):
            there, slope = value[row, i], slopes[i]
            for j in range(pull.shape[0]):
                slope += pull[j] * there[j]
            slopes[i] = slope
            total += shares[i] * slope
        into[:] = 0
        for i in range(count):
            there, against, slope = key[row, i], key_slope[row, i], shares[i] * (slopes[i] - total)
            for j in range(size):
                u = bend(asked[j] + there[j])
                step = slope * weight[j] * (one - u * u)
                weight_slope[j] += slope * u
                into[j] += step
                against[j] += step
