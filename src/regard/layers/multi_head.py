"""Attention with several heads, to oneself or to another input (Vaswani et al. 2017, section 3.2.2).

    head_h = attend(W_q^h x, W_k^h s, W_v^h s)        f(x) = W_o [head_1; …; head_H]

x `[batch, q, size]` gives the queries, s `[batch, k, key_size]` the keys and values. Without s it is self-attention,
and queries, keys and values are one product with one matrix.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.attend import Look
from regard.checks import check_rows, is_plain_linear, positive, refuse_keywords
from regard.distributed.attention import start_of
from regard.layers.attention import Attend
from regard.layers.cache import KeyValues
from regard.layers.positions import Positions
from regard.masks import Mask, both, causal, shifted
from regard.masks.evaluation import parts_of
from regard.scores import Score, scaled_dot
from regard.weighing import Weighing, softmax

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

Projected = tuple[Tensor, Tensor, Tensor, Mask | None]
"""What attention gets: query `[batch, heads, q, d]`, key and value `[batch, kv_heads, k, d]`, mask."""


@dataclass(frozen=True)
class Heads:
    """The heads of a `MultiHeadAttention`, if they are more than a number.

    count   number of heads
    kv      number of heads of keys and values (grouped queries); must divide `count`; default: `count`
    size    size of a head's queries, keys and values (the query depth); default: the layer's size / count
    norm    makes a norm from the size of a head, such as `nn.RMSNorm`: one for the queries and one for the keys, before
            positions (Qwen 3)

    >>> import torch
    >>> MultiHeadAttention(32, Heads(4, kv=2, size=16, norm=nn.RMSNorm))(torch.randn(2, 7, 32)).shape
    torch.Size([2, 7, 32])
    """

    count: int
    kv: int | None = None
    size: int | None = None
    norm: Callable[[int], nn.Module] | None = None

    def _numbers(self, size: int) -> tuple[int, int, int]:
        """Number of heads, number of heads of keys and values, and size of a head, in a layer of this size."""
        heads = positive("heads", self.count)
        kv_heads = heads if self.kv is None else positive("heads of keys and values", self.kv)
        if heads % kv_heads:
            raise ValueError(f"heads of keys and values must divide heads, got {self}")
        if self.size is None and size % heads:
            raise ValueError(f"heads must divide size, got size={size} and heads={heads}")
        return heads, kv_heads, size // heads if self.size is None else positive("size of a head", self.size)


class MultiHeadAttention(nn.Module):
    """Several heads of attention side by side, each with its own weights.

    size         size of the rows of x, and of the output
    heads        number of heads, which must divide `size`; or `Heads`, with grouped queries or another size of a head
    key_size     size of the rows that keys are made from; default: `size`
    value_size   size of the rows that values are made from; default: `key_size`
    dropout      fraction of the weights dropped in training
    positions    `Rotary(head_size)`, `Alibi(heads)`, or any object with their methods; for self-attention
    score        one of `regard.scores`, or any callable, applied to each head
    weigh        one of `regard.weighing`, or any callable; `sinks(nn.Parameter(torch.zeros(heads)))` learns
    group        a torch.distributed group, in which each process has a part of x, and of the source: attention is to
                 all parts; positions and masks count from the first row of the first (`regard.distributed.attend`)

    x `[batch, q, size]`; source `[batch, k, key_size]`, default: x; mask: one of `regard.masks` or a tensor that
    broadcasts to `[batch, heads, q, k]`, **True = may attend**. The output is `[batch, q, size]`.

    Without positions it is permutation-equivariant. Under `regard.masks.causal` the output at t does not depend on what
    comes after t. With one head it is `Attention`, followed by the linear map `output`.

    >>> import torch, regard
    >>> from regard.layers import Rotary
    >>> layer = MultiHeadAttention(32, Heads(4, kv=2), positions=Rotary(8))
    >>> x = torch.randn(2, 7, 32)
    >>> layer(x, mask=regard.masks.causal).shape, layer.look(x, mask=regard.masks.causal, top=3).index.shape
    (torch.Size([2, 7, 32]), torch.Size([2, 4, 7, 3]))
    """

    def __init__(  # noqa: PLR0913  # device and dtype as in torch's layers
        self,
        size: int,
        heads: int | Heads,
        *,
        key_size: int | None = None,
        value_size: int | None = None,
        dropout: float = 0.0,
        bias: bool = True,
        positions: Positions | None = None,
        score: Score = scaled_dot,
        weigh: Weighing = softmax,
        group: "ProcessGroup | None" = None,
        device: torch.types.Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.size = size = positive("size", size)
        heads = heads if isinstance(heads, Heads) else Heads(heads)
        self.heads, self.kv_heads, self.head_size = heads._numbers(size)
        self.key_size = size if key_size is None else positive("key_size", key_size)
        self.value_size = self.key_size if value_size is None else positive("value_size", value_size)
        if positions is not None and not (hasattr(positions, "rotate") and hasattr(positions, "bias")):
            got = type(positions).__name__
            raise TypeError(f"positions must have the methods rotate and bias, as Rotary and Alibi have, got {got}")
        self.positions = positions
        query, key = self.heads * self.head_size, self.kv_heads * self.head_size
        self.projection_sizes = [query, key, key]  # rows of the packed matrix
        self.packed = self.key_size == self.value_size == size
        linear = functools.partial(nn.Linear, bias=bias, device=device, dtype=dtype)
        if self.packed:
            self.input = linear(size, query + 2 * key)
        else:
            self.query, self.key = linear(size, query), linear(self.key_size, key)
            self.value = linear(self.value_size, key)
        self.query_norm, self.key_norm = (
            None if heads.norm is None else heads.norm(self.head_size).to(device=device, dtype=dtype) for _ in range(2)
        )
        self.attend = Attend(score, dropout, self.heads // self.kv_heads, weigh, group)
        self.output = linear(query, size)

    def forward(
        self,
        x: Tensor,
        source: Tensor | None = None,
        values: Tensor | None = None,
        *,
        mask: Mask | None = None,
        cache: KeyValues | None = None,
        **unknown: object,
    ) -> Tensor:
        """Attention of x to itself, or to `source` (and to `values`, if keys and values come from different rows).

        With a cache, self-attention also attends to what the same cache got before, and the positions of x follow
        those: masks count from the first cached position. Cross-attention projects its source once.
        """
        refuse_keywords(self, unknown)
        mean: Tensor = self.attend(*self._project(x, source, values, mask, cache))  # [batch, heads, q, d]
        return self.output(mean.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]  # [batch, q, heads · d]

    def look(
        self, x: Tensor, source: Tensor | None = None, *, mask: Mask | None = None, top: int | None = None
    ) -> Tensor | Look:
        """All weights `[batch, heads, q, k]`, or the `top` largest of each query as a `Look`."""
        values = None
        if self.value_size != self.key_size:  # weights do not depend on the values: any rows of their size will do
            rows = x if source is None else source
            values = rows.new_zeros(*rows.shape[:2], self.value_size)
        query, key, _, mask = self._project(x, source, values, mask, None)
        return self.attend.look(query, key, mask, top)

    def _project(
        self, x: Tensor, source: Tensor | None, values: Tensor | None, mask: Mask | None, cache: KeyValues | None
    ) -> Projected:
        check_rows("x", x, self.size, rank=3)
        if cache and self.attend.processes:
            raise ValueError("a layer with a group of processes takes no cache")
        if source is None and values is None:
            if not self.packed:
                sizes = f"key_size={self.key_size} and value_size={self.value_size}"
                raise ValueError(f"self-attention of x of size {self.size} is not possible with {sizes}: give a source")
            return self._project_self(x, mask, cache)
        if self.positions is not None:
            raise ValueError("positions are for self-attention, got a source to attend to")
        query = self._split_heads(self._linear(0, x), self.heads)
        query = query if self.query_norm is None else self.query_norm(query)
        key_values = cache.get() if cache else None
        if key_values is None:
            key, value = self._project_source(x if source is None else source, values)
            key_values = key if self.key_norm is None else self.key_norm(key), value
            if cache:
                cache.append(*key_values)
        return query, *key_values, mask

    def _project_self(self, x: Tensor, mask: Mask | None, cache: KeyValues | None) -> Projected:
        """Self-attention: one product, then positions, then the cache."""
        start = cache.length if cache else 0
        qkv = self._split_heads(self.input(x), self.heads + 2 * self.kv_heads)
        query_key, value = torch.split(qkv, [self.heads + self.kv_heads, self.kv_heads], dim=1)
        if self.query_norm is not None and self.key_norm is not None:
            query, key = torch.split(query_key, [self.heads, self.kv_heads], dim=1)
            query_key = torch.cat([self.query_norm(query), self.key_norm(key)], dim=1)
        if self.positions is not None:
            if self.attend.processes:
                start = start_of(x.shape[1], self.attend.processes.group, x.device)
            query_key, mask = self.positions.rotate(query_key, start), self.positions.bias(mask)
        query, key = torch.split(query_key, [self.heads, self.kv_heads], dim=1)
        if cache:
            key, value = cache.append(key, value)
            # Masks count from the first cached key. A single query needs no causal mask: it is the last.
            parts = [shifted(part, start) for part in parts_of(mask) if x.shape[1] > 1 or part is not causal]
            mask = functools.reduce(both, parts) if parts else None  # type: ignore[arg-type]
        return query, key, value, mask

    def _project_source(self, source: Tensor, values: Tensor | None) -> tuple[Tensor, Tensor]:
        """Keys and values of another input, `[batch, kv_heads, k, d]` each."""
        check_rows("source", source, self.key_size, rank=3)
        if values is None and self.packed:
            key, value = self._split_heads(self._linear(1, source, 3), 2 * self.kv_heads).chunk(2, dim=1)
            return key, value
        if values is None and self.value_size != self.key_size:
            raise ValueError(
                f"keys of size {self.key_size} and values of size {self.value_size} need a source each: give values"
            )
        values = source if values is None else values
        check_rows("values", values, self.value_size, rank=3)
        key, value = self._linear(1, source), self._linear(2, values)
        return self._split_heads(key, self.kv_heads), self._split_heads(value, self.kv_heads)

    def _linear(self, index: int, x: Tensor, end: int | None = None) -> Tensor:
        """One projection of x (0 queries, 1 keys, 2 values), or those from `index` to `end`, side by side."""
        if not self.packed:
            return (self.query, self.key, self.value)[index](x)  # type: ignore[no-any-return]
        rows = slice(sum(self.projection_sizes[:index]), sum(self.projection_sizes[: end or index + 1]))
        if not is_plain_linear(self.input):
            return self.input(x)[..., rows]  # type: ignore[no-any-return]
        return functional.linear(x, self.input.weight[rows], None if self.input.bias is None else self.input.bias[rows])

    def _split_heads(self, x: Tensor, heads: int) -> Tensor:
        """`[batch, length, heads · d]` as `[batch, heads, length, d]`."""
        return x.view(*x.shape[:2], heads, self.head_size).transpose(1, 2)

    @classmethod
    def from_torch(cls, module: nn.MultiheadAttention) -> Self:
        """The same layer, from torch's; its input is `[batch, length, size]`, whatever torch's `batch_first` is.

        Outputs are equal; boolean masks have the opposite meaning (True = may attend). `bias_k`, `bias_v` and
        `add_zero_attn` are not supported and raise ValueError.

        >>> import torch
        >>> theirs, x = torch.nn.MultiheadAttention(8, 2, batch_first=True), torch.randn(3, 5, 8)
        >>> ours = MultiHeadAttention.from_torch(theirs)
        >>> bool(torch.allclose(ours(x), theirs(x, x, x)[0], atol=1e-6))
        True
        """
        if not isinstance(module, nn.MultiheadAttention):
            raise TypeError(f"from_torch needs torch's nn.MultiheadAttention, got {type(module).__name__}")
        unsupported = [name for name in ("bias_k", "bias_v") if getattr(module, name) is not None]
        unsupported += ["add_zero_attn"] if module.add_zero_attn else []
        if unsupported:
            raise ValueError(f"MultiHeadAttention does not support {' and '.join(unsupported)}")
        # Weights are overwritten at once: making them must not advance torch's random generator.
        with torch.random.fork_rng(devices=[]), torch.device("cpu"):
            layer = cls(
                module.embed_dim,
                module.num_heads,
                key_size=module.kdim,
                value_size=module.vdim,
                dropout=module.dropout,
                bias=module.in_proj_bias is not None,
            ).to(module.out_proj.weight)
        with torch.no_grad():
            for ours, theirs, rows in _parameter_pairs(layer, module):
                ours.copy_(theirs[rows])
                ours.requires_grad_(theirs.requires_grad)
        return layer.train(module.training)

    def to_torch(self, *, batch_first: bool = True) -> nn.MultiheadAttention:
        """torch's layer with the same weights; raises ValueError for what torch's layer does not support."""
        reasons = {
            f"kv_heads={self.kv_heads} with heads={self.heads}": self.kv_heads != self.heads,
            f"head_size={self.head_size} with size={self.size} and heads={self.heads}": (
                self.head_size * self.heads != self.size
            ),
            f"positions={self.positions!r}": self.positions is not None,
            f"norm={self.query_norm!r} of the heads": self.query_norm is not None,
            f"score={self.attend.score!r}": self.attend.score is not scaled_dot,
            f"weigh={self.attend.weigh!r}": self.attend.weigh is not softmax,
        }
        unsupported = [reason for reason, holds in reasons.items() if holds]
        if unsupported:
            raise ValueError(f"nn.MultiheadAttention does not support {', '.join(unsupported)}")
        with torch.random.fork_rng(devices=[]), torch.device("cpu"):
            module = nn.MultiheadAttention(
                self.size,
                self.heads,
                dropout=self.attend.dropout,
                bias=self.output.bias is not None,
                kdim=self.key_size,
                vdim=self.value_size,
                batch_first=batch_first,
            ).to(self.output.weight)
        module.requires_grad_(False)
        for ours, theirs, rows in _parameter_pairs(self, module):
            with torch.no_grad():
                theirs[rows].copy_(ours)
            theirs.requires_grad_(theirs.requires_grad or ours.requires_grad)
        return module.train(self.training)


def _parameter_pairs(layer: MultiHeadAttention, module: nn.MultiheadAttention) -> list[tuple[Tensor, Tensor, slice]]:
    """Our parameters, the corresponding one of torch's, and which rows of it: its one bias may be three of ours."""
    whole, size = slice(None), layer.size
    if layer.packed:
        inputs = [(layer.input, module.in_proj_weight, whole)]
    else:
        theirs = module.q_proj_weight, module.k_proj_weight, module.v_proj_weight
        rows = [slice(i * size, (i + 1) * size) for i in range(3)]  # of the one bias
        inputs = list(zip((layer.query, layer.key, layer.value), theirs, rows, strict=True))
    pairs = [(layer.output.weight, module.out_proj.weight, whole)]
    pairs += [(linear.weight, weight, whole) for linear, weight, _ in inputs]
    if module.in_proj_bias is not None:
        pairs.append((layer.output.bias, module.out_proj.bias, whole))
        pairs += [(linear.bias, module.in_proj_bias, rows) for linear, _, rows in inputs]
    return pairs
