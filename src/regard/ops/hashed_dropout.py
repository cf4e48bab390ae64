"""Dropout of activations, alone or on the way into a residual sum, without a stored mask.

    out = x + keep ∘ branch / (1 - p)          keep = hash(seed, row, column) ≥ p

The mask is a hash (`regard.compiled.dropout_hash`): forward and backward compute it from the seed, in the pass that
adds. torch's dropout draws its numbers from a serial generator, which takes longer than the sum, and stores a mask.
Devices other than the CPU, other dtypes, and programs that torch compiles use torch's.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from regard.compiled import dropout_hash
from regard.compiled.threads import spread
from regard.engines.job import spans
from regard.torch_modes import compiling, transforming

SINGLE_THREAD_LIMIT = 2**21
"""Up to this many elements, one thread does all of them."""


def add_dropped(x: Tensor, branch: Tensor, rate: float) -> Tensor:
    """x + branch, of which that fraction of elements is dropped and the rest scaled up; both of one shape."""
    if x.shape != branch.shape:
        raise ValueError(f"a residual sum needs two of one shape, got {list(x.shape)} and {list(branch.shape)}")
    if not rate or not x.numel():
        return x + branch
    if not _fusible(branch) or x.dtype != branch.dtype:
        return x + functional.dropout(branch, rate)
    return _Dropped.apply(branch, x, rate, dropout_hash.draw_seed())  # type: ignore[no-any-return, no-untyped-call]


def dropped(x: Tensor, rate: float) -> Tensor:
    """x, of which that fraction of elements is dropped and the rest scaled up."""
    if not rate or not x.numel():
        return x
    if not _fusible(x):
        return functional.dropout(x, rate)
    return _Dropped.apply(x, None, rate, dropout_hash.draw_seed())  # type: ignore[no-any-return, no-untyped-call]


def _fusible(x: Tensor) -> bool:
    """Whether the compiled loop applies."""
    usual = x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64) and x.ndim > 0
    return usual and not compiling() and not transforming()


class _Dropped(torch.autograd.Function):
    """What remains of the branch, plus x if it is given. Only the seed is saved."""

    @staticmethod
    def forward(ctx: Any, branch: Tensor, x: Tensor | None, rate: float, seed: int) -> Tensor:
        ctx.rate, ctx.seed = rate, seed
        return _drop(branch, rate, seed, x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _drop(grad, ctx.rate, ctx.seed), grad if ctx.needs_input_grad[1] else None, None, None


def _drop(branch: Tensor, rate: float, seed: int, x: Tensor | None = None) -> Tensor:
    """What remains of the branch, scaled up, plus x if it is given."""
    from regard.ops import hashed_dropout_loops as loops

    branch = branch.detach().contiguous()
    out = torch.empty_like(branch)
    columns = branch.shape[-1]
    into, source = out.view(-1, columns).numpy(), branch.view(-1, columns).numpy()  # [rows, columns]
    base = source if x is None else x.detach().contiguous().view(-1, columns).numpy()
    number = np.float32 if branch.dtype == torch.float32 else np.float64
    mask = loops.Mask(
        np.uint32(seed & dropout_hash.WORD),
        np.uint32((seed >> 32) & dropout_hash.WORD ^ dropout_hash.OTHER),
        np.uint32(dropout_hash.threshold(rate)),
        number(dropout_hash.keep_scale(rate)),
    )

    def task(rows: slice) -> None:
        loops.drop(base[rows], source[rows], into[rows], x is not None, rows.start, mask)

    threads = torch.get_num_threads() if branch.numel() > SINGLE_THREAD_LIMIT else 1
    spread(task, list(spans(len(into), max(1, -(-len(into) // threads)))))
    return out
