"""Kernel regression and classification on a user's own table: attention whose keys are the training rows.

    f(x) = Σᵢ α(x, xᵢ) yᵢ        α = softmax of log K(‖H⁻¹(x - xᵢ)‖)

Every prediction can show its evidence: the training rows behind it, and their weights.
"""

from collections.abc import Sequence
from typing import Any, Literal, Self

import numpy as np
from sklearn.base import ClassifierMixin, MultiOutputMixin, RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, validate_data

from regard.estimators.settings import all_or_nothing, restored_classes, saved_classes, target_names
from regard.estimators.tables.bandwidth_choice import Bandwidth
from regard.estimators.tables.base import Kernel, KernelEstimator
from regard.estimators.tables.marginal_effects import slopes

Array = Any


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

    @all_or_nothing
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:  # noqa: N803
        """Keep the rows [n, d] and targets [n] or [n, c], and find the bandwidth."""
        name = target_names(y)
        check_no_words(y)
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

    def left_out_score(self) -> float:
        """R² of the training rows, each predicted from all others: what `score` would say of new rows like them.

        With more rows than can be done in some seconds, of as many as can, drawn at random. Where the bandwidth was
        chosen by the same rows ("cv", "learn"), it is a little too good.

        >>> import numpy as np, regard
        >>> x = np.linspace(0, 6, 100)[:, None]
        >>> round(regard.NadarayaWatson(bandwidth=0.2).fit(x, np.sin(x[:, 0])).left_out_score(), 2)
        1.0
        """
        value, mean, weight = self.left_out()
        return float(r2_score(value, mean, sample_weight=weight))

    def marginal_effects(self, X: Any) -> Array:  # noqa: N803
        """The derivative of the prediction by each feature, [m, d] or [m, d, c]; NaN for a categorical one."""
        encoded = self.encoded(X)
        raw, code = self.parts(encoded)
        slope = slopes(self.smoother_, self.scale_(raw), code)
        whole = np.full((*encoded.shape, slope.shape[2]), np.nan)
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

    @all_or_nothing
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

    def left_out_score(self) -> float:
        """The share of training rows whose class is predicted from all others; see `NadarayaWatson.left_out_score`."""
        value, mean, weight = self.left_out()
        return float(np.average(value.argmax(axis=1) == mean.argmax(axis=1), weights=weight))

    def target_table(self) -> dict[str, Array]:
        return {self.targets_[0]: self.classes_[self.y_]}

    def target_state(self) -> Any:
        return {"names": self.targets_, **saved_classes(self.classes_)}

    def target_array(self) -> Array | None:
        return self.y_

    def restore_target(self, state: Any, array: Array | None) -> None:
        self.targets_, self.y_, self.classes_ = state["names"], array, restored_classes(state)


def checked_weight(sample_weight: Any, X: Array) -> Array | None:  # noqa: N803
    """One weight a row, none of them negative."""
    if sample_weight is None:
        return None
    return _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)


def check_no_words(y: Any) -> None:
    """Targets that are words are classes."""
    flat = np.asarray(y).ravel()
    if flat.dtype.kind not in "OUT":
        return
    try:
        flat.astype(float)
    except (TypeError, ValueError):
        words = [str(one) for one in flat if isinstance(one, str)]
        if words:
            raise ValueError(
                f"targets must be numbers, got {words[0]!r}: NadarayaWatsonClassifier predicts classes"
            ) from None
