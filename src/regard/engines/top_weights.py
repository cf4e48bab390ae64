"""The largest weights of each query, by blocks of keys: what `look(top=…)` gives, without the matrix."""

import math

import torch
from torch import Tensor

from regard.compiled.threads import Scratch, spread
from regard.engines.dense import masked_scores
from regard.engines.job import Job, spans
from regard.engines.stream import cache_block, columns_in_reach, fusible, row_reach


@torch.no_grad()
def top_weights(job: Job, top: int) -> tuple[Tensor, Tensor]:
    """Keys and weights `[..., q, top]`, in descending order; where a query may see fewer, key -1 and weight 0.

    A query that sees a NaN gets key -1 and weight NaN.
    """
    best, index, log_weight = _fused_scores(job, top) if fusible(job) else _block_scores(job, top)
    log_weight = log_weight.unsqueeze(-1)
    has_nan = log_weight.isnan()
    weight = (best - log_weight).exp().masked_fill(log_weight == -math.inf, 0.0)
    return index.masked_fill(has_nan, -1), weight.masked_fill(has_nan, math.nan).to(job.query.dtype)


def _block_scores(job: Job, top: int) -> tuple[Tensor, Tensor, Tensor]:
    """The largest scores, their keys, and the log weight of all keys, for any score on any device.

    Each block is joined with the best scores so far, of which the best are taken again.
    """
    best = job.query.new_full([*job.shape[:-1], top], -math.inf)
    index = torch.full_like(best, -1, dtype=torch.long)
    log_weight = job.query.new_full(job.shape[:-1], -math.inf)
    reach, (queries, keys) = row_reach(job), cache_block(job)
    for rows in spans(job.queries, queries):
        for columns in columns_in_reach(job.mask, reach, rows, keys):
            scores = masked_scores(job, rows, columns)
            log_weight[..., rows] = torch.logaddexp(log_weight[..., rows], scores.logsumexp(dim=-1))
            key_index = torch.arange(columns.start, columns.stop, device=best.device).expand(scores.shape)
            joined = torch.cat([best[..., rows, :], scores], dim=-1)
            joined_index = torch.cat([index[..., rows, :], key_index], dim=-1)
            best[..., rows, :], order = joined.topk(top, dim=-1)
            index[..., rows, :] = joined_index.gather(-1, order)
    return best, index.masked_fill(best == -math.inf, -1), log_weight


def _fused_scores(job: Job, top: int) -> tuple[Tensor, Tensor, Tensor]:
    """The same for the scores that the CPU's fused loops know."""
    from regard.engines import fused
    from regard.engines import fused_loops as loops

    blocks, query, key, value = fused.prepare(job, 0, fused.BLOCK)
    best = value.new_full([*blocks.shape[:-1], top], -math.inf)
    index = torch.full_like(best, -1, dtype=torch.long)
    largest, total = best.new_full(blocks.shape[:-1], -math.inf), best.new_zeros(blocks.shape[:-1])
    shape = query.shape[:2]  # heads, rows
    results = [x.view(*shape, *x.shape[len(job.shape) - 1 :]) for x in (best, index, largest, total)]
    scratch = Scratch()

    def run(task: fused.Task) -> None:
        parts = [x[task].contiguous() for x in results]
        arrays = [x.flatten(0, 1).numpy() for x in parts]
        for block in blocks.score_blocks(task, query[task].contiguous(), key[task.heads], scratch, best.dtype):
            loops.update_top(block.array, block.visible, *arrays, block.columns.start)
        for result, part in zip(results, parts, strict=True):
            result[task] = part

    spread(run, blocks.tasks())
    return best, index, largest + total.masked_fill(total == 0, 1.0).log()
