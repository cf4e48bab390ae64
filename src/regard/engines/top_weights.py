"""The largest weights of each query, by blocks of keys: what `look(top=…)` gives, without the matrix."""

import math

import torch
from torch import Tensor

from regard.compiled.threads import Scratch, spread
from regard.engines.job import Job, masked, scores_of, spans
from regard.engines.stream import cache_block, fusible
from regard.masks import block_of, parts_of


@torch.no_grad()
def top_weights(job: Job, top: int) -> tuple[Tensor, Tensor]:
    """Keys and weights `[..., q, top]`, falling; where a query may see fewer, key -1 and weight 0.

    A query that sees a NaN gets key -1 and weight NaN.
    """
    best, index, log_weight = _fused_scores(job, top) if fusible(job) else _block_scores(job, top)
    sick, blind = (log_weight.isnan().unsqueeze(-1), (log_weight == -math.inf).unsqueeze(-1))
    weight = (best - log_weight.unsqueeze(-1)).exp().masked_fill(blind, 0.0)
    return index.masked_fill(sick, -1), weight.masked_fill(sick, math.nan)


def _block_scores(job: Job, top: int) -> tuple[Tensor, Tensor, Tensor]:
    """The largest scores, their keys, and the log weight of all keys, for any score on any device.

    The best so far are put beside each block, and the best of both kept.
    """
    best = job.query.new_full([*job.shape[:-1], top], -math.inf)
    index = torch.full_like(best, -1, dtype=torch.long)
    log_weight = job.query.new_full(job.shape[:-1], -math.inf)
    queries, keys = cache_block(job)
    for rows in spans(job.queries, queries):
        for columns in spans(job.keys, keys):
            blocks = [block_of(part, rows, columns, len(job.shape), best.device) for part in parts_of(job.mask)]
            scores = masked(scores_of(job.score, job.query[..., rows, :], job.key[..., columns, :]), blocks)
            scores = scores.expand(*job.leading, rows.stop - rows.start, columns.stop - columns.start)
            log_weight[..., rows] = torch.logaddexp(log_weight[..., rows], scores.logsumexp(dim=-1))
            number = torch.arange(columns.start, columns.stop, device=best.device).expand(scores.shape)
            both, whose = torch.cat([best[..., rows, :], scores], -1), torch.cat([index[..., rows, :], number], -1)
            best[..., rows, :], place = both.topk(top, dim=-1)
            index[..., rows, :] = whose.gather(-1, place)
    return best, index.masked_fill(best == -math.inf, -1), log_weight


def _fused_scores(job: Job, top: int) -> tuple[Tensor, Tensor, Tensor]:
    """The same for the scores that the CPU's fused loops know."""
    from regard.engines import fused
    from regard.engines import fused_loops as loops

    blocks, query, key, _ = fused.prepare(job, 0, fused.BLOCK)
    best = job.query.new_full([*blocks.shape[:-1], top], -math.inf)
    index = torch.full_like(best, -1, dtype=torch.long)
    highest, total = best.new_full(blocks.shape[:-1], -math.inf), best.new_zeros(blocks.shape[:-1])
    arrays = best.numpy(), index.numpy(), highest.numpy(), total.numpy()
    scratch = Scratch()

    def task(portion: fused.Portion) -> None:
        _, lead, rows = portion
        some, head = blocks.pairing.prepare(query[lead][rows].contiguous()), key[lead]
        for columns in blocks.columns(rows):
            mask_blocks = blocks.mask_blocks(lead, rows, columns)
            if mask_blocks is None:
                continue
            scores = scratch.block(0, len(some), columns.stop - columns.start, best)
            blocks.scores(some, head[columns], scores, mask_blocks)
            loops.hide(scores.numpy(), blocks.visible(rows, columns))
            kept = [array[lead][rows] for array in arrays]
            loops.update_top(scores.numpy(), kept[0], kept[1], kept[2], kept[3], columns.start)

    spread(task, blocks.portions(blocks.block[0]))
    return best, index, highest + total.masked_fill(total == 0, 1.0).log()
