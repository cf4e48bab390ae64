"""Scores: formulas against the definition are in test_engines; here their parameters and their errors."""

import re

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import regard
from regard import scores

KERNELS = [scores.Gaussian, scores.Laplace, scores.Epanechnikov, scores.Boxcar, scores.Tricube]


@pytest.mark.parametrize("kernel", KERNELS)
def test_number_vector_and_matrix_bandwidths_are_one_notion(kernel):
    query, key = torch.randn(4, 3), torch.randn(6, 3)
    by_number = kernel(2.5)(query, key)
    assert_close(kernel(torch.full((3,), 2.5))(query, key), by_number)
    assert_close(kernel(2.5 * torch.eye(3))(query, key), by_number)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("bandwidth", [0.0, -1.0, float("nan"), float("inf")])
def test_a_bandwidth_that_is_not_positive_is_refused(kernel, bandwidth):
    message = re.escape(f"bandwidth must be positive and finite, got {bandwidth:g}")
    with pytest.raises(ValueError, match=message):
        kernel(bandwidth)
    with pytest.raises(ValueError, match=message):
        kernel(torch.tensor([1.0, bandwidth]))
    learned = nn.Parameter(torch.tensor(1.0))
    score = kernel(learned)
    with torch.no_grad():
        learned.fill_(bandwidth)
    with pytest.raises(ValueError, match=message):  # learning may lead there
        regard.attend(torch.randn(2, 1), torch.randn(3, 1), torch.randn(3, 1), score=score)


def test_bandwidths_of_wrong_shape_are_refused():
    with pytest.raises(ValueError, match=re.escape("a number, a vector or a square matrix, got shape [2, 3]")):
        scores.Gaussian(torch.ones(2, 3))
    with pytest.raises(ValueError, match="a bandwidth matrix must be finite and invertible"):
        scores.Gaussian(torch.ones(2, 2))
    with pytest.raises(ValueError, match="a bandwidth matrix must be finite and invertible"):
        scores.Gaussian(torch.eye(2) * float("nan"))
    with pytest.raises(ValueError, match="a bandwidth for 2 features got query and key of size 3"):
        scores.Gaussian(torch.ones(2))(torch.randn(4, 3), torch.randn(5, 3))
    with pytest.raises(ValueError, match="Gaussian needs query and key of one size, got 3 and 2"):
        scores.Gaussian(1.0)(torch.randn(4, 3), torch.randn(5, 2))


def test_bandwidths_learn_when_they_are_parameters_or_made_from_one():
    query, key, value = torch.randn(4, 3), torch.randn(6, 3), torch.randn(6, 1)
    assert list(scores.Gaussian(1.0).parameters()) == []
    parameter = nn.Parameter(torch.ones(3))
    assert list(scores.Gaussian(parameter).parameters()) == [parameter]
    logarithm = torch.zeros(3, requires_grad=True)
    for engine in ("dense", "flash", "stream"):
        made = regard.attend(query, key, value, score=scores.Gaussian(logarithm.exp()), engine=engine)
        direct = regard.attend(query, key, value, score=scores.Gaussian(parameter), engine=engine)
        (by_log,), (by_width,) = (
            torch.autograd.grad(made.sum(), logarithm),
            torch.autograd.grad(direct.sum(), parameter),
        )
        assert by_log.abs().min() > 0
        assert_close(by_log, by_width)  # d/d log h = h d/dh, and h = 1


def test_a_fixed_bandwidth_is_a_setting_and_a_learned_one_is_state():
    assert list(nn.Sequential(scores.Gaussian(2.0)).state_dict()) == []
    assert list(nn.Sequential(scores.Gaussian(nn.Parameter(torch.ones(2)))).state_dict()) == ["0.bandwidth"]
    assert "bandwidth=2.0" in repr(scores.Gaussian(2.0))
    assert scores.Gaussian(1e-9).half().bandwidth == 1e-9  # it is kept as it was written
    frozen = nn.Parameter(torch.ones(()), requires_grad=False)
    assert list(scores.Gaussian(frozen).parameters()) == [frozen]


@pytest.mark.parametrize(("bandwidth", "got"), [(None, "NoneType"), ("a", "str"), (True, "bool")])
def test_a_bandwidth_that_is_no_number_is_refused(bandwidth, got):
    with pytest.raises(TypeError, match=f"bandwidth must be a number or a tensor, got {got}"):
        scores.Gaussian(bandwidth)
    with pytest.raises(TypeError, match=r"bandwidth must be of real numbers, got torch.complex64"):
        scores.Gaussian(torch.ones(2, dtype=torch.complex64))


def test_a_learned_matrix_that_became_singular_is_refused():
    matrix = nn.Parameter(torch.eye(2))
    score = scores.Gaussian(matrix)
    with torch.no_grad():
        matrix.zero_()
    with pytest.raises(ValueError, match="a bandwidth matrix must be finite and invertible"):
        score(torch.randn(3, 2), torch.randn(4, 2))


def test_additive_refuses_what_it_cannot_be_made_of():
    with pytest.raises(ValueError, match="hidden must be positive, got 0"):
        scores.Additive(3, 3, 0)
    with pytest.raises(TypeError, match=r"activation must be callable, such as torch.tanh, got 'tanh'"):
        scores.Additive(3, 3, 4, activation="tanh")


@pytest.mark.parametrize("score", [scores.Additive(3, 3, 4), scores.Bilinear(3, 3)])
def test_weights_of_another_dtype_are_refused(score):
    message = r"has weights of torch.float32, got a query of torch.float64: convert it with score.to\(torch.float64\)"
    with pytest.raises(TypeError, match=message):
        score(torch.randn(2, 3).double(), torch.randn(2, 3).double())


def test_modules_refuse_sizes_they_were_not_made_for():
    with pytest.raises(ValueError, match="Bilinear was made for query size 3 and key size 5, got 5 and 5"):
        scores.Bilinear(3, 5)(torch.randn(2, 5), torch.randn(2, 5))
    with pytest.raises(ValueError, match="Additive was made for query size 3 and key size 5, got 3 and 4"):
        scores.Additive(3, 5, 7)(torch.randn(2, 3), torch.randn(2, 4))


def test_kernels_have_finite_slopes_where_query_and_key_coincide():
    points = torch.randn(5, 3)
    for kernel in KERNELS:
        query, key, value = points.clone().requires_grad_(), points.clone().requires_grad_(), torch.randn(5, 1)
        for engine in ("dense", "stream"):
            mean = regard.attend(query, key, value, score=kernel(2.0), engine=engine)
            if mean.requires_grad:
                assert all(
                    g is None or g.isfinite().all()
                    for g in torch.autograd.grad(mean.sum(), (query, key), allow_unused=True)
                )


def test_the_gaussian_keeps_its_digits_far_from_the_origin():
    """Float32 points that are exact, a million from 0: only their differences count."""
    key = torch.tensor([[0.0], [0.25], [0.5]])
    value, query = torch.tensor([[0.0], [1.0], [4.0]]), torch.tensor([[0.375]])
    near = regard.attend(query, key, value, score=scores.Gaussian(0.125), engine="dense")
    for engine in ("dense", "flash", "stream"):
        far = regard.attend(query + 2**20, key + 2**20, value, score=scores.Gaussian(0.125), engine=engine)
        assert_close(far, near, rtol=1e-6, atol=0)
