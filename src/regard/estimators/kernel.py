"""Kernel regression and classification on a user's own table: attention whose keys are the training rows.

    f(x) = Σᵢ α(x, xᵢ) yᵢ        α = softmax of log K(‖H⁻¹(x - xᵢ)‖)

Every prediction can show its evidence: the training rows behind it, and their weights.
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from scipy.spatial import KDTree
from sklearn.base import BaseEstimator, ClassifierMixin, MultiOutputMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from regard.engines.job import Plan
from regard.engines.sums import log_kernel
from regard.estimators.bandwidths import RULES, SEARCHES, by_rule, search
from regard.estimators.columns import Category, Columns, Scale, scale_of, seen_in
from regard.estimators.evidence import Evidence
from regard.estimators.local import RIDGE
from regard.estimators.metric import METRICS, learn
from regard.estimators.smoother import KERNELS, Smoother, line
from regard.kernels import Mixed
from regard.scores import Score

CHOICES = (*RULES, *SEARCHES, "learn")
WHOLE_LIMIT = 2 * 2**30
"""Bytes that all weights together may take."""
TREE_FROM = 10**8
"""Pairs from which the largest weights are found by a tree of neighbours."""

STEP = 1e-3
"""Of differences, in bandwidths: their error is some 1e-10, half of it from rounding."""

Array = Any
Bandwidth = float | Sequence[float] | Literal["scott", "silverman", "cv", "aicc", "learn"]
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
        kept = np.arange(len(X)) if weight is None else np.flatnonzero(weight > 0)
        weight = None if weight is None or (weight[kept] == weight[kept][0]).all() else weight[kept]
        number, code = self.parts(X[kept])
        self.scale_ = scale_of(number, weight, self.scale)
        categories = [self.columns_.categories[place] for place in self.columns_.codes]
        smoother = Smoother(
            self.scale_(number),
            code,
            value[kept],
            weight,
            self.kernel,
            np.ones(number.shape[1]),
            np.zeros(len(categories)),
            np.array([category.ordered for category in categories], dtype=bool),
            np.array([len(category.values) for category in categories], dtype=float),
            self.smoothing_order(),
            self.tol,
        )
        self.kept_ = kept
        self.X_ = X
        self.smoother_ = self.with_bandwidth(by_rule(smoother, "scott"))
        return self

    @property
    def bandwidth_(self) -> Array:
        """One a column (λ for a categorical one), or the matrix H of the numeric ones; in units of the scale."""
        found = self.smoother_
        if found.bandwidth.ndim == 2:
            return found.bandwidth
        whole = np.empty(len(self.columns_.names))
        whole[self.columns_.numbers], whole[self.columns_.codes] = found.bandwidth, found.blur
        return whole

    def with_bandwidth(self, smoother: Smoother) -> Smoother:
        """The smoother with the bandwidth that was asked for, given one with that of a rule."""
        asked = self.bandwidth
        if asked is None:
            asked = 1.0 if callable(self.kernel) else "scott"
        self.history_: tuple[Any, ...] = ()
        if not isinstance(asked, str):
            return self.given(smoother, asked)
        if self.kernel == "constant" or not (smoother.number.shape[1] + len(smoother.blur)):
            return smoother
        if asked in RULES:
            return by_rule(smoother, asked)
        if asked in SEARCHES:
            if self.metric == "full":
                raise ValueError(f"metric='full' is learned by gradient: bandwidth='learn', got bandwidth={asked!r}")
            found = search(smoother, asked, self.metric, self.seed(), self.verbose)
            self.criterion_ = found.value
            return found.smoother
        return self.learned(smoother)

    def given(self, smoother: Smoother, asked: Any) -> Smoother:
        """A bandwidth in numbers: one for all, one a column, or a matrix for the numeric columns."""
        width = np.asarray(asked, dtype=float)
        columns, numbers = len(self.columns_.names), smoother.number.shape[1]
        if width.ndim == 2:
            if (
                width.shape != (numbers, numbers)
                or not np.isfinite(width).all()
                or np.linalg.matrix_rank(width) < numbers
            ):
                raise ValueError(
                    f"a bandwidth matrix must be invertible and [{numbers}, {numbers}], one row a numeric column,"
                    f" got shape {list(width.shape)}"
                )
            return replace(smoother, bandwidth=width)
        if width.ndim == 1 and len(width) != columns:
            raise ValueError(f"bandwidth must be one number or one for each of {columns} columns, got {len(width)}")
        if width.ndim > 2 or not np.isfinite(width).all():
            raise ValueError(f"bandwidth must be finite, one number, one a column or a matrix, got {asked!r}")
        if width.ndim == 0:
            if not width > 0:
                raise ValueError(f"bandwidth must be positive, got {asked!r}")
            return replace(smoother, bandwidth=np.full(numbers, float(width)))
        blur = width[self.columns_.codes]
        if (width[self.columns_.numbers] <= 0).any() or (blur < 0).any() or (blur > 1).any():
            raise ValueError(f"bandwidths must be positive, and those of categories between 0 and 1, got {asked!r}")
        return replace(smoother, bandwidth=width[self.columns_.numbers], blur=blur)

    def learned(self, smoother: Smoother) -> Smoother:
        """The metric by gradient descent on the error of rows left out; then λ of the categories, by search."""
        if len(smoother.number) < 2:
            raise ValueError(
                f"bandwidth='learn' leaves rows out in turn and needs two, got n_samples={len(smoother.number)}:"
                " give a number"
            )
        if callable(self.kernel):
            raise ValueError("bandwidth='learn' needs a kernel by name; train a score of your own with regard.attend")
        if smoother.number.shape[1]:
            slope, jump = (torch.as_tensor(x) for x in smoother.penalty)
            kernel = KERNELS[self.kernel]
            codes = len(smoother.blur)
            found = learn(
                torch.as_tensor(np.hstack([smoother.number, smoother.code])),
                torch.as_tensor(smoother.value),
                None if smoother.weight is None else torch.as_tensor(smoother.weight),
                start=torch.as_tensor(smoother.bandwidth),
                metric=self.metric,
                order=smoother.order,
                make_score=(lambda width: Mixed(kernel(width), slope, jump)) if codes else kernel,
                codes=codes,
                seed=self.seed(),
                progress=self.verbose,
            )
            self.history_ = found.history
            smoother = replace(smoother, bandwidth=found.bandwidth.numpy(), spread=RIDGE)
            self.criterion_ = found.error**2 * float(np.mean(np.var(smoother.value, axis=0)))
        if len(smoother.blur):
            found_blur = search(smoother, "cv", "scalar", self.seed(), self.verbose)
            self.criterion_ = found_blur.value
            return found_blur.smoother
        return smoother

    def seed(self) -> int:
        """One seed for all that is drawn."""
        if self.random_state is None:
            return 0
        if isinstance(self.random_state, np.random.RandomState):
            return int(self.random_state.randint(2**31 - 1))
        return int(self.random_state)

    def check_settings(self) -> None:
        """What must hold of the settings; scikit-learn's habit is to check them in `fit`."""
        if not callable(self.kernel) and self.kernel not in (*KERNELS, "constant"):
            names = ", ".join([*KERNELS, "constant"])
            raise ValueError(f"kernel must be one of {names}, or a score of your own, got {self.kernel!r}")
        if isinstance(self.bandwidth, str) and self.bandwidth not in CHOICES:
            raise ValueError(f"bandwidth must be a number, or one of {', '.join(CHOICES)}, got {self.bandwidth!r}")
        if self.metric not in METRICS:
            raise ValueError(f"metric must be one of {', '.join(METRICS)}, got {self.metric!r}")
        if not (isinstance(self.tol, float | int) and 0 <= self.tol < 1):
            raise ValueError(f"tol must be at least 0 and below 1, got {self.tol!r}")
        if self.smoothing_order() not in (0, 1):
            raise ValueError(f"order must be 0 (local average) or 1 (local line), got {self.smoothing_order()!r}")

    def parts(self, X: Array) -> tuple[Array, Array]:  # noqa: N803
        """Numbers and codes of a validated table."""
        return X[:, self.columns_.numbers], X[:, self.columns_.codes]

    def asked(self, X: Any) -> tuple[Array, Array]:  # noqa: N803
        """New rows as the smoother takes them."""
        check_is_fitted(self)
        X = validate_data(self, self.columns_.encode(X), reset=False, dtype=np.float64)  # noqa: N806
        number, code = self.parts(X)
        return self.scale_(number), code

    def warn_blind(self, log_weight: Array) -> None:
        """Say for how many rows the prediction is only the nearest row's."""
        blind = int((log_weight == -math.inf).sum())
        if blind:
            warnings.warn(
                f"{blind} of {len(log_weight)} rows see no training row within the kernel's reach, and are predicted"
                " by the nearest one; a wider bandwidth or kernel='gaussian' sees more",
                UserWarning,
                stacklevel=3,
            )

    def plan(self, X: Any) -> Plan:  # noqa: N803
        """Which engine `predict` runs for these rows, and why."""
        return self.smoother_.plan(*self.asked(X))

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
        if top is not None and (isinstance(top, bool) or not hasattr(top, "__index__") or top < 1):
            raise ValueError(f"top must be a positive whole number, or None for all rows, got {top!r}")
        number, code = self.asked(X)
        smoother, count = self.smoother_, len(self.smoother_.number)
        size = 2 * 8 * len(number) * count
        if top is None and size > WHOLE_LIMIT:
            raise ValueError(
                f"all weights of {len(number):,} rows over {count:,} training rows would take"
                f" {size / 2**30:.1f} GiB, above the limit of 2 GiB: ask for top=8, or for fewer rows at a time"
            )
        index, weight, rest = largest(smoother, number, code, count if top is None else min(int(top), count))
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
        from regard.saving import write

        check_is_fitted(self)
        return write(folder, *self.state())

    def state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """All there is to a fitted model: what JSON can hold, and arrays."""
        if callable(self.kernel):
            raise ValueError("a model with a score of your own cannot be saved: no file can hold a function")
        smoother = self.smoother_
        settings = {name: jsonable(value) for name, value in self.get_params(deep=False).items()}
        config = {
            "estimator": type(self).__name__,
            "settings": settings,
            "columns": list(self.columns_.names),
            "named": hasattr(self, "feature_names_in_"),
            "categories": {
                str(place): {"values": list(category.values), "ordered": category.ordered}
                for place, category in self.columns_.categories.items()
            },
            "labels": None if self.labels_ is None or numeric(self.labels_) else [jsonable(x) for x in self.labels_],
            "target": self.target_state(),
        }
        arrays = {"X": self.X_, "value": smoother.value, "kept": self.kept_}
        arrays |= {"bandwidth": smoother.bandwidth, "blur": smoother.blur, "spread": np.array(smoother.spread)}
        arrays |= {"scale.centre": self.scale_.centre, "scale.spread": self.scale_.spread}
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
        labels = arrays.get("labels", config["labels"])
        model.labels_ = None if labels is None else np.asarray(labels)
        model.X_, model.kept_, model.history_ = arrays["X"], arrays["kept"], ()
        model.scale_ = Scale(arrays["scale.centre"], arrays["scale.spread"], arrays.get("scale.quantiles"))
        number, code = model.parts(model.X_[model.kept_])
        seen = [categories[place] for place in sorted(categories)]
        model.smoother_ = Smoother(
            model.scale_(number),
            code,
            arrays["value"],
            arrays.get("weight"),
            model.kernel,
            arrays["bandwidth"],
            arrays["blur"],
            np.array([category.ordered for category in seen], dtype=bool),
            np.array([len(category.values) for category in seen], dtype=float),
            model.smoothing_order(),
            model.tol,
            arrays["spread"].item(),
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
        self.columns_ = seen_in(X, self.categorical, self.ordered)
        self.labels_ = labels_of(X)
        return self.columns_.encode(X)


class NadarayaWatson(RegressorMixin, MultiOutputMixin, KernelEstimator):  # type: ignore[misc]
    """Kernel regression: predictions are weighted averages of the training targets, or local lines through them.

    bandwidth     a number, a number a column, a matrix; "scott", "silverman"; "cv" (leave-one-out least
                  squares), "aicc"; "learn" (gradient descent on the leave-one-out error). "scott" where it is
                  not given. For a categorical column it is λ, between 0 and 1
    kernel        "gaussian", "laplace", "epanechnikov", "boxcar", "tricube"; "constant" predicts the mean; or
                  a score of your own, called with rows divided by the bandwidth (1 where it is not given)
    metric        what is searched or learned: "scalar", one factor on the columns' spreads; "diagonal", one
                  bandwidth a column; "full", a matrix ("learn" only)
    order         0: local average. 1: local line, without bias at the edges
    scale         units of the numeric columns: as they are (None), "standard" deviations, or normal scores by
                  "rank". The bandwidth is in these units
    categorical   "dtype": columns of a pandas frame that hold no numbers; or a list of columns
    ordered       columns whose categories have an order; those of an ordered pandas dtype have it anyway
    tol           how far a prediction may be off, as a share of the standard deviation of y
    random_state  a seed: one seed, one result
    verbose       progress bars for what takes longer than a second

    After `fit`: `bandwidth_`, and `criterion_` where there was a search.

    >>> import numpy as np
    >>> x = np.linspace(0, 5, 50)[:, None]
    >>> model = NadarayaWatson(bandwidth="cv").fit(x, np.sin(x[:, 0]))
    >>> bool(abs(model.predict([[2.0]])[0] - np.sin(2.0)) < 0.01)
    True
    >>> model.evidence([[2.0]], top=2).index.tolist()
    [[20, 19]]
    """

    def __init__(
        self,
        bandwidth: Bandwidth | None = None,
        *,
        kernel: Kernel = "gaussian",
        metric: Literal["scalar", "diagonal", "full"] = "scalar",
        order: Literal[0, 1] = 0,
        scale: Literal["rank", "standard"] | None = None,
        categorical: Literal["dtype"] | Sequence[str | int] | None = "dtype",
        ordered: Sequence[str | int] | None = None,
        tol: float = 1e-6,
        random_state: int | None = None,
        verbose: bool = True,
    ) -> None:
        super().__init__(
            bandwidth,
            kernel=kernel,
            metric=metric,
            scale=scale,
            categorical=categorical,
            ordered=ordered,
            tol=tol,
            random_state=random_state,
            verbose=verbose,
        )
        self.order = order

    def smoothing_order(self) -> int:
        return self.order

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:  # noqa: N803
        """Keep the rows [n, d] and targets [n] or [n, c], and find the bandwidth."""
        name = target_names(y)
        X, y = validate_data(  # noqa: N806
            self, self.see(X), y, dtype=np.float64, multi_output=True, y_numeric=True
        )
        y = np.asarray(y, dtype=np.float64)
        self.single_ = y.ndim == 1
        self.targets_ = name or (["y"] if self.single_ else [f"y{place}" for place in range(y.shape[1])])
        self.y_ = y.reshape(len(X), -1)
        return self.fit_rows(X, self.y_, checked_weight(sample_weight, X))

    def predict(self, X: Any, return_std: bool = False) -> Any:  # noqa: N803
        """Predictions [m] or [m, c]; with `return_std`, also the standard deviation of the targets about them.

        Where a compact kernel sees no training row, the nearest row's target; a warning says for how many.
        """
        number, code = self.asked(X)
        if not return_std:
            mean, log_weight = self.smoother_.predict(number, code)
            self.warn_blind(log_weight)
            return self.shaped(mean)
        mean, spread, log_weight = self.smoother_.predict_spread(number, code)
        self.warn_blind(log_weight)
        return self.shaped(mean), self.shaped(spread)

    def marginal_effects(self, X: Any) -> Array:  # noqa: N803
        """The derivative of the prediction by each feature, [m, d] or [m, d, c]; NaN for a categorical one."""
        check_is_fitted(self)
        encoded = validate_data(self, self.columns_.encode(X), reset=False, dtype=np.float64)
        raw, code = self.parts(encoded)
        number, smoother = self.scale_(raw), self.smoother_
        if smoother.kernel == "constant":
            slope = np.zeros((len(number), number.shape[1], smoother.value.shape[1]))
        elif smoother.kernel == "gaussian" and smoother.order == 0:
            # ∂ Σ α y / ∂x = Cov(u, y), u the offset in bandwidths: it needs the moments only.
            found = smoother.moments(number, code, smoother.value)
            slope = found.product - found.offset[:, :, None] * found.mean[:, None, :]
            slope = (
                np.einsum("ed,mec->mdc", smoother.inverse, slope)
                if smoother.inverse is not None
                else slope / smoother.bandwidth[:, None]
            )
        else:
            slope = differentiated(smoother, number, code)
        whole = np.full((len(number), encoded.shape[1], smoother.value.shape[1]), np.nan)
        whole[:, self.columns_.numbers] = slope * self.scale_.slope(raw)[:, :, None]
        return whole[:, :, 0] if self.single_ else whole

    def shaped(self, mean: Array) -> Array:
        return mean[:, 0] if self.single_ else mean

    def target_table(self) -> dict[str, Array]:
        return {name: self.y_[:, place] for place, name in enumerate(self.targets_)}

    def target_state(self) -> Any:
        return {"names": self.targets_, "single": self.single_}

    def target_array(self) -> Array | None:
        return self.y_

    def restore_target(self, state: Any, array: Array | None) -> None:
        self.targets_, self.single_, self.y_ = state["names"], state["single"], array


class NadarayaWatsonClassifier(ClassifierMixin, KernelEstimator):  # type: ignore[misc]
    """Kernel classification: the probability of a class is the weight of its training rows.

    Settings are those of `NadarayaWatson`, without `order`; bandwidths are searched and learned for the squared
    error of the probabilities (Brier's score) of rows left out.

    >>> import numpy as np
    >>> x = np.array([[0.0], [0.1], [1.0], [1.1]])
    >>> model = NadarayaWatsonClassifier(bandwidth=0.2).fit(x, ["no", "no", "yes", "yes"])
    >>> model.predict([[0.0], [1.2]]).tolist()
    ['no', 'yes']
    """

    y_: Array

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:  # noqa: N803
        """Keep the rows [n, d] and classes [n], and find the bandwidth."""
        name = target_names(y)
        X, y = validate_data(self, self.see(X), y, dtype=np.float64)  # noqa: N806
        check_classification_targets(y)
        self.classes_, self.y_ = np.unique(y, return_inverse=True)  # which class, by number
        if len(self.classes_) < 2:
            raise ValueError(f"a classifier needs two classes, got 1 class: {self.classes_.tolist()}")
        self.targets_ = name or ["y"]
        return self.fit_rows(X, np.eye(len(self.classes_))[self.y_], checked_weight(sample_weight, X))

    def predict_proba(self, X: Any) -> Array:  # noqa: N803
        """The probability of each class, [m, classes]: the weight of its training rows."""
        number, code = self.asked(X)
        mean, log_weight = self.smoother_.predict(number, code)
        self.warn_blind(log_weight)
        mean = np.clip(mean, 0.0, 1.0)
        return mean / mean.sum(axis=1, keepdims=True)

    def predict(self, X: Any) -> Array:  # noqa: N803
        """The most probable class, [m]."""
        likely = self.predict_proba(X).argmax(axis=1)
        return self.classes_[likely]

    def target_table(self) -> dict[str, Array]:
        return {self.targets_[0]: self.classes_[self.y_]}

    def target_state(self) -> Any:
        classes = [jsonable(label) for label in self.classes_]
        return {"names": self.targets_, "classes": classes, "dtype": self.classes_.dtype.str}

    def target_array(self) -> Array | None:
        return self.y_

    def restore_target(self, state: Any, array: Array | None) -> None:
        dtype = object if np.dtype(state["dtype"]) == object else state["dtype"]
        self.targets_, self.y_, self.classes_ = state["names"], array, np.array(state["classes"], dtype=dtype)


def checked_weight(sample_weight: Any, X: Array) -> Array | None:  # noqa: N803
    """One weight a row, none of them negative."""
    if sample_weight is None:
        return None
    return _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)


def target_names(y: Any) -> list[str] | None:
    """The names that pandas gives to targets."""
    if hasattr(y, "columns"):
        return [str(name) for name in y.columns]
    name = getattr(y, "name", None)
    return None if name is None else [str(name)]


def labels_of(X: Any) -> Array | None:  # noqa: N803
    """The names of a frame's rows, if they are more than their numbers from 0."""
    index = getattr(X, "index", None)
    if index is None or callable(index):
        return None
    labels = np.asarray(index)
    return None if numeric(labels) and np.array_equal(labels, np.arange(len(labels))) else labels


def numeric(labels: Array) -> bool:
    """Whether labels can be kept as an array of numbers."""
    return labels.dtype.kind in "iuf"


def jsonable(value: Any) -> Any:
    """A setting or a label as JSON can hold it."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, tuple):
        return list(value)
    return value if isinstance(value, str | int | float | bool | list | type(None)) else str(value)


def largest(smoother: Smoother, number: Array, code: Array, top: int) -> tuple[Array, Array, Array]:
    """The rows with the largest weights, their weights, and the weight of the rest."""
    monotone = smoother.order == 0 and smoother.weight is None and not len(smoother.blur)
    if monotone and smoother.kernel in KERNELS and len(number) * len(smoother.number) >= TREE_FROM:
        return nearest_rows(smoother, number, code, top)
    indices, weights, rests = [], [], []
    for rows, weight, log_weight in smoother.blocks(number, code):
        if smoother.order == 1:
            weight = leaning(smoother, number[rows], code[rows], weight)
        blind = np.flatnonzero(log_weight == -math.inf)
        if len(blind):
            weight[blind] = nearest_weight(smoother, number[rows][blind], code[rows][blind])
        size = np.abs(weight)
        index = np.argpartition(-size, top - 1, axis=1)[:, :top]
        index = np.take_along_axis(index, np.argsort(-np.take_along_axis(size, index, 1), axis=1, kind="stable"), 1)
        found = np.take_along_axis(weight, index, 1)
        indices.append(np.where(found == 0, -1, index))
        weights.append(found)
        rests.append(weight.sum(axis=1) - found.sum(axis=1))
    if not indices:
        return np.empty((0, top), int), np.empty((0, top)), np.empty(0)
    rest = np.concatenate(rests)
    return np.concatenate(indices), np.concatenate(weights), np.where(np.abs(rest) < 1e-12, 0.0, rest)


def nearest_rows(smoother: Smoother, number: Array, code: Array, top: int) -> tuple[Array, Array, Array]:
    """The same where weights fall with the distance: by a tree of neighbours, for many pairs."""
    points = smoother.points(number, code, smoother.value[:, :1])
    distance, index = KDTree(points.key).query(points.query, k=top, workers=-1)
    distance, index = distance.reshape(len(number), -1), index.reshape(len(number), -1)
    log_weight = smoother.pool(number, code, smoother.value[:, :1]).log_weight[:, None]
    blind = log_weight == -math.inf
    score = log_kernel(points.kind, distance**2)
    weight = np.where(blind, 0.0, np.exp(np.minimum(score - np.where(blind, 0.0, log_weight), 0.0)))
    weight[blind[:, 0], 0] = 1.0
    return np.where(weight > 0, index, -1), weight, np.maximum(0.0, 1 - weight.sum(axis=1))


def leaning(smoother: Smoother, number: Array, code: Array, weight: Array) -> Array:
    """What each row counts for in a local linear fit; it adds up to 1, and may be negative."""
    found = smoother.moments(number, code, smoother.value[:, :1])
    lean = line(found, smoother.spread).lean
    query = smoother.stretch(number)
    along = lean @ smoother.key.T - np.einsum("md,md->m", lean, query + found.offset)[:, None]
    return weight * (1 - along)


def nearest_weight(smoother: Smoother, number: Array, code: Array) -> Array:
    """All weight on the nearest row, or shared by several that are equally near."""
    sharp = replace(
        smoother,
        kernel="laplace",
        order=0,
        bandwidth=smoother.bandwidth / 1e8,
    )
    return np.concatenate([weight for _, weight, _ in sharp.blocks(number, code)])


def differentiated(smoother: Smoother, number: Array, code: Array) -> Array:
    """The derivative of the prediction by each numeric column, [m, d, c]: by differences of the fourth order."""
    exact = replace(smoother, tolerance=1e-14)
    slope = np.empty((len(number), number.shape[1], smoother.value.shape[1]))
    width = smoother.bandwidth if smoother.bandwidth.ndim == 1 else np.abs(smoother.bandwidth).max(axis=1)
    for place in range(number.shape[1]):
        step = np.zeros(number.shape[1])
        step[place] = STEP * width[place]
        near, far = (
            exact.predict(number + times * step, code).mean - exact.predict(number - times * step, code).mean
            for times in (1, 2)
        )
        slope[:, place] = (8 * near - far) / (12 * step[place])
    return slope
