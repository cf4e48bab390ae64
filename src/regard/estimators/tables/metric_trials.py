"""Rows that are predicted from other rows: what a metric is judged by.

loss = Σ weight · ‖y - attend(row, other rows, their y)‖² / Σ weight
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.attend import attend
from regard.estimators.tables.local_linear import local_linear
from regard.kernels import Mixed
from regard.masks import Mask, both
from regard.scores import Score

ENOUGH = 64
"""Rows from which on some are held out; of fewer, each is predicted from the others."""


@dataclass(frozen=True)
class Sample:
    """The rows, in the precision that learning needs."""

    points: Tensor  # [n, d] float32, about their centre
    y: Tensor  # [n, c] float32, of mean 0 and variance 1
    weight: Tensor  # [n] float32, of mean 1


class Split(NamedTuple):
    """Which rows are learned from, and which are held out: none, where there are few."""

    seen: Tensor
    held: Tensor


@dataclass(frozen=True)
class Trial:
    """Rows that are predicted from other rows. A row that is among the keys too does not see itself."""

    sample: Sample
    rows: Tensor  # [q]
    keys: Tensor  # [k]
    score: Score
    order: int
    overlap: bool  # whether rows and keys have some in common

    def prediction(self, model: nn.Module) -> Tensor:
        """What the keys say of the rows, `[q, c]`."""
        query, key = model(self.sample.points[self.rows]), model(self.sample.points[self.keys])
        value, mask = self.sample.y[self.keys], self.mask()
        if self.order == 0:
            return attend(query, key, value, score=self.score, mask=mask)
        codes = len(self.score.jump) if isinstance(self.score, Mixed) else 0
        # torch's fused kernel would make the query as long as the many values of a linear fit.
        return local_linear(query, key, value, score=self.score, mask=mask, engine="stream", codes=codes)

    def loss(self, model: nn.Module) -> Tensor:
        """The weighted mean squared error of what the model predicts."""
        weight = self.sample.weight[self.rows]
        error = (self.prediction(model) - self.sample.y[self.rows]).square().mean(dim=-1)
        return (error * weight).sum() / weight.sum()

    def mask(self) -> Mask | None:
        """The weights of the keys, and the row itself that is not to be seen."""
        weight = self.sample.weight[self.keys]
        bias = None if bool((weight == weight[0]).all()) else weight.log().unsqueeze(0)
        if not self.overlap:
            return bias
        return self.another if bias is None else both(self.another, bias)

    def another(self, query_index: Tensor, key_index: Tensor) -> Tensor:
        return self.rows[query_index] != self.keys[key_index]


def standardised(points: Tensor, y: Tensor, sample_weight: Tensor | None) -> Sample:
    """The rows that count, centred before they are rounded."""
    weight = points.new_ones(len(points)) if sample_weight is None else sample_weight.to(points)
    points, y, weight = points[weight > 0], y[weight > 0], weight[weight > 0]
    weight = weight / weight.mean()
    mean = (weight.unsqueeze(-1) * y).mean(dim=0)
    deviation = (weight.unsqueeze(-1) * (y - mean).square()).mean(dim=0).sqrt()
    y = (y - mean) / torch.where(deviation > 0, deviation, 1.0)
    return Sample(*(tensor.to(torch.float32) for tensor in (points - points.mean(dim=0), y, weight)))


def held_out(rows: int, generator: torch.Generator) -> Split:
    """A tenth of the rows is held out, or so many that their error says something."""
    shuffled = torch.randperm(rows, generator=generator)
    held = min(max(rows // 10, 128), rows // 4, 2048) if rows >= ENOUGH else 0
    return Split(shuffled[held:], shuffled[:held])
