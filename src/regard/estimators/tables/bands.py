"""Confidence bands of a regression function, by samples of errors as columns of values.

A kernel regression is linear in the targets, f(x) = Σᵢ lᵢ(x) yᵢ, with weights l that do not depend on them. So

    asymptotic   f(x) ± z σ(x)        σ²(x) = Σᵢ lᵢ(x)² sᵢ²        sᵢ²: mean of (yⱼ - f₋ⱼ(xⱼ))² about xᵢ
    bootstrap    f(x) ± c σ(x), with c a quantile of |Σᵢ lᵢ(x) vᵢ sᵢ| / σ(x) among samples of random signs v, the wild
                 bootstrap (Davidson and Flachaire 2008); v s are columns of values, one for each sample

A simultaneous band takes one c for all x, of the largest ratio of each sample. It covers the function at all rows
of the query at once.

A regression of the best bandwidth has a bias as large as its deviation, which widths do not know. `BIAS` has two ways
to deal with it. "corrected" extrapolates from two bandwidths, f = 2 f_h - f_√2h, which removes the term h² of the bias,
and σ is that of the difference (Schucany and Sommers 1977; Calonico, Cattaneo and Farrell 2018). "undersmoothed" takes
a smaller bandwidth, h N^(-1/10). "ignored" has the band about the prediction, for its mean, not for the function.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy.stats import norm

from regard.data.columns import Floats, effective_count
from regard.engines.job import spans
from regard.estimators.tables.bandwidth import leave_one_out_rows
from regard.estimators.tables.evidence import row_weights
from regard.estimators.tables.smoother import Smoother
from regard.progress import ProgressBar

_PAIRS = 2.5e8
"""Number of pairs of queries and rows up to which weights are formed, a block at a time."""
_NUMBERS = 2**24
"""Numbers in a block of weights, or of columns of values."""
_LEFT_OUT_PAIRS = 5e8
"""Number of pairs for residuals of rows left out; of more, a random sample of the rows has them."""
_WIDER = 2.0
"""Bandwidths of the mean squared residuals, in those of the regression."""


class Bands(NamedTuple):
    """A regression function, and a band about it, each [m] or [m, c].

    >>> import numpy as np, regard
    >>> x = np.linspace(0, 1, 50)[:, None]
    >>> bands = regard.NadarayaWatson(order=1, bandwidth=0.2).fit(x, x[:, 0] + np.tile([-0.1, 0.1], 25)).bands([[0.5]])
    >>> bool(bands.lower[0] < 0.5 < bands.upper[0])
    True
    """

    prediction: Floats
    lower: Floats
    upper: Floats


Term = tuple[float, Smoother]


def _corrected(smoother: Smoother) -> list[Term]:
    return [(2.0, smoother), (-1.0, _scaled(smoother, math.sqrt(2)))]


def _undersmoothed(smoother: Smoother) -> list[Term]:
    return [(1.0, _scaled(smoother, effective_count(smoother.weight, len(smoother.rows)) ** -0.1))]


def _ignored(smoother: Smoother) -> list[Term]:
    return [(1.0, smoother)]


BIAS: dict[str, Callable[[Smoother], list[Term]]] = {
    "corrected": _corrected,
    "undersmoothed": _undersmoothed,
    "ignored": _ignored,
}
"""Ways to deal with the bias: the regressions that a function is estimated by, and their factors."""


def _scaled(smoother: Smoother, factor: float) -> Smoother:
    """The same with other bandwidths of the numeric columns."""
    return replace(smoother, bandwidth=smoother.bandwidth * factor)


def error_sizes(smoother: Smoother, seed: int) -> Floats:
    """The standard deviation of the errors at each row, [n, c]: √ of the mean squared residual of rows about it.

    Residuals are those of rows left out, or of very many rows of a random sample. They are averaged with bandwidths
    `_WIDER` times as large: single residuals would make a band narrow where they happen to be small.
    """
    rows = leave_one_out_rows(smoother, _LEFT_OUT_PAIRS, seed)
    residual = smoother.value[rows] - smoother.predict(smoother.rows[rows], rows).mean
    weight = None if smoother.weight is None else smoother.weight[rows]
    wide = replace(_scaled(smoother, _WIDER), order=0, rows=smoother.rows[rows], value=residual**2, weight=weight)
    return np.sqrt(np.maximum(wide.predict(smoother.rows).mean, 0.0))


@dataclass(frozen=True)
class ErrorSamples:
    """Random signs times the deviation of the errors at each row: samples of the errors."""

    deviation: Floats  # [n, c]
    count: int
    seed: int

    def columns(self, size: int) -> Iterator[tuple[slice, Floats]]:
        """Samples `size` at a time, [n, c, some]; the signs depend on the seed only, not on the size."""
        rows = len(self.deviation)
        bits = np.random.default_rng(self.seed).integers(0, 256, (math.ceil(self.count / 8), rows), dtype=np.uint8)
        for some in spans(self.count, max(8, size // 8 * 8)):
            packed = bits[some.start // 8 : math.ceil(some.stop / 8)]
            sign = np.unpackbits(packed, axis=0)[: some.stop - some.start].T  # [n, some]
            yield some, self.deviation[:, :, None] * (2.0 * sign[:, None, :] - 1.0)


def predict_terms(terms: list[Term], query: Floats) -> Floats:
    """The regression function of several terms, [m, c]."""
    return sum((factor * smoother.predict(query).mean for factor, smoother in terms), start=np.zeros(()))


def fit_bands(
    terms: list[Term], query: Floats, level: float, samples: ErrorSamples, kind: str, method: str, progress: bool
) -> Bands:
    """A band about the regression function of the terms."""
    error, ratios = _errors(terms, query, samples, kind if method == "bootstrap" else None, level, progress)
    factor = norm.ppf((1 + level) / 2) if ratios is None else ratios
    centre = predict_terms(terms, query)
    return Bands(centre, centre - factor * error, centre + factor * error)


def standard_errors(terms: list[Term], query: Floats, samples: ErrorSamples, progress: bool) -> Floats:
    """The standard error σ of the regression function, [m, c]."""
    return _errors(terms, query, samples, None, 0.0, progress)[0]


def _errors(
    terms: list[Term], query: Floats, samples: ErrorSamples, kind: str | None, level: float, progress: bool
) -> tuple[Floats, Floats | None]:
    """Standard errors [m, c], and by how many of them a band is away: [m, c], or [c] for a simultaneous one."""
    rows, outputs = samples.deviation.shape
    error, away = np.empty((len(query), outputs)), np.empty((len(query), outputs))
    largest = np.zeros((outputs, samples.count))
    size = max(1, _NUMBERS // (max(rows, samples.count) if len(query) * rows <= _PAIRS else samples.count))
    with ProgressBar("samples of errors", max(1, len(query)), shown=progress) as bar:
        for block in spans(len(query), size):
            error[block], found = _block_errors(terms, query[block], samples, sampled=kind is not None)
            if kind is not None:
                ratio = np.abs(found) / np.where(error[block] > 0, error[block], 1.0)[:, :, None]
                largest = np.maximum(largest, ratio.max(axis=0))
                if kind == "pointwise":
                    away[block] = np.quantile(ratio, level, axis=2, method="higher")
            bar.update(done=block.stop)
    if kind is None:
        return error, None
    return error, away if kind == "pointwise" else np.quantile(largest, level, axis=1, method="higher")


def _block_errors(terms: list[Term], query: Floats, samples: ErrorSamples, *, sampled: bool) -> tuple[Floats, Floats]:
    """Standard errors [m, c], and if `sampled` the regressions of all samples [m, c, samples].

    Of many pairs no weight is formed: the standard errors are then those of the samples.
    """
    rows, outputs = samples.deviation.shape
    by_pairs = len(query) * rows <= _PAIRS
    weight = _linear_weights(terms, query) if by_pairs else None
    error = None if weight is None else np.sqrt(np.square(weight) @ np.square(samples.deviation))
    if error is not None and not sampled:
        return error, np.empty(0)
    found = np.empty((len(query), outputs, samples.count))
    for some, value in samples.columns(max(1, _NUMBERS // (rows * outputs))):
        columns = value.reshape(rows, -1)
        estimate = _estimate(terms, query, columns) if weight is None else weight @ columns
        found[:, :, some] = estimate.reshape(len(query), outputs, -1)
    return np.sqrt(np.square(found).mean(axis=2)) if error is None else error, found


def _linear_weights(terms: list[Term], query: Floats) -> Floats:
    """The weight of each row in the regression function, [m, n]."""
    total: Floats | None = None
    for factor, smoother in terms:
        weight = np.concatenate(list(row_weights(smoother, query)))
        weight *= factor
        total = weight if total is None else np.add(total, weight, out=total)
    assert total is not None
    return total


def _estimate(terms: list[Term], query: Floats, value: Floats) -> Floats:
    """The regression function of other values, [m, columns]."""
    return predict_terms([(factor, replace(smoother, value=value)) for factor, smoother in terms], query)
