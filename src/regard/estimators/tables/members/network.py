"""A network that learns features, and ridge regression on them in closed form.

    φ(x) = SiLU layers on [x, W cos(2π F x + p)] of each number, and on indicators and categories
    f(x) = ridge regression of y on φ(x)

The network is trained with a linear readout of its own, which is then thrown away: with φ fixed, the ridge is linear
in the targets. Periodic features of numbers: Gorishniy et al. 2022 (arXiv 2203.05556); a learned factor on every input
and few steps with a cosine: Holzmüller et al. 2024 (arXiv 2407.04491).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from regard.estimators.tables.members.base import Floats, Inputs, Member, Ridge, Rows, Singles

_FREQUENCIES, _PERIODIC = 16, 3
"""Number of frequencies of a number, and of the features made of them."""
_SPREAD = 0.3
"""Standard deviation of the frequencies, in periods per unit."""
_DROPOUT = 0.15
_SMOOTHING = 0.1
"""Part of a class's label that goes to all classes in training: without it features saturate, and the ridge suffers."""
_MASKS = 64
"""Number of masks of dropout that are drawn; each layer takes one of them at each step. Drawing is slow."""
_BATCH = 256
_RATE = 3e-3
_DECAY = 0.02
_RATES = {"factor": 6.0, "bias": 0.3, "frequency": 0.3, "phase": 0.3}
"""Learning rates of parameters by the end of their name, relative to that of matrices."""


class Features(nn.Module):
    """φ: features of rows."""

    def __init__(self, numbers: int, others: int, width: int, depth: int, generator: torch.Generator) -> None:
        super().__init__()

        def normal(*shape: int, std: float) -> nn.Parameter:
            return nn.Parameter(torch.randn(*shape, generator=generator) * std)

        self.frequency = normal(numbers, _FREQUENCIES, std=_SPREAD)
        self.phase = nn.Parameter((2 * torch.rand(numbers, _FREQUENCIES, generator=generator) - 1) * math.pi)
        self.mix = normal(numbers, _FREQUENCIES, _PERIODIC, std=_FREQUENCIES**-0.5)
        size = numbers * (1 + _PERIODIC) + others
        self.factor = nn.Parameter(torch.ones(size))
        sizes = [size, *[width] * depth]
        self.weight = nn.ParameterList(normal(a, b, std=1.3 * max(a, 1) ** -0.5) for a, b in pairwise(sizes))
        self.bias = nn.ParameterList(normal(size, std=0.3) for size in sizes[1:])
        self.numbers = numbers

    def forward(self, x: Tensor, keep: Sequence[Tensor] | None = None) -> Tensor:
        """Features [n, width] of rows [n, p]; `keep` are the factors of dropout, [n, width] for each layer."""
        number, other = x[:, : self.numbers], x[:, self.numbers :]
        waves = torch.cos(2 * math.pi * number[:, :, None] * self.frequency + self.phase)  # [n, numbers, frequencies]
        periodic = torch.einsum("ndf,dfe->nde", waves, self.mix)
        hidden = torch.cat([number, periodic.flatten(1), other], dim=1) * self.factor
        for layer, (weight, bias) in enumerate(zip(self.weight, self.bias, strict=True)):
            hidden = functional.silu(torch.addmm(bias, hidden, weight))
            if keep is not None:
                hidden = hidden * keep[layer]
        return hidden


Scaling = Literal["scaled", "ranked"]


@dataclass(frozen=True)
class Network(Member):
    """Features, and the ridge on them."""

    features: Features
    ridge: Ridge
    scaling: Scaling

    @classmethod
    def fit(
        cls, rows: Rows, seed: int, epochs: float, steps: tuple[int, int], width: int, classify: bool = False
    ) -> Self:
        """Train features on rows: `epochs` passes, within bounds of `steps`. Every other seed takes ranks."""
        scaling: Scaling = "ranked" if seed % 2 else "scaled"
        x = getattr(rows.inputs, scaling)
        generator = torch.Generator().manual_seed(seed)
        features = Features(rows.inputs.numbers, x.shape[1] - rows.inputs.numbers, width, 3, generator)
        with torch.enable_grad():
            _train(features, torch.as_tensor(x), rows, (epochs, *steps), classify, generator)
        features.requires_grad_(False)
        return cls(features, Ridge.fit(_evaluate(features, x), rows.value, rows.weight), scaling)

    def predict(self, query: Inputs) -> Floats:
        return self.ridge.predict(self._features(query))

    def coefficients(self, query: Inputs, rows: Rows) -> Floats:
        return self.ridge.coefficients(self._features(query), self._features(rows.inputs), rows.weight)

    def _features(self, inputs: Inputs) -> Floats:
        return _evaluate(self.features, getattr(inputs, self.scaling))

    def arrays(self) -> dict[str, NDArray[Any]]:
        weights = {f"features.{name}": tensor.numpy() for name, tensor in self.features.state_dict().items()}
        return weights | self.ridge.arrays() | {"ranked": np.array(self.scaling == "ranked")}

    @classmethod
    def from_arrays(cls, arrays: dict[str, NDArray[Any]]) -> Self:
        named = {
            name.removeprefix("features."): torch.as_tensor(array)
            for name, array in arrays.items()
            if name.startswith("features.")
        }
        numbers, (size, width) = len(named["frequency"]), named["weight.0"].shape
        depth = sum(name.startswith("bias.") for name in named)
        features = Features(numbers, size - numbers * (1 + _PERIODIC), width, depth, torch.Generator())
        features.load_state_dict(named)
        return cls(
            features.requires_grad_(False), Ridge.from_arrays(arrays), "ranked" if arrays["ranked"] else "scaled"
        )


def _train(
    features: Features,
    x: Tensor,
    rows: Rows,
    length: tuple[float, int, int],
    classify: bool,
    generator: torch.Generator,
) -> None:
    """Train features by AdamW, with a readout of their own, on standardised targets or on classes."""
    count, outputs = rows.value.shape
    deviation = rows.value.std(axis=0)
    target = rows.value if classify else (rows.value - rows.value.mean(axis=0)) / np.where(deviation > 0, deviation, 1)
    y, weight = (torch.as_tensor(array, dtype=torch.float32) for array in (target, rows.weight / rows.weight.mean()))
    readout = nn.Parameter(torch.zeros(features.weight[-1].shape[1] + 1, outputs))
    groups: dict[float, dict[str, Any]] = {}  # one for each rate: a step of the optimizer costs more by the group
    for name, parameter in [*features.named_parameters(), ("readout", readout)]:
        kind = name.split(".")[0]
        factor = _RATES.get(kind, 1.0)
        decay = 0.0 if kind in _RATES else _DECAY
        groups.setdefault(factor, {"params": [], "factor": factor, "weight_decay": decay})["params"].append(parameter)
    optimizer = torch.optim.AdamW(groups.values(), lr=_RATE, betas=(0.9, 0.95), fused=True)
    batch = min(_BATCH, max(32, count // 8), count)
    epochs, fewest, most = length
    steps = min(most, max(fewest, round(epochs * count / batch)))
    masks = torch.empty(_MASKS, batch, features.weight[-1].shape[1]).bernoulli_(1 - _DROPOUT, generator=generator)
    masks /= 1 - _DROPOUT
    start = count  # of the next batch; a new pass begins where no whole batch is left
    for step in range(steps):
        rate = _RATE * min(1.0, (step + 1) / 50) * 0.5 * (1 + math.cos(math.pi * step / steps))
        for group in optimizer.param_groups:
            group["lr"] = rate * group["factor"]
        if start + batch > count:
            order, start = torch.randperm(count, generator=generator), 0
        index, start = order[start : start + batch], start + batch
        chosen = torch.randint(_MASKS, (len(features.weight),), generator=generator).tolist()
        hidden = features(x[index], [masks[one] for one in chosen])
        predicted = hidden @ readout[1:] + readout[0]
        if classify:
            losses = functional.cross_entropy(predicted, y[index], reduction="none", label_smoothing=_SMOOTHING)
        else:
            losses = (predicted - y[index]).square().mean(dim=1)
        loss = (losses * weight[index]).mean()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def _evaluate(features: Features, x: Singles) -> Floats:
    """Features [n, width] of rows [n, p], a block at a time."""
    with torch.no_grad():
        blocks = [features(block) for block in torch.split(torch.as_tensor(x), 4096)]
        return torch.cat(blocks).double().numpy()
