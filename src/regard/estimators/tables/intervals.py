"""Prediction intervals of a kernel regression: how far targets are from predictions, learned from rows left out.

Conformal, with a scale that depends on the row. Residuals of rows left out are divided by the mean size of the
residuals about them, with the weights of the regression; their quantiles times that size at x are the interval:

    lower, upper = f(x) + s(x) · quantiles of eᵢ / s₋ᵢ(xᵢ)        s(x) = Σᵢ αᵢ(x) |eᵢ|        eᵢ = yᵢ - f₋ᵢ(xᵢ)
"""

from dataclasses import dataclass, replace

import numpy as np

from regard.data.columns import Floats
from regard.estimators.tables.bandwidth import leave_one_out_rows
from regard.estimators.tables.smoother import Smoother

_PAIRS = 5e8
"""Number of pairs for the predictions of rows left out; of more, a random sample of the rows has them."""
_LEAST_SIZE = 0.2
"""Least expected size of a residual, in medians of all."""


@dataclass(frozen=True)
class KernelIntervals:
    """Residuals of rows left out in units of their expected size, and what expects the size."""

    scores: Floats  # [n, c]
    weight: Floats  # [n]  mean 1
    size: Smoother  # order 0; its values are absolute residuals
    least: Floats  # [c]

    def bounds(self, query: Floats, level: float) -> tuple[Floats, Floats]:
        """What must be added to predictions [m, c] for the lower and the upper ends."""
        size = np.maximum(self.size.predict(query).mean, self.least)
        tail = (1 - level) / 2
        high = np.array([_upper(column, self.weight, tail) for column in self.scores.T])
        low = -np.array([_upper(-column, self.weight, tail) for column in self.scores.T])
        return size * low, size * high


def fit_intervals(smoother: Smoother, seed: int) -> KernelIntervals:
    """Intervals from rows left out, all or a random sample of very many."""
    if len(smoother.rows) < 2:
        raise ValueError(f"intervals need two rows, to leave one out, got {len(smoother.rows)}")
    rows = leave_one_out_rows(smoother, _PAIRS, seed)
    residual = smoother.value[rows] - smoother.predict(smoother.rows[rows], rows).mean
    weight = None if smoother.weight is None else smoother.weight[rows]
    size = replace(smoother, order=0, rows=smoother.rows[rows], value=np.abs(residual), weight=weight)
    least = np.median(size.value, axis=0)
    least = _LEAST_SIZE * np.where(least > 0, least, np.maximum(size.value.mean(axis=0), np.finfo(float).tiny))
    expected = np.maximum(size.predict(size.rows, np.arange(len(rows))).mean, least)
    weight = np.ones(len(rows)) if weight is None else weight / weight.mean()
    return KernelIntervals(residual / expected, weight, size, least)


def _upper(scores: Floats, weight: Floats, tail: float) -> float:
    """The least score that a new one exceeds with a probability of at most `tail`; the largest if there is none.

    The new score may have any rank among the others: it counts as one of weight 1, above all of them.
    """
    order = np.argsort(scores)
    reached = np.cumsum(weight[order]) / (weight.sum() + 1)
    return float(scores[order[min(int(np.searchsorted(reached, (1 - tail) * (1 - 1e-12))), len(scores) - 1)]])
