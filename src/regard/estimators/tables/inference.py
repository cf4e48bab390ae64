"""What statisticians ask of a kernel regression: `NadarayaWatson` has these methods beside `fit`.

The weights do not depend on the targets, so thresholds, densities and samples of a bootstrap are more columns of values
of one attention. The computations are in `distribution`, `intervals`, `bands` and `smoother`.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, overload

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from regard.checks import is_count, is_number
from regard.data.columns import Columns, Floats, Scale
from regard.estimators.common import threaded
from regard.estimators.settings import seed_of
from regard.estimators.tables.bands import BIAS, Bands, ErrorSamples, error_sizes, fit_bands
from regard.estimators.tables.distribution import fit_distribution
from regard.estimators.tables.effects import effects_with_errors
from regard.estimators.tables.intervals import fit_intervals
from regard.estimators.tables.smoother import Indices, Smoother, marginal_effects

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Result = TypeVar("Result")
_GRID = 200
"""Number of rows along a column in a picture."""
_SAMPLES = 399
"""Samples of errors behind standard errors of marginal effects."""


class _Line(NamedTuple):
    """Rows along a column, for a picture."""

    grid: Floats  # [m]
    query: Floats  # [m, d]
    name: str
    data: tuple[Floats, Floats] | None


class _Fitted:
    """What the methods below use of an estimator."""

    if TYPE_CHECKING:  # at run time the annotations would be settings
        smoother_: Smoother
        columns_: Columns
        scale_: Scale
        single_: bool
        targets_: list[str]
        X_: Floats
        row_index_: Indices
        random_state: Any
        verbose: bool

        def _query(self, X: ArrayLike) -> Floats: ...  # noqa: N803
        def _encode(self, X: ArrayLike) -> Floats: ...  # noqa: N803
        def _rows(self, X: Floats) -> Floats: ...  # noqa: N803
        def _warn_empty(self, log_weight: Floats) -> None: ...

    def _once(self, make: Callable[[Smoother, int], Result]) -> Result:
        """What is made of the fitted rows when it is first asked for."""
        made: dict[str, tuple[Smoother, Any]] = self.__dict__.setdefault("_made", {})
        if make.__name__ not in made or made[make.__name__][0] is not self.smoother_:
            made[make.__name__] = self.smoother_, make(self.smoother_, seed_of(self.random_state))
        result: Result = made[make.__name__][1]
        return result

    def _squeeze(self, mean: Floats) -> Floats:
        """[m, 1, …] to [m, …], if the targets were [n]."""
        return mean[:, 0] if getattr(self, "single_", False) else mean


class KernelInference(_Fitted):
    """Confidence bands and marginal effects, of regressions and of the probabilities of classes."""

    @threaded
    def bands(
        self,
        X: ArrayLike,  # noqa: N803
        level: float = 0.95,
        *,
        kind: Literal["pointwise", "simultaneous"] = "pointwise",
        method: Literal["asymptotic", "bootstrap"] | None = None,
        bias: Literal["corrected", "undersmoothed", "ignored"] = "corrected",
        samples: int = 399,
        random_state: Any = None,
    ) -> Bands:
        """Confidence bands of the regression function: `Bands`, (prediction, lower, upper), each [m] or [m, c].

        level          the probability that a band holds the function: at each row, or at all rows at once (`kind`)
        method         "asymptotic", the default of pointwise bands, or "bootstrap", which simultaneous ones need
        bias           "corrected" by a second bandwidth, √2 times as large; "undersmoothed", with a smaller bandwidth;
                       or "ignored", about the prediction: a band of its mean, not of the function
        samples        of the bootstrap
        random_state   a seed; by default that of the model

        Of a classifier the bands are of the probabilities, [m, classes]. The bandwidth is taken as given.

        >>> import numpy as np, regard
        >>> x = np.linspace(0, 1, 50)[:, None]
        >>> model = regard.NadarayaWatson(order=1, bandwidth=0.2).fit(x, x[:, 0] + np.tile([-0.1, 0.1], 25))
        >>> prediction, lower, upper = model.bands(x, level=0.9, kind="simultaneous")
        >>> bool((lower < x[:, 0]).all() and (x[:, 0] < upper).all())
        True
        """
        method = method or ("bootstrap" if kind == "simultaneous" else "asymptotic")
        _check_bands(level, kind, method, bias, samples)
        query, smoother = self._query(X), self.smoother_
        errors = ErrorSamples(self._once(error_sizes), int(samples), self._seed(random_state))
        bands = fit_bands(BIAS[bias](smoother), query, level, errors, kind, method, self.verbose)
        if hasattr(self, "classes_"):
            return Bands(*(np.clip(part, 0.0, 1.0) for part in bands))
        return Bands(*(self._squeeze(part) for part in bands))

    @overload
    def marginal_effects(self, X: ArrayLike, return_std: Literal[False] = False) -> Floats: ...  # noqa: N803

    @overload
    def marginal_effects(self, X: ArrayLike, return_std: Literal[True]) -> tuple[Floats, Floats]: ...  # noqa: N803

    @threaded
    def marginal_effects(self, X: ArrayLike, return_std: bool = False) -> Floats | tuple[Floats, Floats]:  # noqa: N803
        """The derivative of the prediction by each feature, [m, d] or [m, d, c]; NaN for a categorical one.

        return_std   also its standard error, from 399 samples of the errors

        >>> import numpy as np, regard
        >>> x = np.linspace(0, 1, 50)[:, None]
        >>> model = regard.NadarayaWatson(order=1, bandwidth=0.2).fit(x, 3 * x[:, 0] + np.tile([-0.1, 0.1], 25))
        >>> effect, error = model.marginal_effects([[0.5]], return_std=True)
        >>> bool(abs(effect[0, 0] - 3) < 3 * error[0, 0])
        True
        """
        encoded = self._encode(X)
        scale = self.scale_.derivative(encoded[:, self.columns_.numbers])
        if not return_std:
            return self._by_column(marginal_effects(self.smoother_, self._rows(encoded)) * scale[:, :, None])
        samples = ErrorSamples(self._once(error_sizes), _SAMPLES, self._seed(None))
        found = effects_with_errors(self.smoother_, self._rows(encoded), scale, None, samples, self.verbose)
        return self._by_column(found.effect), self._by_column(found.error)

    @threaded
    def average_marginal_effects(self, X: ArrayLike | None = None) -> tuple[Floats, Floats]:  # noqa: N803
        """The averages of `marginal_effects` over rows, by default those of training, and their standard errors, [d].

        They are [d, c] for c targets, NaN for a categorical column. The errors are those of the targets: the rows are
        taken as they are.

        >>> import numpy as np, regard
        >>> x = np.linspace(0, 1, 50)[:, None]
        >>> model = regard.NadarayaWatson(order=1, bandwidth=0.2).fit(x, 3 * x[:, 0] + np.tile([-0.1, 0.1], 25))
        >>> effect, error = model.average_marginal_effects()
        >>> bool(abs(effect[0] - 3) < 3 * error[0] < 0.5)
        True
        """
        check_is_fitted(self, "smoother_")
        encoded = self.X_[self.row_index_] if X is None else self._encode(X)
        weight = self.smoother_.weight if X is None else None
        scale = self.scale_.derivative(encoded[:, self.columns_.numbers])
        samples = ErrorSamples(self._once(error_sizes), _SAMPLES, self._seed(None))
        found = effects_with_errors(self.smoother_, self._rows(encoded), scale, weight, samples, self.verbose)
        return self._by_column(found.average[None])[0], self._by_column(found.average_error[None])[0]

    def _by_column(self, effects: Floats) -> Floats:
        """Effects of the numeric columns [m, numbers, c] as [m, d] or [m, d, c]; NaN for categories."""
        all_columns = np.full((len(effects), len(self.columns_.names), effects.shape[2]), np.nan)
        all_columns[:, self.columns_.numbers] = effects
        return all_columns[:, :, 0] if getattr(self, "single_", False) else all_columns

    def _seed(self, random_state: Any) -> int:
        """A seed, by default that of the model."""
        return seed_of(self.random_state if random_state is None else random_state)


class RegressionInference(KernelInference):
    """Predictions with intervals or quantiles, and the conditional distribution of the target."""

    @overload
    def predict(self, X: ArrayLike, return_std: Literal[False] = False) -> Floats: ...  # noqa: N803

    @overload
    def predict(self, X: ArrayLike, return_std: Literal[True]) -> tuple[Floats, Floats]: ...  # noqa: N803

    @overload
    def predict(self, X: ArrayLike, *, interval: float) -> tuple[Floats, Floats, Floats]: ...  # noqa: N803

    @overload
    def predict(self, X: ArrayLike, *, quantiles: float | Sequence[float]) -> Floats: ...  # noqa: N803

    @threaded
    def predict(
        self,
        X: ArrayLike,  # noqa: N803
        return_std: bool = False,
        *,
        interval: float | None = None,
        quantiles: float | Sequence[float] | None = None,
    ) -> Floats | tuple[Floats, ...]:
        """Predictions [m] or [m, c].

        return_std   also the standard deviation of the targets about them
        interval     also the ends of intervals that hold this fraction of new targets, such as 0.9
        quantiles    instead, quantiles of the target at these levels, [m, levels] or [m, c, levels]

        If a kernel of bounded support sees no training row: the nearest row's target, and a warning.

        >>> import numpy as np, regard
        >>> x = np.linspace(0, 1, 200)[:, None]
        >>> y = x[:, 0] + np.tile([-0.1, 0.1], 100)
        >>> model = regard.NadarayaWatson(bandwidth=0.05).fit(x, y)
        >>> model.predict([[0.5]], quantiles=[0.2, 0.8]).round(1).tolist()
        [[0.4, 0.6]]
        >>> prediction, low, high = model.predict([[0.5]], interval=0.9)
        >>> bool(low[0] < 0.45 and high[0] > 0.55)
        True
        """
        asked = {"return_std": return_std, "interval": interval is not None, "quantiles": quantiles is not None}
        if sum(asked.values()) > 1:
            raise ValueError(f"predict takes one of {' and '.join(name for name in asked if asked[name])} at a time")
        if interval is not None and not (is_number(interval) and 0 < interval < 1):
            raise ValueError(f"interval must be a number above 0 and below 1, such as 0.9, got {interval!r}")
        levels = None if quantiles is None else _levels(quantiles)
        query = self._query(X)
        if levels is not None:
            found = self._once(fit_distribution).quantiles(query, levels, self.verbose)
            return self._squeeze(found if np.ndim(quantiles) else found[..., 0])  # type: ignore[arg-type]
        if return_std:
            mean, deviation, log_weight = self.smoother_.predict_with_deviation(query)
            self._warn_empty(log_weight)
            return self._squeeze(mean), self._squeeze(deviation)
        mean, log_weight = self.smoother_.predict(query)
        self._warn_empty(log_weight)
        if interval is None:
            return self._squeeze(mean)
        low, high = self._once(fit_intervals).bounds(query, interval)
        return self._squeeze(mean), self._squeeze(mean + low), self._squeeze(mean + high)

    @threaded
    def conditional_cdf(self, X: ArrayLike, t: ArrayLike) -> Floats:  # noqa: N803
        """The probability that the target is at most t: [m, thresholds], or [m] for one t; [m, c, …] for c targets.

        >>> import regard
        >>> model = regard.NadarayaWatson(bandwidth=1.0).fit([[0.0], [0.0], [9.0]], [1.0, 2.0, 3.0])
        >>> model.conditional_cdf([[0.0]], [0.5, 1.0, 2.0]).round(3).tolist()
        [[0.0, 0.5, 1.0]]
        """
        points = _points("thresholds", t)
        found = self._once(fit_distribution).cdf(self._query(X), points)
        return self._squeeze(found if np.ndim(t) else found[..., 0])

    @threaded
    def conditional_density(
        self,
        X: ArrayLike,  # noqa: N803
        t: ArrayLike,
        bandwidth: float | None = None,
    ) -> Floats:
        """The density of the target at t: [m, points], or [m] for one number; [m, c, …] for c targets.

        bandwidth   of the target, of a Gaussian kernel; by default 1.06 σ N^(-1/5), with the deviation σ of targets
                    about a prediction and the effective number N of rows behind it

        >>> import regard
        >>> model = regard.NadarayaWatson(bandwidth=1.0).fit([[0.0], [0.0], [9.0]], [1.0, 2.0, 3.0])
        >>> model.conditional_density([[0.0]], [1.5], bandwidth=0.5).round(3).tolist()
        [[0.484]]
        """
        points, distribution = _points("points", t), self._once(fit_distribution)
        found = distribution.density(self._query(X), points, self._density_bandwidth(bandwidth))
        return self._squeeze(found if np.ndim(t) else found[..., 0])

    @threaded
    def mode(self, X: ArrayLike, bandwidth: float | None = None) -> Floats:  # noqa: N803
        """Where `conditional_density` is largest, [m] or [m, c], to about a tenth of its bandwidth.

        >>> import regard
        >>> model = regard.NadarayaWatson(bandwidth=1.0).fit([[0.0]] * 4, [1.0, 1.0, 1.0, 5.0])
        >>> round(float(model.mode([[0.0]], bandwidth=0.5)[0]), 2)
        1.0
        """
        distribution = self._once(fit_distribution)
        return self._squeeze(distribution.modes(self._query(X), self._density_bandwidth(bandwidth)))

    @threaded
    def sample(self, X: ArrayLike, n: int = 1, random_state: Any = None) -> Floats:  # noqa: N803
        """Random targets, [m, n] or [m, n, c]: those of training rows, drawn by weight; for lines, of their residuals.

        random_state   a seed; by default that of the model

        >>> import regard
        >>> model = regard.NadarayaWatson(bandwidth=1.0).fit([[0.0], [0.0], [99.0]], [1.0, 2.0, 3.0])
        >>> sorted(set(model.sample([[0.0]], 20, random_state=0)[0].tolist()))
        [1.0, 2.0]
        """
        if not is_count(n):
            raise ValueError(f"n must be a positive whole number, got {n!r}")
        drawn = self._once(fit_distribution).draws(self._query(X), int(n), self._seed(random_state), self.verbose)
        return drawn[..., 0] if self.single_ else drawn

    def plot_bands(
        self,
        column: int = 0,
        level: float = 0.95,
        *,
        kind: Literal["pointwise", "simultaneous"] = "simultaneous",
        target: int = 0,
        axes: "Axes | None" = None,
    ) -> "Axes":
        """The fit along a numeric column with its band: the partial effect, if there are others.

        The other columns are at their medians, categories at the most frequent one; then the data are not shown.

        >>> import numpy as np, regard
        >>> x = np.linspace(0, 1, 50)[:, None]
        >>> model = regard.NadarayaWatson(order=1, bandwidth=0.2).fit(x, x[:, 0] + np.tile([-0.1, 0.1], 25))
        >>> model.plot_bands().get_legend_handles_labels()[1]
        ['data', '95 % simultaneous band', 'fit']
        """
        from regard.plots import fit_band

        line = self._line(column, target)
        _check_bands(level, kind, "bootstrap", "corrected", _SAMPLES)
        errors = ErrorSamples(self._once(error_sizes), _SAMPLES, self._seed(None))
        found = fit_bands(BIAS["corrected"](self.smoother_), line.query, level, errors, kind, "bootstrap", self.verbose)
        fit, low, high = (part[:, target] for part in found)
        axes = fit_band(line.grid, fit, low, high, data=line.data, label=f"{100 * level:g} % {kind} band", axes=axes)
        axes.set(xlabel=line.name, ylabel=self.targets_[target])
        return axes

    def plot_quantiles(
        self,
        column: int = 0,
        quantiles: Sequence[float] = (0.05, 0.25, 0.5, 0.75, 0.95),
        *,
        target: int = 0,
        axes: "Axes | None" = None,
    ) -> "Axes":
        """Quantiles of the target along a numeric column, as a fan; the other columns as in `plot_bands`.

        >>> import numpy as np, regard
        >>> x = np.linspace(0, 1, 50)[:, None]
        >>> model = regard.NadarayaWatson(bandwidth=0.2).fit(x, x[:, 0] + np.tile([-0.1, 0.1], 25))
        >>> model.plot_quantiles(quantiles=[0.1, 0.5, 0.9]).get_legend_handles_labels()[1]
        ['data', '10 % to 90 %', 'median']
        """
        from regard.plots import quantile_fan

        line, levels = self._line(column, target), _levels(quantiles)
        found = self._once(fit_distribution).quantiles(line.query, levels, self.verbose)[:, target]
        axes = quantile_fan(line.grid, levels, found, data=line.data, axes=axes)
        axes.set(xlabel=line.name, ylabel=self.targets_[target])
        return axes

    def plot_density(self, X: ArrayLike, *, target: int = 0, axes: "Axes | None" = None) -> "Axes":  # noqa: N803
        """The density of the target at one row, with the prediction, the median and the mode.

        >>> import numpy as np, regard
        >>> x = np.linspace(0, 1, 50)[:, None]
        >>> model = regard.NadarayaWatson(bandwidth=0.2).fit(x, x[:, 0] + np.tile([-0.1, 0.1], 25))
        >>> model.plot_density([[0.5]]).get_xlabel()
        'y'
        """
        from regard.plots import density_curve

        query, distribution, width = self._query(X), self._once(fit_distribution), self._density_bandwidth(None)
        if len(query) != 1:
            raise ValueError(f"plot_density takes one row, got {len(query)}")
        ends = distribution.quantiles(query, np.array([0.001, 0.5, 0.999]), self.verbose)[0, target]
        points = np.linspace(ends[0] - 3 * width[target], ends[2] + 3 * width[target], 300)
        density = distribution.density(query, points, width)[0, target]
        mode = float(distribution.modes(query, width)[0, target])
        prediction = float(self.smoother_.predict(query).mean[0, target])
        axes = density_curve(points, density, {"prediction": prediction, "median": float(ends[1]), "mode": mode}, axes)
        axes.set_xlabel(self.targets_[target])
        return axes

    def _line(self, column: int, target: int) -> "_Line":
        """Rows along a column, the others at their medians or most frequent categories."""
        check_is_fitted(self, "smoother_")
        rows, names = self.X_[self.row_index_], self.columns_.names
        if column not in self.columns_.numbers:
            raise ValueError(f"column must be that of a numeric one, {list(self.columns_.numbers)}, got {column!r}")
        if not 0 <= target < len(self.targets_):
            raise ValueError(f"target must be at least 0 and below {len(self.targets_)}, got {target!r}")
        middle = np.median(rows, axis=0)
        for code in self.columns_.codes:
            middle[code] = np.bincount(rows[:, code].astype(int)).argmax()
        grid = np.linspace(rows[:, column].min(), rows[:, column].max(), _GRID)
        points = np.tile(middle, (_GRID, 1))
        points[:, column] = grid
        data = (rows[:, column], self.smoother_.value[:, target]) if len(names) == 1 else None
        name = names[column] if hasattr(self, "feature_names_in_") else f"x{column}"
        return _Line(grid, self._rows(points), str(name), data)

    def _density_bandwidth(self, bandwidth: float | None) -> Floats:
        """The bandwidth of the density for each target, [c]."""
        if bandwidth is None:
            return self._once(_default_bandwidth)
        if not (is_number(bandwidth) and 0 < bandwidth < np.inf):
            raise ValueError(f"bandwidth must be a positive number, got {bandwidth!r}")
        return np.full(self.smoother_.value.shape[1], float(bandwidth))


def _default_bandwidth(smoother: Smoother, seed: int) -> Floats:
    return fit_distribution(smoother, seed).default_bandwidth(seed)


def _check_bands(level: Any, kind: str, method: str, bias: str, samples: Any) -> None:
    """Raise unless these are settings of bands."""
    if not (is_number(level) and 0 < level < 1):
        raise ValueError(f"level must be a number above 0 and below 1, such as 0.95, got {level!r}")
    choices = {"kind": (kind, ("pointwise", "simultaneous")), "method": (method, ("asymptotic", "bootstrap"))}
    for name, (value, allowed) in (choices | {"bias": (bias, tuple(BIAS))}).items():
        if value not in allowed:
            raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")
    if kind == "simultaneous" and method == "asymptotic":
        raise ValueError("kind='simultaneous' needs method='bootstrap', got method='asymptotic'")
    if not is_count(samples) or (method == "bootstrap" and (int(samples) + 1) * (1 - level) < 1):
        raise ValueError(f"samples must be a whole number of at least 1 / (1 - level) - 1, got {samples!r}")


def _levels(quantiles: float | Sequence[float]) -> Floats:
    """Levels of quantiles, [k]."""
    try:
        levels = np.atleast_1d(np.asarray(quantiles, dtype=float))
    except (TypeError, ValueError):
        levels = np.empty(0)
    if levels.ndim != 1 or not len(levels) or not ((levels > 0) & (levels < 1)).all():
        raise ValueError(f"quantiles must be numbers above 0 and below 1, such as [0.05, 0.5, 0.95], got {quantiles!r}")
    return levels


def _points(name: str, t: ArrayLike) -> Floats:
    """Targets to evaluate a distribution at, [k]."""
    try:
        points = np.atleast_1d(np.asarray(t, dtype=float))
    except (TypeError, ValueError):
        points = np.empty(0)
    if points.ndim != 1 or not len(points) or not np.isfinite(points).all():
        raise ValueError(f"{name} must be finite numbers, one or a list, got {t!r}")
    return points
