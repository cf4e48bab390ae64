"""Numba loops of `trees`: growing trees by histograms, finding leaves, and what each training row adds to a prediction.

A tree is stored level by level: the children of node j are 2j + 1 and 2j + 2. `feature[j]` is -1 for a leaf; a row goes
left if its bin is at most `cut[j]`. Residuals and values are `[…, c]`: all outputs share the trees.
"""

import math

import numpy as np
from numpy.typing import NDArray

from regard.compiled import compiled

Bins = NDArray[np.uint8]
Floats = NDArray[np.float64]
Ints = NDArray[np.int32]

BINS = 256
"""Number of bins of a column; bin 0 is for missing cells."""
LEAST = 3.0
"""Least weight of the rows in a leaf."""
RIDGE = 1.0
"""Weight that is added to a leaf's: it pulls the values of small leaves to 0."""


@compiled(nogil=True)
def _add(histogram: Floats, bins: Bins, columns: Ints, residual: Floats, weight: float) -> None:
    """Add one row to a node's histogram [columns, bins, c + 1]: weighted residuals, then the weight."""
    outputs = len(residual)
    for index in range(len(columns)):
        cell = histogram[index, bins[columns[index]]]
        for output in range(outputs):
            cell[output] += weight * residual[output]
        cell[outputs] += weight


@compiled(nogil=True)
def _best_split(histogram: Floats, columns: Ints) -> tuple[int, int, bool]:
    """The column (-1: none) and bin of the split that explains most, and whether its right side is the lighter one.

    Each side holds at least the weight `LEAST`.
    """
    outputs = histogram.shape[2] - 1
    total, left = np.zeros(outputs + 1), np.zeros(outputs + 1)
    for index in range(BINS):
        total += histogram[0, index]
    gain = 0.0
    for output in range(outputs):
        gain += total[output] ** 2 / (total[outputs] + RIDGE)
    best, column, cut, right_is_lighter = gain * (1 + 1e-9) + 1e-12, -1, 0, False
    for index in range(len(columns)):
        left[:] = 0
        for cell in range(BINS - 1):
            if histogram[index, cell, outputs] == 0:
                continue
            left += histogram[index, cell]
            right_weight = total[outputs] - left[outputs]
            if left[outputs] < LEAST:
                continue
            if right_weight < LEAST:
                break
            gain = 0.0
            for output in range(outputs):
                rest = total[output] - left[output]
                gain += left[output] ** 2 / (left[outputs] + RIDGE) + rest**2 / (right_weight + RIDGE)
            if gain > best:
                best, column, cut, right_is_lighter = gain, columns[index], cell, right_weight < left[outputs]
    return column, cut, right_is_lighter


@compiled(nogil=True)
def grow(
    bins: Bins,
    rows: Ints,
    columns: Ints,
    residual: Floats,
    weight: Floats,
    feature: Ints,
    cut: Ints,
) -> None:
    """Grow one tree from some rows and columns, level by level; writes `feature` and `cut`."""
    depth = int(math.log2(len(feature) + 1))
    outputs = residual.shape[1]
    feature[:] = -1
    node = np.zeros(len(rows), np.int32)  # index within the level; -1: the row has reached its leaf
    histograms = np.zeros((1, len(columns), BINS, outputs + 1))
    for row in rows:
        _add(histograms[0], bins[row], columns, residual[row], weight[row])
    for level in range(depth):
        width = 1 << level
        first = width - 1
        lighter = np.zeros(width, np.int32)  # of the two children: its histogram is summed, the other's is the rest
        for index in range(width):
            if level == 0 or feature[(first + index - 1) // 2] >= 0:
                column, edge, right = _best_split(histograms[index], columns)
                feature[first + index], cut[first + index], lighter[index] = column, edge, int(right)
        if level == depth - 1 or (feature[first : first + width] < 0).all():
            return
        children = np.zeros((2 * width, len(columns), BINS, outputs + 1))
        for position, row in enumerate(rows):
            index = node[position]
            if index < 0:
                continue
            column = feature[first + index]
            if column < 0:
                node[position] = -1
                continue
            side = int(bins[row, column] > cut[first + index])
            node[position] = 2 * index + side
            if side == lighter[index]:
                _add(children[2 * index + side], bins[row], columns, residual[row], weight[row])
        for index in range(width):
            if feature[first + index] >= 0:
                small = 2 * index + lighter[index]
                children[4 * index + 1 - small] = histograms[index] - children[small]
        histograms = children


@compiled(nogil=True)
def find_leaves(bins: Bins, feature: Ints, cut: Ints, leaf: Ints) -> None:
    """The leaf of each row, [n], written."""
    inner = len(feature)
    for row in range(len(bins)):
        node = 0
        while node < inner and feature[node] >= 0:
            node = 2 * node + 1 + int(bins[row, feature[node]] > cut[node])
        leaf[row] = node


@compiled(nogil=True)
def leaf_rates(leaf: Ints, weight: Floats, rate: float, rates: Floats) -> None:
    """The factor on a leaf's weighted sum of residuals that gives its value, [nodes], written."""
    rates[:] = 0
    for row in range(len(leaf)):
        rates[leaf[row]] += weight[row]
    for node in range(len(rates)):
        if rates[node] > 0:
            rates[node] = rate / (rates[node] + RIDGE)


@compiled(nogil=True)
def add_tree(leaf: Ints, weight: Floats, rates: Floats, residual: Floats, value: Floats) -> None:
    """The values of a tree's leaves, [nodes, c], written; the residuals become those after this tree."""
    value[:] = 0
    for row in range(len(leaf)):
        for output in range(residual.shape[1]):
            value[leaf[row], output] += rates[leaf[row]] * weight[row] * residual[row, output]
    for row in range(len(leaf)):
        for output in range(residual.shape[1]):
            residual[row, output] -= value[leaf[row], output]


@compiled(nogil=True)
def sum_leaves(bins: Bins, feature: Ints, cut: Ints, value: Floats, out: Floats) -> None:
    """Add the leaf values of all trees to `out` [m, c]."""
    leaf = np.zeros(len(bins), np.int32)
    for tree in range(len(feature)):
        find_leaves(bins, feature[tree], cut[tree], leaf)
        for row in range(len(bins)):
            for output in range(out.shape[1]):
                out[row, output] += value[tree, leaf[row], output]


@compiled(nogil=True)
def row_shares(
    leaf: NDArray[np.uint8], query_leaf: NDArray[np.uint8], weight: Floats, rates: Floats, share: Floats
) -> None:
    """What one unit of each row's first residual adds to the prediction of each query, [m, n], written.

    With r the residuals before a tree, S its smoother and s(x) the query's row of it, the tree adds s(x) r, and leaves
    r - S r. From the last tree to the first: share ← share - share S + s(x).

    leaf [trees, n], query_leaf [trees, m], rates [trees, nodes]
    """
    sums = np.zeros(rates.shape[1])
    for query in range(len(share)):
        one = share[query]
        one[:] = 0
        for tree in range(len(leaf) - 1, -1, -1):
            mine, leaves = query_leaf[tree, query], leaf[tree]
            sums[:] = 0
            for row in range(len(one)):
                sums[leaves[row]] += one[row]
            for node in range(len(sums)):
                sums[node] = rates[tree, node] * ((1.0 if node == mine else 0.0) - sums[node])
            for row in range(len(one)):
                one[row] += weight[row] * sums[leaves[row]]
