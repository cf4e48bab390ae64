"""Kernel ridge regression with a learned metric.

    f(x) = mean of y + Σⱼ k(x, zⱼ) aⱼ        k(x, z) = exp(-‖M(x - z)‖ / bandwidth)

The centres z are the training rows, or of many rows a random sample (Nyström). The metric comes from the gradients of
the fit before: M² ∝ the mean of ∇f ∇fᵀ, without any descent (Radhakrishnan et al. 2024; arXiv 2508.10053).
"""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from regard.estimators.tables.members.base import Floats, Inputs, Member, Ridge, Rows, Singles

_FACTORS = (0.3, 1.0, 3.0)
"""Bandwidths that are tried, in median distances."""
_TRIED = 4
"""Number of rows that metrics and bandwidths are tried on, for each centre."""
_JITTER = 1e-5
_GRADIENTS = 2000
"""Number of rows whose gradients make the metric."""


@dataclass(frozen=True)
class KernelRidge(Member):
    """The centres, the metric, and the ridge on their kernels."""

    metric: Singles  # [p, p]  M / bandwidth
    centres: Singles  # [k, p]  rows, times the metric
    root: Floats  # [k, k]  Cholesky factor of the kernel of the centres
    ridge: Ridge

    @classmethod
    def fit(cls, rows: Rows, seed: int, centres: int, rounds: int) -> Self:
        """The best metric of some rounds, by the leave-one-out error on a sample of the rows."""
        random = np.random.default_rng(seed)
        chosen = random.permutation(len(rows.weight))[: _TRIED * centres]
        metric = cls._best_metric(rows.take(chosen), random, centres, rounds)
        return cls._at(rows, chosen[:centres], metric)

    @classmethod
    def _best_metric(cls, rows: Rows, random: np.random.Generator, centres: int, rounds: int) -> Singles:
        """The metric, divided by the bandwidth; the first rows are the centres."""
        x, chosen = rows.inputs.scaled, np.arange(min(centres, len(rows.weight)))
        metric = np.eye(x.shape[1], dtype=np.float32)
        best: KernelRidge | None = None
        factors: tuple[float, ...] = _FACTORS
        for step in range(rounds + 1):
            sample = x[random.permutation(len(x))[:1000]]
            median = float(np.median(_distance(sample @ metric, x[chosen] @ metric))) or 1.0
            tried = [(cls._at(rows, chosen, metric / (factor * median)), factor) for factor in factors]
            member, factor = min(tried, key=lambda one: float(one[0].ridge.error))
            if best is None or member.ridge.error < best.ridge.error:
                best = member
            factors = (factor,)
            if step < rounds:
                metric = member._next_metric(x[random.permutation(len(x))[:_GRADIENTS]])
        assert best is not None
        return best.metric

    @classmethod
    def _at(cls, rows: Rows, chosen: NDArray[np.intp], metric: Singles) -> Self:
        """The fit with a given metric."""
        metric = metric.astype(np.float32)
        points = rows.inputs.scaled @ metric
        centres = points[chosen]
        kernel = np.exp(-_distance(centres, centres))
        root = np.asarray(np.linalg.cholesky(kernel + _JITTER * np.eye(len(kernel))), np.float64)
        return cls(metric, centres, root, Ridge.fit(_features(points, centres, root), rows.value, rows.weight))

    def _next_metric(self, x: Singles) -> Singles:
        """The square root of the mean outer product of gradients, its largest eigenvalue 1."""
        points = x @ self.metric
        distance = _distance(points, self.centres)
        dual = solve_triangular(self.root, self.ridge.solution, lower=True, trans="T")  # [k, c]
        falling = np.where(distance > 1e-6, np.exp(-distance) / np.maximum(distance, 1e-6), 0.0)  # [n, k]
        outer = np.zeros((x.shape[1], x.shape[1]))
        for output in range(dual.shape[1]):
            pull = falling * dual[:, output]
            gradient = (pull @ self.centres - pull.sum(axis=1, keepdims=True) * points) @ self.metric.T  # [n, p]
            outer += gradient.T @ gradient
        size, axes = np.linalg.eigh(outer)
        size = np.maximum(size, 0.0)
        return ((axes * np.sqrt(size / max(size.max(), 1e-30))) @ axes.T).astype(np.float32)  # type: ignore[no-any-return]

    def predict(self, query: Inputs) -> Floats:
        return self.ridge.predict(self._features(query))

    def coefficients(self, query: Inputs, rows: Rows) -> Floats:
        return self.ridge.coefficients(self._features(query), self._features(rows.inputs), rows.weight)

    def _features(self, inputs: Inputs) -> Floats:
        return _features(inputs.scaled @ self.metric, self.centres, self.root)

    def arrays(self) -> dict[str, NDArray[Any]]:
        own: dict[str, NDArray[Any]] = {"metric": self.metric, "centres": self.centres, "root": self.root}
        return own | self.ridge.arrays()

    @classmethod
    def from_arrays(cls, arrays: dict[str, NDArray[Any]]) -> Self:
        return cls(arrays["metric"], arrays["centres"], arrays["root"], Ridge.from_arrays(arrays))


def _distance(a: Singles, b: Singles) -> Floats:
    """Euclidean distances [n, k]."""
    a, b = a.astype(np.float64), b.astype(np.float64)  # float32 would lose small distances
    distance: Floats = np.sqrt(
        np.maximum(np.square(a).sum(axis=1)[:, None] + np.square(b).sum(axis=1) - 2 * (a @ b.T), 0)
    )
    return distance


def _features(points: Singles, centres: Singles, root: Floats) -> Floats:
    """Features [n, k] whose inner products are the kernel, as far as the centres can tell."""
    kernel = np.exp(-_distance(points, centres))
    return solve_triangular(root, kernel.T, lower=True).T  # type: ignore[no-any-return]
