"""A single head of attention, from one input to another or to itself.

    q = W_q x      k = W_k s      v = W_v s      f(x) = Σᵢ α(q, kᵢ) vᵢ

x `[..., N_Q, size]` asks, s `[..., N_X, key_size]` is looked at: their lengths differ freely, and so do their
sizes. The score may be any (`regard.scores`, or a callable `(query, key) -> [..., q, k]`).
"""

import torch
from torch import Tensor, nn

from regard.attend import Look
from regard.checks import positive
from regard.layers.attending import Attend
from regard.layers.checks import check_rows
from regard.masks import Mask
from regard.scores import Score, scaled_dot


class Attention(nn.Module):
    """Queries from one input, keys and values from another.

    size         of each row that asks
    key_size     of each row that is looked at; `size` where it is not given
    head_size    of queries and keys, the sources' query depth; `size` where it is not given
    value_size   of values, and so of the output; `size` where it is not given
    score        one of `regard.scores`, or any callable; a module among them learns with the layer
    dropout      the share of weights dropped in training

    x `[..., q, size]` and source `[..., k, key_size]` give `[..., q, value_size]`. How many rows ask and how
    many are looked at differ freely; the order of what is looked at plays no part.

    >>> import torch, regard
    >>> layer = Attention(8, 6, score=regard.scores.Additive(8, 8, hidden=5))
    >>> x, source = torch.randn(2, 3, 8), torch.randn(2, 7, 6)
    >>> layer(x, source).shape, layer.look(x, source).shape, layer.look(x, source, top=2).index.shape
    (torch.Size([2, 3, 8]), torch.Size([2, 3, 7]), torch.Size([2, 3, 2]))
    """

    def __init__(
        self,
        size: int,
        key_size: int | None = None,
        *,
        head_size: int | None = None,
        value_size: int | None = None,
        score: Score = scaled_dot,
        dropout: float = 0.0,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.size = size = positive("size", size)
        self.key_size = positive("key_size", size if key_size is None else key_size)
        head_size = positive("head_size", size if head_size is None else head_size)
        value_size = positive("value_size", size if value_size is None else value_size)
        self.query = nn.Linear(self.size, head_size, bias=bias)
        self.key = nn.Linear(self.key_size, head_size, bias=bias)
        self.value = nn.Linear(self.key_size, value_size, bias=bias)
        self.attend = Attend(score, dropout)

    def forward(self, x: Tensor, source: Tensor, *, mask: Mask | None = None) -> Tensor:
        query, key = self.projected(x, source)
        mean: Tensor = self.attend(query, key, self.value(source), mask)
        return mean

    def look(self, x: Tensor, source: Tensor, *, mask: Mask | None = None, top: int | None = None) -> Tensor | Look:
        """What it looks at: all weights `[..., q, k]`, or the `top` largest of each query as a `Look`."""
        return self.attend.look(*self.projected(x, source), mask, top)

    def projected(self, x: Tensor, source: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys."""
        check_rows("x", x, self.size)
        check_rows("source", source, self.key_size)
        return self.query(x), self.key(source)


class SelfAttention(nn.Module):
    """A set that looks at itself: queries, keys and values all come from x `[..., n, size]`.

    The arguments are those of `Attention`; the three projections are one matrix, `projection`. It is
    permutation-equivariant: where the rows are put in another order, so are the outputs, and nothing else
    changes. Add positions (`regard.layers.Sinusoidal`) where the order is to count, and give a mask
    (`regard.masks.causal`) where the output at t is not to change with what comes after t.

    >>> import torch
    >>> layer, x = SelfAttention(4), torch.randn(5, 4)
    >>> order = torch.randperm(5)
    >>> bool(torch.allclose(layer(x[order]), layer(x)[order], atol=1e-6))
    True
    """

    def __init__(
        self,
        size: int,
        *,
        head_size: int | None = None,
        value_size: int | None = None,
        score: Score = scaled_dot,
        dropout: float = 0.0,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.size = size = positive("size", size)
        head_size = positive("head_size", size if head_size is None else head_size)
        value_size = positive("value_size", size if value_size is None else value_size)
        self.sizes = [head_size, head_size, value_size]
        self.projection = nn.Linear(size, sum(self.sizes), bias=bias)
        self.attend = Attend(score, dropout)

    def forward(self, x: Tensor, *, mask: Mask | None = None) -> Tensor:
        mean: Tensor = self.attend(*self.projected(x), mask)
        return mean

    def look(self, x: Tensor, *, mask: Mask | None = None, top: int | None = None) -> Tensor | Look:
        """What it looks at: all weights `[..., n, n]`, or the `top` largest of each query as a `Look`."""
        query, key, _ = self.projected(x)
        return self.attend.look(query, key, mask, top)

    def projected(self, x: Tensor) -> tuple[Tensor, ...]:
        """Queries, keys and values."""
        check_rows("x", x, self.size)
        return torch.split(self.projection(x), self.sizes, dim=-1)
