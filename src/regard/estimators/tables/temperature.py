"""Probabilities of classes from scores, learned from rows left out."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import xlogy

from regard.estimators.tables.members.base import Floats, Rows

_FLOORS = (1e-4, 1e-3, 3e-3, 1e-2, 3e-2)
"""Least scores of a class that are tried."""


@dataclass(frozen=True)
class Temperature:
    """Probabilities from scores: p ∝ max(score, floor)^power."""

    floor: Floats  # []
    power: Floats  # []

    def probability(self, scores: Floats) -> Floats:
        """Probabilities [m, classes] of scores, which may lie outside of 0 to 1."""
        log = self.power * np.log(np.maximum(scores, self.floor))
        found: Floats = np.exp(log - log.max(axis=1, keepdims=True))
        found /= found.sum(axis=1, keepdims=True)
        return found

    def loss(self, scores: Floats, rows: Rows) -> float:
        """The log loss of scores [n, classes], the sum over rows."""
        chance = np.maximum(self.probability(scores), 1e-300)
        return float(-(rows.weight @ xlogy(rows.value, chance).sum(axis=1)))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """What was learned."""
        return {"floor": self.floor, "power": self.power}

    @classmethod
    def from_arrays(cls, arrays: dict[str, NDArray[Any]]) -> Self:
        """The temperature that `arrays` was called on."""
        return cls(arrays["floor"], arrays["power"])


def fit_temperature(left_out: Floats, rows: Rows) -> Temperature:
    """The floor and the power with the least log loss on rows left out."""

    def loss(floor: float, power: float) -> float:
        return Temperature(np.array(floor), np.array(power)).loss(left_out, rows)

    best = (np.inf, 1.0, 1.0)
    for floor in _FLOORS:
        found = minimize_scalar(lambda log: loss(floor, np.exp(log)), bounds=(-2.0, 2.0), method="bounded")  # noqa: B023
        best = min(best, (float(found.fun), floor, float(np.exp(found.x))))
    return Temperature(np.array(best[1]), np.array(best[2]))
