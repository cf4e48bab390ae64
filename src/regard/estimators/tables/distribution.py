"""The distribution of the target at a query: the weights of a kernel regression, on the training targets.

    order 0   F(t | x) = Σᵢ αᵢ(x) 1[yᵢ ≤ t]
    order 1   F(t | x) = Σᵢ αᵢ(x) 1[f(x) + eᵢ ≤ t]        eᵢ = yᵢ - f₋ᵢ(xᵢ), the residual of a row left out

α are the weights of local averages, never negative, so that F is a distribution for every x. Thresholds t, and
densities about them, are columns of values of one attention (Hall, Wolff and Yao 1999). A query that sees no row has
the target of the nearest.

Quantiles are exact if the weights of all pairs are few enough to be sorted, otherwise from bins (`binned_quantiles`).
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from regard.data.columns import Floats, effective_count, standard_deviation
from regard.engines.job import spans
from regard.estimators.tables.bandwidth import leave_one_out_rows
from regard.estimators.tables.binned_quantiles import binned_quantiles
from regard.estimators.tables.evidence import row_weights
from regard.estimators.tables.smoother import Smoother
from regard.progress import ProgressBar

_EXACT_PAIRS, _MOST_EXACT_PAIRS = 1e8, 4e9
"""Number of pairs up to which weights are sorted: if the engine is `gauss`, and if it is another."""
_LEFT_OUT_PAIRS = 5e8
"""Number of pairs for residuals of rows left out; of more, a random sample of the rows has them."""
_COLUMNS = 16
"""Columns of values at a time."""
_GRID = 512
"""Largest number of points at which a mode is looked for."""
_STEP = 0.5
"""Distance of these points, in bandwidths of the density."""
_SAMPLE = 64
"""Number of rows whose weights give the effective number of neighbours."""


@dataclass(frozen=True)
class Distribution:
    """The distribution of each target at queries.

    smoother   order 0; its values are the targets, or the residuals of rows left out
    centre     the smoother whose predictions are added to residuals; None for targets
    """

    smoother: Smoother
    centre: Smoother | None = None

    def shift(self, query: Floats) -> Floats:
        """What is added to the values at each query, [m, c]."""
        if self.centre is None:
            return np.zeros((len(query), self.smoother.value.shape[1]))
        return self.centre.predict(query).mean

    def quantiles(self, query: Floats, levels: Floats, progress: bool) -> Floats:
        """The least values at which F reaches each level, [m, c, levels]."""
        find = _exact_quantiles if self._exact(query) else binned_quantiles
        shift = self.shift(query)
        found = np.empty((*shift.shape, len(levels)))
        for output in range(shift.shape[1]):
            with ProgressBar("quantiles", len(query), shown=progress) as bar:
                value = self.smoother.value[:, output]
                found[:, output] = find(self.smoother, value, query, levels, bar) + shift[:, output, None]
        return found

    def _exact(self, query: Floats) -> bool:
        """Whether the weights of all pairs are few enough to be sorted."""
        pairs = len(query) * len(self.smoother.rows)
        return pairs <= _EXACT_PAIRS or (pairs <= _MOST_EXACT_PAIRS and self.smoother.plan(query).engine != "gauss")

    def cdf(self, query: Floats, thresholds: Floats) -> Floats:
        """F at each threshold, [m, c, thresholds]."""
        order = np.argsort(thresholds)
        found = np.empty((len(query), self.smoother.value.shape[1], len(thresholds)))
        if self.centre is None:
            for columns in spans(len(thresholds), _COLUMNS):
                below = self.smoother.value[:, :, None] <= thresholds[columns]  # [n, c, some]
                found[:, :, columns] = self._means(query, below.astype(float))
        else:
            self._shifted(query, thresholds, found, _step)
        rising = np.maximum.accumulate(np.clip(found[:, :, order], 0.0, 1.0), axis=2)  # rounding may fall
        found[:, :, order] = rising
        return found

    def density(self, query: Floats, points: Floats, bandwidth: Floats) -> Floats:
        """Σᵢ αᵢ(x) φ((t - yᵢ) / g) / g at each point t, [m, c, points]; g [c] is the bandwidth."""
        found = np.empty((len(query), self.smoother.value.shape[1], len(points)))
        if self.centre is None:
            for columns in spans(len(points), _COLUMNS):
                offset = points[columns] - self.smoother.value[:, :, None]  # [n, c, some]
                found[:, :, columns] = self._means(query, _normal(offset / bandwidth[:, None]))
        else:
            self._shifted(query, points, found, _normal, bandwidth)
        return np.maximum(found, 0.0) / bandwidth[:, None]

    def _means(self, query: Floats, value: Floats) -> Floats:
        """Weighted means of values [n, c, some], [m, c, some]."""
        smoother = replace(self.smoother, value=value.reshape(len(value), -1))
        return smoother.predict(query).mean.reshape(len(query), *value.shape[1:])

    def _shifted(
        self,
        query: Floats,
        points: Floats,
        found: Floats,
        shape: Callable[[Floats], Floats],
        bandwidth: Floats | None = None,
    ) -> None:
        """Weighted means of `shape((t - shift - value) / bandwidth)`, pair by pair: shifts differ by query."""
        shift = self.shift(query)
        scale = np.ones(shift.shape[1]) if bandwidth is None else bandwidth
        for rows, weight in self.weights(query):
            for output in range(shift.shape[1]):
                value = self.smoother.value[:, output]
                for index, point in enumerate(points):
                    offset = (point - shift[rows, output, None] - value) / scale[output]  # [some, n]
                    found[rows, output, index] = np.einsum("mn,mn->m", weight, shape(offset))

    def weights(self, query: Floats) -> Iterator[tuple[slice, Floats]]:
        """The weights of all rows for a block of queries at a time."""
        begin = 0
        for weight in row_weights(self.smoother, query):
            yield slice(begin, begin + len(weight)), weight
            begin += len(weight)

    def default_bandwidth(self, seed: int) -> Floats:
        """The normal reference rule for the values about their mean, 1.06 σ N^(-1/5), by output [c].

        σ is the deviation of rows from their predictions, N the effective number of rows at a row, 1/Σ weight².
        """
        smoother = self.smoother
        count = len(smoother.rows)
        some = np.random.default_rng(seed).choice(count, min(count, _SAMPLE), replace=False)
        effective, deviation = [], []
        for _, weight in self.weights(smoother.rows[some]):
            effective.append(1 / np.einsum("mn,mn->m", weight, weight))
            mean = weight @ smoother.value
            deviation.append(np.sqrt(np.maximum(weight @ smoother.value**2 - mean**2, 0.0)))
        width = 1.06 * np.median(np.concatenate(deviation), axis=0) * np.median(np.concatenate(effective)) ** -0.2
        spread = standard_deviation(smoother.value, smoother.weight) * effective_count(smoother.weight, count) ** -0.2
        chosen: Floats = np.where(width > 1e-9 * spread, width, spread)
        return chosen

    def modes(self, query: Floats, bandwidth: Floats) -> Floats:
        """Where the density is largest, [m, c]: at points half a bandwidth apart, between them by a parabola."""
        shift = self.shift(query)
        found = np.empty_like(shift)
        for output in range(shift.shape[1]):
            value = self.smoother.value[:, output]
            steps = min(_GRID, math.ceil(np.ptp(value) / (_STEP * bandwidth[output])) + 3)
            step = max(np.ptp(value) / max(1, steps - 3), _STEP * bandwidth[output])
            grid = value.min() + step * (np.arange(steps) - 1)  # a point outside on each side
            one = Distribution(replace(self.smoother, value=value[:, None]))
            found[:, output] = one._highest(query, grid, bandwidth[output : output + 1])
        return found + shift

    def _highest(self, query: Floats, grid: Floats, bandwidth: Floats) -> Floats:
        """The point of the grid with the highest density of the only output, moved to the peak of a parabola."""
        size, step = max(1, 2**22 // len(grid)), grid[1] - grid[0]
        found = np.empty(len(query))
        for rows in spans(len(query), size):
            density = self.density(query[rows], grid, bandwidth)[:, 0]  # [some, grid]
            best = np.clip(density.argmax(axis=1), 1, len(grid) - 2)
            with np.errstate(divide="ignore"):
                left, top, right = (np.log(density[np.arange(len(best)), best + move]) for move in (-1, 0, 1))
            with np.errstate(invalid="ignore", divide="ignore"):
                move = 0.5 * (left - right) / (left - 2 * top + right)
            found[rows] = grid[best] + step * np.clip(np.where(np.isfinite(move), move, 0.0), -0.5, 0.5)
        return found

    def draws(self, query: Floats, count: int, seed: int, progress: bool) -> Floats:
        """Random targets, [m, count, c]: the values of training rows drawn by weight, all outputs of one row."""
        rng = np.random.default_rng(seed)
        drawn = np.empty((len(query), count, self.smoother.value.shape[1]))
        with ProgressBar("drawing", max(1, len(query)), shown=progress) as bar:
            for rows, weight in self.weights(query):
                level = rng.random((len(weight), count))
                reached = np.cumsum(weight, axis=1)
                for row, sums, wanted in zip(range(rows.start, rows.stop), reached, level, strict=True):
                    index = np.searchsorted(sums, wanted * sums[-1], side="right")
                    drawn[row] = self.smoother.value[np.minimum(index, len(sums) - 1)]
                bar.update(done=rows.stop)
        return drawn + self.shift(query)[:, None, :]


def fit_distribution(smoother: Smoother, seed: int) -> Distribution:
    """The distribution that a smoother stands for: of its targets, or for lines of residuals about them."""
    if smoother.order == 0:
        return Distribution(smoother)
    rows = leave_one_out_rows(smoother, _LEFT_OUT_PAIRS, seed)
    residual = smoother.value[rows] - smoother.predict(smoother.rows[rows], rows).mean
    weight = None if smoother.weight is None else smoother.weight[rows]
    return Distribution(replace(smoother, order=0, rows=smoother.rows[rows], value=residual, weight=weight), smoother)


def _step(offset: Floats) -> Floats:
    return (offset >= 0).astype(float)


def _normal(offset: Floats) -> Floats:
    """The density of the standard normal distribution."""
    density: Floats = np.exp(-0.5 * offset**2) / math.sqrt(2 * math.pi)
    return density


def _exact_quantiles(smoother: Smoother, value: Floats, query: Floats, levels: Floats, bar: ProgressBar) -> Floats:
    """Quantiles from sorted weights, [m, levels]."""
    order = np.argsort(value, kind="stable")
    ordered, found, row = value[order], np.empty((len(query), len(levels))), 0
    for weight in row_weights(smoother, query):
        for sums in np.cumsum(weight[:, order], axis=1):
            index = np.searchsorted(sums, levels * sums[-1] * (1 - 1e-12))
            found[row] = ordered[np.minimum(index, len(ordered) - 1)]
            row += 1
        bar.update(done=row)
    return found
