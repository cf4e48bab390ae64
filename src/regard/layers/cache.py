"""Keys and values kept for writing on: what was read before is not read again.

The room is made once, `[batch, heads, room, size]`; each step writes its rows behind those before and is given
views of all so far. Nothing grows, nothing is copied but the new rows. Answers equal the full pass.

A cache is for one run of calls: `Decoder.cache(room)` makes it, the caller passes it to each. No layer keeps it.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from regard.layers.checks import positive


class KeyValues:
    """The keys and values of one layer, for sequences that grow together.

    room   how many positions there is room for; where it is not given, as many as come first

    >>> import torch
    >>> kept = KeyValues(room=8)
    >>> for _ in range(3):
    ...     key, value = kept.append(torch.randn(2, 4, 1, 16), torch.randn(2, 4, 1, 16))
    >>> key.shape, kept.length
    (torch.Size([2, 4, 3, 16]), 3)
    """

    def __init__(self, room: int | None = None) -> None:
        self.room = None if room is None else positive("room", room)
        self.length = 0
        self.key: Tensor | None = None  # [batch, heads, room, size], made when the first rows come
        self.value: Tensor | None = None

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """New rows `[batch, heads, new, size]` are kept; all so far, `[batch, heads, length, size]`, come back."""
        if key.requires_grad and torch.is_grad_enabled():
            raise RuntimeError("a cache keeps no history for gradients: use it under torch.inference_mode()")
        start, new = self.length, key.shape[2]
        end = start + new
        if self.room is None:
            self.room = new
        if end > self.room:
            raise ValueError(f"the cache has room for {self.room} positions, got a sequence of {end}")
        if self.key is None or self.value is None:
            with torch.inference_mode(False):  # so that it can be written to in any mode
                self.key, self.value = (x.new_empty(*x.shape[:2], self.room, x.shape[3]) for x in (key, value))
        elif key.shape[0] != self.key.shape[0]:
            raise ValueError(f"the cache holds {self.key.shape[0]} sequences, got {key.shape[0]}")
        self.key.narrow(2, start, new).copy_(key)
        self.value.narrow(2, start, new).copy_(value)
        self.length = end
        return self.key.narrow(2, 0, end), self.value.narrow(2, 0, end)

    def all(self) -> tuple[Tensor, Tensor] | None:
        """All so far, `[batch, heads, length, size]` each; None where nothing has come yet."""
        if self.key is None or self.value is None:
            return None
        return self.key.narrow(2, 0, self.length), self.value.narrow(2, 0, self.length)

    @torch.no_grad()
    def select(self, rows: Tensor) -> None:
        """Keep these sequences, in this order; one may be taken several times."""
        if self.key is None or self.value is None:
            return
        kept = []
        for store in (self.key, self.value):
            chosen = store.narrow(2, 0, self.length).index_select(0, rows)
            if len(rows) != len(store):
                with torch.inference_mode(False):
                    store = store.new_empty(len(rows), *store.shape[1:])
            store.narrow(2, 0, self.length).copy_(chosen)
            kept.append(store)
        self.key, self.value = kept


class BlockCache(NamedTuple):
    """What one block keeps: what its self-attention has read, and what its cross-attention made of the memory."""

    own: KeyValues
    memory: KeyValues


class Cache:
    """The keys and values of every block of a `Decoder`; the memory is projected once.

    Greedy writing and sampling only pass it on; a beam also has it `select` the sequences it goes on with.

    >>> cache = Cache(blocks=2, room=8)
    >>> cache.length, cache.room
    (0, 8)
    """

    def __init__(self, blocks: int, room: int) -> None:
        self.room = positive("room", room)
        self.blocks = [BlockCache(KeyValues(room), KeyValues()) for _ in range(positive("blocks", blocks))]

    @property
    def length(self) -> int:
        """How many positions have been read."""
        return self.blocks[0].own.length

    def select(self, rows: Tensor) -> None:
        """Keep the sequences of these numbers, `[sequences]`, in this order; one may be taken several times."""
        for own, memory in self.blocks:
            own.select(rows)
            memory.select(rows)
