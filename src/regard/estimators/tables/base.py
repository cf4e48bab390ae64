"""What kernel regression and classification share: the training rows, the bandwidth, and the evidence."""

import math
import numbers
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted, validate_data

from regard.data.columns import Category, Columns, Scale, as_frame, scale_of, seen_in
from regard.engines.job import Plan
from regard.estimators.evidence import Evidence, check_room, checked_top, labels_of, numeric
from regard.estimators.settings import saved_settings, seed_of
from regard.estimators.tables.bandwidth import PAIRS_APART, by_rule, trial_rows
from regard.estimators.tables.bandwidth_choice import CHOICES, Bandwidth, choose
from regard.estimators.tables.metric_learning import METRICS
from regard.estimators.tables.smoother import KERNELS, Smoother
from regard.estimators.tables.top_rows import largest
from regard.saving import jsonable, write
from regard.scores import Score

Array = Any
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

    def smoothing_order(self) -> int:
        return 0

    def fit_rows(self, X: Array, value: Array, weight: Array | None) -> Self:  # noqa: N803
        """Keep the rows, X validated and encoded, and find the bandwidth."""
        self.check_settings()
        self.X_ = X.copy()  # what the caller does with it later is not ours
        self.kept_ = np.arange(len(X)) if weight is None else np.flatnonzero(weight > 0)
        weight = None if weight is None or (weight[self.kept_] == 1).all() else weight[self.kept_]
        number, _ = self.parts(X[self.kept_])
        self.scale_ = scale_of(number, weight, self.scale)
        asked = self.bandwidth
        if asked is None:
            asked = 1.0 if callable(self.kernel) else "scott"
        start = by_rule(self.smoother_of(value[self.kept_], weight), "scott")
        self.smoother_, self.criterion_, self.history_ = choose(
            start, self.columns_, asked, self.metric, self.seed, self.verbose
        )
        return self

    def smoother_of(self, value: Array, weight: Array | None) -> Smoother:
        """The kept rows and their targets as a function, whose bandwidth is still to be found."""
        number, code = self.parts(self.X_[self.kept_])
        categories = [self.columns_.categories[place] for place in self.columns_.codes]
        return Smoother(
            number=self.scale_(number),
            code=code,
            value=value,
            weight=weight,
            kernel=self.kernel,
            bandwidth=np.ones(number.shape[1]),
            blur=np.zeros(len(categories)),
            ordered=np.array([category.ordered for category in categories], dtype=bool),
            levels=np.array([len(category.values) for category in categories], dtype=float),
            order=self.smoothing_order(),
            tolerance=float(self.tol),
        )

    @property
    def bandwidth_(self) -> Array:
        """One a column (λ for a categorical one), or the matrix H of the numeric ones; in units of the scale."""
        check_is_fitted(self, "smoother_")
        found = self.smoother_
        if found.bandwidth.ndim == 2:
            return found.bandwidth
        whole = np.empty(len(self.columns_.names))
        whole[self.columns_.numbers], whole[self.columns_.codes] = found.bandwidth, found.blur
        return whole

    def left_out(self) -> tuple[Array, Array, Array | None]:
        """Targets of training rows, what the others predict of each, and the rows' weights; some rows, of very many."""
        check_is_fitted(self, "smoother_")
        found = self.smoother_
        if len(found.number) < 2:
            raise ValueError(f"to leave a row out there must be two, got {len(found.number)}")
        rows = trial_rows(found, PAIRS_APART, self.seed())
        mean, _ = found.predict(found.number[rows], found.code[rows], rows)
        return found.value[rows], mean, None if found.weight is None else found.weight[rows]

    def seed(self) -> int:
        """One seed for all that is drawn."""
        return seed_of(self.random_state)

    def check_settings(self) -> None:
        """What must hold of the settings; scikit-learn's habit is to check them in `fit`."""
        if not callable(self.kernel) and self.kernel not in (*KERNELS, "constant"):
            names = ", ".join([*KERNELS, "constant"])
            raise ValueError(f"kernel must be one of {names}, or a score of your own, got {self.kernel!r}")
        if isinstance(self.bandwidth, str) and self.bandwidth not in CHOICES:
            raise ValueError(f"bandwidth must be a number, or one of {', '.join(CHOICES)}, got {self.bandwidth!r}")
        if self.metric not in METRICS:
            raise ValueError(f"metric must be one of {', '.join(METRICS)}, got {self.metric!r}")
        if not (isinstance(self.tol, numbers.Real) and 0 <= self.tol < 1):
            raise ValueError(f"tol must be at least 0 and below 1, got {self.tol!r}")
        if self.smoothing_order() not in (0, 1):
            raise ValueError(f"order must be 0 (local average) or 1 (local line), got {self.smoothing_order()!r}")

    def parts(self, X: Array) -> tuple[Array, Array]:  # noqa: N803
        """Numbers and codes of a validated table."""
        return X[:, self.columns_.numbers], X[:, self.columns_.codes]

    def encoded(self, X: Any) -> Array:  # noqa: N803
        """New rows, validated, with categories as codes."""
        check_is_fitted(self, "smoother_")
        X = as_frame(X)  # noqa: N806
        if hasattr(X, "columns"):  # names first: a column in another's place may hold anything
            validate_data(self, X, reset=False, skip_check_array=True)
        return validate_data(self, self.columns_.encode(X), reset=False, dtype=np.float64)

    def asked(self, X: Any) -> tuple[Array, Array]:  # noqa: N803
        """New rows as the smoother takes them."""
        number, code = self.parts(self.encoded(X))
        return self.scale_(number), code

    def warn_blind(self, log_weight: Array) -> None:
        """Say for how many rows the prediction is only the nearest row's."""
        blind = int((log_weight == -math.inf).sum())
        if blind:
            known = "the average of all" if callable(self.kernel) else "the nearest one"
            warnings.warn(
                f"{blind} of {len(log_weight)} rows see no training row within the kernel's reach, and are predicted"
                f" by {known}; a wider bandwidth or kernel='gaussian' sees more",
                UserWarning,
                stacklevel=3,
            )

    def plan(self, X: Any) -> Plan:  # noqa: N803
        """Which engine `predict` runs for these rows, and why."""
        number, code = self.asked(X)
        return self.smoother_.plan(number, code)

    def log_density(self, X: Any) -> Array:  # noqa: N803
        """How much training data is near: the log of the kernel density estimate, [m].

        Low where the model is guessing, -inf where a compact kernel sees no training row. It is the density of
        the numeric columns in the units of `scale`, times the probability of the categories.
        """
        number, code = self.asked(X)
        smoother = self.smoother_
        return smoother.log_density(smoother.pool(number, code, smoother.value[:, :1]).log_weight)

    def evidence(self, X: Any, top: int | None = 5) -> Evidence:  # noqa: N803
        """The training rows behind each prediction, by weight, and the weight of the rest.

        With `top=None` all of them, sorted by weight; more than 2 GiB of them are refused. The weights of a
        local linear fit may be negative.
        """
        number, code = self.asked(X)
        smoother = self.smoother_
        most = checked_top(top, len(smoother.number), "rows")
        check_room(len(number), most, "rows")
        index, weight, rest = largest(smoother, number, code, most)
        rows = np.where(index < 0, -1, self.kept_[index])
        return Evidence(rows, weight, rest, self.evidence_table(), self.labels_, labels_of(X))

    def evidence_table(self) -> dict[str, Array]:
        """Targets and features of the training rows, as the user wrote them."""
        table = self.target_table()
        for place, name in enumerate(self.columns_.names):
            column = self.X_[:, place]
            category = self.columns_.categories.get(place)
            label = name if hasattr(self, "feature_names_in_") else f"x{place}"
            if category:
                column = np.array(category.values, dtype=object)[column.astype(int)]
            elif (column == np.rint(column)).all() and np.abs(column).max(initial=0) < 2**53:
                column = column.astype(int)  # 4 rooms, not 4.0
            table[label if label not in table else f"{label}_"] = column
        return table

    def target_table(self) -> dict[str, Array]:
        raise NotImplementedError

    def save(self, folder: str | Path) -> Path:
        """Write the model to a folder, from which `regard.load` reads it."""
        check_is_fitted(self)
        return write(folder, *self.state())

    def state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """All there is to a fitted model: what JSON can hold, and arrays."""
        if callable(self.kernel):
            raise ValueError("a model with a score of your own cannot be saved: no file can hold a function")
        smoother = self.smoother_
        config = {
            "estimator": type(self).__name__,
            "settings": saved_settings(self),
            "columns": list(self.columns_.names),
            "named": hasattr(self, "feature_names_in_"),
            "categories": {
                str(place): {"values": list(category.values), "ordered": category.ordered}
                for place, category in self.columns_.categories.items()
            },
            "criterion": self.criterion_,
            "labels": None if self.labels_ is None or numeric(self.labels_) else [jsonable(x) for x in self.labels_],
            "target": self.target_state(),
        }
        arrays = {"X": self.X_, "value": smoother.value, "kept": self.kept_}
        arrays |= {"bandwidth": smoother.bandwidth, "blur": smoother.blur, "spread": np.array(smoother.spread)}
        arrays |= {"scale.centre": self.scale_.centre, "scale.spread": self.scale_.spread}
        arrays["scale.edge"] = np.array(self.scale_.edge)
        optional = {"weight": smoother.weight, "scale.quantiles": self.scale_.quantiles, "target": self.target_array()}
        optional["labels"] = self.labels_ if self.labels_ is not None and numeric(self.labels_) else None
        return config, arrays | {name: array for name, array in optional.items() if array is not None}

    @classmethod
    def from_state(cls, config: dict[str, Any], arrays: dict[str, Array]) -> Self:
        """The model that `state` was taken of."""
        model = cls(**config["settings"])
        categories = {
            int(place): Category(tuple(category["values"]), category["ordered"])
            for place, category in config["categories"].items()
        }
        model.columns_ = Columns(tuple(config["columns"]), categories)
        model.n_features_in_ = len(model.columns_.names)
        if config["named"]:
            model.feature_names_in_ = np.array(config["columns"], dtype=object)
        labels = config["labels"]
        model.labels_ = arrays.get("labels") if labels is None else np.array(labels, dtype=object)
        model.X_, model.kept_, model.history_ = arrays["X"], arrays["kept"], ()
        model.criterion_ = config["criterion"]
        model.scale_ = Scale(
            arrays["scale.centre"], arrays["scale.spread"], arrays.get("scale.quantiles"), arrays["scale.edge"].item()
        )
        model.smoother_ = replace(
            model.smoother_of(arrays["value"], arrays.get("weight")),
            bandwidth=arrays["bandwidth"],
            blur=arrays["blur"],
            spread=arrays["spread"].item(),
        )
        model.restore_target(config["target"], arrays.get("target"))
        return model

    def target_state(self) -> Any:
        raise NotImplementedError

    def target_array(self) -> Array | None:
        raise NotImplementedError

    def restore_target(self, state: Any, array: Array | None) -> None:
        raise NotImplementedError

    def see(self, X: Any) -> Any:  # noqa: N803
        """Learn which columns are categories, and give the table with their codes."""
        X = as_frame(X)  # noqa: N806
        self.columns_ = seen_in(X, self.categorical, self.ordered)
        self.labels_ = labels_of(X)
        return self.columns_.encode(X)
