"""The summary of a kernel regression, and its tests of hypotheses: `NadarayaWatson` has these methods beside `fit`."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import clone
from sklearn.metrics import r2_score

from regard.checks import is_count
from regard.data.columns import Floats, column_index
from regard.data.tables import import_pandas
from regard.estimators.common import threaded
from regard.estimators.settings import seed_of
from regard.estimators.tables.bandwidth import apply_rule
from regard.estimators.tables.inference import RegressionInference
from regard.estimators.tables.report import Cell, Report, coefficient_table
from regard.estimators.tables.significance import (
    MIN_ROWS,
    Result,
    column_test,
    indicator_columns,
    least_squares,
    specification_test,
)
from regard.estimators.tables.single_index import direction_covariance, direction_of
from regard.estimators.tables.smoother import Smoother

_TEST_NOTE = "p: wild bootstrap of the fit without the column, {:,} samples."


class RegressionSummary(RegressionInference):
    """What a fitted kernel regression is: its numbers in a table, and tests of its columns and of a linear model."""

    if TYPE_CHECKING:
        targets_: list[str]
        kernel: Any
        bandwidth: Any
        metric: Any
        bandwidth_: Floats

        def left_out_score(self) -> float: ...

    @threaded
    def significance_test(self, columns: Sequence[str | int] | None = None, *, samples: int = 399) -> Report:
        """Whether columns matter: for each a statistic, and the p-value of "the prediction does not depend on it".

        columns   names or indices, by default all
        samples   number of bootstrap samples

        The statistic is the mean squared derivative, or of a category the mean squared difference between its levels
        and the first, in standard deviations (Racine 1997; Racine, Hart and Li 2006). The bandwidth stays as it is.

        >>> import numpy as np, regard
        >>> x = np.random.default_rng(0).normal(size=(100, 2))
        >>> model = regard.NadarayaWatson(bandwidth=0.5).fit(x, np.sin(2 * x[:, 0]))
        >>> model.significance_test().to_frame()["p_value"].lt(0.05).tolist()
        [True, False]
        """
        smoother = self._tested_smoother(samples)
        if callable(self.kernel) or self.kernel == "constant":
            raise ValueError(f"the test of a column needs a kernel by name, got kernel={self.kernel!r}")
        known = list(self.columns_.names) if hasattr(self, "feature_names_in_") else range(len(self.columns_.names))
        chosen = known if columns is None else columns
        if isinstance(chosen, str):
            raise ValueError(f"columns must be a list of names or indices, got {chosen!r}")
        indices = [column_index(name, list(known), use="tested") for name in chosen]
        order = [*self.columns_.numbers, *self.columns_.codes]  # as the smoother has them
        for index in indices:
            if np.ptp(smoother.rows[:, order.index(index)]) == 0:
                raise ValueError(f"column {self.columns_.names[index]!r} is constant: its test needs two values")
        seed = seed_of(self.random_state)
        tests = [column_test(smoother, order.index(index), samples, seed, self.verbose) for index in indices]
        return Report(
            "Significance of the columns",
            {"Rows": f"{len(smoother.rows):,}", "Bootstrap samples": f"{samples:,}"},
            [self._labels()[index] for index in indices],
            {
                "kind": [self._kinds()[index] for index in indices],
                "statistic": [test.statistic for test in tests],
                "p_value": [test.p_value for test in tests],
            },
            [_TEST_NOTE.format(samples)],
        )

    @threaded
    def specification_test(self, linear_model: Any = None, *, samples: int = 399) -> Result:
        """Whether a linear model is enough: a statistic, and the p-value of "its errors have mean 0 everywhere".

        linear_model   a regressor of scikit-learn, which is fitted to the training rows; by default least squares on
                       the numeric columns and an indicator for each category
        samples        number of bootstrap samples, for each of which the linear model is fitted again

        The statistic compares errors of neighbours (Hsiao, Li and Racine 2007), as the bandwidth defines them: that of
        the model if it was given, else Scott's rule. One that was chosen by the targets would reject too often.

        >>> import numpy as np, regard
        >>> x = np.linspace(-1, 1, 100)[:, None]
        >>> noise = 0.1 * np.random.default_rng(0).normal(size=100)
        >>> model = regard.NadarayaWatson(bandwidth=0.2)
        >>> bent, straight = (model.fit(x, y).specification_test().p_value for y in (x[:, 0] ** 2, x[:, 0] + noise))
        >>> bent < 0.01, straight > 0.05
        (True, True)
        """
        smoother = self._tested_smoother(samples)
        if callable(self.kernel) or self.kernel == "constant":
            raise ValueError(f"the test of a linear model needs a kernel by name, got kernel={self.kernel!r}")
        if self.bandwidth is None or isinstance(self.bandwidth, str):
            smoother = apply_rule(replace(smoother, kernel="gaussian"), "scott")
        seed = seed_of(self.random_state)
        if linear_model is None:
            rows = self.X_[self.row_index_]
            columns = indicator_columns(rows[:, self.columns_.numbers], rows[:, self.columns_.codes])
            line = least_squares(columns, smoother.weight)
            if line.basis.shape[1] >= len(smoother.rows):
                raise ValueError(f"{len(smoother.rows)} rows leave a linear model of as many columns no errors to test")
            refit: Callable[[Floats], Floats] = line.errors
            leverage = line.leverage
        else:
            refit, leverage = self._refit(linear_model), np.zeros(len(smoother.rows))
        fitted = smoother.value - refit(smoother.value)
        return specification_test(smoother, fitted, leverage, refit, samples, seed, self.verbose)

    @threaded
    def index_summary(self) -> Report:
        """The direction of `metric="index"`, of length 1, with standard errors: a table as `PartiallyLinear` has it.

        The standard errors are those of Ichimura (1993), for errors of unequal size. The units are those of `scale`.

        >>> import numpy as np, regard
        >>> random = np.random.default_rng(0)
        >>> x = random.normal(size=(150, 2))
        >>> y = np.sin(0.6 * x[:, 0] + 0.8 * x[:, 1]) + 0.1 * random.normal(size=150)
        >>> model = regard.NadarayaWatson(bandwidth="learn", metric="index").fit(x, y)
        >>> model.index_summary().to_frame()["coef"].round(1).tolist()
        [0.6, 0.8]
        """
        if self.metric != "index":
            raise ValueError(f"index_summary is of metric='index', got metric={self.metric!r}")
        smoother = self.smoother_
        if smoother.value.shape[1] != 1:
            raise ValueError(f"standard errors are of one target, got {smoother.value.shape[1]}: fit a model for each")
        error = np.sqrt(np.diag(direction_covariance(smoother)))
        width = float(np.linalg.eigvalsh(smoother.bandwidth)[0])
        facts = {"Rows": f"{len(smoother.rows):,}", "Bandwidth of the index": f"{width:.4g}"}
        table = coefficient_table(direction_of(smoother), error, len(smoother.rows) - len(error))
        return Report(f"Single index of {self.targets_[0]}", facts, self._labels(), table)

    @threaded
    def summary(self, *, significance: bool = False, samples: int = 399) -> Report:
        """The model as a table: how well it fits, its degrees of freedom, and the bandwidth of each column.

        significance   with the test of each column, of `samples` bootstrap samples

        The degrees of freedom are the exact trace of the matrix that makes predictions of training rows from their
        targets. Print it, show it in a notebook, or take its numbers: `facts`, and `to_frame()`.

        >>> import numpy as np, regard
        >>> x = np.linspace(0, 6, 100)[:, None]
        >>> print(regard.NadarayaWatson(bandwidth=0.2).fit(x, np.sin(x[:, 0])).summary())
        NadarayaWatson of y
        =====================================
        Rows                              100
        Kernel                       gaussian
        Order                               0
        Bandwidth                       given
        Scale                            none
        Degrees of freedom, exact       12.55
        R²                             0.9983
        R² of rows left out            0.9974
        Residual standard error       0.03209
        -------------------------------------
              kind  bandwidth
        x0  number        0.2
        =====================================
        """
        smoother = self.smoother_
        names, matrix = self._labels(), self.bandwidth_.ndim == 2
        width = np.full(len(names), math.nan) if matrix else self.bandwidth_
        table: dict[str, Sequence[Cell]] = {"kind": self._kinds(), "bandwidth": width.tolist()}
        if significance:
            tests = self.significance_test(samples=samples).table
            table |= {name: tests[name] for name in ("statistic", "p_value")}
        rule = "auto" if self.bandwidth is None else self.bandwidth
        facts = {
            "Rows": f"{len(smoother.rows):,}",
            "Kernel": self.kernel if isinstance(self.kernel, str) else "a score of your own",
            "Order": str(smoother.order),
            "Bandwidth": f"by {rule}" if isinstance(rule, str) else "a matrix" if matrix else "given",
            "Scale": self.scale_.unit,
            **self._fit_facts(),
        }
        notes = [_TEST_NOTE.format(samples)] if significance else []
        return Report(f"{type(self).__name__} of {', '.join(self.targets_)}", facts, names, table, notes)

    def _fit_facts(self) -> dict[str, str]:
        """Degrees of freedom and what they imply."""
        smoother = self.smoother_
        weight = np.ones(len(smoother.rows)) if smoother.weight is None else smoother.weight
        fit = smoother.estimate(smoother.rows, smoother.value)
        freedom = float(smoother.leverage(fit).sum())
        error = float(weight @ np.square(smoother.value - fit.mean).mean(axis=1))
        left = weight.sum() - freedom
        facts = {
            "Degrees of freedom, exact": f"{freedom:.4g}",
            "R²": f"{r2_score(smoother.value, fit.mean, sample_weight=smoother.weight):.4g}",
        }
        if len(smoother.rows) > 1:
            facts["R² of rows left out"] = f"{self.left_out_score():.4g}"
        if left > 1e-6:
            facts["Residual standard error"] = f"{math.sqrt(error / left):.4g}"
        return facts

    def _tested_smoother(self, samples: int) -> Smoother:
        """The smoother of the fitted rows; raises if a test makes no sense."""
        if not is_count(samples):
            raise ValueError(f"samples must be a positive whole number, got {samples!r}")
        smoother = self.smoother_
        if smoother.value.shape[1] != 1:
            raise ValueError(f"tests are of one target, got {smoother.value.shape[1]}: fit a model for each")
        if len(smoother.rows) < MIN_ROWS:
            raise ValueError(f"a bootstrap test needs {MIN_ROWS} rows, got {len(smoother.rows)}")
        if np.ptp(smoother.value) == 0:
            raise ValueError(f"all targets are {smoother.value[0, 0]:g}: there is nothing to test")
        return smoother

    def _refit(self, model: Any) -> Callable[[Floats], Floats]:
        """The errors of a regressor on the training rows, fitted to each column of values."""
        if not (hasattr(model, "fit") and hasattr(model, "predict")):
            raise ValueError(f"linear_model must be a regressor with fit and predict, got {model!r}")
        table, weight = self._training_table(), self.smoother_.weight
        more = {} if weight is None else {"sample_weight": weight}

        def errors(value: Floats) -> Floats:
            return np.stack([y - clone(model).fit(table, y, **more).predict(table).ravel() for y in value.T], axis=1)

        return errors

    def _training_table(self) -> Any:
        """The training rows as they were given: an array, or a frame if columns have names or categories."""
        rows, categories = self.X_[self.row_index_], self.columns_.categories
        if not categories and not hasattr(self, "feature_names_in_"):
            return rows
        frame = import_pandas().DataFrame(rows, columns=self._labels())
        for index, category in categories.items():
            frame.isetitem(index, np.array(category.values, dtype=object)[rows[:, index].astype(int)])
        return frame

    def _labels(self) -> list[str]:
        """The names of the columns; x0, x1, … if they have none."""
        return [name if hasattr(self, "feature_names_in_") else f"x{name}" for name in self.columns_.names]

    def _kinds(self) -> list[str]:
        """The kind of each column, as the kernel takes it."""
        categories = self.columns_.categories
        return [
            "number" if index not in categories else "ordered" if categories[index].ordered else "unordered"
            for index in range(len(self.columns_.names))
        ]
