"""Kernel regression and classification on a user's own table: attention whose keys are the training rows.

    f(x) = Σᵢ α(x, xᵢ) yᵢ        α = softmax of log K(‖H⁻¹(x - xᵢ)‖)

Every prediction can show its evidence: the training rows behind it, and their weights.
"""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, ClassVar, Literal, Self, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin, MultiOutputMixin, RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from regard.data.columns import Category, Columns, Floats, Scale, Unit, as_frame, find_columns, fit_scale
from regard.engines.job import Plan
from regard.estimators.common import (
    SavedEstimator,
    State,
    all_or_nothing,
    check_jobs,
    check_memory,
    checked_top,
    restore_target,
    saved_target,
    target_names,
    threaded,
)
from regard.estimators.settings import Seeded, check_settings, seed_of, setting, with_settings
from regard.estimators.tables.bandwidth import (
    PAIRS_MANY_FACTORS,
    Bandwidth,
    apply_rule,
    check_automatic,
    check_bandwidth,
    choose_bandwidth,
    leave_one_out_rows,
    parse_bandwidth,
)
from regard.estimators.tables.default_bandwidth import MIN_ROWS, default_bandwidth
from regard.estimators.tables.evidence import Evidence, Labels, check_no_words, is_numeric, row_labels, top_rows
from regard.estimators.tables.inference import KernelInference
from regard.estimators.tables.metric_learning import CAPPED, LOG_LOSS, Loss
from regard.estimators.tables.smoother import Smoother
from regard.estimators.tables.summary import RegressionSummary
from regard.kernels import KERNELS, KernelName
from regard.saving import to_json
from regard.scores import Score

Kernel = KernelName | Literal["constant"] | Score


def _check_kernel(name: str, value: object) -> None:
    """Raise unless a value is the name of a kernel, or a score."""
    if not callable(value) and value not in (*KERNELS, "constant"):
        raise ValueError(f"{name} must be {', '.join(KERNELS)}, constant, or a score of your own, got {value!r}")


def _check_class_weight(name: str, value: object) -> None:
    """Raise unless a value weighs classes as scikit-learn has it."""
    if value is not None and value != "balanced" and not isinstance(value, Mapping):
        raise ValueError(f"{name} must be 'balanced', or a weight for each class, got {value!r}")


@with_settings
class _KernelEstimator(Seeded, SavedEstimator):
    """What regression and classification share: the rows, the bandwidth, and the evidence."""

    _loss: ClassVar[Loss] = CAPPED
    bandwidth: Bandwidth | None = setting(
        "numbers, or auto, scott, silverman, cv, aicc, learn",
        default=None,
        kw_only=False,
        check=check_bandwidth,
        parse=parse_bandwidth,
    )
    kernel: Kernel = setting("shape of the weights", default="gaussian", check=_check_kernel)
    metric: Literal["scalar", "diagonal", "full", "index"] = setting("of the bandwidth", default="scalar")
    scale: Literal["auto", "rank", "standard"] | None = setting(
        "units: auto (none, or rank), rank, standard", default="auto"
    )
    categorical: Literal["dtype"] | Sequence[str | int] | None = setting(
        "categorical columns; by default those of a pandas frame that hold no numbers", default="dtype", option=False
    )
    ordered: Sequence[str | int] | None = setting("columns whose categories have an order", default=None, option=False)
    category_kernel: Literal["aitchison-aitken", "li-racine"] = setting(
        "of categorical columns", default="aitchison-aitken", option=False
    )
    tol: float = setting("tolerance, in deviations of the target", default=1e-6, at_least=0, below=1)
    n_jobs: int | None = setting("number of threads, -1 for all cores", default=None, check=check_jobs, parse=int)

    def _read_table(self, X: ArrayLike) -> object:  # noqa: N803
        """Check the settings, find the categorical columns, and return the table with their codes."""
        check_settings(self)
        table = as_frame(X)
        self.columns_ = find_columns(table, self.categorical, self.ordered)
        self.labels_ = row_labels(table)
        return self.columns_.encode(table)

    @threaded
    def _fit_rows(self, X: Floats, value: Floats, sample_weight: ArrayLike | None) -> Self:  # noqa: N803
        """Store the rows, which are validated and encoded, and choose the bandwidth."""
        weight: Floats | None = None
        if sample_weight is not None:
            weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        self.X_ = X.copy()  # the caller may change its own later
        self.row_index_ = np.arange(len(X)) if weight is None else np.flatnonzero(weight > 0)
        weight = None if weight is None or (weight[self.row_index_] == 1).all() else weight[self.row_index_]
        value = value[self.row_index_]
        bandwidth = self.bandwidth
        if bandwidth is None:
            bandwidth = 1.0 if callable(self.kernel) else "auto"
        if isinstance(bandwidth, str) and bandwidth == "auto":
            check_automatic(self.kernel, self.metric)
            if len(value) >= MIN_ROWS and self.kernel != "constant" and X.shape[1]:
                self._fit_default(value, weight)
                return self
            bandwidth = "scott"
        self.scale_ = self._fit_scale(weight, self.scale)
        start = apply_rule(self._make_smoother(value, weight), "scott")
        self.smoother_, self._criterion, self.history_ = choose_bandwidth(
            start, self.columns_, bandwidth, self.metric, self.random_state, self.verbose
        )
        return self

    def _fit_scale(self, weight: Floats | None, unit: str | None) -> Scale:
        """Units of the numeric columns of the rows of positive weight; "auto" leaves them as they are."""
        unit = None if unit == "auto" else unit
        return fit_scale(self.X_[self.row_index_][:, self.columns_.numbers], weight, cast(Unit | None, unit))

    def _fit_default(self, value: Floats, weight: Floats | None) -> None:
        """Choose the bandwidths by leave-one-out, and the scale, unless it is given."""
        units = (None, "rank") if self.scale == "auto" and self.columns_.numbers else (self.scale,)
        scales, smoothers = [self._fit_scale(weight, unit) for unit in units], []
        for scale in scales:
            self.scale_ = scale
            smoothers.append(self._make_smoother(value, weight))
        index, choice = default_bandwidth(smoothers, self._loss, seed_of(self.random_state), self.verbose)
        self.scale_ = scales[index]
        self.smoother_, self._criterion, self.history_ = choice.smoother, choice.error, choice.history

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
            category_kernel=self.category_kernel,
            order=getattr(self, "order", 0),  # a classifier has local averages only
            tolerance=float(self.tol),
        )

    def _rows(self, X: Floats) -> Floats:  # noqa: N803
        """A validated and encoded table as the smoother takes it: scaled numbers, then codes."""
        return np.hstack([self.scale_(X[:, self.columns_.numbers]), X[:, self.columns_.codes]])

    def _encode(self, X: ArrayLike) -> Floats:  # noqa: N803
        """New rows, validated, with categories as codes."""
        check_is_fitted(self, "smoother_")
        table = as_frame(X)
        if hasattr(table, "columns"):  # names first: a column in the wrong position may hold anything
            validate_data(self, table, reset=False, skip_check_array=True)
        encoded: Floats = validate_data(self, self.columns_.encode(table), reset=False, dtype=np.float64)
        return encoded

    def _query(self, X: ArrayLike) -> Floats:  # noqa: N803
        """New rows as the smoother takes them."""
        return self._rows(self._encode(X))

    @property
    def column_kinds_(self) -> dict[str, str]:
        """The kind of each column: number, or a kind of category."""
        check_is_fitted(self, "smoother_")
        return self.columns_.kinds

    @property
    def criterion_(self) -> float:
        """The minimised value; only if a criterion was minimised."""
        if getattr(self, "_criterion", None) is None:
            raise AttributeError("criterion_ is there after fit with bandwidth='auto', 'cv', 'aicc' or 'learn' only")
        return float(self._criterion)  # type: ignore[arg-type]

    @property
    def ridge_(self) -> float:
        """The ridge on the slopes of local lines, in squared bandwidths; only for order 1."""
        if getattr(self, "order", 0) == 0:
            raise AttributeError("ridge_ is there for order=1 only")
        check_is_fitted(self, "smoother_")
        return float(self.smoother_.ridge)

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

    @threaded
    def _leave_one_out(self) -> tuple[Floats, Floats, Floats | None]:
        """Targets of training rows, predictions from the others, and weights; a random sample of very many rows."""
        check_is_fitted(self, "smoother_")
        smoother = self.smoother_
        if len(smoother.rows) < 2:
            raise ValueError(f"leaving a row out needs two rows, got {len(smoother.rows)}")
        rows = leave_one_out_rows(smoother, PAIRS_MANY_FACTORS, seed_of(self.random_state))
        mean, _ = smoother.predict(smoother.rows[rows], rows)
        return smoother.value[rows], mean, None if smoother.weight is None else smoother.weight[rows]

    def _warn_empty(self, log_weight: Floats) -> None:
        """Warn of rows that see no training row."""
        empty = int((log_weight == -math.inf).sum())
        if empty:
            fallback = "the average of all" if callable(self.kernel) else "the nearest one"
            warnings.warn(
                f"{empty} of {len(log_weight)} rows see no training row within the kernel's support, and are predicted"
                f" by {fallback}; a wider bandwidth or kernel='gaussian' sees more",
                UserWarning,
                stacklevel=3,
            )

    def plan(self, X: ArrayLike) -> Plan:  # noqa: N803
        """The engine that `predict` runs for these rows, and why."""
        query = self._query(X)
        return self.smoother_.plan(query)

    @threaded
    def log_density(self, X: ArrayLike) -> Floats:  # noqa: N803
        """The log of the kernel density estimate, [m]: the amount of training data near each row.

        Low where the model extrapolates, -inf where a kernel of bounded support sees no training row. It is the density
        of the numeric columns in the units of `scale`, times the probability of the categories.
        """
        query = self._query(X)
        smoother = self.smoother_
        return smoother.log_density(smoother.means(query, smoother.value[:, :1]).log_weight)

    @threaded
    def evidence(self, X: ArrayLike, top: int | None = 5) -> Evidence:  # noqa: N803
        """The training rows behind each prediction, by weight, and the weight of the rest.

        With `top=None` all of them, sorted by weight; more than 2 GiB raise ValueError. The weights of a local linear
        fit may be negative.
        """
        query = self._query(X)
        most = checked_top(top, len(self.smoother_.rows), "rows")
        check_memory(len(query), most, "rows")
        top_weights = top_rows(self.smoother_, query, most)
        rows = np.where(top_weights.index < 0, -1, self.row_index_[top_weights.index])
        return replace(
            top_weights,
            index=rows,
            table=self._evidence_table(),
            labels=self.labels_,
            query_labels=row_labels(X),
            classes=getattr(self, "classes_", None),
        )

    def _evidence_table(self) -> dict[str, Labels]:
        """Targets and features of the training rows, as they were given."""
        targets: NDArray[Any] = self.classes_[self.y_][:, None] if hasattr(self, "classes_") else self.y_  # [n, c]
        table: dict[str, Labels] = {name: targets[:, index] for index, name in enumerate(self.targets_)}
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

    def _learned(self) -> State:
        if callable(self.kernel):
            raise ValueError("a model with a score of your own cannot be saved: no file can hold a function")
        smoother, labels = self.smoother_, self.labels_
        config = {
            "columns": list(self.columns_.names),
            "named": hasattr(self, "feature_names_in_"),
            "categories": {str(index): asdict(category) for index, category in self.columns_.categories.items()},
            "criterion": self._criterion,
            "labels": None if labels is None or is_numeric(labels) else [to_json(x) for x in labels],
            "target": saved_target(self) | ({"single": self.single_} if hasattr(self, "single_") else {}),
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
        return State(config, {name: array for name, array in arrays.items() if array is not None})

    def _restore(self, config: dict[str, Any], arrays: dict[str, Any]) -> None:
        categories = {
            int(index): Category(tuple(category["values"]), category["ordered"])
            for index, category in config["categories"].items()
        }
        self.columns_ = Columns(tuple(config["columns"]), categories)
        self.n_features_in_ = len(self.columns_.names)
        if config["named"]:
            self.feature_names_in_ = np.array(config["columns"], dtype=object)
        labels = config["labels"]
        self.labels_ = arrays.get("labels") if labels is None else np.array(labels, dtype=object)
        self.X_, self.row_index_, self.y_ = arrays["X"], arrays["kept"], arrays["target"]
        self._criterion, self.history_ = config["criterion"], ()
        self.scale_ = Scale(
            arrays["scale.centre"], arrays["scale.spread"], arrays.get("scale.quantiles"), arrays["scale.edge"].item()
        )
        self.smoother_ = replace(
            self._make_smoother(arrays["value"], arrays.get("weight")),
            bandwidth=arrays["bandwidth"],
            category_bandwidth=arrays["blur"],
            ridge=arrays["spread"].item(),
        )
        restore_target(self, config["target"])
        if "single" in config["target"]:
            self.single_ = config["target"]["single"]


@with_settings
class NadarayaWatson(RegressionSummary, RegressorMixin, MultiOutputMixin, _KernelEstimator):  # type: ignore[misc]
    """Kernel regression: predictions are weighted averages of the training targets, or local lines through them.

    bandwidth   in units of the scale; it may also be a matrix for the numeric columns. For a categorical column it is
                λ, between 0 and 1. "auto", the default, is one for each column by leave-one-out, learned on a sample
                of rows; "scott" and "silverman" are rules; "cv" minimises the leave-one-out squared error, "aicc" the
                corrected AIC, and "learn" descends the gradient of the leave-one-out error
    kernel      "constant" predicts the mean; or a score of your own, called with rows divided by the bandwidth, which
                is then 1 by default
    metric      of "cv", "aicc" and "learn". "scalar": one factor on the columns' deviations; "diagonal": one bandwidth
                per column; "full": a matrix, "index": one direction, for "learn" only
    order       lines have no bias at the edges of the data
    scale       "standard": standard deviations; "rank": normal scores by rank; "auto": what predicts rows left out
                better, None or "rank", for the default bandwidth; None for any other

    After `fit`: `bandwidth_`, and `criterion_`, the value of what "auto", "cv", "aicc" or "learn" minimised.

    >>> import numpy as np
    >>> x = np.linspace(0, 5, 50)[:, None]
    >>> model = NadarayaWatson(bandwidth="cv").fit(x, np.sin(x[:, 0]))
    >>> bool(abs(model.predict([[2.0]])[0] - np.sin(2.0)) < 0.05)
    True
    >>> model.evidence([[2.0]], top=2).index.tolist()
    [[20, 19]]
    """

    order: Literal[0, 1] = setting("local averages (0), or local lines (1)", default=0)

    @all_or_nothing
    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:  # noqa: N803
        """Store the rows [n, d] and targets [n] or [n, c], and choose the bandwidth."""
        names = target_names(y)
        check_no_words(y, "NadarayaWatsonClassifier")
        table = self._read_table(X)
        rows, y = validate_data(self, table, y, dtype=np.float64, multi_output=True, y_numeric=True)
        target = np.array(y, dtype=np.float64)
        if not np.isfinite(target).all():
            raise ValueError(f"Input y contains NaN or infinity: {int((~np.isfinite(target)).sum())} targets")
        self.single_ = target.ndim == 1
        self.targets_ = names or (["y"] if self.single_ else [f"y{index}" for index in range(target.shape[1])])
        self.y_ = target.reshape(len(target), -1)  # [n, c]
        return self._fit_rows(rows, self.y_, sample_weight)

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


@with_settings
class NadarayaWatsonClassifier(KernelInference, ClassifierMixin, _KernelEstimator):  # type: ignore[misc]
    """Kernel classification: the probability of a class is the weight of its training rows.

    The settings are those of `NadarayaWatson`, without `order`. The default bandwidth minimises the leave-one-out log
    loss, "cv" and "learn" the squared error of the probabilities (Brier score).

    >>> import numpy as np
    >>> x = np.array([[0.0], [0.1], [1.0], [1.1]])
    >>> model = NadarayaWatsonClassifier(bandwidth=0.2).fit(x, ["no", "no", "yes", "yes"])
    >>> model.predict([[0.0], [1.2]]).tolist()
    ['no', 'yes']
    """

    _loss = LOG_LOSS
    class_weight: Literal["balanced"] | Mapping[Any, float] | None = setting(
        "weight of each class's rows; balanced: all classes count alike",
        default=None,
        check=_check_class_weight,
        option=False,
    )

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
        if self.class_weight is not None:
            weight = compute_sample_weight(self.class_weight, y)
            sample_weight = weight if sample_weight is None else weight * np.asarray(sample_weight, dtype=float)
        return self._fit_rows(rows, np.eye(len(self.classes_))[self.y_], sample_weight)

    @threaded
    def predict_proba(self, X: ArrayLike) -> Floats:  # noqa: N803
        """The probability of each class, [m, classes]: the weight of its training rows."""
        query = self._query(X)
        mean, log_weight = self.smoother_.predict(query)
        self._warn_empty(log_weight)
        probability: Floats = np.clip(mean, 0.0, 1.0)
        probability /= probability.sum(axis=1, keepdims=True)
        return probability

    def predict_log_proba(self, X: ArrayLike) -> Floats:  # noqa: N803
        """The logarithm of `predict_proba`, [m, classes]; -inf for 0."""
        with np.errstate(divide="ignore"):
            logarithm: Floats = np.log(self.predict_proba(X))
        return logarithm

    def predict(self, X: ArrayLike) -> Labels:  # noqa: N803
        """The most probable class, [m]."""
        index = self.predict_proba(X).argmax(axis=1)
        label: Labels = self.classes_[index]
        return label

    def left_out_score(self) -> float:
        """The accuracy on training rows, each predicted from all others; see `NadarayaWatson.left_out_score`."""
        value, mean, weight = self._leave_one_out()
        return float(np.average(value.argmax(axis=1) == mean.argmax(axis=1), weights=weight))
