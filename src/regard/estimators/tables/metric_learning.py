"""Learns the metric of a kernel regression: its bandwidth, by gradient descent on the leave-one-out error.

The distance is u = ‖H⁻¹(query - key)‖, and H is one number ("scalar"), one for each feature ("diagonal") or a
matrix ("full"). The loss is the squared error of every row, predicted from the others:

    Σ weight · ‖y - attend(row, other rows, their y; H)‖²

A row is never among its own keys: otherwise the best bandwidth would be 0. The gradient goes through `attend`, for a
few hundred rows at a time, in stages from coarse to fine:

* one factor, by search: too narrow a kernel sees no row, and then has no gradient;
* then one stretch for each feature, which finds the features that do not matter;
* then a matrix times that, which rotates the axes;
* and, for a local linear fit, the last stage again with the error of that fit.

With many rows, the first stages draw some thousand keys. Among fewer keys the best bandwidth is wider than among all,
so the last stage uses all of them. Some rows are held out for validation, to stop early and to set the last factor: a
matrix has enough parameters to overfit a small table.

A kernel without a smooth gradient (a boxcar has none) takes the shape of its metric from the Gaussian, and its own
width by search: the kernel's form changes the best width, and hardly the shape.
"""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR

from regard.attend import attend
from regard.estimators.tables.smoother import local_linear
from regard.kernels import Mixed
from regard.masks import Mask, both
from regard.scores import Gaussian, Score, is_inner_product
from regard.torch_modes import small_steps
from regard.training import History, Monitor, Recipe, copied_state, train

BATCH = 512
"""Rows predicted in one step; at most a quarter of all, so that enough are left to predict them from."""
KEYS = 4096
"""Keys drawn for a step, among the rows that are not predicted in it."""
PAIRS_PER_STEP = 2**22
"""Pairs of query and key in one step against all keys."""
STRETCH_STEPS, MIXING_STEPS, LINEAR_STEPS, LAST_STEPS = 200, 400, 150, 100
"""Steps of each stage: a stretch for each feature, the matrix, a linear fit, and against all keys."""
_EPOCHS = 10
"""Validations in each stage."""
GRID = tuple(float(exponent) for exponent in range(5, -6, -1))
"""Powers of 2 that are tried for the bandwidth, the wide first: it wins a tie."""
_MIN_ROWS_TO_SPLIT = 64
"""Number of rows from which some are held out for validation; with fewer, each is predicted from the others."""


def learn_metric(
    points: Tensor,
    y: Tensor,
    weight: Tensor | None = None,
    *,
    metric: str,
    order: int,
    score: Score,
    seed: int = 0,
    progress: bool = True,
) -> tuple[Tensor, float, tuple[History, ...]]:
    """The bandwidth that predicts rows left out best, in units of the points: [d], or [d, d] if metric is "full".

    points, y   [n, d] in units of a first guess, and [n, c]; with categories, their codes follow, [n, d + codes]
    weight      [n], positive
    order       0 for the weighted average, 1 for the local linear fit
    score       a kernel of bandwidth 1; with categories, a `regard.kernels.Mixed`
    seed        the same seed gives the same bandwidth

    Returned with it: the root mean squared error of rows left out, in standard deviations of y, and the history of each
    stage of learning, of which "scalar" has none.

    >>> import torch
    >>> x = torch.rand(300, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    >>> wave = (6 * x[:, :1]).sin()  # does not depend on the second feature
    >>> bandwidth, _, _ = learn_metric(x / 0.3, wave, metric="diagonal", order=0, score=Gaussian(1.0))
    >>> bool(bandwidth[1] > 5 * bandwidth[0])
    True
    """
    generator = torch.Generator().manual_seed(seed)
    sample = Sample.of(points, y, weight, generator)
    model = Stretch(points.shape[-1] - (len(score.per_change) if isinstance(score, Mixed) else 0))
    # A kernel without a gradient learns with that of the Gaussian.
    smooth = Mixed(Gaussian(1.0), score.per_step, score.per_change) if isinstance(score, Mixed) else SameDtypeGaussian()
    with small_steps():
        history = [
            _run_stage(stage, model, sample, smooth, generator, progress)
            for stage in plan_stages(metric, order, len(sample.train))
        ]
        last = smooth if is_inner_product(score) else score
        error = _scale_to_best(model, _validation_trial(sample, last, order, keys=len(sample.train)))
    return model.bandwidth(metric), error, tuple(history)


class Sample(NamedTuple):
    """The rows in float32, which is enough for learning, and which of them are held out: none of few rows."""

    points: Tensor  # [n, d], centred
    y: Tensor  # [n, c], of mean 0 and variance 1
    weight: Tensor  # [n], of mean 1
    train: Tensor  # indices of the rows to learn from
    validation: Tensor  # and of the others: a random tenth, or enough that their error is meaningful

    @classmethod
    def of(cls, points: Tensor, y: Tensor, weight: Tensor | None, generator: torch.Generator) -> Self:
        """Rows, centred before they are rounded to float32."""
        weight = points.new_ones(len(points)) if weight is None else weight / weight.mean()
        mean = (weight.unsqueeze(-1) * y).mean(dim=0)
        deviation = (weight.unsqueeze(-1) * (y - mean).square()).mean(dim=0).sqrt()
        y = (y - mean) / torch.where(deviation > 0, deviation, 1.0)
        rows = len(points)
        shuffled = torch.randperm(rows, generator=generator)
        count = min(max(rows // 10, 128), rows // 4, 2048) if rows >= _MIN_ROWS_TO_SPLIT else 0
        points = points - points.mean(dim=0)
        return cls(points.float(), y.float(), weight.float(), shuffled[count:], shuffled[:count])


class Stretch(nn.Module):
    """Points in units of the bandwidth: points · diag(exp(log_stretch)) · mixingᵀ; codes at the end stay."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.log_stretch = nn.Parameter(torch.zeros(size))
        self.mixing = nn.Parameter(torch.eye(size))

    def forward(self, points: Tensor) -> Tensor:
        size = len(self.log_stretch)
        stretched = (points[..., :size] * self.log_stretch.exp()) @ self.mixing.mT
        return torch.cat([stretched, points[..., size:]], dim=-1)

    @torch.no_grad()
    def widen(self, factor: float) -> None:
        """Multiply the bandwidth by a factor."""
        self.log_stretch.sub_(math.log(factor))

    @torch.no_grad()
    def bandwidth(self, metric: str) -> Tensor:
        """H, as a vector or a matrix."""
        widths = (-self.log_stretch.double()).exp()
        return widths.unsqueeze(-1) * torch.linalg.inv(self.mixing.double()) if metric == "full" else widths


class SameDtypeGaussian:
    """The Gaussian of bandwidth 1 in the dtype of the points: float32 is enough for a gradient, and faster."""

    width = 1

    def as_dot(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, float]:
        long_query, long_key, scale = Gaussian(1.0).as_dot(query, key)
        return long_query.to(query.dtype), long_key.to(key.dtype), scale

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        query, key, scale = self.as_dot(query, key)
        return (query * scale) @ key.mT


@dataclass(frozen=True)
class Trial:
    """Rows to predict from other rows: the loss of a metric. A row that is among the keys too does not see itself."""

    sample: Sample
    rows: Tensor  # [q]
    keys: Tensor  # [k]
    score: Score
    order: int
    overlap: bool  # whether some rows are among the keys

    def prediction(self, model: Stretch) -> Tensor:
        """The rows predicted from the keys, `[q, c]`."""
        query, key = model(self.sample.points[self.rows]), model(self.sample.points[self.keys])
        value, mask = self.sample.y[self.keys], self.mask()
        if self.order == 0:
            return attend(query, key, value, score=self.score, mask=mask)
        codes = query.shape[-1] - len(model.log_stretch)
        # torch's fused kernel would pad the query to the length of the many values of a linear fit.
        return local_linear(query, key, value, score=self.score, mask=mask, engine="stream", codes=codes)

    def loss(self, model: Stretch) -> Tensor:
        """The weighted mean squared error: Σ weight · ‖y - prediction‖² / Σ weight."""
        weight = self.sample.weight[self.rows]
        error = (self.prediction(model) - self.sample.y[self.rows]).square().mean(dim=-1)
        return (error * weight).sum() / weight.sum()

    def mask(self) -> Mask | None:
        """The log weights of the keys, and False for the row itself."""
        weight = self.sample.weight[self.keys]
        bias = None if bool((weight == weight[0]).all()) else weight.log().unsqueeze(0)
        if not self.overlap:
            return bias
        return self.is_other_row if bias is None else both(self.is_other_row, bias)

    def is_other_row(self, query_index: Tensor, key_index: Tensor) -> Tensor:
        return self.rows[query_index] != self.keys[key_index]


class _Stage(NamedTuple):
    """One gradient descent: of which parameter, for which fit, with what number of keys."""

    parameter: str
    order: int
    keys: int
    steps: int
    rate: float


def plan_stages(metric: str, order: int, rows: int) -> list[_Stage]:
    """The stages for this number of training rows, from coarse to fine."""
    if metric == "scalar":
        return []
    keys = min(KEYS, rows - batch_size(rows))
    stages = [_Stage("log_stretch", 0, keys, STRETCH_STEPS, 0.1)]
    if metric == "full":
        stages.append(_Stage("mixing", 0, keys, MIXING_STEPS, 0.03))
    last = stages[-1]
    if order == 1:
        stages.append(last._replace(order=1, steps=LINEAR_STEPS))
    elif rows > KEYS:
        stages.append(last._replace(keys=rows, steps=LAST_STEPS, rate=last.rate / 3))
    return stages


def _run_stage(
    stage: _Stage, model: Stretch, sample: Sample, score: Score, generator: torch.Generator, progress: bool
) -> History:
    """Run one stage, starting at the best factor. If the validation error grew, undo the stage."""
    validation = _validation_trial(sample, score, stage.order, stage.keys)
    before = _scale_to_best(model, validation)
    state = copied_state(model)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name == stage.parameter)
    optimizer = torch.optim.Adam([model.get_parameter(stage.parameter)], lr=stage.rate, betas=(0.9, 0.98))
    history = train(
        model,
        lambda epoch: [draw_trial(sample, score, stage, generator) for _ in range(stage.steps // _EPOCHS)],
        lambda trial: trial.loss(model),
        Recipe(optimizer, _EPOCHS, CosineAnnealingLR(optimizer, stage.steps, stage.rate / 20), clip=1.0),
        validate=lambda: validation.loss(model).sqrt().item(),
        monitor=Monitor(f"learning the metric ({stage.parameter.replace('_', ' ')})", progress),
    )
    if history.validation[history.best_epoch] > before:
        model.load_state_dict(state)
    return history


def draw_trial(sample: Sample, score: Score, stage: _Stage, generator: torch.Generator) -> Trial:
    """Random rows to predict, from all others or from random keys."""
    shuffled = sample.train[torch.randperm(len(sample.train), generator=generator)]
    if stage.keys == len(shuffled):
        rows = shuffled[: min(BATCH, _rows_per_call(stage.keys))]
        return Trial(sample, rows, sample.train, score, stage.order, overlap=True)
    first = batch_size(len(shuffled))
    rows, keys = shuffled[:first], shuffled[first : first + stage.keys]
    return Trial(sample, rows, keys, score, stage.order, overlap=False)


def batch_size(rows: int) -> int:
    """The number of rows that are predicted in one step."""
    return min(BATCH, -(-rows // 4))


def _validation_trial(sample: Sample, score: Score, order: int, keys: int) -> Trial:
    """Validation rows predicted from training rows; if there are none, each training row from the others."""
    if len(sample.validation):
        rows = sample.validation[: 4 * _rows_per_call(keys)]
        return Trial(sample, rows, sample.train[:keys], score, order, overlap=False)
    return Trial(sample, sample.train, sample.train, score, order, overlap=True)


def _rows_per_call(keys: int) -> int:
    """The number of rows that are predicted at a time from this number of keys."""
    return max(64, PAIRS_PER_STEP // keys)


@torch.no_grad()
def _scale_to_best(model: Stretch, trial: Trial) -> float:
    """Multiply the bandwidth by the factor of least error, and return the root mean squared error there."""

    def error(exponent: float) -> float:
        widened = copy.deepcopy(model)
        widened.widen(2.0**exponent)
        value = trial.loss(widened).sqrt().item()
        return value if math.isfinite(value) else math.inf

    best, least = best_exponent(error, GRID, evaluations=6)
    model.widen(2.0**best)
    return least


def best_exponent(error: Callable[[float], float], grid: Sequence[float], evaluations: int) -> tuple[float, float]:
    """The exponent of least error, and the error: on a grid, then near its best.

    The error has many minima, and is flat where the kernel sees no row. In a tie, the first of the grid wins.
    """
    errors = [error(exponent) for exponent in grid]
    least = min(errors)
    best, step = grid[errors.index(least)], abs(grid[1] - grid[0])
    options = {"maxiter": evaluations, "xatol": 0.005}
    near = minimize_scalar(error, bounds=(best - step, best + step), method="bounded", options=options)
    return (float(near.x), float(near.fun)) if near.fun < least else (best, least)
