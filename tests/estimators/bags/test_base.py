"""Estimators over bags: reading bags and targets, scikit-learn's conventions, saving, and unusual bags.

Scikit-learn's `parametrize_with_checks` needs tables [n, d], and so does not apply to estimators over bags.
"""

import json

import numpy as np
import pandas as pd
import pytest
from helpers.bag_cases import (
    QUICK,
    SMALL_FRAME,
    brief,
    equal_bags,
    every_model,
    every_ragged_model,
    long_frame,
    output_of,
    ragged_bags,
    target_for,
)
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score

import regard
from regard.data.bags import as_bags
from regard.estimators import BagClassifier, BagRegressor, QuadraticRegressor


@every_model
def test_all_forms_of_bags_give_the_same_output(model):
    bags = equal_bags()
    y = target_for(model, bags)
    names = np.array([f"m{index:02}" for index in range(len(bags))][::-1])
    frame = long_frame(bags, names)
    padded = np.concatenate([bags, np.full((len(bags), 3, 3), np.inf)], axis=1)
    model = brief(model)
    first = clone(model).fit(bags, y)
    expected = output_of(first, bags)
    forms = [list(bags), as_bags(bags), as_bags(padded, lengths=[5] * len(bags)), as_bags(frame, by="molecule"), frame]
    for form in forms:
        fitted = clone(model).set_params(bag="molecule").fit(form, y)
        assert_array_equal(output_of(fitted, form), expected)
    by_name = pd.Series(y, index=names, name="active").sort_index()
    fitted = clone(model).set_params(bag="molecule").fit(frame, by_name)
    assert_array_equal(output_of(fitted, frame.drop(columns="f1").assign(more="text", f1=frame["f1"])), expected)
    assert fitted.score(frame, by_name) == first.score(bags, y)


def test_a_list_of_frames_must_have_the_features_of_training_in_order():
    bags = [pd.DataFrame(bag, columns=["a", "b", "c"]) for bag in equal_bags(count=9)]
    model = BagRegressor("linear").fit([bags[0], *(bag[["b", "c", "a"]] for bag in bags[1:])], np.arange(9.0))
    assert model.feature_names_in_.tolist() == ["a", "b", "c"]
    plain = BagRegressor("linear").fit(equal_bags(count=9), np.arange(9.0))
    assert_allclose(model.predict(bags), plain.predict(equal_bags(count=9)))
    assert_allclose(model.predict(equal_bags(count=9)), plain.predict(equal_bags(count=9)))  # by position
    with pytest.raises(ValueError, match=r"fitted on features \['a', 'b', 'c'\], these bags have \['b', 'c', 'a'\]"):
        model.predict([bag[["b", "c", "a"]] for bag in bags])


def test_columns_without_text_names_are_matched_by_position():
    frame = SMALL_FRAME.set_axis([0, 1, 2], axis=1)
    model = BagClassifier(bag=0, **QUICK).fit(frame, ["p", "q"])
    assert not hasattr(model, "feature_names_in_")
    named = BagClassifier(bag="bag", **QUICK).fit(SMALL_FRAME, [0, 1])
    assert_array_equal(model.predict_proba(frame), named.predict_proba(SMALL_FRAME))


def test_new_bags_must_have_the_same_features():
    model = BagClassifier(bag="bag", **QUICK).fit(SMALL_FRAME, [0, 1])
    with pytest.raises(ValueError, match="no column 'x'"):
        model.predict(SMALL_FRAME.drop(columns="x"))
    with pytest.raises(ValueError, match="fitted on bags with 2 features, these have 3"):
        model.predict(equal_bags())
    with pytest.raises(ValueError, match=r"fitted on features \['x', 'y'\], these bags have \['y', 'x'\]"):
        model.predict(as_bags(SMALL_FRAME[["bag", "y", "x"]], by="bag"))
    assert_array_equal(model.predict(SMALL_FRAME[["y", "x", "bag"]]), model.predict(SMALL_FRAME))


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ([0, 1, 1], "one target per bag, 2, got 3: one per instance"),
        ([0, 1, 1, 0, 1], "one target per bag, 2, got 5"),
        (np.zeros((2, 2)), r"y must be \[2\], one target per bag, got shape \[2, 2\]"),
        ([1, 1], r"y must have at least two classes, got 1 class: \[1\]"),
        (pd.Series([1, 0], index=["a", "c"]), "without an entry for bag b.*y.to_numpy()"),
        (pd.Series([1, 0, 1, 1], index=["a", "b", "b", "c"]), "each bag once in its index, got b more than once"),
        ([1.0, np.nan], "y must have a class for each bag, got none for bag b"),
        (["yes", None], "y must have a class for each bag, got none for bag b"),
        (pd.Series(["yes", pd.NA], index=["b", "a"]), "got none for bag a"),
        ([0.5, 1.7], "continuous"),
    ],
)
def test_bad_classes_raise(y, message):
    with pytest.raises(ValueError, match=message):
        BagClassifier(bag="bag", **QUICK).fit(SMALL_FRAME, y)


@pytest.mark.parametrize(
    ("y", "message"),
    [(["low", "high"], "y must be numbers for a regression, got 'low'"), ([1.0, np.inf], "got inf for bag b")],
)
def test_bad_numbers_raise(y, message):
    with pytest.raises(ValueError, match=message):
        QuadraticRegressor(bag="bag").fit(SMALL_FRAME, y)


@every_model
def test_numbers_without_a_finite_variance_raise(model):
    with pytest.raises(ValueError, match=r"features must have a finite variance .* got numbers up to \d.*e\+200"):
        clone(model).fit(equal_bags() * 1e200, target_for(model, equal_bags()))
    if not hasattr(model, "predict_proba"):
        with pytest.raises(ValueError, match=r"y must have a finite variance .* up to 5e\+300"):
            clone(model).fit(equal_bags(count=2), [1e300, -5e300])


@every_model
def test_a_failed_fit_leaves_the_model_unchanged(model):
    bags, other = equal_bags(), equal_bags(features=5)
    new = brief(model)
    with pytest.raises(ValueError, match="y must have one target per bag"):
        new.fit(other, [0, 1])
    assert vars(new) == vars(brief(model))  # not fitted at all
    new.fit(bags, target_for(model, bags))
    before, first = dict(vars(new)), output_of(new, bags)
    with pytest.raises(ValueError, match=r"y must be finite numbers|y must have a class for each bag"):
        new.fit(other, [*np.zeros(40), np.nan])
    assert vars(new) == before
    assert_array_equal(output_of(new, bags), first)


@every_model
@pytest.mark.parametrize(
    "bags",
    [
        np.zeros((6, 2, 3)),
        equal_bags(6, 1, 1),
        equal_bags(6, 2, 3) * 1e-200,
        equal_bags(6, 2, 3).astype(np.float32),
        equal_bags(2, 1, 1),
    ],
    ids=["nothing in it", "one by one", "tiny", "float32", "two bags"],
)
def test_unusual_bags_have_finite_outputs(model, bags):
    y = np.arange(len(bags)) % 2
    model = brief(model)
    if getattr(model, "rank", None):
        model.set_params(rank=1)  # at most the number of features
    fitted = model.fit(bags, y if hasattr(model, "predict_proba") else y + 0.5)
    assert np.isfinite(output_of(fitted, bags)).all()
    evidence = fitted.evidence(bags)
    assert np.isfinite(evidence.contribution).all()
    assert_allclose(evidence.weight.sum(axis=1), 1)


@pytest.mark.slow
@every_ragged_model
def test_a_bag_of_ten_thousand_beside_a_bag_of_one(model):
    random = np.random.default_rng(0)
    bags = [random.normal(size=(size, 3)) for size in (10_000, 1, 7, 2)]
    fitted = brief(model).fit(bags, [0, 1, 1, 0])
    evidence = fitted.evidence(bags, top=3)
    assert_allclose(evidence.weight.sum(axis=1) + evidence.rest, 1)
    assert (evidence.index >= 0).sum(axis=1).tolist() == [3, 1, 3, 2]
    assert_allclose(output_of(fitted, bags[:1]), output_of(fitted, bags)[:1], rtol=1e-9)


def test_two_classes_have_one_logit():
    bags = ragged_bags()
    y = np.where(target_for(BagClassifier(), bags), "yes", "no")
    model = BagClassifier(**QUICK).fit(bags, y)
    logit, chance = model.decision_function(bags), model.predict_proba(bags)
    assert_allclose(chance[:, 1], 1 / (1 + np.exp(-logit)))
    assert_array_equal(model.predict(bags), np.where(logit > 0, "yes", "no"))


def test_score_uses_sample_weight(fitted):
    bags, model = equal_bags(), fitted("softmax")
    y = model.predict(bags)
    y[0] = not y[0]  # one is wrong, and counts three times
    weight = np.ones(len(bags))
    weight[0] = 3.0
    assert model.score(bags, y) == pytest.approx(1 - 1 / len(bags))
    assert model.score(bags, y, sample_weight=weight) == pytest.approx(1 - 3 / (len(bags) + 2))


def test_features_are_not_scaled_without_standardise(fitted):
    bags = equal_bags()
    label = target_for(BagClassifier(), bags)
    plain = BagClassifier(standardise=False, **QUICK).fit(bags, label)
    assert (plain.scale_.centre == 0).all()
    assert (plain.scale_.spread == 1).all()
    assert not np.allclose(plain.predict_proba(bags), fitted("softmax").predict_proba(bags))


@pytest.mark.parametrize("form", [list, np.asarray, as_bags], ids=["list", "array", "Bags"])
def test_cross_validation_over_bags(form):
    bags = form(equal_bags(count=60))
    y = np.where(target_for(BagClassifier(), bags), "yes", "no")
    scores = cross_val_score(BagClassifier(hidden_size=8, **QUICK), bags, y, cv=3)
    assert scores.shape == (3,)
    assert scores.mean() > 0.7
    search = GridSearchCV(QuadraticRegressor(), {"alpha": [1e-3, 1e5]}, cv=3)
    assert search.fit(bags, target_for(BagRegressor(), bags)).best_params_ == {"alpha": 1e-3}


@every_model
def test_fit_does_not_change_settings(model):
    twin = brief(model)
    assert clone(model).get_params() == model.get_params()
    with pytest.raises(NotFittedError):
        twin.predict(equal_bags())
    settings = twin.get_params()
    twin.fit(equal_bags(), target_for(model, equal_bags()))
    assert twin.get_params() == settings


def test_settings_changed_after_fit_do_not_change_the_model(tmp_path):
    bags = equal_bags()
    label, number = target_for(BagClassifier(), bags), target_for(BagRegressor(), bags)
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


@every_model
def test_a_loaded_model_gives_the_same_output(model, tmp_path):
    bags = equal_bags()
    y = target_for(model, bags)
    y = np.where(y, "yes", "no") if y.dtype == bool else y
    frame = long_frame(bags, range(41))
    fitted = brief(model).set_params(bag="molecule").fit(frame, y)
    folder = fitted.save(tmp_path / "model")
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
    again = regard.load(folder)
    assert type(again) is type(model)
    assert again.get_params() == fitted.get_params()
    assert_array_equal(again.predict(frame), fitted.predict(frame))
    assert_array_equal(output_of(again, frame), output_of(fitted, frame))
    assert_array_equal(again.evidence(frame).weight, fitted.evidence(frame).weight)
    assert again.feature_names_in_.tolist() == ["f0", "f1", "f2"]


def test_class_weights_are_saved():
    bags = equal_bags()
    y = target_for(BagClassifier(), bags).astype(int)
    model = BagClassifier(class_weight={0: 1.0, 1: 2.5}, **QUICK).fit(bags, y)
    config, arrays, _ = model.state()
    again = BagClassifier.from_state(json.loads(json.dumps(config)), arrays)
    assert again.class_weight == {0: 1.0, 1: 2.5}
    assert again.classes_.tolist() == [0, 1]


def test_a_generator_of_random_numbers_is_not_saved():
    bags, y = equal_bags(count=6), [0, 1] * 3
    for generator in (np.random.RandomState(0), np.random.default_rng(0)):
        model = BagClassifier(random_state=generator, **QUICK).fit(bags, y)
        assert BagClassifier.from_state(*model.state()[:2]).random_state is None
