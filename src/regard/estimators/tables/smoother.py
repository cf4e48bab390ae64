"""Kernel regression of given rows with a given bandwidth: what the estimators fit, search over and ask.

    order 0   f(x) = Σᵢ αᵢ(x) yᵢ                      attention to the training rows (Nadaraya 1964, Watson 1964)
    order 1   f(x) = level of the line that minimises Σᵢ αᵢ(x) (yᵢ - level - slopeᵀ(xᵢ - x))²    (Fan 1992)

Categorical columns multiply the kernel by λ-kernels (Aitchison and Aitken 1976; Wang and van Ryzin 1981).
"""

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.special import betaln, gammaln
from torch import Tensor

from regard.engines.job import Plan, scores_of, spans
from regard.engines.kernel_sums import dispatch as sums
from regard.engines.kernel_sums.problem import (
    BOXCAR,
    EPANECHNIKOV,
    GAUSSIAN,
    KINDS,
    LAPLACE,
    TRICUBE,
    Array,
    Moments,
    Points,
    Pooled,
)
from regard.kernels import Boxcar, Epanechnikov, Gaussian, Kernel, Laplace, Tricube
from regard.scores import Score

KERNELS: dict[str, type[Kernel]] = {
    "gaussian": Gaussian,
    "laplace": Laplace,
    "epanechnikov": Epanechnikov,
    "boxcar": Boxcar,
    "tricube": Tricube,
}
SPREAD = 1e-8
"""A ridge on the slopes: where the rows seen spread by less than √SPREAD bandwidths, there is no slope to be had."""
SHARP = 1e8
"""So many times its units, a Laplace kernel sees the nearest row only."""
FARTHEST = 1e100
"""Bandwidths that points may lie apart."""
STEEP = 700.0
"""As much as the log weight may fall by a category: e⁻⁷⁰⁰ is nothing, but not zero."""


class Line(NamedTuple):
    """Local linear fits."""

    level: Array  # [m, c]
    slope: Array  # [m, d, c], in bandwidths
    lean: Array  # [m, d]: a row at offset u counts (1 + lean · (mean offset - u)) times its weight
    variance: Array  # [m, c]: the weighted variance about the line, where squares of the values were given


@dataclass(frozen=True)
class Smoother:
    """Training rows, a kernel, and its bandwidth."""

    number: Array  # [n, d]
    code: Array  # [n, g]
    value: Array  # [n, c]
    weight: Array | None  # [n]
    kernel: str | Score
    bandwidth: Array  # [d] or [d, d]
    blur: Array  # [g]: λ of each categorical column
    ordered: Array  # [g]
    levels: Array  # [g]: how many categories
    order: int = 0
    tolerance: float = 1e-6
    spread: float = SPREAD

    @functools.cached_property
    def inverse(self) -> Array | None:
        """H⁻¹, where H is a matrix."""
        return np.linalg.inv(self.bandwidth) if self.bandwidth.ndim == 2 else None

    @property
    def kind(self) -> int:
        """The number of the kernel; average pooling is any kernel of no features."""
        return KINDS[KERNELS[self.kernel]] if isinstance(self.kernel, str) and self.kernel in KERNELS else GAUSSIAN

    @functools.cached_property
    def key(self) -> Array:
        return self.stretch(self.number)

    @functools.cached_property
    def shrink(self) -> float:
        """A bandwidth so small that squares would overflow is taken as the least that they do not: the nearest wins."""
        with np.errstate(over="ignore"):
            far = self.number @ self.inverse.T if self.inverse is not None else self.number / self.bandwidth
            widest = float(np.max(np.abs(far), initial=0.0))
        return max(1.0, min(widest, 1e300) / FARTHEST)

    @functools.cached_property
    def penalty(self) -> tuple[Array, Array]:
        """Slope and jump of each categorical column, see `regard.kernels.Mixed`."""
        blur = np.clip(self.blur, 0.0, 1.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            unordered = np.log((1 - blur) * np.maximum(1, self.levels - 1) / blur)
            slope = np.where(self.ordered, -np.log(blur), 0.0)
        jump = np.where(self.ordered, math.log(2), np.nan_to_num(unordered, nan=STEEP, posinf=STEEP))
        return np.minimum(slope, STEEP), np.clip(jump, 0.0, STEEP)

    def stretch(self, number: Array) -> Array:
        """Points in units of the bandwidth."""
        if self.kernel == "constant":
            return number[:, :0]
        with np.errstate(over="ignore"):
            if self.inverse is not None:
                far = number @ (self.inverse.T / self.shrink)
            else:
                far = number / (self.bandwidth * self.shrink)
        return np.clip(far, -FARTHEST, FARTHEST)  # what is asked may lie farther than any row

    def points(self, number: Array, code: Array, value: Array, own: Array | None = None) -> Points:
        """What the engines of kernels are given."""
        coded = self.kernel != "constant" and len(self.blur) > 0
        return Points(
            self.stretch(number),
            self.key,
            value,
            self.kind,
            self.weight,
            own,
            *((code, self.code, *self.penalty) if coded else ()),
        )

    def plan(self, number: Array, code: Array) -> Plan:
        """Which engine answers these queries, and why."""
        if callable(self.kernel):
            return Plan("dense", "a score of your own is called on blocks of queries")
        return sums.plan(self.points(number, code, self.value))

    def pool(self, number: Array, code: Array, value: Array, own: Array | None = None) -> Pooled:
        """Weighted means of values of the training rows, and log weights."""
        if callable(self.kernel):
            return sums.pool_blocks(self.blocks(number, code, own), value)
        return sums.pool(self.points(number, code, value, own), self.tolerance)

    def moments(self, number: Array, code: Array, value: Array, own: Array | None = None) -> Moments:
        """Weighted means of values, offsets in bandwidths, and their products."""
        if callable(self.kernel):
            blocks = self.blocks(number, code, own)
            return sums.moment_blocks(blocks, self.stretch(number), self.key, value)
        return sums.moments(self.points(number, code, value, own), self.tolerance)

    def blocks(self, number: Array, code: Array, own: Array | None = None) -> Iterator[tuple[slice, Array, Array]]:
        """All weights, a block of queries at a time."""
        if not callable(self.kernel):
            yield from sums.dense_weights(self.points(number, code, self.value, own), max(1, number.shape[1]))
            return
        width = int(getattr(self.kernel, "width", max(1, number.shape[1])))
        dtype = dtype_of(self.kernel)
        key = torch.as_tensor(np.hstack([self.key, self.code]), dtype=dtype)
        bias = 0.0 if self.weight is None else np.log(self.weight)
        for rows in spans(len(number), max(1, sums.BLOCK // max(1, width * len(key)))):
            query = torch.as_tensor(np.hstack([self.stretch(number[rows]), code[rows]]), dtype=dtype)
            with torch.no_grad():
                score = scores_of(self.kernel, query, key).double().numpy() + bias
            if np.isnan(score).any() or (score == np.inf).any():
                raise ValueError("a score must return numbers or -inf, got NaN or +inf from kernel=…")
            if own is not None:
                mine = own[rows]
                score[np.flatnonzero(mine >= 0), mine[mine >= 0]] = -np.inf
            yield rows, *sums.softmax(score)

    def predict(self, number: Array, code: Array, own: Array | None = None) -> Pooled:
        """Predictions [m, c] and log weights; where nothing is seen, those of the nearest row and -inf."""
        if self.order == 0:
            mean, log_weight = self.pool(number, code, self.value, own)
        else:
            found = self.moments(number, code, self.value, own)
            mean, log_weight = line(found, self.spread).level, found.log_weight
        blind = np.flatnonzero(log_weight == -math.inf)
        if len(blind):
            mean[blind] = self.nearest(number[blind], code[blind], None if own is None else own[blind])
        return Pooled(mean, log_weight)

    def predict_spread(self, number: Array, code: Array) -> tuple[Array, Array, Array]:
        """Predictions, the weighted standard deviation of the values about them, and log weights."""
        centre = np.average(self.value, axis=0, weights=self.weight)
        value = self.value - centre
        columns, outputs = np.hstack([value, value**2]), value.shape[1]
        if self.order == 0:
            means, log_weight = self.pool(number, code, columns)
            mean, variance = means[:, :outputs], means[:, outputs:] - means[:, :outputs] ** 2
        else:
            found = self.moments(number, code, columns)
            fitted = line(found, self.spread, outputs)
            mean, variance, log_weight = fitted.level[:, :outputs], fitted.variance, found.log_weight
        mean = mean + centre
        blind = np.flatnonzero(log_weight == -math.inf)
        if len(blind):
            mean[blind], variance[blind] = self.nearest(number[blind], code[blind]), 0.0
        return mean, np.sqrt(np.maximum(variance, 0.0)), log_weight

    def nearest(self, number: Array, code: Array, own: Array | None = None) -> Array:
        """The value of the nearest row; of several, their mean. A score of the user's own knows only that of all."""
        if callable(self.kernel):
            return np.average(self.value, axis=0, weights=self.weight)
        return sums.pool(self.sharpened(number, code, own), self.tolerance).mean

    def nearest_weight(self, number: Array, code: Array) -> Array:
        """What `nearest` looks at, [m, n]."""
        if callable(self.kernel):
            mass = np.ones(len(self.number)) if self.weight is None else self.weight
            return np.broadcast_to(mass / mass.sum(), (len(number), len(mass)))
        blocks = sums.dense_weights(self.sharpened(number, code))
        return np.concatenate([weight for _, weight, _ in blocks])

    def sharpened(self, number: Array, code: Array, own: Array | None = None) -> Points:
        """Points so far apart, in bandwidths, that a kernel without end sees the nearest only."""
        points = self.points(number, code, self.value, own)
        return replace(
            points,
            kind=LAPLACE,
            query=points.query * SHARP,
            key=points.key * SHARP,
            slope=points.slope * SHARP,
            jump=points.jump * SHARP,
        )

    def leverage(self, number: Array, code: Array, found: Moments | Pooled) -> Array:
        """What each training row counts for in its own prediction, from what `found` says of all of them."""
        mass = 1.0 if self.weight is None else self.weight
        own = mass * np.exp(self.own_score(number, code) - found.log_weight)
        if isinstance(found, Pooled):
            return own
        return own * (1 + np.einsum("md,md->m", line(found, self.spread).lean, found.offset))

    def own_score(self, number: Array, code: Array) -> Array | float:
        """The log weight of a row for itself."""
        if not callable(self.kernel):
            return 0.0
        dtype = dtype_of(self.kernel)
        points = torch.as_tensor(np.hstack([self.stretch(number), code]), dtype=dtype).unsqueeze(1)
        with torch.no_grad():
            return self.kernel(points, points).double().numpy()[:, 0, 0]

    def log_density(self, log_weight: Array) -> Array:
        """The log of the kernel density estimate, from the log of the summed weights."""
        total = math.log(len(self.number) if self.weight is None else self.weight.sum())
        if callable(self.kernel) or self.kernel == "constant":
            return log_weight - total
        volume = (
            np.linalg.slogdet(self.bandwidth)[1] if self.bandwidth.ndim == 2 else np.log(self.bandwidth).sum()
        ) + log_mass(self.kind, self.number.shape[1])
        same = np.log(np.maximum(1 - np.clip(self.blur, 0, 1), 1e-300)).sum()
        return log_weight - total - volume + same


def dtype_of(score: Score) -> torch.dtype:
    """The dtype that a score of the user's is called with: that of its parameters, or float64."""
    parameters = score.parameters() if isinstance(score, torch.nn.Module) else iter(())
    return next((x.dtype for x in parameters if isinstance(x, Tensor)), torch.float64)


def line(found: Moments, spread: float = SPREAD, outputs: int | None = None) -> Line:
    """Local lines from moments. With `outputs`, the values behind those are squares of them."""
    covariance = found.square - found.offset[:, :, None] * found.offset[:, None, :]
    shared = found.product - found.offset[:, :, None] * found.mean[:, None, :]
    root, axes = np.linalg.eigh(covariance)
    # Of offsets far larger than their spread, the covariance keeps rounding errors only.
    noise = 1e-12 * np.einsum("mdd->m", found.square)[:, None]
    root = 1 / (np.maximum(root, 0.0) + spread + noise)
    inverse = (axes * root[:, None, :]) @ axes.transpose(0, 2, 1)
    slope = inverse @ shared  # [m, d, c]
    level = found.mean - np.einsum("md,mdc->mc", found.offset, slope)
    lean = np.einsum("mde,me->md", inverse, found.offset)
    variance = np.empty((len(level), 0))
    if outputs is not None:
        some, part = slope[:, :, :outputs], found.mean[:, :outputs]
        explained = 2 * np.einsum("mdc,mdc->mc", some, shared[:, :, :outputs])
        explained -= np.einsum("mdc,mde,mec->mc", some, covariance, some)
        variance = found.mean[:, outputs:] - part**2 - explained
    return Line(level, slope, lean, variance)


def log_mass(kind: int, features: int) -> float:
    """The log of a kernel's integral over all space."""
    if features == 0:
        return 0.0
    log_sphere = math.log(2) + 0.5 * features * math.log(math.pi) - gammaln(features / 2)
    log_ball = log_sphere - math.log(features)
    return float(
        {
            GAUSSIAN: 0.5 * features * math.log(2 * math.pi),
            LAPLACE: log_sphere + gammaln(features),
            EPANECHNIKOV: log_ball + math.log(2 / (features + 2)),
            BOXCAR: log_ball,
            TRICUBE: log_sphere - math.log(3) + betaln(features / 3, 4),
        }[kind]
    )


def width_of(kernel: str | Callable[..., Any], features: int) -> float:
    """The standard deviation of a kernel of bandwidth 1 along an axis; rules for the Gaussian are divided by it."""
    if not isinstance(kernel, str) or kernel not in KERNELS or features == 0:
        return 1.0
    variance = {
        GAUSSIAN: 1.0,
        LAPLACE: features + 1.0,
        EPANECHNIKOV: 1 / (features + 4),
        BOXCAR: 1 / (features + 2),
        TRICUBE: math.exp(betaln((features + 2) / 3, 4) - betaln(features / 3, 4)) / features,
    }[KINDS[KERNELS[kernel]]]
    return math.sqrt(variance)
