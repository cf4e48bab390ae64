"""The loops of `additive_scores.py`, in Numba: scores of one query a row, and their gradients, in one pass each.

tanh x = 1 - 2r and its slope 4r(1 - r), with r = 1 / (1 + e^2x): an error of a rounding of 1, not of x.
"""

from typing import Any

import numpy as np
from numba import njit

from regard.engines.compiling import compiled
from regard.engines.loops import SUM, exponential


@njit(inline="always", error_model="numpy")
def fall(x: Any, most: Any, two: Any, one: Any) -> Any:
    """1 / (1 + e^2x), where x beyond what tanh can tell from 1 is cut off."""
    return one / (one + exponential(two * (most if x > most else x)))


@compiled(nogil=True, fastmath=SUM, error_model="numpy")
def scores(query: Any, key: Any, weight: Any, which: Any, out: Any) -> None:
    """out[r, i] = Σ_j weight_j tanh(query[r, j] + key[which_r, i, j])."""
    most, one, two = key.dtype.type(20), key.dtype.type(1), key.dtype.type(2)
    whole = key.dtype.type(0)
    for j in range(weight.shape[0]):
        whole += weight[j]
    for r in range(query.shape[0]):
        here, keys = query[r], key[which[r]]
        for i in range(keys.shape[0]):
            row, summed = keys[i], key.dtype.type(0)
            for j in range(weight.shape[0]):
                summed += weight[j] * fall(here[j] + row[j], most, two, one)
            out[r, i] = whole - two * summed


@compiled(nogil=True, fastmath=SUM, error_model="numpy")
def slopes(
    query: Any, key: Any, weight: Any, which: Any, slope: Any, query_slope: Any, key_slope: Any, weight_slope: Any
) -> None:
    """Add to the slopes of query, key and weight what those of the scores, slope [rows, keys], make of them.

    Rows of one call must not share their keys with rows of another at the same time.
    """
    most, one, two, four = key.dtype.type(20), key.dtype.type(1), key.dtype.type(2), key.dtype.type(4)
    mine = np.zeros_like(weight)
    for r in range(query.shape[0]):
        here, into, keys, keys_into = query[r], query_slope[r], key[which[r]], key_slope[which[r]]
        mine[:] = 0
        for i in range(keys.shape[0]):
            row, row_into, steep = keys[i], keys_into[i], slope[r, i]
            for j in range(weight.shape[0]):
                part = fall(here[j] + row[j], most, two, one)
                weight_slope[j] += steep * (one - two * part)
                pull = steep * weight[j] * (four * part * (one - part))
                mine[j] += pull
                row_into[j] += pull
        for j in range(weight.shape[0]):
            into[j] += mine[j]
