"""The `stream` engine's fused algorithm on the CPU: inner products and squared distances, spread over threads.

One task is some queries of one head. Its blocks of scores fit the cache of the core it runs on, where torch's matrix
products and the Numba loops of `fused_loops.py` take turns on them:

    forward     scores = q kᵀ;  soften;  sums = sums · decay + weights v
    backward    scores = q kᵀ;  gradient = mean' vᵀ;  soften_backward;
                v' += weightsᵀ mean';  q' += gradient k;  k' += gradientᵀ q

Results are the same to the bit from run to run: tasks write to memory of their own, and where several
contribute to a key's gradient they are summed in a fixed order.

A short head takes less time than starting a task for it. So many short heads are computed together, as many as fit the
cache, with one call for all their products and one for their softmax and dropout (`ShortHeads`).
"""

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.compiled import dropout_hash
from regard.compiled.math import Floats, Words
from regard.compiled.threads import Scratch, spread
from regard.engines import fused_loops as loops
from regard.engines.fused_loops import RowDropout, RowGradients, RowSums
from regard.engines.job import Job, spans
from regard.masks import Mask, block_of, causal, parts_of, tensors_of
from regard.parts import Attended
from regard.scores import is_inner_product, is_squared_distance
from regard.torch_modes import Context

BLOCK = (512, 512)
"""Queries and keys of one block: 1 MiB of float32 scores, and as much of gradients, in a core's L2 cache."""
TOGETHER = 2**18
"""Scores of short heads that are computed together: 1 MiB of float32."""


class _Pairing(Protocol):
    """How a block of scores is computed from vectors, and its gradient is propagated to them.

    Queries are passed through `prepare` first, once for all blocks of keys.
    """

    def prepare(self, query: Tensor) -> Tensor: ...

    def scores(self, query: Tensor, key: Tensor, out: Tensor) -> None: ...

    def add_gradients(
        self, score_grad: Tensor, query: Tensor, key: Tensor, query_grad: Tensor, key_grad: Tensor
    ) -> None: ...


@dataclass(frozen=True)
class Products:
    """scale · query · key"""

    scale: float

    def prepare(self, query: Tensor) -> Tensor:
        return query * self.scale

    def scores(self, query: Tensor, key: Tensor, out: Tensor) -> None:
        torch.mm(query, key.T, out=out)

    def add_gradients(
        self, score_grad: Tensor, query: Tensor, key: Tensor, query_grad: Tensor, key_grad: Tensor
    ) -> None:
        query_grad.addmm_(score_grad, key, alpha=self.scale)
        key_grad.addmm_(score_grad.T, query)


class Distances:
    """-½‖query - key‖², from the differences of float64 coordinates"""

    def prepare(self, query: Tensor) -> Tensor:
        return query

    def scores(self, query: Tensor, key: Tensor, out: Tensor) -> None:
        loops.distances(*_two_words(query, out.dtype), *_two_words(key, out.dtype), out.numpy())

    def add_gradients(
        self, score_grad: Tensor, query: Tensor, key: Tensor, query_grad: Tensor, key_grad: Tensor
    ) -> None:
        # Summed over the block in the precision of the scores, [features, points], then added in that of the points.
        to_query, to_key = score_grad.new_zeros(query.T.shape), score_grad.new_zeros(key.T.shape)
        words = *_two_words(query, score_grad.dtype), *_two_words(key, score_grad.dtype)
        loops.distances_backward(score_grad.numpy(), *words, to_query.numpy(), to_key.numpy())
        query_grad.add_(to_query.T)
        key_grad.add_(to_key.T)


def _two_words(points: Tensor, dtype: torch.dtype) -> tuple[Floats, Floats]:
    """Coordinates [features, points] rounded to a dtype, and the rounding errors."""
    points = points.T.contiguous()
    rounded = points.to(dtype)
    rest = torch.where(rounded.isfinite(), points - rounded, 0.0)  # inf - inf would be NaN
    return rounded.numpy(), rest.to(dtype).numpy()


class Portion(NamedTuple):
    """Some queries of one head."""

    number: int  # of the head, counted over the leading dimensions
    lead: tuple[int, ...]  # its index in them
    rows: slice


@dataclass(frozen=True)
class _HeadBlocks:
    """What is the same for every block of every head."""

    pairing: _Pairing
    mask: Mask | None
    shape: torch.Size  # of the scores, [..., q, k]
    dropout: float
    seed: int
    block: tuple[int, int]

    @property
    def heads(self) -> int:
        return math.prod(self.shape[:-2])

    def portions(self, size: int) -> list[Portion]:
        """The queries of each head, `size` at a time."""
        heads = enumerate(np.ndindex(*self.shape[:-2]))
        return [Portion(number, lead, rows) for number, lead in heads for rows in spans(self.shape[-2], size)]

    @functools.cached_property
    def parts(self) -> list[Mask]:
        """The parts of the mask except `causal`, which is only a number of visible keys in each row."""
        return [part for part in parts_of(self.mask) if part is not causal]

    @functools.cached_property
    def is_causal(self) -> bool:
        return any(part is causal for part in parts_of(self.mask))

    def columns(self, rows: slice) -> Iterator[slice]:
        """Blocks of the keys that some of these queries may see."""
        return spans(min(self.shape[-1], rows.stop) if self.is_causal else self.shape[-1], self.block[1])

    def visible(self, rows: slice, columns: slice) -> int:
        """Number of keys of a block that its first query sees; each further query sees one more."""
        return int(rows.start + 1 - columns.start if self.is_causal else columns.stop - columns.start)

    def mask_blocks(self, lead: Sequence[int], rows: slice, columns: slice) -> list[Tensor] | None:
        """The other parts of the mask that change a block, [rows, columns] each; None when all of it is hidden.

        A boolean part is returned negated: True = hidden.
        """
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

    def scores(self, query: Tensor, key: Tensor, out: Tensor, mask_blocks: Sequence[Tensor]) -> None:
        self.pairing.scores(query, key, out)
        for part in mask_blocks:
            if part.dtype == torch.bool:
                out.masked_fill_(part, -math.inf)
            else:
                out.add_(part)

    @functools.cached_property
    def row_keys(self) -> list[Words]:
        """The dropout keys of all rows, [heads, q] each."""
        heads = torch.arange(self.heads).unsqueeze(-1)
        queries = torch.arange(self.shape[-2] if self.dropout else 0)
        return [keys.numpy().astype(np.uint32) for keys in dropout_hash.row_keys(self.seed, heads, queries)]

    def row_dropout(self, heads: int | slice, rows: slice, dtype: torch.dtype) -> RowDropout:
        """The dropout of some rows of one head, or of several heads one after the other."""
        first, second = (np.ravel(keys[heads, rows]) for keys in self.row_keys)
        number = np.float32 if dtype == torch.float32 else np.float64
        threshold = np.uint32(dropout_hash.threshold(self.dropout))
        return RowDropout(first, second, threshold, number(dropout_hash.keep_scale(self.dropout)))


class _Prepared(NamedTuple):
    """What the fused functions take, with leading dimensions already broadcast."""

    blocks: _HeadBlocks
    query: Tensor
    key: Tensor
    value: Tensor


def prepare(job: Job, seed: int, block: tuple[int, int]) -> _Prepared:
    """The vectors whose pairs are scored. Bandwidths and projections get their gradients by autograd, outside."""
    pairing: _Pairing
    if is_squared_distance(job.score):
        query, key = job.score.as_distance(job.query, job.key)
        pairing = Distances()
    else:
        assert is_inner_product(job.score)
        query, key, scale = job.score.as_dot(job.query, job.key)
        query, key = query.to(job.query.dtype), key.to(job.query.dtype)
        pairing = Products(scale)
    query, key, value = (x.expand(*job.leading, *x.shape[-2:]) for x in (query, key, job.value))
    return _Prepared(_HeadBlocks(pairing, job.mask, job.shape, job.dropout, seed, block), query, key, value)


def attend_heads(prepared: _Prepared) -> Attended:
    """Attention head by head, each in tasks of some queries."""
    return Attended(*_Heads.apply(*prepared))  # type: ignore[no-untyped-call]


def attend_short_heads(prepared: _Prepared) -> Attended:
    """Attention of many short heads together."""
    return Attended(*ShortHeads.apply(*prepared))  # type: ignore[no-untyped-call]


class _Head(NamedTuple):
    """One head's tensors. What only the loops read and write is an array: slicing one costs less."""

    number: int  # counted over the leading dimensions
    lead: tuple[int, ...]  # its index in them
    query: Tensor
    key: Tensor
    value: Tensor
    largest: Floats  # [q]  the largest score
    total: Floats  # [q]  the sum of exp(score - largest)


class _HeadGradients(NamedTuple):
    """The gradients of one head: two are given, three are added to."""

    mean: Tensor
    offset: Floats  # [q]  mean' · mean - log_weight'
    query: Tensor
    key: Tensor
    value: Tensor


class _HeadContext(Context):
    """What forward saves beside tensors."""

    blocks: _HeadBlocks


class _Heads(torch.autograd.Function):
    """(mean, log_weight) from query, key and value, head by head."""

    @staticmethod
    def forward(
        ctx: _HeadContext, blocks: _HeadBlocks, query: Tensor, key: Tensor, value: Tensor
    ) -> tuple[Tensor, Tensor]:
        mean = value.new_empty(*blocks.shape[:-1], value.shape[-1])
        largest, total = value.new_empty(blocks.shape[:-1]), value.new_empty(blocks.shape[:-1])
        largest_array, total_array = largest.numpy(), total.numpy()
        scratch = Scratch()

        def task(portion: Portion) -> None:
            number, lead, rows = portion
            head = _Head(number, lead, query[lead], key[lead], value[lead], largest_array[lead], total_array[lead])
            forward_rows(blocks, head, rows, mean[lead][rows], scratch)

        spread(task, blocks.portions(blocks.block[0]))
        ctx.blocks = blocks
        ctx.save_for_backward(query, key, value, mean, largest, total, *tensors_of(blocks.mask))
        return mean, largest + total.log()

    @staticmethod
    @once_differentiable
    def backward(ctx: _HeadContext, mean_grad: Tensor, log_weight_grad: Tensor) -> tuple[Tensor | None, ...]:
        blocks = ctx.blocks
        # Reading the saved tensors raises if a mask's tensor was changed since forward.
        query, key, value, mean, largest, total, *_ = ctx.saved_tensors
        query_grad, key_grad, value_grad = (
            torch.zeros_like(x, memory_format=torch.contiguous_format) for x in (query, key, value)
        )
        offset = (mean_grad * mean).sum(dim=-1) - log_weight_grad
        largest_array, total_array, offset_array = largest.numpy(), total.numpy(), offset.numpy()
        scratch = Scratch()
        # Where heads are fewer than threads, a head's queries are divided among them; each part has key and
        # value gradients of its own, added up below in a fixed order.
        divisions = 1 if blocks.heads >= torch.get_num_threads() else torch.get_num_threads()
        size = max(1, -(-blocks.shape[-2] // divisions))

        def task(portion: Portion) -> _HeadGradients:
            number, lead, rows = portion
            head = _Head(number, lead, query[lead], key[lead], value[lead], largest_array[lead], total_array[lead])
            grads = _HeadGradients(
                mean_grad[lead], offset_array[lead], query_grad[lead], key_grad[lead], value_grad[lead]
            )
            if rows.start:
                grads = grads._replace(key=torch.zeros_like(grads.key), value=torch.zeros_like(grads.value))
            for part in spans(rows.stop - rows.start, blocks.block[0]):
                backward_rows(blocks, head, grads, slice(rows.start + part.start, rows.start + part.stop), scratch)
            return grads

        work = blocks.portions(size)
        for (_, lead, rows), grads in zip(work, spread(task, work), strict=True):
            if rows.start:
                key_grad[lead] += grads.key
                value_grad[lead] += grads.value
        return None, query_grad, key_grad, value_grad


def forward_rows(blocks: _HeadBlocks, head: _Head, rows: slice, mean: Tensor, scratch: Scratch) -> None:
    """Fill in the mean, the largest score and the sum of some queries of one head."""
    query, value = blocks.pairing.prepare(head.query[rows].contiguous()), head.value
    sums = RowSums(head.largest[rows], head.total[rows], mean.numpy())
    for array, start in zip(sums, (-math.inf, 0.0, 0.0), strict=True):
        array.fill(start)
    dropout = blocks.row_dropout(head.number, rows, value.dtype)
    for columns in blocks.columns(rows):
        mask_blocks = blocks.mask_blocks(head.lead, rows, columns)
        if mask_blocks is None:
            continue
        weight = scratch.block(0, len(query), columns.stop - columns.start, value)
        blocks.scores(query, head.key[columns], weight, mask_blocks)
        loops.soften(weight.numpy(), blocks.visible(rows, columns), sums, dropout, columns.start)
        mean.addmm_(weight, value[columns])
    loops.normalise(sums.total, sums.weighted)


def backward_rows(blocks: _HeadBlocks, head: _Head, grads: _HeadGradients, rows: slice, scratch: Scratch) -> None:
    """Add the contribution of some queries of one head to the gradients of queries, keys and values."""
    query, mean_grad = blocks.pairing.prepare(head.query[rows].contiguous()), grads.mean[rows].contiguous()
    known = RowGradients(head.largest[rows], head.total[rows], grads.offset[rows])
    dropout = blocks.row_dropout(head.number, rows, mean_grad.dtype)
    for columns in blocks.columns(rows):
        mask_blocks = blocks.mask_blocks(head.lead, rows, columns)
        if mask_blocks is None:
            continue
        key, value = head.key[columns], head.value[columns]
        weight, score_grad = (scratch.block(number, len(query), len(key), value) for number in range(2))
        blocks.scores(query, key, weight, mask_blocks)
        torch.mm(mean_grad, value.T, out=score_grad)
        visible = blocks.visible(rows, columns)
        loops.soften_backward(weight.numpy(), score_grad.numpy(), visible, known, dropout, columns.start)
        grads.value[columns].addmm_(weight.T, mean_grad)
        blocks.pairing.add_gradients(score_grad, query, key, grads.query[rows], grads.key[columns])


class ShortHeads(torch.autograd.Function):
    """(mean, log_weight) from query, key and value, many heads at a time: `[heads, length, size]`.

    It computes, saves and drops what `_Heads` does. Scores are inner products.
    """

    @staticmethod
    def forward(
        ctx: _HeadContext, blocks: _HeadBlocks, query: Tensor, key: Tensor, value: Tensor
    ) -> tuple[Tensor, Tensor]:
        query, key, value = (x.reshape(-1, *x.shape[-2:]) for x in (query, key, value))  # [heads, length, size]
        shape = query.shape[:2]
        mean = value.new_empty(*shape, value.shape[-1])
        largest, total = value.new_full(shape, -math.inf), value.new_zeros(shape)
        whole = slice(0, blocks.shape[-2])
        for heads in _heads_together(blocks):
            weight = _short_scores(blocks, query, key, heads)  # [heads, q, k]
            no_values = value.new_empty(weight.shape[0] * weight.shape[1], 0).numpy()
            sums = RowSums(flat(largest[heads]), flat(total[heads]), no_values)
            loops.soften(flat(weight, 2), blocks.shape[-1], sums, blocks.row_dropout(heads, whole, value.dtype), 0)
            torch.bmm(weight, value[heads], out=mean[heads])
        loops.normalise(flat(total), flat(mean, 2))
        ctx.blocks = blocks
        ctx.save_for_backward(query, key, value, mean, largest, total, *tensors_of(blocks.mask))
        lead = blocks.shape[:-2]
        return mean.view(*lead, *mean.shape[1:]), (largest + total.log()).view(*lead, shape[1])

    @staticmethod
    @once_differentiable
    def backward(ctx: _HeadContext, mean_grad: Tensor, log_weight_grad: Tensor) -> tuple[Tensor | None, ...]:
        blocks = ctx.blocks
        # Reading the saved tensors raises if a mask's tensor was changed since forward.
        query, key, value, mean, largest, total, *_ = ctx.saved_tensors
        mean_grad = mean_grad.reshape(mean.shape)  # [heads, q, v]
        offset = (mean_grad * mean).sum(dim=-1) - log_weight_grad.reshape(largest.shape)
        grads = query_grad, key_grad, value_grad = tuple(
            torch.empty_like(x, memory_format=torch.contiguous_format) for x in (query, key, value)
        )
        whole = slice(0, blocks.shape[-2])
        for heads in _heads_together(blocks):
            weight = _short_scores(blocks, query, key, heads)
            score_grad = torch.bmm(mean_grad[heads], value[heads].mT)
            known = RowGradients(flat(largest[heads]), flat(total[heads]), flat(offset[heads]))
            dropout = blocks.row_dropout(heads, whole, value.dtype)
            loops.soften_backward(flat(weight, 2), flat(score_grad, 2), blocks.shape[-1], known, dropout, 0)
            torch.bmm(weight.mT, mean_grad[heads], out=value_grad[heads])
            score_grad *= _scale_of(blocks)
            torch.bmm(score_grad, key[heads], out=query_grad[heads])
            torch.bmm(score_grad.mT, query[heads], out=key_grad[heads])
        return None, *(x.view(*blocks.shape[:-2], *x.shape[1:]) for x in grads)


def _heads_together(blocks: _HeadBlocks) -> list[slice]:
    """Heads that are computed together."""
    return list(spans(blocks.heads, max(1, TOGETHER // max(1, blocks.shape[-2] * blocks.shape[-1]))))


def _scale_of(blocks: _HeadBlocks) -> float:
    """The scale of scores that are inner products."""
    assert isinstance(blocks.pairing, Products)
    return blocks.pairing.scale


def _short_scores(blocks: _HeadBlocks, query: Tensor, key: Tensor, heads: slice) -> Tensor:
    """Masked scores of some heads, `[heads, q, k]`."""
    scores = torch.bmm(query[heads] * _scale_of(blocks), key[heads].mT)
    rows, columns = slice(0, blocks.shape[-2]), slice(0, blocks.shape[-1])
    for part in parts_of(blocks.mask):
        block = block_of(part, rows, columns, len(blocks.shape), scores.device)
        block = block.expand(*blocks.shape[:-2], *block.shape[-2:])
        block = block.reshape(-1, *block.shape[-2:])[heads]  # [heads, q or 1, k or 1]
        scores = scores.masked_fill_(~block, -math.inf) if block.dtype == torch.bool else scores.add_(block)
    return scores


def flat(tensor: Tensor, axes: int = 1) -> Floats:
    """A tensor as an array of its last axes, all rows one after the other: `[heads, q, …]` to `[heads · q, …]`."""
    array: Floats = tensor.numpy().reshape(-1, *tensor.shape[tensor.ndim - axes + 1 :])
    return array
