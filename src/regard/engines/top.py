"""The largest weights of each query, by blocks of keys: what `look(top=…)` gives, without the matrix."""

import math

import torch
from torch import Tensor

from regard.engines.job import Job, masked, scores_of, spans
from regard.engines.stream import CACHE, Stream, fusible
from regard.masks import block_of, parts_of


@torch.no_grad()
def top_weights(job: Job, top: int) -> tuple[Tensor, Tensor]:
    """Keys and weights `[..., q, top]`, falling; where a query may see fewer, key -1 and weight 0."""
    if fusible(job):
        from regard.engines import fused  # imports numba

        best, index, log_weight = fused.top_scores(job, top, Stream().sizes(fused.BLOCK))
    else:
        best, index, log_weight = top_scores(job, top)
    seen = log_weight > -math.inf
    weight = (best - log_weight.unsqueeze(-1)).exp()
    # Not where it is NaN: that must be seen.
    return index, weight.masked_fill(~(seen | log_weight.isnan()).unsqueeze(-1), 0.0)


def top_scores(job: Job, top: int) -> tuple[Tensor, Tensor, Tensor]:
    """Any score, any device: the best so far are put beside each block, and the best of both kept."""
    best = job.query.new_full([*job.shape[:-1], top], -math.inf)
    index = torch.full_like(best, -1, dtype=torch.long)
    log_weight = job.query.new_full(job.shape[:-1], -math.inf)
    side = max(1, math.isqrt(CACHE // max(1, job.width * math.prod(job.leading))))
    for rows in spans(job.queries, side):
        for columns in spans(job.keys, side):
            blocks = [block_of(part, rows, columns, len(job.shape), best.device) for part in parts_of(job.mask)]
            scores = masked(scores_of(job.score, job.query[..., rows, :], job.key[..., columns, :]), blocks)
            scores = scores.expand(*job.leading, rows.stop - rows.start, columns.stop - columns.start)
            log_weight[..., rows] = torch.logaddexp(log_weight[..., rows], scores.logsumexp(dim=-1))
            keys = torch.arange(columns.start, columns.stop, device=best.device).expand(scores.shape)
            both, whose = torch.cat([best[..., rows, :], scores], -1), torch.cat([index[..., rows, :], keys], -1)
            best[..., rows, :], place = both.topk(top, dim=-1)
            index[..., rows, :] = whose.gather(-1, place)
    return best, index.masked_fill(best == -math.inf, -1), log_weight
