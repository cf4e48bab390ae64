"""The sources' own case: a curve seen through noise.

    y = 2 sin x + x^0.8 + ε        ε ~ N(0, noise²), x uniform on [0, 5)

Average pooling is blind to it, kernel regression follows it, and a learned bandwidth follows it closely.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

Array = Any
END = 5.0


def wave(n: int = 50, noise: float = 0.5, seed: int = 0) -> tuple[Array, Array, Callable[[Array], Array]]:
    """Points x [n], sorted, what is seen there, y [n], and the curve without its noise.

    >>> x, y, truth = wave()
    >>> x.shape, y.shape, round(float(truth(1.0)), 3)
    ((50,), (50,), 2.683)
    """
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}")
    if not (math.isfinite(noise) and noise >= 0):
        raise ValueError(f"noise must be a standard deviation, 0 or more, got {noise}")
    drawn = np.random.default_rng(seed)
    x = np.sort(drawn.uniform(0, END, n))
    return x, true_wave(x) + noise * drawn.standard_normal(n), true_wave


def true_wave(x: Array) -> Array:
    """2 sin x + x^0.8, for x of 0 or more."""
    x = np.asarray(x, dtype=float)
    return 2 * np.sin(x) + x**0.8
