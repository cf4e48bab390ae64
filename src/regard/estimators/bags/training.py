"""Training of a network over bags.

The modules are those of `regard.models.bag`, the loop is `regard.training.train`. Each step takes all bags or a batch
of bags, without padding: its cost is that of the batch's instances. Training is in float32; the trained network
predicts in float64, so that contributions add up to the output to rounding error.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

from regard.data.bags import Bags, Integers
from regard.models.bag import BagAttention, BagModel, GatedScore, MaxPooling, MeanPooling, TanhScore, linear_score
from regard.training import History, Monitor, Recipe, train

Loss = Callable[[Tensor, Tensor], Tensor]
"""From outputs [count, outputs] and targets [count] to the loss of each bag, [count]."""
_Batch = tuple[Tensor, Tensor, Tensor, Tensor]
"""Some bags as the network takes them: instances [n, d], the bag of each [n], targets and weights [count]."""


class Schedule(NamedTuple):
    """How a network is trained."""

    learning_rate: float
    weight_decay: float
    epochs: int
    batch_size: int | None  # None: all bags
    validation_fraction: float | None  # None: no early stopping
    patience: int
    seed: int


def make_network(
    attention: str, hidden: int | None, heads: int, dropout: float, features: int, outputs: int
) -> BagModel:
    """A network with new parameters; with hidden=None it has no embedding."""
    size = features if hidden is None else hidden
    embed: nn.Module = nn.Identity()
    if hidden is not None:
        embed = nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Dropout(dropout))
    if attention in ("mean", "max"):
        return BagModel(embed, MeanPooling() if attention == "mean" else MaxPooling(), size, outputs)
    if hidden is None:
        score: nn.Module = linear_score(size, heads)
    else:
        score = (GatedScore if attention == "gated" else TanhScore)(size, hidden, heads)
    return BagModel(embed, BagAttention(score, heads), size, outputs)


def train_network(
    make: Callable[[], BagModel],
    bags: Bags,
    examples: tuple[Tensor, Tensor, Integers | None],
    loss: Loss,
    schedule: Schedule,
    monitor: Monitor,
) -> tuple[BagModel, History]:
    """A trained network in float64, and the history of its training.

    bags        scaled, in float32
    examples    target [B], weight [B], and classes [B] of which the validation bags should have the same fractions
    """
    target, weight, strata = examples
    training, validation = split(len(bags), strata, schedule.validation_fraction, schedule.seed)
    mean_weight = weight.mean()

    def batch_of(chosen: Integers) -> _Batch:
        some = bags.take(chosen)
        return torch.from_numpy(some.instances), torch.from_numpy(some.bag_index), target[chosen], weight[chosen]

    def batch_loss(batch: _Batch) -> Tensor:
        instance, bag, y, each_weight = batch
        return (loss(network(instance, bag, len(y)), y) * each_weight).mean() / mean_weight

    random = np.random.default_rng(schedule.seed)
    size = schedule.batch_size or len(training)
    whole = [batch_of(training)] if size >= len(training) else None

    def batches(epoch: int) -> Iterable[_Batch]:
        return whole or Batches(random.permutation(training), size, batch_of)

    with torch.random.fork_rng(devices=[]):  # our seed must not change the caller's random numbers
        torch.manual_seed(schedule.seed)
        network = make()
        held_out = batch_of(validation) if len(validation) else None
        optimizer = torch.optim.Adam(
            network.parameters(), lr=schedule.learning_rate, weight_decay=schedule.weight_decay, fused=True
        )
        history = train(
            network,
            batches,
            batch_loss,
            Recipe(optimizer, schedule.epochs, patience=None if held_out is None else schedule.patience),
            validate=None if held_out is None else lambda: float(batch_loss(held_out)),
            monitor=monitor,
        )
    return network.double().eval().requires_grad_(False), history


def split(count: int, strata: Integers | None, fraction: float | None, seed: int) -> tuple[Integers, Integers]:
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


class Batches:
    """The batches of an epoch, each made when it is needed."""

    def __init__(self, order: Integers, size: int, make: Callable[[Integers], _Batch]) -> None:
        self.order, self.size, self.make = order, size, make

    def __len__(self) -> int:
        return -(-len(self.order) // self.size)

    def __iter__(self) -> Iterator[_Batch]:
        return (self.make(self.order[start : start + self.size]) for start in range(0, len(self.order), self.size))
