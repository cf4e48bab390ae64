"""The partially linear model: some columns are linear, the others smooth (Robinson 1988).

    y = xᵀβ + g(z) + error,        so y - E[y | z] = (x - E[x | z])ᵀβ + error

Two kernel regressions on z, of y and of the columns x, leave each row out; β is least squares between what they leave
over. A third is g: that of y - xᵀβ on z. β has the usual standard errors, as if the two regressions were known.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils.validation import (
    _check_sample_weight,
    check_array,
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
    validate_data,
)

from regard.data.columns import Floats, as_frame, column_index, is_frame, split_names
from regard.estimators.common import SavedEstimator, State, all_or_nothing, check_jobs, target_names, threaded
from regard.estimators.settings import Seeded, check_settings, setting, with_settings
from regard.estimators.tables.bandwidth import Bandwidth, check_bandwidth, parse_bandwidth
from regard.estimators.tables.estimator import NadarayaWatson
from regard.estimators.tables.evidence import Evidence, check_no_words
from regard.estimators.tables.report import Report, coefficient_table

_LEAST_SPREAD = 1e-6
"""Least standard deviation of a linear column that the smooth ones do not explain, as a fraction of its own."""


class _Line(NamedTuple):
    """Coefficients [p], their covariance [p, p], and the degrees of freedom of the errors."""

    coefficient: Floats
    covariance: Floats
    freedom: int


def _check_linear(name: str, value: object) -> None:
    """Raise unless a value is a list of columns."""
    if value is not None and (isinstance(value, str) or not isinstance(value, Sequence | np.ndarray)):
        raise ValueError(f"{name} must be a list of column names or indices, got {value!r}")


@with_settings
class PartiallyLinear(RegressorMixin, Seeded, SavedEstimator):  # type: ignore[misc]
    """Regression with some linear columns and an unknown smooth function of the others.

    linear       without any, the model is a `NadarayaWatson`
    covariance   HC3: standard errors that hold if errors are of unequal size; nonrobust: those of equal errors

    The other settings are those of `NadarayaWatson`, for each of the three regressions. After `fit`: `coef_`,
    `standard_error_`, `covariance_`, and `smooth_`, the regression of y minus the linear part.

    >>> import numpy as np
    >>> random = np.random.default_rng(0)
    >>> x = random.normal(size=(200, 2))
    >>> y = 3 * x[:, 0] + np.sin(2 * x[:, 1]) + 0.1 * random.normal(size=200)
    >>> model = PartiallyLinear(linear=[0], bandwidth=0.2).fit(x, y)
    >>> bool(abs(model.coef_[0] - 3) < 2 * model.standard_error_[0])
    True
    """

    linear: Sequence[str | int] | None = setting(
        "linear columns: names or indices; the others are smooth",
        default=None,
        kw_only=False,
        check=_check_linear,
        parse=split_names,
    )
    covariance: Literal["HC3", "nonrobust"] = setting("errors of unequal, or of equal size", default="HC3")
    bandwidth: Bandwidth | None = setting(
        "numbers, or auto, scott, silverman, cv, aicc, learn",
        default=None,
        check=check_bandwidth,
        parse=parse_bandwidth,
    )
    order: Literal[0, 1] = setting("local averages (0), or local lines (1)", default=0)
    scale: Literal["auto", "rank", "standard"] | None = setting(
        "units: auto (none, or rank), rank, standard", default="auto"
    )
    categorical: Literal["dtype"] | Sequence[str | int] | None = setting(
        "categorical columns; by default those of a pandas frame that hold no numbers", default="dtype", option=False
    )
    ordered: Sequence[str | int] | None = setting("columns whose categories have an order", default=None, option=False)
    tol: float = setting("tolerance, in deviations of the target", default=1e-6, at_least=0, below=1)
    n_jobs: int | None = setting("number of threads, -1 for all cores", default=None, check=check_jobs, parse=int)

    @all_or_nothing
    @threaded
    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:  # noqa: N803
        """Estimate the coefficients, and the smooth function, from rows [n, d] and targets [n]."""
        check_settings(self)
        self.targets_ = target_names(y) or ["y"]
        check_no_words(y, "NadarayaWatsonClassifier")
        table, y = validate_data(self, self._whole(X), y, skip_check_array=True)
        target: Floats = check_array(column_or_1d(y, warn=True), dtype=np.float64, ensure_2d=False, input_name="y")
        check_consistent_length(table, target)
        self.linear_ = self._linear_columns(table)
        x, z = self._split(table)
        if z.shape[1] == 0:
            raise ValueError(f"one column at least must be smooth, got n_features={x.shape[1]}, all linear")
        smooth = NadarayaWatson(**self._smooth_settings())
        if len(self.linear_):
            if len(target) < len(self.linear_) + 2:
                raise ValueError(
                    f"{len(self.linear_)} linear columns need {len(self.linear_) + 2} rows, got n_samples={len(target)}"
                )
            weight = None if sample_weight is None else _check_sample_weight(sample_weight, x, dtype=np.float64)
            # What leave-one-out leaves over of y, and of each linear column.
            rest_y, rest_x = (_left_over(smooth.fit(z, value, weight)) for value in (target[:, None], x))
            rows = smooth.row_index_
            line = _fit_line(rest_x, rest_y[:, 0], x[rows], None if weight is None else weight[rows], self.covariance)
        else:
            line = _Line(np.zeros(0), np.zeros((0, 0)), len(target))
        self.coef_, self.covariance_, self.freedom_ = line
        self.x_, self.y_ = x, target
        self.smooth_ = smooth.fit(z, target - x @ self.coef_, sample_weight)
        self.smooth_.targets_ = [f"{self.targets_[0]} - linear part" if len(x.T) else self.targets_[0]]
        return self

    @threaded
    def predict(self, X: ArrayLike) -> Floats:  # noqa: N803
        """Predictions [m]."""
        x, z = self._rows(X)
        predicted: Floats = x @ self.coef_ + self.smooth_.predict(z)
        return predicted

    def evidence(self, X: ArrayLike, top: int | None = 5) -> Evidence:  # noqa: N803
        """The training rows behind the smooth part of each prediction; their target is y minus the linear part."""
        x, z = self._rows(X)
        evidence = self.smooth_.evidence(z, top)
        names = [self.column_names_[index] for index in self.linear_]
        table = evidence.table | dict(zip(names, self.x_.T, strict=True)) | {self.targets_[0]: self.y_}
        prediction = None if evidence.prediction is None else evidence.prediction + (x @ self.coef_)[:, None]
        return replace(evidence, table=table, prediction=prediction)

    @property
    def standard_error_(self) -> Floats:
        """The standard errors of the coefficients, [p]."""
        check_is_fitted(self)
        return np.sqrt(np.diag(self.covariance_))

    @property
    def row_index_(self) -> Any:
        """The training rows of positive weight."""
        check_is_fitted(self)
        return self.smooth_.row_index_

    @property
    def column_names_(self) -> list[str]:
        """The names of the columns; x0, x1, … if they have none."""
        check_is_fitted(self)
        return [str(n) for n in getattr(self, "feature_names_in_", [f"x{i}" for i in range(self.n_features_in_)])]

    @property
    def column_kinds_(self) -> dict[str, str]:
        """The kind of each column: number, or a kind of category."""
        kinds = iter(self.smooth_.column_kinds_.values())
        return {
            name.removeprefix("" if hasattr(self, "feature_names_in_") else "x"): (
                "number" if index in self.linear_ else next(kinds)
            )
            for index, name in enumerate(self.column_names_)
        }

    def left_out_score(self) -> float:
        """R² of the training rows, each with a smooth part from all others; the coefficients are those of all rows."""
        check_is_fitted(self)
        smooth, rows = self.smooth_, self.row_index_
        rest = _left_over(smooth)[:, 0]
        return float(r2_score(self.y_[rows], self.y_[rows] - rest, sample_weight=smooth.smoother_.weight))

    def summary(self) -> Report:
        """The coefficients as a table, with standard errors, t, p-values and 95 % intervals, as statsmodels has it.

        >>> import numpy as np
        >>> x = np.random.default_rng(0).normal(size=(100, 2))
        >>> model = PartiallyLinear(linear=[0], bandwidth=0.3).fit(x, 2 * x[:, 0] + x[:, 1] ** 2)
        >>> list(model.summary().to_frame().columns)
        ['coef', 'std err', 't', 'P>|t|', '[0.025', '0.975]']
        """
        check_is_fitted(self)
        smooth = self.smooth_.summary().facts
        facts = {
            "Rows": smooth["Rows"],
            "Covariance": self.covariance,
            "Smooth columns": ", ".join(n for i, n in enumerate(self.column_names_) if i not in self.linear_),
            "Degrees of freedom of them, exact": smooth["Degrees of freedom, exact"],
            "R² of rows left out": f"{self.left_out_score():.4g}",
        }
        names = [self.column_names_[index] for index in self.linear_]
        table = coefficient_table(self.coef_, self.standard_error_, self.freedom_)
        return Report(f"PartiallyLinear of {self.targets_[0]}", facts, names, table)

    def _whole(self, X: ArrayLike) -> Any:  # noqa: N803
        """A frame as it is; another table as an array, checked if it holds numbers only."""
        table = as_frame(X)
        if is_frame(table):
            return table
        named = self.ordered is not None or self.categorical not in (None, "dtype")
        return check_array(X, dtype=None if named else np.float64, estimator=self)

    def _linear_columns(self, X: Any) -> list[int]:  # noqa: N803
        """The indices of the linear columns."""
        names = list(X.columns) if is_frame(X) else list(range(X.shape[1]))
        given = [] if self.linear is None else list(self.linear)
        indices = [column_index(name, names, use="linear") for name in given]
        if len(set(indices)) < len(indices):
            raise ValueError(f"linear names a column twice: {given}")
        return indices

    def _split(self, X: Any) -> tuple[Floats, Any]:  # noqa: N803
        """The linear columns as numbers [n, p], and the table of the others."""
        smooth = [index for index in range(X.shape[1]) if index not in self.linear_]
        if not is_frame(X):
            return check_array(X[:, self.linear_], dtype=np.float64, ensure_min_features=0), X[:, smooth]
        chosen = X.iloc[:, self.linear_]
        for name, column in chosen.items():
            if column.dtype.kind not in "biuf":
                raise ValueError(
                    f"linear column {name!r} must hold numbers, got {column.iloc[0]!r}: make an indicator of it"
                )
        numbers = chosen.to_numpy(dtype=np.float64)
        return check_array(numbers, ensure_min_features=0), X.iloc[:, smooth]

    def _rows(self, X: ArrayLike) -> tuple[Floats, Any]:  # noqa: N803
        """New rows: their linear columns, and the others."""
        check_is_fitted(self)
        return self._split(validate_data(self, self._whole(X), reset=False, skip_check_array=True))

    def _smooth_settings(self) -> dict[str, Any]:
        """Settings of the regressions on the smooth columns, whose indices are those without the linear ones."""
        names = ("bandwidth", "order", "scale", "tol", "n_jobs", "random_state", "verbose")
        settings = {name: getattr(self, name) for name in names}
        smooth = [index for index in range(self.n_features_in_) if index not in self.linear_]

        def renumbered(columns: Any) -> Any:
            if columns is None or isinstance(columns, str):
                return columns
            taken = [column for column in columns if column in self.linear_]
            if taken:
                raise ValueError(f"column {taken[0]!r} cannot be both linear and categorical")
            return [smooth.index(column) if column in smooth else column for column in columns]

        return settings | {name: renumbered(getattr(self, name)) for name in ("categorical", "ordered")}

    def _learned(self) -> State:
        smooth = self.smooth_.state()
        config: dict[str, Any] = {
            "smooth": smooth.config,
            "linear": self.linear_,
            "features": self.n_features_in_,
            "names": list(self.feature_names_in_) if hasattr(self, "feature_names_in_") else None,
            "target": self.targets_,
            "freedom": self.freedom_,
        }
        arrays = {f"smooth.{name}": array for name, array in smooth.arrays.items()}
        own = {"coef": self.coef_, "covariance": self.covariance_, "x": self.x_, "y": self.y_}
        return State(config, arrays | own)

    def _restore(self, config: dict[str, Any], arrays: dict[str, Any]) -> None:
        smooth = {name[7:]: array for name, array in arrays.items() if name.startswith("smooth.")}
        self.smooth_ = NadarayaWatson.from_state(config["smooth"], smooth)
        self.linear_, self.n_features_in_, self.targets_ = config["linear"], config["features"], config["target"]
        if config["names"] is not None:
            self.feature_names_in_ = np.array(config["names"], dtype=object)
        self.freedom_ = config["freedom"]
        self.coef_, self.covariance_ = arrays["coef"], arrays["covariance"]
        self.x_, self.y_ = arrays["x"], arrays["y"]


def _left_over(model: NadarayaWatson) -> Floats:
    """The targets of the training rows minus their predictions from the others, [n, c]."""
    smoother = model.smoother_
    if len(smoother.rows) < 2:
        raise ValueError(f"leaving a row out needs two rows, got n_samples={len(smoother.rows)}")
    rest: Floats = smoother.value - smoother.predict(smoother.rows, np.arange(len(smoother.rows))).mean
    return rest


def _fit_line(rest_x: Floats, rest_y: Floats, x: Floats, weight: Floats | None, covariance: str) -> _Line:
    """Least squares of what is left over of y on that of the linear columns [n, p]; no intercept, which g has."""
    root = np.ones(len(x)) if weight is None else np.sqrt(weight)
    columns, target = rest_x * root[:, None], rest_y * root
    unit = np.linalg.norm((x - x.mean(axis=0)) * root[:, None], axis=0)
    unit = np.where(unit > 0, unit, 1.0)
    left, size, right = np.linalg.svd(columns / unit, full_matrices=False)
    if size[-1] < _LEAST_SPREAD:
        raise ValueError(
            "linear columns must not be constant, nor follow from each other or from the smooth columns: leave one out"
        )
    inverse = right.T / size**2 @ right / np.outer(unit, unit)  # (XᵀX)⁻¹
    coefficient = right.T @ (left.T @ target / size) / unit
    error, freedom = target - columns @ coefficient, len(x) - x.shape[1]
    if covariance == "nonrobust":
        return _Line(coefficient, inverse * (error @ error / freedom), freedom)
    leverage = np.einsum("np,np->n", left, left)
    score = columns * (error / np.maximum(1 - leverage, 1e-12))[:, None]  # MacKinnon and White 1985
    return _Line(coefficient, inverse @ (score.T @ score) @ inverse, freedom)
