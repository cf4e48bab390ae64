"""Boosted trees whose predictions are weighted sums of the training targets.

Each tree is grown on the residuals of those before it, by histograms of binned columns, for all outputs at once. With
the splits fixed, a leaf's value is a shrunk mean of residuals. So the prediction is linear in the targets, and the
weight of each training row in it is exact (`tree_loops.row_shares`).
"""

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from regard.estimators.tables.members.base import Floats, Inputs, Member, Rows, checked_arrays

DEPTH = 6
_ROW_FRACTION = 0.8
"""Fraction of the rows that a tree is grown from."""
_FEWEST_COLUMNS = 6
"""Number of columns that every tree looks at; of more than twice as many, half."""
_PRIOR = 10.0
"""Number of average rows that are added to a category before categories are put in order."""


@dataclass(frozen=True)
class BoostedTrees(Member):
    """Trees, and the mean that they start from."""

    order: NDArray[np.uint8]  # [d, bins]: the bins of a categorical column by their targets; others as they are
    feature: NDArray[np.int32]  # [trees, inner nodes]
    cut: NDArray[np.int32]  # [trees, inner nodes]
    value: Floats  # [trees, nodes, c]
    mean: Floats  # [c]
    rate: Floats  # []: the learning rate

    @classmethod
    def fit(cls, rows: Rows, seed: int, trees: int, rate: float) -> Self:
        """Grow trees on rows."""
        from regard.estimators.tables.members import tree_loops as loops

        weight, value = rows.weight, rows.value
        mean = np.average(value, axis=0, weights=weight)
        residual = value - mean
        order = _category_order(rows, residual)
        bins = _apply_order(rows.inputs.bins, order)
        random = np.random.default_rng(seed)
        count, width = bins.shape
        columns = min(width, max(_FEWEST_COLUMNS, math.ceil(width / 2)))
        feature = np.full((trees, 2**DEPTH - 1), -1, np.int32)
        cut = np.zeros_like(feature)
        leaf, rates = np.zeros(count, np.int32), np.zeros(2 ** (DEPTH + 1) - 1)
        values = np.zeros((trees, len(rates), value.shape[1]))
        for tree in range(trees):
            sample = np.flatnonzero(random.random(count) < _ROW_FRACTION).astype(np.int32)
            some = random.permutation(width)[:columns].astype(np.int32)
            loops.grow(bins, sample, some, residual, weight, feature[tree], cut[tree])
            loops.find_leaves(bins, feature[tree], cut[tree], leaf)
            loops.leaf_rates(leaf, weight, rate, rates)
            loops.add_tree(leaf, weight, rates, residual, values[tree])
        return cls(order, feature, cut, values, mean, np.array(rate))

    def predict(self, query: Inputs) -> Floats:
        from regard.estimators.tables.members import tree_loops as loops

        out = np.tile(self.mean, (len(query.bins), 1))  # [m, c]
        loops.sum_leaves(_apply_order(query.bins, self.order), self.feature, self.cut, self.value, out)
        return out

    def coefficients(self, query: Inputs, rows: Rows) -> Floats:
        from regard.estimators.tables.members import tree_loops as loops

        leaf, query_leaf = self._leaves(rows.inputs), self._leaves(query)
        rates = np.zeros((len(leaf), 2 ** (DEPTH + 1) - 1))
        for tree, one in enumerate(leaf):
            loops.leaf_rates(one.astype(np.int32), rows.weight, float(self.rate), rates[tree])
        share: Floats = np.zeros((len(query.bins), len(rows.weight)))
        loops.row_shares(leaf, query_leaf, rows.weight, rates, share)
        # Residuals are those from the mean, of which each row has its part.
        share += (1 - share.sum(axis=1, keepdims=True)) * (rows.weight / rows.weight.sum())
        return share

    def _leaves(self, inputs: Inputs) -> NDArray[np.uint8]:
        """The leaf of each row in each tree, [trees, n]."""
        from regard.estimators.tables.members import tree_loops as loops

        bins = _apply_order(inputs.bins, self.order)
        leaves, one = np.zeros((len(self.feature), len(bins)), np.uint8), np.zeros(len(bins), np.int32)
        for tree in range(len(self.feature)):
            loops.find_leaves(bins, self.feature[tree], self.cut[tree], one)
            leaves[tree] = one
        return leaves

    @classmethod
    def from_arrays(cls, arrays: dict[str, NDArray[np.generic]]) -> Self:
        return cls(**checked_arrays(cls, arrays))


def _category_order(rows: Rows, residual: Floats) -> NDArray[np.uint8]:
    """For each column the rank of each bin: categories by the mean of their targets, numbers as they are."""
    bins = rows.inputs.bins
    order = np.tile(np.arange(256, dtype=np.uint8), (bins.shape[1], 1))
    if not rows.inputs.categorical.any():
        return order
    weighted = residual * rows.weight[:, None]
    direction = np.linalg.svd(weighted.T @ residual)[0][:, 0] if residual.shape[1] > 1 else np.ones(1)
    target = weighted @ direction  # [n]: the direction in which the targets differ most
    for column in np.flatnonzero(rows.inputs.categorical):
        total = np.bincount(bins[:, column], weights=rows.weight, minlength=256)
        mean = np.bincount(bins[:, column], weights=target, minlength=256) / (total + _PRIOR)
        order[column, np.argsort(mean, kind="stable")] = np.arange(256)
    return order


def _apply_order(bins: NDArray[np.uint8], order: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The bins by their ranks, [n, d]."""
    return np.ascontiguousarray(order[np.arange(bins.shape[1]), bins])
