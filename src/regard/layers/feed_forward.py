"""What a block does with each row alone: W₂ activation(W₁ x + b₁) + b₂ (Vaswani et al. 2017, equation 2).

An activation is a callable: torch's `functional.relu`, `functional.gelu`, one of those below, or any other.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.checks import positive
from regard.layers.checks import bare, check_rows
from regard.ops.recomputed_linear import activated_linear

Activation = Callable[[Tensor], Tensor]


def gelu_tanh(x: Tensor) -> Tensor:
    """GELU by its formula with tanh, as GPT-2 has it (Hendrycks and Gimpel 2016, section 2).

    >>> import torch
    >>> gelu_tanh(torch.tensor([0.0, 2.0])).round(decimals=2).tolist()
    [0.0, 1.9500000476837158]
    """
    return functional.gelu(x, approximate="tanh")


@dataclass(frozen=True)
class Gated:
    """activation(a) ∘ b, where x = [a; b]: a gate and what passes it (Shazeer 2020).

    x `[..., 2 · hidden]` gives `[..., hidden]`; `FeedForward` makes its first matrix twice as wide for it.

    >>> import torch
    >>> Gated(torch.relu)(torch.tensor([1.0, 2.0, 5.0, 7.0])).tolist()
    [5.0, 14.0]
    """

    activation: Activation
    parts = 2

    def __call__(self, x: Tensor) -> Tensor:
        gate, passing = x.chunk(2, dim=-1)
        return self.activation(gate) * passing


swiglu = Gated(functional.silu)
"""silu(a) ∘ b: the activation of Llama's feed-forward."""

PLAIN = (functional.gelu, functional.relu, functional.silu, torch.relu, torch.tanh, torch.sigmoid, gelu_tanh)
PLAIN_MODULES = (nn.GELU, nn.ReLU, nn.SiLU, nn.Tanh, nn.Sigmoid)


def is_plain(activation: Activation) -> bool:
    """Whether it is known to have no parameters and to draw no random numbers, so that it can be computed again."""
    if isinstance(activation, Gated):
        return is_plain(activation.activation)
    if getattr(activation, "inplace", False):
        return False  # what went in would be gone
    return activation in PLAIN or type(activation) in PLAIN_MODULES


class FeedForward(nn.Module):
    """Two linear maps with an activation between them, on each row alone.

    size         of a row, in and out
    hidden       between the two; 4 · size where it is not given
    activation   any callable; `swiglu` and other `Gated` ones have a first matrix twice as wide

    x `[..., length, size]` gives the same shape. For backward it keeps what goes into the activation, and
    not what comes out, where the activation is one it knows.

    >>> import torch
    >>> FeedForward(8, 24, activation=swiglu, bias=False)(torch.randn(2, 5, 8)).shape
    torch.Size([2, 5, 8])
    """

    def __init__(
        self, size: int, hidden: int | None = None, *, activation: Activation = functional.gelu, bias: bool = True
    ) -> None:
        super().__init__()
        if not callable(activation):
            raise TypeError(f"activation must be callable, such as torch.relu, got {activation!r}")
        self.size = size = positive("size", size)
        hidden = 4 * size if hidden is None else positive("hidden", hidden)
        self.input = nn.Linear(size, hidden * getattr(activation, "parts", 1), bias=bias)
        self.activation = activation
        self.output = nn.Linear(hidden, size, bias=bias)
        self.plain = is_plain(activation)

    def forward(self, x: Tensor) -> Tensor:
        check_rows("x", x, self.size)
        if self.plain and bare(self.output):
            return activated_linear(self.input(x), self.output.weight, self.output.bias, self.activation)
        return self.output(self.activation(self.input(x)))  # type: ignore[no-any-return]
