"""Attention with a learned metric: the prediction is a mean of the targets of the rows that look alike.

    f(x) = Σᵢ αᵢ(x) yᵢ        α = softmax of log ωᵢ - ‖z(x) - z(xᵢ)‖² / 2h²        z(x) = A φ(x) + B x

It is trained by what it is used for: in a batch of rows each is predicted from the others, never from itself
(neighbourhood components analysis, Goldberger et al. 2004; for tables Ye et al. 2025, arXiv 2407.03257).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.estimators.tables.members.base import Floats, Inputs, Member, Rows
from regard.estimators.tables.members.features import (
    Features,
    Length,
    Scaling,
    batches,
    dense_columns,
    descend,
    evaluate,
    normal,
    restored_features,
    saved_features,
    scaling_of,
    targets,
)

_WIDTH, _DEPTH, _SIZE = 128, 2, 32
_DROPOUT = 0.1
_BATCHES = (256, 512)
"""Least and most rows of a batch, of tables that are larger; else a sixteenth of the rows."""
_RATE = 4e-3
_NEIGHBOUR = 10
"""Training starts with a median distance of 1 to this neighbour in the batch."""
_EXPONENT = -1 / 6
"""The more keys there are than in a batch, the narrower the kernel: the rate of a bandwidth in two dimensions."""
_FLOOR = 0.01
"""Part of a class's probability that goes to all classes in training, so that no logarithm is of 0."""
_ARRAYS = ("keys", "value", "log_weight", "mean")
"""Arrays of the member beside those of the embedding."""
_BLOCK = 2**22
"""Pairs of query and key that are computed at a time."""


class Embedding(Features):
    """z: where rows are in the space in which near means alike."""

    def __init__(self, numbers: int, others: int, width: int, depth: int, generator: torch.Generator) -> None:
        super().__init__(numbers, others, width, depth, generator)
        first = len(self.factor)
        self.out = normal(width, _SIZE, std=width**-0.5, generator=generator)
        self.skip = normal(first, _SIZE, std=max(first, 1) ** -0.5, generator=generator)
        self.scale = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor, keep: Sequence[Tensor] | None = None) -> Tensor:
        """Points [n, size] of rows [n, p]."""
        first = self.first(x)
        return (self.layers(first, keep) @ self.out + first @ self.skip) * self.scale.exp()


@dataclass(frozen=True)
class LearnedAttention(Member):
    """The embedding, and the training rows in it."""

    embedding: Embedding
    scaling: Scaling
    keys: Floats  # [n, size]  divided by the bandwidth
    value: Floats  # [n, c]
    log_weight: Floats  # [n]
    mean: Floats  # [c]

    @classmethod
    def fit(cls, rows: Rows, seed: int, length: Length, classify: bool = False) -> Self:
        """Train the embedding on rows."""
        scaling = scaling_of(seed)
        x = dense_columns(rows.inputs, scaling)
        generator = torch.Generator().manual_seed(seed)
        embedding = Embedding(rows.inputs.numbers, x.shape[1] - rows.inputs.numbers, _WIDTH, _DEPTH, generator)
        with torch.enable_grad():
            _train(embedding, torch.as_tensor(x), rows, length, classify, generator)
        with torch.no_grad():
            embedding.scale.sub_(_EXPONENT * math.log(len(x) / _batch_size(len(x))))
        embedding.requires_grad_(False)
        mean = np.average(rows.value, axis=0, weights=rows.weight)
        return cls(embedding, scaling, evaluate(embedding, x), rows.value, np.log(rows.weight), mean)

    def predict(self, query: Inputs) -> Floats:
        points = self._points(query)
        centred = self.value - self.mean  # sums of targets far from 0 would lose digits
        size = max(1, _BLOCK // len(self.keys))
        blocks = [self._weights(points[start : start + size]) @ centred for start in range(0, len(points), size)]
        found: Floats = np.concatenate(blocks) + self.mean if blocks else np.zeros((0, self.value.shape[1]))
        return found

    def coefficients(self, query: Inputs, rows: Rows) -> Floats:
        return self._weights(self._points(query))

    def _points(self, inputs: Inputs) -> Floats:
        return evaluate(self.embedding, dense_columns(inputs, self.scaling))

    def _weights(self, points: Floats) -> Floats:
        """The weights of attention [m, n] of points [m, size]."""
        # The square of the query's own point is the same for all keys.
        logits = torch.addmm(
            torch.as_tensor(self.log_weight - 0.5 * np.square(self.keys).sum(axis=1)),
            torch.as_tensor(points),
            torch.as_tensor(self.keys).T,
        )
        found: Floats = torch.softmax(logits, dim=1).numpy()
        return found

    def arrays(self) -> dict[str, NDArray[Any]]:
        return saved_features(self.embedding, self.scaling) | {name: getattr(self, name) for name in _ARRAYS}

    @classmethod
    def from_arrays(cls, arrays: dict[str, NDArray[Any]]) -> Self:
        embedding, scaling = restored_features(Embedding, arrays)
        return cls(embedding, scaling, **{name: arrays[name] for name in _ARRAYS})


def _batch_size(count: int) -> int:
    """The number of rows in a batch of so many rows."""
    least, most = _BATCHES
    return min(count, most, max(least, count // 16))


def _train(
    embedding: Embedding,
    x: Tensor,
    rows: Rows,
    length: Length,
    classify: bool,
    generator: torch.Generator,
) -> None:
    """Train an embedding on the prediction of each row of a batch from the others."""
    y, weight = targets(rows, classify)
    count, outputs = y.shape
    batch = _batch_size(count)
    chosen = batches(count, batch, generator)
    itself = torch.full((batch,), torch.inf).diag()
    with torch.no_grad():
        points = embedding(x[next(chosen)])
        distance = torch.cdist(points, points).kthvalue(min(_NEIGHBOUR + 1, batch), dim=1).values.median()
        embedding.scale.sub_(distance.clamp(min=1e-3).log())

    def loss() -> Tensor:
        index = next(chosen)
        # One mask for all rows: otherwise equal rows would be apart.
        keep = torch.rand(_DEPTH, _WIDTH, generator=generator).ge(_DROPOUT) / (1 - _DROPOUT)
        points = embedding(x[index], keep.unbind())
        bias = weight[index].log() - 0.5 * points.square().sum(dim=1)  # [batch]
        mean = torch.softmax(torch.addmm(bias - itself, points, points.T), dim=1) @ y[index]  # [batch, c]
        if classify:
            chance = (mean * y[index]).sum(dim=1) * (1 - _FLOOR) + _FLOOR / outputs
            losses = -chance.log()
        else:
            losses = (mean - y[index]).square().mean(dim=1)
        return (losses * weight[index]).mean()

    descend(embedding.named_parameters(), length.steps(count, batch), _RATE, loss)
