"""The fused path of `stream` for short sequences: many small matrices at once instead of one head after the other.

A head of twenty words by twenty is done before a thread has been asked to do it. So heads are taken together, as many
as fit the cache, with one call for the products of all of them, and one for their softmax and dropout. What is
computed, kept for backward and drawn is what `fused.py` computes, keeps and draws.
"""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.engines import fused_loops as loops
from regard.engines.fused import Fold, constants
from regard.engines.job import spans
from regard.masks import block_of, parts_of, tensors_of

AT_ONCE = 2**18
"""Scores that are made at a time: 1 MiB of float32."""


class Together(torch.autograd.Function):
    """(mean, log_weight) of query, key and value, as `fused.Fused`, with heads flattened: `[heads, length, size]`."""

    @staticmethod
    def forward(ctx: Any, fold: Fold, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        query, key, value = (x.reshape(-1, *x.shape[-2:]) for x in (query, key, value))
        rows = query.shape[:2]
        mean = value.new_empty(*rows, value.shape[-1])
        highest, total = value.new_full(rows, -math.inf), value.new_zeros(rows)
        nothing = value.new_empty(fold.shape[-2] * len(query), 0).numpy()
        for heads in portions(fold):
            weight = scores(fold, query, key, heads)
            sums = flat(highest[heads]), flat(total[heads]), nothing[: weight.shape[0] * weight.shape[1]]
            loops.soften(
                flat(weight, 2), fold.shape[-1], *sums, *dropping(fold, heads), 0, *constants(fold, value.dtype)
            )
            torch.bmm(weight, value[heads], out=mean[heads])
        loops.normalise(flat(total), flat(mean, 2))
        ctx.fold = fold
        ctx.save_for_backward(query, key, value, mean, highest, total, *tensors_of(fold.mask))
        lead = fold.shape[:-2]
        return mean.view(*lead, *mean.shape[1:]), (highest + total.log()).view(*lead, rows[1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, mean_slope: Tensor, weight_slope: Tensor) -> tuple[Tensor | None, ...]:
        fold: Fold = ctx.fold
        query, key, value, mean, highest, total, *_ = ctx.saved_tensors  # a mask that was changed since is refused
        mean_slope = mean_slope.reshape(mean.shape)
        offset = (mean_slope * mean).sum(dim=-1) - weight_slope.reshape(highest.shape)
        slopes = query_slope, key_slope, value_slope = tuple(
            torch.empty_like(x, memory_format=torch.contiguous_format) for x in (query, key, value)
        )
        scale = fold.pairing.scale  # type: ignore[attr-defined]
        for heads in portions(fold):
            weight = scores(fold, query, key, heads)
            slope = torch.bmm(mean_slope[heads], value[heads].mT)
            sums = flat(highest[heads]), flat(total[heads]), flat(offset[heads])
            drawn = dropping(fold, heads)
            loops.soften_backward(
                flat(weight, 2), flat(slope, 2), fold.shape[-1], *sums, *drawn, 0, *constants(fold, value.dtype)
            )
            torch.bmm(weight.mT, mean_slope[heads], out=value_slope[heads])
            slope *= scale
            torch.bmm(slope, key[heads], out=query_slope[heads])
            torch.bmm(slope.mT, query[heads], out=key_slope[heads])
        return None, *(x.view(*fold.shape[:-2], *x.shape[1:]) for x in slopes)


def portions(fold: Fold) -> list[slice]:
    """Heads that are taken together."""
    return list(spans(math.prod(fold.shape[:-2]), max(1, AT_ONCE // max(1, fold.shape[-2] * fold.shape[-1]))))


def scores(fold: Fold, query: Tensor, key: Tensor, heads: slice) -> Tensor:
    """Masked scores of some heads, `[heads, q, k]`."""
    found = torch.bmm(query[heads] * fold.pairing.scale, key[heads].mT)  # type: ignore[attr-defined]
    whole = slice(0, fold.shape[-2]), slice(0, fold.shape[-1])
    for part in parts_of(fold.mask):
        block = block_of(part, *whole, len(fold.shape), found.device)
        block = block.expand(*fold.shape[:-2], *block.shape[-2:])
        block = block.reshape(-1, *block.shape[-2:])[heads]
        found = found.masked_fill_(~block, -math.inf) if block.dtype == torch.bool else found.add_(block)
    return found


def dropping(fold: Fold, heads: slice) -> tuple[Any, Any]:
    """The dropout keys of the rows of some heads."""
    first, second = fold.row_keys
    return np.ravel(first[heads]), np.ravel(second[heads])


def flat(tensor: Tensor, axes: int = 1) -> Any:
    """A tensor as the loops take it: its rows one after the other."""
    return tensor.numpy().reshape(-1, *tensor.shape[tensor.ndim - axes + 1 :])
