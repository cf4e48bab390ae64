"""Kernels of categorical columns: against statsmodels' functions, λ and penalty, the search of λ, densities."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from statsmodels.nonparametric import kernels

import regard
from regard import NadarayaWatson
from regard.estimators.tables.category_kernels import CATEGORY_KERNELS


def table(rows=60):
    random = np.random.default_rng(0)
    x = np.stack([random.normal(size=rows), random.integers(0, 4, rows)], axis=1)
    return x, np.sin(x[:, 0]) + 0.5 * x[:, 1] + 0.1 * random.normal(size=rows)


@pytest.mark.parametrize(
    ("name", "kind", "function"),
    [
        ("li-racine", "categorical", lambda h, all_, x: kernels.aitchison_aitken_reg(h, all_, x)),
        ("li-racine", "ordered", lambda h, all_, x: kernels.wang_ryzin_reg(h, all_, x)),
        ("aitchison-aitken", "categorical", lambda h, all_, x: kernels.aitchison_aitken(h, all_, x, num_levels=4)),
        ("aitchison-aitken", "ordered", lambda h, all_, x: kernels.wang_ryzin(h, all_[:, None], x).ravel()),
    ],
)
def test_a_kernel_is_that_of_statsmodels(name, kind, function):
    x, y = table()
    model = NadarayaWatson(bandwidth=[0.5, 0.3], category_kernel=name, **{kind: [1]}).fit(x, y)
    weight = np.exp(-0.5 * ((x[:, None, 0] - x[None, :, 0]) / 0.5) ** 2)  # [n, n]
    weight *= np.stack([np.ravel(function(0.3, x[:, 1], code)) for code in x[:, 1]])
    assert_allclose(model.predict(x), weight @ y / weight.sum(axis=1), rtol=1e-6)


@pytest.mark.parametrize("name", CATEGORY_KERNELS)
def test_lambda_and_penalty_are_inverse(name):
    kernel, ordered = CATEGORY_KERNELS[name], np.array([False, True, False])
    levels, width = np.array([4.0, 5.0, 2.0]), np.array([0.3, 0.6, 0.1])
    per_step, per_change = kernel.penalty(width, ordered, levels)
    assert_allclose(kernel.bandwidth(np.where(ordered, per_step, per_change), ordered, levels), width)
    at_most = kernel.bound(ordered, levels)
    assert_allclose(np.where(ordered, *kernel.penalty(at_most, ordered, levels)), 0, atol=1e-12)
    assert (kernel.penalty(np.zeros(3), ordered, levels)[1][[0, 2]] == 700).all()


@pytest.mark.slow
def test_unordered_kernels_are_the_same_family(tmp_path):
    x, y = table()
    one, other = (NadarayaWatson("cv", category_kernel=name, categorical=[1]).fit(x, y) for name in CATEGORY_KERNELS)
    assert other.criterion_ == pytest.approx(one.criterion_, rel=1e-3)
    width = one.bandwidth_[1]
    assert other.bandwidth_[1] == pytest.approx(width / (1 - width) / 3, rel=0.2)
    again = regard.load(other.save(tmp_path / "model"))
    assert_allclose(again.predict(x), other.predict(x))
    with pytest.raises(ValueError, match="category_kernel must be aitchison-aitken or li-racine, got 'rice'"):
        NadarayaWatson(category_kernel="rice").fit(x, y)


@pytest.mark.parametrize("name", CATEGORY_KERNELS)
def test_a_density_of_categories_sums_to_one(name):
    x, y = table()
    model = NadarayaWatson(bandwidth=[0.3], category_kernel=name, categorical=[0]).fit(x[:, 1:], y)
    assert np.exp(model.log_density([[0.0], [1.0], [2.0], [3.0]])).sum() == pytest.approx(1)
