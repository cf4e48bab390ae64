"""Estimators over bags: their formulas, what order may change, training, scikit-learn's habits, saving.

Scikit-learn's `parametrize_with_checks` feeds tables [n, d], and so does not apply to estimators over bags.
"""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.bag_cases import FLAT, QUICK, answer, any_model, even, every_model, frame_of, ragged, target
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV, cross_val_score

import regard
from regard.data.bags import as_bags
from regard.estimators.bags.estimator import BagClassifier, BagRegressor
from regard.estimators.bags.quadratic import FlatClassifier, FlatRegressor, QuadraticRegressor
from regard.estimators.bags.training import Batches


@any_model
def test_all_forms_give_the_same_answer(model):
    bags = even()
    y = target(model, bags)
    names = np.array([f"m{place:02}" for place in range(len(bags))][::-1])
    frame = frame_of(bags, names)
    padded = np.concatenate([bags, np.full((len(bags), 3, 3), np.inf)], axis=1)
    expected = answer(clone(model).fit(bags, y), bags)
    forms = [list(bags), as_bags(bags), as_bags(padded, lengths=[5] * len(bags)), as_bags(frame, by="molecule"), frame]
    for form in forms:
        fitted = clone(model).set_params(bag="molecule").fit(form, y)
        assert_array_equal(answer(fitted, form), expected)
    by_name = pd.Series(y, index=names, name="active").sort_index()
    fitted = clone(model).set_params(bag="molecule").fit(frame, by_name)
    assert_array_equal(answer(fitted, frame.drop(columns="f1").assign(more="text", f1=frame["f1"])), expected)
    assert fitted.score(frame, by_name) == clone(model).fit(bags, y).score(bags, y)


@every_model
def test_the_order_of_instances_never_matters(model):
    bags = even()
    random = np.random.default_rng(5)
    turned = [random.permutation(bag) for bag in bags]
    fitted = clone(model).fit(bags, target(model, bags))
    assert_allclose(answer(fitted, turned), answer(fitted, bags), rtol=1e-10, atol=1e-12)
    assert np.std(answer(fitted, bags)) > 1e-3  # else nothing was tested


@pytest.mark.parametrize("model", FLAT.values(), ids=FLAT)
def test_it_does_to_a_flat_model(model):
    bags = even()
    fitted = clone(model).fit(bags, target(model, bags))
    assert np.abs(answer(fitted, bags[:, ::-1]) - answer(fitted, bags)).max() > 0.1


def test_softmax_attention_is_the_formula():
    bags = ragged()
    model = BagClassifier(**QUICK).fit(bags, target(BagClassifier(), bags))
    state = {name: tensor.numpy() for name, tensor in model.network_.state_dict().items()}
    (u,), bias, (v,) = state["read.weight"], state["read.bias"], state["pool.score.weight"]
    everyone = np.concatenate(bags)
    for bag, logit, weight in zip(bags, model.decision_function(bags), model.evidence(bags).weight, strict=True):
        x = (bag - everyone.mean(axis=0)) / everyone.std(axis=0)
        z = np.exp(x @ v) / np.exp(x @ v).sum()
        assert_allclose(logit, u @ (x.T @ z) + bias[0], rtol=1e-10)
        assert_allclose(weight[: len(bag)], np.sort(z)[::-1], rtol=1e-10)
    assert len(state) == 3  # u, v and the constant: nothing else


@pytest.mark.parametrize(
    ("attention", "score"), [("softmax", {"content", "query"}), ("gated", {"content", "gate", "query"}), ("max", set())]
)
def test_attention_has_the_score_of_its_name(attention, score):
    model = BagClassifier(attention, hidden_size=4, **QUICK).fit(even(), target(BagClassifier(), even()))
    names = [name.split(".") for name in model.network_.state_dict()]
    assert {name[2] for name in names if name[0] == "pool"} == score


@pytest.mark.parametrize("hidden", [None, 16])
def test_attention_learns_what_the_mean_cannot(hidden):
    bags = ragged(count=300, features=5, most=12)
    y = np.array([bag[:, 0].max() > 1.0 for bag in bags])
    scores = {
        name: BagClassifier(name, hidden_size=hidden, learning_rate=0.03, epochs=150)
        .fit(bags[:200], y[:200])
        .score(bags[200:], y[200:])
        for name in ("softmax", "mean")
    }
    assert scores["softmax"] > max(0.85, scores["mean"] + 0.05)


def test_several_classes():
    random = np.random.default_rng(0)
    bags, y = [], []
    for place in range(90):
        bag = random.normal(size=(random.integers(2, 7), 4))
        bag[random.integers(len(bag)), place % 3] += 5
        bags.append(bag)
        y.append("abc"[place % 3])
    model = BagClassifier(hidden_size=16, learning_rate=0.02).fit(bags, y)
    chance = model.predict_proba(bags)
    assert model.score(bags, y) > 0.95
    assert model.decision_function(bags).shape == (90, 3)
    assert_allclose(chance.sum(axis=1), 1)
    assert_array_equal(model.predict(bags), np.array(["a", "b", "c"])[chance.argmax(axis=1)])
    found = model.evidence(bags, top=1)
    assert found.contribution.shape == (90, 1, 3)
    spoken = np.array(["a", "b", "c"])[found.supported[:, 0]]
    assert np.mean(spoken == y) > 0.9


def test_two_classes_have_one_logit():
    bags = ragged()
    y = np.where(target(BagClassifier(), bags), "yes", "no")
    model = BagClassifier(**QUICK).fit(bags, y)
    logit, chance = model.decision_function(bags), model.predict_proba(bags)
    assert_allclose(chance[:, 1], 1 / (1 + np.exp(-logit)))
    assert_array_equal(model.predict(bags), np.where(logit > 0, "yes", "no"))


def test_class_weight_moves_the_border():
    bags = ragged(count=80)
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
    assert np.isfinite(few.decision_function(bags)).all()  # batches without weight do no harm
    with pytest.raises(ValueError, match="class_weight"):
        BagClassifier(class_weight={"yes": 2}, **QUICK).fit(bags, y)


def test_regression_is_in_the_units_of_y():
    bags = ragged(count=120)
    y = 1000 + 300 * np.array([bag[:, 0].mean() for bag in bags])
    model = BagRegressor("mean", weight_decay=0.0, learning_rate=0.05, epochs=300).fit(bags, y)
    assert model.score(bags, y) > 0.999
    found = model.evidence(bags)
    added = found.contribution[..., 0].sum(axis=1)
    assert_allclose(added + model.network_.read.bias.numpy(), model.predict(bags), rtol=1e-10)


def test_flat_models_are_scikit_learns():
    bags = even()
    flat = (bags - bags.mean(axis=(0, 1))) / bags.std(axis=(0, 1))
    flat = flat.reshape(len(bags), -1)
    label, y = target(FlatClassifier(), bags), target(FlatRegressor(), bags)
    ours, theirs = FlatClassifier(C=0.3).fit(bags, label), LogisticRegression(C=0.3, max_iter=1000).fit(flat, label)
    assert_allclose(ours.predict_proba(bags), theirs.predict_proba(flat), rtol=1e-6)
    assert_allclose(FlatRegressor(alpha=2.0).fit(bags, y).predict(bags), Ridge(alpha=2.0).fit(flat, y).predict(flat))
    weighted = FlatClassifier(class_weight={False: 1, True: 20}).fit(bags, label)
    assert weighted.predict_proba(bags)[:, 1].mean() > ours.predict_proba(bags)[:, 1].mean() + 0.05


@pytest.mark.parametrize("settings", [{}, {"batch_size": 8}, {"early_stopping": True, "validation_fraction": 0.2}])
def test_a_seed_is_a_result_to_the_bit(settings):
    bags = ragged()
    y = target(BagClassifier(), bags)
    fits = []
    for seed in (1, 1, 2):
        torch.rand(3)  # what others draw changes nothing
        before = torch.random.get_rng_state()
        fits.append(
            BagClassifier(hidden_size=7, random_state=seed, **QUICK, **settings).fit(bags, y).decision_function(bags)
        )
        assert torch.equal(torch.random.get_rng_state(), before)
    assert_array_equal(fits[0], fits[1])
    assert np.abs(fits[0] - fits[2]).max() > 1e-3


def test_mini_batches_see_every_bag_once_an_epoch():
    bags = ragged()
    y = target(BagClassifier(), bags)
    one, other = (BagClassifier(batch_size=size, **QUICK).fit(bags, y).decision_function(bags) for size in (None, 41))
    assert_array_equal(one, other)
    parts = Batches(np.random.default_rng(0).permutation(41), 8, list)
    assert [len(part) for part in parts] == [8, 8, 8, 8, 8, 1]
    assert len(parts) == 6
    assert sorted(place for part in parts for place in part) == list(range(41))
    few = BagClassifier(batch_size=8, **QUICK).fit(bags, y)
    assert few.score(bags, y) > 0.8
    assert np.abs(few.decision_function(bags) - one).max() > 1e-3


def test_early_stopping_keeps_the_best_epoch():
    bags = ragged(count=60, features=20)
    y = np.random.default_rng(0).permutation(60) % 2  # nothing to learn but by heart
    model = BagClassifier(
        hidden_size=32, early_stopping=True, validation_fraction=0.3, patience=5, epochs=200, learning_rate=0.02
    )
    history = model.fit(bags, y).history_
    assert len(history.validation) == history.best_epoch + 6 < 200
    assert history.validation[history.best_epoch] == min(history.validation)
    assert min(history.validation) > 0.5  # what is held out cannot be learned by heart
    assert not BagClassifier(**QUICK).fit(bags, y).history_.validation


@pytest.mark.parametrize("form", [list, np.asarray, as_bags], ids=["list", "array", "Bags"])
def test_cross_validation_over_bags(form):
    bags = form(even(count=60))
    y = np.where(target(BagClassifier(), bags), "yes", "no")
    scores = cross_val_score(BagClassifier(hidden_size=8, **QUICK), bags, y, cv=3)
    assert scores.shape == (3,)
    assert scores.mean() > 0.7
    search = GridSearchCV(QuadraticRegressor(), {"alpha": [1e-3, 1e5]}, cv=3)
    assert search.fit(bags, target(BagRegressor(), bags)).best_params_ == {"alpha": 1e-3}


@any_model
def test_settings_are_kept_as_given(model):
    twin = clone(model)
    assert twin.get_params() == model.get_params()
    with pytest.raises(NotFittedError):
        twin.predict(even())
    settings = twin.get_params()
    twin.fit(even(), target(model, even()))
    assert twin.get_params() == settings


@any_model
def test_a_saved_model_is_the_model(model, tmp_path):
    bags = even()
    y = target(model, bags)
    y = np.where(y, "yes", "no") if y.dtype == bool else y
    frame = frame_of(bags, range(41))
    fitted = clone(model).set_params(bag="molecule").fit(frame, y)
    folder = fitted.save(tmp_path / "model")
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
    again = regard.load(folder)
    assert type(again) is type(model)
    assert again.get_params() == fitted.get_params()
    assert_array_equal(again.predict(frame), fitted.predict(frame))
    assert_array_equal(answer(again, frame), answer(fitted, frame))
    assert_array_equal(again.evidence(frame).weight, fitted.evidence(frame).weight)
    assert again.feature_names_in_.tolist() == ["f0", "f1", "f2"]


def test_weights_by_class_are_saved(tmp_path):
    bags = even()
    y = target(BagClassifier(), bags).astype(int)
    model = BagClassifier(class_weight={0: 1.0, 1: 2.5}, **QUICK).fit(bags, y)
    config, arrays = model.state()
    again = BagClassifier.from_state(json.loads(json.dumps(config)), arrays)
    assert again.class_weight == {0: 1.0, 1: 2.5}
    assert again.classes_.tolist() == [0, 1]


def test_settings_changed_after_a_fit_do_not_change_what_was_learned(tmp_path):
    bags = even()
    label, number = target(BagClassifier(), bags), target(BagRegressor(), bags)
    classifier = BagClassifier(hidden_size=4, verbose=False, epochs=2).fit(bags, label)
    before = classifier.predict_proba(bags)
    classifier.set_params(hidden_size=8, attention="max", bag="name").save(tmp_path / "classifier")
    again = regard.load(tmp_path / "classifier")
    assert_array_equal(again.predict_proba(bags), before)
    assert (again.hidden_size, again.attention, again.bag) == (4, "softmax", "name")
    linear = BagRegressor("linear", verbose=False).fit(bags, number)
    before = linear.predict(bags)
    linear.set_params(attention="softmax")
    assert_array_equal(linear.predict(bags), before)
    linear.save(tmp_path / "linear")
    assert_array_equal(regard.load(tmp_path / "linear").predict(bags), before)


def test_settings_reach_the_training(monkeypatch):
    from regard.estimators.bags import training as bag_learner

    given = {}

    def watched(network, batches, loss, recipe, **settings):
        given.update(vars(recipe), progress=settings["monitor"].progress)
        given.update(orders=[[batch.target.tolist() for batch in batches(epoch)] for epoch in range(2)])
        return train(network, batches, loss, recipe, **settings)

    train = bag_learner.train
    monkeypatch.setattr(bag_learner, "train", watched)
    bags = even()
    number = np.arange(len(bags), dtype=float)
    BagRegressor(batch_size=4, epochs=2, weight_decay=0.25, verbose=False).fit(bags, number)
    first, second = given["orders"]
    assert first != second  # mini-batches are shuffled anew
    assert sorted(np.concatenate(first)) == sorted(np.concatenate(second))
    (group,) = given["optimizer"].param_groups
    assert (group["lr"], group["weight_decay"], given["progress"]) == (0.03, 0.25, False)
    BagRegressor(hidden_size=3, epochs=1, verbose=True).fit(bags, number)
    assert given["optimizer"].param_groups[0]["lr"] == 0.001
    assert given["progress"]
    BagRegressor(verbose=False).fit(bags, number)
    assert given["epochs"] == 300
    BagClassifier(hidden_size=3, verbose=False).fit(bags, number > 20)
    assert given["epochs"] == 100


def test_features_are_left_as_they_are_without_standardising():
    bags = even()
    label = target(BagClassifier(), bags)
    plain = BagClassifier(standardise=False, **QUICK).fit(bags, label)
    assert (plain.scale_.centre == 0).all()
    assert (plain.scale_.spread == 1).all()
    assert not np.allclose(plain.predict_proba(bags), BagClassifier(**QUICK).fit(bags, label).predict_proba(bags))


def test_a_balanced_flat_classifier_is_scikit_learns():
    bags = even()
    label = np.arange(len(bags)) % 5 == 0
    flat = np.asarray(bags).reshape(len(bags), -1)
    for weight in ("balanced", {False: 1.0, True: 7.0}, None):
        ours = FlatClassifier(class_weight=weight, standardise=False).fit(bags, label)
        theirs = LogisticRegression(class_weight=weight, max_iter=1000).fit(flat, label)
        assert_allclose(ours.decision_function(bags), theirs.decision_function(flat), rtol=1e-6, atol=1e-8)


def test_the_weight_of_an_instance_is_the_mean_of_all_heads():
    bags = even()
    model = BagClassifier(heads=3, **{**QUICK, "standardise": False}).fit(bags, target(BagClassifier(), bags))
    queries = model.network_.pool.score.weight.numpy()  # [heads, d]
    score = np.asarray(bags)[0] @ queries.T
    share = np.exp(score - score.max(axis=0))
    mean = (share / share.sum(axis=0)).mean(axis=1)
    assert_allclose(model.evidence(bags[:1]).weight[0], np.sort(mean)[::-1], rtol=1e-6)


def test_bags_can_count_differently_in_a_score():
    bags = even()
    model = BagClassifier(**QUICK).fit(bags, target(BagClassifier(), bags))
    y = model.predict(bags)
    y[0] = model.classes_[0] if y[0] == model.classes_[1] else model.classes_[1]  # one is wrong,
    weight = np.ones(len(bags))
    weight[0] = 3.0  # and counts three times
    assert model.score(bags, y) == pytest.approx(1 - 1 / len(bags))
    assert model.score(bags, y, sample_weight=weight) == pytest.approx(1 - 3 / (len(bags) + 2))


def test_the_rest_in_the_frame_is_that_of_the_bag():
    bags = ragged()
    model = BagClassifier(**QUICK).fit(bags, target(BagClassifier(), bags))
    found = model.evidence(bags, top=1)
    frame = found.to_frame()
    assert_allclose(frame["rest"], found.rest[frame["bag"]])
    assert_allclose(frame["weight"] + frame["rest"], 1.0)


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_what_is_not_said_is_enough_to_learn_what_is_plain(seed):
    """The largest of one feature, or whether it is large: a softmax can do it, if it is given the time."""
    drawn = np.random.default_rng(seed)
    bags = [drawn.normal(size=(size, 5)) for size in drawn.integers(2, 12, size=200)]
    largest = np.array([bag[:, 0].max() for bag in bags])
    regressor = BagRegressor(random_state=seed, verbose=False).fit(bags[:150], largest[:150])
    assert regressor.score(bags[150:], largest[150:]) > 0.9
    classifier = BagClassifier(random_state=seed, verbose=False).fit(bags[:150], largest[:150] > 1)
    assert classifier.score(bags[150:], largest[150:] > 1) > 0.8
