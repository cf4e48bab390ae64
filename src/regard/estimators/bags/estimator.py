"""Attention over bags on a user's own data: one class or one number for a bag of instances.

    z = Σᵢ αᵢ hᵢ        output = U z + b        α = softmax of score(h) within the bag,  h = embed(x)

Without a hidden size hᵢ = xᵢ and the score is vᵀx: the attention model of Mineiro (2016), whose u is U. With a hidden
size, h is a layer of that size and the score is that of Ilse, Tomczak and Welling (2018).

The evidence of a prediction is the weight αᵢ of each instance and its contribution αᵢ uᵀhᵢ to each output.
"""

from typing import ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from regard.data.bags import Bags, Floats
from regard.estimators.bags.base import ClassifierOverBags, RegressorOverBags
from regard.estimators.bags.quadratic import fit_pair, pair_of, ridge
from regard.estimators.bags.training import NetworkOverBags
from regard.estimators.common import all_or_nothing
from regard.estimators.settings import seed_of, setting, with_settings


@with_settings
class BagClassifier(NetworkOverBags, ClassifierOverBags):
    """Attention over the instances of a bag, for one class per bag.

    Without a hidden size the scores are vᵀx and the outputs uᵀx of the features. With one they are of an embedding h,
    and the score is wᵀtanh(Vh), equation 8 of Ilse et al. 2018, or with attention="gated" equation 9. "mean" and "max"
    are poolings without attention, for comparison.

    X is what `regard.data.bags.as_bags` takes, y one label per bag. After `fit`: `classes_`, `network_`, `history_`.

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

    attention: Literal["softmax", "gated", "mean", "max"] = setting("weighing", default="softmax", kw_only=False)

    @all_or_nothing
    def fit(self, X: object, y: object) -> Self:  # noqa: N803
        """Learn from bags and one label for each."""
        bags, index = self._read_classes(X, y)
        weight = torch.from_numpy(self._class_weights(index)[index]).float()
        self._train(bags, torch.from_numpy(index), weight, _log_loss, index)
        return self


@with_settings
class BagRegressor(NetworkOverBags, RegressorOverBags):
    """Attention over the instances of a bag, for one number per bag.

    attention="linear" is ŷ = b + Σᵢ (uᵀxᵢ)(vᵀxᵢ) = b + tr(XᵀX vuᵀ), where vᵀx is the weight of an instance. It is
    fitted by L-BFGS and uses only the settings weight_decay, standardise, init and random_state. Features are divided
    by their root mean square, not centred, and `u_` and `v_` are in the units of the data. It starts at random, or with
    init="spectral" at the u and v of the full quadratic model (see `regard.estimators.bags.quadratic`).

    The target is standardised in training. After `fit`: `network_`, `history_`; of linear attention `u_`, `v_`.

    >>> import numpy as np
    >>> bags = np.random.default_rng(0).normal(size=(80, 4, 3))
    >>> y = (bags[:, :, 0] * bags[:, :, 1]).sum(axis=1)
    >>> model = BagRegressor("linear", init="spectral", weight_decay=0.0).fit(bags, y)
    >>> np.round(np.abs(np.outer(model.u_, model.v_)).max(), 6)
    np.float64(1.0)
    """

    attention: Literal["softmax", "gated", "mean", "max", "linear"] = setting(
        "weighing", default="softmax", kw_only=False
    )
    init: Literal["random", "spectral"] = setting("start of linear attention", default="random", option=False)
    dropout: float = setting("fraction of the embedding dropped; classes 0.5", default=0.0, at_least=0, below=1)
    _saved: ClassVar = {"u": "u_", "v": "v_", "intercept": "intercept_"}

    @all_or_nothing
    def fit(self, X: object, y: object) -> Self:  # noqa: N803
        """Learn from bags and one number for each."""
        bags, target = self._read_numbers(X, y, centre=self.attention != "linear")
        centre, spread = float(target.mean()), float(target.std()) or 1.0
        standard = (target - centre) / spread
        if self.attention == "linear":
            self._fit_linear(bags, standard, spread)
            self._set_intercept(bags, target)
            return self
        self._train(bags, torch.from_numpy(standard).float(), torch.ones(len(bags)), _squared_error)
        self.network_.read.weight *= spread  # so that outputs and evidence are in the units of y
        self.network_.read.bias.mul_(spread).add_(centre)
        return self

    def _fit_linear(self, bags: Bags, y: Floats, spread: float) -> None:
        """u and v by L-BFGS, for a standardised y."""
        scaled = self._scaled(bags)
        if self.init == "spectral":
            u, v = pair_of(ridge(scaled, y, None))
        else:
            random = np.random.default_rng([seed_of(self.random_state), 1])
            u, v = random.normal(size=(2, self.n_features_in_)) / np.sqrt(self.n_features_in_)
        u, v = fit_pair(scaled, y, (u, v), self.weight_decay)
        self.u_, self.v_ = u / self.scale_.spread * spread, v / self.scale_.spread

    def _contributions(self, bags: Bags) -> Floats:
        """Of linear attention, (uᵀx)(vᵀx). u and v are interchangeable, so vᵀx alone is no weight."""
        return ((bags.instances @ self.v_) * (bags.instances @ self.u_))[:, None]

    def _check_settings(self) -> None:
        super()._check_settings()
        if self.init == "spectral" and self.attention != "linear":
            raise ValueError(f"init='spectral' needs attention='linear', got attention={self.attention!r}")
        if self.attention == "linear" and self.hidden_size is not None:
            raise ValueError(f"hidden_size must be None for attention='linear', got {self.hidden_size!r}")


def _log_loss(output: Tensor, target: Tensor) -> Tensor:
    """The log loss of one logit per class; of two classes only the second has one."""
    if output.shape[1] == 1:
        return functional.binary_cross_entropy_with_logits(output[:, 0], target.to(output), reduction="none")
    return functional.cross_entropy(output, target, reduction="none")


def _squared_error(output: Tensor, target: Tensor) -> Tensor:
    """Half the squared error."""
    return 0.5 * (output[:, 0] - target).square()
