"""Attention by blocks: memory that grows with q + k, for any score, forward and backward.

Forward is the fold of `merge` over blocks of keys, written as the running sums of an online softmax:
the highest score so far, the sum of exp(score - highest), and the values weighted so. Backward keeps
the mean, the highest score and the sum of each query, and computes each block of scores again:

    weight = exp(score - highest) / sum
    score' = weight · (mean' · value - mean' · mean + log_weight')       [q, k] a block at a time

Dropout and masks are computed again too, from indices (`dropout.py`, `masks.py`); neither is stored.

Two paths share this. Scores that are inner products or squared distances run on the CPU as fused loops
over single heads, spread over threads (`fused.py`). Any other score, and any other device, runs here:
the score is called on blocks of queries and keys under autograd, which also gives the gradients of the
score's own parameters, wherever they are: a module's, a closure's, a bias's.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.checks import is_count
from regard.compiled import dropout_hash as dropout
from regard.engines.again import autocast_of, check_same, hooks_off, random_states, replayed, state_of, with_state
from regard.engines.job import Job, masked, scores_of, spans
from regard.masks import Mask, block_of, parts_of, tensors_of
from regard.parts import Attended
from regard.scores import is_inner_product, is_squared_distance
from regard.torch_modes import compiling
from regard.weighing import softmax

CACHE = 2**19
"""Numbers held at once in a block, over all leading dimensions: 2 MiB of float32, a core's L2 cache."""
SHORT_HEAD = 2**14
"""Largest number of scores of a head that is computed together with others; a larger one is a task of its own."""
RECOMPUTED = "stream: blocks, recomputed in backward"
FUSED = "stream: fused loops over single heads"
SHORT_HEADS = "stream: fused loops over several short heads at a time"


@dataclass(frozen=True)
class Stream:
    """Any score under softmax, in memory q + k.

    block   how many queries and keys are taken at a time, one number for both or two; sized to the
            cache where it is not given
    """

    block: int | tuple[int, int] | None = None
    name = "stream"

    def __post_init__(self) -> None:
        sizes = self.block if isinstance(self.block, tuple) else (self.block, self.block)
        if self.block is not None and not (len(sizes) == 2 and all(map(is_count, sizes))):
            raise ValueError(f"block must be a positive whole number, or two of them, got {self.block!r}")

    def refuses(self, job: Job) -> str | None:
        if job.weigh is not softmax:
            return f"stream weighs by softmax only, got {getattr(job.weigh, '__name__', job.weigh)}"
        return None

    def algorithm(self, job: Job) -> str:
        """What `attend_parts` runs."""
        if not fusible(job):
            return RECOMPUTED
        return SHORT_HEADS if self.block is None and has_short_heads(job) else FUSED

    def attend(self, job: Job) -> Tensor:
        return self.attend_parts(job).mean

    def attend_parts(self, job: Job) -> Attended:
        """Means and log weights; with dropout, only the means are of the dropped weights."""
        seed = dropout.draw_seed() if job.dropout else 0
        algorithm = self.algorithm(job)
        if algorithm == RECOMPUTED:
            return attend_blocks(job, seed, self.sizes(cached(job)))
        from regard.engines import fused, short

        given = fused.prepared(job, seed, self.sizes(fused.BLOCK))
        way: Any = short.Together if algorithm == SHORT_HEADS else fused.Fused
        return Attended(*way.apply(*given))

    def sizes(self, default: tuple[int, int]) -> tuple[int, int]:
        """Queries and keys a block."""
        return (self.block, self.block) if isinstance(self.block, int) else self.block or default


def cached(job: Job) -> tuple[int, int]:
    """Queries and keys a block, so that what the score holds for them fits the cache."""
    side = max(1, math.isqrt(CACHE // max(1, job.width * math.prod(job.leading))))
    return side, side


def has_short_heads(job: Job) -> bool:
    """Whether heads are so small, and so many, that the fused loops take several of them at a time."""
    heads, size = math.prod(job.leading), job.queries * job.keys
    return not is_squared_distance(job.score) and 0 < size <= SHORT_HEAD and heads > torch.get_num_threads()


def fusible(job: Job) -> bool:
    """Whether the fused loops can do it: they need a known score, and a mask without a gradient."""
    known = is_inner_product(job.score) or is_squared_distance(job.score)
    usual = job.query.device.type == "cpu" and job.query.dtype in (torch.float32, torch.float64)
    return known and usual and not mask_gradient(job) and not compiling()


def mask_gradient(job: Job) -> bool:
    """Whether a part of the mask is a bias that learns."""
    return torch.is_grad_enabled() and any(probe.requires_grad for probe in job.probes)


def attend_blocks(job: Job, seed: int, block: tuple[int, int]) -> Attended:
    """The path for any score: blocks of all leading dimensions at once."""
    blocking = Blocking(job.score, job.mask, job.shape, job.dropout, seed, block)
    biases = [part for part in parts_of(job.mask) if isinstance(part, Tensor) and part.dtype != torch.bool]
    leaves = learned(blocking, job)
    tensors = (*(x.expand(*job.leading, *x.shape[-2:]) for x in (job.query, job.key, job.value)), *biases, *leaves)
    return Attended(*Blocks.apply(blocking, len(biases), *tensors))  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class Blocking:
    """What does not change from block to block."""

    score: Callable[[Tensor, Tensor], Tensor]
    mask: Mask | None
    shape: torch.Size  # of the scores, [..., q, k]
    dropout: float
    seed: int
    block: tuple[int, int]

    def rows(self) -> Iterator[slice]:
        return spans(self.shape[-2], self.block[0])

    def columns(self) -> Iterator[slice]:
        return spans(self.shape[-1], self.block[1])

    def logits(self, query: Tensor, key: Tensor, biases: Sequence[Tensor], rows: slice, columns: slice) -> Tensor:
        """Masked scores of a block; `biases` are that block of the mask's parts that are bias tensors."""
        given = iter(biases)
        parts = [
            next(given)
            if isinstance(part, Tensor) and part.dtype != torch.bool
            else block_of(part, rows, columns, len(self.shape), query.device)
            for part in parts_of(self.mask)
        ]
        return masked(scores_of(self.score, query, key), parts)

    def bias_blocks(self, biases: Sequence[Tensor], rows: slice, columns: slice) -> list[Tensor]:
        return [block_of(bias, rows, columns, len(self.shape), bias.device) for bias in biases]

    def keep(self, rows: slice, columns: slice, device: torch.device) -> Tensor:
        """What weights are multiplied by: 0 where dropped, else a little more than 1."""
        leading = self.shape[:-2]
        lead = torch.arange(math.prod(leading), device=device).view(*leading, 1, 1)
        query = torch.arange(rows.start, rows.stop, device=device).unsqueeze(-1)
        first, second = dropout.row_keys(self.seed, lead, query)
        key = torch.arange(columns.start, columns.stop, device=device)
        return dropout.kept(self.dropout, first, second, key) * dropout.keep_scale(self.dropout)


class Blocks(torch.autograd.Function):
    """(mean, log_weight) of query, key and value, with gradients for the biases and leaves given too."""

    @staticmethod
    def forward(ctx: Any, blocking: Blocking, bias_count: int, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        query, key, value, *rest = tensors
        biases = rest[:bias_count]
        ctx.random = random_states(query.device)
        ctx.autocast = autocast_of(query.device.type)
        wide = torch.promote_types(query.dtype, torch.float32)  # half a number cannot hold a sum over many keys
        mean = query.new_zeros(*blocking.shape[:-1], value.shape[-1])
        peaks = query.new_full(blocking.shape[:-1], -math.inf, dtype=wide)
        totals = query.new_ones(blocking.shape[:-1], dtype=wide)
        for rows in blocking.rows():
            some = query[..., rows, :]
            highest = peaks[..., rows].clone()
            total = torch.zeros_like(highest)
            summed = torch.zeros_like(mean[..., rows, :], dtype=wide)
            for columns in blocking.columns():
                blocks = blocking.bias_blocks(biases, rows, columns)
                scores = blocking.logits(some, key[..., columns, :], blocks, rows, columns).expand(
                    *blocking.shape[:-2], rows.stop - rows.start, columns.stop - columns.start
                )
                risen = torch.maximum(highest, scores.amax(dim=-1))
                shift = risen.masked_fill(risen == -math.inf, 0.0)
                weight = (scores.to(wide) - shift.unsqueeze(-1)).exp()
                fade = (highest - shift).exp()
                highest = risen
                total = total * fade + weight.sum(dim=-1)
                if blocking.dropout:
                    weight = weight * blocking.keep(rows, columns, query.device)
                summed = summed * fade.unsqueeze(-1) + weight.to(value.dtype) @ value[..., columns, :]
            total = total.masked_fill(total == 0, 1.0)
            mean[..., rows, :] = summed / total.unsqueeze(-1)
            peaks[..., rows], totals[..., rows] = highest, total
        ctx.blocking, ctx.bias_count, ctx.state = blocking, bias_count, state_of(blocking.score)
        ctx.save_for_backward(*tensors, mean, peaks, totals, *tensors_of(blocking.mask))
        return mean, (peaks + totals.log()).to(query.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, mean_slope: Tensor, weight_slope: Tensor) -> tuple[Tensor | None, ...]:
        blocking: Blocking = replace(ctx.blocking, score=with_state(ctx.blocking.score, ctx.state))
        count = len(ctx.needs_input_grad) - 2
        kept = ctx.saved_tensors  # where a mask that was changed since is refused; to be read once
        query, key, value, *rest = kept[:count]
        mean, peaks, totals, *_ = kept[count:]
        biases, leaves = rest[: ctx.bias_count], rest[ctx.bias_count :]
        slopes = [torch.zeros_like(x, memory_format=torch.contiguous_format) for x in (query, key, value, *rest)]
        query_slope, key_slope, value_slope, *rest_slopes = slopes
        offset = (mean_slope * mean).sum(dim=-1, dtype=totals.dtype) - weight_slope
        peaks = peaks.masked_fill(peaks == -math.inf, math.inf)  # exp(s - inf) = 0
        sums, missed = torch.zeros_like(totals), {id(leaf) for leaf in leaves if leaf.requires_grad}
        wanted = ctx.needs_input_grad[2:]
        score_wanted = [*wanted[:2], *wanted[3 : 3 + ctx.bias_count]]
        with replayed(ctx.random), hooks_off(leaves):
            for rows, columns in itertools.product(blocking.rows(), blocking.columns()):
                bias_blocks = blocking.bias_blocks(biases, rows, columns)
                blocks = (query[..., rows, :], key[..., columns, :], *bias_blocks)
                inputs = [x.detach().requires_grad_(want) for x, want in zip(blocks, score_wanted, strict=True)]
                with torch.enable_grad(), ctx.autocast():
                    scores = blocking.logits(inputs[0], inputs[1], inputs[2:], rows, columns)
                weight = (scores.detach().to(totals.dtype) - peaks[..., rows, None]).exp() / totals[..., rows, None]
                sums[..., rows] += weight.sum(dim=-1)
                slope = mean_slope[..., rows, :] @ value[..., columns, :].mT
                kept = weight
                if blocking.dropout:
                    keep = blocking.keep(rows, columns, query.device)
                    kept, slope = weight * keep, slope * keep
                value_slope[..., columns, :] += kept.to(mean_slope.dtype).mT @ mean_slope[..., rows, :]
                if not scores.requires_grad:
                    continue
                score_slope = (weight * (slope - offset[..., rows, None])).sum_to_size(scores.shape).to(scores.dtype)
                targets = [
                    query_slope[..., rows, :],
                    key_slope[..., columns, :],
                    *blocking.bias_blocks(rest_slopes[: ctx.bias_count], rows, columns),
                    *rest_slopes[ctx.bias_count :],
                ]
                learning = [
                    (x, target) for x, target in zip([*inputs, *leaves], targets, strict=True) if x.requires_grad
                ]
                found = torch.autograd.grad(
                    scores, [x for x, _ in learning], score_slope, retain_graph=True, allow_unused=True
                )
                for (x, target), part in zip(learning, found, strict=True):
                    if part is not None:
                        target += part
                        missed.discard(id(x))
        check_same(sums.masked_fill(peaks == math.inf, 1.0), len(missed))
        return None, None, *(slope if need else None for slope, need in zip(slopes, wanted, strict=True))


def learned(blocking: Blocking, job: Job) -> list[Tensor]:
    """The leaves, other than the job's own tensors, that the scores depend on and that learn.

    The score is asked for one pair, and the graph of its answer is walked. So a parameter is found
    wherever it is: in a module, in a closure, in a mask.
    """
    if not torch.is_grad_enabled() or not job.pairs:
        return []
    one = slice(0, 1)
    biases = [part for part in parts_of(blocking.mask) if isinstance(part, Tensor) and part.dtype != torch.bool]
    with torch.enable_grad():
        probe = blocking.logits(
            job.query.detach()[..., one, :],
            job.key.detach()[..., one, :],
            [block.detach() for block in blocking.bias_blocks(biases, one, one)],
            one,
            one,
        )
    found: dict[int, Tensor] = {}
    seen, todo = set(), [probe.grad_fn]
    if probe.grad_fn is None and probe.requires_grad:
        return [probe]
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found[id(node.variable)] = node.variable
        todo += [following for following, _ in node.next_functions]
    return list(found.values())
