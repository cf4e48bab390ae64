"""Which tokens are looked at: small functions of log probabilities `[rows, vocabulary]`.

    largest   the k likeliest
    nucleus   the fewest likeliest that together are likely enough

Each row keeps at least its likeliest token. What is left need not add up to 1: who draws from it normalises.
"""

import math

import torch
from torch import Tensor

from regard.checks import positive

BLOCK = 64
"""Values that are first looked at together, by their maximum: that is five times faster than torch's topk alone."""

FIRST_TOKENS = 256
"""How many tokens are tried as a nucleus before all are sorted."""


def nucleus(log_probs: Tensor, share: float) -> Tensor:
    """The fewest likeliest tokens that together have this share of the probability (Holtzman et al. 2020).

    share   above 0 and at most 1, of what is given: that need not add up to 1

    The others become -inf.

    >>> import torch
    >>> nucleus(torch.tensor([[0.2, 0.5, 0.2, 0.1]]).log(), 0.6).exp()
    tensor([[0.2000, 0.5000, 0.0000, 0.0000]])
    """
    if not 0 < share <= 1:
        raise ValueError(f"share must be above 0 and at most 1, got {share}")
    if share == 1:
        return log_probs
    given = log_probs.logsumexp(dim=1, keepdim=True)
    value, index = largest(log_probs, FIRST_TOKENS)
    reached = (value - given).double().exp().cumsum(dim=1)  # [rows, tokens]
    if bool((reached[:, -1] < share).any()):
        value, index = log_probs.sort(dim=1, descending=True, stable=True)
        reached = (value - given).double().exp().cumsum(dim=1)
    # A token is kept where those before it have not yet reached the share: so the first always is.
    before = reached.roll(1, dims=1)
    before[:, 0] = 0.0
    return torch.full_like(log_probs, -math.inf).scatter_(1, index, value.masked_fill(before >= share, -math.inf))


def largest(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest values of each row `[rows, n]`, falling, and where they are; of equals the first.

    All of them where there are fewer. Among values of -inf the order is open.

    >>> import torch
    >>> value, index = largest(torch.tensor([[1.0, 3.0, 2.0, 3.0]]), 3)
    >>> value.tolist(), index.tolist()
    ([[3.0, 3.0, 2.0]], [[1, 3, 2]])
    """
    one_more = min(positive("count", count) + 1, values.shape[1])  # so that a tie at the border is seen
    value, index = blockwise(values, one_more)
    tied = ((value[:, 1:] == value[:, :-1]) & (value[:, 1:] > -math.inf)).any(dim=1)
    if tied.any():  # topk promises no order: few rows, sorted as a whole
        rows = tied.nonzero().squeeze(1)
        ordered, places = values[rows].sort(dim=1, descending=True, stable=True)
        value[rows], index[rows] = ordered[:, :one_more], places[:, :one_more]
    return value[:, :count], index[:, :count]


def blockwise(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """torch's `topk` along rows, by blocks: the `count` largest are in the `count` blocks of the largest maxima."""
    rows, n = values.shape
    blocks = n // BLOCK
    if blocks < 2 * count:
        return values.topk(count, dim=1)
    maxima = values[:, : blocks * BLOCK].view(rows, blocks, BLOCK).amax(dim=2)
    block = maxima.topk(count, dim=1).indices
    inside = torch.arange(BLOCK, device=values.device)
    rest = torch.arange(blocks * BLOCK, n, device=values.device).expand(rows, -1)
    index = torch.cat([(block[:, :, None] * BLOCK + inside).flatten(1), rest], dim=1)
    value, place = values.gather(1, index).topk(count, dim=1)
    return value, index.gather(1, place)
