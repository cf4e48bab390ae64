"""W · activation(h) + b, that keeps h alone for backward and never has the whole of activation(h).

    forward     out = W activation(h) + b
    backward    W' = Σ out'ᵀ activation(h)      h' = (out' W) ∘ activation'(h)

Both go over some rows at a time, which stay in a core's cache, and backward computes the activation again.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from regard.engines.job import spans
from regard.torch_modes import transforming

Activation = Callable[[Tensor], Tensor]
CACHE = 2**19
"""Numbers of h that are taken at a time: 2 MiB of float32, a core's L2 cache. Where there are no more, torch keeps
all it likes: computing again would take longer than what it saves is worth."""


def activated_linear(h: Tensor, weight: Tensor, bias: Tensor | None, activation: Activation) -> Tensor:
    """`[..., hidden]` to `[..., size]`. The activation must have no parameters and draw no random numbers."""
    small = not torch.is_grad_enabled() or h.numel() <= CACHE
    if small or torch.is_autocast_enabled(h.device.type) or transforming():
        return functional.linear(activation(h), weight, bias)
    return _ActivatedLinear.apply(h, weight, bias, activation)  # type: ignore[no-any-return, no-untyped-call]


def portions(h: Tensor) -> list[slice]:
    """Rows that are taken at a time."""
    return list(spans(len(h), max(1, CACHE // max(1, h.shape[-1]))))


class _ActivatedLinear(torch.autograd.Function):
    """W · activation(h) + b."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, weight: Tensor, bias: Tensor | None, activation: Activation) -> Tensor:
        ctx.activation = activation
        ctx.save_for_backward(h, weight)
        rows = h.reshape(-1, h.shape[-1])
        out = h.new_empty(len(rows), len(weight))
        for some in portions(rows):
            if bias is None:
                torch.mm(activation(rows[some]), weight.T, out=out[some])
            else:
                torch.addmm(bias, activation(rows[some]), weight.T, out=out[some])
        return out.view(*h.shape[:-1], len(weight))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        h, weight = ctx.saved_tensors
        h_wanted, weight_wanted, bias_wanted, _ = ctx.needs_input_grad
        rows, slopes = h.reshape(-1, h.shape[-1]), slope.reshape(-1, slope.shape[-1])
        h_slope = torch.empty_like(rows) if h_wanted else None
        weight_slope = torch.zeros_like(weight) if weight_wanted else None
        for some in portions(rows):
            with torch.enable_grad():
                part = rows[some].detach().requires_grad_(h_wanted)
                active = ctx.activation(part)
            if weight_slope is not None:
                weight_slope.addmm_(slopes[some].T, active.detach())
            if h_slope is not None:
                h_slope[some] = torch.autograd.grad(active, part, slopes[some] @ weight)[0]
        return (
            None if h_slope is None else h_slope.view(h.shape),
            weight_slope,
            slopes.sum(dim=0) if bias_wanted else None,
            None,
        )
