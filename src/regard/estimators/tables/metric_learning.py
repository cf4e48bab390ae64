"""Learns what "near" means: the bandwidth of a kernel regression, by the error of rows left out.

The distance is u = ‖H⁻¹(query - key)‖, and H is one number ("scalar"), one a feature ("diagonal") or a
matrix ("full"). What is made small is the squared error of every row, predicted from the others:

    Σ weight · ‖y - attend(row, other rows, their y; H)‖²

A row is never among its own keys, because with itself in sight the best bandwidth is 0. The gradient
goes through `attend`, a few hundred rows at a time, from the coarse to the fine:

* one factor, searched and not learned: too narrow a kernel sees nobody, and has no gradient to say so;
* then one stretch a feature, which finds out what does not matter;
* then a matrix times that, which turns the axes;
* and, for a local linear fit, the same again with its own error.

Many rows are first asked against some thousand of the others. Among fewer keys the best bandwidth is
wider than among all, so what comes last sees all of them. Some rows are held out, to stop in time and
to set the last factor: a matrix has enough numbers to fit a small table too well.

A kernel without a smooth slope (a boxcar has none at all) takes the shape of its metric from the
Gaussian, and has its own width searched: what a kernel's form changes is the width, hardly the shape.
"""

import copy
import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR

from regard.estimators.tables.metric_small_steps import one_thread, subnormals_as_zero
from regard.estimators.tables.metric_trials import Sample, Split, Trial, held_out, standardised
from regard.kernels import Mixed
from regard.scores import Gaussian, InnerProduct, Score, is_inner_product
from regard.training import History, Monitor, Recipe, copied_state, train

METRICS = ("scalar", "diagonal", "full")
BATCH = 512
"""Rows predicted in one step; no more than a quarter of all, so that enough are left to predict them from."""
KEYS = 4096
"""Keys drawn for a step, of those rows that are not predicted in it."""
PAIRS = 2**22
"""Pairs of query and key in one step against all keys."""
STRETCH_STEPS, MIXING_STEPS, LINEAR_STEPS, LAST_STEPS = 200, 400, 150, 100
"""Steps of each stage: of a stretch a feature, of the matrix, of a linear fit, and against all keys."""
EPOCHS = 10
"""Validations a stage."""
GRID = tuple(range(5, -6, -1))
"""Powers of 2 that the bandwidth is tried at, the wide first: of equals, it is taken."""


class Learned(NamedTuple):
    """A bandwidth, and how it was come by."""

    bandwidth: Tensor  # [], [d] or [d, d], float64
    error: float  # root mean squared error of rows left out, in standard deviations of y
    history: tuple[History, ...]  # of each stage; none for "scalar", which is searched


def learn(
    points: Tensor,
    y: Tensor,
    sample_weight: Tensor | None = None,
    *,
    start: Tensor,
    metric: str,
    order: int,
    make_score: Callable[[Tensor], Score] = Gaussian,
    codes: int = 0,
    seed: int = 0,
    progress: bool = True,
) -> Learned:
    """The bandwidth that predicts rows left out best.

    points `[n, d]`, y `[n, c]`, sample_weight `[n]`. `start` is where to look first, a number or one a
    feature; `order` is 0 for the weighted average, 1 for the local linear fit. The same seed gives the
    same bandwidth. The last `codes` columns of the points are categories, left as they are: then `make_score`
    gives a `regard.kernels.Mixed`.

    >>> import torch
    >>> x = torch.rand(300, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    >>> wave = (6 * x[:, :1]).sin()  # the second feature says nothing
    >>> bandwidth = learn(x, wave, start=torch.tensor(0.3), metric="diagonal", order=0).bandwidth
    >>> bool(bandwidth[1] > 5 * bandwidth[0])
    True
    """
    check_settings(points, y, sample_weight, start, metric, order, codes)
    generator = torch.Generator().manual_seed(seed)
    sample = standardised(points, y, sample_weight)
    split = held_out(len(sample.points), generator)
    score = make_score(torch.ones((), dtype=torch.float64))
    smooth = smoothed(score)
    model = Stretch(points.shape[-1] - codes, start)
    with one_thread(), subnormals_as_zero():
        plan = stages(metric, order, split)
        history = [run(stage, model, sample, split, smooth, generator, progress) for stage in plan]
        last = held_trial(sample, split, smooth if is_inner_product(score) else score, order, keys=len(split.seen))
        error = take_best_factor(model, last)
    return Learned(model.bandwidth(metric, start), error, tuple(history))


def smoothed(score: Score) -> Score:
    """What is learned by: the score itself if it is smooth, else a Gaussian in its place."""
    if isinstance(score, Mixed):
        return Mixed(Gaussian(1.0), score.slope, score.jump)
    return Rounded(score if is_inner_product(score) else Gaussian(1.0))


class Stretch(nn.Module):
    """Points in units of the bandwidth: points · diag(exp(log_stretch)) · mixingᵀ; codes behind them stay."""

    def __init__(self, size: int, start: Tensor) -> None:
        super().__init__()
        self.log_stretch = nn.Parameter(-start.detach().log().to(torch.float32).expand(size).clone())
        self.mixing = nn.Parameter(torch.eye(size))

    def forward(self, points: Tensor) -> Tensor:
        stretched = (points[..., : self.size] * self.log_stretch.exp()) @ self.mixing.mT
        return torch.cat([stretched, points[..., self.size :]], dim=-1)

    @property
    def size(self) -> int:
        return len(self.log_stretch)

    @torch.no_grad()
    def widen(self, factor: float) -> None:
        self.log_stretch.sub_(math.log(factor))

    @torch.no_grad()
    def bandwidth(self, metric: str, start: Tensor) -> Tensor:
        """H, as a number, a vector or a matrix."""
        widths = (-self.log_stretch.double()).exp()
        if metric == "full":
            matrix: Tensor = widths.unsqueeze(-1) * torch.linalg.inv(self.mixing.double())
            return matrix
        return widths[0] if metric == "scalar" and start.ndim == 0 else widths


class Rounded:
    """A score that is an inner product, in the precision of the points: a gradient needs no more, and has it sooner."""

    width = 1

    def __init__(self, score: InnerProduct) -> None:
        self.score = score

    def as_dot(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, float]:
        long_query, long_key, scale = self.score.as_dot(query, key)
        return long_query.to(query.dtype), long_key.to(key.dtype), scale

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        query, key, scale = self.as_dot(query, key)
        return (query * scale) @ key.mT


class Stage(NamedTuple):
    """A descent: of which parameter, for which fit, against how many keys."""

    parameter: str
    order: int
    keys: int
    steps: int
    rate: float


def stages(metric: str, order: int, split: Split) -> list[Stage]:
    """From the coarse to the fine."""
    if metric == "scalar":
        return []
    rows = len(split.seen)
    keys = min(KEYS, rows - predicted(rows))
    plan = [Stage("log_stretch", 0, keys, STRETCH_STEPS, 0.1)]
    if metric == "full":
        plan.append(Stage("mixing", 0, keys, MIXING_STEPS, 0.03))
    last = plan[-1]
    if order == 1:
        plan.append(last._replace(order=1, steps=LINEAR_STEPS))
    elif rows > KEYS:
        plan.append(last._replace(keys=rows, steps=LAST_STEPS, rate=last.rate / 3))
    return plan


def run(
    stage: Stage, model: Stretch, sample: Sample, split: Split, score: Score, generator: torch.Generator, progress: bool
) -> History:
    """One stage, from the best factor on. One that made things worse is undone."""
    trial = held_trial(sample, split, score, stage.order, stage.keys)
    before = take_best_factor(model, trial)
    state = copied_state(model)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name == stage.parameter)
    optimizer = torch.optim.Adam([model.get_parameter(stage.parameter)], lr=stage.rate, betas=(0.9, 0.98))
    history = train(
        model,
        lambda epoch: [drawn(sample, split, score, stage, generator) for _ in range(stage.steps // EPOCHS)],
        lambda trial: trial.loss(model),
        Recipe(optimizer, EPOCHS, CosineAnnealingLR(optimizer, stage.steps, stage.rate / 20), clip=1.0),
        validate=lambda: trial.loss(model).sqrt().item(),
        monitor=Monitor(f"learning the metric ({stage.parameter.replace('_', ' ')})", progress),
    )
    if history.validation[history.best_epoch] > before:
        model.load_state_dict(state)
    return history


def drawn(sample: Sample, split: Split, score: Score, stage: Stage, generator: torch.Generator) -> Trial:
    """Rows drawn to be predicted, from all the others or from some that are drawn too."""
    shuffled = split.seen[torch.randperm(len(split.seen), generator=generator)]
    if stage.keys == len(shuffled):
        return Trial(sample, shuffled[: min(BATCH, batch(stage.keys))], split.seen, score, stage.order, overlap=True)
    first = predicted(len(shuffled))
    rows, keys = shuffled[:first], shuffled[first : first + stage.keys]
    return Trial(sample, rows, keys, score, stage.order, overlap=False)


def predicted(rows: int) -> int:
    """How many of the rows are predicted in one step."""
    return min(BATCH, -(-rows // 4))


def held_trial(sample: Sample, split: Split, score: Score, order: int, keys: int) -> Trial:
    """The rows held out, predicted from those seen; where none are held out, each of those from the others."""
    if len(split.held):
        rows = split.held[: 4 * batch(keys)]
        return Trial(sample, rows, split.seen[:keys], score, order, overlap=False)
    return Trial(sample, split.seen, split.seen, score, order, overlap=True)


def batch(keys: int) -> int:
    """How many rows are asked at a time against so many keys."""
    return max(64, PAIRS // keys)


@torch.no_grad()
def take_best_factor(model: Stretch, trial: Trial) -> float:
    """Widens the bandwidth by the factor that predicts best, and gives the root mean squared error there.

    Searched on a grid from wide to narrow, then around its best: the error has many dips, and is flat
    where nobody is seen.
    """

    def error(exponent: float) -> float:
        widened = copy.deepcopy(model)
        widened.widen(2.0**exponent)
        found = trial.loss(widened).sqrt().item()
        return found if math.isfinite(found) else math.inf

    found = {float(exponent): error(exponent) for exponent in GRID}
    for step in (0.5, 0.25, 0.125):
        best = min(found, key=found.__getitem__)
        found |= {exponent: error(exponent) for exponent in (best + step, best - step)}
    best = min(found, key=found.__getitem__)
    model.widen(2.0**best)
    return found[best]


def check_settings(
    points: Tensor, y: Tensor, sample_weight: Tensor | None, start: Tensor, metric: str, order: int, codes: int
) -> None:
    """What must hold, before minutes are spent."""
    if metric not in METRICS:
        raise ValueError(f"metric must be one of {', '.join(METRICS)}, got {metric!r}")
    if order not in (0, 1):
        raise ValueError(f"order must be 0 (average) or 1 (local linear), got {order!r}")
    if points.ndim != 2 or y.ndim != 2 or len(points) != len(y):
        raise ValueError(f"points must be [n, d] and y [n, c], got {list(points.shape)} and {list(y.shape)}")
    if sample_weight is not None and sample_weight.shape != points.shape[:1]:
        raise ValueError(f"sample_weight must be [{len(points)}], got {list(sample_weight.shape)}")
    counting = len(points) if sample_weight is None else int((sample_weight > 0).sum())
    if counting < 2:
        raise ValueError(f"leaving one out needs two rows with a weight above 0, got {counting}")
    size = points.shape[1] - codes
    if start.shape not in ((), (size,)) or not bool((start > 0).all()):
        raise ValueError(f"start must be a positive number, or one for each of {size} features, got {start}")
