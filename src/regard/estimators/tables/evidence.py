"""Evidence of a kernel regression: the training rows behind each prediction, and their weights."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.spatial import KDTree

from regard.data.columns import Floats
from regard.engines.kernel_sums.problem import log_kernel
from regard.estimators.tables.smoother import Indices, Smoother, fit_lines
from regard.kernels import KERNELS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

TREE_PAIRS = 10**7
"""Number of pairs from which a k-d tree finds the largest weights."""
_SHOWN = 10
"""Number of queries that a notebook shows."""
Labels = NDArray[np.generic]


@dataclass(frozen=True, repr=False)
class Evidence:
    """The largest weights of each query in descending order, and the sum of all others.

    The weights of a query and its rest add up to 1. Those of a local linear fit may be negative, and are
    sorted by absolute value. If a query sees fewer than `top` rows: index -1, weight 0.

    prediction       Σ weight · target, of all rows; of classes, their probabilities
    rest_target      the weighted mean target of the rest
    effective_rows   (Σ |weight|)² / Σ weight², as if so many rows had equal weight; None if a tree found the rows

    >>> import regard
    >>> model = regard.NadarayaWatson(bandwidth=0.5).fit([[0.0], [1.0], [2.0]], [0.0, 1.0, 4.0])
    >>> evidence = model.evidence([[0.9]], top=2)
    >>> evidence.index.tolist(), evidence.weight.round(2).tolist(), evidence.rest.round(2).tolist()
    ([[1, 0]], [[0.77, 0.16]], [0.07])
    """

    index: Indices  # [queries, top]  training rows
    weight: Floats  # [queries, top]
    rest: Floats  # [queries]
    table: dict[str, Labels] = field(default_factory=dict, repr=False)  # columns of the training rows, by name
    labels: Labels | None = field(default=None, repr=False)  # names of the training rows, if they have any
    query_labels: Labels | None = field(default=None, repr=False)
    prediction: Floats | None = field(default=None, repr=False)  # [queries, c]
    effective_rows: Floats | None = field(default=None, repr=False)  # [queries]  (Σ |weight|)² / Σ weight²
    classes: Labels | None = field(default=None, repr=False)  # [c]  if the targets are classes

    def __len__(self) -> int:
        return len(self.rest)

    def __repr__(self) -> str:
        return f"Evidence({len(self)} queries, {self.index.shape[1]} rows each): .to_frame(), .plot(query)"

    def _repr_html_(self) -> str:
        """The frame of the first queries, for a notebook."""
        shown = min(len(self), _SHOWN)
        first = replace(self, index=self.index[:shown], weight=self.weight[:shown], rest=self.rest[:shown])
        return f"<p>{escape(repr(self))}</p>{first.to_frame()._repr_html_()}"

    @property
    def rest_target(self) -> Floats | None:
        """What the rest says: the weighted mean target of the rows that are not shown, [queries]; NaN without any.

        Of several targets the first. None for classes.
        """
        if self.prediction is None or self.classes is not None:
            return None
        target = np.asarray(next(iter(self.table.values())), dtype=float)
        shown = (self.weight * target[self.index]).sum(axis=1)
        some = np.abs(self.rest) > 1e-9
        return np.where(some, (self.prediction[:, 0] - shown) / np.where(some, self.rest, 1.0), np.nan)

    def to_frame(self) -> "DataFrame":
        """One line for each query and each training row in its evidence.

        query, rank    which query, and the rank of this row in its evidence, from 1
        row, weight    which training row (its label, if the training frame had an index), and its weight
        rest           the weight of all rows that are not shown
        …              the training row itself: its target and its features
        """
        import pandas as pd

        visible = self.index >= 0
        query, rank = np.nonzero(visible)
        index = self.index[visible]
        columns: dict[str, Labels] = {
            "query": query if self.query_labels is None else np.asarray(self.query_labels)[query],
            "rank": rank + 1,
            "row": index if self.labels is None else np.asarray(self.labels)[index],
            "weight": self.weight[visible],
            "rest": self.rest[query],
        }
        for name, column in self.table.items():
            while name in columns:
                name = f"{name}_"
            columns[name] = column[index]
        return pd.DataFrame(columns)

    def plot(self, query: int = 0, axes: "Axes | None" = None) -> "Axes":
        """The evidence of one query as bars, with the rest."""
        from regard.plots import evidence_bars

        if not -len(self) <= query < len(self):
            raise IndexError(f"query must be below {len(self)}, the number of queries in this evidence, got {query}")
        visible = self.index[query] >= 0
        index = self.index[query][visible]
        labels = index if self.labels is None else np.asarray(self.labels)[index]
        name, target = next(iter(self.table.items()), ("", None))
        values = None if target is None else target[index]
        axes = evidence_bars([str(x) for x in labels], self.weight[query][visible], self.rest[query], values, axes=axes)
        if values is not None:
            axes.set_xlabel(f"weight  →  the row's {name}")
        if self.prediction is not None:
            axes.set_title(self._title(query, name), loc="left", fontsize="medium", parse_math=False)
        return axes

    def _title(self, query: int, name: str) -> str:
        """What is predicted of one query, and what the rest says."""
        assert self.prediction is not None
        label = query if self.query_labels is None else self.query_labels[query]
        if self.classes is not None:
            best = int(self.prediction[query].argmax())
            return f"row {label}: {name} = {self.classes[best]} ({self.prediction[query, best]:.0%})"
        rest = np.nan if self.rest_target is None else self.rest_target[query]
        others = "" if np.isnan(rest) else f"; all others have {rest:.4g}"
        return f"row {label}: {name} = {self.prediction[query, 0]:.4g}{others}"


def top_rows(smoother: Smoother, query: Floats, top: int) -> Evidence:
    """The rows of the smoother with the largest weights, their weights, and the sum of all others."""
    by_distance = smoother.order == 0 and smoother.weight is None and not len(smoother.category_bandwidth)
    by_name = isinstance(smoother.kernel, str) and smoother.kernel in KERNELS
    if by_distance and by_name and len(query) * len(smoother.rows) >= TREE_PAIRS:
        return _top_rows_by_tree(smoother, query, top)
    return largest_rows(row_weights(smoother, query), top, smoother.value)


def row_weights(smoother: Smoother, query: Floats) -> Iterator[Floats]:
    """The weights of all rows for a block of queries at a time, [some, n]."""
    lines = _lines(smoother, query) if smoother.order == 1 else None
    for block, weight, log_weight in smoother.weight_blocks(query, width=1 if lines is None else 2):
        if lines is not None:  # the weights of a local linear fit add up to 1, some are negative
            tilt, shift = (each[block] for each in lines)
            weight *= shift[:, None] - tilt @ smoother.key.T
        empty = np.flatnonzero(log_weight == -math.inf)
        if len(empty):
            weight[empty] = smoother.nearest_weight(query[block][empty])
        yield weight


def largest_rows(weights: Iterable[Floats], top: int, value: Floats) -> Evidence:
    """The `top` largest weights by absolute value of blocks of weights [some, n], and the sum of all others.

    value   of the rows, [n, c]: what the weights predict
    """
    blocks = []
    for weight in weights:
        size = np.abs(weight)
        index = torch.topk(torch.as_tensor(size), top, dim=1).indices.numpy()
        # Equal weights in the order of their rows.
        index = np.take_along_axis(
            np.sort(index), np.argsort(-np.take_along_axis(size, np.sort(index), 1), kind="stable"), 1
        )
        largest = np.take_along_axis(weight, index, 1)
        rest = weight.sum(axis=1) - largest.sum(axis=1)
        effective = np.square(size.sum(axis=1)) / np.einsum("mn,mn->m", weight, weight)
        blocks.append((np.where(largest == 0, -1, index), largest, rest, weight @ value, effective))
    index, weight, rest, prediction, effective = (np.concatenate(part) for part in zip(*blocks, strict=True))
    rest = np.where(np.abs(rest) < 1e-12, 0.0, rest)
    return Evidence(index, weight, rest, prediction=prediction, effective_rows=effective)


def _top_rows_by_tree(smoother: Smoother, query: Floats, top: int) -> Evidence:
    """The same by a k-d tree: for many pairs, if the weight falls with the distance."""
    points = smoother.points(query, smoother.value)
    distance, index = KDTree(points.key).query(points.query, k=top, workers=-1)
    distance, index = distance.reshape(len(query), -1), index.reshape(len(query), -1)  # [m, top], also for top = 1
    mean, log_weight = smoother.predict(query)
    log_weight = log_weight[:, None]
    empty = log_weight == -math.inf
    score = log_kernel(points.kernel, distance**2)
    weight = np.where(empty, 0.0, np.exp(np.minimum(score - np.where(empty, 0.0, log_weight), 0.0)))
    tied = empty & (distance <= distance[:, :1] * (1 + 1e-12))
    weight = np.where(tied, 1 / np.maximum(1, tied.sum(axis=1, keepdims=True)), weight)
    return Evidence(np.where(weight > 0, index, -1), weight, np.maximum(0.0, 1 - weight.sum(axis=1)), prediction=mean)


def _lines(smoother: Smoother, query: Floats) -> tuple[Floats, Floats]:
    """Tilt [m, d] and shift [m] of local lines: a row has (shift - tilt · its coordinates) times its kernel weight."""
    lines = fit_lines(smoother.moments(query, smoother.value[:, :1]), smoother.ridge)
    mean = smoother.in_bandwidths(query) + lines.offset
    return lines.tilt, 1 + np.einsum("md,md->m", lines.tilt, mean)


def row_labels(X: object) -> Labels | None:  # noqa: N803
    """The names of a frame's rows, if they are more than their numbers from 0."""
    index = getattr(X, "index", None)
    if index is None or callable(index):
        return None
    labels: Labels = np.asarray(index)
    if not is_numeric(labels):  # dates and several levels by their names, which a file can hold
        labels = np.array([x if isinstance(x, str | int | float) else str(x) for x in index], dtype=object)
    return None if is_numeric(labels) and np.array_equal(labels, np.arange(len(labels))) else labels


def is_numeric(labels: Labels) -> bool:
    """Whether labels are integers or floats, which a file holds as an array."""
    return labels.dtype.kind in "iuf"


def check_no_words(y: ArrayLike, classifier: str) -> None:
    """Raise if the targets are words: those are classes, which `classifier` predicts."""
    flat: NDArray[Any] = np.asarray(y).ravel()
    if flat.dtype.kind not in "OUT":
        return
    try:
        flat.astype(float)
    except (TypeError, ValueError):
        words = [str(one) for one in flat if isinstance(one, str)]
        if words:
            raise ValueError(f"targets must be numbers, got {words[0]!r}: {classifier} predicts classes") from None
