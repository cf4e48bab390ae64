"""What all attention layers share: the call of `regard.attend`, as a module.

It holds what attention needs beside queries, keys and values (the score, the dropout, the groups), and it
is where `regard.watch` listens: it is given exactly what is attended to, after projections, positions
and cached keys.
"""

from torch import Tensor, nn

from regard.attend import Look, attend, look
from regard.checks import positive
from regard.layers.checks import share
from regard.masks import Mask
from regard.scores import Score, scaled_dot


class Attend(nn.Module):
    """`regard.attend` with a score and a dropout of its own: `[..., q, v]`.

    With groups, query is `[batch, heads, q, d]`, key and value are `[batch, heads / groups, k, …]`, and each
    of their heads serves so many neighbouring heads of the queries (Ainslie et al. 2023). Weights are
    dropped in training only.

    >>> import torch
    >>> query, key, value = torch.randn(2, 6, 5, 8), torch.randn(2, 3, 7, 8), torch.randn(2, 3, 7, 4)
    >>> Attend(groups=2)(query, key, value).shape
    torch.Size([2, 6, 5, 4])
    """

    def __init__(self, score: Score = scaled_dot, dropout: float = 0.0, groups: int = 1) -> None:
        super().__init__()
        if not callable(score):
            raise TypeError(f"score must be callable, (query, key) -> [..., q, k], got {type(score).__name__}")
        self.score = score
        self.dropout = share("dropout", dropout)
        self.groups = positive("groups", groups)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask | None = None) -> Tensor:
        dropout = self.dropout if self.training else 0.0
        if self.groups > 1:
            if query.shape[-2] == 1 and mask is None and not dropout and query.shape[:-3] == key.shape[:-3]:
                # One query that sees all keys: the heads of a group are taken for so many queries of one head.
                rows = query.reshape(*key.shape[:-2], self.groups, query.shape[-1])
                mean = attend(rows, key, value, score=self.score)
                return mean.reshape(*query.shape[:-1], mean.shape[-1])
            key, value = self.repeated(key), self.repeated(value)
        return attend(query, key, value, score=self.score, mask=mask, dropout=dropout)

    def look(self, query: Tensor, key: Tensor, mask: Mask | None = None, top: int | None = None) -> Tensor | Look:
        """The weights `[..., q, k]`, or the `top` largest of each query; none are dropped."""
        key = self.repeated(key)
        if top is None:
            return look(query, key, score=self.score, mask=mask)
        return look(query, key, score=self.score, mask=mask, top=top)

    def repeated(self, x: Tensor) -> Tensor:
        """Each head as often as there are heads of the queries that share it, beside each other."""
        return x if self.groups == 1 else x.repeat_interleave(self.groups, dim=-3)

    def extra_repr(self) -> str:
        score = "" if isinstance(self.score, nn.Module) else f"score={self.score!r}, "
        return f"{score}dropout={self.dropout:g}" + (f", groups={self.groups}" if self.groups > 1 else "")
