"""Cached keys and values for decoding: a token that was read once is not read again.

The memory for them is allocated once, `[batch, 2, heads, max_length, size]`. Each step writes its rows behind the
earlier ones and gets views of all so far; only the new rows are copied. Outputs equal those of one full pass.

In a beam search, hypotheses change rows within their sentence at every step. What was computed from the sentence is the
same for all of them: it is copied only when rows are repeated or removed (`_update_origin`).

A cache belongs to one run of calls: `Decoder.cache(max_length)` makes it, and the caller passes it to each call. No
layer stores it.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from regard.checks import positive


class KeyValues:
    """The cached keys and values of one layer, for sequences that grow together.

    max_length   number of positions; default: the length of the first rows

    >>> import torch
    >>> cached = KeyValues(max_length=8)
    >>> for _ in range(3):
    ...     key, value = cached.append(torch.randn(2, 4, 1, 16), torch.randn(2, 4, 1, 16))
    >>> key.shape, cached.length
    (torch.Size([2, 4, 3, 16]), 3)
    """

    def __init__(self, max_length: int | None = None) -> None:
        self.max_length = None if max_length is None else positive("max_length", max_length)
        self.length = 0
        self.store: Tensor | None = None  # [batch, 2, heads, max_length, size], allocated with the first rows

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Add new rows `[batch, heads, new, size]`; returns all so far, `[batch, heads, length, size]` each."""
        if key.requires_grad and torch.is_grad_enabled():
            raise RuntimeError("a cache stores no history for gradients: use it under torch.inference_mode()")
        if key.shape != value.shape:
            raise ValueError(f"keys and values must have the same shape, got {list(key.shape)} and {list(value.shape)}")
        batch, heads, new, size = key.shape
        start, end = self.length, self.length + new
        max_length = self.store.shape[3] if self.store is not None else self.max_length or new
        if end > max_length:
            raise ValueError(f"the cache is for at most {max_length} positions, got a sequence of {end}")
        if self.store is None:
            with torch.inference_mode(False):  # so that it can be written to in any mode
                self.store = key.new_empty(batch, 2, heads, max_length, size)
        elif batch != self.store.shape[0]:
            raise ValueError(f"the cache is for {self.store.shape[0]} sequences, got {batch}")
        self.length = end
        target = self.store.narrow(3, start, new)
        target.select(1, 0).copy_(key)
        target.select(1, 1).copy_(value)
        return self.store.narrow(3, 0, end).unbind(1)  # type: ignore[return-value]

    def get(self) -> tuple[Tensor, Tensor] | None:
        """All keys and values so far, `[batch, heads, length, size]` each; None if there are none."""
        return None if self.store is None else self.store.narrow(3, 0, self.length).unbind(1)  # type: ignore[return-value]

    def truncate(self, length: int) -> None:
        """Forget all but the first positions, this many."""
        self.length = min(self.length, length)
        if not self.length:
            self.store = None

    @torch.no_grad()
    def select(self, rows: Tensor) -> None:
        """Reorder the sequences: row i becomes the former row `rows[i]`; rows may be repeated or left out."""
        if self.store is None:
            return
        chosen = self.store.narrow(3, 0, self.length).index_select(0, rows)
        if len(rows) != len(self.store):
            with torch.inference_mode(False):
                self.store = self.store.new_empty(len(rows), *self.store.shape[1:])
        self.store.narrow(3, 0, self.length).copy_(chosen)


def _update_origin(origin: Tensor | None, rows: Tensor) -> tuple[Tensor, bool]:
    """The new origin `[rows]` after a selection of rows, and whether it differs from the old one.

    origin[i] is the first row that row i is a copy of; None before the first selection.
    """
    new = rows if origin is None else origin[rows]
    return new, origin is None or not torch.equal(new, origin)


class FixedTensors:
    """Tensors of a decoding state that no step changes, rows first: copied only if a selection changes their rows.

    >>> import torch
    >>> memory = FixedTensors(torch.tensor([[1.0], [2.0]])).select(torch.tensor([0, 0, 1, 1]))
    >>> memory.select(torch.tensor([1, 1, 3, 2])) is memory
    True
    """

    def __init__(self, *tensors: Tensor, origin: Tensor | None = None) -> None:
        self.tensors, self.origin = tensors, origin  # the origin is [rows], see `_update_origin`

    def select(self, rows: Tensor) -> "FixedTensors":
        """The tensors of these rows."""
        origin, changed = _update_origin(self.origin, rows)
        if not changed:
            return self
        return FixedTensors(*(tensor.index_select(0, rows) for tensor in self.tensors), origin=origin)


class BlockCache(NamedTuple):
    """The cache of one block: of its self-attention, and of its cross-attention to the memory.

    >>> import torch
    >>> cache = BlockCache(KeyValues(max_length=8), KeyValues())
    >>> _ = cache.own.append(torch.randn(2, 4, 3, 16), torch.randn(2, 4, 3, 16))
    >>> cache.own.length, cache.memory.length
    (3, 0)
    """

    own: KeyValues
    memory: KeyValues


class Cache:
    """The cached keys and values of every block of a `Decoder`; the memory is projected once.

    Greedy decoding and sampling only pass it on; a beam search also calls `select` for the sequences it continues with.

    padding   for sequences of unequal length: the number of positions before each that are not part of it, `[batch]`

    >>> cache = Cache(blocks=2, max_length=8)
    >>> cache.length, cache.max_length
    (0, 8)
    """

    def __init__(self, blocks: int, max_length: int, padding: Tensor | None = None) -> None:
        self.max_length, self.padding = positive("max_length", max_length), padding
        self.blocks = [BlockCache(KeyValues(max_length), KeyValues()) for _ in range(positive("blocks", blocks))]
        self.origin: Tensor | None = None  # [sequences], see `_update_origin`
        self.fast_blocks: object = None  # the blocks prepared for single rows, see `regard.layers.blocks`

    @property
    def length(self) -> int:
        """Number of positions read so far, with those of padding."""
        return self.blocks[0].own.length

    @property
    def start(self) -> int | Tensor:
        """The position of the next row in its sequence; `[batch]` with padding."""
        return self.length if self.padding is None else self.length - self.padding

    def truncate(self, length: int) -> None:
        """Forget all but the first positions, this many; with 0, also the projected memory."""
        for own, memory in self.blocks:
            own.truncate(length)
            if not length:
                memory.truncate(0)
        if not length:
            self.origin = self.fast_blocks = None

    def select(self, rows: Tensor) -> None:
        """Reorder the sequences: sequence i becomes the former `rows[i]`; rows may be repeated or left out."""
        if self.padding is not None:
            self.padding = self.padding.index_select(0, rows)
        if not self.length:
            return  # nothing is cached yet
        self.origin, changed = _update_origin(self.origin, rows)
        for own, memory in self.blocks:
            own.select(rows)
            if changed:
                memory.select(rows)
