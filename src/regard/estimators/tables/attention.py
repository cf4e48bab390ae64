"""The strong models for tables: without settings, and every prediction is a weighted sum of the training targets.

    f(x) = Σᵢ cᵢ(x) yᵢ        Σᵢ cᵢ(x) = 1

Boosted trees, networks and kernel ridge regression are fitted on folds; rows left out choose how much each of them
counts (`stacking`). `evidence` gives cᵢ(x) exactly: it is the attention that x pays to row i, and may be negative.
"""

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any, Literal, Self, overload

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin, MultiOutputMixin, RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils import Tags
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from threadpoolctl import threadpool_limits

from regard.checks import is_number
from regard.data.columns import Category, Columns, Floats, as_frame, find_columns, is_frame
from regard.estimators.common import (
    SavedEstimator,
    State,
    all_or_nothing,
    check_memory,
    checked_top,
    restore_target,
    saved_target,
    target_names,
)
from regard.estimators.settings import Seeded, check_settings, seed_of, setting, with_settings
from regard.estimators.tables.calibration import Intervals, fit_intervals
from regard.estimators.tables.evidence import Evidence, Labels, check_no_words, is_numeric, largest_rows, row_labels
from regard.estimators.tables.explanation import Explanation, column_effects
from regard.estimators.tables.inputs import Encoder, expand_dates
from regard.estimators.tables.members.base import Rows, target_units
from regard.estimators.tables.stacking import EFFORTS, fit_stack, restore_stack, stack_arrays
from regard.estimators.tables.temperature import Temperature, fit_temperature
from regard.saving import to_json

MAX_ROWS = 200_000
"""Most training rows; of more, a random sample is learned from, and a warning says so."""


def _check_jobs(name: str, value: object) -> None:
    """Raise unless a value is a number of threads as scikit-learn has it."""
    if value is not None and (not isinstance(value, int | np.integer) or isinstance(value, bool) or not value):
        raise ValueError(f"{name} must be a positive whole number, -1 for all cores, or None, got {value!r}")


@with_settings
class _AttentionEstimator(Seeded, SavedEstimator):
    """What regression and classification share: the columns, the stack, and the evidence."""

    effort: Literal["low", "medium", "high"] = setting("low: seconds; high: several times medium", default="medium")
    categorical: Literal["dtype"] | Sequence[str | int] | None = setting(
        "categorical columns; by default those of a pandas frame that hold no numbers", default="dtype", option=False
    )
    n_jobs: int | None = setting("number of threads, -1 for all cores", default=None, check=_check_jobs, parse=int)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def _read_table(self, X: ArrayLike) -> object:  # noqa: N803
        """Check the settings, learn the columns of a table, and return it with categories as codes."""
        check_settings(self)
        frame = as_frame(X)
        self.labels_ = row_labels(frame)
        named = () if self.categorical is None or isinstance(self.categorical, str) else self.categorical
        table, self.date_parts_ = expand_dates(frame, categorical=named)
        self.columns_ = find_columns(table, self.categorical, None)
        return self.columns_.encode(table, allow_missing=True)

    def _validated(self, table: object, y: ArrayLike, **checks: bool) -> tuple[Floats, NDArray[Any]]:
        """Cells [n, d] and targets, checked; the features are those of the given table, without the parts of dates."""
        options = {"dtype": np.float64, "ensure_all_finite": "allow-nan", **checks}
        if not self.date_parts_:
            cells, target = validate_data(self, table, y, **options)
            return np.array(cells), target
        assert is_frame(table)
        width = table.shape[1] - len(self.date_parts_)
        _, target = validate_data(self, table.iloc[:, :width], y, **options)
        return table.to_numpy(dtype=np.float64, na_value=np.nan, copy=True), target

    def _fit_cells(self, cells: Floats, value: Floats, weight: Floats | None) -> None:
        """Fit the stack to cells [n, d] and targets [n, c]."""
        classify, seed = hasattr(self, "classes_"), seed_of(self.random_state)
        keep = np.arange(len(cells)) if weight is None else np.flatnonzero(weight > 0)
        if len(keep) > MAX_ROWS:
            warnings.warn(
                f"learning from a random sample of {MAX_ROWS:,} of {len(keep):,} rows: more would not fit into memory",
                stacklevel=4,
            )
            keep = np.sort(np.random.default_rng(seed).permutation(keep)[:MAX_ROWS])
        self.row_index_ = keep
        self.cells_ = cells
        self.encoder_ = Encoder.fit(cells[keep], self.columns_)
        relative = np.ones(len(keep))
        if weight is not None:
            relative = weight[keep] / weight[keep].max()
            relative /= relative.mean()
        rows = Rows(self.encoder_(cells[keep]), value[keep], relative)
        with self._threads():
            fitted = fit_stack(rows, EFFORTS[self.effort], classify=classify, seed=seed, progress=self.verbose)
            self.stack_, self.left_out_, self.rows_ = fitted.stack, fitted.left_out, rows
            self._calibrate(seed)

    def _calibrate(self, seed: int) -> None:
        """Learn from the rows left out how far predictions are from the targets."""
        raise NotImplementedError

    @contextmanager
    def _threads(self) -> Iterator[None]:
        """`n_jobs` threads, each of which computes alone: the results do not depend on their number."""
        before = torch.get_num_threads()
        cores = os.cpu_count() or 1
        count = before if self.n_jobs is None else self.n_jobs if self.n_jobs > 0 else max(1, cores + 1 + self.n_jobs)
        torch.set_num_threads(count)
        try:
            with threadpool_limits(1, user_api="blas"):
                yield
        finally:
            torch.set_num_threads(before)

    def _encode(self, X: ArrayLike) -> Floats:  # noqa: N803
        """The cells [m, d] of new rows, checked: numbers and codes, NaN if missing."""
        check_is_fitted(self, "stack_")
        frame = as_frame(X)
        if hasattr(frame, "columns"):
            validate_data(self, frame, reset=False, skip_check_array=True)
        table = self.columns_.encode(expand_dates(frame, set(self.date_parts_.values()))[0], allow_missing=True)
        width = self.n_features_in_
        cells: Floats
        if is_frame(table):
            validate_data(self, table.iloc[:, :width], reset=False, dtype=np.float64, ensure_all_finite="allow-nan")
            cells = table.to_numpy(dtype=np.float64, na_value=np.nan)
            return cells
        cells = validate_data(self, table, reset=False, dtype=np.float64, ensure_all_finite="allow-nan")
        return cells

    def _scores(self, cells: Floats) -> Floats:
        """Predictions [m, c] of the stack, a weighted sum of targets."""
        with self._threads():
            return self.stack_.predict(self.encoder_(cells))

    @property
    def weights_(self) -> dict[str, float]:
        """How much each kind of member counts."""
        check_is_fitted(self, "stack_")
        return dict(self.stack_.weight)

    @property
    def column_kinds_(self) -> dict[str, str]:
        """The kind of each column: number, date, or a kind of category."""
        check_is_fitted(self, "stack_")
        kinds, dates = list(self.columns_.kinds.items())[: self.n_features_in_], set(self.date_parts_.values())
        return {name: "date" if index in dates else kind for index, (name, kind) in enumerate(kinds)}

    def evidence(self, X: ArrayLike, top: int | None = 5) -> Evidence:  # noqa: N803
        """The training rows behind each prediction and their weights, the largest first, and the weight of the rest.

        With `top=None` all of them; more than 2 GiB raise ValueError. Weights may be negative, and are sorted by
        absolute value. The prediction is Σ weight · target, to rounding.
        """
        cells = self._encode(X)
        most = checked_top(top, len(self.row_index_), "rows")
        check_memory(len(cells), most, "rows")
        with self._threads():
            blocks = self.stack_.coefficient_blocks(self.encoder_(cells), self.rows_)
            found = largest_rows((weight for _, weight in blocks), most, self.rows_.value)
        classes = getattr(self, "classes_", None)
        return replace(
            found,
            index=np.where(found.index < 0, -1, self.row_index_[found.index]),
            table=self._evidence_table(),
            labels=self.labels_,
            query_labels=row_labels(X),
            prediction=found.prediction if classes is None else self._explained(cells),
            classes=classes,
        )

    def explain(self, X: ArrayLike, top: int = 5) -> Explanation:  # noqa: N803
        """What each column did to each prediction, and how far it is from each row of the evidence.

        The effects of all columns add up to the prediction minus that of average rows: they are Shapley values against
        training rows, estimated by exchanging one column after the other in random orders.
        """
        cells = self._encode(X)
        groups = [[index] for index in range(self.n_features_in_)]
        for part, index in self.date_parts_.items():
            groups[index].append(part)
        names = [str(name) for name in self.columns_.names[: self.n_features_in_]]
        base, effects = column_effects(
            self._explained, cells, self.cells_[self.row_index_], groups, seed_of(self.random_state), self.verbose
        )
        evidence = self.evidence(X, top=top)
        inputs = [
            self.encoder_.distances(cells, self.cells_[np.maximum(evidence.index, 0)[:, k]])
            for k in range(evidence.index.shape[1])
        ]
        distance = np.stack(inputs, axis=1)  # [m, top, d]
        grouped = np.stack([distance[:, :, group].max(axis=2) for group in groups], axis=2)
        outputs = [str(label) for label in self.classes_] if hasattr(self, "classes_") else self.targets_
        return Explanation(names, base, effects, evidence, grouped, outputs)

    def _explained(self, cells: Floats) -> Floats:
        """What `explain` explains: predictions [m, c] or probabilities."""
        return self._scores(cells)

    def _evidence_table(self) -> dict[str, Labels]:
        """Targets and features of the training rows, as they were given."""
        targets: NDArray[Any] = self.classes_[self.y_][:, None] if hasattr(self, "classes_") else self.y_  # [n, c]
        table: dict[str, Labels] = {name: targets[:, index] for index, name in enumerate(self.targets_)}
        dates = set(self.date_parts_.values())
        for index, name in enumerate(self.columns_.names[: self.n_features_in_]):
            label = name if hasattr(self, "feature_names_in_") else f"x{index}"
            table[label if label not in table else f"{label}_"] = shown_cells(
                self.cells_[:, index], self.columns_.categories.get(index), index in dates
            )
        return table

    def _learned(self) -> State:
        labels = self.labels_
        config = {
            "columns": list(self.columns_.names),
            "named": hasattr(self, "feature_names_in_"),
            "features": self.n_features_in_,
            "dates": {str(part): index for part, index in self.date_parts_.items()},
            "categories": {str(index): asdict(category) for index, category in self.columns_.categories.items()},
            "weights": self.stack_.weight,
            "labels": None if labels is None or is_numeric(labels) else [to_json(x) for x in labels],
            "target": saved_target(self) | ({"single": self.single_} if hasattr(self, "single_") else {}),
        }
        arrays: dict[str, Any] = {
            "cells": self.cells_,
            "row_index": self.row_index_,
            "target": self.y_,
            "value": self.rows_.value,
            "weight": self.rows_.weight,
            "left_out": self.left_out_,
            **{f"encoder.{name}": array for name, array in self.encoder_.arrays().items()},
            **{f"stack.{name}": array for name, array in stack_arrays(self.stack_).items()},
            **{f"calibration.{name}": array for name, array in self.calibration_.arrays().items()},
        }
        if labels is not None and is_numeric(labels):
            arrays["labels"] = labels
        return State(config, arrays)

    def _restore(self, config: dict[str, Any], arrays: dict[str, Any]) -> None:
        def part(prefix: str) -> dict[str, Any]:
            return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}

        categories = {
            int(index): Category(tuple(category["values"]), category["ordered"])
            for index, category in config["categories"].items()
        }
        self.columns_ = Columns(tuple(config["columns"]), categories)
        self.n_features_in_ = config["features"]
        self.date_parts_ = {int(index): owner for index, owner in config["dates"].items()}
        if config["named"]:
            self.feature_names_in_ = np.array(config["columns"][: self.n_features_in_], dtype=object)
        labels = config["labels"]
        self.labels_ = arrays.get("labels") if labels is None else np.array(labels, dtype=object)
        self.cells_, self.row_index_, self.y_ = arrays["cells"], arrays["row_index"], arrays["target"]
        self.left_out_ = arrays["left_out"]
        self.encoder_ = Encoder(**part("encoder."))
        self.rows_ = Rows(self.encoder_(self.cells_[self.row_index_]), arrays["value"], arrays["weight"])
        self.stack_ = restore_stack(config["weights"], part("stack."))
        restore_target(self, config["target"])
        if "single" in config["target"]:
            self.single_ = config["target"]["single"]
        kind = Intervals if "single" in config["target"] else Temperature
        self.calibration_: Any = kind.from_arrays(part("calibration."))


def shown_cells(cells: Floats, category: Category | None, is_date: bool) -> Labels:
    """A column of cells as it was given: categories by name, whole numbers without a point, dates."""
    missing = np.isnan(cells)
    if category is not None:
        values = np.array([*category.values, None], dtype=object)
        shown: Labels = values[np.where(missing | (cells < 0), len(values) - 1, cells).astype(int)]
        return shown
    if is_date:
        return np.rint(cells * 86_400).astype("datetime64[s]")
    if not missing.any() and (cells == np.rint(cells)).all() and np.abs(cells).max(initial=0) < 2**53:
        return cells.astype(int)
    return cells


@with_settings
class AttentionRegressor(RegressorMixin, MultiOutputMixin, _AttentionEstimator):  # type: ignore[misc]
    """The strong regression for tables: no settings needed, and every prediction is a weighted sum of training targets.

    Takes numbers, categories, dates and missing cells; a frame of pandas, polars or Arrow, or an array.

    After `fit`: `weights_`, how much each kind of member counts, and `left_out_`, predictions for the training rows by
    members that have not seen them.

    >>> import numpy as np
    >>> x = np.linspace(0, 6, 60)[:, None]
    >>> model = AttentionRegressor(effort="low").fit(x, np.sin(x[:, 0]))
    >>> bool(abs(model.predict([[2.05]])[0] - np.sin(2.05)) < 0.1)
    True
    >>> evidence = model.evidence([[2.05]], top=None)
    >>> bool(np.isclose(evidence.weight.sum(), 1))
    True
    """

    @all_or_nothing
    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:  # noqa: N803
        """Learn from rows [n, d] and targets [n] or [n, c]."""
        names = target_names(y)
        check_no_words(y, "AttentionClassifier")
        table = self._read_table(X)
        cells, target = self._validated(table, y, multi_output=True, y_numeric=True)
        target = np.array(target, dtype=np.float64)
        if not np.isfinite(target).all():
            raise ValueError(f"Input y contains NaN or infinity: {int((~np.isfinite(target)).sum())} targets")
        self.single_ = target.ndim == 1
        self.targets_ = names or (["y"] if self.single_ else [f"y{index}" for index in range(target.shape[1])])
        self.y_ = target.reshape(len(target), -1)  # [n, c]
        self._fit_cells(cells, self.y_, _checked_weight(sample_weight, cells))
        return self

    def _calibrate(self, seed: int) -> None:
        self.calibration_ = fit_intervals(self.rows_, self.left_out_, self.stack_.fold, seed)

    @overload
    def predict(self, X: ArrayLike, interval: None = None) -> Floats: ...  # noqa: N803

    @overload
    def predict(self, X: ArrayLike, interval: float) -> tuple[Floats, Floats, Floats]: ...  # noqa: N803

    def predict(self, X: ArrayLike, interval: float | None = None) -> Floats | tuple[Floats, Floats, Floats]:  # noqa: N803
        """Predictions [m] or [m, c]; with `interval=0.9` also the ends of intervals that hold 90 % of new targets."""
        if interval is not None and not (is_number(interval) and 0 < interval < 1):
            raise ValueError(f"interval must be a number above 0 and below 1, such as 0.9, got {interval!r}")
        cells = self._encode(X)
        mean = self._scores(cells)
        if interval is None:
            return self._squeeze(mean)
        low, high = self.calibration_.bounds(self.encoder_(cells), interval)
        return self._squeeze(mean), self._squeeze(mean + low), self._squeeze(mean + high)

    def left_out_score(self) -> float:
        """R² of the training rows, each predicted by members that have not seen it: an estimate of `score`."""
        check_is_fitted(self, "stack_")
        unit = target_units(self.rows_.value)
        return float(r2_score(unit * self.rows_.value, unit * self.left_out_, sample_weight=self.rows_.weight))

    def _squeeze(self, mean: Floats) -> Floats:
        """[m, 1] to [m], if the targets were [n]."""
        return mean[:, 0] if self.single_ else mean


@with_settings
class AttentionClassifier(ClassifierMixin, _AttentionEstimator):  # type: ignore[misc]
    """The strong classification for tables: no settings needed; classes are judged by weighted training rows.

    The score of a class is the weight of its training rows; it may be below 0 or above 1. Probabilities are a monotone
    function of the scores, chosen by rows left out.

    >>> import numpy as np
    >>> x = np.linspace(0, 1, 40)[:, None]
    >>> model = AttentionClassifier(effort="low").fit(x, np.where(x[:, 0] > 0.5, "high", "low"))
    >>> model.predict([[0.1], [0.9]]).tolist()
    ['low', 'high']
    """

    @all_or_nothing
    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:  # noqa: N803
        """Learn from rows [n, d] and classes [n]."""
        names = target_names(y)
        table = self._read_table(X)
        cells, target = self._validated(table, y)
        check_classification_targets(target)
        self.classes_, self.y_ = np.unique(target, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"a classifier needs two classes, got 1 class: {self.classes_.tolist()}")
        self.targets_ = names or ["y"]
        self._fit_cells(cells, np.eye(len(self.classes_))[self.y_], _checked_weight(sample_weight, cells))
        return self

    def _calibrate(self, seed: int) -> None:
        self.calibration_ = fit_temperature(self.left_out_, self.rows_)

    def _explained(self, cells: Floats) -> Floats:
        chance: Floats = self.calibration_.probability(self._scores(cells))
        return chance

    def predict_proba(self, X: ArrayLike) -> Floats:  # noqa: N803
        """The probability of each class, [m, classes]."""
        return self._explained(self._encode(X))

    def predict_log_proba(self, X: ArrayLike) -> Floats:  # noqa: N803
        """The logarithms of the probabilities, [m, classes]."""
        return np.log(self.predict_proba(X))

    def predict(self, X: ArrayLike) -> Labels:  # noqa: N803
        """The most probable class, [m]."""
        best = self.predict_proba(X).argmax(axis=1)
        label: Labels = self.classes_[best]
        return label

    def left_out_score(self) -> float:
        """The accuracy on training rows, each predicted by members that have not seen it."""
        check_is_fitted(self, "stack_")
        right = self.left_out_.argmax(axis=1) == self.rows_.value.argmax(axis=1)
        return float(np.average(right, weights=self.rows_.weight))


def _checked_weight(sample_weight: ArrayLike | None, cells: Floats) -> Floats | None:
    """The weights of rows as floats."""
    if sample_weight is None:
        return None
    weight: Floats = _check_sample_weight(sample_weight, cells, dtype=np.float64, ensure_non_negative=True)
    return weight
