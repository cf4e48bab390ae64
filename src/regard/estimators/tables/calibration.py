"""Intervals: how far predictions are from the targets, learned from rows left out.

Conformal, with a scale that depends on the row: residuals of rows left out, divided by the size of
residuals that boosted trees expect there, have quantiles; times the expected size at x they are the interval.

    lower, upper = f(x) + s(x) · quantiles of (yᵢ - f₋ᵢ(xᵢ)) / s₋ᵢ(xᵢ)
"""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from regard.estimators.tables.members.base import Floats, Inputs, Rows, target_units
from regard.estimators.tables.members.trees import BoostedTrees
from regard.estimators.tables.stacking import training_rows

_TREES, _RATE = 100, 0.05
_LEAST_SIZE = 0.2
"""Least expected size of a residual, in medians of all."""
_FEW = 50
"""Number of rows below which residuals have the same expected size everywhere."""


@dataclass(frozen=True)
class Intervals:
    """Residuals of rows left out in units of their expected size, sorted, and trees that expect it."""

    scores: Floats  # [n, c]
    least: Floats  # [c]  least expected size
    unit: Floats  # [c]  what residuals were multiplied by
    members: tuple[BoostedTrees, ...]  # one per fold; without any the expected size is `least`

    def sizes(self, query: Inputs) -> Floats:
        """The expected size of residuals, [m, c]."""
        if not self.members:
            return np.tile(self.least, (len(query.bins), 1))
        return np.maximum(np.mean([member.predict(query) for member in self.members], axis=0), self.least)

    def bounds(self, query: Inputs, level: float) -> tuple[Floats, Floats]:
        """What must be added to predictions [m, c] for the lower and the upper ends.

        The quantiles are those of n residuals and the new one, as split conformal prediction has them.
        """
        count = len(self.scores)
        tail = (1 - level) / 2
        low = max(0, int(np.floor(tail * (count + 1))) - 1)
        sizes = self.sizes(query)
        return sizes * self.scores[low] / self.unit, sizes * self.scores[count - 1 - low] / self.unit

    def arrays(self) -> dict[str, NDArray[Any]]:
        """What was learned."""
        trees = {
            f"{number}.{name}": array
            for number, member in enumerate(self.members)
            for name, array in member.arrays().items()
        }
        own = {"scores": self.scores, "least": self.least, "unit": self.unit, "members": np.array(len(self.members))}
        return own | trees

    @classmethod
    def from_arrays(cls, arrays: dict[str, NDArray[Any]]) -> Self:
        """The intervals that `arrays` was called on."""
        members = []
        for number in range(int(arrays["members"])):
            prefix = f"{number}."
            own = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
            members.append(BoostedTrees.from_arrays(own))
        return cls(arrays["scores"], arrays["least"], arrays["unit"], tuple(members))


def fit_intervals(rows: Rows, left_out: Floats, fold: NDArray[np.int64], seed: int) -> Intervals:
    """Intervals from the predictions [n, c] for rows left out."""
    residual = rows.value - left_out
    unit = target_units(residual)
    residual *= unit
    size = np.abs(residual)
    least = np.median(size, axis=0)
    least = np.where(least > 0, least, np.maximum(size.mean(axis=0), np.finfo(float).tiny))
    if len(residual) < _FEW:
        return Intervals(np.sort(residual / least, axis=0), least, unit, ())
    expected, members = np.empty_like(size), []
    for number in range(int(fold.max()) + 1):
        seen = training_rows(fold, number)
        member = BoostedTrees.fit(rows._replace(value=size).take(seen), seed + number, _TREES, _RATE)
        expected[fold == number] = member.predict(rows.inputs.take(fold == number))
        members.append(member)
    least = _LEAST_SIZE * least
    scores = residual / np.maximum(expected, least)
    return Intervals(np.sort(scores, axis=0), least, unit, tuple(members))
