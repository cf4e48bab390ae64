"""Blocks of a Transformer, stacks of them, and their fast path for decoding (Vaswani et al. 2017, section 3.1).

A block is two residual sums, three with cross-attention to a memory:

    x ← x + attention(norm(x))          x ← norm(x + attention(x))
    x ← x + feed_forward(norm(x))       x ← norm(x + feed_forward(x))
            pre-norm                            post-norm

Its parts are passed in, so that the variants are compositions:

    GPT-2     Block(MultiHeadAttention(768, 12), FeedForward(768, activation=gelu_tanh))
    BERT      Block(MultiHeadAttention(768, 12), FeedForward(768), residual=post_norm,
                    norm=lambda size: nn.LayerNorm(size, eps=1e-12))
    Llama     Block(MultiHeadAttention(512, Heads(8, kv=4), positions=Rotary(64), bias=False),
                    FeedForward(512, 1376, activation=swiglu, bias=False), norm=nn.RMSNorm)
    Vaswani   Block(MultiHeadAttention(512, 8), FeedForward(512, activation=torch.relu), residual=post_norm)

The fast path is for one new row per sequence, after a cache. There, a call costs more than its arithmetic: the module
call, the checks, separate products. So with the first single row a cache prepares the standard blocks once for the run
(`FastBlocks`): weights at hand, for several sequences also transposed, so that a product of few rows reads them in
order; if weights change during a run, they are transposed again. Results are those of `Block`. Blocks with other parts,
with hooks or in training are called as usual.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.attend import Look
from regard.checks import check_rows, fraction, hooks_of, is_plain_linear, positive
from regard.engines.flash import torch_attention
from regard.layers.cache import BlockCache, Cache, KeyValues
from regard.layers.feed_forward import FeedForward
from regard.layers.multi_head import MultiHeadAttention
from regard.layers.watch import watch
from regard.masks import Mask, both, causal
from regard.scores import scaled_dot
from regard.weighing import softmax

Rows = Callable[[Tensor], Tensor]  # a map of rows [..., size]
Add = Callable[[Tensor, Tensor], Tensor]
_Residual = Callable[[Tensor, Rows, Rows, Add], Tensor]  # (x, norm, branch, add) -> the sum


def pre_norm(x: Tensor, norm: Rows, branch: Rows, add: Add) -> Tensor:
    """x + branch(norm(x)): the sum itself is not normalised, which trains without a warm-up (Xiong et al. 2020).

    >>> import torch
    >>> pre_norm(torch.tensor(1.0), torch.neg, torch.abs, torch.add).item()
    2.0
    """
    return add(x, branch(norm(x)))


def post_norm(x: Tensor, norm: Rows, branch: Rows, add: Add) -> Tensor:
    """norm(x + branch(x)), as in the first Transformer.

    >>> import torch
    >>> post_norm(torch.tensor(1.0), torch.neg, torch.abs, torch.add).item()
    -2.0
    """
    return norm(add(x, branch(x)))


class Block(nn.Module):
    """Attention and a feed-forward, each with a norm and a residual sum; optionally cross-attention between them.

    attention      self-attention, a `MultiHeadAttention`
    feed_forward   a `FeedForward`, or any module on rows
    cross          attention to a memory, a `MultiHeadAttention`
    norm           makes a norm from a size: `nn.LayerNorm`, `nn.RMSNorm`, or any callable
    residual       `pre_norm`, `post_norm`, or any callable with their arguments
    dropout        fraction of each branch's output dropped in training

    x `[batch, length, size]` gives the same shape.

    >>> import torch, regard
    >>> from regard.layers import FeedForward
    >>> block = Block(MultiHeadAttention(16, heads=4), FeedForward(16), norm=torch.nn.RMSNorm)
    >>> x = torch.randn(2, 5, 16)
    >>> block(x, mask=regard.masks.causal).shape, block.look(x).shape
    (torch.Size([2, 5, 16]), torch.Size([2, 4, 5, 5]))
    """

    def __init__(
        self,
        attention: MultiHeadAttention,
        feed_forward: nn.Module,
        *,
        cross: MultiHeadAttention | None = None,
        norm: Callable[[int], nn.Module] = nn.LayerNorm,
        residual: _Residual = pre_norm,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if not callable(residual):
            raise TypeError(f"residual must be callable, such as pre_norm or post_norm, got {residual!r}")
        self.attention, self.attention_norm = attention, norm(attention.size)
        if cross is not None:
            self.cross, self.cross_norm = cross, norm(cross.size)
        self.feed_forward, self.feed_forward_norm = feed_forward, norm(attention.size)
        self.residual = residual
        self.dropout = nn.Dropout(fraction("dropout", dropout))
        self.has_cross = cross is not None

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        mask: Mask | None = None,
        memory_mask: Mask | None = None,
        cache: BlockCache | None = None,
    ) -> Tensor:
        """The residual sums. `mask` is of x by x, `memory_mask` of x by the memory; for `cache` see `Decoder`."""
        check_rows("x", x, self.attention.size, rank=3)
        own, stored = cache or (None, None)
        x = self.residual(x, self.attention_norm, lambda x: self.attention(x, mask=mask, cache=own), self._add)
        self._check_memory(memory)
        if self.has_cross:
            x = self.residual(
                x, self.cross_norm, lambda x: self.cross(x, memory, mask=memory_mask, cache=stored), self._add
            )
        return self.residual(x, self.feed_forward_norm, self.feed_forward, self._add)

    def _add(self, x: Tensor, branch: Tensor) -> Tensor:
        if x.shape != branch.shape:  # torch would broadcast
            raise ValueError(f"a residual sum needs two of one shape, got {list(x.shape)} and {list(branch.shape)}")
        return x + self.dropout(branch)  # type: ignore[no-any-return]

    def _check_memory(self, memory: Tensor | None) -> None:
        if self.has_cross and memory is None:
            raise ValueError("a block with cross-attention needs a memory, got none")
        if not self.has_cross and memory is not None:
            raise ValueError("a block without cross-attention takes no memory, got one: make the block with cross=")

    def look(self, x: Tensor, *, mask: Mask | None = None, top: int | None = None) -> Tensor | Look:
        """The weights of its self-attention, `[batch, heads, length, length]`, or the `top` largest of each query."""
        with torch.no_grad(), watch(self, layers=["attention"], top=top) as weights:
            self.residual(x, self.attention_norm, lambda x: self.attention(x, mask=mask), lambda x, _: x)
        return weights["attention"][0]


class _Stack(nn.Module):
    """Blocks one after the other: the base of `Encoder` and `Decoder`."""

    blocks: nn.ModuleList

    def __init__(self, blocks: int, block: Callable[[], Block], *, norm: nn.Module | None = None) -> None:
        super().__init__()
        if isinstance(block, nn.Module):
            raise TypeError(f"block must make a new block each time it is called, lambda: {type(block).__name__}(…)")
        self.blocks = nn.ModuleList(block() for _ in range(positive("blocks", blocks)))
        self.norm = norm or nn.Identity()

    def _watch_blocks(self, run: Callable[[], Tensor], top: int | None) -> list[Tensor | Look]:
        """The weights of each block's self-attention in one run, first to last."""
        names: dict[nn.Module, str] = {}  # one block may be used several times
        attentions = [block.get_submodule("attention") for block in self.blocks]
        for index, attention in enumerate(attentions):
            names.setdefault(attention, f"blocks.{index}.attention")
        with torch.no_grad(), watch(self, layers=list(names.values()), top=top) as weights:
            run()
        records = {name: iter(runs) for name, runs in weights.items()}
        return [next(records[names[attention]]) for attention in attentions]


class Encoder(_Stack):
    """A stack of blocks in which every row attends to all rows that the mask allows.

    blocks   number of blocks
    block    makes one block; it is called once for each
    norm     applied to the output of the last block, such as `nn.LayerNorm(size)` after pre-norm blocks

    >>> import torch
    >>> from regard.layers import FeedForward
    >>> encoder = Encoder(2, lambda: Block(MultiHeadAttention(16, heads=4), FeedForward(16)), norm=nn.LayerNorm(16))
    >>> x = torch.randn(3, 5, 16)
    >>> encoder(x).shape, [largest.index.shape for largest in encoder.look(x, top=2)]
    (torch.Size([3, 5, 16]), [torch.Size([3, 4, 5, 2]), torch.Size([3, 4, 5, 2])])
    """

    def forward(self, x: Tensor, *, mask: Mask | None = None) -> Tensor:
        """x `[batch, length, size]`; a mask such as `padding(lengths)`."""
        for block in self.blocks:
            x = block(x, mask=mask)
        return self.norm(x)  # type: ignore[no-any-return]

    def look(self, x: Tensor, *, mask: Mask | None = None, top: int | None = None) -> list[Tensor | Look]:
        """The weights of each block, first to last: `[batch, heads, length, length]`, or the `top` largest."""
        return self._watch_blocks(lambda: self(x, mask=mask), top)


class Decoder(_Stack):
    """A stack of blocks in which every row attends to itself and earlier rows, and to a memory if blocks have `cross`.

    The arguments are those of `Encoder`. The output at t does not depend on what comes after t.

    >>> import torch
    >>> from regard.layers import FeedForward
    >>> make = lambda: Block(MultiHeadAttention(16, heads=4), FeedForward(16), cross=MultiHeadAttention(16, heads=4))
    >>> decoder, x, memory = Decoder(2, make).eval(), torch.randn(3, 5, 16), torch.randn(3, 7, 16)
    >>> whole = decoder(x, memory)
    >>> cache = decoder.cache(max_length=5)
    >>> with torch.inference_mode():
    ...     steps = [decoder(x[:, t : t + 1], memory, cache=cache) for t in range(5)]
    >>> bool(torch.allclose(torch.cat(steps, dim=1), whole, atol=1e-5))
    True
    """

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        mask: Mask | None = None,
        memory_mask: Mask | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """x `[batch, length, size]`, memory `[batch, rows, key_size]`.

        mask          in addition to the causal one, such as `padding(lengths)`
        memory_mask   which rows of the memory may be attended to
        cache         from `cache(max_length)`: x follows the rows of earlier calls with the same cache
        """
        caches = cache.blocks if cache else [None] * len(self.blocks)
        if len(caches) != len(self.blocks):
            raise ValueError(f"the cache is for {len(caches)} blocks, got a decoder of {len(self.blocks)}")
        start = cache.length if cache else 0
        try:
            if cache and mask is None and x.ndim == 3 and x.shape[1] == 1 and len(x) and not torch.is_grad_enabled():
                output = self._run_fast(x, memory, memory_mask, cache)
                if output is not None:
                    return output
            mask = causal if mask is None else both(causal, mask)
            if cache and cache.padding is not None:
                mask = both(mask, _AfterPadding(cache.padding))
            for block, own in zip(self.blocks, caches, strict=True):
                x = block(x, memory, mask=mask, memory_mask=memory_mask, cache=own)
            return self.norm(x)  # type: ignore[no-any-return]
        except BaseException:
            if cache:  # the caches of the first blocks may have the new rows, and the others not
                cache.truncate(start)
            raise

    def _run_fast(self, x: Tensor, memory: Tensor | None, memory_mask: Mask | None, cache: Cache) -> Tensor | None:
        """All blocks for one new row of each sequence, `[batch, 1, size]`; None if the fast path cannot be used."""
        if not isinstance(cache.fast_blocks, FastBlocks) or cache.fast_blocks.is_outdated():
            cache.fast_blocks = FastBlocks(self.blocks, len(x))
        fast = cache.fast_blocks
        if not fast.is_usable():
            return None
        first = fast.blocks[0].block
        check_rows("x", x, first.attention.size, rank=3)
        first._check_memory(memory)
        rows = x.squeeze(1)  # [batch, size]
        visible = None
        if cache.padding is not None:
            key_index = torch.arange(cache.length + 1, device=x.device)
            visible = _AfterPadding(cache.padding)(key_index, key_index.view(1, 1, 1, -1))  # [batch, 1, 1, k]
        for block, own in zip(fast.blocks, cache.blocks, strict=True):
            rows = block(rows, memory, memory_mask, own, visible)
        return self.norm(rows.unsqueeze(1))  # type: ignore[no-any-return]

    def cache(self, max_length: int, padding: Tensor | None = None) -> Cache:
        """An empty cache for sequences of at most this number of rows.

        padding   for sequences of unequal length: the number of rows before each that are not part of it, `[batch]`
        """
        return Cache(len(self.blocks), max_length, padding)

    def look(
        self, x: Tensor, memory: Tensor | None = None, *, mask: Mask | None = None, top: int | None = None
    ) -> list[Tensor | Look]:
        """The weights of each block's self-attention, first to last; see `Encoder.look`."""
        return self._watch_blocks(lambda: self(x, memory, mask=mask), top)


@dataclass(frozen=True)
class _AfterPadding:
    """A query sees no key of the padding before a sequence."""

    padding: Tensor  # [batch]
    solid = True

    def __call__(self, query_index: Tensor, key_index: Tensor) -> Tensor:
        return key_index >= self.padding.view(-1, *[1] * (key_index.ndim - 1))  # [batch, 1, 1, k]

    def reach(self, query_index: Tensor) -> tuple[Tensor, int]:
        return self.padding.view(-1, *[1] * (query_index.ndim - 1)), sys.maxsize


_TRANSPOSE_FROM = 4
"""Number of sequences from which the fast path uses transposed weights, on the CPU."""
_SAMPLE = 16
"""Number of elements of a weight that are compared with those of its copy."""


class _Transposed:
    """A weight as `[in, out]`: a copy, and what is needed to notice that the weight has changed since."""

    def __init__(self, linear: nn.Linear) -> None:
        self.parameters = linear._parameters  # a dict: reading it is faster than the attribute
        weight = linear.weight.detach()
        self.copy = weight.t().contiguous()  # [in, out]
        self.state = self.read_state()
        # A view: torch counts neither changes by fused optimizers nor those of `weight.data`, but they show in it.
        self.sample = weight.flatten()[:: weight.numel() // _SAMPLE + 1]

    def read_state(self) -> tuple[int, int, int]:
        """What changes if the weight is replaced, gets other memory, or is changed in place as torch counts it."""
        weight = self.parameters["weight"]
        assert weight is not None
        return id(weight), weight.data_ptr(), 0 if weight.is_inference() else weight._version


def _fast_linear(linear: nn.Linear, rows: int, copies: list[_Transposed]) -> Rows:
    """The linear map of `[rows, size]`; a copy of its weight is added to the copies."""
    if rows < _TRANSPOSE_FROM or linear.weight.device.type != "cpu":
        return lambda x: functional.linear(x, linear.weight, linear.bias)
    copies.append(_Transposed(linear))
    weight = copies[-1].copy
    if linear.bias is None:
        return lambda x: torch.mm(x, weight)
    return lambda x: torch.addmm(linear.bias, x, weight)


def _fast_norm(norm: nn.Module) -> Rows:
    """The norm, without a module call if it is torch's `nn.LayerNorm`."""
    if type(norm) is not nn.LayerNorm:
        return norm
    return lambda x: torch.layer_norm(x, norm.normalized_shape, norm.weight, norm.bias, norm.eps)


class _FastBlock:
    """A `Block` for single rows `[rows, size]`."""

    def __init__(self, block: nn.Module, rows: int, copies: list[_Transposed]) -> None:
        assert isinstance(block, Block)
        attention, feed_forward = block.attention, block.feed_forward
        assert isinstance(feed_forward, FeedForward)
        self.block, self.residual, self.positions = block, block.residual, attention.positions
        self.sizes = attention.heads, attention.kv_heads, attention.head_size
        norms = attention.query_norm, attention.key_norm
        self.head_norms = None if norms[0] is None or norms[1] is None else (norms[0], norms[1])
        parts = attention.input, attention.output, feed_forward.input, feed_forward.output
        self.input, self.output, first, second = (_fast_linear(part, rows, copies) for part in parts)
        self.feed_forward: Rows = lambda x: second(feed_forward.activation(first(x)))
        self.norm, self.feed_forward_norm = _fast_norm(block.attention_norm), _fast_norm(block.feed_forward_norm)

    def __call__(
        self, x: Tensor, memory: Tensor | None, memory_mask: Mask | None, cache: BlockCache, visible: Tensor | None
    ) -> Tensor:
        """`visible` are the keys that a row may attend to, `[rows, 1, 1, k]`; None: all."""
        x = self.residual(x, self.norm, lambda x: self._attend(x, cache.own, visible), torch.add)
        if memory is not None:

            def cross(x: Tensor) -> Tensor:  # as the block has it, with a length of 1
                output: Tensor = self.block.cross(x.unsqueeze(1), memory, mask=memory_mask, cache=cache.memory)
                return output.squeeze(1)

            x = self.residual(x, self.block.cross_norm, cross, torch.add)
        return self.residual(x, self.feed_forward_norm, self.feed_forward, torch.add)

    def _attend(self, x: Tensor, cache: KeyValues, visible: Tensor | None) -> Tensor:
        """Self-attention of one new row to the cached ones and itself."""
        rows, (heads, kv_heads, size) = x.shape[0], self.sizes
        qkv = self.input(x).view(rows, -1, 1, size)  # [rows, heads + 2 · kv_heads, 1, d]
        query, key, value = torch.split(qkv, [heads, kv_heads, kv_heads], dim=1)
        if self.head_norms is not None:
            query, key = self.head_norms[0](query), self.head_norms[1](key)
        if self.positions is not None:
            query, key = (self.positions.rotate(x, cache.length) for x in (query, key))
        key, value = cache.append(key, value)
        if kv_heads != heads:  # the query heads of a group become the queries of one head
            query = query.reshape(rows, kv_heads, -1, size)  # [rows, kv_heads, groups, d]
        mean = torch_attention(query, key, value, attn_mask=visible)
        return self.output(mean.reshape(rows, -1))  # [rows, heads · d]


def _is_standard(block: nn.Module) -> bool:
    """Whether the fast path knows all parts of a block: what replaces one, such as an adapter, must be called."""
    if type(block) is not Block or type(block.attention) is not MultiHeadAttention:
        return False
    attention, feed_forward = block.attention, block.feed_forward
    return (
        block.residual in (pre_norm, post_norm)
        and type(feed_forward) is FeedForward
        and attention.packed
        and attention.attend.score is scaled_dot
        and attention.attend.weigh is softmax
        and (attention.positions is None or attention.positions.bias(None) is None)
        and all(map(is_plain_linear, (attention.input, attention.output, feed_forward.input, feed_forward.output)))
    )


class FastBlocks:
    """The blocks of a decoder, prepared for single rows; none if one of them is not standard."""

    def __init__(self, blocks: nn.ModuleList, rows: int) -> None:
        self.copies: list[_Transposed] = []
        standard = all(map(_is_standard, blocks))
        self.blocks = [_FastBlock(block, rows, self.copies) for block in blocks] if standard else []
        self.sample = self._read_sample()
        parts = [part for block in blocks for part in block.modules()]
        self.hooks, self.attributes = hooks_of(parts), [vars(part) for part in parts]

    def is_usable(self) -> bool:
        """Whether no part of the blocks has hooks, a replaced forward, or is in training."""
        if not self.blocks or any(self.hooks):
            return False
        return not any(own["training"] or "forward" in own for own in self.attributes)

    def is_outdated(self) -> bool:
        """Whether a weight has changed since it was transposed."""
        if not self.copies:
            return False
        return any(copy.state != copy.read_state() for copy in self.copies) or not torch.equal(
            self.sample, self._read_sample()
        )

    def _read_sample(self) -> Tensor:
        """Some elements of each weight that was transposed, as it is now."""
        return torch.cat([copy.sample for copy in self.copies]) if self.copies else torch.empty(0)
