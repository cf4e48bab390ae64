"""Kernel regression for given rows and a given bandwidth: the function that the estimators tune and evaluate.

    order 0   f(x) = Σᵢ αᵢ(x) yᵢ                      attention to the training rows (Nadaraya 1964, Watson 1964)
    order 1   f(x) = intercept of the line that minimises Σᵢ αᵢ(x) (yᵢ - intercept - slopeᵀ(xᵢ - x))²    (Fan 1992)

Categorical columns multiply the kernel by λ-kernels (`category_kernels`).
`local_linear` is order 1 once more, in torch: it has gradients, and metric learning uses it.
"""

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.attend import Engine, attend, kernel_means, kernel_moments, plan_sums
from regard.data.columns import Floats
from regard.engines import dense
from regard.engines.job import Plan, scores_of, spans
from regard.engines.kernel_sums.problem import Means, Moments, Points
from regard.estimators.tables.category_kernels import CATEGORY_KERNELS, CategoryKernel
from regard.kernels import KERNELS, Gaussian, Kernel, Laplace
from regard.masks import Mask
from regard.scores import Score

Indices = NDArray[np.intp]

_RIDGE = 1e-8
"""Ridge on the slopes: along a direction in which the visible rows spread by less than √RIDGE bandwidths, the slope is
close to 0."""
LEARNING_RIDGE = 0.01
"""Ridge while a metric is learned, and after it: float32 needs a larger one."""
_NEAREST_SCALE = 1e8
"""Factor on the distances at which a Laplace kernel gives all weight to the nearest row."""
_MAX_DISTANCE = 1e100
"""Upper bound on coordinates in bandwidths: squares of larger ones would overflow."""
_DIFFERENCE_STEP = 1e-3
"""Step of numerical derivatives, in bandwidths: their error is about 1e-10, half of it from rounding."""
_NONE = np.empty((0, 0))


class _Estimate(NamedTuple):
    """Weighted averages at queries, or the intercepts of local lines; all but the first two are of lines only."""

    mean: Floats  # [m, c]
    log_weight: Floats  # [m]
    tilt: Floats = _NONE  # [m, d]: a row at offset u has (1 + tilt · (offset - u)) times its kernel weight
    offset: Floats = _NONE  # [m, d]: weighted mean of the rows' offsets from the query, in bandwidths
    variance: Floats = _NONE  # [m, c]: weighted variance about the line, if squares of the values were given


@dataclass(frozen=True)
class Smoother:
    """Training rows, a kernel, and its bandwidth.

    Rows and queries are [n, d + g]: d numeric columns in units of the scale, then the codes of g categorical ones.
    """

    rows: Floats  # [n, d + g]
    value: Floats  # [n, c]
    weight: Floats | None  # [n]
    kernel: str | Score
    bandwidth: Floats  # [d] or [d, d]
    category_bandwidth: Floats  # [g]: λ of each categorical column
    ordered: NDArray[np.bool_]  # [g]
    levels: Floats  # [g]: number of categories
    order: int = 0
    tolerance: float = 1e-6
    ridge: float = _RIDGE
    category_kernel: str = "aitchison-aitken"

    @functools.cached_property
    def inverse(self) -> Floats | None:
        """H⁻¹, if H is a matrix."""
        return np.linalg.inv(self.bandwidth).astype(np.float64, copy=False) if self.bandwidth.ndim == 2 else None

    @property
    def numeric(self) -> Floats:
        """The numeric columns of the rows, [n, d]."""
        return self.rows[:, : len(self.bandwidth)]

    @property
    def codes(self) -> Floats:
        """The codes of the categorical columns, [n, g]."""
        return self.rows[:, len(self.bandwidth) :]

    @property
    def categories(self) -> CategoryKernel:
        """The kernel of the categorical columns."""
        return CATEGORY_KERNELS[self.category_kernel]

    @property
    def kind(self) -> type[Kernel]:
        """The kernel by its name; the Gaussian for "constant", which has no features, and for a score."""
        return KERNELS.get(self.kernel, Gaussian) if isinstance(self.kernel, str) else Gaussian

    @functools.cached_property
    def key(self) -> Floats:
        """The numeric columns in bandwidths, [n, d]."""
        return self.in_bandwidths(self.rows)

    @functools.cached_property
    def _shrink(self) -> float:
        """Factor that makes a tiny bandwidth large enough for squared distances not to overflow; 1 for all others."""
        largest = float(np.max(np.abs(self._divide(self.numeric, 1.0)), initial=0.0))
        return max(1.0, min(largest, 1e300) / _MAX_DISTANCE)

    @functools.cached_property
    def penalty(self) -> tuple[Floats, Floats]:
        """What each categorical column subtracts from log weights, per step and per change: `regard.kernels.Mixed`."""
        return self.categories.penalty(self.category_bandwidth, self.ordered, self.levels)

    def in_bandwidths(self, rows: Floats) -> Floats:
        """The numeric columns in units of the bandwidth, [n, d]."""
        if self.kernel == "constant":
            return rows[:, :0]
        scaled = self._divide(rows[:, : len(self.bandwidth)], self._shrink)
        return np.clip(scaled, -_MAX_DISTANCE, _MAX_DISTANCE)  # a query may lie farther out than any row

    def _divide(self, numeric: Floats, factor: float) -> Floats:
        """Coordinates divided by the bandwidth times a factor."""
        with np.errstate(over="ignore"):
            if self.inverse is None:
                return numeric / (self.bandwidth * factor)
            return np.asarray(numeric @ (self.inverse.T / factor))

    def points(self, query: Floats, value: Floats, leave_one_out: Indices | None = None) -> Points:
        """The input of the kernel engines. `leave_one_out`, the row that each query must not see, is its `left_out`."""
        coded = self.kernel != "constant" and len(self.category_bandwidth) > 0
        features = len(self.bandwidth)
        return Points(
            self.in_bandwidths(query),
            self.key,
            value,
            self.kind,
            self.weight,
            leave_one_out,
            *((query[:, features:], self.rows[:, features:], *self.penalty) if coded else ()),
        )

    def plan(self, query: Floats) -> Plan:
        """The engine for these queries, and why."""
        if callable(self.kernel):
            return Plan("dense", "a score of your own is called on blocks of queries", dense.WHOLE_MATRIX)
        return plan_sums(self.points(query, self.value), self.tolerance, moments=self.order == 1)

    def means(self, query: Floats, value: Floats, leave_one_out: Indices | None = None) -> Means:
        """Weighted means of the values, and log weights."""
        if callable(self.kernel):
            return dense.mean_blocks(self.weight_blocks(query, leave_one_out), value)
        return kernel_means(self.points(query, value, leave_one_out), self.tolerance)

    def moments(self, query: Floats, value: Floats, leave_one_out: Indices | None = None) -> Moments:
        """Weighted means of the values, of the offsets in bandwidths, and of their products."""
        if callable(self.kernel):
            blocks = self.weight_blocks(query, leave_one_out)
            return dense.moment_blocks(blocks, self.in_bandwidths(query), self.key, value)
        return kernel_moments(self.points(query, value, leave_one_out), self.tolerance)

    def weight_blocks(
        self, query: Floats, leave_one_out: Indices | None = None, width: int | None = None
    ) -> Iterator[tuple[slice, Floats, Floats]]:
        """All weights, for a block of queries at a time: which queries, weights [some, n], log weights [some].

        The caller will hold `width` numbers for each pair; by default one for each feature.
        """
        features = max(1, len(self.bandwidth)) if width is None else width
        if not callable(self.kernel):
            yield from dense.weight_blocks(self.points(query, self.value, leave_one_out), features)
            return
        width = int(getattr(self.kernel, "width", features))
        key = self._score_input(self.rows)
        bias = 0.0 if self.weight is None else np.log(self.weight)
        for block in spans(len(query), max(1, dense.BLOCK // max(1, width * len(key)))):
            with torch.no_grad():
                score = scores_of(self.kernel, self._score_input(query[block]), key).double().numpy() + bias
            if np.isnan(score).any() or (score == np.inf).any():
                raise ValueError("a score must return numbers or -inf, got NaN or +inf from kernel=…")
            if leave_one_out is not None:
                left_out = leave_one_out[block]
                score[np.flatnonzero(left_out >= 0), left_out[left_out >= 0]] = -np.inf
            yield block, *dense.normalise(score)

    def estimate(
        self, query: Floats, value: Floats, leave_one_out: Indices | None = None, outputs: int | None = None
    ) -> _Estimate:
        """Averages or lines at the queries. A query that sees no row: mean 0, log weight -inf.

        With `outputs`, the values after the first `outputs` are their squares.
        """
        if self.order == 0:
            return _Estimate(*self.means(query, value, leave_one_out))
        return fit_lines(self.moments(query, value, leave_one_out), self.ridge, outputs)

    def predict(self, query: Floats, leave_one_out: Indices | None = None) -> Means:
        """Predictions [m, c] and log weights. A query that sees no row gets the nearest row's value, and -inf."""
        mean, log_weight = self.estimate(query, self.value, leave_one_out)[:2]
        empty = np.flatnonzero(log_weight == -math.inf)
        if len(empty):
            mean[empty] = self.nearest_value(query[empty], None if leave_one_out is None else leave_one_out[empty])
        return Means(mean, log_weight)

    def predict_with_deviation(self, query: Floats) -> tuple[Floats, Floats, Floats]:
        """Predictions, the weighted standard deviation of the values about them, and log weights."""
        centre = np.average(self.value, axis=0, weights=self.weight)
        value = self.value - centre
        outputs = value.shape[1]
        fit = self.estimate(query, np.hstack([value, value**2]), outputs=outputs)
        mean, log_weight = fit.mean[:, :outputs] + centre, fit.log_weight
        variance = fit.mean[:, outputs:] - fit.mean[:, :outputs] ** 2 if self.order == 0 else fit.variance
        empty = np.flatnonzero(log_weight == -math.inf)
        if len(empty):
            mean[empty], variance[empty] = self.nearest_value(query[empty]), 0.0
        return mean, np.sqrt(np.maximum(variance, 0.0)), log_weight

    def nearest_value(self, query: Floats, leave_one_out: Indices | None = None) -> Floats:
        """The value of the nearest row, or the mean of several; for a score of the user's own, the mean of all."""
        return kernel_means(self._nearest_points(query, leave_one_out), self.tolerance).mean

    def nearest_weight(self, query: Floats) -> Floats:
        """The weights behind `nearest_value`, [m, n]."""
        return np.concatenate([weight for _, weight, _ in dense.weight_blocks(self._nearest_points(query))])

    def _nearest_points(self, query: Floats, leave_one_out: Indices | None = None) -> Points:
        """Points so far apart, in bandwidths, that a kernel of unbounded support sees the nearest only."""
        if callable(self.kernel):  # its distances are unknown: all are equally near
            return replace(self, kernel="constant").points(query, self.value, leave_one_out)
        points = self.points(query, self.value, leave_one_out)
        return replace(
            points,
            kernel=Laplace,
            query=points.query * _NEAREST_SCALE,
            key=points.key * _NEAREST_SCALE,
            per_step=points.per_step * _NEAREST_SCALE,
            per_change=points.per_change * _NEAREST_SCALE,
        )

    def leverage(self, fit: _Estimate) -> Floats:
        """The weight of each training row in its own prediction (the diagonal of the hat matrix), [n].

        `fit` is the estimate at the training rows.
        """
        mass = 1.0 if self.weight is None else self.weight
        own = mass * np.exp(self._self_score() - fit.log_weight)
        if self.order == 0:
            return own
        factor: Floats = 1 + np.einsum("md,md->m", fit.tilt, fit.offset)
        return own * factor

    def _self_score(self) -> Floats | float:
        """The log weight of each training row for itself."""
        if not callable(self.kernel):
            return 0.0
        points = self._score_input(self.rows).unsqueeze(1)  # [n, 1, d + g]
        with torch.no_grad():
            score: Floats = self.kernel(points, points).double().numpy()
            return score[:, 0, 0]

    def _score_input(self, rows: Floats) -> Tensor:
        """Rows as a score of the user's own takes them, [n, d + g], in the dtype of its parameters, or float64."""
        parameters = self.kernel.parameters() if isinstance(self.kernel, torch.nn.Module) else iter(())
        dtype = next((x.dtype for x in parameters), torch.float64)
        coordinates = np.hstack([self.in_bandwidths(rows), rows[:, len(self.bandwidth) :]])
        return torch.as_tensor(coordinates, dtype=dtype)

    def log_density(self, log_weight: Floats) -> Floats:
        """The log of the kernel density estimate, from the log of the summed weights."""
        total = math.log(len(self.rows) if self.weight is None else self.weight.sum())
        if callable(self.kernel) or self.kernel == "constant":
            return log_weight - total
        vector = self.bandwidth.ndim == 1
        volume = float(np.log(self.bandwidth).sum() if vector else np.linalg.slogdet(self.bandwidth)[1])
        volume += self.kind.profile.log_mass(len(self.bandwidth))
        own = self.categories.own(np.clip(self.category_bandwidth, 0, 1), self.ordered, self.levels)
        same = float(np.log(np.maximum(own, 1e-300)).sum())
        return log_weight - total - volume + same


def fit_lines(moments: Moments, ridge: float, outputs: int | None = None) -> _Estimate:
    """Local lines from moments. With `outputs`, the values after the first `outputs` are their squares."""
    covariance = moments.square - moments.offset[:, :, None] * moments.offset[:, None, :]  # [m, d, d]
    shared = moments.product - moments.offset[:, :, None] * moments.mean[:, None, :]  # [m, d, c]
    root, axes = np.linalg.eigh(covariance)
    # If offsets are far larger than their spread, only rounding errors are left in the covariance.
    noise = 1e-12 * np.einsum("mdd->m", moments.square)[:, None]
    root = 1 / (np.maximum(root, 0.0) + ridge + noise)
    inverse = (axes * root[:, None, :]) @ axes.transpose(0, 2, 1)  # [m, d, d]: axes · diag(root) · axesᵀ
    slope = inverse @ shared  # [m, d, c]
    intercept = moments.mean - np.einsum("md,mdc->mc", moments.offset, slope)
    tilt = np.einsum("mde,me->md", inverse, moments.offset)
    variance = _NONE
    if outputs is not None:
        slope_, mean = slope[:, :, :outputs], moments.mean[:, :outputs]
        explained = 2 * np.einsum("mdc,mdc->mc", slope_, shared[:, :, :outputs])
        explained -= np.einsum("mdc,mde,mec->mc", slope_, covariance, slope_)
        variance = moments.mean[:, outputs:] - mean**2 - explained
    return _Estimate(intercept, moments.log_weight, tilt, moments.offset, variance)


def marginal_effects(smoother: Smoother, query: Floats) -> Floats:
    """The derivative of the prediction with respect to each numeric column, [m, d, c]."""
    if smoother.kernel == "constant":
        return np.zeros((len(query), len(smoother.bandwidth), smoother.value.shape[1]))
    if smoother.kernel == "gaussian" and smoother.order == 0:
        return _gaussian_derivative(smoother, query)
    return _numerical_derivative(smoother, query)


def _gaussian_derivative(smoother: Smoother, query: Floats) -> Floats:
    """The derivative of a Gaussian average: Cov(u, y) H⁻¹, where u is the offset in bandwidths."""
    moments = smoother.moments(query, smoother.value)
    shared = moments.product - moments.offset[:, :, None] * moments.mean[:, None, :]  # [m, d, c]
    if smoother.inverse is not None:
        derivative: Floats = np.einsum("ed,mec->mdc", smoother.inverse, shared)
        return derivative
    return shared / smoother.bandwidth[:, None]


def _numerical_derivative(smoother: Smoother, query: Floats) -> Floats:
    """The derivative of any prediction, by central differences of the fourth order."""
    exact = replace(smoother, tolerance=1e-14)
    width = smoother.bandwidth if smoother.bandwidth.ndim == 1 else np.abs(smoother.bandwidth).max(axis=1)
    derivative = np.empty((len(query), len(width), smoother.value.shape[1]))
    for column in range(len(width)):
        step = np.zeros(query.shape[1])
        step[column] = _DIFFERENCE_STEP * width[column]
        near, far = (
            exact.predict(query + times * step).mean - exact.predict(query - times * step).mean for times in (1, 2)
        )
        derivative[:, column] = (8 * near - far) / (12 * step[column])
    return derivative


def local_linear(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    score: Score,
    mask: Mask | None = None,
    ridge: float | Tensor = LEARNING_RIDGE,
    engine: str | Engine | None = None,
    codes: int = 0,
) -> Tensor:
    """Local linear regression as attention to more values: the intercept at each query, `[q, c]`. It has gradients.

    minimise  Σ weight · ‖value - intercept - slopeᵀ(key - query)‖²  +  ridge · ‖slope‖²

    The solution needs weighted means only: of the value, of the key, and of their products. So it is one call of
    `attend` with more columns in the value, and a small linear system for each query:

        (Cov(key) + ridge · 1) slope = Cov(key, value)
        intercept = Mean(value) - slopeᵀ(Mean(key) - query)

    query `[q, d]` and key `[k, d]` are in units of the bandwidth, value is `[k, c]`, the score a kernel of bandwidth 1.
    A query that may see no key gets the mean of all values. The last `codes` columns are categories: the score reads
    them, the line does not.

    >>> import torch, regard
    >>> x = torch.tensor([[0.0], [1.0], [2.0], [3.0]])
    >>> line = local_linear(torch.tensor([[5.0]]), x, 10 * x + 1, score=regard.scores.Gaussian(1.0), ridge=1e-9)
    >>> [round(intercept, 2) for intercept in line[0].tolist()]
    [51.0]
    """
    size, targets = key.shape[-1] - codes, value.shape[-1]
    # Products of numbers far from 0 would lose, in the covariance, the digits that the difference needs.
    centre, mean = key[:, :size].detach().mean(dim=0), value.detach().mean(dim=0)
    x, y = key[:, :size] - centre, value - mean
    first, second = torch.triu_indices(size, size, device=key.device)
    crossed = (x.unsqueeze(-1) * y.unsqueeze(-2)).flatten(-2)  # [k, d·c]
    columns = torch.cat([y, x, x[:, first] * x[:, second], crossed], dim=-1)  # [k, c + d + d(d+1)/2 + d·c]
    means = attend(query, key, columns, score=score, mask=mask, engine=engine)
    y, x, square, crossed = torch.split(means, [targets, size, len(first), size * targets], dim=-1)
    product = square.new_zeros(len(query), size, size)
    product[:, first, second] = square
    product[:, second, first] = square
    covariance = product - x.unsqueeze(-1) * x.unsqueeze(-2)  # [q, d, d]
    shared = crossed.reshape(-1, size, targets) - x.unsqueeze(-1) * y.unsqueeze(-2)  # [q, d, c]
    slope = torch.linalg.solve(covariance + ridge * torch.eye(size, dtype=x.dtype, device=x.device), shared)
    rise: Tensor = (query[:, :size] - centre - x).unsqueeze(-2) @ slope  # [q, 1, c]
    return mean + y + rise.squeeze(-2)
