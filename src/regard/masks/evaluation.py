"""Masks by blocks, as engines evaluate them: the parts of a mask, their reach, and one block after the other."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.checks import not_negative, positive
from regard.masks.kinds import Both, Documents, Mask, Padding, Shifted, entries, two_dimensional
from regard.torch_modes import compiling, transforming


def parts_of(mask: Mask | None) -> tuple[Mask, ...]:
    """The masks that `both` combined; each is evaluated at its own, smaller, shape."""
    if mask is None:
        return ()
    if isinstance(mask, Both):
        return parts_of(mask.first) + parts_of(mask.second)
    return (mask,)


def check_polarity(mask: Mask | None, queries: int) -> None:
    """Raise if a boolean tensor lets none of several queries look at any key: most likely its meaning is inverted.

    A single query may see nothing. Numbers are not looked at on a GPU, where that would wait for it, or in a compiled
    program.

    >>> import torch
    >>> check_polarity(torch.tensor([[False, False], [False, True]]), queries=2)
    """
    if queries < 2 or compiling() or transforming():
        return
    for part in parts_of(mask):
        if not isinstance(part, Tensor) or type(part) is not Tensor or not part.is_cpu:
            continue  # other kinds of tensors may hold no numbers
        if part.dtype == torch.bool and part.numel() and not part.any():
            raise ValueError(
                f"mask lets no query look at any key: all of {list(part.shape)} is False. True = may look; a mask in"
                " which True hides a key, as those of nn.MultiheadAttention, must be inverted: ~mask"
            )


def tensors_of(mask: Mask | None) -> list[Tensor]:
    """The tensors in a mask whose in-place changes torch can detect; functions of the user may have others.

    >>> import torch
    >>> from regard.masks import both, padding, shifted
    >>> len(tensors_of(both(shifted(padding(torch.tensor([1, 3])), 1), torch.ones(2, 3).bool())))
    2
    """
    if isinstance(mask, Tensor):
        return [] if mask.is_inference() else [mask]
    if isinstance(mask, Padding | Documents):
        return tensors_of(mask.lengths if isinstance(mask, Padding) else mask.ids)
    if isinstance(mask, Shifted):
        return tensors_of(mask.mask)
    return tensors_of(mask.first) + tensors_of(mask.second) if isinstance(mask, Both) else []


def has_reach(mask: Mask | None) -> bool:
    """Whether some part of a mask says which keys are out of reach."""
    inner = [_unshifted(part)[0] for part in parts_of(mask)]
    return any(hasattr(part, "reach") or hasattr(part, "touches") for part in inner)


def is_solid(part: Mask) -> bool:
    """Whether a query sees all keys of a part's reach, so that the part need not be called."""
    return bool(getattr(_unshifted(part)[0], "solid", False))


def _unshifted(part: Mask) -> tuple[Any, int, int]:
    """The mask that was shifted, and by how much its queries and keys were."""
    if not isinstance(part, Shifted):
        return part, 0, 0
    inner, by, key_by = _unshifted(part.mask)
    return inner, part.by + by, part.key_by + key_by


def visible_keys(mask: Mask | None, queries: int, keys: int, rank: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The first key in the reach of each query, and the one after the last: `[..., q]`, broadcast over heads.

    rank   as in `block_of`
    """
    query_index = torch.arange(queries, device=device).view(*[1] * (rank - 2), -1, 1)
    first, stop = torch.zeros_like(query_index), torch.full_like(query_index, keys)
    for part in parts_of(mask):
        inner, by, key_by = _unshifted(part)
        if hasattr(inner, "reach"):
            low, high = (torch.as_tensor(bound, device=device) - key_by for bound in inner.reach(query_index + by))
            first, stop = torch.maximum(first, low), torch.minimum(stop, high)
    first = first.clamp(max=keys)
    stop = torch.maximum(first, stop)
    return first.expand_as(stop).squeeze(-1), stop.squeeze(-1)


def touches(mask: Mask | None, rows: slice, columns: slice) -> bool:
    """Whether some query may see some key of a block, as far as the parts of the mask say without being called."""
    for part in parts_of(mask):
        inner, *by = _unshifted(part)
        block = (slice(some.start + shift, some.stop + shift) for some, shift in zip((rows, columns), by, strict=True))
        if hasattr(inner, "touches") and not inner.touches(*block):
            return False
    return True


def block_of(part: Mask, rows: slice, columns: slice, rank: int, device: torch.device) -> Tensor:
    """One part of a mask for some queries and keys: broadcasts to `[..., rows, columns]`.

    rank   number of dimensions of the scores, and so of the index tensors: `padding` aligns its lengths by it
    """
    if isinstance(part, Tensor):
        table = two_dimensional(part)
        table = table[..., rows, :] if table.shape[-2] > 1 else table
        return table[..., columns] if table.shape[-1] > 1 else table
    query_index = torch.arange(rows.start, rows.stop, device=device)
    key_index = torch.arange(columns.start, columns.stop, device=device)
    block = part(query_index.view(*[1] * (rank - 2), -1, 1), key_index.view(*[1] * (rank - 1), -1))
    if not isinstance(block, Tensor):
        raise TypeError(f"a mask must return a tensor, got {type(block).__name__}")
    block = two_dimensional(block)
    sizes = query_index.shape[0], key_index.shape[0]  # len() would make them constants of a compiled program
    if any(size not in (1, expected) for size, expected in zip(block.shape[-2:], sizes, strict=True)):
        raise ValueError(
            f"a mask called for {sizes[0]} queries and {sizes[1]} keys must return what broadcasts to"
            f" [..., {sizes[0]}, {sizes[1]}], got {list(block.shape)}"
        )
    return block


@dataclass(frozen=True)
class _Blocks:
    """See `blocks`."""

    mask: Mask
    size: int
    seen: Tensor  # [blocks of queries, blocks of keys]  whether some query sees some key of it
    queries: int
    keys: int

    def __call__(self, query_index: Tensor, key_index: Tensor) -> Tensor:
        if isinstance(self.mask, Tensor):
            return entries(self.mask, query_index.flatten(), key_index.flatten())
        return self.mask(query_index, key_index)

    def touches(self, rows: slice, columns: slice) -> bool:
        if rows.stop > self.queries or columns.stop > self.keys:
            raise ValueError(
                f"masks.blocks was made for {self.queries} queries and {self.keys} keys, got query {rows.stop - 1} and"
                f" key {columns.stop - 1}: make it again for this length"
            )
        first, second = (slice(some.start // self.size, -(-some.stop // self.size)) for some in (rows, columns))
        return bool(self.seen[first, second].any())


def blocks(mask: Mask, queries: int, keys: int, size: int = 128, rank: int = 4) -> _Blocks:
    """The same mask, which knows which blocks of `size` queries and keys no query sees: those are left out.

    For a mask without a reach that is used more than once: it is evaluated here for all queries and keys, some at a
    time, and what it holds must not change afterwards.

    rank   number of dimensions of the scores, `[batch, heads, q, k]`

    >>> import torch
    >>> diagonal = blocks(lambda query, key: query == key, 512, 512)
    >>> diagonal.touches(slice(0, 128), slice(128, 512)), diagonal.seen.int().tolist()[0]
    (False, [1, 0, 0, 0])
    """
    queries, keys, size = not_negative("queries", queries), not_negative("keys", keys), positive("size", size)
    every = slice(0, keys)
    seen = []
    for start in range(0, queries, size):
        part = block_of(mask, slice(start, min(start + size, queries)), every, rank, torch.device("cpu"))
        part = part if part.dtype == torch.bool else part > -torch.inf
        columns = part.expand(*part.shape[:-1], keys).flatten(0, -2).any(dim=0)  # [keys]
        seen.append(torch.stack([columns[first : first + size].any() for first in range(0, keys, size)]))
    seen_blocks = torch.stack(seen) if seen else torch.zeros(0, 0, dtype=torch.bool)
    return _Blocks(mask, size, seen_blocks, queries, keys)


def check_reach(mask: Mask, queries: int, keys: int, rank: int = 4) -> None:
    """Raise ValueError if a mask lets a query see a key that is out of its reach; for tests of a mask of your own.

    A `solid` mask must also let it see every key in reach. It builds the matrix of the mask.

    >>> from regard.masks import window
    >>> check_reach(window(3), 50, 70)
    """
    cpu = torch.device("cpu")
    for part in parts_of(mask):
        allowed = block_of(part, slice(0, queries), slice(0, keys), rank, cpu)
        allowed = allowed if allowed.dtype == torch.bool else allowed > -torch.inf
        first, stop = (bound.unsqueeze(-1) for bound in visible_keys(part, queries, keys, rank, cpu))
        inside = (first <= torch.arange(keys)) & (torch.arange(keys) < stop)
        if hasattr(part, "touches"):
            inside = inside & torch.tensor(
                [[part.touches(slice(q, q + 1), slice(k, k + 1)) for k in range(keys)] for q in range(queries)]
            )
        wrong = allowed != inside if is_solid(part) else allowed & ~inside
        if wrong.any():
            *_, query, key = index = wrong.nonzero()[0].tolist()
            word = (
                "is out of reach, but seen" if allowed.expand_as(wrong)[tuple(index)] else "is in reach, but not seen"
            )
            raise ValueError(f"the reach of {part} is wrong: for query {query}, key {key} {word}")
