"""The default bandwidth: one for each column, chosen by leaving rows out, in a few seconds whatever the number of rows.

1. Of at most 2,000 random rows: for each unit of the columns (as they are, by rank) and each start (a bandwidth in
   proportion to each column's deviation; one for all columns), the best common factor, and the metric that gradient
   descent learns from there (`metric_learning`). Of these, the one of least error of rows left out.
2. Among all rows the best bandwidth is smaller, by a power of their number that depends on the data. So the common
   factor is chosen again with all rows, with the model's own kernel and order; for local lines the ridge too. Of more
   than 100,000 rows that many are taken, and the power is the one that led there from 2,000.

The error is the squared one in standard deviations of the targets, at most that of 4 deviations for each row, or the
log loss of classes.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from regard.data.columns import Floats, standard_deviation
from regard.estimators.tables.metric_learning import Loss, Rows, best_exponent, learn_start
from regard.estimators.tables.smoother import Indices, Smoother
from regard.progress import ProgressBar
from regard.training import History

MIN_ROWS = 8
"""Number of rows from which rows left out can choose; with fewer, the rule "scott"."""
_SAMPLE = 2000
"""Number of rows that the metric is learned from."""
_KEYS = 100_000
"""Number of rows that the factor is chosen with."""
_STEEPEST = 0.2
"""Largest power of the number of rows by which a bandwidth shrinks: that of one column, n^(-1/5)."""
_OPERATIONS = 5e8
"""Number of multiplications in one trial with all rows, which says how many of them are left out."""
_FEWEST, _MOST = 256, 1000
"""Bounds on the number of rows that are left out in turn."""
_RIDGES = (1e-2, 1e-5, 1.0)
"""Ridges on the slopes of local lines. The largest all but flattens them."""


class Choice(NamedTuple):
    """A bandwidth, and what chose it."""

    smoother: Smoother
    error: float
    history: tuple[History, ...]


def default_bandwidth(smoothers: Sequence[Smoother], loss: Loss, seed: int, progress: bool) -> tuple[int, Choice]:
    """The best bandwidth, and for which of the smoothers; they have the same rows, in other units."""
    centre = np.average(smoothers[0].value, axis=0, weights=smoothers[0].weight)
    deviation = standard_deviation(smoothers[0].value, smoothers[0].weight)
    count = len(smoothers[0].rows)
    sample = np.arange(count)
    if count > _SAMPLE:
        sample = np.sort(np.random.default_rng(seed).choice(count, _SAMPLE, replace=False))
    found: list[tuple[int, list[Choice]]] = []
    with ProgressBar("choosing the bandwidth", 4, shown=progress) as bar:
        for index, smoother in enumerate(smoothers):
            value = (smoother.value - centre) / deviation if loss.standardised else smoother.value
            for choices in _learn(replace(smoother, value=value), sample, loss, seed, progress):
                found.append((index, choices))
                bar.update(done=len(found))
        index, choices = min(found, key=lambda each: min(choice.error for choice in each[1]))
        best = min(choices, key=lambda choice: choice.error)
        tried = choices if best.smoother.order == 1 else [best]  # lines need another metric than averages, perhaps
        chosen = min(
            (_fit_factor(choice, len(sample), loss, seed) for choice in tried), key=lambda choice: choice.error
        )
    return index, chosen._replace(smoother=replace(chosen.smoother, value=smoothers[0].value))


def _learn(smoother: Smoother, sample: Indices, loss: Loss, seed: int, progress: bool) -> Iterator[list[Choice]]:
    """For each start, its best multiple and the metric that is learned from there."""
    weight = None if smoother.weight is None else torch.as_tensor(smoother.weight[sample])
    for unit in _starts(standard_deviation(smoother.numeric, smoother.weight)):
        points = np.hstack([smoother.numeric / unit, smoother.codes])[sample]
        rows = Rows(torch.as_tensor(points), torch.as_tensor(smoother.value[sample]), weight, smoother.ordered.tolist())
        yield [
            Choice(
                replace(
                    smoother,
                    bandwidth=unit * metric.bandwidth.numpy() / smoother.kind.profile.deviation(max(1, len(unit))),
                    category_bandwidth=smoother.categories.bandwidth(
                        metric.penalty.numpy(), smoother.ordered, smoother.levels
                    ),
                ),
                metric.error,
                metric.history,
            )
            for metric in learn_start(rows, loss=loss, seed=seed, progress=progress)
        ]


def _starts(deviation: Floats) -> list[Floats]:
    """The deviations of the columns, and one number for all, unless that is nearly the same."""
    if not len(deviation) or deviation.max() < 1.5 * deviation.min():
        return [deviation]
    return [deviation, np.full(len(deviation), np.sqrt(np.square(deviation).mean()))]


def _fit_factor(choice: Choice, sample: int, loss: Loss, seed: int) -> Choice:
    """The same metric times the factor that is best among all rows, and for local lines the best ridge."""
    smoother, count = choice.smoother, len(choice.smoother.rows)
    keys = smoother
    if count > _KEYS:
        keys = _some(smoother, np.random.default_rng(seed).choice(count, _KEYS, replace=False))
    exponent, error, ridge = _best_factor(keys, sample, loss, seed)
    if count > _KEYS:
        power = np.clip(exponent / math.log2(_KEYS / sample), -_STEEPEST, 0.0)
        exponent += power * math.log2(count / _KEYS)
    return Choice(_widened(replace(smoother, ridge=ridge), exponent), error, choice.history)


def _best_factor(smoother: Smoother, sample: int, loss: Loss, seed: int) -> tuple[float, float, float]:
    """The power of 2, the error with it, and the ridge; the metric was learned from `sample` of the rows."""
    count, features = len(smoother.rows), len(smoother.bandwidth) + len(smoother.category_bandwidth)
    cost = 2 + features + (features**2 if smoother.order == 1 else 0)
    most = int(np.clip(_OPERATIONS / (count * cost), _FEWEST, _MOST))
    rows = np.sort(np.random.default_rng(seed).choice(count, min(count, most), replace=False))

    def fit(ridge: float, grid: list[float], evaluations: int) -> tuple[float, float, float]:
        with_ridge = replace(smoother, ridge=ridge)
        best, error = best_exponent(
            lambda exponent: _left_out_loss(_widened(with_ridge, exponent), rows, loss), grid, evaluations=evaluations
        )
        return best, error, ridge

    if smoother.order == 0:
        grid = np.arange(-2, 2.5 if sample == count else 0.5, 0.5)
        return fit(smoother.ridge, grid.tolist(), 6)
    first = fit(_RIDGES[0], [-1.0, 0.0, 1.0, 2.0, 4.0], 4)
    others = [fit(ridge, [first[0], first[0] + 1], 2) for ridge in _RIDGES[1:]]
    return min([first, *others], key=lambda each: each[1])


def _some(smoother: Smoother, rows: Indices) -> Smoother:
    """A smoother of some of the rows."""
    weight = None if smoother.weight is None else smoother.weight[rows]
    return replace(smoother, rows=smoother.rows[rows], value=smoother.value[rows], weight=weight)


def _widened(smoother: Smoother, exponent: float) -> Smoother:
    """All bandwidths times a power of 2; what codes subtract is divided by its square, as squared distances are."""
    per_step, per_change = smoother.penalty
    penalty = np.where(smoother.ordered, per_step, per_change) / 4.0**exponent
    return replace(
        smoother,
        bandwidth=smoother.bandwidth * 2.0**exponent,
        category_bandwidth=smoother.categories.bandwidth(penalty, smoother.ordered, smoother.levels),
    )


def _left_out_loss(smoother: Smoother, rows: Indices, loss: Loss) -> float:
    """The mean loss of rows that are predicted from all others; a row that sees none is predicted by the mean."""
    mean, log_weight = smoother.estimate(smoother.rows[rows], smoother.value, leave_one_out=rows)[:2]
    centre = np.average(smoother.value, axis=0, weights=smoother.weight)
    mean = np.where((log_weight == -math.inf)[:, None], centre, mean)
    weight = np.ones(len(rows)) if smoother.weight is None else smoother.weight[rows]
    error = loss.mean(torch.as_tensor(mean), torch.as_tensor(smoother.value[rows]), torch.as_tensor(weight)).item()
    return math.inf if math.isnan(error) else error
