"""The bandwidth that was asked for: given in numbers, by a rule, by a search, or learned.

It starts from a smoother that has the rule's bandwidth, and ends with one that has the bandwidth asked for.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from regard.data.columns import Columns
from regard.estimators.tables.bandwidth import (
    PAIRS,
    RULES,
    SEARCHES,
    by_rule,
    left_out_error,
    most_blur,
    search,
    trial_rows,
)
from regard.estimators.tables.local_linear import RIDGE
from regard.estimators.tables.metric_learning import learn
from regard.estimators.tables.smoother import KERNELS, Smoother
from regard.kernels import Kernel, Mixed

Array = Any
Bandwidth = float | Sequence[float] | Literal["scott", "silverman", "cv", "aicc", "learn"]
CHOICES = (*RULES, *SEARCHES, "learn")


class Chosen(NamedTuple):
    """A smoother with its bandwidth, and how it was come by."""

    smoother: Smoother
    criterion: float | None = None  # what was made small, if anything was
    history: tuple[Any, ...] = ()  # of what was learned


def choose(
    smoother: Smoother, columns: Columns, asked: Bandwidth, metric: str, seed: Callable[[], int], progress: bool
) -> Chosen:
    """The bandwidth asked for. `seed` is asked only where something is drawn."""
    if metric != "scalar" and not (isinstance(asked, str) and asked in (*SEARCHES, "learn")):
        raise ValueError(
            f"metric={metric!r} says what is searched or learned: it needs bandwidth='cv' or 'aicc' for one a column,"
            f" or 'learn' for a matrix too, got bandwidth={asked!r}"
        )
    if not isinstance(asked, str):
        return Chosen(given(smoother, columns, asked))
    if smoother.kernel == "constant" or not (smoother.number.shape[1] + len(smoother.blur)):
        return Chosen(smoother)
    if asked in RULES:
        return Chosen(by_rule(smoother, asked))
    if asked in SEARCHES:
        if metric == "full":
            raise ValueError(f"metric='full' is learned by gradient: bandwidth='learn', got bandwidth={asked!r}")
        return Chosen(*search(smoother, asked, metric, seed(), progress))
    return learned(smoother, metric, seed(), progress)


def given(smoother: Smoother, columns: Columns, asked: Any) -> Smoother:
    """A bandwidth in numbers: one for all, one a column, or a matrix for the numeric columns."""
    try:
        width = np.asarray(asked, dtype=float)
    except (TypeError, ValueError):
        raise ValueError(f"bandwidth must be a number, one a column, a matrix or a word, got {asked!r}") from None
    count, numbers = len(columns.names), smoother.number.shape[1]
    if width.ndim > 2 or not np.isfinite(width).all():
        raise ValueError(f"bandwidth must be finite, one number, one a column or a matrix, got {asked!r}")
    if width.ndim == 2:
        check_matrix(width, numbers)
        return replace(smoother, bandwidth=width)
    if width.ndim == 1 and len(width) != count:
        raise ValueError(f"bandwidth must be one number or one for each of {count} columns, got {len(width)}")
    if not (width.ndim or width > 0):
        raise ValueError(f"bandwidth must be positive, got {asked!r}")
    if width.ndim == 0 and numbers:  # categories keep the rule's λ, which has another unit
        return replace(smoother, bandwidth=np.full(numbers, float(width)))
    width = np.broadcast_to(width, count)
    blur = width[columns.codes]
    if (width[columns.numbers] <= 0).any() or (blur < 0).any() or (blur > most_blur(smoother)).any():
        raise ValueError(
            "bandwidths must be positive, and those of categories between 0 and 1, or (c - 1)/c of c categories"
            f" without order, got {asked!r}"
        )
    return replace(smoother, bandwidth=width[columns.numbers], blur=blur)


def check_matrix(width: Array, numbers: int) -> None:
    """A bandwidth matrix has a row and a column for each numeric column, and an inverse, whatever their units."""
    if width.shape != (numbers, numbers):
        raise ValueError(
            f"a bandwidth matrix must be [{numbers}, {numbers}], one row a numeric column, got {list(width.shape)}"
        )
    size = np.abs(width).max(axis=1, keepdims=True)
    if not (size > 0).all() or np.linalg.matrix_rank(width / size) < numbers:
        raise ValueError(f"a bandwidth matrix must be invertible, got {width.tolist()}")


def learned(smoother: Smoother, metric: str, seed: int, progress: bool) -> Chosen:
    """The metric by gradient descent on the error of rows left out; then λ of the categories, by search."""
    if len(smoother.number) < 2:
        raise ValueError(
            f"bandwidth='learn' leaves rows out in turn and needs two, got n_samples={len(smoother.number)}:"
            " give a number"
        )
    if callable(smoother.kernel):
        raise ValueError("bandwidth='learn' needs a kernel by name; train a score of your own with regard.attend")
    history: tuple[Any, ...] = ()
    if smoother.number.shape[1]:
        smoother, history = with_metric(smoother, KERNELS[smoother.kernel], metric, seed, progress)
    if len(smoother.blur):
        smoother = search(smoother, "cv", "scalar", seed, progress).smoother
    return Chosen(smoother, left_out_error(smoother, trial_rows(smoother, PAIRS, seed)), history)


def with_metric(
    smoother: Smoother, kernel: type[Kernel], metric: str, seed: int, progress: bool
) -> tuple[Smoother, tuple[Any, ...]]:
    """The smoother with a learned metric, found in units of the rule's bandwidth, and how the learning went."""
    slope, jump = (torch.as_tensor(x) for x in smoother.penalty)
    codes, unit = len(smoother.blur), smoother.bandwidth
    found = learn(
        torch.as_tensor(np.hstack([smoother.number / unit, smoother.code])),
        torch.as_tensor(smoother.value),
        None if smoother.weight is None else torch.as_tensor(smoother.weight),
        start=torch.ones(len(unit), dtype=torch.float64),
        metric=metric,
        order=smoother.order,
        make_score=(lambda width: Mixed(kernel(width), slope, jump)) if codes else kernel,
        codes=codes,
        seed=seed,
        progress=progress,
    )
    width = found.bandwidth.numpy()
    width = unit[:, None] * width if width.ndim == 2 else unit * width
    return replace(smoother, bandwidth=width, spread=RIDGE), found.history
