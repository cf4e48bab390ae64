"""The largest weights of each query, by blocks of keys: what `look(top=…)` gives, without the matrix."""

import math

import torch
from torch import Tensor

from regard.compiled.threads import Scratch, spread
from regard.engines.dense import masked_scores
from regard.engines.job import Job, spans
from regard.engines.stream import cache_block, columns_in_reach, fusible, row_reach
from regard.weighing import BlockWeighing, Sinks


@torch.no_grad()
def top_weights(job: Job, top: int) -> tuple[Tensor, Tensor]:
    """Keys and weights `[..., q, top]`, in descending order; where a query may see fewer, key -1 and weight 0.

    A query that sees a NaN gets key -1 and weight NaN.
    """
    if isinstance(job.weigh, BlockWeighing):
        index, weight = _block_weights(job, job.weigh, top)
        has_nan = weight.isnan().any(dim=-1, keepdim=True)
    else:
        best, index, log_weight = _fused_scores(job, top) if fusible(job) else _block_scores(job, top)
        log_weight = log_weight.unsqueeze(-1)
        has_nan = log_weight.isnan()
        weight = (best - log_weight).exp().masked_fill(log_weight == -math.inf, 0.0)
        if isinstance(job.weigh, Sinks):
            weight = weight * job.weigh.fraction(log_weight.squeeze(-1)).unsqueeze(-1)
    return index.masked_fill(has_nan, -1), weight.masked_fill(has_nan, math.nan).to(job.query.dtype)


def _block_weights(job: Job, weigh: BlockWeighing, top: int) -> tuple[Tensor, Tensor]:
    """The keys with the largest weights, which have the largest scores, and these weights; key -1 has no weight."""
    wide = torch.promote_types(job.query.dtype, torch.float32)
    best = job.query.new_full([*job.shape[:-1], top], -math.inf, dtype=wide)
    index = torch.full_like(best, -1, dtype=torch.long)
    reach, (queries, keys) = row_reach(job), cache_block(job)
    for rows in spans(job.queries, queries):
        states = []
        for columns in columns_in_reach(job.mask, reach, rows, keys):
            scores = masked_scores(job, rows, columns).to(wide)
            states.append(weigh.lift(scores))
            _keep_best(best[..., rows, :], index[..., rows, :], scores, columns)
            states = [weigh.merge(states)]
        row = weigh.finish(states[0] if states else weigh.lift(best[..., rows, :0]))
        best[..., rows, :] = weigh.weights(best[..., rows, :], row)
    return index.masked_fill(best == 0, -1), best


def _keep_best(best: Tensor, index: Tensor, scores: Tensor, columns: slice) -> None:
    """Join a block with the best scores so far, of which the best are taken again; in place."""
    key_index = torch.arange(columns.start, columns.stop, device=best.device).expand(scores.shape)
    joined = torch.cat([best, scores], dim=-1)
    joined_index = torch.cat([index, key_index], dim=-1)
    best[...], order = joined.topk(best.shape[-1], dim=-1)
    index[...] = joined_index.gather(-1, order)


def _block_scores(job: Job, top: int) -> tuple[Tensor, Tensor, Tensor]:
    """The largest scores, their keys, and the log weight of all keys, for any score on any device."""
    best = job.query.new_full([*job.shape[:-1], top], -math.inf)
    index = torch.full_like(best, -1, dtype=torch.long)
    log_weight = job.query.new_full(job.shape[:-1], -math.inf)
    reach, (queries, keys) = row_reach(job), cache_block(job)
    for rows in spans(job.queries, queries):
        for columns in columns_in_reach(job.mask, reach, rows, keys):
            scores = masked_scores(job, rows, columns)
            log_weight[..., rows] = torch.logaddexp(log_weight[..., rows], scores.logsumexp(dim=-1))
            _keep_best(best[..., rows, :], index[..., rows, :], scores, columns)
    return best, index.masked_fill(best == -math.inf, -1), log_weight


def _fused_scores(job: Job, top: int) -> tuple[Tensor, Tensor, Tensor]:
    """The same for the scores that the CPU's fused loops know."""
    from regard.engines import fused, top_loops

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
            top_loops.update_top(block.array, block.visible, *arrays, block.columns.start)
        for result, part in zip(results, parts, strict=True):
            result[task] = part

    spread(run, blocks.tasks())
    return best, index, largest + total.masked_fill(total == 0, 1.0).log()
