"""Dropout of rows, alone or on the way into a residual sum, without a stored mask.

    out = x + keep ∘ branch / (1 - p)          keep = hash(seed, row, column) ≥ p

What is kept is a hash, as in `dropout.py`: forward and backward compute it from the seed, in the same pass that
adds. torch's own dropout draws its numbers from a serial generator, which takes longer than the sum,
and stores a mask. Devices other than the CPU, other dtypes, and programs that torch compiles use torch's.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from regard.compiled import dropout_hash as dropout
from regard.compiled.threads import spread
from regard.engines.job import spans
from regard.torch_modes import compiling, transforming

ALONE = 2**21
"""Numbers below which one thread does it."""


def add_dropped(x: Tensor, branch: Tensor, share: float) -> Tensor:
    """x + branch, of which that share of numbers is dropped and the rest scaled up; both of one shape."""
    if x.shape != branch.shape:
        raise ValueError(f"a residual sum needs two of one shape, got {list(x.shape)} and {list(branch.shape)}")
    if not share or not x.numel():
        return x + branch
    if not fusible(branch) or x.dtype != branch.dtype:
        return x + functional.dropout(branch, share)
    return _AddDropped.apply(x, branch, share, dropout.draw_seed())  # type: ignore[no-any-return, no-untyped-call]


def dropped(x: Tensor, share: float) -> Tensor:
    """x, of which that share of numbers is dropped and the rest scaled up."""
    if not share or not x.numel():
        return x
    if not fusible(x):
        return functional.dropout(x, share)
    return _Dropped.apply(x, share, dropout.draw_seed())  # type: ignore[no-any-return, no-untyped-call]


def fusible(x: Tensor) -> bool:
    """Whether the loops can do it."""
    usual = x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64) and x.ndim > 0
    return usual and not compiling() and not transforming()


class _AddDropped(torch.autograd.Function):
    """x + kept branch. Nothing is saved but the seed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, branch: Tensor, share: float, seed: int) -> Tensor:
        ctx.share, ctx.seed = share, seed
        return _sift(branch, share, seed, x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        return slope, _sift(slope, ctx.share, ctx.seed), None, None


class _Dropped(torch.autograd.Function):
    """Kept x. Nothing is saved but the seed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, share: float, seed: int) -> Tensor:
        ctx.share, ctx.seed = share, seed
        return _sift(x, share, seed)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        return _sift(slope, ctx.share, ctx.seed), None, None


def _sift(branch: Tensor, share: float, seed: int, x: Tensor | None = None) -> Tensor:
    """What is kept of the branch, scaled up, plus x where there is one."""
    from regard.ops import hashed_dropout_loops as residual_loops

    branch = branch.detach().contiguous()
    out = torch.empty_like(branch)
    columns = branch.shape[-1]
    into, source = out.view(-1, columns).numpy(), branch.view(-1, columns).numpy()
    base = source if x is None else x.detach().contiguous().view(-1, columns).numpy()
    words = np.uint32(seed & dropout.WORD), np.uint32((seed >> 32) & dropout.WORD ^ dropout.OTHER)
    number = np.float32 if branch.dtype == torch.float32 else np.float64
    scale = number(dropout.keep_scale(share))
    threshold, adds = np.uint32(dropout.threshold(share)), x is not None

    def task(rows: slice) -> None:
        residual_loops.sift(base[rows], source[rows], into[rows], adds, rows.start, *words, threshold, scale)

    pieces = torch.get_num_threads() if branch.numel() > ALONE else 1
    spread(task, list(spans(len(into), max(1, -(-len(into) // pieces)))))
    return out
