"""Bags with a known answer: u and v are planted, and instances are drawn as if nobody knew them.

    linear     y = tr(XᵀX vuᵀ) = Σᵢ (uᵀxᵢ)(vᵀxᵢ)                 linear attention, a quadratic form of rank 2
    softmax    y = uᵀXᵀ softmax(sharpness Xv / ‖v‖)               softmax attention, no quadratic form

with X [n, d], instances xᵢ ~ N(0, I), and u, v ~ N(0, I). What is seen is y / sd(y) + noise: noise is in standard
deviations of y.
"""

import math
from typing import Any, Literal, NamedTuple

import numpy as np

Array = Any
SHARPNESS = 3.0
"""How much larger the weight is, in logarithms, of an instance that is one standard deviation further along v."""


class Planted(NamedTuple):
    """Bags, what is seen of them, and what is behind it.

    >>> import numpy as np
    >>> found = planted(7, features=3, size=4, noise=0.0)
    >>> X = found.bags[0]
    >>> bool(np.isclose(found.y[0], found.u @ X.T @ X @ found.v))
    True
    """

    bags: Array  # [count, size, features]
    y: Array  # [count]
    u: Array  # [features], such that its formula gives y without the noise
    v: Array  # [features]


def planted(
    count: int,
    features: int = 20,
    size: int = 5,
    attention: Literal["linear", "softmax"] = "linear",
    noise: float = 0.1,
    seed: int = 0,
) -> Planted:
    """So many bags of one size, and one number for each.

    >>> import numpy as np
    >>> bags, y, u, v = planted(7, features=3, noise=0.0)
    >>> bags.shape, np.allclose(y, [np.trace(X.T @ X @ np.outer(v, u)) for X in bags])
    ((7, 5, 3), True)
    """
    if min(count, features, size) < 1:
        raise ValueError(f"count, features and size must be at least 1, got {count}, {features} and {size}")
    if attention not in ("linear", "softmax"):
        raise ValueError(f"attention must be 'linear' or 'softmax', got {attention!r}")
    if not (math.isfinite(noise) and noise >= 0):
        raise ValueError(f"noise must be a standard deviation, 0 or more, got {noise}")
    drawn = np.random.default_rng(seed)
    u, v = drawn.normal(size=(2, features))
    bags = drawn.normal(size=(count, size, features))
    along = bags @ v  # [count, size]
    if attention == "softmax":
        along = np.exp(SHARPNESS / np.linalg.norm(v) * (along - along.max(axis=1, keepdims=True)))
        along /= along.sum(axis=1, keepdims=True)
    y = (along * (bags @ u)).sum(axis=1)
    spread = float(y.std()) or 1.0
    return Planted(bags, y / spread + noise * drawn.normal(size=count), u / spread, v)
