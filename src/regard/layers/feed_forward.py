"""What a block does with each row by itself: feed-forward.

    W₂ activation(W₁ x + b₁) + b₂        (Vaswani et al. 2017, equation 2)

An activation is a callable: torch's `functional.relu`, `functional.gelu`, one of those below, or any other.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.checks import check_rows, positive

Activation = Callable[[Tensor], Tensor]


def gelu_tanh(x: Tensor) -> Tensor:
    """GELU in its tanh approximation, as in GPT-2 (Hendrycks and Gimpel 2016, section 2).

    >>> import torch
    >>> gelu_tanh(torch.tensor([0.0, 2.0])).round(decimals=2).tolist()
    [0.0, 1.9500000476837158]
    """
    return functional.gelu(x, approximate="tanh")


@dataclass(frozen=True)
class GatedActivation:
    """activation(a) ∘ b for x = [a; b], the gated linear units of Shazeer 2020.

    x `[..., 2 · hidden]` gives `[..., hidden]`; `FeedForward` makes its first matrix twice as wide for it.

    >>> import torch
    >>> GatedActivation(torch.relu)(torch.tensor([1.0, 2.0, 5.0, 7.0])).tolist()
    [5.0, 14.0]
    """

    activation: Activation
    parts = 2

    def __call__(self, x: Tensor) -> Tensor:
        gate, gated = x.chunk(2, dim=-1)
        return self.activation(gate) * gated


swiglu = GatedActivation(functional.silu)
"""silu(a) ∘ b: the activation of Llama's feed-forward."""


class FeedForward(nn.Module):
    """Two linear maps with an activation between them, on each row by itself.

    size         size of a row, in and out
    hidden       size between the two maps; default: 4 · size
    activation   any callable; `swiglu` and other `GatedActivation`s have a first matrix twice as wide

    x `[..., length, size]` gives the same shape.

    >>> import torch
    >>> FeedForward(8, 24, activation=swiglu, bias=False)(torch.randn(2, 5, 8)).shape
    torch.Size([2, 5, 8])
    """

    def __init__(
        self,
        size: int,
        hidden: int | None = None,
        *,
        activation: Activation = functional.gelu,
        bias: bool = True,
        device: torch.types.Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if not callable(activation):
            raise TypeError(f"activation must be callable, such as torch.relu, got {activation!r}")
        self.size = size = positive("size", size)
        hidden = 4 * size if hidden is None else positive("hidden", hidden)
        linear = partial(nn.Linear, bias=bias, device=device, dtype=dtype)
        self.input = linear(size, hidden * getattr(activation, "parts", 1))
        self.activation = activation
        self.output = linear(hidden, size)

    def forward(self, x: Tensor) -> Tensor:
        check_rows("x", x, self.size)
        return self.output(self.activation(self.input(x)))  # type: ignore[no-any-return]
