"""The largest weights of each query, by blocks of keys: what `look(top=…)` gives, without the matrix."""

import math

import torch
from torch import Tensor

from regard.compiled.threads import Scratch, spread
from regard.engines.dense import masked_scores
from regard.engines.job import Job, spans
from regard.engines.stream import cache_block, fusible


@torch.no_grad()
def top_weights(job: Job, top: int) -> tuple[Tensor, Tensor]:
    """Keys and weights `[..., q, top]`, in descending order; where a query may see fewer, key -1 and weight 0.

    A query that sees a NaN gets key -1 and weight NaN.
    """
    best, index, log_weight = _fused_scores(job, top) if fusible(job) else _block_scores(job, top)
    log_weight = log_weight.unsqueeze(-1)
    has_nan = log_weight.isnan()
    weight = (best - log_weight).exp().masked_fill(log_weight == -math.inf, 0.0)
    return index.masked_fill(has_nan, -1), weight.masked_fill(has_nan, math.nan)


def _block_scores(job: Job, top: int) -> tuple[Tensor, Tensor, Tensor]:
    """The largest scores, their keys, and the log weight of all keys, for any score on any device.

    Each block is joined with the best scores so far, of which the best are taken again.
    """
    best = job.query.new_full([*job.shape[:-1], top], -math.inf)
    index = torch.full_like(best, -1, dtype=torch.long)
    log_weight = job.query.new_full(job.shape[:-1], -math.inf)
    queries, keys = cache_block(job)
    for rows in spans(job.queries, queries):
        for columns in spans(job.keys, keys):
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

    blocks, query, key, _ = fused.prepare(job, 0, fused.BLOCK)
    best = job.query.new_full([*blocks.shape[:-1], top], -math.inf)
    index = torch.full_like(best, -1, dtype=torch.long)
    largest, total = best.new_full(blocks.shape[:-1], -math.inf), best.new_zeros(blocks.shape[:-1])
    results = [x.view(len(query), *x.shape[len(job.leading) :]) for x in (best, index, largest, total)]  # [heads, q, …]
    scratch = Scratch()

    def run(task: fused.Task) -> None:
        # Rows of a task are contiguous: these arrays are views.
        top_score, top_key, peak, summed = (x[task].flatten(0, 1).numpy() for x in results)
        for block in blocks.score_blocks(task, query[task].contiguous(), key[task.heads], scratch, best.dtype):
            loops.update_top(block.array, block.visible, top_score, top_key, peak, summed, block.columns.start)

    spread(run, blocks.tasks(blocks.block[0]))
    return best, index, largest + total.masked_fill(total == 0, 1.0).log()
