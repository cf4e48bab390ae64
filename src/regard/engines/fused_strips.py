"""Strips (`strips.py`) of inner products and squared distances on the CPU: heads and queries spread over threads.

As in `fused.py`, tensors are `[heads, rows, size]`, a task is some rows of one or several heads, and its blocks of
scores stay in the cache of its core.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from regard.compiled import dropout_hash
from regard.compiled.threads import Scratch, spread
from regard.engines import sparse_loops as loops
from regard.engines.fused import HeadBlocks, Task, add_gradients, prepare, spread_backward
from regard.engines.job import Job, reachable_pairs
from regard.engines.strips import COLUMNS, row_of, strip_gradients
from regard.masks.evaluation import tensors_of
from regard.torch_modes import Context, once_differentiable
from regard.weighing import BlockWeighing, Derivatives, SparseWeighing

STRIP = 2**18
"""Numbers of one strip: 1 MiB of float32."""
LEAST_ROWS = 16
"""Queries of a strip, if they have so many keys that it does not fit the cache: matrix products need some."""


def strip_sizes(job: Job) -> tuple[int, int]:
    """Queries and keys of a block."""
    seen = reachable_pairs(job) // max(1, job.pairs // max(1, job.keys))
    return max(LEAST_ROWS, min(512, STRIP // max(1, seen))), COLUMNS


def attend_strips(job: Job, weigh: BlockWeighing, seed: int, block: tuple[int, int]) -> Tensor:
    """Means `[..., q, v]`."""
    blocks, query, key, value = prepare(job, seed, block)
    mean: Tensor = _FusedWeighed.apply(blocks, weigh, query, key, value)  # type: ignore[no-untyped-call]
    return mean.view(*job.leading, job.queries, mean.shape[-1]).to(job.value.dtype)  # [heads, rows, v] -> [..., q, v]


class _FusedContext(Context):
    """What forward saves beside tensors."""

    blocks: HeadBlocks
    weigh: BlockWeighing


class _FusedWeighed(torch.autograd.Function):
    """The mean from query, key and value."""

    @staticmethod
    def forward(
        ctx: _FusedContext, blocks: HeadBlocks, weigh: BlockWeighing, query: Tensor, key: Tensor, value: Tensor
    ) -> Tensor:
        mean = value.new_zeros(*query.shape[:2], value.shape[-1])
        row = row_of(weigh, [mean[..., :0]]).clone()  # of queries without a visible key
        scratch = Scratch()

        def run(task: Task) -> None:
            columns, scores = _strip(blocks, task, query, key, scratch)
            if not scores:
                return
            own, some_row, some_value = mean[task].contiguous(), row_of(weigh, scores), value[task.heads]
            strip = _Strip(columns, scores, some_row, query[task], key[task.heads], some_value, own)
            if not _average_sparse(blocks, weigh, strip, own):
                for some, block in zip(columns, scores, strict=True):
                    weight = weigh.weights(block, some_row)
                    weight = weight * _dropout_factor(blocks, task, some, weight) if blocks.dropout else weight
                    own.baddbmm_(weight, some_value[:, some])
            mean[task], row[task] = own, some_row

        spread(run, blocks.tasks())
        ctx.blocks, ctx.weigh = blocks, weigh
        ctx.save_for_backward(query, key, value, row, *tensors_of(blocks.mask))
        return mean

    @staticmethod
    @once_differentiable
    def backward(ctx: _FusedContext, mean_grad: Tensor) -> tuple[Tensor | None, ...]:
        blocks, weigh = ctx.blocks, ctx.weigh
        query, key, value, row, *_ = ctx.saved_tensors  # raises if a mask's tensor was changed since forward
        query_grad, key_grad, value_grad = (
            torch.zeros_like(x, memory_format=torch.contiguous_format) for x in (query, key, value)
        )
        scratch = Scratch()

        def add(task: Task, key_grad: Tensor, value_grad: Tensor) -> None:
            columns, scores = _strip(blocks, task, query, key, scratch)
            some_query, own_grad = query[task].contiguous(), mean_grad[task].contiguous()

            some_row, some_value, some_query_grad = row[task].contiguous(), value[task.heads], query_grad[task]
            strip = _Strip(columns, scores, some_row, some_query, key[task.heads], some_value, own_grad)
            if _add_sparse(blocks, weigh, strip, some_query_grad, key_grad, value_grad):
                return

            def weight_grad(number: int, _: Derivatives) -> Tensor:
                return torch.bmm(own_grad, some_value[:, columns[number]].mT)

            def factor(number: int) -> Tensor:
                return _dropout_factor(blocks, task, columns[number], own_grad)

            found = strip_gradients(weigh, some_row, scores, weight_grad, factor if blocks.dropout else None)
            for number, _, used, score_grad in found:
                some = columns[number]
                value_grad[:, some].baddbmm_(used.mT, own_grad)
                targets = some_query_grad, key_grad[:, some]
                add_gradients(blocks.distances, score_grad, some_query, strip.key[:, some], *targets)

        spread_backward(blocks, key_grad, value_grad, add)
        return None, None, query_grad, key_grad, value_grad


class _Strip(NamedTuple):
    """A strip and the tensors of its task."""

    columns: list[slice]
    scores: list[Tensor]  # [heads, rows, columns] each
    row: Tensor  # [heads, rows, n]
    query: Tensor  # [heads, rows, d]
    key: Tensor  # [heads, k, d]
    value: Tensor  # [heads, k, v]
    mean_grad: Tensor  # [heads, rows, v]


def _thresholded(
    blocks: HeadBlocks, weigh: BlockWeighing, row: Tensor, scores: Sequence[Tensor]
) -> tuple[loops.Sparse, list[int]] | None:
    """For a sparse weighing of which few keys have a weight: the scores lose what is below the threshold, in place.

    Also the number of keys of each block that have a weight. Otherwise None, and the scores stay as they are.
    """
    if not isinstance(weigh, SparseWeighing) or blocks.dropout:
        return None
    sparse = loops.Sparse(row.numpy(), weigh.scale, weigh.power)
    counts = [loops.count_above(block.numpy(), sparse) for block in scores]
    if sum(counts) > loops.FEW * sum(block.numel() for block in scores):
        return None
    for block, count in zip(scores, counts, strict=True):
        if count:
            loops.subtract_thresholds(block.numpy(), sparse)
    return sparse, counts


def _average_sparse(blocks: HeadBlocks, weigh: BlockWeighing, strip: _Strip, mean: Tensor) -> bool:
    """Fill in the mean from the keys that have a weight, if they are few."""
    found = _thresholded(blocks, weigh, strip.row, strip.scores)
    if found is None:
        return False
    sparse, counts = found
    for some, block, count in zip(strip.columns, strip.scores, counts, strict=True):
        if count:
            loops.add_mean(*loops.arrays(block), sparse.power, *loops.arrays(strip.value[:, some], mean))
    return True


def _add_sparse(
    blocks: HeadBlocks, weigh: BlockWeighing, strip: _Strip, query_grad: Tensor, key_grad: Tensor, value_grad: Tensor
) -> bool:
    """Add to the gradients from the keys that have a weight, if they are few."""
    found = _thresholded(blocks, weigh, strip.row, strip.scores)
    if found is None:
        return False
    sparse, counts = found
    offset = strip.row.new_zeros(strip.row.shape[:-1])
    seen = [(some, block) for some, block, count in zip(strip.columns, strip.scores, counts, strict=True) if count]
    for some, block in seen:
        of_mean = loops.arrays(strip.value[:, some], strip.mean_grad, offset)
        loops.add_offset(block.numpy(), sparse, *of_mean)
    for some, block in seen:
        of_mean = loops.arrays(strip.value[:, some], strip.mean_grad, offset, value_grad[:, some])
        loops.add_value_gradient(block.numpy(), sparse.power, *of_mean)
        pair = strip.query, strip.key[:, some], query_grad, key_grad[:, some]
        if blocks.distances:
            add_gradients(True, block, *pair)
        else:
            loops.add_score_gradient(block.numpy(), *loops.arrays(*pair))
    return True


def _strip(
    blocks: HeadBlocks, task: Task, query: Tensor, key: Tensor, scratch: Scratch
) -> tuple[list[slice], list[Tensor]]:
    """Which keys the blocks of a strip have, and their scores `[heads, rows, columns]`, -inf where out of reach."""
    columns, scores = [], []
    held = blocks.score_blocks(task, query[task].contiguous(), key[task.heads], scratch, key.dtype, held=True)
    for some, block, visible in held:
        size = block.shape[-1]
        if visible[0].max() > 0 or visible[1].min() < size:
            first, stop = torch.tensor(visible).view(2, *block.shape[:2], 1)
            index = torch.arange(size)
            block.masked_fill_((index < first) | (index >= stop), -torch.inf)
        columns.append(some)
        scores.append(block)
    return columns, scores


def _dropout_factor(blocks: HeadBlocks, task: Task, columns: slice, like: Tensor) -> Tensor:
    """The factor of each weight of a block, `[heads, rows, columns]`: 0 where dropped."""
    first, second = (torch.from_numpy(hashes[task].astype("int64")).unsqueeze(-1) for hashes in blocks.row_hashes)
    keep = dropout_hash.keep_mask(blocks.dropout, first, second, torch.arange(columns.start, columns.stop))
    return keep.to(like.dtype) * dropout_hash.keep_scale(blocks.dropout)
