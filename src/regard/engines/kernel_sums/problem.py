"""What the engines of kernels are given: points in units of the bandwidth, as float64 numbers.

A kernel's weight between a query and a key is

    weight[key] · K(‖query - key‖) · exp(-Σ (slope · |code - code'| + jump · [code ≠ code']))

where the last factor is that of the categorical columns, if there are any.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.engines.job import Job
from regard.kernels import Boxcar, Epanechnikov, Gaussian, Kernel, Laplace, Mixed, Tricube
from regard.masks import Mask, as_bias, others, parts_of, two_dimensional
from regard.parts import Attended
from regard.weighing import softmax

GAUSSIAN, LAPLACE, EPANECHNIKOV, BOXCAR, TRICUBE = range(5)
KINDS: dict[type[Kernel], int] = {
    Gaussian: GAUSSIAN,
    Laplace: LAPLACE,
    Epanechnikov: EPANECHNIKOV,
    Boxcar: BOXCAR,
    Tricube: TRICUBE,
}
LIGHTEST = 600.0
"""How far the logs of the keys' weights may lie apart: e⁻⁶⁰⁰ is still a number."""
Array = Any
"""A NumPy array; shapes are in the comments."""


def no_codes() -> Array:
    """What slope and jump are where there is no categorical column."""
    return np.empty(0)


@dataclass(frozen=True)
class Points:
    """Queries, keys and values, all float64."""

    query: Array  # [queries, features], in bandwidths
    key: Array  # [keys, features]
    value: Array  # [keys, values]
    kind: int = GAUSSIAN
    weight: Array | None = None  # [keys], positive; 1 where it is not given
    own: Array | None = None  # [queries]: the key that a query must not see, or -1
    query_code: Array | None = None  # [queries, columns], whole numbers
    key_code: Array | None = None  # [keys, columns]
    slope: Array = field(default_factory=no_codes)  # [columns]
    jump: Array = field(default_factory=no_codes)  # [columns]

    @property
    def columns(self) -> int:
        """The number of categorical columns."""
        return len(self.jump)

    def asked(self, rows: Array) -> "Points":
        """The same for some of the queries."""
        code = None if self.query_code is None else self.query_code[rows]
        own = None if self.own is None else self.own[rows]
        return replace(self, query=self.query[rows], query_code=code, own=own)


class Pooled(NamedTuple):
    """Means of the values, and the log of the summed weight. Who sees nothing: mean 0, log weight -inf."""

    mean: Array  # [queries, values]
    log_weight: Array  # [queries]


class Moments(NamedTuple):
    """Weighted means of the values and of the offset u = key - query, in bandwidths."""

    log_weight: Array  # [queries]
    mean: Array  # [queries, values]               of y
    offset: Array  # [queries, features]           of u
    square: Array  # [queries, features, features] of u uᵀ
    product: Array  # [queries, features, values]  of u yᵀ


def standards(value: Array) -> tuple[Array, Array]:
    """Mean and standard deviation of the columns; of a constant one its value and 0, so that it stays exact."""
    if not len(value):
        return np.zeros(value.shape[1]), np.zeros(value.shape[1])
    constant = value.min(axis=0) == value.max(axis=0)
    return np.where(constant, value[0], value.mean(axis=0)), np.where(constant, 0.0, value.std(axis=0))


def reason_against(engine: str, job: Job) -> str | None:
    """Why an engine of kernels cannot do a job, in words."""
    if kernel_of(job) is None:
        return f"{engine} needs one of the kernels in regard.scores, got {job.score!r}"
    if job.weigh is not softmax:
        return f"{engine} weighs by softmax only, got {getattr(job.weigh, '__name__', job.weigh)}"
    if job.dropout:
        return f"{engine} takes no dropout, got {job.dropout}"
    if not all(part is others or of_keys(part, job) for part in parts_of(job.mask)):
        return f"{engine} takes no mask but regard.masks.others, or one of the keys alone, [k] or [1, k]"
    if not heavy_enough(job):
        return f"{engine} takes biases of keys that differ by less than {LIGHTEST:g}, or are -inf"
    if job.query.device.type != "cpu":
        return f"{engine} runs on the CPU, got tensors on {job.query.device}"
    if torch.is_grad_enabled() and any(x.requires_grad for x in learning(job)):
        return f"{engine} gives no gradients, and something here needs one"
    if not all(bool(x.isfinite().all()) for x in (job.query, job.key, job.value)):
        return f"{engine} needs finite numbers, got NaN or infinity"
    return None


def kernel_of(job: Job) -> Kernel | None:
    """The kernel of the coordinates, if the score is one of ours."""
    kernel = job.score.kernel if type(job.score) is Mixed else job.score
    return kernel if isinstance(kernel, Kernel) and type(kernel) in KINDS else None


def of_keys(part: Mask, job: Job) -> bool:
    """Whether a mask is a tensor with one entry a key, for all queries alike."""
    return isinstance(part, Tensor) and two_dimensional(part).shape[:-1].numel() == 1


def heavy_enough(job: Job) -> bool:
    """Whether no key that is seen is so light that its weight underflows."""
    bias = bias_of(job)
    seen = bias[bias > -np.inf]
    return not len(seen) or bool(seen.max() - seen.min() < LIGHTEST)


def learning(job: Job) -> Iterator[Tensor]:
    """All that a gradient could be asked of."""
    yield from (job.query, job.key, job.value)
    yield from (part for part in parts_of(job.mask) if isinstance(part, Tensor))
    if isinstance(job.score, torch.nn.Module):
        for module in job.score.modules():
            yield from (x for x in vars(module).values() if isinstance(x, Tensor))
            yield from module.parameters(recurse=False)


def from_job(job: Job, pool: Callable[[Points], Pooled]) -> Attended:
    """A job done as one or more sets of points, one for each place in the leading dimensions."""
    kernel = kernel_of(job)
    assert kernel is not None  # the engine has been asked whether it refuses
    mixed = job.score if isinstance(job.score, Mixed) else None
    columns = len(mixed.jump) if mixed else 0
    with torch.no_grad():
        numbers = [x[..., : x.shape[-1] - columns] for x in (job.query, job.key)]
        tensors = (
            *kernel.stretch(*numbers),
            *(x[..., x.shape[-1] - columns :] for x in (job.query, job.key)),
            job.value,
        )
    spread = [x.detach().expand(*job.leading, *x.shape[-2:]).double().numpy() for x in tensors]
    query, key, query_code, key_code, value = spread
    weight, highest, seen = key_weights(job)
    own = None
    if any(part is others for part in parts_of(job.mask)):
        place = np.where(seen, np.cumsum(seen) - 1, -1)
        own = np.append(place, np.full(max(0, job.queries - job.keys), -1))[: job.queries]
    mean, log_weight = np.empty([*job.shape[:-1], value.shape[-1]]), np.empty(job.shape[:-1])
    for lead in np.ndindex(*job.leading):
        mean[lead], log_weight[lead] = pool(
            Points(
                query[lead],
                key[lead][seen],
                value[lead][seen],
                KINDS[type(kernel)],
                weight,
                own,
                query_code[lead] if mixed else None,
                key_code[lead][seen] if mixed else None,
                *((mixed.slope.detach().double().numpy(), mixed.jump.detach().double().numpy()) if mixed else ()),
            )
        )
    dtype = job.value.dtype
    return Attended(torch.from_numpy(mean).to(dtype), torch.from_numpy(log_weight + highest).to(dtype))


def key_weights(job: Job) -> tuple[Array | None, float, Array]:
    """The weights that masks give to keys, relative to exp of the number behind them, and which keys have any."""
    if not any(isinstance(part, Tensor) for part in parts_of(job.mask)) or not job.keys:
        return None, 0.0, np.ones(job.keys, bool)
    bias = bias_of(job)
    seen = bias > -np.inf
    highest = float(bias.max()) if seen.any() else 0.0
    return np.exp(bias[seen] - highest), highest, seen


def bias_of(job: Job) -> Array:
    """What masks add to the scores of each key, [keys]."""
    bias = np.zeros(job.keys)
    for part in parts_of(job.mask):
        if isinstance(part, Tensor):
            bias = bias + as_bias(part.detach().cpu()).reshape(-1).double().numpy()
    return bias
