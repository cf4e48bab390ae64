"""Kernel regression and classification on a user's own table: attention whose keys are the training rows.

    f(x) = Σᵢ α(x, xᵢ) yᵢ        α = softmax of log K(‖H⁻¹(x - xᵢ)‖)

Every prediction can show its evidence: the training rows behind it, and their weights.
"""

import math
import numbers
import operator
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, MultiOutputMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from regard.engines.job import Plan
from regard.estimators.bandwidths import (
    PAIRS,
    RULES,
    SEARCHES,
    by_rule,
    left_out_error,
    most_blur,
    search,
    trial_rows,
)
from regard.estimators.columns import Category, Columns, Scale, scale_of, seen_in
from regard.estimators.evidence import Evidence
from regard.estimators.local import RIDGE
from regard.estimators.metric import METRICS, learn
from regard.estimators.rows import largest
from regard.estimators.smoother import KERNELS, Smoother
from regard.kernels import Mixed
from regard.scores import Score

CHOICES = (*RULES, *SEARCHES, "learn")
WHOLE_LIMIT = 2 * 2**30
"""Bytes that all weights together may take."""

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
        self.criterion_: float | None = None
        self.history_: tuple[Any, ...] = ()
        self.X_ = X.copy()  # what the caller does with it later is not ours
        self.kept_ = np.arange(len(X)) if weight is None else np.flatnonzero(weight > 0)
        weight = None if weight is None or (weight[self.kept_] == 1).all() else weight[self.kept_]
        number, _ = self.parts(X[self.kept_])
        self.scale_ = scale_of(number, weight, self.scale)
        self.smoother_ = self.with_bandwidth(by_rule(self.smoother_of(value[self.kept_], weight), "scott"))
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

    def with_bandwidth(self, smoother: Smoother) -> Smoother:
        """The smoother with the bandwidth that was asked for, given one with that of a rule."""
        asked = self.bandwidth
        if asked is None:
            asked = 1.0 if callable(self.kernel) else "scott"
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
        try:
            width = np.asarray(asked, dtype=float)
        except (TypeError, ValueError):
            raise ValueError(f"bandwidth must be a number, one a column, a matrix or a word, got {asked!r}") from None
        columns, numbers = len(self.columns_.names), smoother.number.shape[1]
        if width.ndim > 2 or not np.isfinite(width).all():
            raise ValueError(f"bandwidth must be finite, one number, one a column or a matrix, got {asked!r}")
        if width.ndim == 2:
            check_matrix(width, numbers)
            return replace(smoother, bandwidth=width)
        if width.ndim == 1 and len(width) != columns:
            raise ValueError(f"bandwidth must be one number or one for each of {columns} columns, got {len(width)}")
        if not (width.ndim or width > 0):
            raise ValueError(f"bandwidth must be positive, got {asked!r}")
        if width.ndim == 0 and numbers:  # categories keep the rule's λ, which has another unit
            return replace(smoother, bandwidth=np.full(numbers, float(width)))
        width = np.broadcast_to(width, columns)
        blur = width[self.columns_.codes]
        if (width[self.columns_.numbers] <= 0).any() or (blur < 0).any() or (blur > most_blur(smoother)).any():
            raise ValueError(
                "bandwidths must be positive, and those of categories between 0 and 1, or (c - 1)/c of c categories"
                f" without order, got {asked!r}"
            )
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
            smoother = self.with_metric(smoother)
        if len(smoother.blur):
            smoother = search(smoother, "cv", "scalar", self.seed(), self.verbose).smoother
        self.criterion_ = left_out_error(smoother, trial_rows(smoother, PAIRS, self.seed()))
        return smoother

    def with_metric(self, smoother: Smoother) -> Smoother:
        """The smoother with a learned metric, found in units of the rule's bandwidth."""
        slope, jump = (torch.as_tensor(x) for x in smoother.penalty)
        kernel, codes, unit = KERNELS[str(self.kernel)], len(smoother.blur), smoother.bandwidth
        found = learn(
            torch.as_tensor(np.hstack([smoother.number / unit, smoother.code])),
            torch.as_tensor(smoother.value),
            None if smoother.weight is None else torch.as_tensor(smoother.weight),
            start=torch.ones(len(unit), dtype=torch.float64),
            metric=self.metric,
            order=smoother.order,
            make_score=(lambda width: Mixed(kernel(width), slope, jump)) if codes else kernel,
            codes=codes,
            seed=self.seed(),
            progress=self.verbose,
        )
        self.history_ = found.history
        width = found.bandwidth.numpy()
        return replace(smoother, bandwidth=unit[:, None] * width if width.ndim == 2 else unit * width, spread=RIDGE)

    def seed(self) -> int:
        """One seed for all that is drawn."""
        if isinstance(self.random_state, np.random.Generator):
            return int(self.random_state.integers(2**31 - 1))
        if self.random_state is None or isinstance(self.random_state, numbers.Integral):
            return int(self.random_state or 0)
        return int(check_random_state(self.random_state).randint(2**31 - 1))

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
        if top is not None and (isinstance(top, bool) or not hasattr(top, "__index__") or top < 1):
            raise ValueError(f"top must be a positive whole number, or None for all rows, got {top!r}")
        number, code = self.asked(X)
        smoother, count = self.smoother_, len(self.smoother_.number)
        most = count if top is None else min(operator.index(top), count)
        size = 2 * 8 * len(number) * most
        if size > WHOLE_LIMIT:
            raise ValueError(
                f"{most:,} weights of each of {len(number):,} rows would take {size / 2**30:.1f} GiB, above the limit"
                " of 2 GiB: ask for top=8, or for fewer rows at a time"
            )
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
        from regard.saving import write

        check_is_fitted(self)
        return write(folder, *self.state())

    def state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """All there is to a fitted model: what JSON can hold, and arrays."""
        if callable(self.kernel):
            raise ValueError("a model with a score of your own cannot be saved: no file can hold a function")
        smoother = self.smoother_
        settings = {name: jsonable(value) for name, value in self.get_params(deep=False).items()}
        if not isinstance(self.random_state, numbers.Integral):
            settings["random_state"] = None
        config = {
            "estimator": type(self).__name__,
            "settings": settings,
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
    >>> bool(abs(model.predict([[2.0]])[0] - np.sin(2.0)) < 0.05)
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
        y = np.array(y, dtype=np.float64)
        if not np.isfinite(y).all():
            raise ValueError(f"Input y contains NaN or infinity: {int((~np.isfinite(y)).sum())} targets")
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
        encoded = self.encoded(X)
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


def check_matrix(width: Array, numbers: int) -> None:
    """A bandwidth matrix has a row and a column for each numeric column, and an inverse, whatever their units."""
    if width.shape != (numbers, numbers):
        raise ValueError(
            f"a bandwidth matrix must be [{numbers}, {numbers}], one row a numeric column, got {list(width.shape)}"
        )
    size = np.abs(width).max(axis=1, keepdims=True)
    if not (size > 0).all() or np.linalg.matrix_rank(width / size) < numbers:
        raise ValueError(f"a bandwidth matrix must be invertible, got {width.tolist()}")


def labels_of(X: Any) -> Array | None:  # noqa: N803
    """The names of a frame's rows, if they are more than their numbers from 0."""
    index = getattr(X, "index", None)
    if index is None or callable(index):
        return None
    labels = np.asarray(index)
    if not numeric(labels):  # dates and several levels by their names, which a file can hold
        labels = np.array([x if isinstance(x, str | int | float) else str(x) for x in index], dtype=object)
    return None if numeric(labels) and np.array_equal(labels, np.arange(len(labels))) else labels


def numeric(labels: Array) -> bool:
    """Whether labels can be kept as an array of numbers."""
    return labels.dtype.kind in "iuf"


def jsonable(value: Any) -> Any:
    """A setting or a label as JSON can hold it."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return jsonable(value.item())
    if isinstance(value, tuple):
        return [jsonable(one) for one in value]
    return value if isinstance(value, str | int | float | bool | list | type(None)) else str(value)


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
