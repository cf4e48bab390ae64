"""Attention over bags: its formulas, its settings, and that it learns what it should."""

import numpy as np
import pytest
from helpers.bag_cases import (
    MODELS,
    QUICK,
    equal_bags,
    output_of,
    ragged_bags,
    symmetric_part,
    target_for,
)
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone

from regard.data.samples import planted_bags
from regard.estimators import BagClassifier, BagRegressor, FlatClassifier, FlatRegressor, QuadraticRegressor


def recovers(model, u, v):
    """Whether the model has the planted u and v, up to a swap and a factor."""
    truth = symmetric_part(u, v)
    return np.linalg.norm(symmetric_part(model.u_, model.v_) - truth) < 1e-3 * np.linalg.norm(truth)


def test_softmax_attention_is_the_formula():
    bags = ragged_bags()
    model = BagClassifier(**QUICK).fit(bags, target_for(BagClassifier(), bags))
    state = {name: tensor.numpy() for name, tensor in model.network_.state_dict().items()}
    (u,), bias, (v,) = state["read.weight"], state["read.bias"], state["pool.score.weight"]
    everyone = np.concatenate(bags)
    for bag, logit, weight in zip(bags, model.decision_function(bags), model.evidence(bags).weight, strict=True):
        x = (bag - everyone.mean(axis=0)) / everyone.std(axis=0)
        z = np.exp(x @ v) / np.exp(x @ v).sum()
        assert_allclose(logit, u @ (x.T @ z) + bias[0], rtol=1e-10)
        assert_allclose(weight[: len(bag)], np.sort(z)[::-1], rtol=1e-10)
    assert len(state) == 3  # u, v and the constant: nothing else


def test_the_weight_of_an_instance_is_the_mean_of_all_heads():
    bags = equal_bags()
    model = BagClassifier(heads=3, **{**QUICK, "standardise": False}).fit(bags, target_for(BagClassifier(), bags))
    queries = model.network_.pool.score.weight.numpy()  # [heads, d]
    score = np.asarray(bags)[0] @ queries.T
    weight = np.exp(score - score.max(axis=0))
    mean = (weight / weight.sum(axis=0)).mean(axis=1)
    assert_allclose(model.evidence(bags[:1]).weight[0], np.sort(mean)[::-1], rtol=1e-6)


@pytest.mark.parametrize(
    ("attention", "score"), [("softmax", {"content", "query"}), ("gated", {"content", "gate", "query"}), ("max", set())]
)
def test_attention_has_the_score_of_its_name(attention, score):
    model = BagClassifier(attention, hidden_size=4, epochs=1, verbose=False).fit(equal_bags(4), [0, 1, 0, 1])
    names = [name.split(".") for name in model.network_.state_dict()]
    assert {name[2] for name in names if name[0] == "pool"} == score


def test_linear_attention_is_the_formula():
    bags = ragged_bags(count=60)
    y = target_for(BagRegressor(), bags)
    model = BagRegressor("linear", init="spectral").fit(bags, y)
    expected = [np.trace(bag.T @ bag @ np.outer(model.v_, model.u_)) + model.intercept_ for bag in bags]
    assert_allclose(model.predict(bags), expected, rtol=1e-10)
    size = np.abs((bags[7] @ model.v_) * (bags[7] @ model.u_))
    assert_allclose(model.evidence(bags[7:8]).weight[0], np.sort(size / size.sum())[::-1])


def test_evidence_of_linear_attention_is_the_same_if_u_and_v_swap():
    bags = ragged_bags(count=60)
    model = BagRegressor("linear", init="spectral").fit(bags, target_for(BagRegressor(), bags))
    before = model.evidence(bags)
    model.u_, model.v_ = model.v_, model.u_
    assert (model.evidence(bags).index == before.index).all()


def test_weight_decay_shrinks_linear_attention():
    bags = ragged_bags(count=60)
    y = target_for(BagRegressor(), bags)
    sizes = []
    for decay in (0.0, 0.1, 10.0):
        model = BagRegressor("linear", init="spectral", weight_decay=decay).fit(bags, y)
        sizes.append(np.linalg.norm(model.u_) * np.linalg.norm(model.v_))
    assert sizes[0] > 1.05 * sizes[1] > 1.05 * sizes[2]


def test_a_spectral_start_finds_what_random_ones_miss():
    bags, y, u, v = planted_bags(60, features=20, noise=0.0)  # 60 bags for 40 parameters; the full model has 210
    model = BagRegressor("linear", weight_decay=0.0)
    assert recovers(clone(model).set_params(init="spectral").fit(bags, y), u, v)
    recovered = [recovers(clone(model).set_params(random_state=seed).fit(bags, y), u, v) for seed in range(5)]
    assert not all(recovered)
    assert any(recovered)


def test_linear_attention_with_equal_u_and_v():
    bags, _, u, _ = planted_bags(60, features=4, noise=0.0)
    y = np.square(bags @ u).sum(axis=1)
    model = BagRegressor("linear", init="spectral", weight_decay=0.0).fit(bags, y)
    assert recovers(model, u, u)


@pytest.mark.parametrize("name", MODELS)
def test_the_order_of_instances_does_not_matter(name, fitted):
    bags, model = equal_bags(), fitted(name)
    random = np.random.default_rng(5)
    shuffled = [random.permutation(bag) for bag in bags]
    assert_allclose(output_of(model, shuffled), output_of(model, bags), rtol=1e-10, atol=1e-12)
    assert np.std(output_of(model, bags)) > 1e-3  # the outputs do differ


@pytest.mark.slow
@pytest.mark.parametrize("hidden", [None, 16])
def test_attention_learns_what_mean_pooling_cannot(hidden):
    bags = ragged_bags(count=300, features=5, most=12)
    y = np.array([bag[:, 0].max() > 1.0 for bag in bags])
    scores = {
        name: BagClassifier(name, hidden_size=hidden, learning_rate=0.03, epochs=150)
        .fit(bags[:200], y[:200])
        .score(bags[200:], y[200:])
        for name in ("softmax", "mean")
    }
    assert scores["softmax"] > max(0.85, scores["mean"] + 0.05)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_default_settings_learn_the_largest_feature(seed):
    """The largest value of one feature, or whether it is large: softmax attention can learn it, given enough epochs."""
    random = np.random.default_rng(seed)
    bags = [random.normal(size=(size, 5)) for size in random.integers(2, 12, size=200)]
    largest = np.array([bag[:, 0].max() for bag in bags])
    regressor = BagRegressor(random_state=seed, verbose=False).fit(bags[:150], largest[:150])
    assert regressor.score(bags[150:], largest[150:]) > 0.9
    classifier = BagClassifier(random_state=seed, verbose=False).fit(bags[:150], largest[:150] > 1)
    assert classifier.score(bags[150:], largest[150:] > 1) > 0.8


@pytest.mark.slow
def test_several_classes():
    random = np.random.default_rng(0)
    bags, y = [], []
    for index in range(90):
        bag = random.normal(size=(random.integers(2, 7), 4))
        bag[random.integers(len(bag)), index % 3] += 5
        bags.append(bag)
        y.append("abc"[index % 3])
    model = BagClassifier(hidden_size=16, learning_rate=0.02).fit(bags, y)
    chance = model.predict_proba(bags)
    assert model.score(bags, y) > 0.95
    assert model.decision_function(bags).shape == (90, 3)
    assert_allclose(chance.sum(axis=1), 1)
    assert_array_equal(model.predict(bags), np.array(["a", "b", "c"])[chance.argmax(axis=1)])
    evidence = model.evidence(bags, top=1)
    assert evidence.contribution.shape == (90, 1, 3)
    supported = np.array(["a", "b", "c"])[evidence.supported[:, 0]]
    assert np.mean(supported == y) > 0.9


@pytest.mark.slow
def test_class_weight_changes_the_probabilities():
    bags = ragged_bags(count=80)
    y = np.array([bag[:, 0].max() + np.random.default_rng(0).normal() > 2 for bag in bags]).astype(int)
    assert 0.02 < y.mean() < 0.4
    chance = {
        name: BagClassifier("mean", class_weight=weight, **QUICK).fit(bags, y).predict_proba(bags)[:, 1].mean()
        for name, weight in {
            "none": None,
            "balanced": "balanced",
            "even": {0: 3.0, 1: 3.0},
            "given": {0: 1, 1: 50},
        }.items()
    }
    assert chance["none"] + 0.1 < chance["balanced"] < chance["given"]
    assert_allclose(chance["even"], chance["none"], rtol=1e-4)
    few = BagClassifier("mean", class_weight={0: 0.0, 1: 1.0}, batch_size=2, epochs=2, verbose=False).fit(bags, y)
    assert np.isfinite(few.decision_function(bags)).all()  # a batch without weight has loss 0
    with pytest.raises(ValueError, match="class_weight"):
        BagClassifier(class_weight={"yes": 2}, **QUICK).fit(bags, y)


@pytest.mark.slow
def test_regression_is_in_the_units_of_y():
    bags = ragged_bags(count=120)
    y = 1000 + 300 * np.array([bag[:, 0].mean() for bag in bags])
    model = BagRegressor("mean", weight_decay=0.0, learning_rate=0.05, epochs=300).fit(bags, y)
    assert model.score(bags, y) > 0.999
    total = model.evidence(bags).contribution[..., 0].sum(axis=1)
    assert_allclose(total + model.network_.read.bias.numpy(), model.predict(bags), rtol=1e-10)


def test_many_instances_are_predicted_in_blocks(monkeypatch, fitted):
    bags, model = ragged_bags(), fitted("tanh")
    logit, evidence = model.decision_function(bags), model.evidence(bags)
    monkeypatch.setattr("regard.estimators.bags.training.BLOCK", 9)
    assert_allclose(model.decision_function(bags), logit, rtol=1e-12)
    assert_allclose(model.evidence(bags).contribution, evidence.contribution, rtol=1e-12)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (BagClassifier("hard"), "attention must be softmax, gated, mean or max, got 'hard'"),
        (BagClassifier("linear"), "attention must be softmax, gated, mean or max, got 'linear'"),
        (BagClassifier("gated"), "attention='gated' needs a hidden_size"),
        (BagClassifier(hidden_size=0), "hidden_size must be a positive whole number or None, got 0"),
        (BagClassifier(heads=0), "heads must be a positive whole number, got 0"),
        (BagClassifier("max", heads=2), "heads must be 1 for attention='max', got 2"),
        (BagClassifier(batch_size=0), "batch_size must be a positive whole number or None, got 0"),
        (BagClassifier(epochs=0), "epochs must be a positive whole number or None, got 0"),
        (BagClassifier(patience=0), "patience must be a positive whole number, got 0"),
        (BagClassifier(learning_rate=0), "learning_rate must be a number above 0 or None, got 0"),
        (BagClassifier(learning_rate="fast"), "learning_rate must be a number above 0 or None, got 'fast'"),
        (BagClassifier(learning_rate=float("inf")), "learning_rate must be a number above 0 or None, got inf"),
        (BagClassifier(weight_decay=-1.0), "weight_decay must be a number of at least 0, got -1.0"),
        (BagClassifier(dropout="much"), "dropout must be a number of at least 0 and below 1, got 'much'"),
        (BagClassifier(dropout=1.0), "dropout must be a number of at least 0 and below 1, got 1.0"),
        (BagClassifier(standardise="yes"), "standardise must be True or False, got 'yes'"),
        (BagClassifier(bag=["a"]), r"bag must be the name of a column or None, got \['a'\]"),
        (BagClassifier(random_state=-1), "the seed, must be a whole number of at least 0 .* got -1"),
        (BagClassifier(class_weight={0: -1, 1: 1}), "class_weight must be at least 0, .* got {0: -1, 1: 1}"),
        (BagClassifier(class_weight={0: 0, 1: 0}), "class_weight must be at least 0, and not 0 for all"),
        (
            BagClassifier(early_stopping=True, validation_fraction=1.5),
            "validation_fraction must be .* below 1, got 1.5",
        ),
        (BagClassifier(early_stopping=True, validation_fraction=0.9), "holds out 4 of 4 bags"),
        (BagRegressor("cubic"), "attention must be softmax, gated, mean, max or linear, got 'cubic'"),
        (BagRegressor("linear", init="zero"), "init must be random or spectral, got 'zero'"),
        (BagRegressor(init="spectral"), "init='spectral' needs attention='linear', got attention='softmax'"),
        (BagRegressor("linear", hidden_size=3), "hidden_size must be None for attention='linear', got 3"),
        (BagRegressor("linear", heads=2), "heads must be 1 for attention='linear', got 2"),
        (QuadraticRegressor(alpha=0.0), "alpha must be a number above 0, got 0.0"),
        (QuadraticRegressor(rank=0), "rank must be a positive whole number or None, got 0"),
        (QuadraticRegressor(rank=True), "rank must be a positive whole number or None, got True"),
        (QuadraticRegressor(rank=4), "rank must be at most 3, the number of features, got 4"),
        (FlatClassifier(C=-1), "C must be a number above 0, got -1"),
        (FlatRegressor(alpha="much"), "alpha must be a number above 0, got 'much'"),
    ],
)
def test_bad_settings_raise(model, message):
    with pytest.raises(ValueError, match=message):
        model.fit(equal_bags(count=4), [0, 1, 0, 1])
