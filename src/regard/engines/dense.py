"""The definition, with the whole matrix of weights: score, weigh, average.

`Dense` does it in torch for any job. `means` and `moments` do it in NumPy for kernel regression (`Points`), a block
of queries at a time: for few pairs that is faster than loading compiled loops.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from regard.compiled import dropout_hash
from regard.engines.job import Job, dropout_factor, masked, repeat_heads, scores_of, spans
from regard.engines.kernel_sums.problem import Floats, Means, Moments, Points, log_kernel
from regard.parts import Attended
from regard.torch_modes import compiling, transforming
from regard.weighing import BlockWeighing, Sinks, all_masked, softmax

BLOCK = 2**18
"""Pairs at a time in the NumPy sums."""
WHOLE_MATRIX = "dense: the whole matrix"
_WeightBlocks = Iterable[tuple[slice, Floats, Floats]]
"""Some queries, their normalised weights [queries, keys] and log weights [queries]; block after block."""


@dataclass(frozen=True)
class Dense:
    """Any score, mask and weighing, in memory q × k. Differentiable as often as its parts are.

    >>> import torch, regard
    >>> x = torch.randn(9, 4)
    >>> regard.attend(x, x, x, engine=Dense()).shape
    torch.Size([9, 4])
    """

    name = "dense"

    def refuses(self, job: Job) -> str | None:
        return None

    def algorithm(self, job: Job) -> str:
        return WHOLE_MATRIX

    def attend(self, job: Job) -> Tensor:
        job = job.repeated()
        weight = weights(job)
        if job.dropout and (compiling() or transforming()):
            weight = functional.dropout(weight, job.dropout)
        elif job.dropout:
            rows, columns, seed = slice(0, job.queries), slice(0, job.keys), dropout_hash.draw_seed()
            weight = weight * dropout_factor(job.shape, job.dropout, seed, rows, columns, weight)
        return (weight @ job.value).to(job.value.dtype)

    def attend_parts(self, job: Job) -> Attended:
        job = job.repeated()
        scores = masked_scores(job)
        empty = all_masked(scores)
        scores = scores.masked_fill(empty, 0.0)
        log_weight = torch.logsumexp(scores, dim=-1, keepdim=True) if job.keys else scores.sum(dim=-1, keepdim=True)
        weight = (scores - log_weight).exp().masked_fill(empty, 0.0)
        return Attended(weight @ job.value, log_weight.masked_fill(empty, -math.inf).squeeze(-1))


def masked_scores(job: Job, rows: slice | None = None, columns: slice | None = None) -> Tensor:
    """Masked scores of some queries and keys, by default all, `[..., q, k]`."""
    rows, columns = rows or slice(0, job.queries), columns or slice(0, job.keys)
    scores = scores_of(job.score, job.query[..., rows, :], repeat_heads(job.key[..., columns, :], job.groups))
    scores = masked(scores, job.mask_blocks(rows, columns))
    return scores.expand(*job.leading, rows.stop - rows.start, columns.stop - columns.start)


def weights(job: Job, rows: slice | None = None) -> Tensor:
    """The weights of some queries, by default all: the matrix itself, `[..., q, k]`."""
    scores = masked_scores(job, rows)
    known = job.weigh is softmax or isinstance(job.weigh, Sinks | BlockWeighing)
    # A user's weighing may not be able to take a query whose keys are all masked, and may give masked keys any weight.
    weight = job.weigh(scores if known else scores.masked_fill(all_masked(scores), 0.0))
    if not isinstance(weight, Tensor) or weight.shape != scores.shape:
        got = list(weight.shape) if isinstance(weight, Tensor) else type(weight).__name__
        raise ValueError(f"a weighing must return the shape of the scores, {list(scores.shape)}, got {got}")
    return weight if known else weight.masked_fill(scores == -math.inf, 0.0)


def algorithm(points: Points, tolerance: float, *, moments: bool = False) -> str:
    """What `means` and `moments` run."""
    return WHOLE_MATRIX


def means(points: Points, tolerance: float = 0.0) -> Means:
    """Weighted means of the values and log weights; exact, whatever the tolerance."""
    return mean_blocks(weight_blocks(points), points.value)


def moments(points: Points, tolerance: float = 0.0) -> Moments:
    """Weighted means of the values, the offsets and their products; exact, whatever the tolerance."""
    return moment_blocks(weight_blocks(points, points.features), points.query, points.key, points.value)


def mean_blocks(blocks: _WeightBlocks, value: Floats) -> Means:
    """Means and log weights from given weights."""
    parts = [(weight @ value, log_weight) for _, weight, log_weight in blocks]
    if not parts:
        return Means(np.empty((0, value.shape[1])), np.empty(0))
    return Means(*(np.concatenate(part) for part in zip(*parts, strict=True)))


def moment_blocks(blocks: _WeightBlocks, query: Floats, key: Floats, value: Floats) -> Moments:
    """Moments from given weights."""
    features, values = query.shape[1], value.shape[1]
    parts = []
    for rows, weight, log_weight in blocks:
        offset = key - query[rows, None]  # [q, k, d]
        weighted = (weight[:, :, None] * offset).transpose(0, 2, 1)  # [q, d, k]
        parts.append((log_weight, weight @ value, weighted.sum(axis=2), weighted @ offset, weighted @ value))
    if not parts:
        shapes: list[tuple[int, ...]] = [(), (values,), (features,), (features, features), (features, values)]
        return Moments(*(np.empty((0, *shape)) for shape in shapes))
    return Moments(*(np.concatenate(part) for part in zip(*parts, strict=True)))


def weight_blocks(points: Points, width: int = 1) -> Iterator[tuple[slice, Floats, Floats]]:
    """The weights of a kernel; the caller will hold `width` numbers for each pair."""
    with np.errstate(divide="ignore"):  # weight 0: never seen
        log_mass = 0.0 if points.weight is None else np.log(points.weight)
    for rows in spans(len(points.query), max(1, BLOCK // (max(1, len(points.key)) * max(1, width)))):
        square = np.zeros((rows.stop - rows.start, len(points.key)))
        for feature in range(points.features):
            square += np.square(points.key[:, feature] - points.query[rows, feature, None])
        score = log_kernel(points.kernel, square) + log_mass
        for column in range(points.columns):
            assert points.query_code is not None
            assert points.key_code is not None
            apart = np.abs(points.key_code[:, column] - points.query_code[rows, column, None])
            score -= points.per_step[column] * apart + points.per_change[column] * (apart > 0)
        if points.left_out is not None:
            left_out = points.left_out[rows]
            score[np.flatnonzero(left_out >= 0), left_out[left_out >= 0]] = -np.inf
        yield rows, *normalise(score)


def normalise(score: Floats) -> tuple[Floats, Floats]:
    """Softmax weights and their log sums; 0 and -inf for a query that sees no key."""
    highest = score.max(axis=1, initial=-np.inf, keepdims=True)
    highest[highest == -np.inf] = 0.0
    weight = np.exp(score - highest)
    total = weight.sum(axis=1, keepdims=True)
    with np.errstate(divide="ignore"):
        log_weight = (highest + np.log(total))[:, 0]
    return weight / np.where(total > 0, total, 1.0), log_weight
