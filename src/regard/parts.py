"""Attention to a part of the keys, and how two parts become one.

Attending to some of the keys gives a pair: the weighted mean of their values and the logarithm of
their summed weight. Two such pairs `merge` into the pair for both parts together:

    log_weight = log(exp a.log_weight + exp b.log_weight)
    mean       = (exp(a.log_weight) a.mean + exp(b.log_weight) b.mean) / exp(log_weight)

`merge` is associative and commutative and has the unit `NOTHING` = (0, -inf), so streaming over
blocks, splitting over threads and reducing over machines are all the same fold.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor


class Attended(NamedTuple):
    """The result of attention to some of the keys. For a query that sees none of them: mean 0, log_weight -inf.

    mean         `[..., q, v]` the weighted average of the values
    log_weight   `[..., q]` the logarithm of the summed exp(score)

    >>> import torch, regard
    >>> query, key, value = torch.ones(1, 1), torch.zeros(4, 1), torch.tensor([[1.0], [2.0], [3.0], [6.0]])
    >>> mean, log_weight = regard.attend_parts(query, key, value)
    >>> mean.item(), log_weight.exp().round().item()  # four keys of weight exp(0)
    (3.0, 4.0)
    """

    mean: Tensor  # [..., q, v]  weighted average of the values
    log_weight: Tensor  # [..., q]     log of the summed exp(score)


NOTHING = Attended(torch.tensor(0.0), torch.tensor(-math.inf))


def merge(a: Attended, b: Attended) -> Attended:
    """Merge the results of attention to two disjoint parts of the keys.

    >>> import torch, regard
    >>> query, key, value = torch.randn(2, 4), torch.randn(5, 4), torch.randn(5, 3)
    >>> left = regard.attend_parts(query, key[:2], value[:2])
    >>> right = regard.attend_parts(query, key[2:], value[2:])
    >>> whole = regard.attend_parts(query, key, value)
    >>> bool(torch.allclose(regard.merge(left, right).mean, whole.mean, atol=1e-6))
    True
    """
    # The shift keeps exp in range and cancels, so it needs no gradient. If neither part has a visible
    # key it is 0, because -inf minus -inf would be NaN.
    shift = torch.maximum(a.log_weight, b.log_weight).detach()
    shift = shift.masked_fill(shift == -math.inf, 0.0)
    a_weight, b_weight = (a.log_weight - shift).exp(), (b.log_weight - shift).exp()
    total = a_weight + b_weight  # 0 if neither has a visible key, else at least 1
    empty = total == 0
    total = total.masked_fill(empty, 1.0)
    mean = (a_weight / total).unsqueeze(-1) * a.mean + (b_weight / total).unsqueeze(-1) * b.mean
    return Attended(mean, (shift + total.log()).masked_fill(empty, -math.inf))
