"""The masks themselves, each a function of indices. See `regard.masks`."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.checks import not_negative, positive
from regard.torch_modes import compiling, transforming

_MaskFunction = Callable[[Tensor, Tensor], Tensor]
Mask = _MaskFunction | Tensor
Reach = tuple[Tensor | int, Tensor | int]
"""The first key that a query may see, and the one after the last; broadcasts like the index of the queries."""


class Causal:
    """A query sees the keys up to its own position.

    With unequal lengths the mask is aligned to the **top left** corner, like torch's
    `is_causal=True`: query i and key i are at position i.

        3 queries, 5 keys        5 queries, 3 keys
            k0 k1 k2 k3 k4           k0 k1 k2
        q0   x  .  .  .  .       q0   x  .  .
        q1   x  x  .  .  .       q1   x  x  .
        q2   x  x  x  .  .       q2   x  x  x
                                 q3   x  x  x
                                 q4   x  x  x

    For the bottom right corner (the last query sees the last key, as when decoding with cached keys)
    shift the queries: `shifted(causal, keys - queries)`.

    >>> import torch
    >>> causal(torch.arange(2)[:, None], torch.arange(3)).int().tolist()
    [[1, 0, 0], [1, 1, 0]]
    """

    solid = True

    def __call__(self, query_index: Tensor, key_index: Tensor) -> Tensor:
        return key_index <= query_index

    def reach(self, query_index: Tensor) -> Reach:
        return 0, query_index + 1

    def __repr__(self) -> str:
        return "causal"

    def __reduce__(self) -> str:
        return "causal"  # a copy is the same object


causal = Causal()
"""A query sees the keys up to its own position: see `Causal`."""


def others(query_index: Tensor, key_index: Tensor) -> Tensor:
    """A query sees every key except its own: leave-one-out, if queries and keys are the same rows.

    >>> import torch
    >>> others(torch.arange(2)[:, None], torch.arange(3)).int().tolist()
    [[0, 1, 1], [1, 0, 1]]
    """
    return query_index != key_index


@dataclass(frozen=True)
class Padding:
    """See `padding`."""

    lengths: Tensor
    solid = True

    def __call__(self, query_index: Tensor, key_index: Tensor) -> Tensor:
        return key_index < self.reach(key_index)[1]

    def reach(self, query_index: Tensor) -> tuple[int, Tensor]:
        trailing = max(2, query_index.ndim - self.lengths.ndim)
        return 0, self.lengths.reshape(*self.lengths.shape, *[1] * trailing)


def padding(lengths: Tensor) -> Padding:
    """Sequence b has `lengths[b]` keys; the rest is padding, which no query sees.

    The dimensions of `lengths` are the *first* leading dimensions of the scores: lengths `[batch]`
    fit scores `[batch, q, k]` as well as `[batch, heads, q, k]`.

    >>> import torch
    >>> padding(torch.tensor([1, 3]))(torch.arange(1)[:, None], torch.arange(3)).int().tolist()
    [[[1, 0, 0]], [[1, 1, 1]]]
    """
    whole = isinstance(lengths, Tensor) and not (lengths.is_floating_point() or lengths.is_complex())
    if not whole or lengths.dtype == torch.bool:
        got = f"dtype {lengths.dtype}" if isinstance(lengths, Tensor) else type(lengths).__name__
        raise TypeError(f"padding needs lengths as an integer tensor, got {got}")
    if not (compiling() or transforming()) and bool((lengths < 0).any()):
        raise ValueError(f"lengths must not be negative, got {int(lengths.min())}")
    return Padding(lengths)


@dataclass(frozen=True)
class _Window:
    """See `window`."""

    radius: int
    solid = True

    def __call__(self, query_index: Tensor, key_index: Tensor) -> Tensor:
        return (query_index - key_index).abs() <= self.radius

    def reach(self, query_index: Tensor) -> Reach:
        return query_index - self.radius, query_index + self.radius + 1


def window(radius: int) -> _Window:
    """A query sees the keys at most `radius` positions away: Luong's local-m, sliding windows.

    >>> import torch
    >>> window(1)(torch.arange(3)[:, None], torch.arange(3)).int().tolist()
    [[1, 1, 0], [1, 1, 1], [0, 1, 1]]
    """
    return _Window(not_negative("radius", radius))


@dataclass(frozen=True)
class _Prefix:
    """See `prefix`."""

    length: int
    solid = True

    def __call__(self, query_index: Tensor, key_index: Tensor) -> Tensor:
        return key_index <= query_index.clamp(min=self.length - 1)

    def reach(self, query_index: Tensor) -> Reach:
        return 0, (query_index + 1).clamp(min=self.length)


def prefix(length: int) -> _Prefix:
    """As `causal`, but the first `length` keys are visible to every query: a prompt that is read as a whole.

    >>> import torch
    >>> prefix(2)(torch.arange(3)[:, None], torch.arange(4)).int().tolist()
    [[1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0]]
    """
    return _Prefix(not_negative("length", length))


@dataclass(frozen=True)
class _Dilated:
    """See `dilated`."""

    radius: int
    step: int

    def __call__(self, query_index: Tensor, key_index: Tensor) -> Tensor:
        apart = (query_index - key_index).abs()
        return (apart <= self.radius * self.step) & (apart % self.step == 0)

    def reach(self, query_index: Tensor) -> Reach:
        farthest = self.radius * self.step
        return query_index - farthest, query_index + farthest + 1


def dilated(radius: int, step: int) -> _Dilated:
    """A query sees `radius` keys on each side, `step` positions apart, and its own position.

    >>> import torch
    >>> dilated(1, step=2)(torch.arange(4)[:, None], torch.arange(4)).int().tolist()
    [[1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1]]
    """
    return _Dilated(not_negative("radius", radius), positive("step", step))


@dataclass(frozen=True)
class _GlobalAndWindow:
    """See `global_and_window`."""

    count: int
    radius: int

    def __call__(self, query_index: Tensor, key_index: Tensor) -> Tensor:
        near = (query_index - key_index).abs() <= self.radius
        return near | (query_index < self.count) | (key_index < self.count)

    def touches(self, rows: slice, columns: slice) -> bool:
        near = columns.start <= rows.stop - 1 + self.radius and rows.start <= columns.stop - 1 + self.radius
        return bool(near or rows.start < self.count or columns.start < self.count)


def global_and_window(count: int, radius: int) -> _GlobalAndWindow:
    """The first `count` positions see all and are seen by all; the others see `radius` positions on each side.

    (Beltagy et al. 2020, Longformer.)

    >>> import torch
    >>> global_and_window(1, radius=0)(torch.arange(3)[:, None], torch.arange(3)).int().tolist()
    [[1, 1, 1], [1, 1, 0], [1, 0, 1]]
    """
    return _GlobalAndWindow(not_negative("count", count), not_negative("radius", radius))


@dataclass(frozen=True)
class Documents:
    """See `documents`."""

    ids: Tensor  # [..., n]
    first: Tensor  # [..., n]  the first and
    stop: Tensor  # [..., n]  one past the last position of the document that a position belongs to
    solid: bool  # whether each document is in one piece

    def __call__(self, query_index: Tensor, key_index: Tensor) -> Tensor:
        return _at(self.ids, query_index) == _at(self.ids, key_index)

    def reach(self, query_index: Tensor) -> Reach:
        return _at(self.first, query_index), _at(self.stop, query_index)


def documents(ids: Tensor) -> Documents:
    """Several texts packed into one sequence: position i sees those of its own document, `ids[i]`.

    ids   `[n]`, or `[batch, n]`: its dimensions before the last are the *first* leading dimensions of the scores

    Documents in one piece cost the sum of their squared lengths.

    >>> import torch
    >>> documents(torch.tensor([4, 4, 7]))(torch.arange(3)[:, None], torch.arange(3)).int().tolist()
    [[1, 1, 0], [1, 1, 0], [0, 0, 1]]
    """
    if not isinstance(ids, Tensor) or ids.is_floating_point() or ids.is_complex() or not ids.ndim:
        got = f"dtype {ids.dtype}" if isinstance(ids, Tensor) else type(ids).__name__
        raise TypeError(f"documents needs the id of each position as an integer tensor [..., n], got {got}")
    rows = ids.reshape(math.prod(ids.shape[:-1]), ids.shape[-1])  # [..., n] → [rows, n]
    known, index = torch.unique(rows, return_inverse=True)
    index = index + torch.arange(len(rows), device=ids.device).unsqueeze(-1) * len(known)  # one number per document
    position = torch.arange(rows.shape[1], device=ids.device).expand_as(rows).flatten()
    index = index.flatten()
    count, number = torch.bincount(index, minlength=len(rows) * len(known)), len(rows) * len(known)
    first = position.new_full((number,), rows.shape[1]).scatter_reduce(0, index, position, "amin")[index]
    stop = position.new_zeros(number).scatter_reduce(0, index, position + 1, "amax")[index]
    solid = bool((stop - first == count[index]).all())
    return Documents(ids, first.view_as(ids), stop.view_as(ids), solid)


def _at(table: Tensor, index: Tensor) -> Tensor:
    """The entries `[..., n]` at an index of queries or keys, `[1, …, q, 1]` or `[1, …, 1, k]`."""
    if index.numel() and int(index.max()) >= table.shape[-1]:
        raise ValueError(f"documents has the ids of {table.shape[-1]} positions, got position {int(index.max())}")
    leading = table.shape[:-1]
    between = [1] * (max(2, index.ndim - len(leading)) - 2)
    return table[..., index.flatten()].view(*leading, *between, *index.shape[-2:])


@dataclass(frozen=True)
class Both:
    """See `both`."""

    first: Mask
    second: Mask

    def __call__(self, query_index: Tensor, key_index: Tensor) -> Tensor:
        first, second = (
            entries(part, query_index.flatten(), key_index.flatten())
            if isinstance(part, Tensor)
            else part(query_index, key_index)
            for part in (self.first, self.second)
        )
        if first.dtype == torch.bool and second.dtype == torch.bool:
            return first & second
        return as_bias(first) + as_bias(second)


def both(first: Mask, second: Mask) -> Both:
    """A query sees a key if both masks allow it; biases are added.

    >>> import torch
    >>> both(causal, window(1))(torch.arange(3)[:, None], torch.arange(3)).int().tolist()
    [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    """
    return Both(of_torch(first), of_torch(second))


def of_torch(mask: Mask) -> Mask:
    """torch's `CausalBias`, a tensor without numbers, as a mask of ours; any other mask as it is."""
    if type(mask).__name__ != "CausalBias":  # its module takes two seconds to import
        return mask
    bias: Any = mask
    corner = bias.seq_len_kv - bias.seq_len_q if bias.variant.name == "LOWER_RIGHT" else 0
    return Shifted(causal, corner) if corner else causal


@dataclass(frozen=True)
class Shifted:
    """See `shifted`."""

    mask: _MaskFunction
    by: int
    key_by: int = 0

    def __call__(self, query_index: Tensor, key_index: Tensor) -> Tensor:
        return self.mask(query_index + self.by, key_index + self.key_by)


def shifted(mask: Mask | None, by: int, key_by: int = 0) -> Mask | None:
    """The same mask for queries that are `by` positions later, as after that many cached keys.

    Only functions of positions are shifted; a tensor already belongs to the queries of the call.

    key_by   by how many positions the keys are later, if they are a part of all keys

    >>> import torch
    >>> shifted(causal, 1)(torch.arange(2)[:, None], torch.arange(3)).int().tolist()
    [[1, 1, 0], [1, 1, 1]]
    """
    if mask is None or isinstance(mask, Tensor) or by == key_by == 0:
        return mask
    if isinstance(mask, Both):
        first, second = shifted(mask.first, by, key_by), shifted(mask.second, by, key_by)
        assert first is not None
        assert second is not None
        return Both(first, second)
    return Shifted(mask, by, key_by)


def as_bias(allowed: Tensor) -> Tensor:
    """A boolean mask as a bias: 0 for True, -inf for False. A bias is returned as it is."""
    if allowed.dtype != torch.bool:
        return allowed
    return torch.zeros(allowed.shape, device=allowed.device).masked_fill(~allowed, -torch.inf)


def two_dimensional(table: Tensor) -> Tensor:
    """A tensor of at least two dimensions that broadcasts like this one."""
    return table if table.ndim > 1 else table.reshape(1, -1)


def entries(table: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Rows and columns of a tensor that broadcasts to `[..., q, k]`."""
    table = two_dimensional(table)
    table = table.index_select(-2, rows) if table.shape[-2] > 1 else table
    return table.index_select(-1, columns) if table.shape[-1] > 1 else table
