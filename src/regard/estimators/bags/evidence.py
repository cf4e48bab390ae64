"""Evidence of a bag: the instances behind a prediction, with their weights and contributions."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from regard.data.bags import Bags, Floats, Integers, Labels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

_BARS = 12
"""The largest number of instances in a plot."""


@dataclass(frozen=True)
class BagEvidence:
    """The largest weights of each bag in decreasing order, and the total weight of its other instances.

    The weights of a bag and its rest add up to 1. If a bag has fewer than `top` instances: index -1, weight 0. A
    contribution is what an instance adds to an output: the contributions of all instances of a bag add up to its
    prediction, or to the logit of a class, less the constant. With two classes there is one logit, that of the second;
    contributions to the first are the negatives.

    >>> import numpy as np, regard
    >>> bags, y = np.random.default_rng(0).normal(size=(40, 4, 2)), np.arange(40.0)
    >>> model = regard.QuadraticRegressor().fit(bags, y)
    >>> evidence = model.evidence(bags[:3], top=2)
    >>> evidence.index.shape, evidence.contribution.shape
    ((3, 2), (3, 2, 1))
    >>> bool(np.allclose(evidence.weight.sum(axis=1) + evidence.rest, 1))
    True
    """

    index: Integers  # [bags, top]  which instances of the bag, from 0
    weight: Floats  # [bags, top]
    rest: Floats  # [bags]
    contribution: Floats  # [bags, top, classes], or [bags, top, 1] for a regression
    bags: Bags = field(repr=False)  # the bags of the predictions
    classes: Labels | None = None  # [classes]

    def __len__(self) -> int:
        return len(self.rest)

    @property
    def supported(self) -> Integers:
        """The index in `classes` of the class to which each instance contributes most, [bags, top]."""
        return np.asarray(self.contribution.argmax(axis=-1))

    def to_frame(self) -> "DataFrame":
        """A row for each bag and each of its top instances.

        bag, rank      the bag (its name, if it has one), and the rank of this instance in its evidence, from 1
        instance       the index of the instance in its bag, or the label of its row if the bags come from a frame
        weight, rest   its weight, and the total weight of the bag's instances that are not listed
        class          the class that the instance supports: the one to which it contributes most
        contribution   what it adds to the logit of that class, or to the prediction of a regression
        …              the features of the instance
        """
        import pandas as pd

        bag, rank = np.nonzero(self.index >= 0)
        index = self.index[bag, rank]
        row = self.bags.starts[bag] + index
        best = self.supported[bag, rank]
        columns: dict[str, Labels] = {
            "bag": bag if self.bags.names is None else self.bags.names[bag],
            "rank": rank + 1,
            "instance": index if self.bags.rows is None else self.bags.rows[row],
            "weight": self.weight[bag, rank],
            "rest": self.rest[bag],
        }
        if self.classes is not None:
            columns["class"] = self.classes[best]
        columns["contribution"] = self.contribution[bag, rank, best]
        features = self.bags.features or [f"x{number}" for number in range(self.bags.instances.shape[1])]
        for number, name in enumerate(features):
            columns[name if name not in columns else f"{name}_"] = self.bags.instances[row, number]
        return pd.DataFrame(columns)

    def plot(self, query: int | str = 0, axes: "Axes | None" = None) -> "Axes":
        """The evidence of one bag, by its index or name, as bars: its top instances, what they support, the rest."""
        from regard.plots import evidence_bars

        bag = self._bag_index(query)
        top = np.flatnonzero(self.index[bag] >= 0)[:_BARS]
        index, weight, best = self.index[bag][top], self.weight[bag][top], self.supported[bag][top]
        rest = max(0.0, 1.0 - float(weight.sum()))
        values = self.contribution[bag][top, best] if self.classes is None else [f"{self.classes[one]}" for one in best]
        labels = index if self.bags.rows is None else self.bags.rows[self.bags.starts[bag] + index]
        axes = evidence_bars([str(label) for label in labels], weight, rest, values, axes=axes, noun="instance")
        axes.set_xlabel("weight  →  " + ("contribution" if self.classes is None else "the class it supports"))
        axes.set_title(self.bags.describe(bag), loc="left")
        return axes

    def _bag_index(self, query: int | str) -> int:
        """The index of a bag from its index, also a negative one, or its name."""
        if not isinstance(query, str):
            return int(range(len(self))[query])
        names = [] if self.bags.names is None else list(self.bags.names)
        if query not in names:
            raise ValueError(f"query must be an index from 0 to {len(self) - 1} or the name of a bag, got {query!r}")
        return names.index(query)


def top_evidence(bags: Bags, weight: Floats, contribution: Floats, top: int, classes: Labels | None) -> BagEvidence:
    """The evidence of the top instances, from the weights [N] and contributions [N, outputs] of all instances."""
    bag, starts = bags.bag_index, bags.starts
    order = np.lexsort((-weight, bag))  # by bag, then by decreasing weight; ties stay in order
    rank = np.arange(len(order)) - starts[bag]
    order, rank, bag = order[rank < top], rank[rank < top], bag[rank < top]
    if classes is not None and contribution.shape[1] == 1:
        contribution = np.hstack([-contribution, contribution])  # [N, 1] → [N, 2]
    index = np.full((len(bags), top), -1)
    weights, contributions = np.zeros(index.shape), np.zeros((*index.shape, contribution.shape[1]))
    index[bag, rank] = order - starts[bag]
    weights[bag, rank], contributions[bag, rank] = weight[order], contribution[order]
    rest = 1.0 - weights.sum(axis=1)
    return BagEvidence(index, weights, np.where(rest < 1e-12, 0.0, rest), contributions, bags, classes)
