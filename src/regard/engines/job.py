"""What an engine computes: tensors that fit together, and the score, mask and weighing between them."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from regard.compiled import dropout_hash
from regard.masks import Mask
from regard.masks.evaluation import block_of, has_reach, parts_of, touches, visible_keys
from regard.scores import Score
from regard.torch_modes import compiling, transforming
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

    query: Tensor  # [..., heads, q, d]
    key: Tensor  # [..., heads / groups, k, e]
    value: Tensor  # [..., heads / groups, k, v]
    score: Score
    mask: Mask | None
    weigh: Weighing
    dropout: float = 0.0
    start: tuple[int, int] = (0, 0)  # index of the first query and key among all, by which weights are dropped

    groups: int = field(init=False)  # neighbouring query heads that share one head of keys and values
    leading: torch.Size = field(init=False)  # of query, key and value, broadcast
    mask_corners: list[Tensor] = field(init=False)  # the mask's parts for 2 queries and 2 keys: shows dtype and axes

    def __post_init__(self) -> None:
        # Fields, because torch.compile cannot see through the lock of `functools.cached_property`.
        groups = groups_of(self.query, self.key, self.value)
        object.__setattr__(self, "groups", groups)
        object.__setattr__(self, "leading", leading_of(self.query, self.key, self.value, groups))
        corner = slice(0, min(2, self.queries)), slice(0, min(2, self.keys))
        object.__setattr__(self, "mask_corners", self.mask_blocks(*corner))

    def mask_blocks(self, rows: slice, columns: slice) -> list[Tensor]:
        """Each part of the mask for some queries and keys, at its own broadcast shape."""
        return [block_of(part, rows, columns, len(self.shape), self.query.device) for part in parts_of(self.mask)]

    def repeated(self) -> "Job":
        """The same job with a head of keys and values for each query head."""
        if self.groups == 1:
            return self
        return replace(self, key=repeat_heads(self.key, self.groups), value=repeat_heads(self.value, self.groups))

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
        """Number of floats that the score holds for each pair while it computes: declared, or measured."""
        declared = getattr(self.score, "width", None)
        return int(measured_width(self) if declared is None else declared)


class _LargestTensor(TorchFunctionMode):
    """Notes the number of elements of the largest tensor that is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_function__(
        self,
        function: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        result = function(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self.elements = max(self.elements, result.numel())
        return result


@torch.no_grad()
def measured_width(job: Job) -> int:
    """Number of floats for each pair in the largest tensor that the score computes, for at most 32 queries and keys."""
    query, key = job.query[..., :32, :], repeat_heads(job.key[..., :32, :], job.groups)
    if compiling() or transforming() or not job.pairs:
        return max(1, int(job.query.shape[-1]))
    largest = _LargestTensor()
    with torch.random.fork_rng(devices=[]), largest:
        scores = scores_of(job.score, query, key)
    return max(1, round(largest.elements / max(1, scores.numel())))


def groups_of(query: Tensor, key: Tensor, value: Tensor) -> int:
    """How many query heads share a head of keys and values: `[batch, heads, q, d]` and `[batch, heads / groups, k, d]`.

    1 if they broadcast, or do not fit at all.
    """
    if query.ndim < 4 or key.ndim != query.ndim or value.ndim != query.ndim:
        return 1
    heads, shared = int(query.shape[-3]), int(key.shape[-3])
    if shared <= 1 or shared != value.shape[-3] or heads == shared or heads % shared:
        return 1
    return heads // shared


def leading_of(query: Tensor, key: Tensor, value: Tensor, groups: int) -> torch.Size:
    """The leading dimensions of the scores; ValueError if those of query, key and value do not broadcast."""
    shared = [x.shape[:-2] for x in (key, value)]
    if groups > 1:
        shared = [torch.Size([*shape[:-1], shape[-1] * groups]) for shape in shared]
    return broadcast(query.shape[:-2], *shared)


def repeat_heads(x: Tensor, groups: int) -> Tensor:
    """Each head once for each query head of its group: `[..., heads, k, d]`."""
    return x if groups == 1 else x.repeat_interleave(groups, dim=-3)


def sum_groups(x: Tensor, groups: int) -> Tensor:
    """The sum over the query heads of each group, `[..., heads / groups, k, d]`: the reverse of `repeat_heads`."""
    return x if groups == 1 else x.view(*x.shape[:-3], -1, groups, *x.shape[-2:]).sum(dim=-3)


def reachable_pairs(job: Job) -> int:
    """Number of pairs in the reach of the mask, as far as its parts say."""
    if not job.pairs or not has_reach(job.mask):
        return job.pairs
    first, stop = visible_keys(job.mask, job.queries, job.keys, len(job.shape), job.query.device)
    seen = int((stop - first).sum()) * (job.pairs // job.keys // first.numel())
    blocks = list(itertools.product(spans(job.queries, -(-job.queries // 16)), spans(job.keys, -(-job.keys // 16))))
    return seen * sum(touches(job.mask, *block) for block in blocks) // len(blocks)


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
        scores = scores.masked_fill(~part, -math.inf) if part.dtype == torch.bool else scores + part.to(scores.dtype)
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
    """The shape that all of them broadcast to; ValueError if they do not.

    torch's own takes 5 times as long, but knows of lengths that are variables of a compiled program.
    """
    if not compiling():
        return torch.Size(np.broadcast_shapes(*shapes))
    try:
        shape: torch.Size = torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]
        return shape
    except RuntimeError as error:
        raise ValueError(str(error)) from None
