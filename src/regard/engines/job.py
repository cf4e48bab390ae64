"""What an engine computes: tensors that fit together, and the score, mask and weighing between them."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.compiled import dropout_hash
from regard.masks import Mask, block_of, parts_of
from regard.scores import Score
from regard.weighing import Weighing


class Plan(NamedTuple):
    """Which engine is chosen, why, and what it runs.

    algorithm   "engine: method": an engine may hand a job over to another one, which is then named here

    >>> import torch, regard
    >>> x = torch.randn(1, 8, 4096, 64)
    >>> regard.plan(x, x, x).engine, regard.plan(x, x, x, dropout=0.1).engine
    ('flash', 'stream')
    >>> regard.plan(x, x, x, dropout=0.1).algorithm
    'stream: fused loops, head by head'
    """

    engine: str
    why: str
    algorithm: str = ""


@dataclass(frozen=True)
class Job:
    """Checked input of an engine: shapes, dtypes and devices fit together. `attend.py` makes it."""

    query: Tensor  # [..., q, d]
    key: Tensor  # [..., k, e]
    value: Tensor  # [..., k, v]
    score: Score
    mask: Mask | None
    weigh: Weighing
    dropout: float = 0.0

    leading: torch.Size = field(init=False)  # of query, key and value, broadcast
    mask_corners: list[Tensor] = field(init=False)  # the mask's parts for 2 queries and 2 keys: shows dtype and axes

    def __post_init__(self) -> None:
        # Fields, because torch.compile cannot see through the lock of `functools.cached_property`.
        object.__setattr__(self, "leading", broadcast(*(x.shape[:-2] for x in (self.query, self.key, self.value))))
        corner = slice(0, min(2, self.queries)), slice(0, min(2, self.keys))
        object.__setattr__(self, "mask_corners", self.mask_blocks(*corner))

    def mask_blocks(self, rows: slice, columns: slice) -> list[Tensor]:
        """Each part of the mask for some queries and keys, at its own broadcast shape."""
        return [block_of(part, rows, columns, len(self.shape), self.query.device) for part in parts_of(self.mask)]

    @property
    def queries(self) -> int:
        return self.query.shape[-2]

    @property
    def keys(self) -> int:
        return self.key.shape[-2]

    @property
    def shape(self) -> torch.Size:
        """The shape of the scores, `[..., q, k]`. Only the dense engine builds a tensor of that shape."""
        return torch.Size([*self.leading, self.queries, self.keys])

    @property
    def pairs(self) -> int:
        return math.prod(self.shape)

    @property
    def width(self) -> int:
        """Number of floats that the score holds for each pair while it computes."""
        return int(getattr(self.score, "width", max(1, self.query.shape[-1])))


def scores_of(score: Score, query: Tensor, key: Tensor) -> Tensor:
    """The score, checked: a user's function may return anything."""
    scores = score(query, key)
    leading = broadcast(query.shape[:-2], key.shape[:-2])
    expected = torch.Size([*leading, query.shape[-2], key.shape[-2]])
    if not isinstance(scores, Tensor) or scores.shape != expected:
        got = list(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
        raise ValueError(f"a score must return [..., q, k], here {list(expected)}, got {got}")
    if scores.dtype != query.dtype and torch.is_autocast_enabled(query.device.type):
        return scores.to(query.dtype)
    if scores.dtype != query.dtype:
        raise TypeError(f"a score must return the dtype of the query, {query.dtype}, got {scores.dtype}")
    return scores


def masked(scores: Tensor, parts: Sequence[Tensor]) -> Tensor:
    """Scores with -inf where a boolean part forbids, plus the parts that are biases."""
    for part in parts:
        scores = scores.masked_fill(~part, -math.inf) if part.dtype == torch.bool else scores + part
    return scores


def dropout_factor(shape: torch.Size, dropout: float, seed: int, rows: slice, columns: slice, like: Tensor) -> Tensor:
    """The factor of each weight of a block, `[..., rows, columns]`: 0 where dropped, else 1 / (1 - dropout).

    shape   of all scores, `[..., q, k]`
    like    has the dtype and the device
    """
    device = like.device
    heads = torch.arange(math.prod(shape[:-2]), device=device).view(*shape[:-2], 1, 1)  # [..., 1, 1]
    query = torch.arange(rows.start, rows.stop, device=device).unsqueeze(-1)  # [rows, 1]
    key = torch.arange(columns.start, columns.stop, device=device)
    mask = dropout_hash.keep_mask(dropout, *dropout_hash.row_hashes(seed, heads, query), key)
    return mask.to(like.dtype) * dropout_hash.keep_scale(dropout)


def spans(stop: int, size: int, start: int = 0) -> Iterator[slice]:
    """Slices of at most that size from `start` to `stop`."""
    return (slice(first, min(first + size, stop)) for first in range(start, stop, size))


def broadcast(*shapes: tuple[int, ...]) -> torch.Size:
    """The shape that all of them broadcast to; ValueError if they do not. (torch's own takes 5 times as long.)"""
    return torch.Size(np.broadcast_shapes(*shapes))
