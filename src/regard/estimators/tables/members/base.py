"""What a member of the stack is: a model whose predictions are weighted sums of the targets that it was fitted on.

f(x) = Σᵢ cᵢ(x) yᵢ        Σᵢ cᵢ(x) = 1        c depends on y only through what was learned: trees, a network, a metric
"""

import dataclasses
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]


class Inputs(NamedTuple):
    """Rows of a table as the members take them: `regard.estimators.tables.inputs` makes them.

    Dense columns are numbers, then indicators of missing cells, then one-hot categories.
    """

    scaled: Singles  # [n, p]  numbers in robust deviations from the median, outliers pulled in
    ranked: Singles  # [n, p]  the same columns, numbers as normal scores by rank
    bins: NDArray[np.uint8]  # [n, d]  each column in bins, 0 for a missing cell
    numbers: int  # of the p columns, the first that are numbers
    categorical: NDArray[np.bool_]  # [d]  which columns of `bins` are categories

    def take(self, index: Any) -> "Inputs":
        """Some of the rows."""
        return self._replace(scaled=self.scaled[index], ranked=self.ranked[index], bins=self.bins[index])


class Rows(NamedTuple):
    """Training rows."""

    inputs: Inputs
    value: Floats  # [n, c]
    weight: Floats  # [n], positive

    def take(self, index: Any) -> "Rows":
        """Some of the rows."""
        return Rows(self.inputs.take(index), self.value[index], self.weight[index])


def target_units(value: Floats) -> Floats:
    """Factors [c] that bring the deviation of each target [n, c] near 1: so targets of several sizes count alike.

    They are powers of two, which change no digit.
    """
    exponent = np.frexp(np.abs(value).max(axis=0))[1]
    deviation = np.ldexp(value, -exponent).std(axis=0)
    units: Floats = np.ldexp(1.0, -np.clip(exponent + np.frexp(deviation)[1], -1000, 1000))
    return units


class Member(ABC):
    """A fitted model, stored as arrays."""

    @abstractmethod
    def predict(self, query: Inputs) -> Floats:
        """Predictions [m, c]."""

    @abstractmethod
    def coefficients(self, query: Inputs, rows: Rows) -> Floats:
        """The weight of each training row in each prediction, [m, n]; `rows` are those that it was fitted on."""

    def arrays(self) -> dict[str, NDArray[Any]]:
        """What was learned."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # type: ignore[arg-type]

    @classmethod
    @abstractmethod
    def from_arrays(cls, arrays: dict[str, NDArray[Any]]) -> Self:
        """The member that `arrays` was called on."""


def checked_arrays(cls: type, arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The arrays by the names of a dataclass's fields; a missing or surplus one raises ValueError."""
    names = {field.name for field in dataclasses.fields(cls)}
    if names != set(arrays):
        raise ValueError(f"{cls.__name__} needs the arrays {sorted(names)}, got {sorted(arrays)}")
    return arrays


@dataclass(frozen=True)
class Mean(Member):
    """The weighted mean of the targets: what is left where no column says anything."""

    mean: Floats  # [c]

    @classmethod
    def fit(cls, rows: Rows, seed: int) -> Self:
        return cls(np.average(rows.value, axis=0, weights=rows.weight))

    def predict(self, query: Inputs) -> Floats:
        return np.tile(self.mean, (len(query.bins), 1))  # [m, c]

    def coefficients(self, query: Inputs, rows: Rows) -> Floats:
        return np.tile(rows.weight / rows.weight.sum(), (len(query.bins), 1))  # [m, n]

    @classmethod
    def from_arrays(cls, arrays: dict[str, NDArray[Any]]) -> Self:
        return cls(**checked_arrays(cls, arrays))


@dataclass(frozen=True)
class Ridge:
    """Ridge regression on features, in closed form, its strength chosen by the leave-one-out error.

    f(z) = mean of y + (z - mean of z) A Σᵢ ωᵢ (zᵢ - mean of z)ᵀ yᵢ        A = (Zᵀ Ω Z + λI)⁻¹
    """

    STRENGTHS: ClassVar[NDArray[np.floating[Any]]] = 10.0 ** np.arange(-4, 6)

    centre: Floats  # [h]  weighted mean of the features
    inverse: Floats  # [h, h]  A
    solution: Floats  # [h, c]
    mean: Floats  # [c]
    error: Floats  # []  leave-one-out squared error

    @classmethod
    def fit(cls, features: NDArray[Any], value: Floats, weight: Floats) -> Self:
        """The best of `STRENGTHS` for features [n, h] and targets [n, c]."""
        total = weight.sum()
        centre, mean = weight @ features / total, weight @ value / total
        z, y = features - centre, value - mean
        weighted = z * weight[:, None]
        size, axes = np.linalg.eigh(weighted.T @ z)  # [h], [h, h]
        size = np.maximum(size, 0.0)
        products = axes.T @ (weighted.T @ y)  # [h, c]
        along = z.astype(np.float32) @ axes.astype(np.float32)  # [n, h]: exact enough to compare strengths
        damping = 1 / (size[:, None] + cls.STRENGTHS)  # [h, strengths]
        leverage = weight[:, None] * (1 / total + np.square(along) @ damping)  # [n, strengths]
        fitted = along @ (products[:, :, None] * damping[:, None]).reshape(len(size), -1)  # [n, c · strengths]
        residual = y[:, :, None] - fitted.reshape(*y.shape, -1)
        residual /= np.maximum(1 - leverage, 1e-3)[:, None]
        errors = weight @ np.square(residual).sum(axis=1) / total  # [strengths]
        best = int(np.argmin(errors))
        inverse = (axes * damping[:, best]) @ axes.T
        return cls(centre, inverse, inverse @ (axes @ products), mean, errors[best])

    def predict(self, features: NDArray[Any]) -> Floats:
        """Predictions [m, c] for features [m, h]."""
        result: Floats = self.mean + (features - self.centre) @ self.solution
        return result

    def coefficients(self, features: NDArray[Any], train: NDArray[Any], weight: Floats) -> Floats:
        """The weight of each training row [m, n]: features of queries [m, h] and of training rows [n, h]."""
        share: Floats = ((features - self.centre) @ self.inverse) @ ((train - self.centre) * weight[:, None]).T
        # Σᵢ ωᵢ (zᵢ - mean) = 0, so that the targets need not be centred.
        share += weight / weight.sum()
        return share

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {f"ridge.{field.name}": getattr(self, field.name) for field in dataclasses.fields(self)}

    @classmethod
    def from_arrays(cls, arrays: dict[str, NDArray[Any]]) -> Self:
        named = {name.removeprefix("ridge."): array for name, array in arrays.items() if name.startswith("ridge.")}
        return cls(**checked_arrays(cls, named))
