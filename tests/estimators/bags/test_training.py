"""Training of networks over bags: seeds, batches, early stopping, and the settings that reach the loop."""

import numpy as np
import pytest
import torch
from helpers.bag_cases import QUICK, equal_bags, ragged_bags, target_for
from numpy.testing import assert_array_equal

from regard.estimators import BagClassifier, BagRegressor
from regard.estimators.bags import training

BRIEF = {**QUICK, "epochs": 8}


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"batch_size": 8}, {"early_stopping": True, "validation_fraction": 0.2}])
def test_one_seed_gives_one_result_to_the_bit(settings):
    bags = ragged_bags()
    y = target_for(BagClassifier(), bags)
    fits = []
    for seed in (1, 1, 2):
        torch.rand(3)  # random numbers of others change nothing
        before = torch.random.get_rng_state()
        fits.append(
            BagClassifier(hidden_size=7, random_state=seed, **BRIEF, **settings).fit(bags, y).decision_function(bags)
        )
        assert torch.equal(torch.random.get_rng_state(), before)
    assert_array_equal(fits[0], fits[1])
    assert np.abs(fits[0] - fits[2]).max() > 1e-3


@pytest.mark.slow
def test_batches_have_every_bag_once_per_epoch():
    bags = ragged_bags()
    y = target_for(BagClassifier(), bags)
    one, other = (BagClassifier(batch_size=size, **BRIEF).fit(bags, y).decision_function(bags) for size in (None, 41))
    assert_array_equal(one, other)
    few = BagClassifier(batch_size=8, **QUICK).fit(bags, y)
    assert few.score(bags, y) > 0.8
    assert np.abs(few.decision_function(bags) - one).max() > 1e-3


def test_early_stopping_keeps_the_best_epoch():
    bags = ragged_bags(count=60, features=20)
    y = np.random.default_rng(0).permutation(60) % 2  # nothing to learn except by memorising
    model = BagClassifier(
        hidden_size=32, early_stopping=True, validation_fraction=0.3, patience=5, epochs=200, learning_rate=0.02
    )
    history = model.fit(bags, y).history_
    assert len(history.validation) == history.best_epoch + 6 < 200
    assert history.validation[history.best_epoch] == min(history.validation)
    assert min(history.validation) > 0.5  # held-out bags cannot be memorised
    assert not BagClassifier(**BRIEF).fit(bags, y).history_.validation


@pytest.mark.slow
def test_settings_reach_the_training_loop(monkeypatch):
    given = {}

    def recorded(network, batches, loss, recipe, **settings):
        given.update(vars(recipe), progress=settings["monitor"].progress)
        given.update(orders=[[target.tolist() for _, _, target, _ in batches(epoch)] for epoch in range(2)])
        return train(network, batches, loss, recipe, **settings)

    train = training.train
    monkeypatch.setattr(training, "train", recorded)
    bags = equal_bags()
    number = np.arange(len(bags), dtype=float)
    BagRegressor(batch_size=4, epochs=2, weight_decay=0.25, verbose=False).fit(bags, number)
    first, second = given["orders"]
    assert first != second  # shuffled in each epoch
    assert [len(batch) for batch in first] == [4] * 10 + [1]
    assert sorted(np.concatenate(first)) == sorted(np.concatenate(second))
    (group,) = given["optimizer"].param_groups
    assert (group["lr"], group["weight_decay"], given["progress"]) == (0.03, 0.25, False)
    BagRegressor(hidden_size=3, epochs=1, verbose=True).fit(bags, number)
    assert given["optimizer"].param_groups[0]["lr"] == 0.001
    assert given["progress"]
    BagRegressor(verbose=False).fit(bags[:4], number[:4])
    assert given["epochs"] == 300
    BagClassifier(hidden_size=3, verbose=False).fit(bags[:4], [0, 1, 0, 1])
    assert given["epochs"] == 100


def test_the_error_of_a_nan_loss_suggests_only_settings_that_bags_have():
    """Bags have a learning rate, but no gradient clipping."""
    with pytest.raises(FloatingPointError, match=r"smaller learning rate than 1e\+30, or look for NaN") as caught:
        BagRegressor(learning_rate=1e30, epochs=9, verbose=False).fit(equal_bags(), np.arange(41.0))
    assert "clip" not in str(caught.value)
