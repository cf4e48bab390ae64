"""The single index: a kernel regression whose metric has rank one, so that y depends on one direction of the columns.

    y = g(θᵀx) + error,    θ = argmin Σ weight · (y - f(x; θ))², each row predicted from the others   (Ichimura 1993)

where f weighs rows by K(θᵀ(x - xᵢ)): the length of θ is 1 over the bandwidth. The gradient goes through `attend`.

The bandwidth matrix H of such a model has the width 1/‖θ‖ along θ, and `_WIDE` times as much across it, so that
everything that works with a matrix works with an index.
"""

import functools
import math

import numpy as np
import torch
from scipy.optimize import minimize

from regard.attend import attend
from regard.data.columns import Floats, standard_deviation
from regard.estimators.tables.metric_learning import GRID, best_exponent
from regard.estimators.tables.smoother import Smoother, marginal_effects
from regard.masks import both, others
from regard.progress import ProgressBar
from regard.scores import Gaussian

_WIDE = 1e6
"""Bandwidth across the direction, as a multiple of that along it."""
_SAMPLE = 2000
"""Number of rows that the direction is learned from."""
_RANDOM_STARTS = 3
"""Number of random directions to start from, beside least squares and each column alone."""
_REFINED = 3
"""Number of starts that are refined by their gradient, the best first."""


def learn_index(smoother: Smoother, seed: int, progress: bool) -> Floats:
    """The bandwidth matrix of the best direction, for a Gaussian average."""
    numeric, generator = smoother.numeric, np.random.default_rng(seed)
    rows = np.arange(len(numeric))
    if len(rows) > _SAMPLE:
        rows = np.sort(generator.choice(rows, _SAMPLE, replace=False))
    unit = standard_deviation(numeric, smoother.weight)
    x = (numeric[rows] - numeric.mean(axis=0)) / unit
    y = (smoother.value[rows] - smoother.value.mean(axis=0)) / standard_deviation(smoother.value, smoother.weight)
    weight = np.ones(len(rows)) if smoother.weight is None else smoother.weight[rows]
    points, target, mass = (torch.as_tensor(each) for each in (x, y, weight))
    mask = both(others, mass.log()[None])

    def loss(theta: Floats) -> tuple[float, Floats]:
        free = torch.tensor(theta, requires_grad=True)
        index = (points @ free)[:, None]  # [n, 1]
        error = target - attend(index, index, target, score=Gaussian(1.0), mask=mask)
        mean = (mass * error.square().sum(dim=1)).sum() / mass.sum()
        (gradient,) = torch.autograd.grad(mean, free)
        return mean.item(), gradient.numpy()

    def along(direction: Floats, power: float) -> float:
        return loss(direction * 2.0**-power)[0]

    line = np.linalg.lstsq(x * np.sqrt(weight)[:, None], y[:, 0] * np.sqrt(weight), rcond=None)[0]
    directions = [line, *np.eye(x.shape[1]), *generator.normal(size=(_RANDOM_STARTS, x.shape[1]))]
    starts = []
    with ProgressBar("learning the index", len(directions) + _REFINED, shown=progress) as bar:
        for direction in directions:
            start = direction / max(float(np.linalg.norm(direction)), 1e-12)
            power, error = best_exponent(functools.partial(along, start), list(GRID), evaluations=4)
            starts.append((error, start * 2.0**-power))
            bar.update(done=len(starts))
        best = min(
            (
                minimize(loss, theta, jac=True, method="BFGS")
                for _, theta in sorted(starts, key=lambda s: s[0])[:_REFINED]
            ),
            key=lambda found: float(found.fun),
        )
    return index_bandwidth(best.x / unit)


def index_bandwidth(theta: Floats) -> Floats:
    """The bandwidth matrix [d, d] of 1/‖θ‖ along θ, and far more across it."""
    length = float(np.linalg.norm(theta))
    if not length > 0 or not math.isfinite(length):
        raise ValueError("metric='index' found no direction that predicts the target: give a bandwidth")
    along = np.outer(theta, theta) / length**2
    return np.asarray((along + _WIDE * (np.eye(len(theta)) - along)) / length)


def direction_of(smoother: Smoother) -> Floats:
    """The direction of length 1 along which the bandwidth matrix is narrowest; its largest entry is positive."""
    width, axes = np.linalg.eigh(smoother.bandwidth)
    direction = axes[:, np.argmin(width)]
    return np.asarray(direction * np.sign(direction[np.argmax(np.abs(direction))]))


def direction_covariance(smoother: Smoother) -> Floats:
    """The covariance [d, d] of the direction, of one target, for errors of unequal size (Ichimura 1993, theorem 5.2).

    V⁻ (Σ e² u uᵀ) V⁻ with u = g'(θᵀx) (x - E[x | θᵀx]) and V = Σ u uᵀ, across the direction.
    """
    direction, rows = direction_of(smoother), smoother.rows
    slope = marginal_effects(smoother, rows)[:, :, 0] @ direction  # [n]
    across = np.eye(len(direction)) - np.outer(direction, direction)
    away = (smoother.numeric - smoother.means(rows, smoother.numeric).mean) @ across
    root = 1.0 if smoother.weight is None else np.sqrt(smoother.weight)[:, None]
    u = slope[:, None] * away * root
    error = (smoother.value - smoother.predict(rows, np.arange(len(rows))).mean) * root
    inverse = np.linalg.pinv(u.T @ u, rcond=1e-10, hermitian=True)
    score = u * error
    return np.asarray(inverse @ (score.T @ score) @ inverse)
