"""The definition: score, weigh, average, with the whole matrix in memory."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from regard.compiled import dropout_hash as dropout
from regard.engines.job import Job, mask_parts, masked, scores_of
from regard.parts import Attended
from regard.torch_modes import compiling, transforming
from regard.weighing import blind, softmax


@dataclass(frozen=True)
class Dense:
    """Any score, mask and weighing, in memory q × k. Differentiable as often as its parts are."""

    name = "dense"

    def refuses(self, job: Job) -> str | None:
        return None

    def attend(self, job: Job) -> Tensor:
        weight = weights(job)
        if job.dropout and (compiling() or transforming()):
            weight = functional.dropout(weight, job.dropout)
        elif job.dropout:
            weight = torch.where(whole_dropout(job), weight * dropout.keep_scale(job.dropout), 0.0)
        return (weight @ job.value).to(job.value.dtype)

    def attend_parts(self, job: Job) -> Attended:
        scores = logits(job)
        empty = blind(scores)
        scores = scores.masked_fill(empty, 0.0)
        log_weight = torch.logsumexp(scores, dim=-1, keepdim=True) if job.keys else scores.sum(dim=-1, keepdim=True)
        weight = (scores - log_weight).exp().masked_fill(empty, 0.0)
        return Attended(weight @ job.value, log_weight.masked_fill(empty, -math.inf).squeeze(-1))


def logits(job: Job, rows: slice | None = None) -> Tensor:
    """Masked scores of some queries, or all, `[..., q, k]`."""
    rows = rows or slice(0, job.queries)
    scores = masked(scores_of(job.score, job.query[..., rows, :], job.key), mask_parts(job, rows))
    return scores.expand(*job.leading, rows.stop - rows.start, job.keys)


def weights(job: Job, rows: slice | None = None) -> Tensor:
    """The weights of some queries, or all: the matrix itself, `[..., q, k]`."""
    scores = logits(job, rows)
    weight = job.weigh(scores)
    if not isinstance(weight, Tensor) or weight.shape != scores.shape:
        got = list(weight.shape) if isinstance(weight, Tensor) else type(weight).__name__
        raise ValueError(f"a weighing must return the shape of the scores, {list(scores.shape)}, got {got}")
    if job.weigh is softmax:
        return weight
    return weight.masked_fill(scores == -math.inf, 0.0)  # whatever somebody's own makes of it


def whole_dropout(job: Job) -> Tensor:
    """Which weights are kept, `[..., q, k]`."""
    device = job.query.device
    lead = torch.arange(math.prod(job.leading), device=device).view(*job.leading, 1, 1)
    first, second = dropout.row_keys(dropout.draw_seed(), lead, torch.arange(job.queries, device=device).unsqueeze(-1))
    return dropout.kept(job.dropout, first, second, torch.arange(job.keys, device=device))
