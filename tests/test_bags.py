"""Bags: every form of input, the formulas, what order may change, evidence, saving, scikit-learn's habits, bad input.

Scikit-learn's `parametrize_with_checks` feeds tables [n, d], and so does not apply to estimators over bags.
"""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split

import regard
from regard.data.bag_targets import of_bags
from regard.data.bags import Bags, as_bags
from regard.estimators.bag_learner import Shuffled
from regard.estimators.bags import BagClassifier, BagRegressor
from regard.estimators.quadratic import FlatClassifier, FlatRegressor, QuadraticRegressor
from regard.estimators.quadratic_forms import (
    fit_rank,
    gram,
    kernel,
    pair_of,
    products,
    quadratic,
    ridge,
    unfolded,
)

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


# What bags are


def test_four_forms_are_the_same_bags():
    bags = ragged()
    sizes = [len(bag) for bag in bags]
    padded = np.full((len(bags), max(sizes) + 2, 3), np.nan)
    for place, bag in enumerate(bags):
        padded[place, : len(bag)] = bag
    names = [f"m{place}" for place in range(len(bags))][::-1]
    forms = [
        bags,
        as_bags(padded, lengths=sizes),
        as_bags(frame_of(bags, names), by="molecule"),
        np.array(bags, dtype=object),
    ]
    for form in forms:
        found = as_bags(form)
        assert_array_equal(found.instances, np.concatenate(bags))
        assert_array_equal(found.sizes, sizes)
        assert found.instances.dtype == np.float64
    assert as_bags(forms[2]).names.tolist() == names
    whole = even()
    assert_array_equal(as_bags(whole).instances, as_bags(list(whole)).instances)
    assert np.shares_memory(as_bags(whole).instances, whole)  # no copy where none is needed


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


def test_rows_of_a_bag_are_gathered():
    bags = ragged()
    frame = frame_of(bags, [f"m{place}" for place in range(len(bags))], seed=3)
    found = as_bags(frame, by="molecule")
    assert found.names.tolist() == [f"m{place}" for place in range(len(bags))]
    for bag, theirs in zip(found, bags, strict=True):
        assert_array_equal(bag[0], theirs[0])
        assert_array_equal(np.sort(bag, axis=0), np.sort(theirs, axis=0))
    assert_array_equal(frame.loc[found.rows, ["f0", "f1", "f2"]], found.instances)


def test_bags_are_picked_as_arrays_are():
    bags, named = ragged(), as_bags(ragged())
    named = Bags(named.instances, named.starts, np.arange(41) * 10, ("a", "b", "c"))
    assert_array_equal(named[-1], bags[-1])
    assert len(named) == len(list(named)) == named.shape[0] == 41
    for key in (slice(3, 30, 4), [5, 5, 2], np.arange(41) % 3 == 0, np.array([7, -1]), []):
        chosen = np.arange(41)[key]
        found = named[key]
        assert_array_equal(found.names, chosen * 10)
        assert found.features == ("a", "b", "c")
        assert len(found) == len(chosen)
        for one, place in zip(found, chosen, strict=True):
            assert_array_equal(one, bags[place])
    with pytest.raises(IndexError):
        named[41]
    some, others = train_test_split(named, random_state=0, test_size=11)
    assert isinstance(some, Bags)
    assert sorted([*some.names, *others.names]) == (np.arange(41) * 10).tolist()


# What the models are


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
    spoken = np.array(["a", "b", "c"])[found.speaks_for[:, 0]]
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


# Quadratic forms


def planted(features=20, count=60, size=5, seed=0):
    random = np.random.default_rng(seed)
    u, v = random.normal(size=(2, features))
    bags = random.normal(size=(count, size, features))
    return bags, np.einsum("bkd,bke,d,e->b", bags, bags, u, v), u, v


def symmetric(u, v):
    return (np.outer(u, v) + np.outer(v, u)) / 2


def recovers(model, u, v):
    return np.linalg.norm(symmetric(model.u_, model.v_) - symmetric(u, v)) < 1e-3 * np.linalg.norm(symmetric(u, v))


def test_products_and_kernel_are_inner_products_of_matrices():
    bags = as_bags(ragged(count=13, features=4))
    square = [bag.T @ bag for bag in bags]
    expected = np.array([[np.sum(a * b) for b in square] for a in square])
    table = products(bags)
    assert table.shape == (13, 10)
    assert_allclose(table @ table.T, expected, rtol=1e-12)
    assert_allclose(kernel(bags), expected, rtol=1e-12)
    assert_allclose(gram(bags), expected, rtol=1e-12)
    few = as_bags(ragged(count=3, features=31))
    assert_allclose(gram(few), kernel(few), rtol=1e-12)
    assert_allclose(unfolded(table[3], 4), square[3], rtol=1e-12)


def test_the_kernel_is_the_same_in_blocks(monkeypatch):
    bags = as_bags(ragged(count=13, features=4))
    expected = kernel(bags)
    monkeypatch.setattr("regard.estimators.quadratic_forms.KERNEL_BLOCK", 5 * len(bags.instances))
    runs = list(bags.runs(5))
    assert len(runs) > 4
    assert [place for run in runs for place in range(13)[run]] == list(range(13))
    assert_allclose(kernel(bags), expected, rtol=1e-12)


@pytest.mark.parametrize(("count", "solver"), [(10, "primal"), (9, "dual")])
def test_ridge_is_the_same_by_both_ways(count, solver):
    bags = as_bags(ragged(count=count, features=4))  # 10 products
    y = np.random.default_rng(1).normal(size=count)
    assert QuadraticRegressor().fit(bags, y).solver_ == solver
    one, other = (ridge(bags, y, 0.37, how) for how in ("primal", "dual"))
    assert_allclose(one.weight, other.weight, atol=1e-8)
    assert_allclose(one.constant, other.constant, atol=1e-8)
    theirs = Ridge(alpha=0.37).fit(products(bags), y)
    assert_allclose(one.constant + quadratic(bags, one.weight), theirs.predict(products(bags)), atol=1e-8)


def test_scaling_leaves_the_model_what_it_is():
    bags, y, u, v = planted(features=4, count=60)
    stretched = bags * [1.0, 1000.0, 0.001, 7.0]
    for standardise in (True, False):
        model = QuadraticRegressor(alpha=1e-9, standardise=standardise).fit(bags, y)
        assert_allclose(model.weight_, symmetric(u, v), atol=1e-6)
    model = QuadraticRegressor(alpha=1.0)
    assert_allclose(
        clone(model).fit(stretched, y).predict(stretched), clone(model).fit(bags, y).predict(bags), rtol=1e-7
    )


def test_rank_is_a_limit_and_refining_helps():
    bags, y, _, _ = planted(features=5, count=70)
    y = y + 3 * np.random.default_rng(1).normal(size=len(y))
    full = QuadraticRegressor(alpha=0.5, standardise=False).fit(bags, y)
    assert_allclose(
        QuadraticRegressor(rank=5, alpha=0.5, standardise=False).fit(bags, y).weight_, full.weight_, atol=1e-5
    )
    value, vector = np.linalg.eigh(full.weight_)
    for rank in (1, 2, 3):
        model = QuadraticRegressor(rank=rank, alpha=0.5, standardise=False).fit(bags, y)
        assert np.linalg.matrix_rank(model.weight_, tol=1e-8) == rank
        kept = np.argsort(-np.abs(value))[:rank]
        cut = (vector[:, kept] * value[kept]) @ vector[:, kept].T
        losses = []
        for weight in (cut, model.weight_):
            error = y - quadratic(as_bags(bags), weight)
            losses.append(np.sum((error - error.mean()) ** 2) + 0.5 * np.sum(weight**2))
        assert losses[1] < losses[0] * (1 - 1e-6)


def test_the_full_rank_comes_back_to_the_closed_form():
    bags, y, _, _ = planted(features=4, count=30)
    full = ridge(as_bags(bags), y, 5.0).weight
    value, vector = np.linalg.eigh(full)
    away = (vector * value * np.linspace(0.5, 2.0, 4)) @ vector.T  # of the same signs
    assert_allclose(fit_rank(as_bags(bags), y, away, 4, 5.0), full, atol=1e-5)


def test_the_gradient_of_a_rank_is_right():
    bags, y, _, _ = planted(features=4, count=30)
    start = ridge(as_bags(bags), y, 1.0).weight
    weight = fit_rank(as_bags(bags), y, start, 2, 1.0)
    value, vector = np.linalg.eigh(weight)
    kept = np.argsort(-np.abs(value))[:2]
    sign, factor = np.sign(value[kept]), vector[:, kept] * np.sqrt(np.abs(value[kept]))

    def loss(factor):
        whole = (factor * sign) @ factor.T
        error = quadratic(as_bags(bags), whole) - y
        return np.sum((error - error.mean()) ** 2) + np.sum(whole**2)

    bumped = [loss(factor + 1e-4 * np.random.default_rng(seed).normal(size=factor.shape)) for seed in range(20)]
    assert min(bumped) > loss(factor) - 1e-9  # it rests at a minimum


def test_u_and_v_are_read_off_the_eigenvectors():
    random = np.random.default_rng(0)
    for _ in range(20):
        u, v = random.normal(size=(2, 6))
        a, b = pair_of(symmetric(u, v))
        assert_allclose(symmetric(a, b), symmetric(u, v), atol=1e-12)
        unit = [x / np.linalg.norm(x) for x in (a, b, u, v)]
        cosine = np.abs([[unit[0] @ unit[2], unit[0] @ unit[3]], [unit[1] @ unit[2], unit[1] @ unit[3]]])
        assert_allclose(cosine.max(axis=1), 1, atol=1e-12)  # each is u or v, up to scale and swap
        assert cosine.argmax(axis=1).tolist() in ([0, 1], [1, 0])


def test_a_spectral_start_finds_what_random_ones_miss():
    bags, y, u, v = planted()  # 60 bags for 40 parameters; the full model has 210
    model = BagRegressor("linear", weight_decay=0.0)
    assert recovers(clone(model).set_params(init="spectral").fit(bags, y), u, v)
    found = [recovers(clone(model).set_params(random_state=seed).fit(bags, y), u, v) for seed in range(5)]
    assert not all(found)
    assert any(found)


def test_a_start_is_never_symmetric():
    u, v = pair_of(np.eye(3))  # without a negative eigenvalue
    assert np.linalg.norm(u - v) > 0.1 * np.linalg.norm(u)  # where u = v, their gradients are equal too


def test_u_that_is_v_is_found_too():
    bags, _, u, _ = planted(features=4)
    y = np.square(bags @ u).sum(axis=1)
    model = BagRegressor("linear", init="spectral", weight_decay=0.0).fit(bags, y)
    assert recovers(model, u, u)


def test_linear_attention_is_the_formula():
    bags = ragged(count=60)
    y = target(BagRegressor(), bags)
    model = BagRegressor("linear", init="spectral").fit(bags, y)
    expected = [np.trace(bag.T @ bag @ np.outer(model.v_, model.u_)) + model.intercept_ for bag in bags]
    assert_allclose(model.predict(bags), expected, rtol=1e-10)
    size = np.abs(bags[7] @ model.v_)
    assert_allclose(model.evidence(bags[7:8]).weight[0], np.sort(size / size.sum())[::-1])


# Evidence


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
    assert BagRegressor("linear").fit(bags, np.arange(20.0)).evidence(bags, top=1).plot().get_xlabel().endswith("adds")


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
    spoken = found.speaks_for[:, 0]  # 1: "there is one"
    assert spoken[theirs].mean() > spoken[~theirs].mean() + 0.5


def test_many_instances_go_through_in_parts(monkeypatch):
    bags = ragged()
    model = BagClassifier(hidden_size=7, **QUICK).fit(bags, target(BagClassifier(), bags))
    logit, found = model.decision_function(bags), model.evidence(bags)
    monkeypatch.setattr("regard.estimators.bag_learner.BLOCK", 9)
    assert_allclose(model.decision_function(bags), logit, rtol=1e-12)
    assert_allclose(model.evidence(bags).contribution, found.contribution, rtol=1e-12)


# Training


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
    parts = Shuffled(np.random.default_rng(0).permutation(41), 8, list)
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


# scikit-learn's habits


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


# Bad input


def spoiled(place, row, value):
    bags = ragged(count=9, most=4)
    bags[place] = np.vstack([bags[place], np.zeros((3, 3))])
    bags[place][row, 1] = value
    return bags


def test_labels_of_instances_are_taken_together():
    bag = pd.Series(["b", "a", "b", "c"])
    found = of_bags(pd.Series([1.5, 2.5, 1.5, 0.0], name="y"), bag)
    assert found.to_dict() == {"b": 1.5, "a": 2.5, "c": 0.0}
    assert list(found.index) == ["b", "a", "c"]
    with pytest.raises(ValueError, match="one target, and those of bag b have 'yes', 'no'"):
        of_bags(pd.Series(["yes", "no", "no", "yes"]), bag)


FRAME = pd.DataFrame({"bag": ["a", "b", "a"], "x": [1.0, 2.0, 3.0], "y": [0.0, 1.0, 2.0]})


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: as_bags([np.ones((2, 3)), np.ones((0, 3))]), r"bag 1 is empty, got shape \[0, 3\]"),
        (lambda: as_bags([np.ones((2, 3)), []]), r"bag 1 is empty"),
        (lambda: as_bags([np.ones((2, 3)), np.ones((1, 3)), np.ones((2, 4))]), "bag 0 has 3, bag 2 has 4"),
        (lambda: as_bags([np.ones((2, 3)), np.ones(3)]), r"bag 1 must be \[instances, features\], got shape \[3\]"),
        (lambda: as_bags([np.array([["a", "b"]])]), "features of bag 0 must be numbers, .* could not convert"),
        (lambda: as_bags([np.ones((1, 2)), [[1, 2], [3]]]), "features of bag 1 must be numbers, .* inhomogeneous"),
        (lambda: as_bags([np.ones((1, 2)) * 1j]), "features of bag 0 must be numbers, .* got complex ones"),
        (lambda: as_bags(np.ones((2, 2, 1)) * 1j), "features of bags must be numbers, .* got complex ones"),
        (lambda: as_bags(pd.concat([FRAME, FRAME[["x"]]], axis=1), by="bag"), "names of their own, got 'x' more than"),
        (lambda: as_bags(as_bags([np.ones((2, 3))])[[]]), "at least one bag, got none"),
        (lambda: as_bags(None), "bags must be a list of .* got NoneType"),
        (lambda: as_bags([]), "at least one bag, got an empty list"),
        (lambda: as_bags(np.ones((5, 3))), r"bags must be a list .* got ndarray of shape \[5, 3\]"),
        (lambda: as_bags(3), "bags must be a list of .* got int"),
        (lambda: as_bags(np.ones((0, 2, 3))), r"at least one bag and one feature, got shape \[0, 2, 3\]"),
        (lambda: as_bags(np.ones((2, 0, 3))), "bag 0 is empty"),
        (lambda: as_bags(spoiled(3, 1, np.nan)), "bag 3 has NaN in instance 1, feature 1"),
        (lambda: as_bags(spoiled(3, 2, -np.inf)), "bag 3 has an infinite number in instance 2, feature 1"),
        (lambda: as_bags(np.ones((4, 2, 3)), lengths=[1, 2]), r"lengths must be \[4\] whole numbers.* shape \[2\]"),
        (lambda: as_bags(np.ones((2, 2, 3)), lengths=[1.0, 2.0]), r"whole numbers.* of float64"),
        (lambda: as_bags(np.ones((2, 2, 3)), lengths=[1, 3]), "lengths must be at most 2, .* got 3 for bag 1"),
        (lambda: as_bags(np.ones((2, 2, 3)), lengths=[1, 0]), "bag 1 is empty, its length is 0"),
        (lambda: as_bags([np.ones((2, 3))], lengths=[2, 1]), "lengths belong to|lengths must be"),
        (lambda: as_bags(FRAME, lengths=[2, 1]), r"lengths belong to a padded array \[bags, n, d\], got DataFrame"),
        (lambda: as_bags(FRAME), "which column of the frame says the bag.* 'bag', 'x', 'y'"),
        (lambda: as_bags(FRAME, by="bags"), "no column 'bags'; did you mean 'bag'"),
        (lambda: as_bags([np.ones((2, 3))], by="bag"), "by='bag' names the column of a frame, got list"),
        (lambda: as_bags(FRAME.assign(y=["u", "v", "w"]), by="bag"), "must be numbers, and column 'y' is not"),
        (lambda: as_bags(FRAME.assign(y=[0, None, 1]), by="bag"), "bag b has NaN in instance 0, feature 'y'"),
        (lambda: as_bags(FRAME.assign(bag=["a", None, "a"]), by="bag"), "'bag' must say the bag of each row.* row 1"),
        (lambda: as_bags(FRAME[["bag"]], by="bag"), "no feature beside the column of bags 'bag'"),
        (lambda: as_bags(FRAME[:0], by="bag"), "at least one bag, got a frame without rows"),
    ],
)
def test_bad_bags_are_refused(made, message):
    with pytest.raises(ValueError, match=message):
        made()


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ([0, 1, 1], "one target a bag, 2, got 3: one for each instance"),
        ([0, 1, 1, 0, 1], "one target a bag, 2, got 5"),
        (np.zeros((2, 2)), r"y must be \[2\], one target a bag, got shape \[2, 2\]"),
        ([1, 1], r"a classifier needs two classes, got 1 class: \[1\]"),
        (pd.Series([1, 0], index=["a", "c"]), "without an entry for bag b.*y.to_numpy()"),
        (pd.Series([1, 0, 1, 1], index=["a", "b", "b", "c"]), "each bag once in its index, got b twice"),
        ([1.0, np.nan], "y must have a class for each bag, and has none for bag b"),
        (["yes", None], "y must have a class for each bag, and has none for bag b"),
        (pd.Series(["yes", pd.NA], index=["b", "a"]), "and has none for bag a"),
        ([0.5, 1.7], "continuous"),
    ],
)
def test_bad_targets_are_refused(y, message):
    with pytest.raises(ValueError, match=message):
        BagClassifier(bag="bag", **QUICK).fit(FRAME, y)


@pytest.mark.parametrize(
    ("y", "message"),
    [(["low", "high"], "y must hold numbers for a regression, got 'low'"), ([1.0, np.inf], "got inf for bag b")],
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
        (BagClassifier(random_state=-1), "random_state must be a whole number of at least 0, got -1"),
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
        (QuadraticRegressor(rank=4), "rank must be at most 3, the number of features, got 4"),
        (FlatClassifier(C=-1), "C must be a positive number, got -1"),
        (FlatRegressor(alpha="much"), "alpha must be a positive number, got 'much'"),
    ],
)
def test_bad_settings_are_refused(model, message):
    with pytest.raises(ValueError, match=message):
        model.fit(even(count=4), [0, 1, 0, 1])


@any_model
def test_numbers_that_are_too_large_are_refused(model):
    with pytest.raises(ValueError, match=r"too large for one: up to \d.*e\+200"):
        clone(model).fit(even() * 1e200, target(model, even()))
    if not hasattr(model, "predict_proba"):
        with pytest.raises(ValueError, match=r"y must have a variance, .* up to 5e\+300"):
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


def test_tensors_are_taken_as_arrays_are():
    bags = even(count=6)
    lengths = torch.tensor([5, 1, 2, 3, 4, 5])
    assert_array_equal(as_bags(torch.from_numpy(bags)).instances, as_bags(bags).instances)
    assert_array_equal(as_bags(torch.from_numpy(bags), lengths=lengths).sizes, lengths)


def test_a_generator_of_random_numbers_is_not_saved():
    bags, y = even(count=6), [0, 1] * 3
    for drawn in (np.random.RandomState(0), np.random.default_rng(0)):
        model = BagClassifier(random_state=drawn, **QUICK).fit(bags, y)
        assert BagClassifier.from_state(*model.state()).random_state is None


def test_flat_models_need_bags_of_one_size():
    message = "all bags must have one size: the first it was given has 2 instances, bag 1 has 4"
    with pytest.raises(ValueError, match=message):
        FlatRegressor().fit([np.ones((2, 3)), np.ones((4, 3))], [0.0, 1.0])
    model = FlatClassifier().fit(even(count=8), [0, 1] * 4)
    with pytest.raises(ValueError, match="has 5 instances, bag 0 has 4"):
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
