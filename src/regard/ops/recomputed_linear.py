"""W · activation(h) + b, which stores only h for backward and never has all of activation(h).

    forward     out = W activation(h) + b
    backward    ∇W = Σ ∇outᵀ activation(h)      ∇h = (∇out W) ∘ activation'(h)

∇x is the gradient of the loss with respect to x. Both take some rows at a time, which stay in a core's cache; backward
recomputes the activation.
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
"""Elements of h at a time: 2 MiB of float32, a core's L2 cache. For so few in total, plain torch is faster."""


def activated_linear(h: Tensor, weight: Tensor, bias: Tensor | None, activation: Activation) -> Tensor:
    """`[..., hidden]` to `[..., size]`. The activation must have no parameters and draw no random numbers."""
    small = not torch.is_grad_enabled() or h.numel() <= CACHE
    if small or torch.is_autocast_enabled(h.device.type) or transforming():
        return functional.linear(activation(h), weight, bias)
    return _ActivatedLinear.apply(h, weight, bias, activation)  # type: ignore[no-any-return, no-untyped-call]


def _row_chunks(h: Tensor) -> list[slice]:
    """Slices of the rows that fit the cache."""
    return list(spans(len(h), max(1, CACHE // max(1, h.shape[-1]))))


class _ActivatedLinear(torch.autograd.Function):
    """W · activation(h) + b."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, weight: Tensor, bias: Tensor | None, activation: Activation) -> Tensor:
        ctx.activation = activation
        ctx.save_for_backward(h, weight)
        rows = h.reshape(-1, h.shape[-1])
        out = h.new_empty(len(rows), len(weight))
        for some in _row_chunks(rows):
            if bias is None:
                torch.mm(activation(rows[some]), weight.T, out=out[some])
            else:
                torch.addmm(bias, activation(rows[some]), weight.T, out=out[some])
        return out.view(*h.shape[:-1], len(weight))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        h, weight = ctx.saved_tensors
        h_needed, weight_needed, bias_needed, _ = ctx.needs_input_grad
        rows, grads = h.reshape(-1, h.shape[-1]), grad.reshape(-1, grad.shape[-1])
        h_grad = torch.empty_like(rows) if h_needed else None
        weight_grad = torch.zeros_like(weight) if weight_needed else None
        for some in _row_chunks(rows):
            with torch.enable_grad():
                part = rows[some].detach().requires_grad_(h_needed)
                active = ctx.activation(part)
            if weight_grad is not None:
                weight_grad.addmm_(grads[some].T, active.detach())
            if h_grad is not None:
                h_grad[some] = torch.autograd.grad(active, part, grads[some] @ weight)[0]
        return (
            None if h_grad is None else h_grad.view(h.shape),
            weight_grad,
            grads.sum(dim=0) if bias_needed else None,
            None,
        )
