"""Kernels of categorical columns, with a bandwidth λ: 0 sees the same category only, the largest λ all alike.

                        unordered, c categories                        ordered, d steps apart
    aitchison-aitken    1 - λ, or λ / (c - 1) for another              1 - λ, or ½ (1 - λ) λᵈ (Wang and van Ryzin 1981)
    li-racine           1, or λ for another                            λᵈ           (Li and Racine 2007, section 4.1)

A factor that all categories share does not change a prediction, so both are what another category subtracts from the
log weight: `per_change` for any, and `per_step` for each step (`regard.kernels.Mixed`). Unordered, they are the same
kernels with other λ; ordered, the first has all other categories at half the weight.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.data.columns import Floats

Booleans = NDArray[np.bool_]
MAX_PENALTY = 700.0
"""Upper bound on the log weight that a different category costs: e⁻⁷⁰⁰ is negligible, but not 0."""


class CategoryKernel(NamedTuple):
    """Functions of arrays with an entry for each categorical column: λ or penalty, whether ordered, categories."""

    name: str
    odds: Callable[
        [Floats, Floats], Floats
    ]  # (λ, categories) → weight of another unordered category, of that of its own
    width: Callable[[Floats, Floats], Floats]  # (that weight, categories) → λ
    half: float  # what any other category costs if they are ordered
    largest: Callable[[Floats], Floats]  # (categories) → the largest λ of an unordered column
    own: Callable[
        [Floats, Booleans, Floats], Floats
    ]  # (λ, ordered, categories) → weight of the own category in a density

    def penalty(self, width: Floats, ordered: Booleans, levels: Floats) -> tuple[Floats, Floats]:
        """What is subtracted from log weights, per step and per change."""
        width = np.clip(width, 0.0, 1.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            unordered = -np.log(self.odds(width, levels))
            per_step = np.where(ordered, -np.log(width), 0.0)
        per_change = np.where(ordered, self.half, np.nan_to_num(unordered, nan=MAX_PENALTY, posinf=MAX_PENALTY))
        return np.minimum(per_step, MAX_PENALTY), np.clip(per_change, 0.0, MAX_PENALTY)

    def bandwidth(self, penalty: Floats, ordered: Booleans, levels: Floats) -> Floats:
        """λ from what a step (ordered) or any change (unordered) subtracts: the inverse of `penalty`."""
        return np.where(ordered, np.exp(-penalty), self.width(np.exp(-penalty), levels))

    def bound(self, ordered: Booleans, levels: Floats) -> Floats:
        """The largest λ: there, an unordered column has no influence, and an ordered one the least it can have."""
        return np.where(ordered, 1.0, self.largest(levels))


_AITCHISON_AITKEN = CategoryKernel(
    "aitchison-aitken",
    odds=lambda width, levels: width / ((1 - width) * np.maximum(1, levels - 1)),
    width=lambda odds, levels: np.asarray((levels - 1) * odds / np.maximum((levels - 1) * odds + 1, 1.0)),
    half=math.log(2),
    largest=lambda levels: np.asarray((levels - 1) / np.maximum(1, levels)),
    own=lambda width, ordered, levels: 1 - width,
)
_LI_RACINE = CategoryKernel(
    "li-racine",
    odds=lambda width, levels: width,
    width=lambda odds, levels: odds,
    half=0.0,
    largest=lambda levels: np.ones(len(levels)),
    # Ordered: as if there were categories without end on both sides.
    own=lambda width, ordered, levels: np.where(ordered, (1 - width) / (1 + width), 1 / (1 + (levels - 1) * width)),
)
CATEGORY_KERNELS = {kernel.name: kernel for kernel in (_AITCHISON_AITKEN, _LI_RACINE)}
"""The kernels by name."""
