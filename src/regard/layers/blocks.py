"""Blocks of a Transformer, and stacks of them (Vaswani et al. 2017, section 3.1).

A block is two residual sums, three where it also looks at a memory:

    x ← x + attention(norm(x))          x ← norm(x + attention(x))
    x ← x + feed_forward(norm(x))       x ← norm(x + feed_forward(x))
            pre-norm                            post-norm

What it is made of is passed in, so that the variants are compositions:

    GPT-2     Block(MultiHeadAttention(768, 12), FeedForward(768, activation=gelu_tanh))
    BERT      Block(MultiHeadAttention(768, 12), FeedForward(768), residual=post_norm,
                    norm=lambda size: nn.LayerNorm(size, eps=1e-12))
    Llama     Block(MultiHeadAttention(512, 8, kv_heads=4, positions=Rotary(64), bias=False),
                    FeedForward(512, 1376, activation=swiglu, bias=False), norm=nn.RMSNorm)
    Vaswani   Block(MultiHeadAttention(512, 8), FeedForward(512, activation=torch.relu), residual=post_norm)
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from regard.attend import Look
from regard.checks import check_rows, positive
from regard.layers.cache import BlockCache, Cache
from regard.layers.fast_decode import Steps
from regard.layers.feed_forward import Dropout
from regard.layers.multi_head import MultiHeadAttention
from regard.layers.watch import watch
from regard.masks import Mask, both, causal

Branch = Callable[[Tensor], Tensor]
Add = Callable[[Tensor, Tensor], Tensor]
Residual = Callable[[Tensor, Branch, Branch, Add], Tensor]


def pre_norm(x: Tensor, norm: Branch, branch: Branch, add: Add) -> Tensor:
    """x + branch(norm(x)): the sum itself is never normalised, which trains without a warm-up (Xiong et al. 2020).

    >>> import torch
    >>> pre_norm(torch.tensor(1.0), torch.neg, torch.abs, torch.add).item()
    2.0
    """
    return add(x, branch(norm(x)))


def post_norm(x: Tensor, norm: Branch, branch: Branch, add: Add) -> Tensor:
    """norm(x + branch(x)), as in the first Transformer.

    >>> import torch
    >>> post_norm(torch.tensor(1.0), torch.neg, torch.abs, torch.add).item()
    -2.0
    """
    return norm(add(x, branch(x)))


class Block(nn.Module):
    """Attention and a feed-forward, each with a norm and a residual sum; cross-attention between them where given.

    attention      self-attention, a `MultiHeadAttention`
    feed_forward   a `FeedForward`, or any module on rows
    cross          attention to a memory, a `MultiHeadAttention`
    norm           makes a norm from a size: `nn.LayerNorm`, `nn.RMSNorm`, or any callable
    residual       `pre_norm`, `post_norm`, or any callable of their arguments
    dropout        the share of each branch's output dropped in training

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
        residual: Residual = pre_norm,
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
        self.dropout = Dropout(dropout)
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
        """The sums. `mask` is of x by x, `memory_mask` of x by the memory; a cache as in `MultiHeadAttention`."""
        check_rows("x", x, self.attention.size, rank=3)
        own, kept = cache or (None, None)
        add = self.dropout.add
        x = self.residual(x, self.attention_norm, lambda x: self.attention(x, mask=mask, cache=own), add)
        self.check_memory(memory)
        if self.has_cross:
            x = self.residual(x, self.cross_norm, lambda x: self.cross(x, memory, mask=memory_mask, cache=kept), add)
        return self.residual(x, self.feed_forward_norm, self.feed_forward, add)

    def check_memory(self, memory: Tensor | None) -> None:
        """A memory is what cross-attention looks at, and nothing else does."""
        if self.has_cross != (memory is not None):
            raise ValueError(
                "a block with cross-attention needs a memory to look at, got none"
                if self.has_cross
                else "a block without cross-attention cannot look at a memory, got one: make it with cross="
            )

    def look(self, x: Tensor, *, mask: Mask | None = None, top: int | None = None) -> Tensor | Look:
        """What its self-attention looks at, `[batch, heads, length, length]`, or the `top` largest of each query."""
        with torch.no_grad(), watch(self, layers=["attention"], top=top) as seen:
            self.residual(x, self.attention_norm, lambda x: self.attention(x, mask=mask), lambda x, _: x)
        return seen["attention"][0]


class Stack(nn.Module):
    """Blocks one after the other; what `Encoder` and `Decoder` share."""

    def __init__(self, blocks: int, block: Callable[[], Block], *, norm: nn.Module | None = None) -> None:
        super().__init__()
        if isinstance(block, nn.Module):
            raise TypeError(f"block must make a new block each time it is called, lambda: {type(block).__name__}(…)")
        self.blocks = nn.ModuleList(block() for _ in range(positive("blocks", blocks)))
        self.norm = norm or nn.Identity()

    def watched(self, run: Callable[[], Tensor], top: int | None) -> list[Tensor | Look]:
        """What each block's self-attention looks at in one run, first to last."""
        names: dict[Any, str] = {}  # one block may stand in several places
        for place, block in enumerate(self.blocks):
            names.setdefault(block.attention, f"blocks.{place}.attention")
        with torch.no_grad(), watch(self, layers=list(names.values()), top=top) as seen:
            run()
        found = {name: iter(looks) for name, looks in seen.items()}
        return [next(found[names[block.attention]]) for block in self.blocks]


class Encoder(Stack):
    """A stack of blocks that all see everything a mask lets them see.

    blocks   how many
    block    makes one; it is called that many times
    norm     what the last block's output goes through, such as `nn.LayerNorm(size)` after pre-norm blocks

    >>> import torch
    >>> from regard.layers import FeedForward
    >>> encoder = Encoder(2, lambda: Block(MultiHeadAttention(16, heads=4), FeedForward(16)), norm=nn.LayerNorm(16))
    >>> x = torch.randn(3, 5, 16)
    >>> encoder(x).shape, [found.index.shape for found in encoder.look(x, top=2)]
    (torch.Size([3, 5, 16]), [torch.Size([3, 4, 5, 2]), torch.Size([3, 4, 5, 2])])
    """

    def forward(self, x: Tensor, *, mask: Mask | None = None) -> Tensor:
        """x `[batch, length, size]`; a mask such as `padding(lengths)`."""
        for block in self.blocks:
            x = block(x, mask=mask)
        return self.norm(x)  # type: ignore[no-any-return]

    def look(self, x: Tensor, *, mask: Mask | None = None, top: int | None = None) -> list[Tensor | Look]:
        """What each block looks at, first to last: weights `[batch, heads, length, length]`, or the `top` largest."""
        return self.watched(lambda: self(x, mask=mask), top)


class Decoder(Stack):
    """A stack of blocks that see themselves and what came before, and a memory where their blocks have cross-attention.

    The arguments are those of `Encoder`. The output at t does not change when what comes after t does.

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

        mask          beside the causal one, such as `padding(lengths)`
        memory_mask   which rows of the memory may be looked at
        cache         from `cache(max_length)`: x then stands behind what was given with it before
        """
        kept = cache.blocks if cache else [None] * len(self.blocks)
        if len(kept) != len(self.blocks):
            raise ValueError(f"the cache is for {len(kept)} blocks, got a decoder of {len(self.blocks)}")
        if cache is None:
            return self.run(x, memory, mask, memory_mask, kept)
        start = cache.length
        try:
            if mask is None and x.ndim == 3 and x.shape[1] == 1 and len(x) and not torch.is_grad_enabled():
                stepped = self.step(x, memory, memory_mask, cache)
                if stepped is not None:
                    return stepped
            return self.run(x, memory, mask, memory_mask, kept)
        except BaseException:
            cache.truncate(start)  # some blocks have read the new rows, and some have not
            raise

    def run(
        self,
        x: Tensor,
        memory: Tensor | None,
        mask: Mask | None,
        memory_mask: Mask | None,
        kept: Sequence[BlockCache | None],
    ) -> Tensor:
        """All blocks, each with what it keeps."""
        mask = causal if mask is None else both(causal, mask)
        for block, own in zip(self.blocks, kept, strict=True):
            x = block(x, memory, mask=mask, memory_mask=memory_mask, cache=own)
        return self.norm(x)  # type: ignore[no-any-return]

    def step(self, x: Tensor, memory: Tensor | None, memory_mask: Mask | None, cache: Cache) -> Tensor | None:
        """One new row for each sequence, `[batch, 1, size]`, the quick way; None where there is none."""
        if cache.steps is None:
            cache.steps = Steps(self.blocks, len(x))
        if not cache.steps.can():
            return None
        first: Block = cache.steps.blocks[0].block
        check_rows("x", x, first.attention.size, rank=3)
        first.check_memory(memory)
        rows = x.squeeze(1)
        for quick, own in zip(cache.steps.blocks, cache.blocks, strict=True):
            rows = quick(rows, memory, memory_mask, own)
        return self.norm(rows.unsqueeze(1))  # type: ignore[no-any-return]

    def cache(self, max_length: int) -> Cache:
        """An empty cache for sequences of at most so many rows."""
        return Cache(len(self.blocks), max_length)

    def look(
        self, x: Tensor, memory: Tensor | None = None, *, mask: Mask | None = None, top: int | None = None
    ) -> list[Tensor | Look]:
        """What each block's self-attention looks at, first to last; see `Encoder.look`."""
        return self.watched(lambda: self(x, memory, mask=mask), top)
