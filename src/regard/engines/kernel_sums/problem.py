"""What the engines for kernels compute: weighted means over points, with coordinates in units of the bandwidth.

The weight between a query and a key is

    weight[key] · K(‖query - key‖) · exp(-Σ (per_step · |code - code'| + per_change · [code ≠ code']))

where the last factor is that of the categorical columns, if there are any (`regard.kernels.Mixed`).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.engines.job import Job
from regard.kernels import KERNELS, Gaussian, Kernel, Mixed
from regard.masks import Mask, as_bias, others
from regard.masks.evaluation import parts_of
from regard.masks.kinds import two_dimensional
from regard.parts import Attended
from regard.weighing import softmax

Floats = NDArray[np.float64]
Floats32 = NDArray[np.float32]
Integers = NDArray[np.intp]
Booleans = NDArray[np.bool_]
Rows = slice | Integers
"""Some of the rows: a slice copies nothing."""
_LARGEST_SPREAD = 600.0
"""How much the log weights of two keys may differ: e⁻⁶⁰⁰ does not underflow."""


@dataclass(frozen=True)
class Points:
    """Queries, keys and values, and a kernel between them."""

    query: Floats  # [queries, features], in bandwidths
    key: Floats  # [keys, features]
    value: Floats  # [keys, values]
    kernel: type[Kernel] = Gaussian
    weight: Floats | None = None  # [keys], positive; default 1
    left_out: Integers | None = None  # [queries]: the key that a query must not see, or -1
    query_code: Floats | None = None  # [queries, columns], integers
    key_code: Floats | None = None  # [keys, columns]
    per_step: Floats = field(default_factory=lambda: np.empty(0))  # [columns]
    per_change: Floats = field(default_factory=lambda: np.empty(0))  # [columns]

    @property
    def features(self) -> int:
        """The number of numeric columns."""
        return int(self.query.shape[1])

    @property
    def columns(self) -> int:
        """The number of categorical columns."""
        return len(self.per_change)

    @property
    def pairs(self) -> int:
        return len(self.query) * len(self.key)

    def for_queries(self, rows: Rows) -> "Points":
        """The same problem for some of the queries."""
        code = None if self.query_code is None else self.query_code[rows]
        left_out = None if self.left_out is None else self.left_out[rows]
        return replace(self, query=self.query[rows], query_code=code, left_out=left_out)


class Means(NamedTuple):
    """Means of the values, and the log of the summed weight. A query that sees no key: mean 0, log weight -inf."""

    mean: Floats  # [queries, values]
    log_weight: Floats  # [queries]


class Moments(NamedTuple):
    """Weighted means of the values and of the offset u = key - query, in bandwidths."""

    log_weight: Floats  # [queries]
    mean: Floats  # [queries, values]               of y
    offset: Floats  # [queries, features]           of u
    square: Floats  # [queries, features, features] of u uᵀ
    product: Floats  # [queries, features, values]  of u yᵀ


class Blocks(NamedTuple):
    """Blocks of neighbouring points, or groups of such blocks, and their bounding boxes."""

    starts: Integers  # [blocks + 1]: where each starts, and the end of the last one
    low: Floats  # [features + columns, blocks]
    high: Floats


class Data(NamedTuple):
    """All that the loops of `pairs` read. Points have coordinates in bandwidths, followed by codes."""

    queries: Floats  # [features + columns, queries]
    query_starts: Integers  # where each block of queries starts, and the end of the last one
    left_out: Integers  # [queries]: the key that each must not see, or -1
    keys: Floats  # [features + columns, keys]
    blocks: Blocks  # of keys
    groups: Blocks  # of blocks
    column: Floats  # [1 + values, keys]: the weights of the keys, of which the largest is 1; and the values
    column32: Floats32  # in float32, the weights, and the values times them; empty if float32 is not used
    penalty: Floats  # [2, columns]: subtracted from the log weight for each step between codes, and for any difference
    compact: bool  # whether the kernel is 0 from u = 1 on
    scale: float  # of coordinates in float32
    moments: bool
    float32_from: float  # the summed weight from which float32 is precise enough; inf: float64 only
    skipped: float  # a block is skipped if its largest weight is at most this fraction of the sum so far


def log_kernel(kernel: type[Kernel], square: Floats) -> Floats:
    """log K of squared distances."""
    profile = kernel.profile
    if not profile.compact:
        return np.asarray(profile.arithmetic(np.sqrt(square), square))
    inside = square < 1
    square = np.where(inside, square, 0.0)
    return np.where(inside, np.log(profile.arithmetic(np.sqrt(square), square)), -np.inf)


def standardise(value: Floats) -> tuple[Floats, Floats, Floats]:
    """Columns in standard deviations from their mean, which neither overflow nor underflow; the means; the deviations.

    Of a constant column these are 0, its value and 0, so that it stays exact.
    """
    if not len(value):
        return value, np.zeros(value.shape[1]), np.zeros(value.shape[1])
    constant = value.min(axis=0) == value.max(axis=0)
    mean, deviation = np.where(constant, value[0], value.mean(axis=0)), np.where(constant, 0.0, value.std(axis=0))
    return (value - mean) / np.where(constant, 1.0, deviation), mean, deviation


@dataclass(frozen=True)
class KernelEngine:
    """What `Pairs` and `Gauss` share: a job of `attend` as one problem for each index of the leading dimensions."""

    tolerance: float = 1e-6  # a fraction of the standard deviation of the values
    name: ClassVar[str]
    _functions: ClassVar[
        tuple[Callable[[Points, float], str], Callable[[Points, float], Means]]
    ]  # `algorithm`, `means`

    def __post_init__(self) -> None:
        if not 0 <= self.tolerance < 1:
            raise ValueError(f"tolerance must be at least 0 and below 1, got {self.tolerance}")

    def refuses(self, job: Job) -> str | None:
        return _reason_against(self.name, job)

    def algorithm(self, job: Job) -> str:
        algorithm, _ = self._functions
        names = {algorithm(points, self.tolerance) for _, points in _points_of(job, _key_bias(job))}
        return ", or ".join(sorted(names))

    def attend(self, job: Job) -> Tensor:
        return self.attend_parts(job).mean

    def attend_parts(self, job: Job) -> Attended:
        bias = _key_bias(job)
        mean, log_weight = np.empty([*job.shape[:-1], job.value.shape[-1]]), np.empty(job.shape[:-1])
        _, means = self._functions
        for lead, points in _points_of(job, bias):
            mean[lead], log_weight[lead] = means(points, self.tolerance)
        dtype = job.value.dtype
        return Attended(torch.from_numpy(mean).to(dtype), torch.from_numpy(log_weight + _highest(bias)).to(dtype))


def _reason_against(engine: str, job: Job) -> str | None:
    """Why an engine for kernels cannot do a job; None if it can."""
    if _kernel_of(job) is None:
        return f"{engine} needs one of the kernels in regard.scores, got {job.score!r}"
    if job.weigh is not softmax:
        return f"{engine} weighs by softmax only, got {getattr(job.weigh, '__name__', job.weigh)}"
    if job.dropout:
        return f"{engine} does not support dropout, got {job.dropout}"
    if not all(part is others or _is_per_key(part) for part in parts_of(job.mask)):
        return f"{engine} supports only the mask regard.masks.others, and masks with one entry per key, [k] or [1, k]"
    if not _biases_are_close(job):
        return f"{engine} needs biases of keys that differ by less than {_LARGEST_SPREAD:g}, or are -inf"
    if job.query.device.type != "cpu":
        return f"{engine} runs on the CPU, got tensors on {job.query.device}"
    if torch.is_grad_enabled() and any(x.requires_grad for x in _learned_tensors(job)):
        return f"{engine} computes no gradients, but an input requires one"
    if not all(bool(x.isfinite().all()) for x in (job.query, job.key, job.value)):
        return f"{engine} needs finite numbers, got NaN or infinity"
    return None


def _kernel_of(job: Job) -> Kernel | None:
    """The kernel of the numeric columns, if the score is one of ours."""
    kernel = job.score.kernel if type(job.score) is Mixed else job.score
    return kernel if isinstance(kernel, Kernel) and type(kernel) in KERNELS.values() else None


def _is_per_key(part: Mask) -> bool:
    """Whether a mask is a tensor with one entry per key, the same for all queries."""
    return isinstance(part, Tensor) and two_dimensional(part).shape[:-1].numel() == 1


def _biases_are_close(job: Job) -> bool:
    """Whether the weight of no visible key underflows relative to another's."""
    bias = _key_bias(job)
    visible = bias[bias > -np.inf]
    return not len(visible) or bool(visible.max() - visible.min() < _LARGEST_SPREAD)


def _learned_tensors(job: Job) -> Iterator[Tensor]:
    """All tensors that may need a gradient."""
    yield from (job.query, job.key, job.value)
    yield from (part for part in parts_of(job.mask) if isinstance(part, Tensor))
    if isinstance(job.score, torch.nn.Module):
        for module in job.score.modules():
            yield from (x for x in vars(module).values() if isinstance(x, Tensor))
            yield from module.parameters(recurse=False)


def _points_of(job: Job, bias: Floats) -> Iterator[tuple[tuple[int, ...], Points]]:
    """The index in the leading dimensions, and the problem there."""
    kernel = _kernel_of(job)
    assert kernel is not None  # `_reason_against` was asked before
    mixed = job.score if isinstance(job.score, Mixed) else None
    columns = len(mixed.per_change) if mixed else 0
    with torch.no_grad():
        numbers = [x[..., : x.shape[-1] - columns] for x in (job.query, job.key)]
        codes = [x[..., x.shape[-1] - columns :] for x in (job.query, job.key)]
        tensors = (*kernel.stretch(*numbers), *codes, job.value)
    expanded = [x.detach().expand(*job.leading, *x.shape[-2:]).double().numpy() for x in tensors]
    query, key, query_code, key_code, value = expanded
    per_step, per_change = (
        (x.detach().double().numpy() for x in (mixed.per_step, mixed.per_change)) if mixed else (np.empty(0),) * 2
    )
    visible = bias > -np.inf
    has_bias = any(isinstance(part, Tensor) for part in parts_of(job.mask))
    weight = np.exp(bias[visible] - _highest(bias)) if has_bias else None
    left_out = None
    if any(part is others for part in parts_of(job.mask)):
        index = np.where(visible, np.cumsum(visible) - 1, -1)  # of each key among the visible ones
        left_out = np.append(index, np.full(max(0, job.queries - job.keys), -1))[: job.queries]
    for lead in np.ndindex(*job.leading):
        yield (
            lead,
            Points(
                query[lead],
                key[lead][visible],
                value[lead][visible],
                type(kernel),
                weight,
                left_out,
                query_code[lead] if mixed else None,
                key_code[lead][visible] if mixed else None,
                per_step,
                per_change,
            ),
        )


def _highest(bias: Floats) -> float:
    """The largest bias; 0 if all are -inf."""
    return float(bias.max()) if (bias > -np.inf).any() else 0.0


def _key_bias(job: Job) -> Floats:
    """What masks add to the scores of each key, [keys]."""
    bias = np.zeros(job.keys)
    for part in parts_of(job.mask):
        if isinstance(part, Tensor):
            bias = bias + as_bias(part.detach().cpu()).reshape(-1).double().numpy()  # [k] or [1, k] -> [k]
    return bias
