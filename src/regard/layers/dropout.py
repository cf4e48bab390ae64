"""Dropout of rows that stores no mask; see `regard.ops.hashed_dropout`."""

from torch import Tensor, nn

from regard.layers.checks import share
from regard.ops.hashed_dropout import add_dropped, dropped


class Dropout(nn.Module):
    """A share of numbers is dropped in training and the rest scaled up; alone, or on the way into a sum.

    What is dropped is a hash of a seed that torch's generator gives: no mask is stored. x `[..., size]`.

    >>> import torch
    >>> drop = Dropout(0.5)
    >>> sorted(set(drop(torch.ones(100, 10)).flatten().tolist()))
    [0.0, 2.0]
    >>> bool((drop.eval()(torch.ones(3)) == 1).all())
    True
    """

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = share("dropout", dropout)

    def forward(self, x: Tensor) -> Tensor:
        return dropped(x, self.dropout) if self.training else x

    def add(self, x: Tensor, branch: Tensor) -> Tensor:
        """x + branch, of which a share is dropped in training."""
        return add_dropped(x, branch, self.dropout if self.training else 0.0)

    def extra_repr(self) -> str:
        return f"{self.dropout:g}"
