"""Standard errors of marginal effects: those of samples of errors, as columns of values.

An effect is linear in the targets, ∂f/∂x = Σᵢ mᵢ(x) yᵢ, and so is its average over rows. Its standard error is
√(Σᵢ mᵢ² sᵢ²) with the deviations s of the errors (`bands.error_sizes`): the deviation of the effects of samples of
errors, v s with random signs v. 399 samples have an error of 3.5 %.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from regard.data.columns import Floats
from regard.estimators.tables.bands import ErrorSamples
from regard.estimators.tables.smoother import Smoother, marginal_effects
from regard.progress import ProgressBar

_NUMBERS = 2**23
"""Numbers in a block of columns of values, or of their effects."""


class Effects(NamedTuple):
    """Effects [m, d, c], their average [d, c], and the standard errors of both."""

    effect: Floats
    error: Floats
    average: Floats
    average_error: Floats


def effects_with_errors(
    smoother: Smoother, query: Floats, scale: Floats, weight: Floats | None, samples: ErrorSamples, progress: bool
) -> Effects:
    """Marginal effects by column, times `scale` [m, d], and averages by `weight` [m]."""
    rows, outputs = samples.deviation.shape
    effect = marginal_effects(smoother, query) * scale[:, :, None]
    variance, average_variance = np.zeros_like(effect), np.zeros(effect.shape[1:])
    size = _NUMBERS // (outputs * max(rows, len(query) * (1 + scale.shape[1])))
    with ProgressBar("standard errors", samples.count, shown=progress) as bar:
        for some, value in samples.columns(size):
            found = marginal_effects(replace(smoother, value=value.reshape(rows, -1)), query) * scale[:, :, None]
            found = found.reshape(*effect.shape, -1)  # [m, d, c, some]
            variance += np.square(found).sum(axis=3)
            average_variance += np.square(np.average(found, axis=0, weights=weight)).sum(axis=2)
            bar.update(done=some.stop)
    average = np.average(effect, axis=0, weights=weight)
    return Effects(effect, np.sqrt(variance / samples.count), average, np.sqrt(average_variance / samples.count))
