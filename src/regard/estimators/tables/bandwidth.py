"""Bandwidths by rule, and by search of a criterion over all rows.

    "scott"       σ · n^(-1/(d+4))
    "silverman"   σ · (n (d+2)/4)^(-1/(d+4))
    "cv"          least squares of every row predicted from the others: Σ weight · (y - f₋ᵢ(xᵢ))²
    "aicc"        log σ̂² + (1 + tr H/n) / (1 - (tr H + 2)/n)              (Hurvich, Simonoff and Tsai 1998)

Rules are for a Gaussian; another kernel gets the bandwidth at which it has the same standard deviation. λ of
a categorical column shrinks as a variance does, n^(-2/(d+4)), from the largest it can be.

A search goes over factors on the rule's bandwidths: one for all ("scalar"), or one for each column
("diagonal"), from the best of the former on, by Powell's method.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from scipy import optimize

from regard.data.columns import counted, spread_of
from regard.engines.kernel_sums.problem import Array, Pooled
from regard.estimators.tables.smoother import Smoother, line, width_of
from regard.progress import ProgressBar

RULES = ("scott", "silverman")
SEARCHES = ("cv", "aicc")
GRID = np.arange(-6, 6.5, 0.5)
"""Powers of 2 times the rule's bandwidth that are tried first."""
NARROWEST, WIDEST = -8.0, 14.0
"""Powers of 2 that a single feature's factor may reach: the widest makes it count for nothing."""
FAINTEST = -40.0
"""The least for the odds of λ: there, other categories are not seen."""
SPREADS = (1e-2, 1e-6, 1e-10)
"""Ridges on the slopes of lines, of which the best is taken."""
COARSE = 20_000
"""Rows from which on every other point of the grid is left out."""
PAIRS, PAIRS_APART = 1e9, 2.5e8
"""Pairs in one trial of a search, for one factor and for many; of more rows, as many as that allows are left out
in turn, drawn at random."""


class Searched(NamedTuple):
    """What a search came to."""

    smoother: Smoother
    value: float  # the criterion there


def by_rule(smoother: Smoother, rule: str) -> Smoother:
    """The rule's bandwidths."""
    number, weight = smoother.number, smoother.weight
    count = counted(weight, len(number))
    features = max(1, number.shape[1])
    effective = count * (features + 2) / 4 if rule == "silverman" else count
    shrink = max(1.0, effective) ** (-1 / (features + 4))
    width = spread_of(number, weight) * shrink / width_of(smoother.kernel, number.shape[1])
    return replace(smoother, bandwidth=width, blur=most_blur(smoother) * shrink**2)


def most_blur(smoother: Smoother) -> Array:
    """The largest λ: there, an unordered column says nothing, and an ordered one as little as it can."""
    return np.where(smoother.ordered, 1.0, (smoother.levels - 1) / np.maximum(1, smoother.levels))


def search(smoother: Smoother, criterion: str, metric: str, seed: int, progress: bool) -> Searched:
    """The bandwidth with the least criterion, and for lines the least spread. `smoother` holds the rule's."""
    spreads = SPREADS if smoother.order == 1 else (smoother.spread,)
    found = [search_with(replace(smoother, spread=spread), criterion, metric, seed, progress) for spread in spreads]
    return min(found, key=lambda one: one.value)


def search_with(smoother: Smoother, criterion: str, metric: str, seed: int, progress: bool) -> Searched:
    """The bandwidth with the least criterion."""
    count, columns = smoother.number.shape
    if count < 2:
        raise ValueError(
            f"bandwidth={criterion!r} needs two rows to compare bandwidths by, got n_samples={count}: give a number"
        )
    apart = metric == "diagonal" and columns > 1
    strengths = len(smoother.blur)
    most = PAIRS_APART if apart or strengths else PAIRS
    rows = trial_rows(smoother, most, seed) if criterion == "cv" else np.arange(count)
    judge = left_out_error if criterion == "cv" else corrected_aic
    grid = GRID if count < COARSE else GRID[::2]
    budget = len(grid) + 12 + (60 * (columns * apart + strengths) if apart or strengths else 0)
    with ProgressBar(f"searching the bandwidth by {criterion}", budget, shown=progress) as bar:
        trials = 0

        def trial(factors: Any) -> float:
            nonlocal trials
            trials += 1
            value = judge(widened(smoother, factors), rows)
            bar.note(done=min(trials, budget - 1), loss=value)
            return math.inf if math.isnan(value) else value

        best = one_factor(trial, grid, columns, strengths)
        if not math.isfinite(trial(best)):
            raise ValueError(
                f"bandwidth={criterion!r} found no bandwidth to judge among {count} rows: AICc needs more rows than the"
                " fit has degrees of freedom, and targets must not be so large that their squares overflow;"
                " give a number"
            )
        if apart or strengths:
            best = many_factors(trial, best, columns, strengths, apart)
    return Searched(widened(smoother, best), judge(widened(smoother, best), rows))


def widened(smoother: Smoother, factors: Array) -> Smoother:
    """Bandwidths times powers of 2, one a feature; behind those, one for the odds of each λ."""
    columns = smoother.number.shape[1]
    odds = smoother.blur / np.maximum(most_blur(smoother) - smoother.blur, 1e-12) * 2.0 ** factors[columns:]
    factor = 2.0 ** factors[:columns] if smoother.bandwidth.ndim == 1 else 2.0 ** factors[0]  # a matrix as a whole
    return replace(smoother, bandwidth=smoother.bandwidth * factor, blur=most_blur(smoother) * odds / (1 + odds))


def one_factor(trial: Callable[[Array], float], grid: Array, columns: int, strengths: int) -> Array:
    """The best factor for all features together: on a grid, for the criterion has many dips, then around its best."""

    def along(exponent: float) -> float:
        return trial(np.append(np.full(columns, exponent), np.zeros(strengths)))

    values = [along(exponent) for exponent in grid]
    middle, step = float(grid[int(np.argmin(values))]), float(grid[1] - grid[0])
    found = optimize.minimize_scalar(
        along, bounds=(middle - step, middle + step), method="bounded", options={"maxiter": 12, "xatol": 0.005}
    )
    exponent = float(found.x) if found.fun <= min(values) else middle
    return np.append(np.full(columns, exponent), np.zeros(strengths))


def many_factors(trial: Callable[[Array], float], start: Array, columns: int, strengths: int, apart: bool) -> Array:
    """The best factor of each feature, or of all together, and of each λ, from a good start on."""

    def spread(free: Array) -> Array:
        return free if apart else np.append(np.full(columns, free[0]), free[1:])

    first = start if apart else np.append(start[:1], start[columns:])
    found = optimize.minimize(
        lambda free: trial(spread(free)),
        first,
        method="Powell",
        bounds=[(NARROWEST, WIDEST)] * (len(first) - strengths) + [(FAINTEST, WIDEST)] * strengths,
        options={"maxfev": 60 * len(first), "xtol": 0.01, "ftol": 1e-6},
    )
    return spread(found.x) if found.fun <= trial(start) else start


def trial_rows(smoother: Smoother, pairs: float, seed: int) -> Array:
    """The rows that are left out in turn: all, where that is not too long."""
    count = len(smoother.number)
    most = max(512, int(pairs / count))
    if count <= most or smoother.plan(smoother.number, smoother.code).engine == "gauss":
        return np.arange(count)
    return np.sort(np.random.default_rng(seed).choice(count, most, replace=False))


def left_out_error(smoother: Smoother, rows: Array) -> float:
    """The mean squared error of rows that are predicted from the others, over all outputs.

    A row that sees no other counts as predicted by the average: by the nearest, a kernel too narrow would look good.
    """
    value = smoother.value[rows]
    mean, log_weight = left_out(smoother, rows)
    centre = np.average(smoother.value, axis=0, weights=smoother.weight)
    mean = np.where((log_weight == -math.inf)[:, None], centre, mean)
    error = np.square(value - mean).mean(axis=1)
    return float(np.average(error, weights=None if smoother.weight is None else smoother.weight[rows]))


def left_out(smoother: Smoother, rows: Array) -> Pooled:
    """Rows predicted from the others; a row is left out whole, whatever its weight."""
    number, code = smoother.number[rows], smoother.code[rows]
    if smoother.order == 0:
        return smoother.pool(number, code, smoother.value, rows)
    found = smoother.moments(number, code, smoother.value, rows)
    return Pooled(line(found, smoother.spread).level, found.log_weight)


def corrected_aic(smoother: Smoother, rows: Array) -> float:
    """AICc. Infinite where the fit has as many degrees of freedom as there are rows."""
    number, code = smoother.number, smoother.code
    if smoother.order == 0:
        found: Any = smoother.pool(number, code, smoother.value)
        mean = found.mean
    else:
        found = smoother.moments(number, code, smoother.value)
        mean = line(found, smoother.spread).level
    count = len(number)
    weight = np.ones(count) if smoother.weight is None else smoother.weight * (count / smoother.weight.sum())
    trace = float(smoother.leverage(number, code, found).sum())
    if count - trace - 2 <= 0:
        return math.inf
    variance = np.average(np.square(smoother.value - mean), axis=0, weights=weight)
    least = 1e-20 * np.square(smoother.value - smoother.value.mean(axis=0)).mean(axis=0)
    variance = np.maximum(variance, np.maximum(least, 1e-300))  # a perfect fit is as good as it gets
    return float(np.log(variance).mean() + (1 + trace / count) / (1 - (trace + 2) / count))
