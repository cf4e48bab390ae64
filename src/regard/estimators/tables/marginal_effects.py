"""Marginal effects: the derivative of a prediction by each numeric column."""

from dataclasses import replace
from typing import Any

import numpy as np

from regard.estimators.tables.smoother import Smoother

STEP = 1e-3
"""Of differences, in bandwidths: their error is some 1e-10, half of it from rounding."""

Array = Any


def slopes(smoother: Smoother, number: Array, code: Array) -> Array:
    """The derivative of the prediction by each numeric column, [m, d, c]."""
    if smoother.kernel == "constant":
        return np.zeros((len(number), number.shape[1], smoother.value.shape[1]))
    if smoother.kernel == "gaussian" and smoother.order == 0:
        return of_averages(smoother, number, code)
    return differentiated(smoother, number, code)


def of_averages(smoother: Smoother, number: Array, code: Array) -> Array:
    """Of averages under a Gaussian it is Cov(u, y), u the offset in bandwidths: it needs the moments only."""
    found = smoother.moments(number, code, smoother.value)
    slope = found.product - found.offset[:, :, None] * found.mean[:, None, :]
    if smoother.inverse is not None:
        return np.einsum("ed,mec->mdc", smoother.inverse, slope)
    return slope / smoother.bandwidth[:, None]


def differentiated(smoother: Smoother, number: Array, code: Array) -> Array:
    """Of any prediction, by differences of the fourth order."""
    exact = replace(smoother, tolerance=1e-14)
    slope = np.empty((len(number), number.shape[1], smoother.value.shape[1]))
    width = smoother.bandwidth if smoother.bandwidth.ndim == 1 else np.abs(smoother.bandwidth).max(axis=1)
    for place in range(number.shape[1]):
        step = np.zeros(number.shape[1])
        step[place] = STEP * width[place]
        near, far = (
            exact.predict(number + times * step, code).mean - exact.predict(number - times * step, code).mean
            for times in (1, 2)
        )
        slope[:, place] = (8 * near - far) / (12 * step[place])
    return slope
