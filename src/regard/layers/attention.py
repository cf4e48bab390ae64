"""A single head of attention, from one input to another or to itself; self-attention on a grid.

    q = W_q x      k = W_k s      v = W_v s      f(x) = Σᵢ α(q, kᵢ) vᵢ

x `[..., q, size]` gives the queries, s `[..., k, key_size]` the keys and values. Lengths and sizes may differ. The
score may be any of `regard.scores`, or a callable `(query, key) -> [..., q, k]`.

`Attend` is the call of `regard.attend` as a module: all attention layers hold one, and `regard.watch` hooks into it. It
receives the final queries, keys and values: after projections, positions and the cache.
"""

import math
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from regard import distributed
from regard.attend import Look, attend, look
from regard.checks import check_rows, fraction, positive, refuse_keywords
from regard.distributed.processes import Processes
from regard.masks import Mask
from regard.scores import Score, scaled_dot
from regard.weighing import Weighing, softmax

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class Attend(nn.Module):
    """`regard.attend` with a fixed score, dropout and weighing: `[..., q, v]`.

    With groups, query is `[batch, heads, q, d]`, key and value are `[batch, heads / groups, k, …]`, and each key head
    serves `groups` neighbouring query heads (Ainslie et al. 2023). Weights are dropped in training only.

    With a `group` of processes it is `regard.distributed.attend`: each holds a part of the queries, keys and values.

    >>> import torch
    >>> query, key, value = torch.randn(2, 6, 5, 8), torch.randn(2, 3, 7, 8), torch.randn(2, 3, 7, 4)
    >>> Attend(groups=2)(query, key, value).shape
    torch.Size([2, 6, 5, 4])
    """

    def __init__(
        self,
        score: Score = scaled_dot,
        dropout: float = 0.0,
        groups: int = 1,
        weigh: Weighing = softmax,
        group: "ProcessGroup | None" = None,
    ) -> None:
        super().__init__()
        if not callable(score):
            raise TypeError(f"score must be callable, (query, key) -> [..., q, k], got {type(score).__name__}")
        if not callable(weigh):
            raise TypeError(f"weigh must be callable, scores -> weights, got {type(weigh).__name__}")
        self.score = score
        self.weigh = weigh
        self.dropout = fraction("dropout", dropout)
        self.groups = positive("groups", groups)
        self.processes = None if group is None else Processes(group)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask | None = None) -> Tensor:
        dropout = self.dropout if self.training else 0.0
        if self.processes is not None:
            return distributed.attend(
                query,
                key,
                value,
                group=self.processes.group,
                score=self.score,
                mask=mask,
                weigh=self.weigh,
                dropout=dropout,
            )
        grouped = self.groups > 1 and query.shape[-2] == 1 and query.shape[:-3] == key.shape[:-3]
        if grouped and mask is None and not dropout and self.weigh is softmax:
            # A single query: those of a group are the queries of one head, which is faster.
            rows = query.reshape(*key.shape[:-2], self.groups, query.shape[-1])  # [batch, heads / groups, groups, d]
            mean = attend(rows, key, value, score=self.score)
            return mean.reshape(*query.shape[:-1], mean.shape[-1])  # [batch, heads, 1, v]
        return attend(query, key, value, score=self.score, mask=mask, weigh=self.weigh, dropout=dropout)

    def look(self, query: Tensor, key: Tensor, mask: Mask | None = None, top: int | None = None) -> Tensor | Look:
        """The weights `[..., q, k]`, or the `top` largest of each query; without dropout."""
        if self.processes is not None and self.processes.size > 1:
            raise ValueError(
                "look and watch need all keys in one process: this layer's are in several, those of its group"
            )
        return look(query, key, score=self.score, mask=mask, weigh=self.weigh, top=top)

    def extra_repr(self) -> str:
        score = "" if isinstance(self.score, nn.Module) else f"score={self.score!r}, "
        if self.weigh is not softmax and not isinstance(self.weigh, nn.Module):
            score += f"weigh={self.weigh!r}, "
        return f"{score}dropout={self.dropout:g}" + (f", groups={self.groups}" if self.groups > 1 else "")


class Attention(nn.Module):
    """Queries from one input, keys and values from another.

    size         size of the rows that queries are made from
    key_size     size of the rows that keys and values are made from; default: `size`
    head_size    size of queries and keys (the query depth); default: `size`
    value_size   size of values, and so of the output; default: `size`
    score        one of `regard.scores`, or any callable; a module is trained with the layer
    weigh        one of `regard.weighing`, or any callable; a module is trained with the layer
    dropout      fraction of the weights dropped in training

    x `[..., q, size]` and source `[..., k, key_size]` give `[..., q, value_size]`. The order of the source's rows does
    not matter.

    >>> import torch, regard
    >>> layer = Attention(8, 6, score=regard.scores.Additive(8, 8, hidden=5))
    >>> x, source = torch.randn(2, 3, 8), torch.randn(2, 7, 6)
    >>> layer(x, source).shape, layer.look(x, source).shape, layer.look(x, source, top=2).index.shape
    (torch.Size([2, 3, 8]), torch.Size([2, 3, 7]), torch.Size([2, 3, 2]))
    """

    def __init__(  # noqa: PLR0913  # device and dtype as in torch's layers
        self,
        size: int,
        key_size: int | None = None,
        *,
        head_size: int | None = None,
        value_size: int | None = None,
        score: Score = scaled_dot,
        weigh: Weighing = softmax,
        dropout: float = 0.0,
        bias: bool = True,
        device: torch.types.Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.size = size = positive("size", size)
        self.key_size = positive("key_size", size if key_size is None else key_size)
        head_size = positive("head_size", size if head_size is None else head_size)
        value_size = positive("value_size", size if value_size is None else value_size)
        linear = partial(nn.Linear, bias=bias, device=device, dtype=dtype)
        self.query = linear(self.size, head_size)
        self.key = linear(self.key_size, head_size)
        self.value = linear(self.key_size, value_size)
        self.attend = Attend(score, dropout, weigh=weigh)

    def forward(self, x: Tensor, source: Tensor, *, mask: Mask | None = None, **unknown: object) -> Tensor:
        refuse_keywords(self, unknown)
        query, key = self._project(x, source)
        return self.attend(query, key, self.value(source), mask)  # type: ignore[no-any-return]

    def look(self, x: Tensor, source: Tensor, *, mask: Mask | None = None, top: int | None = None) -> Tensor | Look:
        """All weights `[..., q, k]`, or the `top` largest of each query as a `Look`."""
        return self.attend.look(*self._project(x, source), mask, top)

    def _project(self, x: Tensor, source: Tensor) -> tuple[Tensor, Tensor]:
        check_rows("x", x, self.size)
        check_rows("source", source, self.key_size)
        return self.query(x), self.key(source)


class SelfAttention(nn.Module):
    """Self-attention of a set: queries, keys and values are all made from x `[..., n, size]`.

    The arguments are those of `Attention`; the three projections are one matrix, `projection`. It is
    permutation-equivariant: if the rows of x are permuted, the outputs are permuted in the same way. Add positions
    (`regard.layers.Sinusoidal`) where the order must count, and a mask (`regard.masks.causal`) where the output at t
    must not depend on what comes after t.

    >>> import torch
    >>> layer, x = SelfAttention(4), torch.randn(5, 4)
    >>> order = torch.randperm(5)
    >>> bool(torch.allclose(layer(x[order]), layer(x)[order], atol=1e-6))
    True
    """

    def __init__(  # noqa: PLR0913  # device and dtype as in torch's layers
        self,
        size: int,
        *,
        head_size: int | None = None,
        value_size: int | None = None,
        score: Score = scaled_dot,
        weigh: Weighing = softmax,
        dropout: float = 0.0,
        bias: bool = True,
        device: torch.types.Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.size = size = positive("size", size)
        head_size = positive("head_size", size if head_size is None else head_size)
        value_size = positive("value_size", size if value_size is None else value_size)
        self.sizes = [head_size, head_size, value_size]
        self.projection = nn.Linear(size, sum(self.sizes), bias=bias, device=device, dtype=dtype)
        self.attend = Attend(score, dropout, weigh=weigh)

    def forward(self, x: Tensor, *, mask: Mask | None = None, **unknown: object) -> Tensor:
        refuse_keywords(self, unknown)
        return self.attend(*self._project(x), mask)  # type: ignore[no-any-return]

    def look(self, x: Tensor, *, mask: Mask | None = None, top: int | None = None) -> Tensor | Look:
        """All weights `[..., n, n]`, or the `top` largest of each query as a `Look`."""
        query, key, _ = self._project(x)
        return self.attend.look(query, key, mask, top)

    def _project(self, x: Tensor) -> tuple[Tensor, ...]:
        check_rows("x", x, self.size)
        return torch.split(self.projection(x), self.sizes, dim=-1)  # [..., n, head_size] twice, [..., n, value_size]


class DifferentialAttention(nn.Module):
    """The difference of two attentions, in which what both look at cancels (Ye et al. 2024, equations 1 to 3).

        head = attend(q₁, k₁, v) - λ attend(q₂, k₂, v)        f(x) = W_o [(1 - λ₀) norm(head_1); …]
        λ = exp(a₁ · b₁) - exp(a₂ · b₂) + λ₀                   λ₀ = 0.8 - 0.6 exp(-0.3 (depth - 1))

    size      size of the rows of x, and of the output
    heads     number of heads; queries and keys have size / heads / 2 numbers, values size / heads
    depth     the number of the layer in its model, from 1
    dropout   fraction of the weights dropped in training

    x `[batch, q, size]`; source `[batch, k, size]`, default: x. `look` gives the weights of the difference, of which
    some are negative.

    >>> import torch, regard
    >>> layer, x = DifferentialAttention(32, heads=4), torch.randn(2, 7, 32)
    >>> layer(x, mask=regard.masks.causal).shape, layer.look(x).shape
    (torch.Size([2, 7, 32]), torch.Size([2, 4, 7, 7]))
    """

    def __init__(self, size: int, heads: int, *, depth: int = 1, dropout: float = 0.0, bias: bool = False) -> None:
        super().__init__()
        self.size, self.heads = positive("size", size), positive("heads", heads)
        if size % (2 * heads):
            raise ValueError(f"2 · heads must divide size, got size={size} and heads={heads}")
        self.query = nn.Linear(size, size, bias=bias)
        self.key = nn.Linear(size, size, bias=bias)
        self.value = nn.Linear(size, size, bias=bias)
        self.attend = Attend(dropout=dropout)
        self.start = 0.8 - 0.6 * math.exp(-0.3 * (positive("depth", depth) - 1))
        self.log_factors = nn.Parameter(0.1 * torch.randn(2, 2, size // heads // 2))  # (a₁, b₁), (a₂, b₂)
        self.norm = nn.RMSNorm(size // heads)
        self.output = nn.Linear(size, size, bias=bias)

    @property
    def factor(self) -> Tensor:
        """λ, the factor of the second attention."""
        both: Tensor = self.log_factors.prod(dim=1).sum(dim=-1).exp()  # [2]
        return both[0] - both[1] + self.start

    def forward(self, x: Tensor, source: Tensor | None = None, *, mask: Mask | None = None) -> Tensor:
        source = x if source is None else source
        (first, second), (first_key, second_key) = self._project(x, source)
        value = self.value(source).unflatten(-1, (self.heads, -1)).transpose(1, 2)  # [batch, heads, k, d]
        head = self.attend(first, first_key, value, mask) - self.factor * self.attend(second, second_key, value, mask)
        head = (1 - self.start) * self.norm(head)
        return self.output(head.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]  # [batch, q, heads · d]

    def look(self, x: Tensor, source: Tensor | None = None, *, mask: Mask | None = None) -> Tensor:
        """All weights `[batch, heads, q, k]` of the difference."""
        (first, second), (first_key, second_key) = self._project(x, x if source is None else source)
        return look(first, first_key, mask=mask) - self.factor * look(second, second_key, mask=mask)

    def _project(self, x: Tensor, source: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Both queries and both keys, `[batch, heads, length, d / 2]` each."""
        check_rows("x", x, self.size, rank=3)
        check_rows("source", source, self.size, rank=3)
        query, key = (y.unflatten(-1, (self.heads, 2, -1)) for y in (self.query(x), self.key(source)))
        return query.permute(3, 0, 2, 1, 4).unbind(), key.permute(3, 0, 2, 1, 4).unbind()


class ConvSelfAttention(nn.Module):
    """Self-attention over the cells of a grid, added to the grid with a learned gain (Zhang et al. 2019, section 3).

        q, k, v = 1×1 convolutions of x        f(x) = x + gain · W_o attend(q, k, v)

    The gain starts at 0: inserted into a trained network, the layer first changes nothing.

    channels   channels of the grid, in and out
    size       size of queries, keys and values, all heads together; default: `channels`
    heads      number of heads; must divide `size`

    x `[batch, channels, height, width]`, of any height and width, gives the same shape. Cells are numbered row by row:
    cell (y, x) has index y · width + x in masks and in the result of `look`.

    >>> import torch
    >>> layer, x = ConvSelfAttention(6, size=4, heads=2), torch.randn(2, 6, 3, 5)
    >>> bool((layer(x) == x).all()), layer.look(x).shape
    (True, torch.Size([2, 2, 15, 15]))
    """

    def __init__(self, channels: int, size: int | None = None, heads: int = 1) -> None:
        super().__init__()
        self.channels = channels = positive("channels", channels)
        self.heads = heads = positive("heads", heads)
        size = channels if size is None else positive("size", size)
        if size % heads:
            raise ValueError(f"heads must divide size, got size={size} and heads={heads}")
        self.input = nn.Conv2d(channels, 3 * size, 1)
        self.attend = Attend()
        self.output = nn.Conv2d(size, channels, 1)
        self.gain = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor, *, mask: Mask | None = None) -> Tensor:
        mean = self.attend(*self._project(x), mask)  # [batch, heads, cells, d]
        grid = mean.mT.flatten(1, 2).unflatten(-1, x.shape[-2:])  # [batch, size, height, width]
        return x + self.gain * self.output(grid)  # type: ignore[no-any-return]

    def look(self, x: Tensor, *, mask: Mask | None = None, top: int | None = None) -> Tensor | Look:
        """All weights `[batch, heads, cells, cells]`, or the `top` largest of each cell as a `Look`."""
        query, key, _ = self._project(x)
        return self.attend.look(query, key, mask, top)

    def _project(self, x: Tensor) -> tuple[Tensor, ...]:
        if not isinstance(x, Tensor):
            raise TypeError(f"x must be a torch tensor, got {type(x).__name__}")
        if x.ndim != 4 or x.shape[1] != self.channels:
            raise ValueError(f"x must be [batch, {self.channels}, height, width], got {list(x.shape)}")
        qkv = self.input(x).flatten(2).unflatten(1, (3, self.heads, -1)).mT  # [batch, 3, heads, cells, d]
        return qkv.unbind(1)  # type: ignore[no-any-return]
