"""Evidence of a bag: which of its instances a prediction was made from, with what weight, and what for."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from regard.data.bags import Bags

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

Array = Any
BARS = 12
"""Instances that a picture has room for."""


@dataclass(frozen=True)
class BagEvidence:
    """The largest weights of each bag, falling, and the weight of all its other instances.

    The weights of a bag and its rest add up to 1. Where a bag has fewer instances than were asked for: index -1,
    weight 0. A contribution is what an instance adds to the output: those of all instances of a bag add up to the
    prediction, or to the class's logit, less the constant. With two classes there is one logit, of the second; to
    the first an instance adds the same with the other sign.

    >>> import numpy as np, regard
    >>> bags, y = np.random.default_rng(0).normal(size=(40, 4, 2)), np.arange(40.0)
    >>> model = regard.QuadraticRegressor().fit(bags, y)
    >>> found = model.evidence(bags[:3], top=2)
    >>> found.index.shape, found.contribution.shape, bool(np.allclose(found.weight.sum(axis=1) + found.rest, 1))
    ((3, 2), (3, 2, 1), True)
    """

    index: Any  # [bags, top]  which instances of the bag, from 0
    weight: Any  # [bags, top]
    rest: Any  # [bags]
    contribution: Any  # [bags, top, classes], or [bags, top, 1] for a regression
    bags: Bags = field(repr=False)  # what was asked about
    classes: Any = None  # [classes]

    def __len__(self) -> int:
        return len(self.rest)

    @property
    def speaks_for(self) -> Array:
        """The place in `classes` of the class that each instance adds most to, [bags, top]."""
        return self.contribution.argmax(axis=-1)

    def to_frame(self) -> "DataFrame":
        """A row for each bag and each of its instances that is shown.

        bag, rank      which bag (its name, where it has one), and the place of this instance in its evidence, from 1
        instance       which of the bag's instances, from 0; or the label of its row in the frame that was asked about
        weight, rest   its weight, and the weight of all instances of the bag that are not shown
        class          the class that the instance speaks for: the one it adds most to
        contribution   what it adds to the logit of that class, or to the prediction of a regression
        …              the instance itself: its features
        """
        import pandas as pd

        bag, place = np.nonzero(self.index >= 0)
        index = self.index[bag, place]
        row = self.bags.starts[bag] + index
        best = self.speaks_for[bag, place]
        names = {
            "bag": bag if self.bags.names is None else self.bags.names[bag],
            "rank": place + 1,
            "instance": index if self.bags.rows is None else self.bags.rows[row],
            "weight": self.weight[bag, place],
            "rest": self.rest[bag],
        }
        if self.classes is not None:
            names["class"] = self.classes[best]
        names["contribution"] = self.contribution[bag, place, best]
        features = self.bags.features or [f"x{number}" for number in range(self.bags.instances.shape[1])]
        taken = {
            (name if name not in names else f"{name}_"): self.bags.instances[row, number]
            for number, name in enumerate(features)
        }
        return pd.DataFrame({**names, **taken})

    def place_of(self, query: Any) -> int:
        """Which bag is meant: its place, counted from the last too, or its name."""
        names = [] if self.bags.names is None else list(self.bags.names)
        if not isinstance(query, str):
            return int(range(len(self))[query])
        if query not in names:
            raise ValueError(f"there is no bag named {query!r}: give its place, from 0 to {len(self) - 1}, or its name")
        return names.index(query)

    def plot(self, query: int | str = 0, axes: "Axes | None" = None) -> "Axes":
        """The evidence of one bag, by its place or name, as bars: its first instances, what they speak for, others."""
        from regard.plots import evidence_bars

        query = self.place_of(query)
        shown = np.flatnonzero(self.index[query] >= 0)[:BARS]
        index, weight = self.index[query][shown], self.weight[query][shown]
        rest = max(0.0, 1.0 - float(weight.sum()))
        best = self.speaks_for[query][shown]
        added = self.contribution[query][shown, best]
        speaks = added if self.classes is None else [f"{self.classes[place]}" for place in best]
        labels = index if self.bags.rows is None else self.bags.rows[self.bags.starts[query] + index]
        axes = evidence_bars([str(label) for label in labels], weight, rest, speaks, axes=axes, noun="instance")
        axes.set_xlabel("weight  →  " + ("what it adds" if self.classes is None else "the class it speaks for"))
        axes.set_title(self.bags.call(query), loc="left")
        return axes


def gathered(bags: Bags, weight: Array, contribution: Array, top: int, classes: Array | None) -> BagEvidence:
    """Evidence from the weights [N] and the contributions [N, outputs] of all instances."""
    bag, starts = bags.bag, bags.starts
    order = np.lexsort((-weight, bag))  # by bag, then falling; equal ones as they stand
    rank = np.arange(len(order)) - starts[bag]
    order, rank, bag = order[rank < top], rank[rank < top], bag[rank < top]
    if classes is not None and contribution.shape[1] == 1:
        contribution = np.hstack([-contribution, contribution])
    index = np.full((len(bags), top), -1)
    weights, parts = np.zeros(index.shape), np.zeros((*index.shape, contribution.shape[1]))
    index[bag, rank] = order - starts[bag]
    weights[bag, rank], parts[bag, rank] = weight[order], contribution[order]
    rest = 1.0 - weights.sum(axis=1)
    return BagEvidence(index, weights, np.where(rest < 1e-12, 0.0, rest), parts, bags, classes)
