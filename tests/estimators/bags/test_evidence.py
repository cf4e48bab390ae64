"""Evidence over bags: weights, what they add up to, and where they point."""

import numpy as np
import pandas as pd
import pytest
from helpers.bag_cases import QUICK, answer, any_model, even, frame_of, ragged, target
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.datasets import load_digits

from regard.data.bags import as_bags
from regard.estimators.bags.estimator import BagClassifier, BagRegressor
from regard.estimators.bags.quadratic import QuadraticRegressor


@any_model
def test_what_instances_add_up_to(model):
    bags = even()
    fitted = clone(model).fit(bags, target(model, bags))
    found = fitted.evidence(bags)
    assert_allclose(found.weight.sum(axis=1), 1)
    assert (np.diff(found.weight, axis=1) <= 1e-15).all()
    assert_array_equal(np.sort(found.index, axis=1), np.tile(np.arange(5), (41, 1)))
    constant = answer(fitted, bags) - found.contribution[..., -1].sum(axis=1)
    assert_allclose(constant, constant[0], rtol=1e-9, atol=1e-9)
    if hasattr(fitted, "classes_"):
        assert_allclose(found.contribution[..., 0], -found.contribution[..., 1])
    if not hasattr(fitted, "attention"):  # without attention, weights are shares of what is added
        size = np.abs(found.contribution[..., -1])
        assert_allclose(found.weight, size / size.sum(axis=1, keepdims=True))
    first = fitted.evidence(bags, top=2)
    assert_array_equal(first.index, found.index[:, :2])
    assert_allclose(first.rest, found.weight[:, 2:].sum(axis=1), atol=1e-12)


def test_evidence_of_bags_of_any_size():
    bags = [np.zeros((1, 2)), np.arange(8.0).reshape(4, 2), np.ones((2, 2))]
    model = BagClassifier(**QUICK).fit(bags, [0, 1, 0])
    found = model.evidence(bags, top=3)
    assert found.index.shape == (3, 3)
    assert (found.index >= 0).sum(axis=1).tolist() == [1, 3, 2]
    assert (found.weight[found.index < 0] == 0).all()
    assert_allclose(found.weight.sum(axis=1) + found.rest, 1)
    assert model.evidence(bags, top=99).index.shape == (3, 4)
    with pytest.raises(ValueError, match="top must be a positive whole number, or None for all instances, got 0"):
        model.evidence(bags, top=0)


def test_evidence_that_would_fill_the_memory_is_refused(monkeypatch):
    bags = [np.ones((1, 2)), np.arange(14.0).reshape(7, 2), np.ones((2, 2))]
    model = BagClassifier(**QUICK).fit(bags, ["a", "b", "c"])
    monkeypatch.setattr("regard.estimators.evidence.WHOLE_LIMIT", 3 * 7 * (1 + 1 + 3) * 8 - 1)
    message = (
        "7 weights of each of 3 bags would take 0.0 GiB, above the limit of 2 GiB: ask for top=8, or for fewer bags"
    )
    with pytest.raises(ValueError, match=message):
        model.evidence(bags)
    assert model.evidence(bags, top=6).index.shape == (3, 6)


def test_evidence_as_a_frame_says_the_rows():
    bags = ragged(count=20)
    names = [f"m{place}" for place in range(20)]
    frame = frame_of(bags, names, seed=1)
    frame.index = [f"row {place}" for place in range(len(frame))]
    y = np.where(target(BagClassifier(), as_bags(frame, by="molecule")), "on", "off")
    model = BagClassifier(bag="molecule", **QUICK).fit(frame, y)
    told = model.evidence(frame, top=2).to_frame()
    assert list(told) == ["bag", "rank", "instance", "weight", "rest", "class", "contribution", "f0", "f1", "f2"]
    assert_array_equal(frame.loc[told["instance"], "molecule"], told["bag"])
    assert_array_equal(frame.loc[told["instance"], ["f0", "f1", "f2"]], told[["f0", "f1", "f2"]])
    assert set(told["class"]) == {"on", "off"}
    assert (told["contribution"] >= 0).all()
    whole = model.evidence(frame).to_frame()
    signed = whole["contribution"] * np.where(whole["class"] == "on", 1, -1)
    logit = signed.groupby(whole["bag"]).sum()[names].to_numpy() + model.network_.read.bias.numpy()
    assert_allclose(logit, model.decision_function(frame))
    plain = BagRegressor("linear").fit(bags, np.arange(20.0)).evidence(bags, top=1).to_frame()
    assert list(plain) == ["bag", "rank", "instance", "weight", "rest", "contribution", "x0", "x1", "x2"]


def test_evidence_is_drawn():
    bags = ragged(count=20, most=30)
    model = BagClassifier(**QUICK).fit(bags, np.where(target(BagClassifier(), bags), "on", "off"))
    largest = int(np.argmax([len(bag) for bag in bags]))
    axes = model.evidence(bags).plot(query=largest)
    labels = [text.get_text() for text in axes.get_yticklabels()]
    assert len(labels) == 13
    assert labels[0].startswith("instance ")
    assert labels[-1] == "all other instances"
    assert (
        BagRegressor("linear")
        .fit(bags, np.arange(20.0))
        .evidence(bags, top=1)
        .plot()
        .get_xlabel()
        .endswith("contribution")
    )


def digit_bags(count, rows, seed):
    pixels, digit = load_digits(return_X_y=True)
    random = np.random.default_rng(seed)
    chosen = [random.choice(rows, size=random.integers(3, 9)) for _ in range(count)]
    return [pixels[some] for some in chosen], [digit[some] for some in chosen]


@pytest.mark.parametrize("attention", ["softmax", "gated"])
def test_evidence_points_at_the_nines(attention):
    rows = np.random.default_rng(0).permutation(1797)
    (bags, digits), (others, unseen) = digit_bags(400, rows[:1200], 0), digit_bags(200, rows[1200:], 1)
    nine, theirs = (np.array([9 in some for some in digit]) for digit in (digits, unseen))
    model = BagClassifier(attention, hidden_size=64, learning_rate=0.005, verbose=False).fit(bags, nine)
    assert model.score(others, theirs) > 0.88
    found = model.evidence(others, top=1)
    right = [unseen[place][found.index[place, 0]] == 9 for place in np.flatnonzero(theirs)]
    assert np.mean(right) >= 0.9
    spoken = found.supported[:, 0]  # 1: "there is one"
    assert spoken[theirs].mean() > spoken[~theirs].mean() + 0.5


def test_many_instances_go_through_in_parts(monkeypatch):
    bags = ragged()
    model = BagClassifier(hidden_size=7, **QUICK).fit(bags, target(BagClassifier(), bags))
    logit, found = model.decision_function(bags), model.evidence(bags)
    monkeypatch.setattr("regard.estimators.bags.estimator.BLOCK", 9)
    assert_allclose(model.decision_function(bags), logit, rtol=1e-12)
    assert_allclose(model.evidence(bags).contribution, found.contribution, rtol=1e-12)


def test_a_bag_is_drawn_by_its_own_number_even_from_behind():
    bags = ragged(count=5)
    shown = BagClassifier(**QUICK).fit(bags, [0, 1, 0, 1, 1]).evidence(bags)
    last, first = shown.plot(-1), shown.plot(0)
    assert (last.get_title(loc="left"), first.get_title(loc="left")) == ("bag 4", "bag 0")
    with pytest.raises(IndexError):
        shown.plot(5)


def test_a_bag_is_drawn_by_its_name_too():
    frame = pd.DataFrame({"bag": ["a", "b", "b"], "x": [1.0, 2.0, 3.0]})
    model = QuadraticRegressor(bag="bag").fit(frame, [1.0, 2.0])
    found = model.evidence(frame)
    assert (
        found.plot("b").get_title(loc="left") == found.plot(1).get_title(loc="left") == found.plot(-1).get_title("left")
    )
    with pytest.raises(ValueError, match="query must be an index from 0 to 1 or the name of a bag, got 'c'"):
        found.plot("c")
