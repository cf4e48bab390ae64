"""Quadratic forms over bags: ŷ = b + tr(XᵀX W) = b + Σᵢ xᵢᵀ W xᵢ, with W [d, d] symmetric.

Here X is [n, d], instances as rows, so that XᵀX is the source's XXᵀ. Everything is a function of arrays in float64:

    ridge    W = argmin Σ (y - ŷ)² + α‖W‖²_F, b free: linear in W, so in closed form
    pair     W = (uvᵀ + vuᵀ) / 2, linear attention: ŷ = b + Σᵢ (uᵀxᵢ)(vᵀxᵢ), by L-BFGS
    rank     W of a rank r: the truncated ridge W, then by L-BFGS

A pair is a W of rank 2: with p = √λ₊ e₊ and q = √-λ₋ e₋ of its positive and its negative eigenvalue,

    W = ppᵀ - qqᵀ = ½ ((p + q)(p - q)ᵀ + (p - q)(p + q)ᵀ),        so u = p + q and v = p - q

up to a swap, and to a factor that one gets and the other gives. The eigenvalues are (u·v ± ‖u‖‖v‖) / 2: never of one
sign, and equal in size only where u and v are at right angles. That W is symmetric does not make u and v the same:
they are if λ₋ = 0.
"""

import math
import warnings
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy.optimize import minimize
from sklearn.exceptions import ConvergenceWarning

from regard.data.bags import Bags

Array = Any
Solver = Literal["primal", "dual"]
TABLE_LIMIT = 2**25
"""Numbers that the products of all bags may hold."""
KERNEL_BLOCK = 2**22
"""Numbers that a block of the kernel between instances may hold."""
APART = 1e-2
"""The least share of u and v in which they differ at the start: where they are equal, their gradients are too."""


class Quadratic(NamedTuple):
    """A fitted form."""

    weight: Array  # [d, d] symmetric
    constant: float
    solver: Solver


def quadratic(bags: Bags, weight: Array) -> Array:
    """tr(XᵀX W) of each bag, [B]."""
    return bags.sums(instance_forms(bags, weight))


def instance_forms(bags: Bags, weight: Array) -> Array:
    """xᵀ W x of each instance, [N]."""
    return np.einsum("nd,nd->n", bags.instances @ weight, bags.instances)


def products(bags: Bags) -> Array:
    """XᵀX of each bag as a vector of its d(d+1)/2 entries, [B, d(d+1)/2].

    Those off the diagonal stand for two, and are multiplied by √2: so inner products are those of the matrices.
    """
    row, column = np.triu_indices(bags.instances.shape[1])
    twice = np.where(row == column, 1.0, math.sqrt(2.0))
    made = np.empty((len(bags), len(row)))
    for place, bag in enumerate(bags):
        made[place] = (bag.T @ bag)[row, column] * twice
    return made


def unfolded(vector: Array, size: int) -> Array:
    """The symmetric matrix [d, d] of a vector as `products` makes them."""
    row, column = np.triu_indices(size)
    made = np.zeros((size, size))
    made[row, column] = vector / np.where(row == column, 1.0, math.sqrt(2.0))
    return made + np.triu(made, 1).T


def gram(bags: Bags) -> Array:
    """⟨XᵀX, ZᵀZ⟩ of each pair of bags, [B, B]: by the products, or by the instances where that costs less."""
    total, size = bags.instances.shape
    entries = len(bags) * size * (size + 1) // 2
    cheap = total * size**2 + len(bags) * entries <= total**2 * size
    if cheap and entries <= TABLE_LIMIT:
        table = products(bags)
        return table @ table.T
    return kernel(bags)


def kernel(bags: Bags) -> Array:
    """⟨XᵀX, ZᵀZ⟩ = ‖X Zᵀ‖²_F of each pair of bags, [B, B]: without any matrix [d, d]."""
    made = np.empty((len(bags), len(bags)))
    limit = max(1, KERNEL_BLOCK // len(bags.instances))
    for run in bags.runs(limit):
        some = bags[run]
        square = np.square(some.instances @ bags.instances.T)
        made[run] = bags.sums(some.sums(square).T).T
    return made


def solver_for(bags: Bags) -> Solver:
    """On the d(d+1)/2 products where they are no more than the bags, else on the kernel between bags."""
    size = bags.instances.shape[1]
    return "primal" if size * (size + 1) // 2 <= len(bags) else "dual"


def ridge(bags: Bags, y: Array, alpha: float | None, solver: Solver | None = None) -> Quadratic:
    """The form with the least squared error and α‖W‖²_F; without alpha, with what leave-one-out finds best."""
    solver = solver or solver_for(bags)
    weight = (primal if solver == "primal" else dual)(bags, y - y.mean(), alpha)
    return Quadratic(weight, float(np.mean(y - quadratic(bags, weight))), solver)


def primal(bags: Bags, y: Array, alpha: float | None) -> Array:
    """W by the singular values of the centred products."""
    table = products(bags)
    table -= table.mean(axis=0)
    left, value, right = np.linalg.svd(table, full_matrices=False)
    if alpha is None:
        alpha = best_alpha(value**2, left, y)
    return unfolded(right.T @ (left.T @ y * value / (value**2 + alpha)), bags.instances.shape[1])


def dual(bags: Bags, y: Array, alpha: float | None) -> Array:
    """W = Σ aᵦ XᵀX, a = (K + αI)⁻¹ y with the centred kernel K: Σ a = 0 because K 1 = 0 and Σ y = 0."""
    alike = gram(bags)
    alike -= alike.mean(axis=0)
    alike -= alike.mean(axis=1, keepdims=True)
    value, vector = np.linalg.eigh(alike)
    value = np.maximum(value, 0.0)
    if alpha is None:
        alpha = best_alpha(value, vector, y)
    part = vector @ (vector.T @ y / (value + alpha))
    weight = bags.instances.T @ (bags.instances * part[bags.bag, None])
    return (weight + weight.T) / 2


def best_alpha(value: Array, vector: Array, y: Array) -> float:
    """The ridge with the least leave-one-out error among 25 of all sizes.

    value, vector   squared singular values [r] of the centred products, and their left vectors [bags, r]
    """
    most = float(value.max(initial=0.0))
    largest = most if most > 1e-200 else 1.0  # where all is 0, any will do
    sizes = largest * 10.0 ** np.linspace(-10, 2, 25)
    return float(min(sizes, key=lambda alpha: np.mean(np.square(left_out(value, vector, y, alpha)))))


def left_out(value: Array, vector: Array, y: Array, alpha: float) -> Array:
    """What each bag's centred y is off by if it is left out, constant and all: (y - ŷ) / (1 - leverage)."""
    shrunk = value / (value + alpha)
    error = y - vector @ (shrunk * (vector.T @ y))
    return error / np.maximum(1 - 1 / len(y) - np.square(vector) @ shrunk, 1e-12)


def pair_of(weight: Array) -> tuple[Array, Array]:
    """The u and v whose (uvᵀ + vuᵀ)/2 has the largest positive and the most negative eigenvalue of W.

    >>> import numpy as np
    >>> u, v = pair_of(np.array([[0.0, 0.5], [0.5, 0.0]]))
    >>> np.round(np.abs(np.outer(u, v)).sum(), 12)
    np.float64(1.0)
    """
    value, vector = np.linalg.eigh(weight)
    least = APART * (max(value[-1], -value[0]) or 1.0)
    positive = math.sqrt(max(value[-1], least)) * vector[:, -1]
    negative = math.sqrt(max(-value[0], least)) * vector[:, 0]
    return positive + negative, positive - negative


def fit_pair(bags: Bags, y: Array, start: tuple[Array, Array], decay: float) -> tuple[Array, Array]:
    """u and v of ½ mean (y - ŷ)² + ½ decay (‖u‖² + ‖v‖²) by L-BFGS, with the best constant for each of them."""
    x, bag, size = bags.instances, bags.bag, bags.instances.shape[1]

    def loss(both: Array) -> tuple[float, Array]:
        u, v = both[:size], both[size:]
        along_u, along_v = x @ u, x @ v
        error = centred(bags.sums(along_u * along_v) - y)
        pull = error[bag] / len(y)
        gradient = np.concatenate([(pull * along_v) @ x, (pull * along_u) @ x]) + decay * both
        return 0.5 * float(np.mean(error**2)) + 0.5 * decay * float(both @ both), gradient

    found = descended(loss, np.concatenate(start))
    return found[:size], found[size:]


def fit_rank(bags: Bags, y: Array, weight: Array, rank: int, alpha: float) -> Array:
    """W of a rank, from the eigenvalues of a full W that are largest in size, for Σ (y - ŷ)² + α‖W‖²_F by L-BFGS.

    W = A S Aᵀ with A [d, rank], and S the signs of those eigenvalues, which stay.
    """
    value, vector = np.linalg.eigh(weight)
    kept = np.argsort(-np.abs(value), kind="stable")[:rank]
    sign = np.sign(value[kept])
    x, bag, size = bags.instances, bags.bag, bags.instances.shape[1]
    unit = float(np.mean(np.square(centred(y)))) * len(y) or 1.0  # steps are judged against a loss of 1

    def loss(flat: Array) -> tuple[float, Array]:
        factor = flat.reshape(size, -1)
        along, inner = x @ factor, sign[:, None] * (factor.T @ factor)  # W is never built: ‖W‖² = tr(inner²)
        error = centred(bags.sums(np.square(along) @ sign) - y)
        slope = 2 * (x.T @ (along * error[bag, None]) + alpha * factor @ inner) * sign * 2
        return (float(error @ error) + alpha * float(np.sum(inner * inner.T))) / unit, slope.ravel() / unit

    factor = descended(loss, (vector[:, kept] * np.sqrt(np.abs(value[kept]))).ravel()).reshape(size, -1)
    return (factor * sign) @ factor.T


def descended(loss: Callable[[Array], tuple[float, Array]], start: Array) -> Array:
    """Where L-BFGS comes to rest; where it has not within its steps, a warning says so."""
    options = {"maxiter": 2000, "maxfun": 4000, "ftol": 1e-15, "gtol": 1e-10, "maxcor": 20}
    found = minimize(loss, start, jac=True, method="L-BFGS-B", options=options)
    if found.status == 1:
        warnings.warn(
            f"the search stopped after {found.nit} steps and may not have come to rest: try a larger alpha, or"
            " weight_decay, or a smaller rank",
            ConvergenceWarning,
            stacklevel=4,
        )
    return found.x


def centred(values: Array) -> Array:
    """Values less their mean: what is left of an error with the best constant."""
    return values - values.mean()
