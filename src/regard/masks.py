"""Masks: which keys a query may look at.

A mask is a callable `(query_index, key_index) -> bool tensor`, **True = may look**: the polarity of
torch's `scaled_dot_product_attention`, the opposite of `nn.MultiheadAttention`'s. The two index
tensors broadcast to `[..., q, k]`, so a mask is arithmetic on indices, and is evaluated one block at
a time, without a matrix:

    def every_other(query_index, key_index):
        return (query_index - key_index) % 2 == 0

A boolean tensor that broadcasts to `[..., q, k]` is a mask too. A tensor or callable of floating
point numbers is a bias: it is added to the scores (ALiBi, relative positions), and -inf masks a key.
`both` combines any two of these. Keys that all queries mask may be NaN if no gradient is needed;
their values may not, since weight 0 times NaN is NaN.

Indices are positions in the tensors given to `attend`, from 0. For queries at other positions, such
as after n cached keys, shift the mask: `shifted(causal, n)`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.torch_modes import compiling, transforming

_MaskFunction = Callable[[Tensor, Tensor], Tensor]
Mask = _MaskFunction | Tensor


def causal(query_index: Tensor, key_index: Tensor) -> Tensor:
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
    return key_index <= query_index


def others(query_index: Tensor, key_index: Tensor) -> Tensor:
    """A query sees every key except its own: leave-one-out, if queries and keys are the same rows.

    >>> import torch
    >>> others(torch.arange(2)[:, None], torch.arange(3)).int().tolist()
    [[0, 1, 1], [1, 0, 1]]
    """
    return query_index != key_index


@dataclass(frozen=True)
class _Padding:
    """See `padding`."""

    lengths: Tensor

    def __call__(self, query_index: Tensor, key_index: Tensor) -> Tensor:
        trailing = max(2, key_index.ndim - self.lengths.ndim)
        return key_index < self.lengths.reshape(*self.lengths.shape, *[1] * trailing)


def padding(lengths: Tensor) -> _Padding:
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
    return _Padding(lengths)


@dataclass(frozen=True)
class _Window:
    """See `window`."""

    radius: int

    def __call__(self, query_index: Tensor, key_index: Tensor) -> Tensor:
        return (query_index - key_index).abs() <= self.radius


def window(radius: int) -> _Window:
    """A query sees the keys at most `radius` positions away: Luong's local-m, sliding windows.

    >>> import torch
    >>> window(1)(torch.arange(3)[:, None], torch.arange(3)).int().tolist()
    [[1, 1, 0], [1, 1, 1], [0, 1, 1]]
    """
    if not radius >= 0:  # also raises for NaN
        raise ValueError(f"radius must not be negative, got {radius}")
    return _Window(radius)


@dataclass(frozen=True)
class Both:
    """See `both`."""

    first: Mask
    second: Mask

    def __call__(self, query_index: Tensor, key_index: Tensor) -> Tensor:
        first, second = (
            _entries(part, query_index.flatten(), key_index.flatten())
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
    return Both(first, second)


@dataclass(frozen=True)
class Shifted:
    """See `shifted`."""

    mask: _MaskFunction
    by: int

    def __call__(self, query_index: Tensor, key_index: Tensor) -> Tensor:
        return self.mask(query_index + self.by, key_index)


def shifted(mask: Mask | None, by: int) -> Mask | None:
    """The same mask for queries that are `by` positions later, as after that many cached keys.

    Only functions of positions are shifted; a tensor already belongs to the queries of the call.

    >>> import torch
    >>> shifted(causal, 1)(torch.arange(2)[:, None], torch.arange(3)).int().tolist()
    [[1, 1, 0], [1, 1, 1]]
    """
    if mask is None or isinstance(mask, Tensor) or by == 0:
        return mask
    if isinstance(mask, Both):
        first, second = shifted(mask.first, by), shifted(mask.second, by)
        assert first is not None
        assert second is not None
        return Both(first, second)
    return Shifted(mask, by)


def as_bias(allowed: Tensor) -> Tensor:
    """A boolean mask as a bias: 0 for True, -inf for False. A bias is returned as it is."""
    if allowed.dtype != torch.bool:
        return allowed
    return torch.zeros(allowed.shape, device=allowed.device).masked_fill(~allowed, -torch.inf)


def parts_of(mask: Mask | None) -> tuple[Mask, ...]:
    """The masks that `both` combined; each is evaluated at its own, smaller, shape."""
    if mask is None:
        return ()
    if isinstance(mask, Both):
        return parts_of(mask.first) + parts_of(mask.second)
    return (mask,)


def tensors_of(mask: Mask | None) -> list[Tensor]:
    """The tensors in a mask whose in-place changes torch can detect; functions of the user may have others.

    >>> import torch
    >>> len(tensors_of(both(shifted(padding(torch.tensor([1, 3])), 1), torch.ones(2, 3).bool())))
    2
    """
    if isinstance(mask, Tensor):
        return [] if mask.is_inference() else [mask]
    if isinstance(mask, _Padding):
        return tensors_of(mask.lengths)
    if isinstance(mask, Shifted):
        return tensors_of(mask.mask)
    return tensors_of(mask.first) + tensors_of(mask.second) if isinstance(mask, Both) else []


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
    sizes = len(query_index), len(key_index)
    if any(size not in (1, expected) for size, expected in zip(block.shape[-2:], sizes, strict=True)):
        raise ValueError(
            f"a mask called for {sizes[0]} queries and {sizes[1]} keys must return what broadcasts to"
            f" [..., {sizes[0]}, {sizes[1]}], got {list(block.shape)}"
        )
    return block


def two_dimensional(table: Tensor) -> Tensor:
    """A tensor of at least two dimensions that broadcasts like this one."""
    return table if table.ndim > 1 else table.reshape(1, -1)


def _entries(table: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Rows and columns of a tensor that broadcasts to `[..., q, k]`."""
    table = two_dimensional(table)
    table = table.index_select(-2, rows) if table.shape[-2] > 1 else table
    return table.index_select(-1, columns) if table.shape[-1] > 1 else table
