"""Attention with several heads, to oneself or to another input (Vaswani et al. 2017, section 3.2.2).

    head_h = attend(W_q^h x, W_k^h s, W_v^h s)        f(x) = W_o [head_1; …; head_H]

x `[batch, q, size]` asks, s `[batch, k, key_size]` is looked at; where there is no s, x looks at itself, and queries,
keys and values are one product with one matrix.
"""

import functools
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.attend import Look
from regard.checks import check_rows, is_plain_linear, positive
from regard.layers.attention import Attend
from regard.layers.cache import KeyValues
from regard.layers.positions import Positions
from regard.masks import Mask, both, causal, parts_of, shifted
from regard.scores import Score, scaled_dot

if TYPE_CHECKING:
    from typing import Self


class MultiHeadAttention(nn.Module):
    """Several heads that look at once, each at something else.

    size         of each row that asks, and of the output
    heads        how many; they must divide `size`, unless `head_size` is given
    kv_heads     how many heads the keys and values have (grouped queries); they must divide `heads`
    head_size    of a head's queries, keys and values, the sources' query depth; size / heads where not given
    key_size     of each row that is looked at, where that is not `size`
    value_size   of the rows that values come from, where those are others than the keys'
    dropout      the share of weights dropped in training
    positions    `Rotary(head_size)`, `Alibi(heads)`, or what has their methods; for self-attention
    score        one of `regard.scores`, or any callable, on each head

    x `[batch, q, size]`, source `[batch, k, key_size]` (x where not given), mask one of `regard.masks` or a tensor that
    broadcasts to `[batch, heads, q, k]`, **True = may look**. The answer is `[batch, q, size]`.

    Without positions it is permutation-equivariant; with them it is not. q and k differ freely. Under
    `regard.masks.causal` the output at t does not change when the future does. With one head, it is the
    single head of `Attention`, projected by `output`.

    >>> import torch, regard
    >>> from regard.layers import Rotary
    >>> layer = MultiHeadAttention(32, heads=4, kv_heads=2, positions=Rotary(8))
    >>> x = torch.randn(2, 7, 32)
    >>> layer(x, mask=regard.masks.causal).shape, layer.look(x, mask=regard.masks.causal, top=3).index.shape
    (torch.Size([2, 7, 32]), torch.Size([2, 4, 7, 3]))
    """

    def __init__(
        self,
        size: int,
        heads: int,
        *,
        kv_heads: int | None = None,
        head_size: int | None = None,
        key_size: int | None = None,
        value_size: int | None = None,
        dropout: float = 0.0,
        bias: bool = True,
        positions: Positions | None = None,
        score: Score = scaled_dot,
    ) -> None:
        super().__init__()
        self.size = size = positive("size", size)
        self.heads = heads = positive("heads", heads)
        if head_size is None and size % heads:
            raise ValueError(f"heads must divide size, got size={size} and heads={heads}")
        self.kv_heads = heads if kv_heads is None else positive("kv_heads", kv_heads)
        if heads % self.kv_heads:
            raise ValueError(f"kv_heads must divide heads, got heads={heads} and kv_heads={kv_heads}")
        self.head_size = size // heads if head_size is None else positive("head_size", head_size)
        self.key_size = size if key_size is None else positive("key_size", key_size)
        self.value_size = self.key_size if value_size is None else positive("value_size", value_size)
        if positions is not None and not (hasattr(positions, "rotate") and hasattr(positions, "bias")):
            got = type(positions).__name__
            raise TypeError(f"positions must have the methods rotate and bias, as Rotary and Alibi have, got {got}")
        self.positions = positions
        query, key = heads * self.head_size, self.kv_heads * self.head_size
        self.rows = [query, key, key]  # of the packed matrix
        self.packed = self.key_size == self.value_size == size
        if self.packed:
            self.input = nn.Linear(size, query + 2 * key, bias=bias)
        else:
            self.query = nn.Linear(size, query, bias=bias)
            self.key = nn.Linear(self.key_size, key, bias=bias)
            self.value = nn.Linear(self.value_size, key, bias=bias)
        self.attend = Attend(score, dropout, heads // self.kv_heads)
        self.output = nn.Linear(query, size, bias=bias)

    def forward(
        self,
        x: Tensor,
        source: Tensor | None = None,
        values: Tensor | None = None,
        *,
        mask: Mask | None = None,
        cache: KeyValues | None = None,
    ) -> Tensor:
        """Attention of x to itself, or to `source` (and `values`, where they are others).

        With a cache, self-attention also looks at what was given to the same cache before, and x stands
        behind it: masks count positions from the first of them. Cross-attention projects its source once.
        """
        mean: Tensor = self.attend(*self.projected(x, source, values, mask, cache))
        return self.output(mean.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def look(
        self, x: Tensor, source: Tensor | None = None, *, mask: Mask | None = None, top: int | None = None
    ) -> Tensor | Look:
        """What each head looks at: weights `[batch, heads, q, k]`, or the `top` largest of each query as a `Look`."""
        query, key, _, mask = self.projected(x, source, self.any_values(x, source), mask, None)
        return self.attend.look(query, key, mask, top)

    def any_values(self, x: Tensor, source: Tensor | None) -> Tensor | None:
        """Rows that fit the values' projection where the weights do not depend on them."""
        if self.value_size == self.key_size:
            return None
        source = x if source is None else source
        return source.new_zeros(*source.shape[:2], self.value_size)

    def projected(
        self, x: Tensor, source: Tensor | None, values: Tensor | None, mask: Mask | None, cache: KeyValues | None
    ) -> tuple[Tensor, Tensor, Tensor, Mask | None]:
        """Queries `[batch, heads, q, d]`, keys and values `[batch, kv_heads, k, d]`, and the mask they meet under."""
        check_rows("x", x, self.size, rank=3)
        if source is None and values is None:
            if not self.packed:
                sizes = f"key_size={self.key_size} and value_size={self.value_size}"
                raise ValueError(f"x of size {self.size} cannot look at itself with {sizes}: give a source")
            return self.of_itself(x, mask, cache)
        if self.positions is not None:
            raise ValueError("positions are for self-attention, got a source to look at")
        query = self.split(self.part(0, x), self.heads)
        kept = cache.get() if cache else None
        if kept is None:
            kept = self.of_source(x if source is None else source, values)
            if cache:
                cache.append(*kept)
        return query, *kept, mask

    def of_itself(
        self, x: Tensor, mask: Mask | None, cache: KeyValues | None
    ) -> tuple[Tensor, Tensor, Tensor, Mask | None]:
        """Self-attention: one product, then positions, then the cache."""
        start = cache.length if cache else 0
        every = self.split(self.input(x), self.heads + 2 * self.kv_heads)
        both_kinds, value = torch.split(every, [self.heads + self.kv_heads, self.kv_heads], dim=1)
        if self.positions is not None:
            both_kinds, mask = self.positions.rotate(both_kinds, start), self.positions.bias(mask)
        query, key = torch.split(both_kinds, [self.heads, self.kv_heads], dim=1)
        if cache:
            key, value = cache.append(key, value)
            mask = behind(mask, start, x.shape[1])
        return query, key, value, mask

    def of_source(self, source: Tensor, values: Tensor | None) -> tuple[Tensor, Tensor]:
        """Keys and values of another input."""
        check_rows("source", source, self.key_size, rank=3)
        if values is None and self.value_size != self.key_size:
            raise ValueError(
                f"keys of size {self.key_size} and values of size {self.value_size} need a source each: give values"
            )
        if values is not None:
            check_rows("values", values, self.value_size, rank=3)
        if values is None and self.packed:
            every = self.split(self.part(1, source, 3), 2 * self.kv_heads)
            return every[:, : self.kv_heads], every[:, self.kv_heads :]
        values = source if values is None else values
        return self.split(self.part(1, source), self.kv_heads), self.split(self.part(2, values), self.kv_heads)

    def part(self, number: int, x: Tensor, end: int | None = None) -> Tensor:
        """The projection of that number (0 queries, 1 keys, 2 values) of x, or those up to `end`, beside each other."""
        if not self.packed:
            return (self.query, self.key, self.value)[number](x)  # type: ignore[no-any-return]
        rows = slice(sum(self.rows[:number]), sum(self.rows[: end or number + 1]))
        if not is_plain_linear(self.input):
            return self.input(x)[..., rows]  # type: ignore[no-any-return]
        return functional.linear(x, self.input.weight[rows], None if self.input.bias is None else self.input.bias[rows])

    def split(self, x: Tensor, heads: int) -> Tensor:
        """`[batch, length, heads · d]` as `[batch, heads, length, d]`."""
        return x.view(*x.shape[:2], heads, self.head_size).transpose(1, 2)

    @classmethod
    def from_torch(cls, module: nn.MultiheadAttention) -> "Self":
        """The same layer, from torch's; its input is `[batch, length, size]`, whatever torch's `batch_first` is.

        Outputs are the same; masks are the other way round (True = may look). `bias_k`, `bias_v` and
        `add_zero_attn` have no counterpart here and are refused.

        >>> import torch
        >>> theirs, x = torch.nn.MultiheadAttention(8, 2, batch_first=True), torch.randn(3, 5, 8)
        >>> ours = MultiHeadAttention.from_torch(theirs)
        >>> bool(torch.allclose(ours(x), theirs(x, x, x)[0], atol=1e-6))
        True
        """
        from regard.layers.torch_interop import adopt

        return adopt(cls, module)

    def to_torch(self, *, batch_first: bool = True) -> nn.MultiheadAttention:
        """torch's layer with the same weights. What torch's has no counterpart for is refused."""
        from regard.layers.torch_interop import release

        return release(self, batch_first)


def behind(mask: Mask | None, start: int, queries: int) -> Mask | None:
    """The mask of queries that stand behind `start` kept keys. A single one has no future to be kept from."""
    parts = [shifted(part, start) for part in parts_of(mask) if queries > 1 or part is not causal]
    return functools.reduce(both, parts) if parts else None  # type: ignore[arg-type]
