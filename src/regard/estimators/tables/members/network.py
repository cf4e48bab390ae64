"""A network that learns features, and ridge regression on them in closed form.

    f(x) = ridge regression of y on φ(x)        φ: `features.Features`

The network is trained with a linear readout of its own, which is then thrown away: with φ fixed, the ridge is linear
in the targets.
"""

from dataclasses import dataclass
from typing import Any, Self

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from regard.estimators.tables.members.base import Floats, Inputs, Member, Ridge, Rows
from regard.estimators.tables.members.features import (
    Features,
    Length,
    Scaling,
    batches,
    dense_columns,
    descend,
    evaluate,
    restored_features,
    saved_features,
    scaling_of,
    targets,
)

_DEPTH = 3
_DROPOUT = 0.15
_SMOOTHING = 0.1
"""Part of a class's label that goes to all classes in training: without it features saturate, and the ridge suffers."""
_MASKS = 64
"""Number of masks of dropout that are drawn; each layer takes one of them at each step. Drawing is slow."""
_BATCH = 256
_RATE = 3e-3


@dataclass(frozen=True)
class Network(Member):
    """Features, and the ridge on them."""

    features: Features
    ridge: Ridge
    scaling: Scaling

    @classmethod
    def fit(cls, rows: Rows, seed: int, length: Length, width: int, classify: bool = False) -> Self:
        """Train features on rows."""
        scaling = scaling_of(seed)
        x = dense_columns(rows.inputs, scaling)
        generator = torch.Generator().manual_seed(seed)
        features = Features(rows.inputs.numbers, x.shape[1] - rows.inputs.numbers, width, _DEPTH, generator)
        with torch.enable_grad():
            _train(features, torch.as_tensor(x), rows, length, classify, generator)
        features.requires_grad_(False)
        return cls(features, Ridge.fit(evaluate(features, x), rows.value, rows.weight), scaling)

    def predict(self, query: Inputs) -> Floats:
        return self.ridge.predict(self._features(query))

    def coefficients(self, query: Inputs, rows: Rows) -> Floats:
        return self.ridge.coefficients(self._features(query), self._features(rows.inputs), rows.weight)

    def _features(self, inputs: Inputs) -> Floats:
        return evaluate(self.features, dense_columns(inputs, self.scaling))

    def arrays(self) -> dict[str, NDArray[Any]]:
        return saved_features(self.features, self.scaling) | self.ridge.arrays()

    @classmethod
    def from_arrays(cls, arrays: dict[str, NDArray[Any]]) -> Self:
        features, scaling = restored_features(Features, arrays)
        return cls(features, Ridge.from_arrays(arrays), scaling)


def _train(
    features: Features,
    x: Tensor,
    rows: Rows,
    length: Length,
    classify: bool,
    generator: torch.Generator,
) -> None:
    """Train features with a readout of their own, on standardised targets or on classes."""
    y, weight = targets(rows, classify)
    count, outputs = y.shape
    width = features.weight[-1].shape[1]
    readout = nn.Parameter(torch.zeros(width + 1, outputs))
    batch = min(_BATCH, max(32, count // 8), count)
    masks = torch.empty(_MASKS, batch, width).bernoulli_(1 - _DROPOUT, generator=generator) / (1 - _DROPOUT)
    chosen = batches(count, batch, generator)

    def loss() -> Tensor:
        index = next(chosen)
        keep = torch.randint(_MASKS, (_DEPTH,), generator=generator).tolist()
        predicted = features(x[index], [masks[one] for one in keep]) @ readout[1:] + readout[0]
        if classify:
            losses = functional.cross_entropy(predicted, y[index], reduction="none", label_smoothing=_SMOOTHING)
        else:
            losses = (predicted - y[index]).square().mean(dim=1)
        return (losses * weight[index]).mean()

    descend([*features.named_parameters(), ("readout", readout)], length.steps(count, batch), _RATE, loss)
