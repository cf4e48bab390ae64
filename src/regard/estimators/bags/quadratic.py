"""The comparison models of attention over bags: all products of features, and all features of all places.

quadratic   ŷ = b + tr(XᵀX W), W [d, d] symmetric: d(d+1)/2 parameters; linear attention is one W of rank 2
flat        ŷ = b + wᵀ vec(X), w [k·d]: it knows an instance by its place, so that bags must have one size, and
            their instances an order
"""

from typing import Any, Self

import numpy as np
from sklearn.linear_model import LogisticRegression, Ridge

from regard.checks import is_count, is_number
from regard.data.bags import Bags
from regard.data.columns import Scale
from regard.estimators.bags.base import ClassifierOverBags, OverBags, RegressorOverBags, shares
from regard.estimators.bags.quadratic_forms import fit_rank, instance_forms, quadratic, ridge
from regard.estimators.settings import all_or_nothing

Array = Any


class QuadraticRegressor(RegressorOverBags):
    """Ridge regression on the products of features: ŷ = b + tr(XᵀX W), of a bag X [n, d].

    rank         None: the full W, in closed form: on the d(d+1)/2 products ("primal") where they are no more than the
                 bags, else by the kernel ‖X Zᵀ‖²_F between bags ("dual"); `solver_` says which. A number: the W of
                 that rank, from the largest eigenvalues of the full one, and then by L-BFGS
    alpha        the ridge, α‖W‖²_F beside the sum of squared errors
    standardise  divide features by their root mean square, which leaves the model what it is: `weight_` is in the
                 units of the data, but the ridge is not
    bag          the column of a frame that says which bag a row is in

    After `fit`: `weight_` [d, d], `intercept_`, `solver_`. Evidence: an instance adds xᵀWx, and its weight is the
    share of that, in size.

    >>> import numpy as np
    >>> bags = np.random.default_rng(0).normal(size=(50, 4, 3))
    >>> y = np.square(bags[:, :, 0]).sum(axis=1)
    >>> model = QuadraticRegressor(alpha=1e-6).fit(bags, y)
    >>> model.solver_, np.abs(model.weight_[0]).round(3).tolist()
    ('primal', [1.0, 0.0, 0.0])
    """

    def __init__(
        self, rank: int | None = None, *, alpha: float = 1.0, standardise: bool = True, bag: str | None = None
    ) -> None:
        self.rank = rank
        self.alpha = alpha
        self.standardise = standardise
        self.bag = bag

    @all_or_nothing
    def fit(self, X: Any, y: Any) -> Self:  # noqa: N803
        """Learn from bags and one number for each."""
        bags, y = self.see_numbers(X, y)
        if self.rank is not None and self.rank > self.n_features_in_:
            raise ValueError(f"rank must be at most {self.n_features_in_}, the number of features, got {self.rank}")
        scaled = self.scaled(bags)
        found = ridge(scaled, y, self.alpha)
        weight, self.solver_ = found.weight, found.solver
        if self.rank is not None:
            weight = fit_rank(scaled, y, weight, self.rank, self.alpha)
        spread = self.scale_.spread
        self.weight_ = weight / spread / spread[:, None]
        self.intercept_ = float(np.mean(y - quadratic(bags, self.weight_)))
        return self

    def units(self, instances: Array) -> Scale:
        return root_mean_squares(instances, self.standardise)

    def check_settings(self) -> None:
        check_ridge(alpha=self.alpha)
        if self.rank is not None and not is_count(self.rank):
            raise ValueError(f"rank must be a positive whole number, or None for the full matrix, got {self.rank!r}")

    def outputs(self, bags: Bags) -> Array:
        return quadratic(bags, self.weight_)[:, None] + self.intercept_

    def explain(self, bags: Bags) -> tuple[Array, Array]:
        added = instance_forms(bags, self.weight_)
        return shares(np.abs(added), bags), added[:, None]

    def learned_arrays(self) -> dict[str, Array]:
        return {
            "weight": self.weight_,
            "intercept": np.array(self.intercept_),
            "primal": np.array(self.solver_ == "primal"),
        }

    def restore(self, arrays: dict[str, Array]) -> None:
        self.weight_, self.intercept_ = arrays["weight"], arrays["intercept"].item()
        self.solver_ = "primal" if arrays["primal"] else "dual"


class FlatModel(OverBags):
    """A linear model of all features of all places of a bag."""

    n_instances_in_: int
    coef_: Array  # [outputs, k * d], in the units of training
    intercept_: Array  # [outputs]

    def flat(self, bags: Bags) -> Array:
        """vec(X) of each bag, [B, k·d]."""
        other = np.flatnonzero(bags.sizes != self.n_instances_in_)
        if len(other):
            place = int(other[0])
            raise ValueError(
                "a flat model knows an instance by its place, so that all bags must have one size: the first it was"
                f" given has {self.n_instances_in_} instances, {bags.call(place)} has {bags.sizes[place]}"
            )
        return self.scaled(bags).instances.reshape(len(bags), -1)

    def fit_flat(self, bags: Bags, y: Array, solver: Any) -> Self:
        """Learn with one of scikit-learn's linear models."""
        self.n_instances_in_ = int(bags.sizes[0])
        solver.fit(self.flat(bags), y)
        self.coef_, self.intercept_ = np.atleast_2d(solver.coef_), np.atleast_1d(solver.intercept_)
        return self

    def outputs(self, bags: Bags) -> Array:
        return self.flat(bags) @ self.coef_.T + self.intercept_

    def explain(self, bags: Bags) -> tuple[Array, Array]:
        parts = self.flat(bags).reshape(len(bags), self.n_instances_in_, -1)
        by_place = self.coef_.reshape(len(self.coef_), self.n_instances_in_, -1)
        added = np.einsum("bkd,ckd->bkc", parts, by_place).reshape(len(bags.instances), -1)
        return shares(np.abs(added).sum(axis=1), bags), added

    def learned_arrays(self) -> dict[str, Array]:
        return {"coef": self.coef_, "intercept": self.intercept_, "instances": np.array(self.n_instances_in_)}

    def restore(self, arrays: dict[str, Array]) -> None:
        self.coef_, self.intercept_ = arrays["coef"], arrays["intercept"]
        self.n_instances_in_ = arrays["instances"].item()


class FlatClassifier(FlatModel, ClassifierOverBags):
    """Logistic regression on vec(X), for bags of one size whose instances have an order.

    C             the inverse of the penalty, as in scikit-learn's `LogisticRegression`, which it is
    class_weight  None, "balanced", or weights by class
    standardise   features to mean 0 and standard deviation 1, by the training instances
    bag           the column of a frame that says which bag a row is in

    >>> import numpy as np
    >>> bags = np.random.default_rng(0).normal(size=(60, 4, 2))
    >>> label = np.where(bags[:, 0, 0] > 0, "first is up", "first is down")  # a matter of places
    >>> FlatClassifier().fit(bags, label).score(bags, label) > 0.9
    True
    """

    def __init__(
        self,
        C: float = 1.0,  # noqa: N803
        *,
        class_weight: Any = None,
        standardise: bool = True,
        bag: str | None = None,
    ) -> None:
        self.C = C
        self.class_weight = class_weight
        self.standardise = standardise
        self.bag = bag

    @all_or_nothing
    def fit(self, X: Any, y: Any) -> Self:  # noqa: N803
        """Learn from bags of one size and one class for each."""
        bags, place = self.see_classes(X, y)
        weight = self.class_weight
        if isinstance(weight, dict):
            weight = dict(enumerate(self.weights_of_classes(place)))
        return self.fit_flat(bags, place, LogisticRegression(C=self.C, class_weight=weight, max_iter=1000))

    def check_settings(self) -> None:
        check_ridge(C=self.C)


class FlatRegressor(FlatModel, RegressorOverBags):
    """Ridge regression on vec(X), for bags of one size whose instances have an order.

    alpha        the penalty, as in scikit-learn's `Ridge`, which it is
    standardise  features to mean 0 and standard deviation 1, by the training instances
    bag          the column of a frame that says which bag a row is in

    >>> import numpy as np
    >>> bags = np.random.default_rng(0).normal(size=(60, 4, 2))
    >>> FlatRegressor().fit(bags, bags[:, 3, 1]).score(bags, bags[:, 3, 1]) > 0.99
    True
    >>> FlatRegressor().fit(bags, bags.max(axis=(1, 2))).score(bags, bags.max(axis=(1, 2))) < 0.9
    True
    """

    def __init__(self, alpha: float = 1.0, *, standardise: bool = True, bag: str | None = None) -> None:
        self.alpha = alpha
        self.standardise = standardise
        self.bag = bag

    @all_or_nothing
    def fit(self, X: Any, y: Any) -> Self:  # noqa: N803
        """Learn from bags of one size and one number for each."""
        bags, y = self.see_numbers(X, y)
        return self.fit_flat(bags, y, Ridge(alpha=self.alpha))

    def check_settings(self) -> None:
        check_ridge(alpha=self.alpha)


def root_mean_squares(instances: Array, standardise: bool) -> Scale:
    """Units that leave a quadratic form what it is: features are divided, not moved."""
    if not standardise:
        return Scale(np.zeros(instances.shape[1]), np.ones(instances.shape[1]))
    size = np.sqrt(np.mean(np.square(instances), axis=0))
    return Scale(np.zeros(instances.shape[1]), np.where(size > 0, size, 1.0))


def check_ridge(**penalty: float) -> None:
    """A penalty must be positive."""
    ((name, value),) = penalty.items()
    if not is_number(value) or not 0 < value < np.inf:
        raise ValueError(f"{name} must be a positive number, got {value!r}")
