"""The thresholds of sparse weighings, in Numba: Newton's method for each row."""

import numpy as np

from regard.compiled import compiled
from regard.compiled.math import SUM, Floats, row_max

_ROUNDS = 100
"""More than were ever needed: 5 to 15, since each round doubles the correct digits."""


@compiled(nogil=True, fastmath=SUM, error_model="numpy")
def row_thresholds(scores: Floats, scale: float, power: int, row: Floats) -> None:
    """For each row of scores its largest score, the threshold t, and the sum of derivatives, relu(x - t)^(power - 1).

    Σ relu(x - t)^power = 1, with x = scale · (score - largest). The sum is convex in t and at least 1 at t = -1, so
    that Newton's steps from there only go up to the threshold. A row without a finite score: largest inf, which gives
    weights of 0.

    row   [rows, 3]  the results
    """
    number = scores.dtype.type
    zero, one, factor = number(0), number(1), number(scale)
    for i in range(scores.shape[0]):
        some = scores[i]
        largest = row_max(some) if some.shape[0] else number(-np.inf)
        if largest == -np.inf:
            row[i, 0], row[i, 1], row[i, 2] = np.inf, 0, 1
            continue
        threshold, derivative = -one, one
        for _ in range(_ROUNDS):
            count, first, second = zero, zero, zero
            for j in range(some.shape[0]):
                x = (some[j] - largest) * factor - threshold
                d = x if x > zero else zero
                count += one if x > zero else zero
                first += d
                second += d * d
            derivative = count if power == 1 else first
            step = (first - one) / count if power == 1 else number(0.5) * (second - one) / first
            if not threshold + step > threshold:
                break
            threshold += step
        row[i, 0], row[i, 1], row[i, 2] = largest, threshold, derivative
        if np.isnan(some.sum()):
            row[i, 1] = np.nan
