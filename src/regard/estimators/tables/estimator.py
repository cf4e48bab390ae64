"""Kernel regression and classification on a user's own table: attention whose keys are the training rows.

    f(x) = Σᵢ α(x, xᵢ) yᵢ        α = softmax of log K(‖H⁻¹(x - xᵢ)‖)

Every prediction can show its evidence: the training rows behind it, and their weights.
"""

from collections.abc import Sequence
from typing import Any, Literal, Self, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin, MultiOutputMixin, RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, validate_data

from regard.data.columns import Floats
from regard.estimators.common import all_or_nothing, restored_classes, saved_classes, target_names
from regard.estimators.tables.bandwidth import Bandwidth
from regard.estimators.tables.base import Kernel, KernelEstimator
from regard.estimators.tables.evidence import Labels
from regard.estimators.tables.smoother import marginal_effects


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

    def _order(self) -> int:
        return self.order

    @all_or_nothing
    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:  # noqa: N803
        """Store the rows [n, d] and targets [n] or [n, c], and choose the bandwidth."""
        names = target_names(y)
        check_no_words(y)
        table = self._read_table(X)
        rows, y = validate_data(self, table, y, dtype=np.float64, multi_output=True, y_numeric=True)
        target = np.array(y, dtype=np.float64)
        if not np.isfinite(target).all():
            raise ValueError(f"Input y contains NaN or infinity: {int((~np.isfinite(target)).sum())} targets")
        self.single_ = target.ndim == 1
        self.targets_ = names or (["y"] if self.single_ else [f"y{index}" for index in range(target.shape[1])])
        self.y_ = target.reshape(len(target), -1)  # [n, c]
        return self._fit_rows(rows, self.y_, check_weight(sample_weight, rows))

    @overload
    def predict(self, X: ArrayLike, return_std: Literal[False] = False) -> Floats: ...  # noqa: N803

    @overload
    def predict(self, X: ArrayLike, return_std: Literal[True]) -> tuple[Floats, Floats]: ...  # noqa: N803

    def predict(self, X: ArrayLike, return_std: bool = False) -> Floats | tuple[Floats, Floats]:  # noqa: N803
        """Predictions [m] or [m, c]; with `return_std`, also the standard deviation of the targets about them.

        If a kernel of bounded support sees no training row: the nearest row's target, and a warning.
        """
        query = self._query(X)
        if not return_std:
            mean, log_weight = self.smoother_.predict(query)
            self._warn_empty(log_weight)
            return self._squeeze(mean)
        mean, deviation, log_weight = self.smoother_.predict_with_deviation(query)
        self._warn_empty(log_weight)
        return self._squeeze(mean), self._squeeze(deviation)

    def left_out_score(self) -> float:
        """R² of the training rows, each predicted from all others: an estimate of `score` on new rows.

        Of very many rows it takes a random sample. If the bandwidth was chosen on the same rows ("cv", "learn"), it is
        slightly optimistic.

        >>> import numpy as np, regard
        >>> x = np.linspace(0, 6, 100)[:, None]
        >>> round(regard.NadarayaWatson(bandwidth=0.2).fit(x, np.sin(x[:, 0])).left_out_score(), 2)
        1.0
        """
        value, mean, weight = self._leave_one_out()
        return float(r2_score(value, mean, sample_weight=weight))

    def marginal_effects(self, X: ArrayLike) -> Floats:  # noqa: N803
        """The derivative of the prediction by each feature, [m, d] or [m, d, c]; NaN for a categorical one."""
        encoded = self._encode(X)
        effects = marginal_effects(self.smoother_, self._rows(encoded))
        all_columns = np.full((*encoded.shape, effects.shape[2]), np.nan)
        derivative = self.scale_.derivative(encoded[:, self.columns_.numbers])
        all_columns[:, self.columns_.numbers] = effects * derivative[:, :, None]
        return all_columns[:, :, 0] if self.single_ else all_columns

    def _squeeze(self, mean: Floats) -> Floats:
        """[m, 1] to [m], if the targets were [n]."""
        return mean[:, 0] if self.single_ else mean

    def _target_table(self) -> dict[str, Labels]:
        return {name: self.y_[:, index] for index, name in enumerate(self.targets_)}

    def _target_state(self) -> dict[str, Any]:
        return {"names": self.targets_, "single": self.single_}

    def _restore_target(self, state: dict[str, Any]) -> None:
        self.targets_, self.single_ = state["names"], state["single"]


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

    @all_or_nothing
    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:  # noqa: N803
        """Store the rows [n, d] and classes [n], and choose the bandwidth."""
        names = target_names(y)
        rows, y = validate_data(self, self._read_table(X), y, dtype=np.float64)
        check_classification_targets(y)
        self.classes_, self.y_ = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"a classifier needs two classes, got 1 class: {self.classes_.tolist()}")
        self.targets_ = names or ["y"]
        return self._fit_rows(rows, np.eye(len(self.classes_))[self.y_], check_weight(sample_weight, rows))

    def predict_proba(self, X: ArrayLike) -> Floats:  # noqa: N803
        """The probability of each class, [m, classes]: the weight of its training rows."""
        query = self._query(X)
        mean, log_weight = self.smoother_.predict(query)
        self._warn_empty(log_weight)
        probability: Floats = np.clip(mean, 0.0, 1.0)
        probability /= probability.sum(axis=1, keepdims=True)
        return probability

    def predict(self, X: ArrayLike) -> Labels:  # noqa: N803
        """The most probable class, [m]."""
        index = self.predict_proba(X).argmax(axis=1)
        label: Labels = self.classes_[index]
        return label

    def left_out_score(self) -> float:
        """The accuracy on training rows, each predicted from all others; see `NadarayaWatson.left_out_score`."""
        value, mean, weight = self._leave_one_out()
        return float(np.average(value.argmax(axis=1) == mean.argmax(axis=1), weights=weight))

    def _target_table(self) -> dict[str, Labels]:
        return {self.targets_[0]: self.classes_[self.y_]}

    def _target_state(self) -> dict[str, Any]:
        return {"names": self.targets_, **saved_classes(self.classes_)}

    def _restore_target(self, state: dict[str, Any]) -> None:
        self.targets_, self.classes_ = state["names"], restored_classes(state)


def check_weight(sample_weight: ArrayLike | None, X: Floats) -> Floats | None:  # noqa: N803
    """One weight for each row, none of them negative."""
    if sample_weight is None:
        return None
    weight: Floats = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    return weight


def check_no_words(y: ArrayLike) -> None:
    """Raise if the targets are words: those are classes."""
    flat: NDArray[Any] = np.asarray(y).ravel()
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
