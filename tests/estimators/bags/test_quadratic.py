"""Quadratic forms over bags, in closed form, of a rank, and as u and v."""

import numpy as np
import pytest
from helpers.bag_cases import ragged, target
from numpy.testing import assert_allclose
from sklearn.base import clone
from sklearn.linear_model import Ridge

from regard.data.bags import as_bags
from regard.estimators.bags.estimator import BagRegressor
from regard.estimators.bags.quadratic import (
    QuadraticRegressor,
    fit_rank,
    gram,
    kernel,
    leave_one_out,
    pair_of,
    products,
    quadratic,
    ridge,
    symmetric_matrix,
)


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
    assert_allclose(symmetric_matrix(table[3], 4), square[3], rtol=1e-12)


def test_the_kernel_is_the_same_in_blocks(monkeypatch):
    bags = as_bags(ragged(count=13, features=4))
    expected = kernel(bags)
    monkeypatch.setattr("regard.estimators.bags.quadratic.KERNEL_BLOCK", 5 * len(bags.instances))
    runs = list(bags.blocks(5))
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
    size = np.abs((bags[7] @ model.v_) * (bags[7] @ model.u_))
    assert_allclose(model.evidence(bags[7:8]).weight[0], np.sort(size / size.sum())[::-1])


@pytest.mark.parametrize("solver", ["primal", "dual"])
def test_bags_are_leave_one_out_whole(solver):
    bags = as_bags([np.random.default_rng(place).normal(size=(4, 3)) for place in range(25)])
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
        for place in range(25):
            some = np.delete(np.arange(25), place)
            model = Ridge(alpha=alpha).fit(table[some], y[some])
            plain.append(y[place] - model.predict(table[place : place + 1])[0])
        assert_allclose(leave_one_out(value, vector, y - y.mean(), alpha), plain, rtol=1e-8)


def test_both_solvers_find_the_same_ridge():
    bags = as_bags([np.random.default_rng(place).normal(size=(4, 3)) for place in range(25)])
    y = np.random.default_rng(99).normal(size=25) + bags.sums(bags.instances[:, 0] ** 2)
    assert_allclose(ridge(bags, y, None, "primal").weight, ridge(bags, y, None, "dual").weight, atol=1e-8)


def test_evidence_of_linear_attention_does_not_depend_on_which_is_u():
    bags = ragged(count=60)
    model = BagRegressor("linear", init="spectral").fit(bags, target(BagRegressor(), bags))
    before = model.evidence(bags)
    model.u_, model.v_ = model.v_, model.u_
    assert (model.evidence(bags).index == before.index).all()


def test_weight_decay_shrinks_linear_attention():
    bags = ragged(count=60)
    y = target(BagRegressor(), bags)
    sizes = []
    for decay in (0.0, 0.1, 10.0):
        model = BagRegressor("linear", init="spectral", weight_decay=decay).fit(bags, y)
        sizes.append(np.linalg.norm(model.u_) * np.linalg.norm(model.v_))
    assert sizes[0] > 1.05 * sizes[1] > 1.05 * sizes[2]
