"""Additive scores of one query a row, without the hidden layer in memory.

    score[r, i] = Σ_j weight_j tanh(query[r, j] + key[which_r, i, j])

Query and keys are projected already, as `regard.scores.Additive` projects them: a recurrent decoder projects its keys
once, and asks with a new query at each step. Rows may share keys, as the hypotheses of a beam do. On the CPU in
float32 and float64 a fused loop over threads computes the hidden layer, in backward again; else torch does.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.engines.job import spans
from regard.engines.threads import spread

ALONE = 2**18
"""Numbers of the hidden layer below which one thread does it."""


def scores(query: Tensor, key: Tensor, weight: Tensor, which: Tensor | None = None) -> Tensor:
    """The scores `[rows, keys]` of queries `[rows, hidden]` by keys `[some, keys, hidden]`, without gradients.

    which   the keys of each row, `[rows]`; where it is None, there are as many as rows
    """
    if not fusible(query, key, weight):
        keys = key if which is None else key[which]
        return torch.tanh(query.unsqueeze(1) + keys) @ weight
    from regard.engines import additive_score_loops as loops  # imports numba

    out = query.new_empty(len(query), key.shape[1])
    arrays = [plain(part) for part in (query, key, weight)]
    places, into = numbers(which, len(query)), out.numpy()

    def task(rows: slice) -> None:
        loops.scores(arrays[0][rows], arrays[1], arrays[2], places[rows], into[rows])

    spread(task, parts(len(query), key.shape[1] * key.shape[2]))
    return out


def slopes(query: Tensor, key: Tensor, weight: Tensor, slope: Tensor, key_slope: Tensor) -> tuple[Tensor, Tensor]:
    """The slopes of queries and weight by those of the scores, `[rows, keys]`; those of the keys are added in place.

    Every row has keys of its own.
    """
    if not fusible(query, key, weight):
        hidden = torch.tanh(query.unsqueeze(1) + key)
        pull = slope.unsqueeze(2) * weight * (1 - hidden.square())
        key_slope += pull
        return pull.sum(dim=1), torch.einsum("rk,rkh->h", slope, hidden)
    from regard.engines import additive_score_loops as loops

    into, steep = torch.zeros_like(query, memory_format=torch.contiguous_format), slope.detach().contiguous().numpy()
    arrays, places = [plain(part) for part in (query, key, weight)], numbers(None, len(query))
    out, keys_out = into.numpy(), key_slope.numpy()

    def task(rows: slice) -> Tensor:
        found = torch.zeros_like(weight)
        query_, key_, weight_ = arrays
        loops.slopes(query_[rows], key_, weight_, places[rows], steep[rows], out[rows], keys_out, found.numpy())
        return found

    return into, torch.stack(spread(task, parts(len(query), key.shape[1] * key.shape[2]))).sum(dim=0)


def fusible(*tensors: Tensor) -> bool:
    """Whether the loops can do it."""
    return all(x.device.type == "cpu" and x.dtype == tensors[0].dtype for x in tensors) and tensors[0].dtype in (
        torch.float32,
        torch.float64,
    )


def plain(tensor: Tensor) -> Any:
    """The numbers of a tensor, in a row."""
    return tensor.detach().contiguous().numpy()


def numbers(which: Tensor | None, rows: int) -> Any:
    """The keys of each row."""
    return np.arange(rows) if which is None else which.numpy()


def parts(rows: int, each: int) -> list[slice]:
    """Rows for each thread."""
    pieces = torch.get_num_threads() if rows * each > ALONE else 1
    return list(spans(rows, max(1, -(-rows // pieces))))
