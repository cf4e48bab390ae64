"""The loops of `additive.py`, in Numba: one query a row, score to mean in one pass, and back.

Arrays are `[rows, …]` with each row contiguous, compiled for float32 and float64. Numba's division is told to be
NumPy's: with Python's check for zero it would not be vectorised.
"""

from typing import Any

import numpy as np
from numba import njit

from regard.compiled import compiled
from regard.compiled.math import SUM, exponential, tanh


@njit(fastmath=SUM, error_model="numpy")
def rate(asked: Any, keys: Any, weight: Any, scores: Any) -> None:
    """The scores of some keys [n, h] by one query [h or more]."""
    size = weight.shape[0]
    asked = asked[:size]
    for i in range(scores.shape[0]):
        there, score = keys[i], scores.dtype.type(0)
        for j in range(size):
            score += weight[j] * tanh(asked[j] + there[j])
        scores[i] = score


@compiled(nogil=True)
def scores(query: Any, key: Any, weight: Any, which: Any, out: Any) -> None:
    """out [rows, n] = weightᵀ tanh(query + key), where row r has the keys of number which[r]."""
    for row in range(query.shape[0]):
        rate(query[row], key[which[row]], weight, out[row])


@compiled(nogil=True, fastmath=SUM, error_model="numpy")
def forward(query: Any, key: Any, weight: Any, value: Any, counts: Any, mean: Any, share: Any) -> None:
    """share = softmax(weightᵀ tanh(query + key)) over the first `counts` keys of each row; mean = Σ share · value.

    query [rows, h or more], of which the first h count; key [rows, n, h]; value [rows, n, v]
    mean [rows, v], share [rows, n]: written; both 0 where a row has no keys
    """
    for row in range(key.shape[0]):
        count, into = counts[row], mean[row]
        shares = share[row, :count]
        rate(query[row], key[row], weight, shares)
        highest, total = shares.dtype.type(-np.inf), shares.dtype.type(0)
        for i in range(count):
            highest = max(highest, shares[i])
        for i in range(count):
            shares[i] = exponential(shares[i] - highest)
            total += shares[i]
        for i in range(count):
            shares[i] /= total
        share[row, count:] = 0
        into[:] = 0
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
                u = tanh(asked[j] + there[j])
                step = slope * weight[j] * (one - u * u)
                weight_slope[j] += slope * u
                into[j] += step
                against[j] += step
