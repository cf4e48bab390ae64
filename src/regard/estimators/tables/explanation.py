"""What each column did to a prediction, and how far the evidence is in each column."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from regard.data.columns import Floats
from regard.estimators.tables.evidence import Evidence
from regard.progress import ProgressBar

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

_ORDERS = 8
"""Number of random orders of the columns, each with its own reference rows; every other is the reverse of the last."""


@dataclass(frozen=True)
class Explanation:
    """Effects of columns on predictions, and distances to the evidence.

    base + effects.sum(axis=1) is the prediction, for each output.

    >>> import numpy as np
    >>> from regard import AttentionRegressor
    >>> X = np.random.default_rng(0).normal(size=(100, 2))
    >>> explanation = AttentionRegressor(effort="low", random_state=0).fit(X, X[:, 0]).explain(X[:3])
    >>> explanation.effects.shape  # three rows, two columns, one target
    (3, 2, 1)
    """

    columns: list[str]  # [d]
    base: Floats  # [m, c]  mean prediction of reference rows
    effects: Floats  # [m, d, c]
    evidence: Evidence
    distance: Floats  # [m, top, d]  to the evidence rows: in normal scores; 1 for another category
    outputs: list[str]  # [c]  targets or classes

    def __len__(self) -> int:
        return len(self.base)

    def to_frame(self) -> "DataFrame":
        """One line per query and column: its effect on each output, and the mean distance of the evidence in it."""
        import pandas as pd

        queries, columns, outputs = self.effects.shape
        query, column = np.indices((queries, columns)).reshape(2, -1)
        weight = np.abs(self.evidence.weight)
        total = np.maximum(weight.sum(axis=1, keepdims=True), 1e-300)
        labels = self.evidence.query_labels
        table = {
            "query": query if labels is None else np.asarray(labels)[query],
            "column": np.array(self.columns, dtype=object)[column],
            **{
                "effect" if outputs == 1 else f"effect_{name}": self.effects[query, column, output]
                for output, name in enumerate(self.outputs)
            },
            "evidence_distance": np.einsum("mt,mtd->md", weight / total, self.distance)[query, column],
        }
        return pd.DataFrame(table)

    def plot(self, query: int = 0, output: int = 0, axes: "Axes | None" = None) -> "Axes":
        """The effects of the columns on one prediction as bars, the largest on top."""
        import matplotlib.pyplot as plt

        if not -len(self) <= query < len(self):
            raise IndexError(f"query must be below {len(self)}, got {query}")
        effects = self.effects[query, :, output]
        order = np.argsort(np.abs(effects), kind="stable")[-20:]
        if axes is None:
            _, axes = plt.subplots(figsize=(6, 1 + 0.3 * len(order)), layout="constrained")
        colours = np.where(effects[order] < 0, "C1", "C0").tolist()
        axes.barh([self.columns[index] for index in order], effects[order], color=colours)
        axes.axvline(0, color="0.3", linewidth=0.8)
        base = self.base[query, output]
        axes.set_xlabel(f"effect: from {base:.4g}, the average, to {base + effects.sum():.4g}")
        return axes


def column_effects(
    predict: Callable[[Floats], Floats],
    cells: Floats,
    reference: Floats,
    groups: Sequence[Sequence[int]],
    seed: int,
    progress: bool,
) -> tuple[Floats, Floats]:
    """The mean prediction of reference rows [m, c], and the effect of each group of columns [m, groups, c].

    Štrumbelj and Kononenko 2014: start at a reference row, exchange its columns for those of the query in a random
    order, and give each the change that it makes. So the effects add up exactly.
    """
    random = np.random.default_rng(seed)
    base: Floats | None = None
    effects: Floats | None = None
    order = np.arange(len(groups))
    with ProgressBar("explaining", _ORDERS, shown=progress) as bar:
        for step in range(_ORDERS):
            order = order[::-1] if step % 2 else random.permutation(len(groups))
            mixed = reference[random.integers(len(reference), size=len(cells))].copy()
            before = predict(mixed)
            if base is None or effects is None:
                base, effects = np.zeros_like(before), np.zeros((len(cells), len(groups), before.shape[1]))
            base += before / _ORDERS
            for group in order:
                columns = np.array(groups[int(group)])
                mixed[:, columns] = cells[:, columns]
                after = predict(mixed)
                effects[:, group] += (after - before) / _ORDERS
                before = after
            bar.update(done=step + 1)
    assert base is not None
    assert effects is not None
    return base, effects
