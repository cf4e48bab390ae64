"""Estimators over bags: bad targets, bad settings, and odd bags that must have an answer."""

import numpy as np
import pandas as pd
import pytest
from helpers.bag_cases import FRAME, QUICK, answer, any_model, even, every_model, target
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone

from regard.data.bags import align_targets, as_bags
from regard.estimators.bags.estimator import BagClassifier, BagRegressor
from regard.estimators.bags.quadratic import FlatClassifier, FlatRegressor, QuadraticRegressor


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
def test_bad_targets_are_refused(y, message):
    with pytest.raises(ValueError, match=message):
        BagClassifier(bag="bag", **QUICK).fit(FRAME, y)


@pytest.mark.parametrize(
    ("y", "message"),
    [(["low", "high"], "y must be numbers for a regression, got 'low'"), ([1.0, np.inf], "got inf for bag b")],
)
def test_bad_numbers_are_refused(y, message):
    with pytest.raises(ValueError, match=message):
        QuadraticRegressor(bag="bag").fit(FRAME, y)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (BagClassifier("hard"), "attention must be one of softmax, gated, mean, max, got 'hard'"),
        (BagClassifier("linear"), "attention must be one of softmax, gated, mean, max, got 'linear'"),
        (BagClassifier("gated"), "attention='gated' needs a hidden_size"),
        (BagClassifier(hidden_size=0), "hidden_size must be a positive whole number, .* got 0"),
        (BagClassifier(heads=0), "heads must be a positive whole number, .* got 0"),
        (BagClassifier("max", heads=2), "and 1 without a softmax, got 2"),
        (BagClassifier(batch_size=0), "batch_size must be a positive whole number, .* got 0"),
        (BagClassifier(epochs=0), "epochs and patience must be at least 1, got 0 and 10"),
        (BagClassifier(learning_rate=0), "learning_rate must be positive .* got 0 and"),
        (BagClassifier(learning_rate="fast"), "learning_rate must be positive .* got 'fast' and"),
        (BagClassifier(learning_rate=float("inf")), "learning_rate must be positive .* got inf and"),
        (BagClassifier(dropout="much"), "dropout must be at least 0 and below 1, .* got 'much'"),
        (BagClassifier(random_state=-1), "the seed, must be a whole number of at least 0 .* got -1"),
        (BagClassifier(class_weight={0: -1, 1: 1}), "class_weight must be at least 0, .* got {0: -1, 1: 1}"),
        (BagClassifier(class_weight={0: 0, 1: 0}), "class_weight must be at least 0, and not 0 for all"),
        (BagClassifier(dropout=1.0), "dropout must be at least 0 and below 1, .* got 1.0"),
        (BagClassifier(early_stopping=True, validation_fraction=1.5), "validation_fraction between 0 and 1.*1.5"),
        (BagClassifier(early_stopping=True, validation_fraction=0.9), "holds out 4 of 4 bags"),
        (BagRegressor("cubic"), "attention must be one of softmax, gated, mean, max, linear, got 'cubic'"),
        (BagRegressor("linear", init="zero"), "init must be one of random, spectral, got 'zero'"),
        (BagRegressor(init="spectral"), "init='spectral' is for attention='linear', got attention='softmax'"),
        (BagRegressor("linear", hidden_size=3), "attention='linear' has no embedding, got hidden_size=3"),
        (BagRegressor("linear", heads=2), "and 1 without a softmax, got 2"),
        (QuadraticRegressor(alpha=0.0), "alpha must be a positive number, got 0.0"),
        (QuadraticRegressor(rank=0), "rank must be a positive whole number, .* got 0"),
        (QuadraticRegressor(rank=True), "rank must be a positive whole number, .* got True"),
        (QuadraticRegressor(rank=4), "rank must be at most 3, the number of features, got 4"),
        (FlatClassifier(C=-1), "C must be a positive number, got -1"),
        (FlatRegressor(alpha="much"), "alpha must be a positive number, got 'much'"),
    ],
)
def test_bad_settings_are_refused(model, message):
    with pytest.raises(ValueError, match=message):
        model.fit(even(count=4), [0, 1, 0, 1])


@any_model
def test_a_fit_that_fails_leaves_the_model_as_it_was(model):
    bags, other = even(), even(features=5)
    new = clone(model)
    with pytest.raises(ValueError, match="y must have one target per bag"):
        new.fit(other, [0, 1])
    assert vars(new) == vars(clone(model))  # not fitted at all
    new.fit(bags, target(model, bags))
    before, first = dict(vars(new)), answer(new, bags)
    with pytest.raises(ValueError, match=r"y must be finite numbers|y must have a class for each bag"):
        new.fit(other, [*np.zeros(40), np.nan])
    assert vars(new) == before
    assert_array_equal(answer(new, bags), first)


def test_lists_of_frames_have_the_features_of_training_in_their_order():
    bags = [pd.DataFrame(bag, columns=["a", "b", "c"]) for bag in even(count=9)]
    model = BagRegressor("linear").fit([bags[0], *(bag[["b", "c", "a"]] for bag in bags[1:])], np.arange(9.0))
    assert model.feature_names_in_.tolist() == ["a", "b", "c"]
    plain = BagRegressor("linear").fit(even(count=9), np.arange(9.0))
    assert_allclose(model.predict(bags), plain.predict(even(count=9)))
    assert_allclose(model.predict(even(count=9)), plain.predict(even(count=9)))  # by place
    with pytest.raises(ValueError, match=r"fitted on features \['a', 'b', 'c'\], these bags have \['b', 'c', 'a'\]"):
        model.predict([bag[["b", "c", "a"]] for bag in bags])


def test_a_loss_that_is_no_number_speaks_of_settings_that_there_are():
    """Bags have a learning rate, and nothing to clip with."""
    with pytest.raises(FloatingPointError, match=r"smaller learning rate than 1e\+30, or look for NaN") as caught:
        BagRegressor(learning_rate=1e30, epochs=9, verbose=False).fit(even(), np.arange(41.0))
    assert "clip" not in str(caught.value)


@any_model
def test_numbers_that_are_too_large_are_refused(model):
    with pytest.raises(
        ValueError, match=r"features must have a finite variance in float64, got numbers up to \d.*e\+200"
    ):
        clone(model).fit(even() * 1e200, target(model, even()))
    if not hasattr(model, "predict_proba"):
        with pytest.raises(ValueError, match=r"y must have a finite variance .* up to 5e\+300"):
            clone(model).fit(even(count=2), [1e300, -5e300])


@any_model
@pytest.mark.parametrize(
    "bags",
    [np.zeros((6, 2, 3)), even(6, 1, 1), even(6, 2, 3) * 1e-200, even(6, 2, 3).astype(np.float32), even(2, 1, 1)],
    ids=["nothing in it", "one by one", "tiny", "float32", "two bags"],
)
def test_odd_bags_have_an_answer(model, bags):
    y = np.arange(len(bags)) % 2
    model = clone(model).set_params(rank=1) if getattr(model, "rank", None) else clone(model)
    fitted = model.fit(bags, y if hasattr(model, "predict_proba") else y + 0.5)
    assert np.isfinite(answer(fitted, bags)).all()
    found = fitted.evidence(bags)
    assert np.isfinite(found.contribution).all()
    assert_allclose(found.weight.sum(axis=1), 1)


@every_model
def test_a_bag_of_ten_thousand_beside_one_of_one(model):
    random = np.random.default_rng(0)
    bags = [random.normal(size=(size, 3)) for size in (10_000, 1, 7, 2)]
    model = clone(model).set_params(epochs=3) if hasattr(model, "epochs") else clone(model)
    fitted = model.fit(bags, [0, 1, 1, 0])
    found = fitted.evidence(bags, top=3)
    assert_allclose(found.weight.sum(axis=1) + found.rest, 1)
    assert (found.index >= 0).sum(axis=1).tolist() == [3, 1, 3, 2]
    assert_allclose(answer(fitted, bags[:1]), answer(fitted, bags)[:1], rtol=1e-9)


def test_columns_without_text_names_are_known_by_place():
    frame = FRAME.set_axis([0, 1, 2], axis=1)
    model = BagClassifier(bag=0, **QUICK).fit(frame, ["p", "q"])
    assert not hasattr(model, "feature_names_in_")
    assert_array_equal(
        model.predict_proba(frame), BagClassifier(bag="bag", **QUICK).fit(FRAME, [0, 1]).predict_proba(FRAME)
    )


def test_a_generator_of_random_numbers_is_not_saved():
    bags, y = even(count=6), [0, 1] * 3
    for drawn in (np.random.RandomState(0), np.random.default_rng(0)):
        model = BagClassifier(random_state=drawn, **QUICK).fit(bags, y)
        assert BagClassifier.from_state(*model.state()).random_state is None


def test_flat_models_need_bags_of_one_size():
    message = "the size of the first in training, 2 instances; bag 1 has 4"
    with pytest.raises(ValueError, match=message):
        FlatRegressor().fit([np.ones((2, 3)), np.ones((4, 3))], [0.0, 1.0])
    model = FlatClassifier().fit(even(count=8), [0, 1] * 4)
    with pytest.raises(ValueError, match="training, 5 instances; bag 0 has 4"):
        model.predict(even(count=2, size=4))


def test_new_bags_must_have_the_same_features():
    model = BagClassifier(bag="bag", **QUICK).fit(FRAME, [0, 1])
    with pytest.raises(ValueError, match="no column 'x'"):
        model.predict(FRAME.drop(columns="x"))
    with pytest.raises(ValueError, match="fitted on bags with 2 features, these have 3"):
        model.predict(even())
    with pytest.raises(ValueError, match=r"fitted on features \['x', 'y'\], these bags have \['y', 'x'\]"):
        model.predict(as_bags(FRAME[["bag", "y", "x"]], by="bag"))
    assert_array_equal(model.predict(FRAME[["y", "x", "bag"]]), model.predict(FRAME))


def test_a_series_that_names_more_bags_than_there_are_is_read_by_name():
    frame = pd.DataFrame({"bag": ["a", "a", "b"], "x": [0.0, 1.0, 2.0]})
    target = pd.Series([0, 1, 1], index=list("abc"))  # as many as there are instances
    assert align_targets(target, as_bags(frame, by="bag")).tolist() == [0, 1]


@pytest.mark.parametrize("values", [np.array([1j, 2.0]), np.array(["2020", "2021"], dtype="datetime64[D]")])
def test_what_is_no_real_number_is_refused_in_every_form(values):
    with pytest.raises(ValueError, match="must be numbers"):
        as_bags([values[:, None]])
    with pytest.raises(ValueError, match="must be numbers, and column 'x' is not"):
        as_bags(pd.DataFrame({"bag": ["a", "b"], "x": values}), by="bag")
    with pytest.raises(ValueError, match="masked"):
        as_bags([np.ma.masked_array([[1.0, 2.0]], mask=[[True, False]])])
