"""A network over bags as an estimator: its settings, its training, its outputs, its evidence.

The modules are those of `regard.models.bag`, the loop is that of `regard.training`. Bags are given to them full batch
or in mini-batches of bags, without padding: a step costs what its instances cost. Training is in float32; what was
learned answers in float64, so that what instances add is the output to the last digits that anyone reads.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

from regard.checks import is_count, is_number
from regard.data.bags import Bags
from regard.estimators.bags.base import OverBags
from regard.estimators.settings import seed_of
from regard.models.bag import BagAttention, BagModel, GatedScore, MaxPooling, MeanPooling, TanhScore, linear_score
from regard.training import History, Monitor, Recipe, train

Array = Any
NETWORKS = ("softmax", "gated", "mean", "max")
PLAIN_RATE, EMBEDDED_RATE = 0.03, 1e-3
PLAIN_EPOCHS, EMBEDDED_EPOCHS = 300, 100
"""Learning rates and epochs without an embedding, and with one."""
BLOCK = 2**16
"""Instances that go through a network at a time in prediction."""


class Batch(NamedTuple):
    """Some bags as the network takes them."""

    instance: Tensor  # [n, d]
    bag: Tensor  # [n]
    target: Tensor  # [count]
    weight: Tensor  # [count]


Lose = Callable[[Tensor, Tensor], Tensor]
"""From outputs [count, outputs] and targets [count] to the loss of each bag, [count]."""


class BagLearner(OverBags):
    """What classification and regression by a network share: settings, training, outputs and evidence."""

    network_: BagModel
    history_: History

    def __init__(
        self,
        attention: str,
        hidden_size: int | None,
        heads: int,
        dropout: float,
        learning_rate: float | None,
        weight_decay: float,
        epochs: int | None,
        batch_size: int | None,
        early_stopping: bool,
        validation_fraction: float,
        patience: int,
        standardise: bool,
        bag: str | None,
        random_state: int | None,
        verbose: bool,
    ) -> None:
        self.attention = attention
        self.hidden_size = hidden_size
        self.heads = heads
        self.dropout = dropout
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.epochs = epochs
        self.batch_size = batch_size
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.standardise = standardise
        self.bag = bag
        self.random_state = random_state
        self.verbose = verbose

    def learn(self, bags: Bags, target: Tensor, weight: Tensor, outputs: int, lose: Lose, strata: Array | None) -> None:
        """Train a new network on bags, one target and one weight for each."""
        seed = seed_of(self.random_state)
        scaled = bags.with_instances(self.scale_(bags.instances).astype(np.float32))
        kept, held = self.held_out(len(bags), strata, seed)
        usual = weight.mean()

        def batch_of(chosen: Array) -> Batch:
            some = scaled.take(chosen)
            return Batch(torch.from_numpy(some.instances), torch.from_numpy(some.bag), target[chosen], weight[chosen])

        def loss(batch: Batch) -> Tensor:
            each = lose(network(batch.instance, batch.bag, len(batch.target)), batch.target)
            return (each * batch.weight).mean() / usual

        random = np.random.default_rng(seed)
        size = len(kept) if self.batch_size is None else self.batch_size
        at_once = [batch_of(kept)] if size >= len(kept) else None

        def batches(epoch: int) -> Iterable[Batch]:
            return Shuffled(random.permutation(kept), size, batch_of) if at_once is None else at_once

        with torch.random.fork_rng(devices=[]):  # what is drawn here is from our seed, and changes nobody else's
            torch.manual_seed(seed)
            network = self.make_network(outputs)
            validation = batch_of(held) if len(held) else None
            optimizer = torch.optim.Adam(
                network.parameters(), lr=self.rate(), weight_decay=self.weight_decay, fused=True
            )
            self.history_ = train(
                network,
                batches,
                loss,
                Recipe(optimizer, self.passes(), patience=self.patience if len(held) else None),
                validate=None if validation is None else lambda: float(loss(validation)),
                monitor=Monitor(type(self).__name__, self.verbose),
            )
        self.network_ = network.double().eval().requires_grad_(False)

    def rate(self) -> float:
        """The learning rate, if none is given one for the few weights there are without an embedding, or with it."""
        if self.learning_rate is not None:
            return self.learning_rate
        return PLAIN_RATE if self.hidden_size is None else EMBEDDED_RATE

    def passes(self) -> int:
        """The epochs, in the same way."""
        if self.epochs is not None:
            return self.epochs
        return PLAIN_EPOCHS if self.hidden_size is None else EMBEDDED_EPOCHS

    def held_out(self, count: int, strata: Array | None, seed: int) -> tuple[Array, Array]:
        """The bags to learn from, and those to stop early by."""
        everyone = np.arange(count)
        if not self.early_stopping:
            return everyone, everyone[:0]
        size = max(1, round(self.validation_fraction * count))
        if size >= count:
            raise ValueError(f"early_stopping holds out {size} of {count} bags, which leaves none to learn from")
        if strata is not None:
            fewest, classes = np.bincount(strata).min(), strata.max() + 1
            strata = strata if fewest >= 2 and size >= classes and count - size >= classes else None
        kept, held = train_test_split(everyone, test_size=size, random_state=seed % 2**32, stratify=strata)
        return np.sort(kept), np.sort(held)

    def make_network(self, outputs: int) -> BagModel:
        """A network of the settings, with new weights."""
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

    def check_settings(self) -> None:
        self.check_attention()
        hidden, heads, batch = self.hidden_size, self.heads, self.batch_size
        if hidden is not None and not is_count(hidden):
            raise ValueError(f"hidden_size must be a positive whole number, or None for no embedding, got {hidden!r}")
        if self.attention == "gated" and hidden is None:
            raise ValueError("attention='gated' needs a hidden_size, such as 64: a gate is a layer of that size")
        if not is_count(heads) or (heads > 1 and self.attention not in ("softmax", "gated")):
            raise ValueError(f"heads must be a positive whole number, and 1 without a softmax, got {heads!r}")
        if batch is not None and not is_count(batch):
            raise ValueError(f"batch_size must be a positive whole number, or None for all bags, got {batch!r}")
        if not is_count(self.passes()) or not is_count(self.patience):
            raise ValueError(f"epochs and patience must be at least 1, got {self.epochs!r} and {self.patience!r}")
        if not number(self.rate()) or not self.rate() > 0 or not number(self.weight_decay) or self.weight_decay < 0:
            raise ValueError(
                "learning_rate must be positive and weight_decay not negative, got"
                f" {self.learning_rate!r} and {self.weight_decay!r}"
            )
        dropout, held = self.dropout, self.validation_fraction
        if not number(dropout) or not 0 <= dropout < 1 or not number(held) or not 0 < held < 1:
            raise ValueError(
                "dropout must be at least 0 and below 1, and validation_fraction between 0 and 1, got"
                f" {dropout!r} and {held!r}"
            )

    def check_attention(self) -> None:
        if self.attention not in NETWORKS:
            raise ValueError(f"attention must be one of {', '.join(NETWORKS)}, got {self.attention!r}")

    def tensors(self, bags: Bags) -> tuple[Tensor, Tensor, int]:
        """Bags as the network takes them."""
        return torch.from_numpy(self.scale_(bags.instances)), torch.from_numpy(bags.bag), len(bags)

    def outputs(self, bags: Bags) -> Array:
        parts = [self.network_(*self.tensors(bags[run])) for run in bags.runs(BLOCK)]
        return torch.cat(parts).numpy()

    def explain(self, bags: Bags) -> tuple[Array, Array]:
        parts = [self.network_.explain(*self.tensors(bags[run])) for run in bags.runs(BLOCK)]
        weight, added = (torch.cat(part).numpy() for part in zip(*parts, strict=True))
        return weight, added

    def learned_arrays(self) -> dict[str, Array]:
        return {f"network.{name}": tensor.numpy() for name, tensor in self.network_.state_dict().items()}

    def restore(self, arrays: dict[str, Array]) -> None:
        state = {
            name.removeprefix("network."): torch.as_tensor(array)
            for name, array in arrays.items()
            if name.startswith("network.")
        }
        network = self.make_network(len(state["read.bias"])).double()
        network.load_state_dict(state)
        self.network_ = network.eval().requires_grad_(False)


class Shuffled:
    """The batches of an epoch, each made when it is its turn."""

    def __init__(self, order: Array, size: int, make: Callable[[Array], Batch]) -> None:
        self.order, self.size, self.make = order, size, make

    def __len__(self) -> int:
        return -(-len(self.order) // self.size)

    def __iter__(self) -> Iterator[Batch]:
        return (self.make(self.order[place : place + self.size]) for place in range(0, len(self.order), self.size))


def number(value: Any) -> bool:
    """Whether something is a finite number."""
    return is_number(value) and math.isfinite(value)
