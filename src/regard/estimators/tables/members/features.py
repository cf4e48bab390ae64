"""Learned features of rows, and how the members that learn them descend.

    φ(x) = SiLU layers on [x, W cos(2π F x + p)] of each number, and on indicators and categories

Periodic features of numbers: Gorishniy et al. 2022 (arXiv 2203.05556); a learned factor on every input, rates that
depend on the kind of parameter, and a cosine: Holzmüller et al. 2024 (arXiv 2407.04491).
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from regard.estimators.tables.members.base import Floats, Inputs, Rows, Singles

_FREQUENCIES, PERIODIC = 16, 3
"""Number of frequencies of a number, and of the features made of them."""
_SPREAD = 0.3
"""Standard deviation of the frequencies, in periods per unit."""
_DECAY = 0.02
_RATES = {"factor": 6.0, "bias": 0.3, "frequency": 0.3, "phase": 0.3, "scale": 10.0}
"""Learning rates of parameters by the start of their name, relative to that of matrices; these do not decay."""
_WARM_UP = 50
"""Number of steps until the learning rate is reached."""

Scaling = Literal["scaled", "ranked"]


class Length(NamedTuple):
    """How long a member is trained: passes over the rows, within bounds of steps."""

    epochs: float
    fewest: int
    most: int

    def steps(self, count: int, batch: int) -> int:
        """The number of steps for so many rows."""
        return min(self.most, max(self.fewest, round(self.epochs * count / batch)))


def scaling_of(seed: int) -> Scaling:
    """Every other seed takes numbers by rank."""
    return "ranked" if seed % 2 else "scaled"


def dense_columns(inputs: Inputs, scaling: Scaling) -> Singles:
    """Rows [n, p] in one of the two scalings."""
    columns: Singles = getattr(inputs, scaling)
    return columns


class Features(nn.Module):
    """φ: features of rows."""

    def __init__(self, numbers: int, others: int, width: int, depth: int, generator: torch.Generator) -> None:
        super().__init__()
        self.frequency = normal(numbers, _FREQUENCIES, std=_SPREAD, generator=generator)
        self.phase = nn.Parameter((2 * torch.rand(numbers, _FREQUENCIES, generator=generator) - 1) * math.pi)
        self.mix = normal(numbers, _FREQUENCIES, PERIODIC, std=_FREQUENCIES**-0.5, generator=generator)
        size = numbers * (1 + PERIODIC) + others
        self.factor = nn.Parameter(torch.ones(size))
        sizes = [size, *[width] * depth]
        self.weight = nn.ParameterList(
            normal(a, b, std=1.3 * max(a, 1) ** -0.5, generator=generator) for a, b in pairwise(sizes)
        )
        self.bias = nn.ParameterList(normal(size, std=0.3, generator=generator) for size in sizes[1:])
        self.numbers = numbers

    def first(self, x: Tensor) -> Tensor:
        """What the first layer takes, [n, size]: rows [n, p] with the periodic features of numbers."""
        number, other = x[:, : self.numbers], x[:, self.numbers :]
        waves = torch.cos(2 * math.pi * number[:, :, None] * self.frequency + self.phase)  # [n, numbers, frequencies]
        periodic = torch.einsum("ndf,dfe->nde", waves, self.mix)
        return torch.cat([number, periodic.flatten(1), other], dim=1) * self.factor

    def layers(self, hidden: Tensor, keep: Sequence[Tensor] | None = None) -> Tensor:
        """Features [n, width]; `keep` are the factors of dropout, [n, width] or [width] for each layer."""
        for layer, (weight, bias) in enumerate(zip(self.weight, self.bias, strict=True)):
            hidden = functional.silu(torch.addmm(bias, hidden, weight))
            if keep is not None:
                hidden = hidden * keep[layer]
        return hidden

    def forward(self, x: Tensor, keep: Sequence[Tensor] | None = None) -> Tensor:
        """Features [n, width] of rows [n, p]."""
        return self.layers(self.first(x), keep)


def normal(*shape: int, std: float, generator: torch.Generator) -> nn.Parameter:
    """A parameter of normal numbers."""
    return nn.Parameter(torch.randn(*shape, generator=generator) * std)


AnyFeatures = TypeVar("AnyFeatures", bound=Features)


def saved_features(features: Features, scaling: Scaling) -> dict[str, NDArray[Any]]:
    """Learned features as arrays, by name."""
    weights = {f"features.{name}": tensor.numpy() for name, tensor in features.state_dict().items()}
    return weights | {"ranked": np.array(scaling == "ranked")}


def restored_features(kind: type[AnyFeatures], arrays: dict[str, NDArray[Any]]) -> tuple[AnyFeatures, Scaling]:
    """The features of `saved_features`, and the scaling that they take."""
    prefix = "features."
    named = {
        name.removeprefix(prefix): torch.as_tensor(array) for name, array in arrays.items() if name.startswith(prefix)
    }
    numbers, (size, width) = len(named["frequency"]), named["weight.0"].shape
    depth = sum(name.startswith("bias.") for name in named)
    features = kind(numbers, size - numbers * (1 + PERIODIC), width, depth, torch.Generator())
    features.load_state_dict(named)
    return features.requires_grad_(False), "ranked" if arrays["ranked"] else "scaled"


def targets(rows: Rows, classify: bool) -> tuple[Tensor, Tensor]:
    """What members descend to: standardised targets, or classes [n, c]; and the weights of rows [n], 1 on average."""
    deviation = rows.value.std(axis=0)
    value = rows.value if classify else (rows.value - rows.value.mean(axis=0)) / np.where(deviation > 0, deviation, 1)
    weight = rows.weight / rows.weight.mean()
    return torch.as_tensor(value, dtype=torch.float32), torch.as_tensor(weight, dtype=torch.float32)


def batches(count: int, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Random batches of row indices without end; a new pass begins where no whole batch is left."""
    while True:
        order = torch.randperm(count, generator=generator)
        yield from torch.split(order[: count // size * size], size)


def descend(named: Iterable[tuple[str, nn.Parameter]], steps: int, rate: float, loss: Callable[[], Tensor]) -> None:
    """Steps of AdamW with a warm-up and a cosine, each on the next value of the loss."""
    groups: dict[float, dict[str, Any]] = {}  # one for each rate: a step of the optimizer costs more by the group
    for name, parameter in named:
        kind = name.split(".")[0]
        factor = _RATES.get(kind, 1.0)
        decay = 0.0 if kind in _RATES else _DECAY
        groups.setdefault(factor, {"params": [], "factor": factor, "weight_decay": decay})["params"].append(parameter)
    optimizer = torch.optim.AdamW(groups.values(), lr=rate, betas=(0.9, 0.95), fused=True)
    for step in range(steps):
        now = rate * min(1.0, (step + 1) / _WARM_UP) * 0.5 * (1 + math.cos(math.pi * step / steps))
        for group in optimizer.param_groups:
            group["lr"] = now * group["factor"]
        optimizer.zero_grad()
        loss().backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def evaluate(features: nn.Module, x: Singles) -> Floats:
    """Features [n, width] of rows [n, p], a block at a time."""
    with torch.no_grad():
        blocks = [features(block) for block in torch.split(torch.as_tensor(x), 4096)]
        return torch.cat(blocks).double().numpy()
