"""The `stream` engine's fused algorithm on the CPU: inner products and squared distances, spread over threads.

A task is some queries of one head. Its blocks of scores fit the cache of the core it runs on, where torch's matrix
products and the Numba loops of `fused_loops.py` take turns on them. x' is the gradient of the loss with respect to x:

    forward     scores = q kᵀ;  softmax_block;  sums = sums · decay + weights v
    backward    scores = q kᵀ;  gradient = mean' vᵀ;  softmax_block_backward;
                v' += weightsᵀ mean';  q' += gradient k;  k' += gradientᵀ q

Results are the same to the bit from run to run: tasks write to memory of their own, and where several
contribute to a key's gradient they are summed in a fixed order.

A short head takes less time than starting a task for it. So one task computes as many heads as fit one block: tensors
are `[heads, length, size]`, where `heads` counts over all leading dimensions.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
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


def _fill_scores(distances: bool, query: Tensor, key: Tensor, out: Tensor) -> None:
    """query · key, or -½‖query - key‖² from the differences of float64 coordinates; all `[heads, length, size]`."""
    if not distances:
        torch.bmm(query, key.mT, out=out)
        return
    for head in range(len(out)):
        loops.distances(_by_feature(query[head]), _by_feature(key[head]), out[head].numpy())


def _add_gradients(
    distances: bool, score_grad: Tensor, query: Tensor, key: Tensor, query_grad: Tensor, key_grad: Tensor
) -> None:
    """Add the gradients of query and key."""
    if not distances:
        query_grad.baddbmm_(score_grad, key)
        key_grad.baddbmm_(score_grad.mT, query)
        return
    # Summed over the block in the precision of the scores, [heads, features, points], then added in that of the points.
    to_query, to_key = score_grad.new_zeros(query.mT.shape), score_grad.new_zeros(key.mT.shape)
    for head in range(len(score_grad)):
        points = _by_feature(query[head]), _by_feature(key[head])
        loops.distances_backward(score_grad[head].numpy(), *points, to_query[head].numpy(), to_key[head].numpy())
    query_grad.add_(to_query.mT)
    key_grad.add_(to_key.mT)


def _by_feature(points: Tensor) -> Floats:
    """Coordinates `[points, features]` as `[features, points]`."""
    coordinates: Floats = points.T.contiguous().numpy()
    return coordinates


class Task(NamedTuple):
    """Some queries of one head, or all queries of several heads; an index into `[heads, q, …]`."""

    heads: slice
    rows: slice


class ScoreBlock(NamedTuple):
    """The scores of the queries of a task and some keys."""

    columns: slice
    scores: Tensor  # [heads, rows, columns]
    visible: NDArray[np.int64]  # [heads · rows]  number of keys of the block, the first ones, that `causal` allows

    @property
    def array(self) -> Floats:
        """The scores, one row per query, `[heads · rows, columns]`."""
        array: Floats = self.scores.flatten(0, 1).numpy()
        return array


@dataclass(frozen=True)
class HeadBlocks:
    """What is the same for every block of every head."""

    distances: bool  # whether scores are -½ times squared distances, else inner products
    mask: Mask | None
    shape: torch.Size  # of the scores, [..., q, k]
    block: tuple[int, int]
    dropout: float
    row_hashes: list[Words]  # of the dropout hash, [heads, q] each
    head_index: NDArray[np.int64]  # [heads, leading dimensions]

    def tasks(self, rows: int) -> list[Task]:
        """Tasks that together cover all queries of all heads.

        Short heads: several whole heads per task, as many as fit one block, but no thread without a task. Long heads:
        some queries of one head per task.
        """
        heads, queries, keys = len(self.head_index), *self.shape[-2:]
        fitting = self.block[0] * self.block[1] // max(1, queries * keys)
        together = min(fitting, -(-heads // torch.get_num_threads()))
        if together > 1:
            return [Task(some, slice(0, queries)) for some in spans(heads, together)]
        return [Task(head, some) for head in spans(heads, 1) for some in spans(queries, rows)]

    def score_blocks(
        self, task: Task, query: Tensor, key: Tensor, scratch: Scratch, dtype: torch.dtype
    ) -> Iterator[ScoreBlock]:
        """The blocks of keys that some queries of the task may see.

        query   [heads, rows, d]  of the task
        key     [heads, k, d]  of the task
        """
        heads, rows, keys = *query.shape[:2], key.shape[1]
        is_causal = any(part is causal for part in parts_of(self.mask))
        for columns in spans(min(keys, task.rows.stop) if is_causal else keys, self.block[1]):
            mask_blocks = self._mask_blocks(task, columns)
            if mask_blocks is None:
                continue
            size = columns.stop - columns.start
            scores = scratch.block(0, (heads, rows, size), dtype)
            _fill_scores(self.distances, query, key[:, columns], scores)
            for part in mask_blocks:
                if part.dtype == torch.bool:
                    scores.masked_fill_(part, -math.inf)
                else:
                    scores.add_(part)
            if is_causal:
                visible = np.clip(np.arange(task.rows.start, task.rows.stop) + 1 - columns.start, 0, size)
            else:
                visible = np.full(rows, size)
            yield ScoreBlock(columns, scores, np.tile(visible, heads))

    def _mask_blocks(self, task: Task, columns: slice) -> list[Tensor] | None:
        """The parts of the mask that change a block, [heads or 1, rows, columns] each; None if all of it is masked.

        A boolean part is returned negated: True = masked. `causal` is not among them.
        """
        relevant = []
        for part in parts_of(self.mask):
            if part is causal:
                continue
            block = block_of(part, task.rows, columns, len(self.shape), torch.device("cpu"))
            axes = block.ndim - 2
            index = self.head_index[task.heads, self.head_index.shape[1] - axes :]  # [heads, axes]
            index = np.where(np.array(block.shape[:axes]) > 1, index, 0)
            if (index == index[0]).all():
                block = block[(*index[0].tolist(), None)]  # a view: an index of several heads would copy
            else:
                block = block[tuple(torch.from_numpy(axis) for axis in index.T)]
            if block.dtype != torch.bool:
                relevant.append(block)
            elif not block.any():
                return None
            elif not block.all():
                relevant.append(~block)
        return relevant

    def row_dropout(self, task: Task, dtype: torch.dtype) -> RowDropout:
        """The dropout of the rows of a task."""
        first, second = (hashes[task].ravel() for hashes in self.row_hashes)
        number = np.float32 if dtype == torch.float32 else np.float64
        threshold = np.uint32(dropout_hash.threshold(self.dropout))
        return RowDropout(first, second, threshold, number(dropout_hash.keep_scale(self.dropout)))


def prepare(job: Job, seed: int, block: tuple[int, int]) -> tuple[HeadBlocks, Tensor, Tensor, Tensor]:
    """The blocks of a job, and query, key and value as `[heads, length, size]`.

    Bandwidths, projections and the scale get their gradients by autograd, outside.
    """
    distances = is_squared_distance(job.score)
    if is_squared_distance(job.score):
        query, key = job.score.as_distance(job.query, job.key)
    else:
        assert is_inner_product(job.score)
        query, key, scale = job.score.as_dot(job.query, job.key)
        query, key = query.to(job.query.dtype) * scale, key.to(job.query.dtype)
    index = np.indices(job.leading).reshape(len(job.leading), math.prod(job.leading)).T  # [heads, leading dimensions]
    heads, queries = torch.arange(len(index)).unsqueeze(-1), torch.arange(job.queries if job.dropout else 0)
    row_hashes = [hashes.numpy().astype(np.uint32) for hashes in dropout_hash.row_hashes(seed, heads, queries)]
    query, key, value = (
        x.expand(*job.leading, *x.shape[-2:]).reshape(len(index), *x.shape[-2:]) for x in (query, key, job.value)
    )
    return HeadBlocks(distances, job.mask, job.shape, block, job.dropout, row_hashes, index), query, key, value


def attend_heads(job: Job, seed: int, block: tuple[int, int]) -> Attended:
    """Means and log weights; dropout applies to the means."""
    mean, log_weight = _FusedAttention.apply(*prepare(job, seed, block))  # type: ignore[no-untyped-call]
    # [heads, q, v] and [heads, q] -> [..., q, v] and [..., q]
    return Attended(mean.view(*job.leading, *mean.shape[1:]), log_weight.view(*job.leading, job.queries))


class _Heads(NamedTuple):
    """The tensors of all heads."""

    query: Tensor  # [heads, q, d]
    key: Tensor  # [heads, k, d]
    value: Tensor  # [heads, k, v]
    mean: Tensor  # [heads, q, v]
    largest: Tensor  # [heads, q]  the largest score
    total: Tensor  # [heads, q]  the sum of exp(score - largest)


class _HeadGradients(NamedTuple):
    """The gradients of all heads. Backward receives `mean` and `offset`, and adds to the other three."""

    mean: Tensor
    offset: Tensor  # [heads, q]  mean' · mean - log_weight'
    query: Tensor
    key: Tensor
    value: Tensor


class _FusedContext(Context):
    """What forward saves beside tensors."""

    blocks: HeadBlocks


class _FusedAttention(torch.autograd.Function):
    """(mean, log_weight) from query, key and value."""

    @staticmethod
    def forward(
        ctx: _FusedContext, blocks: HeadBlocks, query: Tensor, key: Tensor, value: Tensor
    ) -> tuple[Tensor, Tensor]:
        mean = value.new_zeros(*query.shape[:2], value.shape[-1])
        largest, total = value.new_full(query.shape[:2], -math.inf), value.new_zeros(query.shape[:2])
        heads, scratch = _Heads(query, key, value, mean, largest, total), Scratch()
        spread(lambda task: _forward(blocks, task, heads, scratch), blocks.tasks(blocks.block[0]))
        ctx.blocks = blocks
        ctx.save_for_backward(*heads, *tensors_of(blocks.mask))
        return mean, largest + total.log()

    @staticmethod
    @once_differentiable
    def backward(ctx: _FusedContext, mean_grad: Tensor, log_weight_grad: Tensor) -> tuple[Tensor | None, ...]:
        blocks = ctx.blocks
        heads = _Heads(*ctx.saved_tensors[: len(_Heads._fields)])  # raises if a mask's tensor was changed since forward
        query_grad, key_grad, value_grad = (
            torch.zeros_like(x, memory_format=torch.contiguous_format) for x in (heads.query, heads.key, heads.value)
        )
        offset = (mean_grad * heads.mean).sum(dim=-1) - log_weight_grad
        grads = _HeadGradients(mean_grad, offset, query_grad, key_grad, value_grad)
        scratch = Scratch()
        # Where heads are fewer than threads, a head's queries are divided among them; each part has key and
        # value gradients of its own, added up below in a fixed order.
        threads, queries = torch.get_num_threads(), blocks.shape[-2]
        tasks = blocks.tasks(max(1, queries if len(heads.query) >= threads else -(-queries // threads)))

        def run(task: Task) -> _HeadGradients:
            own = grads._replace(key=grads.key[task.heads], value=grads.value[task.heads])
            if task.rows.start:
                own = own._replace(key=torch.zeros_like(own.key), value=torch.zeros_like(own.value))
            for rows in spans(task.rows.stop, blocks.block[0], task.rows.start):
                _backward(blocks, Task(task.heads, rows), heads, own, scratch)
            return own

        for task, own in zip(tasks, spread(run, tasks), strict=True):
            if task.rows.start:
                grads.key[task.heads] += own.key
                grads.value[task.heads] += own.value
        return None, query_grad, key_grad, value_grad


def _forward(blocks: HeadBlocks, task: Task, heads: _Heads, scratch: Scratch) -> None:
    """Fill in the mean, the largest score and the sum of the queries of a task."""
    query, mean = heads.query[task].contiguous(), heads.mean[task]
    key, value = heads.key[task.heads], heads.value[task.heads]
    # The rows of a task are contiguous: these arrays are views.
    sums = RowSums(*(x.flatten(0, 1).numpy() for x in (heads.largest[task], heads.total[task], mean)))
    dropout = blocks.row_dropout(task, value.dtype)
    for block in blocks.score_blocks(task, query, key, scratch, value.dtype):
        loops.softmax_block(block.array, block.visible, sums, dropout, block.columns.start)
        mean.baddbmm_(block.scores, value[:, block.columns])
    loops.normalise(sums.total, sums.weighted)


def _backward(blocks: HeadBlocks, task: Task, heads: _Heads, grads: _HeadGradients, scratch: Scratch) -> None:
    """Add the contribution of the queries of a task to the gradients; those of keys and values are the task's own."""
    query = heads.query[task].contiguous()
    key, value, mean_grad = heads.key[task.heads], heads.value[task.heads], grads.mean[task].contiguous()
    rows = RowGradients(*(x[task].flatten().numpy() for x in (heads.largest, heads.total, grads.offset)))
    dropout = blocks.row_dropout(task, value.dtype)
    for block in blocks.score_blocks(task, query, key, scratch, value.dtype):
        columns, weight = block.columns, block.scores
        score_grad = scratch.block(1, weight.shape, value.dtype)
        torch.bmm(mean_grad, value[:, columns].mT, out=score_grad)
        loops.softmax_block_backward(
            block.array, score_grad.flatten(0, 1).numpy(), block.visible, rows, dropout, columns.start
        )
        grads.value[:, columns].baddbmm_(weight.mT, mean_grad)
        _add_gradients(blocks.distances, score_grad, query, key[:, columns], grads.query[task], grads.key[:, columns])
