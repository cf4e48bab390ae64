"""Quadratic forms over bags, in closed form, of a rank, and as u and v; and the flat models."""

import numpy as np
import pytest
from helpers.bag_cases import (
    FLAT,
    equal_bags,
    output_of,
    ragged_bags,
    symmetric_part,
    target_for,
)
from numpy.testing import assert_allclose
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression, Ridge

from regard.data.bags import as_bags
from regard.data.samples import planted_bags
from regard.estimators import FlatClassifier, FlatRegressor, QuadraticRegressor
from regard.estimators.bags.quadratic import (
    fit_rank,
    gram,
    leave_one_out_errors,
    pair_of,
    products,
    ridge,
)


def quadratic(bags, weight):
    """tr(XᵀX W) of each bag."""
    return np.array([np.trace(bag.T @ bag @ weight) for bag in bags])


def test_products_and_kernel_are_inner_products_of_matrices(monkeypatch):
    bags = as_bags(ragged_bags(count=13, features=4))
    square = [bag.T @ bag for bag in bags]
    expected = np.array([[np.sum(a * b) for b in square] for a in square])
    table = products(bags)
    assert table.shape == (13, 10)
    assert_allclose(table @ table.T, expected, rtol=1e-12)
    few = as_bags(ragged_bags(count=3, features=31))
    by_cost = gram(few)
    assert_allclose(gram(bags), expected, rtol=1e-12)
    monkeypatch.setattr("regard.estimators.bags.quadratic.TABLE_LIMIT", 0)  # from the instances
    assert_allclose(gram(bags), expected, rtol=1e-12)
    assert_allclose(gram(few), by_cost, rtol=1e-12)


def test_the_kernel_is_the_same_in_blocks(monkeypatch):
    monkeypatch.setattr("regard.estimators.bags.quadratic.TABLE_LIMIT", 0)  # from the instances
    bags = as_bags(ragged_bags(count=13, features=4))
    expected = gram(bags)
    monkeypatch.setattr("regard.estimators.bags.quadratic.KERNEL_BLOCK", 5 * len(bags.instances))
    blocks = list(bags.blocks(5))
    assert len(blocks) > 4
    assert [index for block in blocks for index in range(13)[block]] == list(range(13))
    assert_allclose(gram(bags), expected, rtol=1e-12)


@pytest.mark.parametrize(("count", "solver"), [(10, "primal"), (9, "dual")])
def test_ridge_is_the_same_by_both_solvers(count, solver):
    bags = as_bags(ragged_bags(count=count, features=4))  # 10 products
    y = np.random.default_rng(1).normal(size=count)
    assert QuadraticRegressor().fit(bags, y).solver_ == solver
    one, other = (ridge(bags, y, 0.37, primal) for primal in (True, False))
    assert_allclose(one, other, atol=1e-8)
    form = quadratic(bags, one)
    theirs = Ridge(alpha=0.37).fit(products(bags), y)
    assert_allclose(form + np.mean(y - form), theirs.predict(products(bags)), atol=1e-8)


def test_scaling_does_not_change_the_model():
    bags, y, u, v = planted_bags(60, features=4, noise=0.0)
    stretched = bags * [1.0, 1000.0, 0.001, 7.0]
    for standardise in (True, False):
        model = QuadraticRegressor(alpha=1e-9, standardise=standardise).fit(bags, y)
        assert_allclose(model.weight_, symmetric_part(u, v), atol=1e-6)
    model = QuadraticRegressor(alpha=1.0)
    assert_allclose(
        clone(model).fit(stretched, y).predict(stretched), clone(model).fit(bags, y).predict(bags), rtol=1e-7
    )


def test_rank_is_a_limit_and_refining_reduces_the_loss():
    bags, y, _, _ = planted_bags(70, features=5, noise=0.0)
    y = y + 0.3 * np.random.default_rng(1).normal(size=len(y))
    full = QuadraticRegressor(alpha=0.5, standardise=False).fit(bags, y)
    assert_allclose(
        QuadraticRegressor(rank=5, alpha=0.5, standardise=False).fit(bags, y).weight_, full.weight_, atol=1e-5
    )
    value, vector = np.linalg.eigh(full.weight_)
    for rank in (1, 2, 3):
        model = QuadraticRegressor(rank=rank, alpha=0.5, standardise=False).fit(bags, y)
        assert np.linalg.matrix_rank(model.weight_, tol=1e-8) == rank
        largest = np.argsort(-np.abs(value))[:rank]
        cut = (vector[:, largest] * value[largest]) @ vector[:, largest].T
        losses = []
        for weight in (cut, model.weight_):
            error = y - quadratic(as_bags(bags), weight)
            losses.append(np.sum((error - error.mean()) ** 2) + 0.5 * np.sum(weight**2))
        assert losses[1] < losses[0] * (1 - 1e-6)


def test_full_rank_converges_to_the_closed_form():
    bags, y, _, _ = planted_bags(30, features=4, noise=0.0)
    full = ridge(as_bags(bags), y, 5.0)
    value, vector = np.linalg.eigh(full)
    away = (vector * value * np.linspace(0.5, 2.0, 4)) @ vector.T  # of the same signs
    assert_allclose(fit_rank(as_bags(bags), y, away, 4, 5.0), full, atol=1e-5)


def test_fit_rank_ends_at_a_minimum():
    bags, y, _, _ = planted_bags(30, features=4, noise=0.0)
    start = ridge(as_bags(bags), y, 1.0)
    weight = fit_rank(as_bags(bags), y, start, 2, 1.0)
    value, vector = np.linalg.eigh(weight)
    largest = np.argsort(-np.abs(value))[:2]
    sign, factor = np.sign(value[largest]), vector[:, largest] * np.sqrt(np.abs(value[largest]))

    def loss(factor):
        whole = (factor * sign) @ factor.T
        error = quadratic(as_bags(bags), whole) - y
        return np.sum((error - error.mean()) ** 2) + np.sum(whole**2)

    bumped = [loss(factor + 1e-4 * np.random.default_rng(seed).normal(size=factor.shape)) for seed in range(20)]
    assert min(bumped) > loss(factor) - 1e-9  # no smaller loss nearby


def test_u_and_v_follow_from_the_eigenvectors():
    random = np.random.default_rng(0)
    for _ in range(20):
        u, v = random.normal(size=(2, 6))
        a, b = pair_of(symmetric_part(u, v))
        assert_allclose(symmetric_part(a, b), symmetric_part(u, v), atol=1e-12)
        unit = [x / np.linalg.norm(x) for x in (a, b, u, v)]
        cosine = np.abs([[unit[0] @ unit[2], unit[0] @ unit[3]], [unit[1] @ unit[2], unit[1] @ unit[3]]])
        assert_allclose(cosine.max(axis=1), 1, atol=1e-12)  # each is u or v, up to scale and swap
        assert cosine.argmax(axis=1).tolist() in ([0, 1], [1, 0])


def test_a_start_is_never_symmetric():
    u, v = pair_of(np.eye(3))  # without a negative eigenvalue
    assert np.linalg.norm(u - v) > 0.1 * np.linalg.norm(u)  # where u = v, their gradients are equal too


@pytest.mark.parametrize("solver", ["primal", "dual"])
def test_leave_one_out_leaves_out_whole_bags(solver):
    bags = as_bags([np.random.default_rng(index).normal(size=(4, 3)) for index in range(25)])
    y = np.random.default_rng(99).normal(size=25) + bags.sums(bags.instances[:, 0] ** 2)
    table = products(bags)
    centred = table - table.mean(axis=0)
    if solver == "primal":
        vector, value, _ = np.linalg.svd(centred, full_matrices=False)
        value = value**2
    else:
        value, vector = np.linalg.eigh(centred @ centred.T)
        value = np.maximum(value, 0)
    for alpha in (0.1, 3.0, 80.0):
        plain = []
        for index in range(25):
            some = np.delete(np.arange(25), index)
            model = Ridge(alpha=alpha).fit(table[some], y[some])
            plain.append(y[index] - model.predict(table[index : index + 1])[0])
        assert_allclose(leave_one_out_errors(value, vector, y - y.mean(), alpha), plain, rtol=1e-8)


def test_both_solvers_choose_the_same_alpha():
    bags = as_bags([np.random.default_rng(index).normal(size=(4, 3)) for index in range(25)])
    y = np.random.default_rng(99).normal(size=25) + bags.sums(bags.instances[:, 0] ** 2)
    assert_allclose(ridge(bags, y, None, primal=True), ridge(bags, y, None, primal=False), atol=1e-8)


def test_flat_models_equal_scikit_learn():
    bags = equal_bags()
    flat = (bags - bags.mean(axis=(0, 1))) / bags.std(axis=(0, 1))
    flat = flat.reshape(len(bags), -1)
    label, y = target_for(FlatClassifier(), bags), target_for(FlatRegressor(), bags)
    ours, theirs = FlatClassifier(C=0.3).fit(bags, label), LogisticRegression(C=0.3, max_iter=1000).fit(flat, label)
    assert_allclose(ours.predict_proba(bags), theirs.predict_proba(flat), rtol=1e-6)
    assert_allclose(FlatRegressor(alpha=2.0).fit(bags, y).predict(bags), Ridge(alpha=2.0).fit(flat, y).predict(flat))
    weighted = FlatClassifier(class_weight={False: 1, True: 20}).fit(bags, label)
    assert weighted.predict_proba(bags)[:, 1].mean() > ours.predict_proba(bags)[:, 1].mean() + 0.05


def test_a_weighted_flat_classifier_equals_scikit_learn():
    bags = equal_bags()
    label = np.arange(len(bags)) % 5 == 0
    flat = np.asarray(bags).reshape(len(bags), -1)
    for weight in ("balanced", {False: 1.0, True: 7.0}, None):
        ours = FlatClassifier(class_weight=weight, standardise=False).fit(bags, label)
        theirs = LogisticRegression(class_weight=weight, max_iter=1000).fit(flat, label)
        assert_allclose(ours.decision_function(bags), theirs.decision_function(flat), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", FLAT)
def test_the_order_of_instances_matters_to_a_flat_model(name, fitted):
    bags, model = equal_bags(), fitted(name)
    assert np.abs(output_of(model, bags[:, ::-1]) - output_of(model, bags)).max() > 0.1


def test_flat_models_need_bags_of_one_size():
    message = "the size of the first in training, 2 instances; bag 1 has 4"
    with pytest.raises(ValueError, match=message):
        FlatRegressor().fit([np.ones((2, 3)), np.ones((4, 3))], [0.0, 1.0])
    model = FlatClassifier().fit(equal_bags(count=8), [0, 1] * 4)
    with pytest.raises(ValueError, match="training, 5 instances; bag 0 has 4"):
        model.predict(equal_bags(count=2, size=4))
