"""Evidence over bags: weights and contributions, their sums, and the instances they point to."""

import numpy as np
import pandas as pd
import pytest
from helpers.bag_cases import (
    ALL,
    QUICK,
    equal_bags,
    long_frame,
    output_of,
    ragged_bags,
    target_for,
)
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.datasets import load_digits

from regard.data.bags import as_bags
from regard.estimators import BagClassifier, BagRegressor, QuadraticRegressor


@pytest.mark.parametrize("name", ALL)
def test_weights_and_contributions_add_up(name, fitted):
    bags, model = equal_bags(), fitted(name)
    evidence = model.evidence(bags)
    assert_allclose(evidence.weight.sum(axis=1), 1)
    assert (np.diff(evidence.weight, axis=1) <= 1e-15).all()
    assert_array_equal(np.sort(evidence.index, axis=1), np.tile(np.arange(5), (41, 1)))
    constant = output_of(model, bags) - evidence.contribution[..., -1].sum(axis=1)
    assert_allclose(constant, constant[0], rtol=1e-9, atol=1e-9)
    if hasattr(model, "classes_"):
        assert_allclose(evidence.contribution[..., 0], -evidence.contribution[..., 1])
    if not hasattr(model, "attention"):  # weights are fractions of the |contributions|
        size = np.abs(evidence.contribution[..., -1])
        assert_allclose(evidence.weight, size / size.sum(axis=1, keepdims=True))
    first = model.evidence(bags, top=2)
    assert_array_equal(first.index, evidence.index[:, :2])
    assert_allclose(first.rest, evidence.weight[:, 2:].sum(axis=1), atol=1e-12)


def test_evidence_of_bags_of_any_size():
    bags = [np.zeros((1, 2)), np.arange(8.0).reshape(4, 2), np.ones((2, 2))]
    model = BagClassifier(**QUICK).fit(bags, [0, 1, 0])
    evidence = model.evidence(bags, top=3)
    assert evidence.index.shape == (3, 3)
    assert (evidence.index >= 0).sum(axis=1).tolist() == [1, 3, 2]
    assert (evidence.weight[evidence.index < 0] == 0).all()
    assert_allclose(evidence.weight.sum(axis=1) + evidence.rest, 1)
    assert model.evidence(bags, top=99).index.shape == (3, 4)
    with pytest.raises(ValueError, match="top must be a positive whole number, or None for all instances, got 0"):
        model.evidence(bags, top=0)


def test_evidence_that_needs_too_much_memory_raises(monkeypatch):
    bags = [np.ones((1, 2)), np.arange(14.0).reshape(7, 2), np.ones((2, 2))]
    model = BagClassifier(**QUICK).fit(bags, ["a", "b", "c"])
    monkeypatch.setattr("regard.estimators.common.WHOLE_LIMIT", 3 * 7 * (1 + 1 + 3) * 8 - 1)
    message = (
        "7 weights of each of 3 bags would take 0.0 GiB, above the limit of 2 GiB: ask for top=8, or for fewer bags"
    )
    with pytest.raises(ValueError, match=message):
        model.evidence(bags)
    assert model.evidence(bags, top=6).index.shape == (3, 6)


def test_the_frame_has_the_rows_of_the_instances():
    bags = ragged_bags(count=20)
    names = [f"m{index}" for index in range(20)]
    frame = long_frame(bags, names, seed=1)
    frame.index = [f"row {index}" for index in range(len(frame))]
    y = np.where(target_for(BagClassifier(), as_bags(frame, by="molecule")), "on", "off")
    model = BagClassifier(bag="molecule", **QUICK).fit(frame, y)
    table = model.evidence(frame, top=2).to_frame()
    assert list(table) == ["bag", "rank", "instance", "weight", "rest", "class", "contribution", "f0", "f1", "f2"]
    assert_array_equal(frame.loc[table["instance"], "molecule"], table["bag"])
    assert_array_equal(frame.loc[table["instance"], ["f0", "f1", "f2"]], table[["f0", "f1", "f2"]])
    assert set(table["class"]) == {"on", "off"}
    assert (table["contribution"] >= 0).all()
    whole = model.evidence(frame).to_frame()
    signed = whole["contribution"] * np.where(whole["class"] == "on", 1, -1)
    logit = signed.groupby(whole["bag"]).sum()[names].to_numpy() + model.network_.read.bias.numpy()
    assert_allclose(logit, model.decision_function(frame))
    plain = BagRegressor("linear").fit(bags, np.arange(20.0)).evidence(bags, top=1).to_frame()
    assert list(plain) == ["bag", "rank", "instance", "weight", "rest", "contribution", "x0", "x1", "x2"]


def test_the_rest_in_the_frame_is_that_of_the_bag(fitted):
    evidence = fitted("softmax").evidence(ragged_bags(), top=1)
    frame = evidence.to_frame()
    assert_allclose(frame["rest"], evidence.rest[frame["bag"]])
    assert_allclose(frame["weight"] + frame["rest"], 1.0)


def test_plot_shows_at_most_twelve_instances_and_the_rest():
    bags = ragged_bags(count=20, most=30)
    model = BagClassifier(**QUICK).fit(bags, np.where(target_for(BagClassifier(), bags), "on", "off"))
    largest = int(np.argmax([len(bag) for bag in bags]))
    axes = model.evidence(bags).plot(query=largest)
    labels = [text.get_text() for text in axes.get_yticklabels()]
    assert len(labels) == 13
    assert labels[0].startswith("instance ")
    assert labels[-1] == "all other instances"
    regressor = BagRegressor("linear").fit(bags, np.arange(20.0))
    assert regressor.evidence(bags, top=1).plot().get_xlabel().endswith("contribution")


def test_plot_takes_a_negative_index():
    bags = ragged_bags(count=5)
    evidence = BagClassifier(**QUICK).fit(bags, [0, 1, 0, 1, 1]).evidence(bags)
    last, first = evidence.plot(-1), evidence.plot(0)
    assert (last.get_title(loc="left"), first.get_title(loc="left")) == ("bag 4", "bag 0")
    with pytest.raises(IndexError):
        evidence.plot(5)


def test_plot_takes_a_name():
    frame = pd.DataFrame({"bag": ["a", "b", "b"], "x": [1.0, 2.0, 3.0]})
    model = QuadraticRegressor(bag="bag").fit(frame, [1.0, 2.0])
    evidence = model.evidence(frame)
    titles = {evidence.plot(query).get_title(loc="left") for query in ("b", 1, -1)}
    assert titles == {"bag b"}
    with pytest.raises(ValueError, match="query must be an index from 0 to 1 or the name of a bag, got 'c'"):
        evidence.plot("c")


def digit_bags(count, rows, seed):
    pixels, digit = load_digits(return_X_y=True)
    random = np.random.default_rng(seed)
    chosen = [random.choice(rows, size=random.integers(3, 9)) for _ in range(count)]
    return [pixels[some] for some in chosen], [digit[some] for some in chosen]


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["softmax", "gated"])
def test_evidence_points_at_the_nines(attention):
    rows = np.random.default_rng(0).permutation(1797)
    (bags, digits), (others, unseen) = digit_bags(400, rows[:1200], 0), digit_bags(200, rows[1200:], 1)
    nine, theirs = (np.array([9 in some for some in digit]) for digit in (digits, unseen))
    model = BagClassifier(attention, hidden_size=64, learning_rate=0.005, verbose=False).fit(bags, nine)
    assert model.score(others, theirs) > 0.88
    evidence = model.evidence(others, top=1)
    right = [unseen[index][evidence.index[index, 0]] == 9 for index in np.flatnonzero(theirs)]
    assert np.mean(right) >= 0.9
    supported = evidence.supported[:, 0]  # 1: there is a 9
    assert supported[theirs].mean() > supported[~theirs].mean() + 0.5
