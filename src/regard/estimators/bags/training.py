"""What the estimators that train a network over bags share: settings, training, outputs, evidence.

The modules are those of `regard.models.bag`, the loop is `regard.training.train`. Each step takes all bags or a batch
of bags, without padding: its cost is that of the batch's instances. Training is in float32; the trained network
predicts in float64, so that contributions add up to the output to rounding error.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.utils.data import DataLoader

from regard.data.bags import Bags, Floats, Integers
from regard.estimators.bags.base import Arrays, OverBags
from regard.estimators.common import module_arrays, restored_module
from regard.estimators.settings import Seeded, seed_of, setting, with_settings
from regard.models.bag import BagAttention, BagModel, GatedScore, MaxPooling, MeanPooling, TanhScore, linear_score
from regard.training import Monitor, Recipe, train

Loss = Callable[[Tensor, Tensor], Tensor]
"""From outputs [count, outputs] and targets [count] to the loss of each bag, [count]."""
_Batch = tuple[Tensor, Tensor, Tensor, Tensor]
"""Some bags as the network takes them: instances [n, d], the bag of each [n], targets and weights [count]."""
_PLAIN_RATE, _EMBEDDED_RATE = 0.03, 1e-3
_PLAIN_EPOCHS, _EMBEDDED_EPOCHS = 300, 100
"""Default learning rates and epochs without an embedding, and with one."""
BLOCK = 2**16
"""The largest number of instances in one pass through a network in prediction."""


@with_settings
class NetworkOverBags(Seeded, OverBags):
    """Training, outputs and evidence of a network; linear attention, which `BagRegressor` fits, has none."""

    attention: str = setting("weighing", default="softmax", kw_only=False)
    hidden_size: int | None = setting("size of an embedding relu(Wx + b); by default none", default=None)
    heads: int = setting("attention heads", default=1)
    dropout: float = setting("fraction of the embedding dropped in training", default=0.5, at_least=0, below=1)
    learning_rate: float | None = setting("by default 0.001 with an embedding, 0.03 without", default=None, above=0)
    weight_decay: float = setting("½ weight_decay ‖θ‖² is added to the loss", default=0.01, at_least=0)
    epochs: int | None = setting("by default 100 with an embedding, 300 without", default=None)
    batch_size: int | None = setting("bags per step; by default all", default=None)
    early_stopping: bool = setting("keep the epoch with the lowest held-out loss", default=False)
    validation_fraction: float = setting("fraction held out by early stopping", default=0.1, above=0, below=1)
    patience: int = setting("epochs without improvement before stopping", default=10)

    @property
    def _is_linear(self) -> bool:
        return bool(self.structure_["attention"] == "linear")

    def _train(self, bags: Bags, target: Tensor, weight: Tensor, loss: Loss, strata: Integers | None = None) -> None:
        """Train a new network on bags with one target and one weight each; `strata` are their classes."""
        outputs = 1 if strata is None or strata.max() < 2 else int(strata.max()) + 1
        rate, epochs = (_PLAIN_RATE, _PLAIN_EPOCHS) if self.hidden_size is None else (_EMBEDDED_RATE, _EMBEDDED_EPOCHS)
        seed, mean_weight = seed_of(self.random_state), weight.mean()
        scaled = replace(bags, instances=self.scale_(bags.instances).astype(np.float32))
        training, validation = _split(
            len(bags), strata, self.validation_fraction if self.early_stopping else None, seed
        )

        def batch_of(chosen: Any) -> _Batch:
            index = np.asarray(chosen)
            some = scaled[index]
            return torch.from_numpy(some.instances), torch.from_numpy(some.bag_index), target[index], weight[index]

        def batch_loss(batch: _Batch) -> Tensor:
            instance, bag, y, each_weight = batch
            return (loss(network(instance, bag, len(y)), y) * each_weight).mean() / mean_weight

        random = np.random.default_rng(seed)
        size = self.batch_size or len(training)
        whole = [batch_of(training)] if size >= len(training) else None

        def batches(epoch: int) -> Iterable[_Batch]:
            if whole:
                return whole
            order: Any = random.permutation(training)
            # A loader draws a number, which must not be one of those of dropout.
            return DataLoader(order, size, collate_fn=batch_of, generator=torch.Generator())

        with torch.random.fork_rng(devices=[]):  # our seed must not change the caller's random numbers
            torch.manual_seed(seed)
            network = self._make_network(outputs)
            held_out = batch_of(validation) if len(validation) else None
            optimizer = torch.optim.Adam(
                network.parameters(), lr=self.learning_rate or rate, weight_decay=self.weight_decay, fused=True
            )
            self.history_ = train(
                network,
                batches,
                batch_loss,
                Recipe(optimizer, self.epochs or epochs, patience=None if held_out is None else self.patience),
                validate=None if held_out is None else lambda: float(batch_loss(held_out)),
                monitor=Monitor(type(self).__name__, self.verbose),
            )
        self.network_ = network.double().eval().requires_grad_(False)

    def _make_network(self, outputs: int) -> BagModel:
        """A network with new parameters; without a hidden size it has no embedding."""
        features, hidden, heads = self.n_features_in_, self.hidden_size, self.heads
        size = features if hidden is None else hidden
        embed: nn.Module = nn.Identity()
        if hidden is not None:
            embed = nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Dropout(self.dropout))
        if self.attention in ("mean", "max"):
            return BagModel(embed, MeanPooling() if self.attention == "mean" else MaxPooling(), size, outputs)
        if hidden is None:
            score: nn.Module = linear_score(size, heads)
        else:
            score = (GatedScore if self.attention == "gated" else TanhScore)(size, hidden, heads)
        return BagModel(embed, BagAttention(score, heads), size, outputs)

    def _check_settings(self) -> None:
        if self.attention == "gated" and self.hidden_size is None:
            raise ValueError("attention='gated' needs a hidden_size, such as 64, got None: the gate is a layer")
        if self.heads > 1 and self.attention not in ("softmax", "gated"):
            raise ValueError(f"heads must be 1 for attention={self.attention!r}, got {self.heads}")

    def _tensors(self, bags: Bags) -> tuple[Tensor, Tensor, int]:
        return torch.from_numpy(self.scale_(bags.instances)), torch.from_numpy(bags.bag_index), len(bags)

    def _outputs(self, bags: Bags) -> Floats:
        if self._is_linear:
            return super()._outputs(bags)
        parts = [self.network_(*self._tensors(bags[block])) for block in bags.blocks(BLOCK)]
        return torch.cat(parts).numpy()

    def _explain(self, bags: Bags) -> tuple[Floats, Floats]:
        if self._is_linear:
            return super()._explain(bags)
        parts = [self.network_.explain(*self._tensors(bags[block])) for block in bags.blocks(BLOCK)]
        weight, contribution = (torch.cat(part).numpy() for part in zip(*parts, strict=True))
        return weight, contribution

    def _arrays(self) -> Arrays:
        return super()._arrays() if self._is_linear else module_arrays(self.network_, "network.")

    def _set_arrays(self, arrays: Arrays) -> None:
        if self._is_linear:
            super()._set_arrays(arrays)
            return
        network = self._make_network(len(arrays["network.read.bias"])).double()
        self.network_ = restored_module(network, arrays, "network.")


def _split(count: int, strata: Integers | None, fraction: float | None, seed: int) -> tuple[Integers, Integers]:
    """The indices of the bags to train on, and of those held out for early stopping."""
    everyone = np.arange(count)
    if fraction is None:
        return everyone, everyone[:0]
    size = max(1, round(fraction * count))
    if size >= count:
        raise ValueError(f"early_stopping holds out {size} of {count} bags, which leaves none to train on")
    if strata is not None:
        fewest, classes = np.bincount(strata).min(), strata.max() + 1
        # Scikit-learn stratifies only if each class has two members and each part has room for all classes.
        strata = strata if fewest >= 2 and size >= classes and count - size >= classes else None
    training, validation = train_test_split(everyone, test_size=size, random_state=seed % 2**32, stratify=strata)
    return np.sort(training), np.sort(validation)
