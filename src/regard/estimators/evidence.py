"""Evidence: which training rows a prediction was made from, and with what weight."""

import operator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from regard.checks import is_count

WHOLE_LIMIT = 2 * 2**30
"""Bytes that all weights together may take."""

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame


@dataclass(frozen=True)
class Evidence:
    """The largest weights of each query, falling, and the weight of all other rows.

    The weights of a query and its rest add up to 1. Those of a local linear fit may be negative, and are
    sorted by size. Where a query sees fewer rows than were asked for: index -1, weight 0.

    >>> import regard
    >>> model = regard.NadarayaWatson(bandwidth=0.5).fit([[0.0], [1.0], [2.0]], [0.0, 1.0, 4.0])
    >>> found = model.evidence([[0.9]], top=2)
    >>> found.index.tolist(), found.weight.round(2).tolist(), found.rest.round(2).tolist()
    ([[1, 0]], [[0.77, 0.16]], [0.07])
    """

    index: Any  # [queries, top]  which training rows
    weight: Any  # [queries, top]
    rest: Any  # [queries]
    table: dict[str, Any] = field(default_factory=dict, repr=False)  # columns of the training rows, by name
    labels: Any = field(default=None, repr=False)  # names of the training rows, where they have any
    query_labels: Any = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.rest)

    def to_frame(self) -> "DataFrame":
        """A row for each query and each training row it looked at.

        query, rank    which query, and the place of this row in its evidence, from 1
        row, weight    which training row (its label, where the training frame had an index), and its weight
        rest           the weight of all rows that are not shown
        …              the training row itself: its target and its features
        """
        import pandas as pd

        seen = self.index >= 0
        query, place = np.nonzero(seen)
        index = self.index[seen]
        names = {
            "query": query if self.query_labels is None else np.asarray(self.query_labels)[query],
            "rank": place + 1,
            "row": index if self.labels is None else np.asarray(self.labels)[index],
            "weight": self.weight[seen],
            "rest": self.rest[query],
        }
        for name, column in self.table.items():
            while name in names:
                name = f"{name}_"
            names[name] = column[index]
        return pd.DataFrame(names)

    def plot(self, query: int = 0, axes: "Axes | None" = None) -> "Axes":
        """The evidence of one query as bars, with the rest."""
        from regard.plots import evidence_bars

        seen = self.index[query] >= 0
        index = self.index[query][seen]
        labels = index if self.labels is None else np.asarray(self.labels)[index]
        name, target = next(iter(self.table.items()), ("", None))
        values = None if target is None else target[index]
        axes = evidence_bars([str(x) for x in labels], self.weight[query][seen], self.rest[query], values, axes=axes)
        if values is not None:
            axes.set_xlabel(f"weight  →  the row's {name}")
        return axes


def checked_top(top: Any, most: int, of: str) -> int:
    """How many weights are asked for, of `most` that there are."""
    if top is not None and not is_count(top):
        raise ValueError(f"top must be a positive whole number, or None for all {of}, got {top!r}")
    return most if top is None else min(operator.index(top), most)


def check_room(queries: int, wide: int, of: str, numbers: int = 2) -> None:
    """Weights [queries, wide], each with its index and what else there is to it, must not fill the memory."""
    size = numbers * 8 * queries * wide
    if size > WHOLE_LIMIT:
        raise ValueError(
            f"{wide:,} weights of each of {queries:,} {of} would take {size / 2**30:.1f} GiB, above the limit"
            f" of 2 GiB: ask for top=8, or for fewer {of} at a time"
        )


def labels_of(X: Any) -> Any:  # noqa: N803
    """The names of a frame's rows, if they are more than their numbers from 0."""
    index = getattr(X, "index", None)
    if index is None or callable(index):
        return None
    labels = np.asarray(index)
    if not numeric(labels):  # dates and several levels by their names, which a file can hold
        labels = np.array([x if isinstance(x, str | int | float) else str(x) for x in index], dtype=object)
    return None if numeric(labels) and np.array_equal(labels, np.arange(len(labels))) else labels


def numeric(labels: Any) -> bool:
    """Whether labels can be kept as an array of numbers."""
    return labels.dtype.kind in "iuf"
