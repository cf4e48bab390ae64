"""The stack behind `AttentionRegressor` and `AttentionClassifier`: members fitted on folds, weighted by rows left out.

    f(x) = Σₘ wₘ · mean over folds of fₘ(x)        wₘ ≥ 0, Σ wₘ = 1

Every member is a weighted sum of targets, so f is one too. A member of fold k has not seen the rows of fold k. Its
predictions for them choose the weights w, so that a member that fails on this table gets none.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize, nnls
from scipy.special import softmax

from regard.compiled.threads import spread
from regard.estimators.tables.members.base import Floats, Inputs, Mean, Member, Rows, target_units
from regard.estimators.tables.members.features import Length
from regard.estimators.tables.members.kernel_ridge import KernelRidge
from regard.estimators.tables.members.learned_attention import LearnedAttention
from regard.estimators.tables.members.network import Network
from regard.estimators.tables.members.trees import BoostedTrees
from regard.estimators.tables.temperature import Temperature, fit_temperature
from regard.progress import ProgressBar

MEMBERS: dict[str, type[Member]] = {
    "mean": Mean,
    "kernel_ridge": KernelRidge,
    "trees": BoostedTrees,
    "network": Network,
    "attention": LearnedAttention,
}
"""The kinds of members by their names in a model folder."""
_BLOCK = 2**24
"""Number of coefficients that are computed at a time."""
_LEAST = 0.01
"""Least weight of a kind of member."""
_PULL = 1e-3
"""How much the weights of classifiers are pulled towards those of least squares."""
_FEW = 10
"""Number of rows below which nothing but the mean and kernel ridge is tried."""


class Effort(NamedTuple):
    """What a level of effort buys."""

    folds: int
    centres: int  # of kernel ridge
    rounds: int
    trees: int
    tree_rate: float
    network: Length | None
    width: int  # of networks
    attention: Length | None


EFFORTS = {
    "low": Effort(5, 300, 1, 150, 0.1, None, 0, None),
    "medium": Effort(5, 500, 2, 500, 0.05, Length(40, 2500, 4500), 192, Length(40, 1000, 4000)),
    "high": Effort(10, 2000, 4, 1000, 0.03, Length(80, 2000, 12000), 256, Length(80, 1500, 6000)),
}
_FEWER_OF_CLASSES = 4
"""Networks learn the noise in few classes by heart: the fewest steps are divided by this."""
Fit = Callable[[Rows, int], Member]


def member_fits(effort: Effort, rows: int, classify: bool) -> dict[str, Fit]:
    """The functions that fit each kind of member."""
    fits: dict[str, Fit] = {
        "mean": Mean.fit,
        "kernel_ridge": partial(KernelRidge.fit, centres=effort.centres, rounds=effort.rounds),
    }
    if rows < _FEW:
        return fits
    fits["trees"] = partial(BoostedTrees.fit, trees=effort.trees, rate=effort.tree_rate)
    for name, length, fit in (
        ("network", effort.network, partial(Network.fit, width=effort.width)),
        ("attention", effort.attention, LearnedAttention.fit),
    ):
        if length is not None:
            fewest = length.fewest // _FEWER_OF_CLASSES if classify else length.fewest
            fits[name] = partial(fit, length=length._replace(fewest=fewest), classify=classify)
    return fits


@dataclass(frozen=True)
class Stack:
    """Members by kind, one per fold, and their weights."""

    members: dict[str, list[Member]]
    weight: dict[str, float]
    fold: NDArray[np.int64]  # [n]  the fold of each training row, which its member has not seen
    unit: Floats  # [folds, c]  what the targets of a fold's members were multiplied by

    @property
    def folds(self) -> int:
        """The number of folds."""
        return int(self.fold.max()) + 1

    def predict(self, query: Inputs) -> Floats:
        """Predictions [m, c]."""
        return sum(  # type: ignore[no-any-return]
            self.weight[name] / len(members) * (member.predict(query) / unit)
            for name, members in self.members.items()
            for member, unit in zip(members, self.unit, strict=True)
        )

    def coefficient_blocks(self, query: Inputs, rows: Rows) -> Iterator[tuple[slice, Floats]]:
        """The weight of every training row in each prediction, a block of queries at a time: which, [some, n]."""
        size = max(1, _BLOCK // len(rows.weight))
        for start in range(0, len(query.bins), size):
            block = slice(start, start + size)
            yield block, self._coefficients(query.take(block), rows)

    def _coefficients(self, query: Inputs, rows: Rows) -> Floats:
        total = np.zeros((len(query.bins), len(rows.weight)))
        for name, members in self.members.items():
            for fold, member in enumerate(members):
                seen = training_rows(self.fold, fold)
                total[:, seen] += self.weight[name] / len(members) * member.coefficients(query, rows.take(seen))
        # They add up to 1 but for rounding, which targets far from 0 would make large.
        total += (1 - total.sum(axis=1, keepdims=True)) * (rows.weight / rows.weight.sum())
        return total


def training_rows(fold: NDArray[np.int64], number: int) -> NDArray[np.intp]:
    """The rows that the members of one fold are fitted on; all of them if there is only one row."""
    rows = np.flatnonzero(fold != number)
    return rows if len(rows) else np.arange(len(fold))


def assign_folds(value: Floats, count: int, seed: int, classify: bool) -> NDArray[np.int64]:
    """A fold for each row, at random; of classes in the same proportions."""
    random = np.random.default_rng(seed)
    order = random.permutation(len(value))
    if classify:
        order = order[np.argsort(value[order].argmax(axis=1), kind="stable")]
    fold = np.empty(len(value), dtype=np.int64)
    fold[order] = np.arange(len(value)) % max(1, min(count, len(value)))
    return fold


class Stacked(NamedTuple):
    """A stack, and its predictions for the training rows by members that have not seen them."""

    stack: Stack
    left_out: Floats  # [n, c]


def fit_stack(rows: Rows, effort: Effort, *, classify: bool, seed: int, progress: bool) -> Stacked:
    """Fit all members on all folds, and choose their weights."""
    fold = assign_folds(rows.value, effort.folds, seed, classify)
    fits = member_fits(effort, len(fold), classify)
    # Longest first, so that no thread is left with a long one at the end.
    work = [(name, number) for name in reversed(fits) for number in range(int(fold.max()) + 1)]
    count, outputs = int(fold.max()) + 1, rows.value.shape[1]
    unit = np.ones((count, outputs))
    if not classify:
        unit = np.stack([target_units(rows.value[training_rows(fold, number)]) for number in range(count)])
    done = 0
    with ProgressBar("fitting", len(work), shown=progress) as bar:

        def fit(task: tuple[str, int]) -> tuple[Member, Floats]:
            nonlocal done
            name, number = task
            seen = rows.take(training_rows(fold, number))
            member = fits[name](seen._replace(value=seen.value * unit[number]), 1000 * seed % 2**31 + number)
            predicted = member.predict(rows.inputs.take(fold == number)) / unit[number]
            done += 1
            bar.update(done=done)
            return member, predicted

        fitted = dict(zip(work, spread(fit, work), strict=True))
    left_out = {name: np.empty_like(rows.value) for name in fits}
    for (name, number), (_, predicted) in fitted.items():
        left_out[name][fold == number] = predicted
    weight = choose_weights(left_out, rows, classify)
    members = {
        name: [fitted[name, number][0] for number in range(int(fold.max()) + 1)] for name in fits if weight[name]
    }
    weight = {name: weight[name] for name in members}
    stack = Stack(members, weight, fold, unit)
    return Stacked(stack, sum(weight[name] * left_out[name] for name in members))  # type: ignore[arg-type]


def choose_weights(left_out: dict[str, Floats], rows: Rows, classify: bool) -> dict[str, float]:
    """Weights of at least 0 that add up to 1 and fit the targets best, by predictions for rows left out.

    Best is the least squared error, or of classes the least log loss.
    """
    found = _least_squares(left_out, rows)
    if classify:
        found = _least_log_loss(np.stack(list(left_out.values())), found, rows)
    found = np.where(found < _LEAST, 0.0, found)
    if not found.sum() or not np.isfinite(found).all():
        found = np.array([float(name == "mean") for name in left_out])
    return dict(zip(left_out, (found / found.sum()).tolist(), strict=True))


def _least_squares(left_out: dict[str, Floats], rows: Rows) -> Floats:
    """The weights [members] with the least squared error, in deviations of each target."""
    names, unit = list(left_out), target_units(rows.value)
    value = unit * rows.value
    root = np.sqrt(rows.weight / rows.weight.mean())[:, None]
    deviation = value.std(axis=0)
    deviation = np.where(deviation > 0, deviation, 1.0)
    mean = value.mean(axis=0)
    design = [(root * (unit * left_out[name] - mean) / deviation).ravel() for name in names]  # [members, n · c]
    target = (root * (value - mean) / deviation).ravel()
    penalty = 1e3 * np.sqrt(len(target))
    found, _ = nnls(np.vstack([np.stack(design, axis=1), np.full(len(names), penalty)]), np.append(target, penalty))
    return np.asarray(found)


def _least_log_loss(left_out: Floats, start: Floats, rows: Rows) -> Floats:
    """The weights [members] with the least log loss of calibrated scores, for predictions [members, n, classes]."""
    start = np.maximum(start, _LEAST) / np.maximum(start, _LEAST).sum()
    temperature = fit_temperature(np.tensordot(start, left_out, 1), rows)

    def loss(point: Floats) -> float:
        scores = np.tensordot(softmax(point[:-1]), left_out, 1)
        changed = Temperature(temperature.floor, np.exp(point[-1]))
        return float(changed.loss(scores, rows) / rows.weight.sum() + _PULL * np.square(point - first).mean())

    first = np.append(np.log(start), np.log(temperature.power))
    weight: Floats = softmax(minimize(loss, first, method="L-BFGS-B").x[:-1])
    return weight


def stack_arrays(stack: Stack) -> dict[str, NDArray[Any]]:
    """The members as arrays, by kind, fold and name."""
    arrays = {
        f"{name}.{number}.{key}": array
        for name, members in stack.members.items()
        for number, member in enumerate(members)
        for key, array in member.arrays().items()
    }
    return arrays | {"fold": stack.fold, "unit": stack.unit}


def restore_stack(weight: dict[str, float], arrays: dict[str, NDArray[Any]]) -> Stack:
    """The stack of `stack_arrays`."""
    fold = arrays["fold"]
    members: dict[str, list[Member]] = {}
    for name in weight:
        members[name] = []
        for number in range(int(fold.max()) + 1):
            prefix = f"{name}.{number}."
            own = {key.removeprefix(prefix): array for key, array in arrays.items() if key.startswith(prefix)}
            members[name].append(MEMBERS[name].from_arrays(own))
    return Stack(members, weight, fold, arrays["unit"])
