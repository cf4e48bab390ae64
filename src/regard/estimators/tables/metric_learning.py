"""Learns the metric of a kernel regression: its bandwidth, by gradient descent on the leave-one-out error.

The distance is u = ‖H⁻¹(query - key)‖, and H is one number ("scalar"), one for each feature ("diagonal") or a
matrix ("full"). The loss is the error of every row, predicted from the others, squared or as log loss:

    Σ weight · loss(attend(row, other rows, their y; H), y)

Categories are learned with it. What a difference of codes subtracts from a log weight (`regard.kernels.Mixed`) is, up
to a constant, an inner product of indicators, whose length is the parameter.

A row is never among its own keys: otherwise the best bandwidth would be 0. The gradient goes through `attend`, for a
few hundred rows at a time, in stages from coarse to fine:

* one factor, by search: too narrow a kernel sees no row, and then has no gradient;
* then one stretch for each feature and category, which finds those that do not matter;
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
START_STEPS = 100
"""Steps from each start of the default bandwidth."""
_EPOCHS = 10
"""Validations in each stage."""
GRID = tuple(float(exponent) for exponent in range(5, -6, -1))
"""Powers of 2 that are tried for the bandwidth, the wide first: it wins a tie."""
_JUDGED_ROWS = 1000
"""Number of rows that are left out in turn to compare the starts of the default bandwidth."""
_MOST_CODES = 256
"""Number of codes of one column that the learning tells apart: one that few rows have matters little."""
_MIN_ROWS_TO_SPLIT = 64
"""Number of rows from which some are held out for validation; with fewer, each is predicted from the others."""


class Loss(NamedTuple):
    """The error of predictions [q, c] for targets [q, c], one number for each row."""

    row_error: Callable[[Tensor, Tensor], Tensor]  # (prediction, y) → [q]
    standardised: bool = True  # whether the targets are in standard deviations from their mean

    def mean(self, prediction: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """The weighted mean of the rows' errors."""
        return (self.row_error(prediction, y) * weight).sum() / weight.sum()


def squared_error(prediction: Tensor, y: Tensor) -> Tensor:
    """The squared error of each row, mean of the outputs."""
    return (prediction - y).square().mean(dim=-1)


def capped_squared_error(prediction: Tensor, y: Tensor) -> Tensor:
    """The same, at most that of an error of 4 deviations, so that no outlier decides alone."""
    return squared_error(prediction, y).clamp_max(16.0)


def log_loss(prediction: Tensor, y: Tensor) -> Tensor:
    """-log of the probability of the row's class, which counts as at least 1e-7; rounding may exceed 1."""
    return -(y * prediction.clamp(1e-7, 1.0).log()).sum(dim=-1)


SQUARED, CAPPED, LOG_LOSS = Loss(squared_error), Loss(capped_squared_error), Loss(log_loss, standardised=False)


class Rows(NamedTuple):
    """What a metric is learned from."""

    points: Tensor  # [n, d + g]: numbers in units of a first guess, then codes of categories
    y: Tensor  # [n, c]
    weight: Tensor | None = None  # [n], positive
    ordered: Sequence[bool] = ()  # whether each of the g columns of codes is ordered


class Learned(NamedTuple):
    """A metric, and what it reached."""

    bandwidth: Tensor  # [d] or [d, d], in units of the points
    penalty: Tensor  # [g]: what a step (ordered) or any difference (unordered) of codes subtracts from a log weight
    error: float  # of rows left out: the root of the mean loss
    history: tuple[History, ...] = ()  # of each stage


def learn_metric(rows: Rows, *, metric: str, order: int, score: Score, seed: int = 0, progress: bool = True) -> Learned:
    """The bandwidth that predicts rows left out best, in units of the points: [d], or [d, d] if metric is "full".

    order   0 for the weighted average, 1 for the local linear fit
    score   a kernel of bandwidth 1
    seed    the same seed gives the same bandwidth

    The error is the root mean squared error in standard deviations of y. "scalar" has no history without categories.

    >>> import torch
    >>> x = torch.rand(300, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    >>> wave = (6 * x[:, :1]).sin()  # does not depend on the second feature
    >>> bandwidth = learn_metric(Rows(x / 0.3, wave), metric="diagonal", order=0, score=Gaussian(1.0)).bandwidth
    >>> bool(bandwidth[1] > 5 * bandwidth[0])
    True
    """
    generator = torch.Generator().manual_seed(seed)
    sample, model = Sample.of(rows, generator), Stretch.of(rows)
    with small_steps():
        history = [
            _run_stage(stage, model, sample, generator, progress)
            for stage in plan_stages(metric, order, len(sample.train), len(rows.ordered) > 0)
        ]
        last = None if is_inner_product(score) else score
        error = _scale_to_best(model, _validation_trial(sample, order, len(sample.train), last))
    return Learned(model.bandwidth(metric), model.penalty(), error, tuple(history))


def learn_start(rows: Rows, *, loss: Loss, seed: int, progress: bool) -> list[Learned]:
    """Two metrics of a few thousand rows: the best multiple of their units, and what is learned from there.

    The error is that of up to 1,000 of the rows, each predicted from all others.
    """
    generator = torch.Generator().manual_seed(seed)
    sample, model = Sample.of(rows, generator, loss), Stretch.of(rows)
    judged = torch.randperm(len(rows.y), generator=generator)[:_JUDGED_ROWS]
    judge = Trial(sample, judged, torch.arange(len(rows.y)), None, 0, overlap=True)
    with small_steps():
        error = _scale_to_best(model, judge)
        start = Learned(model.bandwidth("diagonal"), model.penalty(), error)
        stage = plan_stages("diagonal", 0, len(sample.train))[0]._replace(steps=START_STEPS)
        history = _run_stage(stage, model, sample, generator, progress)
        error = _scale_to_best(model, judge)
    return [start, Learned(model.bandwidth("diagonal"), model.penalty(), error, (history,))]


class Sample(NamedTuple):
    """The rows in float32, which is enough for learning, and which of them are held out: none of few rows."""

    points: Tensor  # [n, d + g], centred; then codes
    y: Tensor  # [n, c], of mean 0 and variance 1 if the loss wants it
    weight: Tensor  # [n], of mean 1
    train: Tensor  # indices of the rows to learn from
    validation: Tensor  # and of the others: a random tenth, or enough that their error is meaningful
    loss: Loss = SQUARED

    @classmethod
    def of(cls, rows: Rows, generator: torch.Generator, loss: Loss = SQUARED) -> Self:
        """Rows, centred before they are rounded to float32."""
        points, y, weight, ordered = rows
        weight = points.new_ones(len(points)) if weight is None else weight / weight.mean()
        y = standardised(y, weight) if loss.standardised else y
        count, size = len(points), points.shape[-1] - len(ordered)
        shuffled = torch.randperm(count, generator=generator)
        held_out = min(max(count // 10, 128), count // 4, 2048) if count >= _MIN_ROWS_TO_SPLIT else 0
        points = torch.cat([points[:, :size] - points[:, :size].mean(dim=0), points[:, size:]], dim=-1)
        return cls(points.float(), y.float(), weight.float(), shuffled[held_out:], shuffled[:held_out], loss)


def standardised(y: Tensor, weight: Tensor) -> Tensor:
    """Targets [n, c] in weighted standard deviations from their mean; weights have mean 1."""
    mean = (weight.unsqueeze(-1) * y).mean(dim=0)
    deviation = (weight.unsqueeze(-1) * (y - mean).square()).mean(dim=0).sqrt()
    return (y - mean) / torch.where(deviation > 0, deviation, 1.0)


class Stretch(nn.Module):
    """Points in units of the bandwidth: points · diag(exp(log_stretch)) · mixingᵀ, then indicators of the codes.

    The inner product of two rows' indicators is, up to a constant, minus what their codes subtract from a log weight:
    exp(2 · log_root) for different unordered codes, as much for each step between ordered ones.
    """

    column: Tensor  # [indicators]: the column of codes of each
    code: Tensor  # [indicators]
    ordered: Tensor  # [indicators]

    def __init__(self, size: int, codes: Sequence[Tensor] = (), ordered: Sequence[bool] = ()) -> None:
        super().__init__()
        self.log_stretch = nn.Parameter(torch.zeros(size))
        self.mixing = nn.Parameter(torch.eye(size))
        self.log_root = nn.Parameter(torch.zeros(len(codes)))
        counts = torch.tensor([len(each) for each in codes], dtype=torch.long)
        self.register_buffer("column", torch.arange(len(codes)).repeat_interleave(counts))  # [indicators]
        self.register_buffer("code", torch.cat([torch.empty(0), *codes]))
        self.register_buffer("ordered", torch.tensor(ordered, dtype=torch.bool)[self.column])

    @classmethod
    def of(cls, rows: Rows) -> Self:
        """A metric with an indicator for each code; of very many unordered ones, for those that most rows have."""
        size, found = rows.points.shape[-1] - len(rows.ordered), []
        for column, ordered in zip(rows.points[:, size:].mT, rows.ordered, strict=True):
            codes, count = column.unique(return_counts=True)
            if ordered:  # a step for each, also where no row has it
                codes = torch.arange(codes[-1] + 1)
            else:  # a code that occurs once is equal to no other row's
                codes = codes[count > 1] if len(codes) <= _MOST_CODES else codes[count.topk(_MOST_CODES).indices]
            found.append(codes.float())
        return cls(size, found, rows.ordered)

    def forward(self, points: Tensor) -> Tensor:
        size = len(self.log_stretch)
        stretched = (points[..., :size] * self.log_stretch.exp()) @ self.mixing.mT
        if not len(self.code):
            return stretched
        code, root = points[..., size:][..., self.column], self.log_root.exp()[self.column]  # [..., indicators]
        same = (code == self.code) * torch.where(self.ordered, math.sqrt(math.log(2)), root)
        step = torch.where(code >= self.code, root, -root)[..., self.ordered] / math.sqrt(2)
        return torch.cat([stretched, same, step], dim=-1)

    @torch.no_grad()
    def widen(self, factor: float) -> None:
        """Multiply the bandwidth by a factor."""
        self.log_stretch.sub_(math.log(factor))
        self.log_root.sub_(math.log(factor))

    @torch.no_grad()
    def bandwidth(self, metric: str) -> Tensor:
        """H, as a vector or a matrix."""
        widths = (-self.log_stretch.double()).exp()
        return widths.unsqueeze(-1) * torch.linalg.inv(self.mixing.double()) if metric == "full" else widths

    @torch.no_grad()
    def penalty(self) -> Tensor:
        """What codes subtract from a log weight, [g]."""
        return (2 * self.log_root.double()).exp()


@dataclass(frozen=True)
class CodedScore:
    """A kernel of the first columns, plus the inner product of the last `codes` ones."""

    kernel: Score
    codes: int = 0

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        size = query.shape[-1] - self.codes
        return self.kernel(query[..., :size], key[..., :size]) + query[..., size:] @ key[..., size:].mT


@dataclass(frozen=True)
class SameDtypeGaussian:
    """The same for a Gaussian of bandwidth 1, in the dtype of the points: float32 is enough, and faster."""

    codes: int = 0
    width = 1

    def as_dot(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, float]:
        size = query.shape[-1] - self.codes
        long_query, long_key, scale = Gaussian(1.0).as_dot(query[..., :size], key[..., :size])
        long_query, long_key = long_query.to(query.dtype), long_key.to(key.dtype)
        if not self.codes:
            return long_query, long_key, scale
        query, key = query[..., size:] / scale, key[..., size:]
        return torch.cat([long_query, query], dim=-1), torch.cat([long_key, key], dim=-1), scale

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        query, key, scale = self.as_dot(query, key)
        return (query * scale) @ key.mT


@dataclass(frozen=True)
class Trial:
    """Rows to predict from other rows: the loss of a metric. A row that is among the keys too does not see itself."""

    sample: Sample
    rows: Tensor  # [q]
    keys: Tensor  # [k]
    kernel: Score | None  # a kernel of bandwidth 1; None for the Gaussian
    order: int
    overlap: bool  # whether some rows are among the keys

    def prediction(self, model: Stretch) -> Tensor:
        """The rows predicted from the keys, `[q, c]`."""
        query, key = model(self.sample.points[self.rows]), model(self.sample.points[self.keys])
        value, mask, codes = self.sample.y[self.keys], self.mask(), query.shape[-1] - len(model.log_stretch)
        score = SameDtypeGaussian(codes) if self.kernel is None else CodedScore(self.kernel, codes)
        if self.order == 0:
            return attend(query, key, value, score=score, mask=mask)
        # torch's fused kernel would pad the query to the length of the many values of a linear fit.
        return local_linear(query, key, value, score=score, mask=mask, engine="stream", codes=codes)

    def loss(self, model: Stretch) -> Tensor:
        """The weighted mean of the rows' errors."""
        return self.sample.loss.mean(self.prediction(model), self.sample.y[self.rows], self.sample.weight[self.rows])

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
    """One gradient descent: of which parameters, for which fit, with what number of keys."""

    parameters: tuple[str, ...]
    order: int
    keys: int
    steps: int
    rate: float


def plan_stages(metric: str, order: int, rows: int, categories: bool = False) -> list[_Stage]:
    """The stages for this number of training rows, from coarse to fine."""
    if metric == "scalar" and not categories:
        return []
    keys = min(KEYS, rows - batch_size(rows))
    stretch = ("log_root",) if metric == "scalar" else ("log_stretch", "log_root")
    stages = [_Stage(stretch, 0, keys, STRETCH_STEPS, 0.1)]
    if metric == "full":
        stages.append(_Stage(("mixing",), 0, keys, MIXING_STEPS, 0.03))
    last = stages[-1]
    if order == 1:
        stages.append(last._replace(order=1, steps=LINEAR_STEPS))
    elif rows > KEYS:
        stages.append(last._replace(keys=rows, steps=LAST_STEPS, rate=last.rate / 3))
    return stages


def _run_stage(stage: _Stage, model: Stretch, sample: Sample, generator: torch.Generator, progress: bool) -> History:
    """Run one stage, starting at the best factor. If the validation error grew, undo the stage."""
    validation = _validation_trial(sample, stage.order, stage.keys)
    before = _scale_to_best(model, validation)
    state = copied_state(model)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in stage.parameters)
    optimizer = torch.optim.Adam(map(model.get_parameter, stage.parameters), lr=stage.rate, betas=(0.9, 0.98))
    history = train(
        model,
        lambda epoch: [draw_trial(sample, stage, generator) for _ in range(stage.steps // _EPOCHS)],
        lambda trial: trial.loss(model),
        Recipe(optimizer, _EPOCHS, CosineAnnealingLR(optimizer, stage.steps, stage.rate / 20), clip=1.0),
        validate=lambda: validation.loss(model).sqrt().item(),
        monitor=Monitor("learning the metric", progress),
    )
    if history.validation[history.best_epoch] > before:
        model.load_state_dict(state)
    return history


def draw_trial(sample: Sample, stage: _Stage, generator: torch.Generator) -> Trial:
    """Random rows to predict, from all others or from random keys."""
    shuffled = sample.train[torch.randperm(len(sample.train), generator=generator)]
    if stage.keys == len(shuffled):
        rows = shuffled[: min(BATCH, _rows_per_call(stage.keys))]
        return Trial(sample, rows, sample.train, None, stage.order, overlap=True)
    first = batch_size(len(shuffled))
    rows, keys = shuffled[:first], shuffled[first : first + stage.keys]
    return Trial(sample, rows, keys, None, stage.order, overlap=False)


def batch_size(rows: int) -> int:
    """The number of rows that are predicted in one step."""
    return min(BATCH, -(-rows // 4))


def _validation_trial(sample: Sample, order: int, keys: int, kernel: Score | None = None) -> Trial:
    """Validation rows predicted from training rows; if there are none, each training row from the others."""
    if len(sample.validation):
        rows = sample.validation[: 4 * _rows_per_call(keys)]
        return Trial(sample, rows, sample.train[:keys], kernel, order, overlap=False)
    return Trial(sample, sample.train, sample.train, kernel, order, overlap=True)


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
