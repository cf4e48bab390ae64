"""Quadratic forms over bags, and the two models that attention over bags is compared with.

    quadratic   ŷ = b + tr(XᵀX W) = b + Σᵢ xᵢᵀ W xᵢ, W [d, d] symmetric: d(d+1)/2 parameters
    flat        ŷ = b + wᵀ vec(X), w [k·d]: it identifies an instance by its position, so all bags must have one size,
                and their instances an order

Here X is [n, d] with instances as rows, so XᵀX is the XXᵀ of the source. A quadratic form is fitted in float64 as

    ridge    W = argmin Σ (y - ŷ)² + α‖W‖²_F, b free: linear in W, so in closed form
    pair     W = (uvᵀ + vuᵀ) / 2, linear attention: ŷ = b + Σᵢ (uᵀxᵢ)(vᵀxᵢ), by L-BFGS
    rank     W of rank r: the truncated ridge W, then L-BFGS

A pair is a W of rank 2: with p = √λ₊ e₊ and q = √-λ₋ e₋ of its positive and its negative eigenvalue,

    W = ppᵀ - qqᵀ = ½ ((p + q)(p - q)ᵀ + (p - q)(p + q)ᵀ),        so u = p + q and v = p - q

up to a swap, and a factor that multiplies one and divides the other. The eigenvalues are (u·v ± ‖u‖‖v‖) / 2: never of
one sign, and of equal size only if u and v are orthogonal. A symmetric W does not make u and v equal: they are equal
if λ₋ = 0.
"""

import math
import warnings
from collections.abc import Callable
from typing import ClassVar, Literal, Self

import numpy as np
from scipy.optimize import minimize
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge

from regard.data.bags import Bags, Floats, Labels
from regard.estimators.bags.base import ClassifierOverBags, OverBags, RegressorOverBags
from regard.estimators.common import all_or_nothing
from regard.estimators.settings import setting, with_settings

TABLE_LIMIT = 2**25
"""The largest number of entries in the table of products of all bags."""
KERNEL_BLOCK = 2**22
"""The largest number of entries in a block of the kernel between instances."""
_SMALLEST_EIGENVALUE = 1e-2
"""Smallest eigenvalue of a start, relative to the largest: if u equals v, their gradients are equal too."""


@with_settings
class QuadraticRegressor(RegressorOverBags):
    """Ridge regression on the products of features: ŷ = b + tr(XᵀX W), for a bag X [n, d].

    The full W is found in closed form, from the d(d+1)/2 products ("primal") if they are no more than the bags, else
    from the kernel ‖X Zᵀ‖²_F between bags ("dual"). A W of a smaller rank starts at the largest eigenvalues of the full
    one, and is fitted by L-BFGS. Scaling features changes the ridge, but not the model: `weight_` is in the units of
    the data.

    After `fit`: `weight_` [d, d], `intercept_`, `solver_`. Evidence: the contribution of an instance is xᵀWx, and its
    weight is its fraction of the bag's |contributions|.

    >>> import numpy as np
    >>> bags = np.random.default_rng(0).normal(size=(50, 4, 3))
    >>> y = np.square(bags[:, :, 0]).sum(axis=1)
    >>> model = QuadraticRegressor(alpha=1e-6).fit(bags, y)
    >>> model.solver_, np.abs(model.weight_[0]).round(3).tolist()
    ('primal', [1.0, 0.0, 0.0])
    """

    rank: int | None = setting("rank of W; by default W is full", default=None, kw_only=False)
    alpha: float = setting("ridge: alpha ‖W‖² is added to the sum of squared errors", default=1.0, above=0)
    standardise: bool = setting("divide features by their root mean square", default=True)
    _saved: ClassVar = {"weight": "weight_", "intercept": "intercept_", "primal": "primal_"}

    @all_or_nothing
    def fit(self, X: object, y: object) -> Self:  # noqa: N803
        """Learn from bags and one number for each."""
        bags, target = self._read_numbers(X, y, centre=False)
        if self.rank is not None and self.rank > self.n_features_in_:
            raise ValueError(f"rank must be at most {self.n_features_in_}, the number of features, got {self.rank}")
        scaled = self._scaled(bags)
        self.primal_ = _is_primal(bags)
        weight = ridge(scaled, target, self.alpha, self.primal_)
        if self.rank is not None:
            weight = fit_rank(scaled, target, weight, self.rank, self.alpha)
        spread = self.scale_.spread
        self.weight_ = weight / spread / spread[:, None]
        self._set_intercept(bags, target)
        return self

    @property
    def solver_(self) -> Literal["primal", "dual"]:
        """Which of the two solvers `fit` used."""
        return "primal" if self.primal_ else "dual"

    def _contributions(self, bags: Bags) -> Floats:
        return np.asarray(np.einsum("nd,nd->n", bags.instances @ self.weight_, bags.instances)[:, None])


class _FlatModel(OverBags):
    """A linear model of all features at all positions of a bag."""

    _saved: ClassVar = {"coef": "coef_", "intercept": "intercept_", "instances": "n_instances_in_"}

    def _flatten(self, bags: Bags) -> Floats:
        """vec(X) of each bag, [B, k·d]."""
        other = np.flatnonzero(bags.sizes != self.n_instances_in_)
        if len(other):
            index = int(other[0])
            raise ValueError(
                "a flat model identifies instances by their position, so all bags must have the size of the first in"
                f" training, {self.n_instances_in_} instances; {bags.describe(index)} has {bags.sizes[index]}"
            )
        return self._scaled(bags).instances.reshape(len(bags), -1)  # [B · k, d] → [B, k · d]

    def _fit_flat(self, bags: Bags, y: Labels, solver: LogisticRegression | Ridge) -> Self:
        """Fit one of scikit-learn's linear models."""
        self.n_instances_in_ = int(bags.sizes[0])
        solver.fit(self._flatten(bags), y)
        # [outputs, k · d], for scaled features, and [outputs]
        self.coef_, self.intercept_ = np.atleast_2d(solver.coef_), np.atleast_1d(solver.intercept_)
        return self

    def _contributions(self, bags: Bags) -> Floats:
        size = self.n_instances_in_
        features = self._flatten(bags).reshape(len(bags), size, -1)  # [B, k · d] → [B, k, d]
        coef = self.coef_.reshape(len(self.coef_), size, -1)  # [outputs, k · d] → [outputs, k, d]
        contribution = np.einsum("bkd,ckd->bkc", features, coef)
        return np.asarray(contribution.reshape(len(bags.instances), -1))  # [B, k, outputs] → [B · k, outputs]


@with_settings
class FlatClassifier(_FlatModel, ClassifierOverBags):
    """Logistic regression on vec(X), for bags of one size whose instances have an order.

    >>> import numpy as np
    >>> bags = np.random.default_rng(0).normal(size=(60, 4, 2))
    >>> label = np.where(bags[:, 0, 0] > 0, "first is up", "first is down")  # depends on the position
    >>> FlatClassifier().fit(bags, label).score(bags, label) > 0.9
    True
    """

    C: float = setting("inverse of LogisticRegression's penalty", default=1.0, above=0, kw_only=False)

    @all_or_nothing
    def fit(self, X: object, y: object) -> Self:  # noqa: N803
        """Learn from bags of one size and one class for each."""
        bags, index = self._read_classes(X, y)
        weight = dict(enumerate(self._class_weights(index)))
        return self._fit_flat(bags, index, LogisticRegression(C=self.C, class_weight=weight, max_iter=1000))


@with_settings
class FlatRegressor(_FlatModel, RegressorOverBags):
    """Ridge regression on vec(X), for bags of one size whose instances have an order.

    >>> import numpy as np
    >>> bags = np.random.default_rng(0).normal(size=(60, 4, 2))
    >>> FlatRegressor().fit(bags, bags[:, 3, 1]).score(bags, bags[:, 3, 1]) > 0.99
    True
    >>> FlatRegressor().fit(bags, bags.max(axis=(1, 2))).score(bags, bags.max(axis=(1, 2))) < 0.9
    True
    """

    alpha: float = setting("penalty, as in scikit-learn's Ridge", default=1.0, above=0, kw_only=False)

    @all_or_nothing
    def fit(self, X: object, y: object) -> Self:  # noqa: N803
        """Learn from bags of one size and one number for each."""
        bags, target = self._read_numbers(X, y)
        return self._fit_flat(bags, target, Ridge(alpha=self.alpha))


def products(bags: Bags) -> Floats:
    """XᵀX of each bag as a vector of its d(d+1)/2 different entries, [B, d(d+1)/2].

    Entries off the diagonal are multiplied by √2, so that inner products of vectors are those of the matrices.
    """
    row, column = np.triu_indices(bags.instances.shape[1])
    factor = np.where(row == column, 1.0, math.sqrt(2.0))
    table = np.empty((len(bags), len(row)))
    for index, bag in enumerate(bags):
        table[index] = (bag.T @ bag)[row, column] * factor
    return table


def gram(bags: Bags) -> Floats:
    """⟨XᵀX, ZᵀZ⟩ = ‖X Zᵀ‖²_F of each pair of bags, [B, B]: from products or from instances, whichever costs less."""
    total, size = bags.instances.shape
    entries = len(bags) * size * (size + 1) // 2
    if entries <= TABLE_LIMIT and total * size**2 + len(bags) * entries <= total**2 * size:
        table = products(bags)
        return table @ table.T
    values = np.empty((len(bags), len(bags)))
    limit = max(1, KERNEL_BLOCK // total)
    for block in bags.blocks(limit):
        some = bags[block]
        squares = np.square(some.instances @ bags.instances.T)  # [n, N]
        values[block] = bags.sums(some.sums(squares).T).T  # [n, N] → [b, N] → [N, b] → [B, b] → [b, B]
    return values


def _is_primal(bags: Bags) -> bool:
    """Whether the d(d+1)/2 products are no more than the bags."""
    size = bags.instances.shape[1]
    return bool(size * (size + 1) // 2 <= len(bags))


def ridge(bags: Bags, y: Floats, alpha: float | None, primal: bool | None = None) -> Floats:
    """W with the smallest squared error plus α‖W‖²_F, [d, d]; None: the alpha with the best leave-one-out error.

    W = Σ aᵦ XᵀX, a = (K + αI)⁻¹ y with the centred kernel K: Σ a = 0 because K 1 = 0 and Σ y = 0. The eigenvectors of K
    are those of the centred products, if these are fewer ("primal").
    """
    y = centred(y)
    if _is_primal(bags) if primal is None else primal:
        table = products(bags)
        vector, singular, _ = np.linalg.svd(table - table.mean(axis=0), full_matrices=False)
        value = singular**2
    else:
        matrix = gram(bags)
        matrix -= matrix.mean(axis=0)
        matrix -= matrix.mean(axis=1, keepdims=True)
        value, vector = np.linalg.eigh(matrix)
        value = np.maximum(value, 0.0)
    if alpha is None:
        alpha = _best_alpha(value, vector, y)
    coefficient = vector @ (vector.T @ y / (value + alpha))
    weight = bags.instances.T @ (bags.instances * coefficient[bags.bag_index, None])
    return np.asarray((weight + weight.T) / 2)


def _best_alpha(value: Floats, vector: Floats, y: Floats) -> float:
    """The alpha with the smallest leave-one-out error, from squared singular values [r] and left vectors [bags, r]."""
    largest = float(value.max(initial=0.0))
    scale = largest if largest > 1e-200 else 1.0  # if all products are 0, any alpha is as good
    grid = scale * 10.0 ** np.linspace(-10, 2, 25)
    return float(min(grid, key=lambda alpha: np.mean(np.square(leave_one_out_errors(value, vector, y, alpha)))))


def leave_one_out_errors(value: Floats, vector: Floats, y: Floats, alpha: float) -> Floats:
    """The error of each bag's centred y if the bag is left out, [B]: (y - ŷ) / (1 - leverage)."""
    shrinkage = value / (value + alpha)
    error = y - vector @ (shrinkage * (vector.T @ y))
    return np.asarray(error / np.maximum(1 - 1 / len(y) - np.square(vector) @ shrinkage, 1e-12))


def pair_of(weight: Floats) -> tuple[Floats, Floats]:
    """The u and v whose (uvᵀ + vuᵀ)/2 has the largest positive and the most negative eigenvalue of W."""
    value, vector = np.linalg.eigh(weight)
    smallest = _SMALLEST_EIGENVALUE * (max(value[-1], -value[0]) or 1.0)
    positive = math.sqrt(max(value[-1], smallest)) * vector[:, -1]
    negative = math.sqrt(max(-value[0], smallest)) * vector[:, 0]
    return positive + negative, positive - negative


def fit_pair(bags: Bags, y: Floats, start: tuple[Floats, Floats], decay: float) -> tuple[Floats, Floats]:
    """u and v of ½ mean (y - ŷ)² + ½ decay (‖u‖² + ‖v‖²) by L-BFGS, with the best constant at each step."""
    x, bag, size = bags.instances, bags.bag_index, bags.instances.shape[1]

    def loss(both: Floats) -> tuple[float, Floats]:
        u, v = both[:size], both[size:]
        along_u, along_v = x @ u, x @ v
        error = centred(bags.sums(along_u * along_v) - y)
        each = error[bag] / len(y)
        gradient = np.concatenate([(each * along_v) @ x, (each * along_u) @ x]) + decay * both
        return 0.5 * float(np.mean(error**2)) + 0.5 * decay * float(both @ both), gradient

    both = _minimise(loss, np.concatenate(start))
    return both[:size], both[size:]


def fit_rank(bags: Bags, y: Floats, weight: Floats, rank: int, alpha: float) -> Floats:
    """W of a rank for Σ (y - ŷ)² + α‖W‖²_F by L-BFGS, started at the largest |eigenvalues| of a full W.

    W = A S Aᵀ with A [d, rank], and S the signs of those eigenvalues, which stay.
    """
    value, vector = np.linalg.eigh(weight)
    largest = np.argsort(-np.abs(value), kind="stable")[:rank]
    sign = np.sign(value[largest])
    x, bag, size = bags.instances, bags.bag_index, bags.instances.shape[1]
    unit = float(np.mean(np.square(centred(y)))) * len(y) or 1.0  # the tolerances of L-BFGS are for a loss near 1

    def loss(flat: Floats) -> tuple[float, Floats]:
        factor = flat.reshape(size, -1)  # [d · rank] → [d, rank]
        along, inner = x @ factor, sign[:, None] * (factor.T @ factor)  # W is never built: ‖W‖² = tr(inner²)
        error = centred(bags.sums(np.square(along) @ sign) - y)
        gradient = 2 * (x.T @ (along * error[bag, None]) + alpha * factor @ inner) * sign * 2
        return (float(error @ error) + alpha * float(np.sum(inner * inner.T))) / unit, gradient.ravel() / unit

    start = vector[:, largest] * np.sqrt(np.abs(value[largest]))
    factor = _minimise(loss, start.ravel()).reshape(size, -1)  # [d · rank] → [d, rank]
    return np.asarray((factor * sign) @ factor.T)


def _minimise(loss: Callable[[Floats], tuple[float, Floats]], start: Floats) -> Floats:
    """The minimum that L-BFGS finds from a start; warns if it reaches its limit of steps."""
    options = {"maxiter": 2000, "maxfun": 4000, "ftol": 1e-15, "gtol": 1e-10, "maxcor": 20}
    result = minimize(loss, start, jac=True, method="L-BFGS-B", options=options)
    if result.status == 1:
        warnings.warn(
            f"L-BFGS did not converge in {result.nit} steps: try a larger alpha or weight_decay, or a smaller rank",
            ConvergenceWarning,
            stacklevel=4,
        )
    return np.asarray(result.x)


def centred(values: Floats) -> Floats:
    """Values less their mean: the errors with the best constant."""
    return np.asarray(values - values.mean())
