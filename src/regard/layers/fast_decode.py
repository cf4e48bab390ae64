"""One new row for each sequence, behind a cache: a block in as few calls as can be.

At one row a call costs more than what it computes: a module's own calls, its checks, a product for queries, keys and
values apart. So when a cache meets its first single row, the usual blocks are taken apart, once for the run: their
weights are at hand, for several sequences also laid out so that a product of few rows reads them in order. What is
computed is what `Block` computes. A block that is not of the usual parts, or that somebody watches, is called as ever.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.checks import hooks_of, is_plain_linear
from regard.engines.one_query import attend_one, fits
from regard.layers.cache import BlockCache, KeyValues
from regard.layers.feed_forward import FeedForward
from regard.layers.multi_head import MultiHeadAttention
from regard.masks import Mask
from regard.scores import scaled_dot

SEVERAL = 4
"""Sequences from which weights are laid out anew."""
Rows = Callable[[Tensor], Tensor]


def product(linear: nn.Linear, rows: int) -> Rows:
    """A linear map of rows `[rows, size]`."""
    if rows < SEVERAL:
        return partial(functional.linear, weight=linear.weight, bias=linear.bias)
    weight = linear.weight.t().contiguous()
    if linear.bias is None:
        return lambda x: torch.mm(x, weight)
    return lambda x: torch.addmm(linear.bias, x, weight)


def quick_norm(norm: nn.Module) -> Rows:
    """A norm of rows."""
    if type(norm) is not nn.LayerNorm:
        return norm
    return lambda x: torch.layer_norm(x, norm.normalized_shape, norm.weight, norm.bias, norm.eps)


class Looking:
    """Self-attention of one new row to what is kept and to itself."""

    def __init__(self, layer: MultiHeadAttention, rows: int) -> None:
        self.input, self.output = product(layer.input, rows), product(layer.output, rows)
        self.heads, self.kv_heads, self.size = layer.heads, layer.kv_heads, layer.head_size
        self.positions = layer.positions

    def __call__(self, x: Tensor, kept: KeyValues) -> Tensor:
        rows = x.shape[0]
        every = self.input(x).view(rows, -1, 1, self.size)
        query = every.narrow(1, 0, self.heads)
        new = every.narrow(1, self.heads, 2 * self.kv_heads).view(rows, 2, self.kv_heads, 1, self.size)
        if self.positions is None:
            key, value = kept.append_both(new)
        else:
            start = kept.length
            query = self.positions.rotate(query, start)
            key, value = kept.append(self.positions.rotate(new.select(1, 0), start), new.select(1, 1))
        if kept.store is not None and fits(query, kept.store):
            return self.output(attend_one(query.squeeze(2), kept.store, kept.length).view(rows, -1))
        if self.kv_heads != self.heads:  # the heads of a group are taken for so many queries of one head
            query = query.reshape(rows, self.kv_heads, -1, self.size)
        mean = functional.scaled_dot_product_attention(query, key, value)
        return self.output(mean.reshape(rows, -1))


class QuickBlock:
    """A `Block` for single rows `[rows, size]`."""

    def __init__(self, block: Any, rows: int) -> None:
        self.block, self.residual, self.looking = block, block.residual, Looking(block.attention, rows)
        self.feed_forward = quick_feed_forward(block.feed_forward, rows)
        self.norm, self.feed_forward_norm = quick_norm(block.attention_norm), quick_norm(block.feed_forward_norm)

    def __call__(self, x: Tensor, memory: Tensor | None, memory_mask: Mask | None, cache: BlockCache) -> Tensor:
        x = self.residual(x, self.norm, lambda x: self.looking(x, cache.own), torch.add)
        if memory is not None:
            cross = partial(self.cross, memory=memory, mask=memory_mask, kept=cache.memory)
            x = self.residual(x, self.block.cross_norm, cross, torch.add)
        return self.residual(x, self.feed_forward_norm, self.feed_forward, torch.add)  # type: ignore[no-any-return]

    def cross(self, x: Tensor, memory: Tensor, mask: Mask | None, kept: KeyValues) -> Tensor:
        """Cross-attention, as the block has it."""
        found: Tensor = self.block.cross(x.unsqueeze(1), memory, mask=mask, cache=kept)
        return found.squeeze(1)


def quick_feed_forward(layer: FeedForward, rows: int) -> Rows:
    """A `FeedForward` of rows."""
    first, second, activation = product(layer.input, rows), product(layer.output, rows), layer.activation
    return lambda x: second(activation(first(x)))


def is_usual(block: Any) -> bool:
    """Whether a block is of parts that are known here."""
    from regard.layers.blocks import Block, post_norm, pre_norm

    attention = getattr(block, "attention", None)
    return (
        type(block) is Block
        and block.residual in (pre_norm, post_norm)
        and type(block.feed_forward) is FeedForward
        and type(attention) is MultiHeadAttention
        and attention.packed
        and attention.attend.score is scaled_dot
        and (attention.positions is None or attention.positions.bias(None) is None)
        and all(map(is_plain_linear, linears(block)))
    )


def linears(block: Any) -> tuple[nn.Module, ...]:
    """The linear maps that are taken apart: what is put in their place, as adapters are, must be called."""
    return block.attention.input, block.attention.output, block.feed_forward.input, block.feed_forward.output


class Steps:
    """The blocks of a decoder, taken apart for single rows; none where one of them is not usual."""

    def __init__(self, blocks: Iterable[nn.Module], rows: int) -> None:
        blocks = list(blocks)
        self.blocks = [QuickBlock(block, rows) for block in blocks] if all(map(is_usual, blocks)) else []
        parts = [part for block in blocks for part in block.modules()]
        self.hooks, self.own = hooks_of(parts), [vars(part) for part in parts]

    def can(self) -> bool:
        """Whether they will do: nobody listens to a part of the blocks, and none of them is in training."""
        if not self.blocks or any(self.hooks):
            return False
        return not any(own["training"] or "forward" in own for own in self.own)
