"""Cross-entropy of tokens predicted by a linear layer, without the matrix of all logits.

    logits = rows Wᵀ + b        loss = mean over rows of -(1 - ε) log p(target) - ε mean over tokens of log p

ε is the smoothing (Szegedy et al. 2016, section 7). A vocabulary is large: the logits of a batch, their softmax and its
gradient are each many times the batch itself. Here they are computed for some rows at a time, in memory that stays in
the cache, and forward computes the gradients too; backward only scales them.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from regard.torch_modes import once_differentiable

CACHE = 2**20
"""Number of logits at a time: 4 MiB of float32."""


def cross_entropy(
    rows: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None = None, *, smoothing: float = 0.0
) -> Tensor:
    """The mean loss of targets `[n]` predicted from rows `[n, size]` by weight `[vocabulary, size]` and bias.

    >>> import torch
    >>> rows, weight, target = torch.randn(5, 3), torch.randn(7, 3), torch.tensor([0, 6, 2, 2, 1])
    >>> plain = torch.nn.functional.cross_entropy(rows @ weight.T, target)
    >>> bool(torch.isclose(cross_entropy(rows, weight, target), plain))
    True
    """
    if not 0 <= smoothing < 1:
        raise ValueError(f"smoothing must be at least 0 and below 1, got {smoothing}")
    if rows.ndim != 2 or target.shape != rows.shape[:1] or not len(rows):
        raise ValueError(
            f"rows must be [n, size] and targets [n], n at least 1, got {list(rows.shape)} and {list(target.shape)}"
        )
    least, most = (int(token) for token in target.aminmax())
    if least < 0 or most >= len(weight):
        raise ValueError(
            f"targets must be tokens from 0 to {len(weight) - 1}, got some from {least} to {most}: leave out"
            " the rows that have none, such as padding"
        )
    if not torch.is_grad_enabled() or len(rows) * len(weight) <= CACHE or torch.is_autocast_enabled(rows.device.type):
        return functional.cross_entropy(functional.linear(rows, weight, bias), target, label_smoothing=smoothing)
    return _CrossEntropy.apply(rows, weight, target, bias, smoothing)  # type: ignore[no-any-return, no-untyped-call]


class _CrossEntropy(torch.autograd.Function):
    """The loss and its gradients in one pass."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, smoothing: float
    ) -> Tensor:
        count, vocabulary = len(rows), len(weight)
        needed = dict(zip(("rows", "weight", "target", "bias"), ctx.needs_input_grad, strict=False))
        rows_grad = torch.empty_like(rows) if needed["rows"] else None
        weight_grad = torch.zeros_like(weight) if needed["weight"] else None
        bias_grad = None if bias is None or not needed["bias"] else torch.zeros_like(bias)
        at_once = max(1, CACHE // vocabulary)
        logits = rows.new_empty(min(at_once, count), vocabulary)
        # The mean of all logits of a row is its product with the mean of all weights.
        centre, level = weight.mean(dim=0), 0.0 if bias is None else bias.mean()
        total = rows.new_zeros((), dtype=torch.float64)
        for start in range(0, count, at_once):
            some = slice(start, start + at_once)
            part, exps = rows[some], logits[: len(rows[some])]
            torch.mm(part, weight.T, out=exps) if bias is None else torch.addmm(bias, part, weight.T, out=exps)
            target_part = (1 - smoothing) * exps.gather(1, target[some].unsqueeze(1)).squeeze(1)
            highest = exps.amax(dim=1, keepdim=True)
            sums = exps.sub_(highest).exp_().sum(dim=1, keepdim=True)
            total += ((highest + sums.log()).squeeze(1) - target_part).sum(dtype=torch.float64)
            # d loss / d logits = (exps / sums - (1 - ε) [is the target] - ε / vocabulary) / count. Here only the first
            # term is added; the others need no logits, and follow for all rows at once.
            if rows_grad is not None:
                torch.mm(exps, weight, out=rows_grad[some]).div_(sums)
            if weight_grad is not None:
                weight_grad.addmm_(exps.T, part / sums)
            if bias_grad is not None:
                bias_grad.addmv_(exps.T, 1 / sums.squeeze(1))
        total -= smoothing * (rows @ centre + level).sum(dtype=torch.float64)
        if rows_grad is not None:
            rows_grad.sub_(weight[target], alpha=1 - smoothing).sub_(centre, alpha=smoothing)
        if weight_grad is not None:
            weight_grad.index_add_(0, target, rows, alpha=smoothing - 1)
            weight_grad.sub_(rows.sum(dim=0), alpha=smoothing / vocabulary)
        if bias_grad is not None:
            bias_grad.index_add_(0, target, rows.new_ones(count), alpha=smoothing - 1)
            bias_grad.sub_(smoothing * count / vocabulary)
        ctx.save_for_backward(rows_grad, weight_grad, bias_grad)
        ctx.count = count
        return (total / count).to(rows.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        scale = grad / ctx.count
        rows, weight, bias = (None if part is None else part * scale for part in ctx.saved_tensors)
        return rows, weight, None, bias, None
