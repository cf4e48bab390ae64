"""The `stream` engine's fused path on the CPU: inner products and squared distances, spread over threads.

One task is some queries of one head. Its blocks of scores fit the cache of the core it runs on, where
torch's matrix product and the Numba loops of `loops.py` take turns on them:

    forward     scores = q kᵀ;  soften;  sums = sums · fade + weights v
    backward    scores = q kᵀ;  slopes = mean' vᵀ;  soften_backward;
                v' += weightsᵀ mean';  q' += slopes k;  k' += slopesᵀ q

Results are the same to the bit from run to run: tasks write to places of their own, and where several
share a key's gradient they are summed in a fixed order.
"""

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.compiled import dropout_hash as dropout
from regard.compiled.threads import Room, spread
from regard.engines import fused_loops as loops
from regard.engines.job import Job, spans
from regard.engines.pairing import Distances, Pairing, Products
from regard.masks import Mask, block_of, causal, parts_of, tensors_of
from regard.scores import is_inner_product, is_squared_distance

BLOCK = (512, 512)
"""Queries and keys a block: 1 MiB of float32 scores, and as much of slopes, in a core's L2 cache."""


Portion = tuple[int, tuple[int, ...], slice]
"""Some queries of one head: its number, its place in the leading dimensions, and the rows."""


@dataclass(frozen=True)
class Fold:
    """What does not change from block to block."""

    pairing: Pairing
    mask: Mask | None
    shape: torch.Size  # of the scores, [..., q, k]
    dropout: float
    seed: int
    block: tuple[int, int]

    def portions(self, size: int) -> list[Portion]:
        """The queries of each head, so many at a time."""
        heads = enumerate(np.ndindex(*self.shape[:-2]))
        return [(number, lead, rows) for number, lead in heads for rows in spans(self.shape[-2], size)]

    @functools.cached_property
    def parts(self) -> list[Mask]:
        """The parts of the mask but `causal`, which is a matter of how far a row reaches."""
        return [part for part in parts_of(self.mask) if part is not causal]

    @functools.cached_property
    def is_causal(self) -> bool:
        return any(part is causal for part in parts_of(self.mask))

    def columns(self, rows: slice) -> Iterator[slice]:
        """The keys that some of these queries may see, a block at a time."""
        return spans(min(self.shape[-1], rows.stop) if self.is_causal else self.shape[-1], self.block[1])

    def reach(self, rows: slice, columns: slice) -> int:
        """How many keys of a block its first query sees; each further query sees one more."""
        return int(rows.start + 1 - columns.start if self.is_causal else columns.stop - columns.start)

    def masking(self, lead: Sequence[int], rows: slice, columns: slice) -> list[Tensor] | None:
        """What else of the mask matters in a block, [rows, columns] each; None when it is all hidden."""
        relevant = []
        for part in self.parts:
            block = block_of(part, rows, columns, len(self.shape), torch.device("cpu"))
            for size, index in zip(block.shape[:-2], lead[len(lead) - (block.ndim - 2) :], strict=True):
                block = block[index if size > 1 else 0]
            if block.dtype != torch.bool:
                relevant.append(block)
            elif not block.any():
                return None
            elif not block.all():
                relevant.append(~block)
        return relevant

    def scores(self, query: Tensor, key: Tensor, out: Tensor, masking: Sequence[Tensor]) -> None:
        self.pairing.scores(query, key, out)
        for part in masking:
            if part.dtype == torch.bool:
                out.masked_fill_(part, -math.inf)
            else:
                out.add_(part)

    @functools.cached_property
    def row_keys(self) -> list[Any]:
        """The dropout keys of all rows, [heads, q] each."""
        heads = torch.arange(math.prod(self.shape[:-2])).unsqueeze(-1)
        queries = torch.arange(self.shape[-2] if self.dropout else 0)
        return [keys.numpy().astype(np.uint32) for keys in dropout.row_keys(self.seed, heads, queries)]

    def dropping(self, number: int, rows: slice) -> tuple[Any, Any]:
        """The dropout keys of some rows of the head of that number."""
        first, second = self.row_keys
        return first[number, rows], second[number, rows]


def prepared(job: Job, seed: int, block: tuple[int, int]) -> tuple[Fold, Tensor, Tensor, Tensor]:
    """The fold, the vectors it pairs, and the values. Bandwidths and projections learn through autograd, outside it."""
    pairing: Pairing
    if is_squared_distance(job.score):
        query, key = job.score.as_distance(job.query, job.key)
        pairing = Distances()
    else:
        assert is_inner_product(job.score)
        query, key, scale = job.score.as_dot(job.query, job.key)
        query, key = query.to(job.query.dtype), key.to(job.query.dtype)
        pairing = Products(scale)
    query, key, value = (x.expand(*job.leading, *x.shape[-2:]) for x in (query, key, job.value))
    return Fold(pairing, job.mask, job.shape, job.dropout, seed, block), query, key, value


class Head(NamedTuple):
    """One head's tensors. What is only read and written by kernels is an array: to slice one costs less."""

    number: int  # counted over the leading dimensions
    lead: tuple[int, ...]  # its place in them
    query: Tensor
    key: Tensor
    value: Tensor
    highest: Any  # [q]  the largest score
    total: Any  # [q]  the sum of exp(score - highest)


class Slopes(NamedTuple):
    """What the loss gains with one head's tensors: two known, three to be added to."""

    mean: Tensor
    offset: Any  # [q]  mean' · mean - log_weight'
    query: Tensor
    key: Tensor
    value: Tensor


class Fused(torch.autograd.Function):
    """(mean, log_weight) of query, key and value, with leading dimensions already broadcast."""

    @staticmethod
    def forward(ctx: Any, fold: Fold, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        mean = value.new_empty(*fold.shape[:-1], value.shape[-1])
        highest, total = value.new_empty(fold.shape[:-1]), value.new_empty(fold.shape[:-1])
        tensors = query, key, value, highest.numpy(), total.numpy()
        room = Room()

        def task(item: Portion) -> None:
            number, lead, rows = item
            forward_rows(fold, Head(number, lead, *(x[lead] for x in tensors)), rows, mean[lead][rows], room)

        spread(task, fold.portions(fold.block[0]))
        ctx.fold = fold
        ctx.save_for_backward(query, key, value, mean, highest, total, *tensors_of(fold.mask))
        return mean, highest + total.log()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, mean_slope: Tensor, weight_slope: Tensor) -> tuple[Tensor | None, ...]:
        fold: Fold = ctx.fold
        query, key, value, mean, highest, total, *_ = ctx.saved_tensors  # a mask that was changed since is refused
        query_slope, key_slope, value_slope = (
            torch.zeros_like(x, memory_format=torch.contiguous_format) for x in (query, key, value)
        )
        offset = (mean_slope * mean).sum(dim=-1) - weight_slope
        tensors = query, key, value, highest.numpy(), total.numpy()
        slope_tensors = mean_slope, offset.numpy(), query_slope, key_slope, value_slope
        room = Room()
        # Where heads are fewer than threads, a head's queries are shared out; each share has key and
        # value gradients of its own, added up below in the order of the shares.
        heads = math.prod(fold.shape[:-2])
        shares = 1 if heads >= torch.get_num_threads() else torch.get_num_threads()
        size = max(1, -(-fold.shape[-2] // shares))

        def task(item: Portion) -> Slopes:
            number, lead, rows = item
            head = Head(number, lead, *(x[lead] for x in tensors))
            slopes = Slopes(*(x[lead] for x in slope_tensors))
            if rows.start:
                slopes = slopes._replace(key=torch.zeros_like(slopes.key), value=torch.zeros_like(slopes.value))
            for part in spans(rows.stop - rows.start, fold.block[0]):
                backward_rows(fold, head, slopes, slice(rows.start + part.start, rows.start + part.stop), room)
            return slopes

        work = fold.portions(size)
        for (_, lead, rows), slopes in zip(work, spread(task, work), strict=True):
            if rows.start:
                key_slope[lead] += slopes.key
                value_slope[lead] += slopes.value
        return None, query_slope, key_slope, value_slope


def forward_rows(fold: Fold, head: Head, rows: slice, mean: Tensor, room: Room) -> None:
    """Fill in the mean, the highest score and the sum of some queries of one head."""
    query, value = fold.pairing.ready(head.query[rows].contiguous()), head.value
    count = len(query)
    sums = head.highest[rows], head.total[rows], mean.numpy()
    for array, start in zip(sums, (-math.inf, 0.0, 0.0), strict=True):
        array.fill(start)
    first, second = fold.dropping(head.number, rows)
    drop, scale = constants(fold, value.dtype)
    for columns in fold.columns(rows):
        masking = fold.masking(head.lead, rows, columns)
        if masking is None:
            continue
        weight = room.block(0, count, columns.stop - columns.start, value)
        fold.scores(query, head.key[columns], weight, masking)
        loops.soften(weight.numpy(), fold.reach(rows, columns), *sums, first, second, columns.start, drop, scale)
        mean.addmm_(weight, value[columns])
    loops.normalise(*sums[1:])


def backward_rows(fold: Fold, head: Head, slopes: Slopes, rows: slice, room: Room) -> None:
    """Add what some queries of one head give to the slopes of queries, keys and values."""
    query, mean_slope = fold.pairing.ready(head.query[rows].contiguous()), slopes.mean[rows].contiguous()
    sums = head.highest[rows], head.total[rows], slopes.offset[rows]
    count = len(query)
    first, second = fold.dropping(head.number, rows)
    drop, scale = constants(fold, mean_slope.dtype)
    for columns in fold.columns(rows):
        masking = fold.masking(head.lead, rows, columns)
        if masking is None:
            continue
        key, value = head.key[columns], head.value[columns]
        weight, slope = (room.block(number, count, len(key), value) for number in range(2))
        fold.scores(query, key, weight, masking)
        torch.mm(mean_slope, value.T, out=slope)
        reach = fold.reach(rows, columns)
        loops.soften_backward(weight.numpy(), slope.numpy(), reach, *sums, first, second, columns.start, drop, scale)
        slopes.value[columns].addmm_(weight.T, mean_slope)
        fold.pairing.pull(slope, query, key, slopes.query[rows], slopes.key[columns])


def constants(fold: Fold, dtype: torch.dtype) -> tuple[Any, Any]:
    """Dropout's threshold and scale, typed as the kernels take them."""
    number = np.float32 if dtype == torch.float32 else np.float64
    return np.uint32(dropout.threshold(fold.dropout)), number(dropout.keep_scale(fold.dropout))
