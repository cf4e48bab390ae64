"""The bandwidth of a kernel regression: given in numbers, by a rule, by a search of a criterion, or learned.

    "auto"        the default, see `default_bandwidth`
    "scott"       σ · n^(-1/(d+4))
    "silverman"   σ · (n (d+2)/4)^(-1/(d+4))
    "cv"          least squares of every row predicted from the others: Σ weight · (y - f₋ᵢ(xᵢ))²
    "aicc"        log σ̂² + (1 + tr H/n) / (1 - (tr H + 2)/n)              (Hurvich, Simonoff and Tsai 1998)
    "learn"       a metric by gradient descent on the leave-one-out error, see `metric_learning`

Rules are for a Gaussian; another kernel gets the bandwidth at which it has the same standard deviation. λ of
a categorical column shrinks as a variance does, n^(-2/(d+4)), from the largest possible.

A search tries factors on the rule's bandwidths: one for all columns ("scalar"), or one for each ("diagonal"), starting
at the best common factor, by Powell's method.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal, cast

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.optimize import minimize

from regard.data.columns import Columns, Floats, effective_count, standard_deviation
from regard.estimators.settings import seed_of
from regard.estimators.tables.metric_learning import Rows, best_exponent, learn_metric
from regard.estimators.tables.single_index import learn_index
from regard.estimators.tables.smoother import LEARNING_RIDGE, Indices, Smoother
from regard.kernels import KERNELS
from regard.progress import ProgressBar
from regard.training import History

Bandwidth = float | Sequence[float] | Literal["auto", "scott", "silverman", "cv", "aicc", "learn"]
_RULES = ("scott", "silverman")
_SEARCHES = ("cv", "aicc")
_CHOICES = ("auto", *_RULES, *_SEARCHES, "learn")
GRID = np.arange(-6, 6.5, 0.5)
"""Powers of 2 times the rule's bandwidth that a search tries first."""
_NEAR_GRID = np.array([-1.0, -0.5, 0.0, 0.5])
"""The same for other ridges, near the best bandwidth with the first."""
_COARSE_GRID_ROWS = 20_000
"""Number of rows from which a search tries only every other point of the grid."""
_MIN_EXPONENT, _MAX_EXPONENT = -8.0, 14.0
"""Bounds on the exponent of a single feature's factor: at the upper one, the feature has no influence."""
_MIN_CATEGORY_EXPONENT = -40.0
"""Lower bound on the exponent of the odds of λ: at it, other categories have no weight."""
RIDGES = (1e-2, 1e-6, 1e-10)
"""Ridges on the slopes of local lines, of which a search takes the best."""
MAX_PAIRS_PER_TRIAL, PAIRS_MANY_FACTORS = 1e9, 2.5e8
"""Number of pairs in one trial of a search, for one factor and for many. Of more rows, a random sample that fits is
left out in turn."""


def check_bandwidth(name: str, value: object) -> None:
    """Raise on an unknown word. Numbers are checked when the columns are known."""
    if isinstance(value, str) and value not in _CHOICES:
        raise ValueError(f"{name} must be a number, one per column, or one of {', '.join(_CHOICES)}, got {value!r}")


def parse_bandwidth(text: str) -> Bandwidth:
    """A bandwidth as typed: a number, several, or a word."""
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        return cast(Bandwidth, text.strip())
    return numbers if len(numbers) > 1 else numbers[0]


def check_automatic(kernel: object, metric: str) -> None:
    """Raise unless the default bandwidth, one for each column, can be chosen."""
    if callable(kernel):
        raise ValueError("bandwidth='auto' needs a kernel by name; for a score of your own give a number")
    if metric in ("full", "index"):
        raise ValueError(f"metric={metric!r} is learned by gradient: it needs bandwidth='learn', got bandwidth='auto'")


_Choice = tuple[Smoother, float | None, tuple[History, ...]]
"""A smoother with its bandwidth, the criterion there if one was minimised, and the history of each stage."""


def choose_bandwidth(
    smoother: Smoother, columns: Columns, bandwidth: Bandwidth, metric: str, random_state: object, progress: bool
) -> _Choice:
    """The smoother with the requested bandwidth; on entry it has Scott's."""
    if metric != "scalar" and not (isinstance(bandwidth, str) and bandwidth in (*_SEARCHES, "learn")):
        raise ValueError(
            f"metric={metric!r} says what is searched or learned: it needs bandwidth='cv' or 'aicc' for one a column,"
            f" or 'learn' for a matrix or an index too, got bandwidth={bandwidth!r}"
        )
    if not isinstance(bandwidth, str):
        return _set_bandwidth(smoother, columns, bandwidth), None, ()
    if smoother.kernel == "constant" or not smoother.rows.shape[1]:
        return smoother, None, ()
    if bandwidth in _RULES:
        return apply_rule(smoother, bandwidth), None, ()
    if bandwidth in _SEARCHES:
        if metric in ("full", "index"):
            raise ValueError(
                f"metric={metric!r} is learned by gradient: bandwidth='learn', got bandwidth={bandwidth!r}"
            )
        return *_search_bandwidth(smoother, bandwidth, metric, seed_of(random_state), progress), ()
    return _learn_bandwidth(smoother, metric, seed_of(random_state), progress)


def _set_bandwidth(smoother: Smoother, columns: Columns, bandwidth: ArrayLike) -> Smoother:
    """A bandwidth in numbers: one for all, one for each column, or a matrix for the numeric columns."""
    try:
        width = np.asarray(bandwidth, dtype=float)
    except (TypeError, ValueError):
        width = np.array(np.nan)
    count, numeric = len(columns.names), len(smoother.bandwidth)
    if width.ndim > 2 or not np.isfinite(width).all():
        raise ValueError(f"bandwidth must be a number, one a column or a matrix, all finite, got {bandwidth!r}")
    if width.ndim == 2:
        _check_matrix(width, numeric)
        return replace(smoother, bandwidth=width)
    if width.ndim == 1 and len(width) != count:
        raise ValueError(f"bandwidth must be one number or one for each of {count} columns, got {len(width)}")
    if width.ndim == 0 and not width > 0:
        raise ValueError(f"bandwidth must be positive, got {bandwidth!r}")
    if width.ndim == 0 and numeric:  # λ has another unit: categories keep that of the rule
        return replace(smoother, bandwidth=np.full(numeric, float(width)))
    width = np.broadcast_to(width, count)
    category = width[columns.codes]
    if (
        (width[columns.numbers] <= 0).any()
        or (category < 0).any()
        or (category > smoother.categories.bound(smoother.ordered, smoother.levels)).any()
    ):
        raise ValueError(
            "bandwidths must be positive, and those of categories between 0 and 1, or (c - 1)/c for c categories"
            f" without order, got {bandwidth!r}"
        )
    return replace(smoother, bandwidth=width[columns.numbers], category_bandwidth=category)


def _check_matrix(width: Floats, numeric: int) -> None:
    """A bandwidth matrix has a row and a column for each numeric column, and an inverse, whatever their units."""
    if width.shape != (numeric, numeric):
        raise ValueError(
            f"a bandwidth matrix must be [{numeric}, {numeric}], one row a numeric column, got {list(width.shape)}"
        )
    size = np.abs(width).max(axis=1, keepdims=True)
    if not (size > 0).all() or np.linalg.matrix_rank(width / size) < numeric:
        raise ValueError(f"a bandwidth matrix must be invertible, got {width.tolist()}")


def apply_rule(smoother: Smoother, rule: str) -> Smoother:
    """The bandwidths of a rule of thumb, "scott" or "silverman"."""
    numeric, weight = smoother.numeric, smoother.weight
    count = effective_count(weight, len(numeric))
    features = max(1, numeric.shape[1])
    effective = count * (features + 2) / 4 if rule == "silverman" else count
    shrink = max(1.0, effective) ** (-1 / (features + 4))
    deviation = smoother.kind.profile.deviation(numeric.shape[1])
    width = standard_deviation(numeric, weight) * shrink / deviation
    return replace(
        smoother,
        bandwidth=width,
        category_bandwidth=smoother.categories.bound(smoother.ordered, smoother.levels) * shrink**2,
    )


def leave_one_out_error(smoother: Smoother, rows: Indices) -> float:
    """The mean squared error of rows that are predicted from the others, over all outputs: criterion "cv".

    A row is left out as a whole, whatever its weight. A row that sees no other is predicted by the mean: with the
    nearest row instead, too narrow a kernel would win.
    """
    value = smoother.value[rows]
    mean, log_weight = smoother.estimate(smoother.rows[rows], smoother.value, leave_one_out=rows)[:2]
    centre = np.average(smoother.value, axis=0, weights=smoother.weight)
    mean = np.where((log_weight == -math.inf)[:, None], centre, mean)
    error = np.square(value - mean).mean(axis=1)
    return float(np.average(error, weights=None if smoother.weight is None else smoother.weight[rows]))


def leave_one_out_rows(smoother: Smoother, pairs: float, seed: int) -> Indices:
    """The rows to leave out in turn: all, or a random sample if all would be more than this number of pairs."""
    count = len(smoother.rows)
    most = max(512, int(pairs / count))
    if count <= most or smoother.plan(smoother.rows).engine == "gauss":
        return np.arange(count)
    return np.sort(np.random.default_rng(seed).choice(count, most, replace=False))


def _corrected_aic(smoother: Smoother, rows: Indices) -> float:
    """Criterion "aicc", over all rows. Infinite if the fit has as many degrees of freedom as there are rows."""
    fit = smoother.estimate(smoother.rows, smoother.value)
    count = len(smoother.rows)
    weight = np.ones(count) if smoother.weight is None else smoother.weight * (count / smoother.weight.sum())
    trace = float(smoother.leverage(fit).sum())
    if count - trace - 2 <= 0:
        return math.inf
    variance = np.average(np.square(smoother.value - fit.mean), axis=0, weights=weight)
    least = 1e-20 * np.square(smoother.value - smoother.value.mean(axis=0)).mean(axis=0)
    variance = np.maximum(variance, np.maximum(least, 1e-300))  # no log of 0 for a perfect fit
    return float(np.log(variance).mean() + (1 + trace / count) / (1 - (trace + 2) / count))


def _search_bandwidth(
    smoother: Smoother, criterion: str, metric: str, seed: int, progress: bool
) -> tuple[Smoother, float]:
    """The bandwidth of the least criterion, and for local lines the best ridge. On entry it is that of the rule."""
    if smoother.order == 0:
        return _search_factors(smoother, criterion, metric, seed, progress)
    first = _search_factors(replace(smoother, ridge=RIDGES[0]), criterion, metric, seed, progress)
    others = [  # near the best bandwidth of the first: a trial with lines is expensive
        _search_factors(replace(first[0], ridge=ridge), criterion, metric, seed, progress, near=True)
        for ridge in RIDGES[1:]
    ]
    return min([first, *others], key=lambda search: search[1])


def _search_factors(
    smoother: Smoother, criterion: str, metric: str, seed: int, progress: bool, near: bool = False
) -> tuple[Smoother, float]:
    """The bandwidth of the least criterion, and the criterion there; with `near`, a common factor near 1 only."""
    count, columns = smoother.numeric.shape
    if count < 2:
        raise ValueError(
            f"bandwidth={criterion!r} needs two rows to compare bandwidths by, got n_samples={count}: give a number"
        )
    separate = metric == "diagonal" and columns > 1 and not near
    categories = len(smoother.category_bandwidth)
    pairs = PAIRS_MANY_FACTORS if separate or categories else MAX_PAIRS_PER_TRIAL
    rows = leave_one_out_rows(smoother, pairs, seed) if criterion == "cv" else np.arange(count)
    evaluate = leave_one_out_error if criterion == "cv" else _corrected_aic
    grid = _NEAR_GRID if near else GRID if count < _COARSE_GRID_ROWS else GRID[::2]
    budget = len(grid) + 12 + (60 * (columns * separate + categories) if separate or categories else 0)
    with ProgressBar(f"searching the bandwidth by {criterion}", budget, shown=progress) as bar:
        trials = 0

        def trial(exponents: Floats) -> float:
            nonlocal trials
            trials += 1
            value = evaluate(_scale_bandwidth(smoother, exponents), rows)
            bar.update(done=min(trials, budget - 1), loss=value)
            return math.inf if math.isnan(value) else value

        common = np.append(np.ones(columns), np.zeros(categories))
        factor, least = best_exponent(lambda exponent: trial(common * exponent), grid.tolist(), evaluations=12)
        best = common * factor
        if not math.isfinite(least):
            raise ValueError(
                f"bandwidth={criterion!r} found no bandwidth to judge among {count} rows: AICc needs more rows than the"
                " fit has degrees of freedom, and targets must not be so large that their squares overflow;"
                " give a number"
            )
        if separate or (categories and not near):
            best = _search_many_factors(trial, best, least, categories, separate)
    scaled = _scale_bandwidth(smoother, best)
    return scaled, evaluate(scaled, rows)


def _scale_bandwidth(smoother: Smoother, exponents: Floats) -> Smoother:
    """Bandwidths times powers of 2, one for each feature; after those, one for the odds of each λ."""
    columns, largest = len(smoother.bandwidth), smoother.categories.bound(smoother.ordered, smoother.levels)
    odds = smoother.category_bandwidth / np.maximum(largest - smoother.category_bandwidth, 1e-12)
    odds = odds * 2.0 ** exponents[columns:]
    # A matrix is scaled as a whole.
    factor = 2.0 ** exponents[:columns] if smoother.bandwidth.ndim == 1 else 2.0 ** exponents[0]
    return replace(smoother, bandwidth=smoother.bandwidth * factor, category_bandwidth=largest * odds / (1 + odds))


def _search_many_factors(
    trial: Callable[[Floats], float], start: Floats, least: float, categories: int, separate: bool
) -> Floats:
    """The best factor of each feature (one for all, unless `separate`) and of each λ, near a start of error `least`."""
    columns = len(start) - categories

    def exponents(free: Floats) -> Floats:
        return free if separate else np.append(np.full(columns, free[0]), free[1:])

    first = start if separate else np.append(start[:1], start[columns:])
    bounds = [(_MIN_EXPONENT, _MAX_EXPONENT)] * (len(first) - categories)
    result = minimize(
        lambda free: trial(exponents(free)),
        first,
        method="Powell",
        bounds=bounds + [(_MIN_CATEGORY_EXPONENT, _MAX_EXPONENT)] * categories,
        options={"maxfev": 60 * len(first), "xtol": 0.01, "ftol": 1e-6},
    )
    return exponents(result.x) if result.fun <= least else start


def _learn_bandwidth(smoother: Smoother, metric: str, seed: int, progress: bool) -> _Choice:
    """The metric and λ of the categories by gradient descent on the leave-one-out error; then the best ridge."""
    if len(smoother.rows) < 2:
        raise ValueError(f"bandwidth='learn' needs two rows, got n_samples={len(smoother.rows)}: give a number")
    if callable(smoother.kernel):
        raise ValueError("bandwidth='learn' needs a kernel by name; train a score of your own with regard.attend")
    if metric == "index":
        return _learn_direction(smoother, seed, progress)
    unit = smoother.bandwidth  # that of the rule
    points = torch.as_tensor(np.hstack([smoother.numeric / unit, smoother.codes]))
    weight = None if smoother.weight is None else torch.as_tensor(smoother.weight)
    learned = learn_metric(
        Rows(points, torch.as_tensor(smoother.value), weight, smoother.ordered.tolist()),
        metric=metric,
        order=smoother.order,
        score=KERNELS[smoother.kernel](1.0),
        seed=seed,
        progress=progress,
    )
    smoother = replace(
        smoother,
        bandwidth=(unit * learned.bandwidth.numpy().T).T,
        category_bandwidth=smoother.categories.bandwidth(learned.penalty.numpy(), smoother.ordered, smoother.levels),
    )
    rows = leave_one_out_rows(smoother, MAX_PAIRS_PER_TRIAL, seed)
    ridges = (LEARNING_RIDGE, *RIDGES[1:]) if smoother.order == 1 else (smoother.ridge,)
    errors = {ridge: leave_one_out_error(replace(smoother, ridge=ridge), rows) for ridge in ridges}
    ridge = min(errors, key=errors.__getitem__)
    return replace(smoother, ridge=ridge), errors[ridge], learned.history


def _learn_direction(smoother: Smoother, seed: int, progress: bool) -> _Choice:
    """A bandwidth matrix for one direction, then the best multiple and ridge for the kernel and order of the model."""
    if len(smoother.category_bandwidth) or len(smoother.bandwidth) < 2:
        raise ValueError("metric='index' needs two numeric columns and no category: make indicators of categories")
    smoother = replace(smoother, bandwidth=learn_index(smoother, seed, progress))
    return *_search_bandwidth(smoother, "cv", "scalar", seed, progress), ()
