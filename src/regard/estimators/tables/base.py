"""What kernel regression and classification share: the training rows, the bandwidth, and the evidence."""

import math
import numbers
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted, validate_data

from regard.data.columns import Category, Columns, Floats, Scale, as_frame, find_columns, fit_scale
from regard.engines.job import Plan
from regard.estimators.evidence import check_memory, checked_top
from regard.estimators.settings import saved_settings, seed_of
from regard.estimators.tables.bandwidth import (
    CHOICES,
    PAIRS_MANY_FACTORS,
    Bandwidth,
    apply_rule,
    choose_bandwidth,
    left_out_rows,
)
from regard.estimators.tables.evidence import Evidence, Labels, is_numeric, row_labels, top_rows
from regard.estimators.tables.metric_learning import METRICS
from regard.estimators.tables.smoother import KERNELS, Rows, Smoother
from regard.saving import to_json, write_folder
from regard.scores import Score

Kernel = Literal["gaussian", "laplace", "epanechnikov", "boxcar", "tricube", "constant"] | Score


class KernelEstimator(BaseEstimator):  # type: ignore[misc]
    """What regression and classification share: the rows, the bandwidth, and the evidence."""

    def __init__(
        self,
        bandwidth: Bandwidth | None = None,
        *,
        kernel: Kernel = "gaussian",
        metric: Literal["scalar", "diagonal", "full"] = "scalar",
        scale: Literal["rank", "standard"] | None = None,
        categorical: Literal["dtype"] | Sequence[str | int] | None = "dtype",
        ordered: Sequence[str | int] | None = None,
        tol: float = 1e-6,
        random_state: int | None = None,
        verbose: bool = True,
    ) -> None:
        self.bandwidth = bandwidth
        self.kernel = kernel
        self.metric = metric
        self.scale = scale
        self.categorical = categorical
        self.ordered = ordered
        self.tol = tol
        self.random_state = random_state
        self.verbose = verbose

    def _order(self) -> int:
        """0: local average. 1: local line."""
        return 0

    def _read_table(self, X: ArrayLike) -> object:  # noqa: N803
        """Find the categorical columns, and return the table with their codes."""
        table = as_frame(X)
        self.columns_ = find_columns(table, self.categorical, self.ordered)
        self.labels_ = row_labels(table)
        return self.columns_.encode(table)

    def _fit_rows(self, X: Floats, value: Floats, weight: Floats | None) -> Self:  # noqa: N803
        """Store the rows, which are validated and encoded, and choose the bandwidth."""
        self._check_settings()
        self.X_ = X.copy()  # the caller may change its own later
        self.row_index_ = np.arange(len(X)) if weight is None else np.flatnonzero(weight > 0)
        weight = None if weight is None or (weight[self.row_index_] == 1).all() else weight[self.row_index_]
        self.scale_ = fit_scale(X[self.row_index_][:, self.columns_.numbers], weight, self.scale)
        bandwidth = self.bandwidth
        if bandwidth is None:
            bandwidth = 1.0 if callable(self.kernel) else "scott"
        start = apply_rule(self._make_smoother(value[self.row_index_], weight), "scott")
        self.smoother_, self.criterion_, self.history_ = choose_bandwidth(
            start, self.columns_, bandwidth, self.metric, self._seed, self.verbose
        )
        return self

    def _make_smoother(self, value: Floats, weight: Floats | None) -> Smoother:
        """The rows of positive weight and their targets, without a bandwidth yet."""
        categories = [self.columns_.categories[index] for index in self.columns_.codes]
        return Smoother(
            rows=self._rows(self.X_[self.row_index_]),
            value=value,
            weight=weight,
            kernel=self.kernel,
            bandwidth=np.ones(len(self.columns_.numbers)),
            category_bandwidth=np.zeros(len(categories)),
            ordered=np.array([category.ordered for category in categories], dtype=bool),
            levels=np.array([len(category.values) for category in categories], dtype=float),
            order=self._order(),
            tolerance=float(self.tol),
        )

    def _rows(self, X: Floats) -> Rows:  # noqa: N803
        """A validated and encoded table as the smoother takes it."""
        return Rows(self.scale_(X[:, self.columns_.numbers]), X[:, self.columns_.codes])

    def _encode(self, X: ArrayLike) -> Floats:  # noqa: N803
        """New rows, validated, with categories as codes."""
        check_is_fitted(self, "smoother_")
        table = as_frame(X)
        if hasattr(table, "columns"):  # names first: a column in the wrong position may hold anything
            validate_data(self, table, reset=False, skip_check_array=True)
        encoded: Floats = validate_data(self, self.columns_.encode(table), reset=False, dtype=np.float64)
        return encoded

    def _query(self, X: ArrayLike) -> Rows:  # noqa: N803
        """New rows as the smoother takes them."""
        return self._rows(self._encode(X))

    def _seed(self) -> int:
        """One seed for all random numbers."""
        return seed_of(self.random_state)

    def _check_settings(self) -> None:
        """Raise on wrong settings; scikit-learn's convention is to check them in `fit`."""
        if not callable(self.kernel) and self.kernel not in (*KERNELS, "constant"):
            names = ", ".join([*KERNELS, "constant"])
            raise ValueError(f"kernel must be one of {names}, or a score of your own, got {self.kernel!r}")
        if isinstance(self.bandwidth, str) and self.bandwidth not in CHOICES:
            raise ValueError(f"bandwidth must be a number, or one of {', '.join(CHOICES)}, got {self.bandwidth!r}")
        if self.metric not in METRICS:
            raise ValueError(f"metric must be one of {', '.join(METRICS)}, got {self.metric!r}")
        if not (isinstance(self.tol, numbers.Real) and 0 <= self.tol < 1):
            raise ValueError(f"tol must be at least 0 and below 1, got {self.tol!r}")
        if self._order() not in (0, 1):
            raise ValueError(f"order must be 0 (local average) or 1 (local line), got {self._order()!r}")

    @property
    def bandwidth_(self) -> Floats:
        """One for each column (λ for a categorical one), or the matrix H of the numeric ones; in units of the scale."""
        check_is_fitted(self, "smoother_")
        smoother = self.smoother_
        if smoother.bandwidth.ndim == 2:
            return smoother.bandwidth
        widths = np.empty(len(self.columns_.names))
        widths[self.columns_.numbers] = smoother.bandwidth
        widths[self.columns_.codes] = smoother.category_bandwidth
        return widths

    def _leave_one_out(self) -> tuple[Floats, Floats, Floats | None]:
        """Targets of training rows, predictions from the others, and weights; a random sample of very many rows."""
        check_is_fitted(self, "smoother_")
        smoother = self.smoother_
        if len(smoother.rows) < 2:
            raise ValueError(f"leaving a row out needs two rows, got {len(smoother.rows)}")
        rows = left_out_rows(smoother, PAIRS_MANY_FACTORS, self._seed())
        mean, _ = smoother.predict(smoother.rows[rows], rows)
        return smoother.value[rows], mean, None if smoother.weight is None else smoother.weight[rows]

    def _warn_empty(self, log_weight: Floats) -> None:
        """Warn of rows that see no training row."""
        empty = int((log_weight == -math.inf).sum())
        if empty:
            known = "the average of all" if callable(self.kernel) else "the nearest one"
            warnings.warn(
                f"{empty} of {len(log_weight)} rows see no training row within the kernel's support, and are predicted"
                f" by {known}; a wider bandwidth or kernel='gaussian' sees more",
                UserWarning,
                stacklevel=3,
            )

    def plan(self, X: ArrayLike) -> Plan:  # noqa: N803
        """The engine that `predict` runs for these rows, and why."""
        query = self._query(X)
        return self.smoother_.plan(query)

    def log_density(self, X: ArrayLike) -> Floats:  # noqa: N803
        """The log of the kernel density estimate, [m]: the amount of training data near each row.

        Low where the model extrapolates, -inf where a kernel of bounded support sees no training row. It is the density
        of the numeric columns in the units of `scale`, times the probability of the categories.
        """
        query = self._query(X)
        smoother = self.smoother_
        return smoother.log_density(smoother.pool(query, smoother.value[:, :1]).log_weight)

    def evidence(self, X: ArrayLike, top: int | None = 5) -> Evidence:  # noqa: N803
        """The training rows behind each prediction, by weight, and the weight of the rest.

        With `top=None` all of them, sorted by weight; more than 2 GiB raise ValueError. The weights of a local linear
        fit may be negative.
        """
        query = self._query(X)
        most = checked_top(top, len(self.smoother_.rows), "rows")
        check_memory(len(query), most, "rows")
        index, weight, rest = top_rows(self.smoother_, query, most)
        rows = np.where(index < 0, -1, self.row_index_[index])
        return Evidence(rows, weight, rest, self._evidence_table(), self.labels_, row_labels(X))

    def _evidence_table(self) -> dict[str, Labels]:
        """Targets and features of the training rows, as they were given."""
        table = self._target_table()
        for index, name in enumerate(self.columns_.names):
            cells = self.X_[:, index]
            category = self.columns_.categories.get(index)
            label = name if hasattr(self, "feature_names_in_") else f"x{index}"
            column: Labels = cells
            if category:
                column = np.array(category.values, dtype=object)[cells.astype(int)]
            elif (cells == np.rint(cells)).all() and np.abs(cells).max(initial=0) < 2**53:
                column = cells.astype(int)  # 4 rooms, not 4.0
            table[label if label not in table else f"{label}_"] = column
        return table

    def _target_table(self) -> dict[str, Labels]:
        raise NotImplementedError

    def save(self, folder: str | Path) -> Path:
        """Write the model to a folder, from which `regard.load` reads it."""
        check_is_fitted(self)
        return write_folder(folder, *self.state())

    def state(self) -> tuple[dict[str, Any], dict[str, Labels]]:
        """The whole fitted model: a config that JSON can hold, and arrays."""
        if callable(self.kernel):
            raise ValueError("a model with a score of your own cannot be saved: no file can hold a function")
        smoother, labels = self.smoother_, self.labels_
        config = {
            "estimator": type(self).__name__,
            "settings": saved_settings(self),
            "columns": list(self.columns_.names),
            "named": hasattr(self, "feature_names_in_"),
            "categories": {
                str(index): {"values": list(category.values), "ordered": category.ordered}
                for index, category in self.columns_.categories.items()
            },
            "criterion": self.criterion_,
            "labels": None if labels is None or is_numeric(labels) else [to_json(x) for x in labels],
            "target": self._target_state(),
        }
        # The names of the arrays are the file format, older than those of the attributes.
        arrays: dict[str, Labels | None] = {
            "X": self.X_,
            "value": smoother.value,
            "kept": self.row_index_,
            "bandwidth": smoother.bandwidth,
            "blur": smoother.category_bandwidth,
            "spread": np.array(smoother.ridge),
            "scale.centre": self.scale_.centre,
            "scale.spread": self.scale_.spread,
            "scale.edge": np.array(self.scale_.edge),
            "weight": smoother.weight,
            "scale.quantiles": self.scale_.quantiles,
            "target": self.y_,
            "labels": labels if labels is not None and is_numeric(labels) else None,
        }
        return config, {name: array for name, array in arrays.items() if array is not None}

    @classmethod
    def from_state(cls, config: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> Self:
        """The model of a `state`."""
        model = cls(**config["settings"])
        categories = {
            int(index): Category(tuple(category["values"]), category["ordered"])
            for index, category in config["categories"].items()
        }
        model.columns_ = Columns(tuple(config["columns"]), categories)
        model.n_features_in_ = len(model.columns_.names)
        if config["named"]:
            model.feature_names_in_ = np.array(config["columns"], dtype=object)
        labels = config["labels"]
        model.labels_ = arrays.get("labels") if labels is None else np.array(labels, dtype=object)
        model.X_, model.row_index_, model.y_ = arrays["X"], arrays["kept"], arrays["target"]
        model.criterion_, model.history_ = config["criterion"], ()
        model.scale_ = Scale(
            arrays["scale.centre"], arrays["scale.spread"], arrays.get("scale.quantiles"), arrays["scale.edge"].item()
        )
        model.smoother_ = replace(
            model._make_smoother(arrays["value"], arrays.get("weight")),
            bandwidth=arrays["bandwidth"],
            category_bandwidth=arrays["blur"],
            ridge=arrays["spread"].item(),
        )
        model._restore_target(config["target"])
        return model

    def _target_state(self) -> dict[str, Any]:
        raise NotImplementedError

    def _restore_target(self, state: dict[str, Any]) -> None:
        raise NotImplementedError
