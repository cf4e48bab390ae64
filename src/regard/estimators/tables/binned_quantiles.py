"""Quantiles of weighted targets for many pairs: bins of the targets, whose weights are columns of values.

The targets are sorted and divided into bins of equal counts. The weights of all bins at all queries are one attention.
They say in which bin a quantile is. A bin in which a query has more than `_LARGEST_MASS` of its weight is divided
again, for those queries, among the training rows of the bin. In the last bin F is interpolated over the ranks of the
targets, by rational quadratics, which rise and have an inverse (Gregory and Delbourgo 1982).

So a quantile is a training target, and F there differs from the level by less than `_LARGEST_MASS`, and typically by
`1e-3`; F is exact between targets that are repeated so often that they have bins of their own.
"""

from dataclasses import dataclass, replace

import numpy as np

from regard.data.columns import Floats
from regard.engines.job import spans
from regard.estimators.tables.evidence import row_weights
from regard.estimators.tables.smoother import Indices, Smoother
from regard.progress import ProgressBar

_BINS, _SUB_BINS = 31, 4
"""Bins of all targets, and of a bin that is divided again."""
_LARGEST_MASS = 0.06
"""Largest weight of a query in a bin that is interpolated, unless all targets in it are equal."""
_TOLERANCE = 1e-3
"""Tolerance of the weights of bins, in standard deviations: some 1e-4."""
_COLUMNS = 15
"""Columns of values at a time; with the weight they are an even number, which `gauss` transforms in pairs."""
_EXACT_PAIRS = 2**22
"""Number of pairs of queries and targets in a bin up to which all weights are computed."""
_QUERIES = 2**16
"""Queries at a time whose quantiles are interpolated."""


@dataclass
class _Search:
    """Targets in ascending order, with the rows they belong to, and the queries."""

    smoother: Smoother
    value: Floats  # [n], ascending
    query: Floats  # [m, d]
    bar: ProgressBar
    done: float = 0.0

    def fill(self, found: Floats, rows: Indices, levels: Floats, mass: Floats, ranks: tuple[int, int]) -> None:
        """Set the quantiles of some queries that are among the targets of some ranks; other levels are NaN.

        levels   [rows, levels], of the distribution among these targets only
        mass     [rows], the weight of these targets among all
        """
        if len(rows) * (ranks[1] - ranks[0]) <= _EXACT_PAIRS:
            self._sort(found, rows, levels, ranks)
            return
        starts = _divide(self.value, *ranks, _BINS if ranks == (0, len(self.value)) else _SUB_BINS)
        weight = self._bin_weights(rows, starts)  # [rows, bins]
        reached = np.cumsum(weight, axis=1)
        index = _bin_of(levels, reached)
        whole = self.value[starts[1:] - 1] == self.value[starts[:-1]]  # bins of one value
        for number in range(weight.shape[1]):
            inside = index == number  # [rows, levels]
            some = inside.any(axis=1)
            if whole[number]:
                found[rows[some]] = np.where(inside[some], self.value[starts[number]], found[rows[some]])
                index[inside] = -1
                continue
            some &= mass * weight[:, number] > _LARGEST_MASS
            if some.any():
                below = reached[some, number] - weight[some, number]
                inner = np.where(inside[some], (levels[some] - below[:, None]) / weight[some, number, None], np.nan)
                part = (int(starts[number]), int(starts[number + 1]))
                self.fill(found, rows[some], inner, mass[some] * weight[some, number], part)
                index[some] = np.where(inside[some], -1, index[some])
        for block in spans(len(rows), _QUERIES):
            self._interpolate(found, rows[block], levels[block], index[block], weight[block], starts)

    def _part(self, keys: slice) -> Smoother:
        """The smoother of some of the rows."""
        whole = self.smoother
        weight = None if whole.weight is None else whole.weight[keys]
        return replace(whole, rows=whole.rows[keys], value=whole.value[keys], weight=weight)

    def _sort(self, found: Floats, rows: Indices, levels: Floats, ranks: tuple[int, int]) -> None:
        """`fill` by all weights, if there are few."""
        number = 0
        for weight in row_weights(self._part(slice(*ranks)), self.query[rows]):
            for sums in np.cumsum(weight, axis=1):
                wanted = np.flatnonzero(levels[number] >= 0)  # NaN is not
                index = np.searchsorted(sums, levels[number, wanted] * sums[-1] * (1 - 1e-12))
                found[rows[number], wanted] = self.value[ranks[0] + np.minimum(index, len(sums) - 1)]
                number += 1

    def _bin_weights(self, rows: Indices, starts: Indices) -> Floats:
        """The weights of bins at some queries, among the targets in these bins, [rows, bins]."""
        keys = slice(starts[0], starts[-1])
        number = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        weight, part, query = np.empty((len(rows), len(starts) - 1)), self._part(keys), self.query[rows]
        for columns in spans(len(starts) - 2, _COLUMNS):
            value = (number[:, None] == np.arange(columns.start, columns.stop)).astype(float)
            weight[:, columns] = replace(part, value=value).predict(query).mean
            self.bar.update()
        np.clip(weight, 0.0, 1.0, out=weight)
        weight[:, -1] = np.maximum(0.0, 1 - weight[:, :-1].sum(axis=1))
        weight /= weight.sum(axis=1, keepdims=True)
        return weight

    def _interpolate(
        self, found: Floats, rows: Indices, levels: Floats, index: Indices, weight: Floats, starts: Indices
    ) -> None:
        """Set the quantiles in bins that are not divided; index -1 is done already."""
        row, column = np.nonzero(index >= 0)
        number = index[row, column]
        width = np.diff(starts)
        slope = weight / width  # per rank
        height, steep = weight[row, number], slope[row, number]
        last = weight.shape[1] - 1
        left = _harmonic(steep, slope[row, np.maximum(number - 1, 0)])
        right = _harmonic(steep, slope[row, np.minimum(number + 1, last)])
        rise = levels[row, column] - (np.cumsum(weight, axis=1)[row, number] - height)
        # s, d0 and d1 in units of the bin: 1, left / steep, right / steep
        with np.errstate(divide="ignore", invalid="ignore"):
            rise, left, right = (
                np.clip(np.nan_to_num(x), 0.0, most)
                for x, most in ((rise / height, 1.0), (left / steep, np.inf), (right / steep, np.inf))
            )
        bend = rise * (left + right - 2)
        b = left - bend
        root = np.sqrt(np.maximum(b**2 + 4 * (1 - left + bend) * rise, 0.0))
        with np.errstate(divide="ignore", invalid="ignore"):
            part = np.clip(np.nan_to_num(2 * rise / (b + root)), 0.0, 1.0)  # of the bin's width
        rank = starts[number] + np.minimum((part * width[number]).astype(int), width[number] - 1)
        found[rows[row], column] = self.value[rank]


def _bin_of(levels: Floats, reached: Floats) -> Indices:
    """The first bin in which the weight reaches each level; -1 for NaN. levels [m, levels], reached [m, bins]."""
    index = np.zeros(levels.shape, dtype=np.intp)
    for bin_ in range(reached.shape[1] - 1):
        index += levels > reached[:, bin_, None] * (1 + 1e-12)
    index[np.isnan(levels)] = -1
    return index


def _harmonic(a: Floats, b: Floats) -> Floats:
    """The harmonic mean, 0 if one is 0."""
    total = a + b
    mean: Floats = 2 * a * b / np.where(total > 0, total, 1.0)
    return mean


def _divide(value: Floats, begin: int, end: int, count: int) -> Indices:
    """Where bins of the values of ranks `begin` to `end` start, and the end; equal values are in one bin.

    A value that fills more than one bin has one of its own.
    """
    some = value[begin:end]
    edge, times = np.unique(some[np.arange(1, count) * len(some) // count], return_counts=True)
    starts = np.concatenate([np.searchsorted(some, edge), np.searchsorted(some, edge[times > 1], "right")])
    return np.concatenate([[0], np.unique(starts[(starts > 0) & (starts < len(some))]), [len(some)]]) + begin


def binned_quantiles(smoother: Smoother, value: Floats, query: Floats, levels: Floats, bar: ProgressBar) -> Floats:
    """The quantiles of the values [n] under the weights of each query, [m, levels]."""
    order = np.argsort(value, kind="stable")
    weight = None if smoother.weight is None else smoother.weight[order]
    coarse = replace(smoother, rows=smoother.rows[order], weight=weight, tolerance=max(_TOLERANCE, smoother.tolerance))
    search = _Search(coarse, value[order], query, bar)
    found = np.empty((len(query), len(levels)))
    rows, targets = np.arange(len(query)), np.broadcast_to(levels, found.shape)
    search.fill(found, rows, targets, np.ones(len(query)), (0, len(value)))
    return found
