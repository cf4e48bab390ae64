"""Bags, models over them, targets, and the output that tests compare."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

from regard.estimators import BagClassifier, BagRegressor, FlatClassifier, FlatRegressor, QuadraticRegressor

QUICK = {"learning_rate": 0.05, "epochs": 40, "verbose": False}
MODELS = {
    "softmax": BagClassifier(**QUICK),
    "tanh": BagClassifier(hidden_size=7, **QUICK),
    "heads": BagClassifier(hidden_size=7, heads=3, **QUICK),
    "gated": BagClassifier("gated", hidden_size=7, **QUICK),
    "mean": BagClassifier("mean", **QUICK),
    "max": BagClassifier("max", hidden_size=7, **QUICK),
    "regression": BagRegressor(**QUICK),
    "linear": BagRegressor("linear"),
    "spectral": BagRegressor("linear", init="spectral"),
    "quadratic": QuadraticRegressor(),
    "rank 2": QuadraticRegressor(rank=2),
}
FLAT = {"flat classifier": FlatClassifier(), "flat regressor": FlatRegressor()}
ALL = {**MODELS, **FLAT}
SMALL_FRAME = pd.DataFrame({"bag": ["a", "b", "a"], "x": [1.0, 2.0, 3.0], "y": [0.0, 1.0, 2.0]})

every_name = pytest.mark.parametrize("name", ALL)
every_model = pytest.mark.parametrize("model", ALL.values(), ids=ALL)
every_ragged_model = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)


def brief(model):
    """The model, not fitted, with three epochs: for tests that need no quality."""
    return clone(model).set_params(epochs=3) if hasattr(model, "epochs") else clone(model)


def ragged_bags(count=41, features=3, seed=0, most=7):
    random = np.random.default_rng(seed)
    return [random.normal(size=(size, features)) for size in random.integers(1, most + 1, size=count)]


def equal_bags(count=41, size=5, features=3, seed=0):
    return np.random.default_rng(seed).normal(size=(count, size, features))


def target_for(model, bags):
    """Whether some instance is large in feature 0, or a number that depends on products."""
    if hasattr(model, "predict_proba"):
        return np.array([(np.asarray(bag)[:, 0] > 0.7).any() for bag in bags])
    return np.array([(bag[:, 0] * bag[:, 1] + 0.5 * bag[:, 2] ** 2).sum() for bag in bags])


def output_of(model, bags):
    return model.decision_function(bags) if hasattr(model, "decision_function") else model.predict(bags)


def long_frame(bags, ids, seed=None):
    """A row for each instance; with a seed, all rows but the first of each bag are shuffled."""
    bag = np.repeat(np.arange(len(bags)), [len(one) for one in bags])
    frame = pd.DataFrame(np.concatenate(bags), columns=[f"f{index}" for index in range(bags[0].shape[1])])
    frame.insert(1, "molecule", np.asarray(ids)[bag])
    if seed is None:
        return frame
    first = ~frame.duplicated("molecule")
    rest = frame[~first].sample(frac=1, random_state=seed)
    return pd.concat([frame[first], rest])


def symmetric_part(u, v):
    return (np.outer(u, v) + np.outer(v, u)) / 2
