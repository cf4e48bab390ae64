"""Bags, models over them, and what they are asked."""

import numpy as np
import pandas as pd
import pytest

from regard.estimators.bags.estimator import BagClassifier, BagRegressor
from regard.estimators.bags.quadratic import FlatClassifier, FlatRegressor, QuadraticRegressor

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
every_model = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
any_model = pytest.mark.parametrize("model", [*MODELS.values(), *FLAT.values()], ids=[*MODELS, *FLAT])


def ragged(count=41, features=3, seed=0, most=7):
    random = np.random.default_rng(seed)
    return [random.normal(size=(size, features)) for size in random.integers(1, most + 1, size=count)]


def even(count=41, size=5, features=3, seed=0):
    return np.random.default_rng(seed).normal(size=(count, size, features))


def target(model, bags):
    """Whether some instance is large in feature 0, or a number that depends on products."""
    if hasattr(model, "predict_proba"):
        return np.array([(np.asarray(bag)[:, 0] > 0.7).any() for bag in bags])
    return np.array([(bag[:, 0] * bag[:, 1] + 0.5 * bag[:, 2] ** 2).sum() for bag in bags])


def answer(model, bags):
    return model.decision_function(bags) if hasattr(model, "decision_function") else model.predict(bags)


def frame_of(bags, ids, seed=None):
    """The long form, its rows in any order but that of the first of each bag."""
    bag = np.repeat(np.arange(len(bags)), [len(one) for one in bags])
    frame = pd.DataFrame(np.concatenate(bags), columns=[f"f{place}" for place in range(bags[0].shape[1])])
    frame.insert(1, "molecule", np.asarray(ids)[bag])
    if seed is None:
        return frame
    first = ~frame.duplicated("molecule")
    rest = frame[~first].sample(frac=1, random_state=seed)
    return pd.concat([frame[first], rest])


FRAME = pd.DataFrame({"bag": ["a", "b", "a"], "x": [1.0, 2.0, 3.0], "y": [0.0, 1.0, 2.0]})
