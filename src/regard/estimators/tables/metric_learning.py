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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR

from regard.attend import attend
from regard.estimators.tables.smoother import local_linear
from regard.kernels import Mixed
from regard.masks import Mask, both
from regard.scores import Gaussian, InnerProduct, Score, is_inner_product
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
GRID = tuple(range(5, -6, -1))
"""Powers of 2 that are tried for the bandwidth, the wide first: it wins a tie."""
_MIN_ROWS_TO_SPLIT = 64
"""Number of rows from which some are held out for validation; with fewer, each is predicted from the others."""


class Observations(NamedTuple):
    """What a metric is learned from."""

    points: Tensor  # [n, d + codes]
    y: Tensor  # [n, c]
    weight: Tensor | None = None  # [n]
    codes: int = 0  # number of categorical columns, the last of the points: the metric does not change them


class _LearnedMetric(NamedTuple):
    """A bandwidth, its error, and how it was learned."""

    bandwidth: Tensor  # [], [d] or [d, d], float64
    error: float  # root mean squared error of rows left out, in standard deviations of y
    history: tuple[History, ...]  # one for each stage; none for "scalar", which is a search


def learn_metric(
    data: Observations,
    *,
    start: Tensor,
    metric: str,
    order: int,
    make_score: Callable[[Tensor], Score] = Gaussian,
    seed: int = 0,
    progress: bool = True,
) -> _LearnedMetric:
    """The bandwidth that predicts rows left out best.

    start        where the search starts: a number or one for each feature
    order        0 for the weighted average, 1 for the local linear fit
    make_score   from a bandwidth to a kernel; with categories, to a `regard.kernels.Mixed`
    seed         the same seed gives the same bandwidth

    >>> import torch
    >>> x = torch.rand(300, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    >>> wave = (6 * x[:, :1]).sin()  # does not depend on the second feature
    >>> bandwidth = learn_metric(Observations(x, wave), start=torch.tensor(0.3), metric="diagonal", order=0).bandwidth
    >>> bool(bandwidth[1] > 5 * bandwidth[0])
    True
    """
    generator = torch.Generator().manual_seed(seed)
    sample = standardise(data)
    split = split_rows(len(sample.points), generator)
    score = make_score(torch.ones((), dtype=torch.float64))
    smooth = _differentiable_score(score)
    model = Stretch(data.points.shape[-1] - data.codes, start)
    with _fast_small_steps():
        history = [
            _run_stage(stage, model, sample, split, smooth, generator, progress)
            for stage in plan_stages(metric, order, split)
        ]
        last = smooth if is_inner_product(score) else score
        error = _scale_to_best(model, _validation_trial(sample, split, last, order, keys=len(split.train)))
    return _LearnedMetric(model.bandwidth(metric, start), error, tuple(history))


@dataclass(frozen=True)
class Sample:
    """The rows in float32, which is enough for learning."""

    points: Tensor  # [n, d], centred
    y: Tensor  # [n, c], of mean 0 and variance 1
    weight: Tensor  # [n], of mean 1


def standardise(data: Observations) -> Sample:
    """The rows of positive weight, centred before they are rounded to float32."""
    points, y = data.points, data.y
    weight = points.new_ones(len(points)) if data.weight is None else data.weight.to(points)
    points, y, weight = points[weight > 0], y[weight > 0], weight[weight > 0]
    weight = weight / weight.mean()
    mean = (weight.unsqueeze(-1) * y).mean(dim=0)
    deviation = (weight.unsqueeze(-1) * (y - mean).square()).mean(dim=0).sqrt()
    y = (y - mean) / torch.where(deviation > 0, deviation, 1.0)
    return Sample(*(tensor.to(torch.float32) for tensor in (points - points.mean(dim=0), y, weight)))


class Split(NamedTuple):
    """Indices of the rows to learn from, and of those held out for validation: none of few rows."""

    train: Tensor
    validation: Tensor


def split_rows(rows: int, generator: torch.Generator) -> Split:
    """A random tenth of the rows for validation, or enough that their error is meaningful."""
    shuffled = torch.randperm(rows, generator=generator)
    count = min(max(rows // 10, 128), rows // 4, 2048) if rows >= _MIN_ROWS_TO_SPLIT else 0
    return Split(shuffled[count:], shuffled[:count])


class Stretch(nn.Module):
    """Points in units of the bandwidth: points · diag(exp(log_stretch)) · mixingᵀ; codes at the end stay."""

    def __init__(self, size: int, start: Tensor) -> None:
        super().__init__()
        self.log_stretch = nn.Parameter(-start.detach().log().to(torch.float32).expand(size).clone())
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
    def bandwidth(self, metric: str, start: Tensor) -> Tensor:
        """H, as a number, a vector or a matrix."""
        widths = (-self.log_stretch.double()).exp()
        if metric == "full":
            matrix: Tensor = widths.unsqueeze(-1) * torch.linalg.inv(self.mixing.double())
            return matrix
        return widths[0] if metric == "scalar" and start.ndim == 0 else widths


class SameDtypeScore:
    """An inner-product score in the dtype of the points: float32 is enough for a gradient, and faster."""

    width = 1

    def __init__(self, score: InnerProduct) -> None:
        self.score = score

    def as_dot(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, float]:
        long_query, long_key, scale = self.score.as_dot(query, key)
        return long_query.to(query.dtype), long_key.to(key.dtype), scale

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        query, key, scale = self.as_dot(query, key)
        return (query * scale) @ key.mT


def _differentiable_score(score: Score) -> Score:
    """The score to learn with: the score itself if it is smooth, else a Gaussian."""
    if isinstance(score, Mixed):
        return Mixed(Gaussian(1.0), score.per_step, score.per_change)
    return SameDtypeScore(score if is_inner_product(score) else Gaussian(1.0))


@dataclass(frozen=True)
class Trial:
    """Rows to predict from other rows: the loss of a metric. A row that is among the keys too does not see itself."""

    sample: Sample
    rows: Tensor  # [q]
    keys: Tensor  # [k]
    score: Score
    order: int
    overlap: bool  # whether some rows are among the keys

    def prediction(self, model: nn.Module) -> Tensor:
        """The rows predicted from the keys, `[q, c]`."""
        query, key = model(self.sample.points[self.rows]), model(self.sample.points[self.keys])
        value, mask = self.sample.y[self.keys], self.mask()
        if self.order == 0:
            return attend(query, key, value, score=self.score, mask=mask)
        codes = len(self.score.per_change) if isinstance(self.score, Mixed) else 0
        # torch's fused kernel would pad the query to the length of the many values of a linear fit.
        return local_linear(query, key, value, score=self.score, mask=mask, engine="stream", codes=codes)

    def loss(self, model: nn.Module) -> Tensor:
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


def plan_stages(metric: str, order: int, split: Split) -> list[_Stage]:
    """The stages, from coarse to fine."""
    if metric == "scalar":
        return []
    rows = len(split.train)
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
    stage: _Stage,
    model: Stretch,
    sample: Sample,
    split: Split,
    score: Score,
    generator: torch.Generator,
    progress: bool,
) -> History:
    """Run one stage, starting at the best factor. If the validation error grew, undo the stage."""
    validation = _validation_trial(sample, split, score, stage.order, stage.keys)
    before = _scale_to_best(model, validation)
    state = copied_state(model)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name == stage.parameter)
    optimizer = torch.optim.Adam([model.get_parameter(stage.parameter)], lr=stage.rate, betas=(0.9, 0.98))
    history = train(
        model,
        lambda epoch: [draw_trial(sample, split, score, stage, generator) for _ in range(stage.steps // _EPOCHS)],
        lambda trial: trial.loss(model),
        Recipe(optimizer, _EPOCHS, CosineAnnealingLR(optimizer, stage.steps, stage.rate / 20), clip=1.0),
        validate=lambda: validation.loss(model).sqrt().item(),
        monitor=Monitor(f"learning the metric ({stage.parameter.replace('_', ' ')})", progress),
    )
    if history.validation[history.best_epoch] > before:
        model.load_state_dict(state)
    return history


def draw_trial(sample: Sample, split: Split, score: Score, stage: _Stage, generator: torch.Generator) -> Trial:
    """Random rows to predict, from all others or from random keys."""
    shuffled = split.train[torch.randperm(len(split.train), generator=generator)]
    if stage.keys == len(shuffled):
        rows = shuffled[: min(BATCH, _rows_per_call(stage.keys))]
        return Trial(sample, rows, split.train, score, stage.order, overlap=True)
    first = batch_size(len(shuffled))
    rows, keys = shuffled[:first], shuffled[first : first + stage.keys]
    return Trial(sample, rows, keys, score, stage.order, overlap=False)


def batch_size(rows: int) -> int:
    """The number of rows that are predicted in one step."""
    return min(BATCH, -(-rows // 4))


def _validation_trial(sample: Sample, split: Split, score: Score, order: int, keys: int) -> Trial:
    """Validation rows predicted from training rows; if there are none, each training row from the others."""
    if len(split.validation):
        rows = split.validation[: 4 * _rows_per_call(keys)]
        return Trial(sample, rows, split.train[:keys], score, order, overlap=False)
    return Trial(sample, split.train, split.train, score, order, overlap=True)


def _rows_per_call(keys: int) -> int:
    """The number of rows that are predicted at a time from this number of keys."""
    return max(64, PAIRS_PER_STEP // keys)


@torch.no_grad()
def _scale_to_best(model: Stretch, trial: Trial) -> float:
    """Multiply the bandwidth by the factor of least error, and return the root mean squared error there.

    Search on a grid from wide to narrow, then near its best: the error has many minima, and is flat where the kernel
    sees no row.
    """

    def error(exponent: float) -> float:
        widened = copy.deepcopy(model)
        widened.widen(2.0**exponent)
        value = trial.loss(widened).sqrt().item()
        return value if math.isfinite(value) else math.inf

    errors = {float(exponent): error(exponent) for exponent in GRID}
    for step in (0.5, 0.25, 0.125):
        best = min(errors, key=errors.__getitem__)
        errors |= {exponent: error(exponent) for exponent in (best + step, best - step)}
    best = min(errors, key=errors.__getitem__)
    model.widen(2.0**best)
    return errors[best]


@contextmanager
def _fast_small_steps() -> Iterator[None]:
    """One thread, and weights below 1e-38 rounded to 0: for steps of a few milliseconds, and the same bits everywhere.

    Several threads wait for one another at each operation. With another process on one of the cores, that was measured
    to take 25 times as long. Most keys of a narrow kernel have a weight below 1e-38, and denormal numbers make the CPU
    5 times slower.
    """
    threads, flushes = torch.get_num_threads(), float(torch.tensor(1e-39) * 1.0) == 0
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_flush_denormal(flushes)
