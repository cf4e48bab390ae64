"""What statisticians ask of a kernel regression: `NadarayaWatson` has these methods beside `fit`.

The weights do not depend on the targets, so thresholds, densities and samples of a bootstrap are more columns of values
of one attention. The computations are in `distribution`, `intervals`, `bands` and `smoother`.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

import numpy as np
from numpy.typing import ArrayLike

from regard.checks import is_count, is_number
from regard.data.columns import Columns, Floats, Scale
from regard.estimators.common import threaded
from regard.estimators.settings import seed_of
from regard.estimators.tables.distribution import fit_distribution
from regard.estimators.tables.intervals import fit_intervals
from regard.estimators.tables.smoother import Smoother, marginal_effects

Result = TypeVar("Result")


class _Fitted:
    """What the methods below use of an estimator."""

    smoother_: Smoother
    columns_: Columns
    scale_: Scale
    single_: bool
    random_state: Any
    verbose: bool

    if TYPE_CHECKING:

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


class RegressionInference(_Fitted):
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
        seed = seed_of(self.random_state if random_state is None else random_state)
        drawn = self._once(fit_distribution).draws(self._query(X), int(n), seed, self.verbose)
        return drawn[..., 0] if self.single_ else drawn

    def _density_bandwidth(self, bandwidth: float | None) -> Floats:
        """The bandwidth of the density for each target, [c]."""
        if bandwidth is None:
            return self._once(_default_bandwidth)
        if not (is_number(bandwidth) and 0 < bandwidth < np.inf):
            raise ValueError(f"bandwidth must be a positive number, got {bandwidth!r}")
        return np.full(self.smoother_.value.shape[1], float(bandwidth))

    @threaded
    def marginal_effects(self, X: ArrayLike) -> Floats:  # noqa: N803
        """The derivative of the prediction by each feature, [m, d] or [m, d, c]; NaN for a categorical one."""
        encoded = self._encode(X)
        effects = marginal_effects(self.smoother_, self._rows(encoded))
        all_columns = np.full((*encoded.shape, effects.shape[2]), np.nan)
        derivative = self.scale_.derivative(encoded[:, self.columns_.numbers])
        all_columns[:, self.columns_.numbers] = effects * derivative[:, :, None]
        return all_columns[:, :, 0] if self.single_ else all_columns


def _default_bandwidth(smoother: Smoother, seed: int) -> Floats:
    return fit_distribution(smoother, seed).default_bandwidth(seed)


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
