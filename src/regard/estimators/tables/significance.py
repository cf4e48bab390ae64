"""Tests of a kernel regression by the wild bootstrap: does a column matter, and is a linear model enough?

The weights of a kernel regression do not depend on y, so a bootstrap sample is a column more among the values of one
attention: 399 samples cost little more than one.

`column_test`: E[y | x] does not depend on column j (Racine 1997; of categories Racine, Hart and Li 2006)

    numeric        T = mean of (∂f(xᵢ)/∂xⱼ)² / vᵢ
    categorical    T = mean of Σ over levels l of (f(xᵢ with l) - f(xᵢ with the first level))² / vᵢₗ

where v is the variance of what is squared for errors of variance 1, so that queries with few rows near do not drown
the others. It depends on x alone. The bootstrap draws y from the fit without column j.

`specification_test`: the errors of a linear model have mean 0 everywhere (Hsiao, Li and Racine 2007)

    J = Σ uᵢ Kᵢⱼ uⱼ / √(2 Σ uᵢ² Kᵢⱼ² uⱼ²),  i ≠ j,        u = errors of the linear model

Both use a Gaussian with the bandwidths of the smoother, because its square is a Gaussian too; of another kernel the
bandwidths at which the Gaussian has its standard deviation.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from regard.attend import kernel_means
from regard.data.columns import Floats
from regard.engines.kernel_sums.problem import Means
from regard.estimators.tables.smoother import Smoother
from regard.progress import ProgressBar

MIN_ROWS = 10
"""Number of rows from which the bootstrap has enough samples that differ."""
_BLOCK = 2**23
"""Numbers in a block of bootstrap samples, [rows, samples]."""
_RESIDUAL_POWER = 0.75
"""Residuals are divided by (1 - leverage) to this power, between those of HC2 (½) and HC3 (1): the size of the test of
a column was nearest to the level in simulations (`benchmarks.statistics_tests`)."""
_LEAST_VARIANCE = 1e-3
"""Least v, as a fraction of its median."""


class Result(NamedTuple):
    """A statistic, and the fraction of statistics under the null that are at least as large."""

    statistic: float
    p_value: float


def column_test(smoother: Smoother, column: int, samples: int, seed: int, progress: bool = False) -> Result:
    """The test that a column of the rows, numeric or of codes, has no influence on the single value."""
    without = drop_column(smoother, column)
    fit = without.estimate(without.rows, without.value)
    factor = np.clip(1 - without.leverage(fit), 0.01, 1.0) ** _RESIDUAL_POWER
    residual = (smoother.value - fit.mean)[:, 0] / factor
    residual -= np.average(residual, weights=smoother.weight)
    gaussian = as_gaussian(smoother)
    numeric = column < len(smoother.bandwidth)
    statistic = _slope_statistic(gaussian, column) if numeric else _level_statistic(gaussian, column)
    return _compare(statistic, smoother.value, fit.mean, residual, samples, seed, progress)


def specification_test(
    smoother: Smoother,
    fitted: Floats,
    leverage: Floats,
    refit: Callable[[Floats], Floats],
    samples: int,
    seed: int,
    progress: bool = False,
) -> Result:
    """The test that a linear model, of predictions `fitted` [n, 1], is the conditional mean of the single value.

    refit   the errors of the linear model, fitted to values [n, b]
    """
    residual = (smoother.value - fitted)[:, 0] / np.sqrt(np.clip(1 - leverage, 0.01, 1.0))
    error_statistic = _error_statistic(as_gaussian(smoother))

    def statistic(value: Floats) -> Floats:
        return error_statistic(refit(value))

    return _compare(statistic, smoother.value, fitted, residual, samples, seed, progress)


_Statistic = Callable[[Floats], Floats]
"""Of each column of values [n, b]: [b]."""


def _compare(
    statistic: _Statistic, value: Floats, fitted: Floats, residual: Floats, samples: int, seed: int, progress: bool
) -> Result:
    """The statistic of the values, and how many of the bootstrap samples have one as large."""
    own = float(statistic(value)[0])
    larger = done = 0
    with ProgressBar("bootstrap", samples, shown=progress) as bar:
        for noise in _draws(len(value), samples, seed):
            larger += int((statistic(fitted + residual[:, None] * noise) >= own).sum())
            done += noise.shape[1]
            bar.update(done=done)
    return Result(own, (1 + larger) / (1 + samples))


def _draws(rows: int, samples: int, seed: int) -> Iterator[Floats]:
    """Random signs of the residuals (Davidson and Flachaire 2008), [rows, some samples].

    They do not depend on the size of a block.
    """
    generator, block = np.random.default_rng(seed), max(1, _BLOCK // rows)
    for begin in range(0, samples, block):
        uniform = generator.random((min(block, samples - begin), rows))
        yield np.where(uniform < 0.5, -1.0, 1.0).T


def as_gaussian(smoother: Smoother) -> Smoother:
    """The same averages with a Gaussian of equal standard deviation."""
    deviation = smoother.kind.profile.deviation(max(1, len(smoother.bandwidth)))
    return replace(smoother, order=0, kernel="gaussian", bandwidth=smoother.bandwidth * deviation)


def drop_column(smoother: Smoother, column: int) -> Smoother:
    """The smoother without a column; the bandwidths of the others stay."""
    columns, categories = len(smoother.bandwidth), len(smoother.category_bandwidth)
    keep = np.arange(columns + categories) != column
    numeric, coded = keep[:columns], keep[columns:]
    return replace(
        smoother,
        rows=smoother.rows[:, keep],
        bandwidth=_sub_bandwidth(smoother.bandwidth, numeric),
        category_bandwidth=smoother.category_bandwidth[coded],
        ordered=smoother.ordered[coded],
        levels=smoother.levels[coded],
        order=smoother.order if numeric.any() else 0,
    )


def _sub_bandwidth(bandwidth: Floats, keep: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> Floats:
    """The bandwidth of some of the columns; of a matrix H such that distances along those columns stay."""
    if bandwidth.ndim == 1:
        return bandwidth[keep]
    inverse = np.linalg.inv(bandwidth)
    metric = (inverse.T @ inverse)[np.ix_(keep, keep)]
    return np.asarray(np.linalg.inv(np.linalg.cholesky(metric).T))


def _squared_means(smoother: Smoother, value: Floats, leave_one_out: bool = False) -> Means:
    """Means of the values under the squared kernel, at the rows: of a Gaussian, one of bandwidth h/√2."""
    left_out = np.arange(len(value)) if leave_one_out else None
    points = smoother.points(smoother.rows, value, left_out)
    squared = replace(
        points,
        query=points.query * math.sqrt(2),
        key=points.key * math.sqrt(2),
        weight=None if points.weight is None else points.weight**2,
        per_step=2 * points.per_step,
        per_change=2 * points.per_change,
    )
    return kernel_means(squared, smoother.tolerance)


def _slope_statistic(smoother: Smoother, column: int) -> _Statistic:
    """The mean squared derivative by a numeric column, in its standard deviations.

    With z = xⱼ/hⱼ² the derivative of the average is Cov(z, y), and v = Σ weight² (z - Mean z)².
    """
    inverse = np.diag(1 / smoother.bandwidth) if smoother.inverse is None else smoother.inverse
    z = smoother.key @ inverse[:, column]
    z = z - z.mean()
    mean_z, log_weight = smoother.means(smoother.rows, z[:, None])
    squared = _squared_means(smoother, np.stack([z, z**2], axis=1))
    spread = squared.mean[:, 1] - 2 * mean_z[:, 0] * squared.mean[:, 0] + mean_z[:, 0] ** 2
    variance = _bounded(np.exp(squared.log_weight - 2 * log_weight) * spread)

    def statistic(value: Floats) -> Floats:
        mean = smoother.means(smoother.rows, np.hstack([value, value * z[:, None]])).mean  # [n, 2b]
        slope = mean[:, value.shape[1] :] - mean_z * mean[:, : value.shape[1]]
        return np.average(slope**2 / variance[:, None], axis=0, weights=smoother.weight)

    return statistic


def _level_statistic(smoother: Smoother, column: int) -> _Statistic:
    """The mean squared difference of predictions between each level of a category and the first, in deviations."""
    without = drop_column(smoother, column)
    levels = np.unique(smoother.rows[:, column])
    code = column - len(smoother.bandwidth)
    per_step, per_change = (each[code] for each in smoother.penalty)
    away = np.abs(smoother.rows[:, [column]] - levels)  # [n, levels]
    weight = np.exp(-per_step * away - per_change * (away > 0))
    total = without.means(without.rows, weight)
    squared = _squared_means(without, np.hstack([weight**2, weight * weight[:, :1]]))
    ratio = np.exp(squared.log_weight - 2 * total.log_weight)[:, None]
    own, cross = np.split(squared.mean, 2, axis=1)  # [n, levels] each
    first = own[:, :1] / total.mean[:, :1] ** 2
    variance = ratio * (own / total.mean**2 + first - 2 * cross / (total.mean * total.mean[:, :1]))

    def statistic(value: Floats) -> Floats:
        whole, base = np.zeros(value.shape[1]), np.empty(0)
        for index, level in enumerate(levels):
            query = smoother.rows.copy()
            query[:, column] = level
            mean = smoother.means(query, value).mean
            if index == 0:
                base = mean
                continue
            difference = (mean - base) ** 2 / _bounded(variance[:, index])[:, None]
            whole += np.average(difference, axis=0, weights=smoother.weight)
        return whole

    return statistic


def _error_statistic(smoother: Smoother) -> _Statistic:
    """J of errors [n, b]."""
    rows = np.arange(len(smoother.rows))
    weight = np.ones(len(rows)) if smoother.weight is None else smoother.weight

    def statistic(error: Floats) -> Floats:
        means, squared = smoother.means(smoother.rows, error, rows), _squared_means(smoother, error**2, True)
        near = (weight * np.exp(means.log_weight))[:, None] * means.mean
        variance = (weight**2 * np.exp(squared.log_weight))[:, None] * squared.mean
        scale = np.sqrt(2 * np.einsum("nb,nb->b", error**2, variance))
        return np.asarray(np.einsum("nb,nb->b", error, near) / np.maximum(scale, 1e-300))

    return statistic


def _bounded(variance: Floats) -> Floats:
    """Variances that are not too near 0 to divide by; inf if all are."""
    least = _LEAST_VARIANCE * float(np.median(variance))
    return np.maximum(variance, least) if least > 0 else np.full(len(variance), math.inf)


def indicator_columns(numeric: Floats, codes: Floats) -> Floats:
    """A linear model's columns [n, p]: 1, the numbers in deviations, and an indicator of each further category."""
    spread = numeric.std(axis=0)
    scaled = (numeric - numeric.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    indicators = [(column[:, None] == np.unique(column)[1:]).astype(float) for column in codes.T]
    return np.hstack([np.ones((len(numeric), 1)), scaled, *indicators])


class LeastSquares(NamedTuple):
    """Weighted least squares on some columns, as a projection."""

    basis: Floats  # [n, rank]: orthonormal, of the columns times root
    root: Floats  # [n, 1]: the square root of the weights

    def fitted(self, value: Floats) -> Floats:
        """Predictions of values [n, b], fitted to them."""
        return np.asarray(self.basis @ (self.basis.T @ (value * self.root)) / self.root)

    def errors(self, value: Floats) -> Floats:
        return value - self.fitted(value)

    @property
    def leverage(self) -> Floats:
        return np.asarray(np.einsum("np,np->n", self.basis, self.basis))


def least_squares(columns: Floats, weight: Floats | None) -> LeastSquares:
    """Least squares on columns [n, p], which may depend on each other."""
    root = np.ones((len(columns), 1)) if weight is None else np.sqrt(weight)[:, None]
    left, size, _ = np.linalg.svd(columns * root, full_matrices=False)
    return LeastSquares(left[:, size > 1e-10 * size.max(initial=0.0)], root)
