"""The `stream` engine's fused algorithm on the CPU: inner products and squared distances, spread over threads.

A task is some queries of one head. Its blocks of scores fit the cache of the core it runs on, where torch's matrix
products and the Numba loops of `fused_loops.py` take turns on them. x' is the gradient of the loss with respect to x:

    forward     scores = q kᵀ;  softmax_block;  sums = sums · decay + weights v
    backward    scores = q kᵀ;  gradient = mean' vᵀ;  softmax_block_backward;
                v' += weightsᵀ mean';  q' += gradient k;  k' += gradientᵀ q

Results are the same to the bit from run to run: tasks write to memory of their own, and where several
contribute to a key's gradient they are summed in a fixed order.

A short head takes less time than starting a task for it. So one task computes as many heads as fit one block: tensors
are `[heads, length, size]`, where `heads` counts over all leading dimensions of the keys. Query heads that share one
head of keys, a group, are more queries of it: `[heads, rows, size]`, where rows counts the queries of all members.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.compiled import dropout_hash
from regard.compiled.math import Floats, Words
from regard.compiled.threads import Scratch, spread
from regard.engines import fused_loops as loops
from regard.engines.fused_loops import RowDropout, RowGradients, RowSums
from regard.engines.heads import Heads, heads_of
from regard.engines.job import Job, spans
from regard.masks import Mask
from regard.masks.evaluation import block_of, is_solid, parts_of, tensors_of, touches
from regard.parts import Attended
from regard.torch_modes import Context, once_differentiable

BLOCK = (512, 512)
"""Queries and keys of one block: 1 MiB of float32 scores, and as much of gradients, in a core's L2 cache."""
NARROW_ROWS = 128
"""Queries of one block where each has few keys in reach."""
SHARED_ROWS = 64
"""Queries of one block, at least, where its other rows are of other heads."""


def _fill_scores(distances: bool, query: Tensor, key: Tensor, out: Tensor) -> None:
    """query · key, or -½‖query - key‖² from the differences of float64 coordinates; all `[heads, length, size]`."""
    if not distances:
        torch.bmm(query, key.mT, out=out)
        return
    for head in range(len(out)):
        loops.distances(_by_feature(query[head]), _by_feature(key[head]), out[head].numpy())


def add_gradients(
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
    """Some rows of one or several heads; an index into `[heads, rows, …]`."""

    heads: slice
    rows: slice


class ScoreBlock(NamedTuple):
    """The scores of the queries of a task and some keys."""

    columns: slice
    scores: Tensor  # [heads, rows, columns]
    visible: NDArray[np.int64]  # [2, heads · rows]  of the keys of the block, the first in reach, and one past the last

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
    reach: NDArray[np.int64]  # [2, heads or 1, rows]  the first key that a query may see, and one past the last
    shape: torch.Size  # of the scores, [..., q, k]
    block: tuple[int, int]
    dropout: float
    row_hashes: list[Words]  # of the dropout hash, [heads, rows] each
    head_index: NDArray[np.int64]  # [query heads, leading dimensions]
    groups: int  # query heads for each head of keys
    start: tuple[int, int]  # as in `Job`

    def sizes(self) -> tuple[int, int]:
        """Queries of one block, and heads that are computed together.

        Queries with few keys in reach: few at a time, since their blocks hold the keys of all of them. As many heads
        as fit one block, but no thread without a task.
        """
        heads, queries, keys = len(self.head_index) // self.groups, self.shape[-2] * self.groups, self.shape[-1]
        rows, columns = self.block
        seen = int((self.reach[1] - self.reach[0]).mean()) if self.reach.size else 0
        if seen <= min(keys, columns) // 2:
            rows = min(rows, NARROW_ROWS)
            columns = min(columns, seen + rows)
        columns, threads = max(1, min(keys, columns)), torch.get_num_threads()
        if any(not is_solid(part) and not isinstance(part, Tensor) for part in parts_of(self.mask)):
            # A mask is called once for all heads of a block: fewer rows of more heads.
            rows = max(min(rows, SHARED_ROWS), rows // max(1, -(-heads // threads)))
        if heads < threads:  # the same number of blocks for each thread
            count = -(-queries // rows)
            rows = max(1, -(-queries // max(1, -(-count // threads) * threads)))
        together = self.block[0] * self.block[1] // max(1, min(queries, rows) * columns)
        return rows, max(1, min(together, -(-heads // threads)))

    def head_spans(self) -> Iterator[slice]:
        """Heads that are computed together."""
        return spans(len(self.head_index) // self.groups, self.sizes()[1])

    def row_spans(self) -> list[slice]:
        """The rows of one block after the other. A block has one member of a group, unless queries are few."""
        queries, size = self.shape[-2], self.sizes()[0]
        if queries <= size and all(is_solid(part) for part in parts_of(self.mask)):
            return list(spans(self.groups * queries, size))
        ends = range(queries, self.groups * queries + 1, queries) if queries else ()
        return [rows for end in ends for rows in spans(end, size, end - queries)]

    def tasks(self) -> list[Task]:
        """Blocks of rows that together cover all heads."""
        return [Task(heads, rows) for heads in self.head_spans() for rows in self.row_spans()]

    def score_blocks(
        self, task: Task, query: Tensor, key: Tensor, scratch: Scratch, dtype: torch.dtype, *, held: bool = False
    ) -> Iterator[ScoreBlock]:
        """The blocks of keys that some queries of the task may see.

        query   [heads, rows, d]  of the task
        key     [heads, k, d]  of the task
        held    whether a block stays as it is when the next one is computed
        """
        heads, rows = query.shape[:2]
        first, stop = self.reach[:, task.heads if self.reach.shape[1] > 1 else slice(None), task.rows]
        if not first.size:
            return
        for number, columns in enumerate(spans(int(stop.max()), self.block[1], int(first.min()))):
            mask_blocks = self._mask_blocks(task, columns)
            if mask_blocks is None:
                continue
            size = columns.stop - columns.start
            scores = scratch.block(number if held else 0, (heads, rows, size), dtype)
            _fill_scores(self.distances, query, key[:, columns], scores)
            for part in mask_blocks:
                if part.dtype == torch.bool:
                    scores.masked_fill_(part, -math.inf)
                else:
                    scores.add_(part)
            visible = np.stack([first, stop]) - columns.start
            visible = np.broadcast_to(visible.clip(0, size), (2, heads, rows)).reshape(2, heads * rows)
            yield ScoreBlock(columns, scores, visible)

    def _mask_blocks(self, task: Task, columns: slice) -> list[Tensor] | None:
        """The parts of the mask that change a block, [heads or 1, rows, columns] each; None if all of it is masked.

        A boolean part is returned negated: True = masked. Parts that say no more than their reach are not among them.
        """
        member, start = divmod(task.rows.start, self.shape[-2])
        rows = slice(start, start + task.rows.stop - task.rows.start)
        if not touches(self.mask, rows, columns):
            return None
        relevant = []
        for part in parts_of(self.mask):
            if is_solid(part):
                continue
            block = block_of(part, rows, columns, len(self.shape), torch.device("cpu"))
            axes = block.ndim - 2
            heads = slice(task.heads.start * self.groups + member, task.heads.stop * self.groups, self.groups)
            index = self.head_index[heads, self.head_index.shape[1] - axes :]  # [heads, axes]
            index = np.where(np.array(block.shape[:axes]) > 1, index, 0)
            block = _entries(block, index)
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


def _entries(block: Tensor, index: NDArray[np.int64]) -> Tensor:
    """Entries `[heads, rows, columns]` of a block `[..., rows, columns]`, by the index of each, `[heads, axes]`.

    A view where possible, with one entry for all heads if they are the same.
    """
    if not index.shape[1]:
        return block.unsqueeze(0)
    numbers = np.ravel_multi_index(tuple(index.T), block.shape[:-2])
    block, first, steps = block.flatten(0, -3), int(numbers[0]), np.diff(numbers)
    if not steps.any():
        return block[first : first + 1]
    return block[first : first + len(numbers)] if (steps == 1).all() else block[torch.from_numpy(numbers)]


def prepare(job: Job, seed: int, block: tuple[int, int]) -> tuple[HeadBlocks, Tensor, Tensor, Tensor]:
    """The blocks of a job; query, key and value as `Heads` has them."""
    heads = heads_of(job)
    blocks = make_blocks(heads, job.mask, job.shape, job.dropout, seed, block, job.start)
    return blocks, heads.query, heads.key, heads.value


def make_blocks(
    heads: Heads,
    mask: Mask | None,
    shape: torch.Size,
    dropout: float,
    seed: int,
    block: tuple[int, int],
    start: tuple[int, int] = (0, 0),
) -> HeadBlocks:
    """What is the same for every block, for scores of this shape, `[..., q, k]`."""
    leading = shape[:-2]
    index = np.indices(leading).reshape(len(leading), math.prod(leading)).T  # [query heads, leading dimensions]
    number, queries = torch.arange(len(index)).unsqueeze(-1), torch.arange(shape[-2] if dropout else 0) + start[0]
    hashes = [words.numpy().astype(np.uint32) for words in dropout_hash.row_hashes(seed, number, queries)]
    hashes = [words.reshape(len(heads.key), heads.groups * words.shape[1]) for words in hashes]  # [heads, rows]
    reach = heads.reach.numpy()
    return HeadBlocks(heads.distances, mask, reach, shape, block, dropout, hashes, index, heads.groups, start)


def attend_heads(job: Job, seed: int, block: tuple[int, int], whole: Attended | None = None) -> Attended:
    """Means, and log weights in float32 at least; dropout applies to the means. As `stream.attend_seeded`."""
    blocks, query, key, value = prepare(job, seed, block)
    if whole is not None:  # [..., q, v] and [..., q] -> [heads, rows, v] and [heads, rows]
        rows = query.shape[:2]
        whole = Attended(
            whole.mean.to(value.dtype).reshape(*rows, value.shape[-1]), whole.log_weight.to(value.dtype).reshape(rows)
        )
    mean, log_weight = _FusedAttention.apply(blocks, whole, query, key, value)  # type: ignore[no-untyped-call]
    # [heads, rows, v] and [heads, rows] -> [..., q, v] and [..., q]
    mean = mean.view(*job.leading, job.queries, mean.shape[-1])
    log_weight = log_weight.view(*job.leading, job.queries)
    return Attended(mean.to(job.value.dtype), log_weight)


class HeadSums(NamedTuple):
    """The tensors of all heads."""

    query: Tensor  # [heads, rows, d]
    key: Tensor  # [heads, k, d]
    value: Tensor  # [heads, k, v]
    mean: Tensor  # [heads, rows, v]
    largest: Tensor  # [heads, rows]  the largest score
    total: Tensor  # [heads, rows]  the sum of exp(score - largest)


class _HeadGradients(NamedTuple):
    """The gradients of all heads. Backward receives `mean` and `offset`, and adds to the other three."""

    mean: Tensor
    offset: Tensor  # [heads, rows]  mean' · mean - log_weight'
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
        ctx: _FusedContext, blocks: HeadBlocks, whole: Attended | None, query: Tensor, key: Tensor, value: Tensor
    ) -> tuple[Tensor, Tensor]:
        if whole is None:
            heads = forward(blocks, query, key, value)
        else:
            mean, log_weight = whole
            heads = HeadSums(query, key, value, mean.detach(), log_weight, torch.ones_like(log_weight))
        ctx.blocks = blocks
        ctx.save_for_backward(*heads, *tensors_of(blocks.mask))
        return heads.mean, heads.largest + heads.total.log()

    @staticmethod
    @once_differentiable
    def backward(ctx: _FusedContext, mean_grad: Tensor, log_weight_grad: Tensor) -> tuple[Tensor | None, ...]:
        blocks = ctx.blocks
        heads = HeadSums(
            *ctx.saved_tensors[: len(HeadSums._fields)]
        )  # raises if a mask's tensor was changed since forward
        return None, None, *backward(blocks, heads, mean_grad, log_weight_grad)


def forward(blocks: HeadBlocks, query: Tensor, key: Tensor, value: Tensor) -> HeadSums:
    """The means of all heads, and the sums that backward needs."""
    mean = value.new_zeros(*query.shape[:2], value.shape[-1])
    largest, total = value.new_full(query.shape[:2], -math.inf), value.new_zeros(query.shape[:2])
    heads, scratch = HeadSums(query, key, value, mean, largest, total), Scratch()
    spread(lambda task: _forward(blocks, task, heads, scratch), blocks.tasks())
    return heads


def backward(blocks: HeadBlocks, heads: HeadSums, mean_grad: Tensor, log_weight_grad: Tensor) -> tuple[Tensor, ...]:
    """The gradients of query, key and value."""
    query_grad, key_grad, value_grad = (
        torch.zeros_like(x, memory_format=torch.contiguous_format) for x in (heads.query, heads.key, heads.value)
    )
    offset = (mean_grad * heads.mean).sum(dim=-1) - log_weight_grad
    grads, scratch = _HeadGradients(mean_grad, offset, query_grad, key_grad, value_grad), Scratch()

    def add(task: Task, key_grad: Tensor, value_grad: Tensor) -> None:
        _backward(blocks, task, heads, grads._replace(key=key_grad, value=value_grad), scratch)

    spread_backward(blocks, key_grad, value_grad, add)
    return query_grad, key_grad, value_grad


def spread_backward(
    blocks: HeadBlocks, key_grad: Tensor, value_grad: Tensor, add: Callable[[Task, Tensor, Tensor], None]
) -> None:
    """Call `add` for each task, with the gradients of keys and values of its heads, to which it adds.

    Where heads are fewer than threads, a head's rows are divided among them; each part has key and value gradients of
    its own, added up below in a fixed order.
    """
    row_spans = blocks.row_spans()
    parts = 1 if len(key_grad) >= torch.get_num_threads() else torch.get_num_threads()
    divided = [row_spans[part] for part in spans(len(row_spans), max(1, -(-len(row_spans) // parts)))]
    tasks = list(itertools.product(blocks.head_spans(), divided))

    def run(task: tuple[slice, list[slice]]) -> tuple[Tensor, Tensor]:
        some, parts = task
        own = key_grad[some], value_grad[some]
        if parts[0].start:
            own = torch.zeros_like(own[0]), torch.zeros_like(own[1])
        for rows in parts:
            add(Task(some, rows), *own)
        return own

    for (some, parts_of_rows), own in zip(tasks, spread(run, tasks), strict=True):
        if parts_of_rows[0].start:
            key_grad[some] += own[0]
            value_grad[some] += own[1]


def _forward(blocks: HeadBlocks, task: Task, heads: HeadSums, scratch: Scratch) -> None:
    """Fill in the mean, the largest score and the sum of the queries of a task."""
    query, key, value = heads.query[task].contiguous(), heads.key[task.heads], heads.value[task.heads]
    # Some queries of several heads are not contiguous: the loops write to memory that is.
    parts = largest, total, mean = [x[task].contiguous() for x in (heads.largest, heads.total, heads.mean)]
    sums = RowSums(*(x.flatten(0, 1).numpy() for x in parts))
    dropout = blocks.row_dropout(task, value.dtype)
    for block in blocks.score_blocks(task, query, key, scratch, value.dtype):
        loops.softmax_block(block.array, block.visible, sums, dropout, blocks.start[1] + block.columns.start)
        mean.baddbmm_(block.scores, value[:, block.columns])
    loops.normalise(sums.total, sums.weighted)
    heads.largest[task], heads.total[task], heads.mean[task] = largest, total, mean


def _backward(blocks: HeadBlocks, task: Task, heads: HeadSums, grads: _HeadGradients, scratch: Scratch) -> None:
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
            block.array,
            score_grad.flatten(0, 1).numpy(),
            block.visible,
            rows,
            dropout,
            blocks.start[1] + columns.start,
        )
        grads.value[:, columns].baddbmm_(weight.mT, mean_grad)
        add_gradients(blocks.distances, score_grad, query, key[:, columns], grads.query[task], grads.key[:, columns])
