"""Keys and values kept for writing on: what was read before is not read again.

The room is made once, `[batch, 2, heads, room, size]`; each step writes its rows behind those before and is given
views of all so far. Nothing grows, nothing is copied but the new rows. Answers equal the full pass.

A beam's hypotheses change places within their sentence at every step. What is made of the sentence is the same for all
of them: it is copied only where rows are repeated or leave (`moved`).

A cache is for one run of calls: `Decoder.cache(room)` makes it, the caller passes it to each. No layer keeps it.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.checks import positive


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
        self.store: Tensor | None = None  # [batch, 2, heads, room, size], made when the first rows come

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """New rows `[batch, heads, new, size]` are kept; all so far, `[batch, heads, length, size]`, come back."""
        if key.requires_grad and torch.is_grad_enabled():
            raise RuntimeError("a cache keeps no history for gradients: use it under torch.inference_mode()")
        if key.shape != value.shape:
            raise ValueError(f"keys and values must have one shape, got {list(key.shape)} and {list(value.shape)}")
        batch, *rest = key.shape
        place = self.make_place((batch, 2, *rest), key)
        place.select(1, 0).copy_(key)
        place.select(1, 1).copy_(value)
        return self.everything()

    def append_both(self, both: Tensor) -> tuple[Tensor, Tensor]:
        """The same for keys and values in one tensor, `[batch, 2, heads, new, size]`, without gradients."""
        self.make_place(both.shape, both).copy_(both)
        return self.everything()

    def make_place(self, shape: Sequence[int], like: Tensor) -> Tensor:
        """Where new keys and values `[batch, 2, heads, new, size]` go in the store."""
        batch, _, heads, new, size = shape
        start, end = self.length, self.length + new
        room = self.store.shape[3] if self.store is not None else self.room or new
        if end > room:
            raise ValueError(f"the cache has room for {room} positions, got a sequence of {end}")
        if self.store is None:
            with torch.inference_mode(False):  # so that it can be written to in any mode
                self.store = like.new_empty(batch, 2, heads, room, size)
        elif batch != self.store.shape[0]:
            raise ValueError(f"the cache holds {self.store.shape[0]} sequences, got {batch}")
        self.length = end
        return self.store.narrow(3, start, new)

    def everything(self) -> tuple[Tensor, Tensor]:
        """All so far, `[batch, heads, length, size]` each."""
        if self.store is None:
            raise RuntimeError("the cache is empty")
        key, value = self.store.narrow(3, 0, self.length).unbind(1)
        return key, value

    def all(self) -> tuple[Tensor, Tensor] | None:
        """The same, or None where nothing has come yet."""
        return None if self.store is None else self.everything()

    def back(self, length: int) -> None:
        """Forget what was kept behind so many positions."""
        self.length = min(self.length, length)
        if not self.length:
            self.store = None

    @torch.no_grad()
    def select(self, rows: Tensor) -> None:
        """Keep these sequences, in this order; one may be taken several times."""
        if self.store is None:
            return
        chosen = self.store.narrow(3, 0, self.length).index_select(0, rows)
        if len(rows) != len(self.store):
            with torch.inference_mode(False):
                self.store = self.store.new_empty(len(rows), *self.store.shape[1:])
        self.store.narrow(3, 0, self.length).copy_(chosen)


def moved(source: Tensor | None, rows: Tensor) -> tuple[Tensor, bool]:
    """Which of the first rows each of these is a copy of, `[rows]`, and whether any becomes another by that.

    source   the same of the rows so far; None where nothing was selected yet

    >>> import torch
    >>> moved(torch.tensor([0, 0, 1, 1]), torch.tensor([1, 1, 3, 2]))
    (tensor([0, 0, 1, 1]), False)
    """
    now = rows if source is None else source[rows]
    return now, source is None or not torch.equal(now, source)


class Kept:
    """Tensors of a state that no step changes, with the rows first.

    >>> import torch
    >>> memory = Kept(torch.tensor([[1.0], [2.0]])).select(torch.tensor([0, 0, 1, 1]))
    >>> memory.select(torch.tensor([1, 1, 3, 2])) is memory
    True
    """

    def __init__(self, *tensors: Tensor, source: Tensor | None = None) -> None:
        self.tensors = tensors
        self.source = source  # [rows]  which of the first rows each is a copy of

    def select(self, rows: Tensor) -> "Kept":
        """The same for these rows."""
        source, new = moved(self.source, rows)
        if not new:
            return self
        return Kept(*(tensor.index_select(0, rows) for tensor in self.tensors), source=source)


class BlockCache(NamedTuple):
    """What one block keeps: what its self-attention has read, and what its cross-attention made of the memory.

    >>> import torch
    >>> kept = BlockCache(KeyValues(room=8), KeyValues())
    >>> _ = kept.own.append(torch.randn(2, 4, 3, 16), torch.randn(2, 4, 3, 16))
    >>> kept.own.length, kept.memory.length
    (3, 0)
    """

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
        self.source: Tensor | None = None  # [sequences]  which of the first ones each is a copy of
        self.steps: Any = None  # the blocks taken apart for single rows, see `regard.layers.fast_decode`

    @property
    def length(self) -> int:
        """How many positions have been read."""
        return self.blocks[0].own.length

    def back(self, length: int) -> None:
        """Forget what was read behind so many positions; behind none, also what was made of the memory."""
        for own, memory in self.blocks:
            own.back(length)
            if not length:
                memory.back(0)
        if not length:
            self.source = self.steps = None

    def select(self, rows: Tensor) -> None:
        """Keep the sequences of these numbers, `[sequences]`, in this order; one may be taken several times."""
        if not self.length:
            return  # there is nothing yet
        self.source, new = moved(self.source, rows)
        for own, memory in self.blocks:
            own.select(rows)
            if new:
                memory.select(rows)
