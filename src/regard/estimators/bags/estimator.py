"""Attention over bags on a user's own data: one class or one number for a bag of instances.

    z = Σᵢ αᵢ hᵢ        output = U z + b        α = softmax of score(h) within the bag,  h = embed(x)

Without a hidden size hᵢ = xᵢ and the score is vᵀx: the attention model of Mineiro (2016), whose u is U. With one, h is
a layer of that size and the score is that of Ilse, Tomczak and Welling (2018). Linear attention weighs by the score
itself, ŷ = b + Σᵢ (vᵀxᵢ)(uᵀxᵢ).

A prediction shows its evidence: what each instance of the bag weighs, αᵢ, and what it adds to each output, αᵢ uᵀhᵢ.
"""

from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from regard.data.bags import Bags
from regard.data.columns import Scale
from regard.estimators.bags.base import ClassifierOverBags, RegressorOverBags, shares
from regard.estimators.bags.quadratic import root_mean_squares
from regard.estimators.bags.quadratic_forms import fit_pair, pair_of, ridge
from regard.estimators.bags.training import NETWORKS, BagLearner
from regard.estimators.settings import all_or_nothing, seed_of

Array = Any
STARTS = ("random", "spectral")


class BagClassifier(BagLearner, ClassifierOverBags):
    """Attention over the instances of a bag, for one class a bag.

    attention            "softmax"; "gated" (Ilse et al. 2018, equation 9); or, to compare, "mean" and "max"
    hidden_size          None: scores vᵀx and outputs uᵀx of the features themselves. A number: an embedding of that
                         size, relu(Wx + b), and with "softmax" the score wᵀtanh(Vh) (equation 8)
    heads                how many attentions, side by side
    dropout              the share of the embedding that is dropped in training; there is none without an embedding
    learning_rate        of Adam; None: 0.001 with an embedding, 0.03 without
    weight_decay         ½ weight_decay ‖θ‖² is added to the loss
    epochs               passes over the bags; None: 100 with an embedding, 300 without
    batch_size           bags a step; None: all of them
    early_stopping       hold out validation_fraction of the bags, stop after `patience` epochs without a better loss
                         on them, and keep the best epoch
    class_weight         None, "balanced", or weights by class
    standardise          features to mean 0 and standard deviation 1, by the training instances
    bag                  the column of a frame that says which bag a row is in
    random_state         a seed: one seed, one result
    verbose              a progress bar, if it takes longer than a second

    X is what `regard.data.bags.as_bags` takes, y one label a bag. After `fit`: `classes_`, `network_`, `history_`.

    >>> import numpy as np
    >>> random = np.random.default_rng(0)
    >>> bags = [random.normal(size=(size, 2)) for size in random.integers(1, 9, size=60)]
    >>> label = [("with" if (bag[:, 0] > 1).any() else "without") for bag in bags]
    >>> model = BagClassifier(hidden_size=16, learning_rate=0.02, verbose=False).fit(bags, label)
    >>> model.score(bags, label) > 0.9
    True
    >>> model.evidence(bags, top=1).index.shape
    (60, 1)
    """

    def __init__(
        self,
        attention: Literal["softmax", "gated", "mean", "max"] = "softmax",
        *,
        hidden_size: int | None = None,
        heads: int = 1,
        dropout: float = 0.5,
        learning_rate: float | None = None,
        weight_decay: float = 1e-2,
        epochs: int | None = None,
        batch_size: int | None = None,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        patience: int = 10,
        class_weight: Any = None,
        standardise: bool = True,
        bag: str | None = None,
        random_state: int | None = None,
        verbose: bool = True,
    ) -> None:
        super().__init__(
            attention=attention,
            hidden_size=hidden_size,
            heads=heads,
            dropout=dropout,
            learning_rate=learning_rate,
            weight_decay=weight_decay,
            epochs=epochs,
            batch_size=batch_size,
            early_stopping=early_stopping,
            validation_fraction=validation_fraction,
            patience=patience,
            standardise=standardise,
            bag=bag,
            random_state=random_state,
            verbose=verbose,
        )
        self.class_weight = class_weight

    @all_or_nothing
    def fit(self, X: Any, y: Any) -> Self:  # noqa: N803
        """Learn from bags and one label for each."""
        bags, place = self.see_classes(X, y)
        weight = torch.from_numpy(self.weights_of_classes(place)[place]).float()
        if len(self.classes_) == 2:
            self.learn(bags, torch.from_numpy(place).float(), weight, 1, logistic, place)
        else:
            self.learn(bags, torch.from_numpy(place), weight, len(self.classes_), cross_entropy, place)
        return self


class BagRegressor(BagLearner, RegressorOverBags):
    """Attention over the instances of a bag, for one number a bag.

    attention   as in `BagClassifier`, or "linear": ŷ = b + Σᵢ (uᵀxᵢ)(vᵀxᵢ) = b + tr(XᵀX vuᵀ), where the weight of an
                instance is vᵀx itself. It is fitted by L-BFGS, and of the settings only weight_decay, standardise,
                init and random_state count; features are then divided by their root mean square but not moved, and
                `u_` and `v_` are in the units of the data
    init        where "linear" starts from: "random", or "spectral": the u and v of the full quadratic model's largest
                positive and most negative eigenvalue (see `regard.estimators.bags.quadratic_forms`)

    All other settings are those of `BagClassifier`. The target is standardised in training.

    >>> import numpy as np
    >>> bags = np.random.default_rng(0).normal(size=(80, 4, 3))
    >>> y = (bags[:, :, 0] * bags[:, :, 1]).sum(axis=1)
    >>> model = BagRegressor("linear", init="spectral", weight_decay=0.0).fit(bags, y)
    >>> np.round(np.abs(np.outer(model.u_, model.v_)).max(), 6)
    np.float64(1.0)
    """

    def __init__(
        self,
        attention: Literal["softmax", "gated", "mean", "max", "linear"] = "softmax",
        *,
        init: Literal["random", "spectral"] = "random",
        hidden_size: int | None = None,
        heads: int = 1,
        dropout: float = 0.0,
        learning_rate: float | None = None,
        weight_decay: float = 1e-2,
        epochs: int | None = None,
        batch_size: int | None = None,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        patience: int = 10,
        standardise: bool = True,
        bag: str | None = None,
        random_state: int | None = None,
        verbose: bool = True,
    ) -> None:
        super().__init__(
            attention=attention,
            hidden_size=hidden_size,
            heads=heads,
            dropout=dropout,
            learning_rate=learning_rate,
            weight_decay=weight_decay,
            epochs=epochs,
            batch_size=batch_size,
            early_stopping=early_stopping,
            validation_fraction=validation_fraction,
            patience=patience,
            standardise=standardise,
            bag=bag,
            random_state=random_state,
            verbose=verbose,
        )
        self.init = init

    @all_or_nothing
    def fit(self, X: Any, y: Any) -> Self:  # noqa: N803
        """Learn from bags and one number for each."""
        bags, y = self.see_numbers(X, y)
        centre, spread = float(y.mean()), float(y.std()) or 1.0
        standard = (y - centre) / spread
        if self.attention == "linear":
            self.fit_linear(bags, standard, spread)
            self.intercept_ = float(np.mean(y - bags.sums(self.added(bags))))
            return self
        target = torch.from_numpy(standard).float()
        self.learn(bags, target, torch.ones(len(bags)), 1, squared_error, None)
        self.network_.read.weight *= spread  # so that outputs and evidence are in the units of y
        self.network_.read.bias.mul_(spread).add_(centre)
        return self

    def fit_linear(self, bags: Bags, y: Array, spread: float) -> None:
        """u and v by L-BFGS, y standardised."""
        scaled = self.scaled(bags)
        if self.init == "spectral":
            start = pair_of(ridge(scaled, y, None).weight)
        else:
            drawn = np.random.default_rng([seed_of(self.random_state), 1]).normal(size=(2, self.n_features_in_))
            start = tuple(drawn / np.sqrt(self.n_features_in_))
        u, v = fit_pair(scaled, y, start, self.weight_decay)
        self.u_, self.v_ = u / self.scale_.spread * spread, v / self.scale_.spread

    def added(self, bags: Bags) -> Array:
        """What each instance adds, (uᵀx)(vᵀx)."""
        return (bags.instances @ self.v_) * (bags.instances @ self.u_)

    def units(self, instances: Array) -> Scale:
        linear = self.attention == "linear"
        return root_mean_squares(instances, self.standardise) if linear else super().units(instances)

    def check_attention(self) -> None:
        if self.attention not in (*NETWORKS, "linear"):
            raise ValueError(f"attention must be one of {', '.join(NETWORKS)}, linear, got {self.attention!r}")
        if self.init not in STARTS:
            raise ValueError(f"init must be one of {', '.join(STARTS)}, got {self.init!r}")
        if self.init == "spectral" and self.attention != "linear":
            raise ValueError(f"init='spectral' is for attention='linear', got attention={self.attention!r}")
        if self.attention == "linear" and self.hidden_size is not None:
            raise ValueError(f"attention='linear' has no embedding, got hidden_size={self.hidden_size!r}")

    def outputs(self, bags: Bags) -> Array:
        if self.made_with_["attention"] != "linear":
            return super().outputs(bags)
        return bags.sums(self.added(bags))[:, None] + self.intercept_

    def explain(self, bags: Bags) -> tuple[Array, Array]:
        """As for any network. In linear attention u and v may change places, so that vᵀx alone says nothing: the weight
        is the share of what is added, in size.
        """
        if self.made_with_["attention"] != "linear":
            return super().explain(bags)
        added = self.added(bags)
        return shares(np.abs(added), bags), added[:, None]

    def learned_arrays(self) -> dict[str, Array]:
        if self.made_with_["attention"] != "linear":
            return super().learned_arrays()
        return {"u": self.u_, "v": self.v_, "intercept": np.array(self.intercept_)}

    def restore(self, arrays: dict[str, Array]) -> None:
        if self.made_with_["attention"] != "linear":
            super().restore(arrays)
        else:
            self.u_, self.v_, self.intercept_ = arrays["u"], arrays["v"], arrays["intercept"].item()


def logistic(output: Tensor, target: Tensor) -> Tensor:
    """The log loss of one logit, for two classes."""
    return functional.binary_cross_entropy_with_logits(output[:, 0], target, reduction="none")


def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """The log loss of a logit for each class."""
    return functional.cross_entropy(output, target, reduction="none")


def squared_error(output: Tensor, target: Tensor) -> Tensor:
    """Half the squared error."""
    return 0.5 * (output[:, 0] - target).square()
