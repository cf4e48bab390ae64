"""The table of kernels: every entry against its definition, and the bandwidths that all kernels share."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
import reference
import torch
from torch import nn
from torch.testing import assert_close

import regard
from regard import scores
from regard.engines.kernel_sums.problem import log_kernel
from regard.kernels import KERNELS, Gaussian, Mixed
from regard.scores import is_inner_product, is_squared_distance

DOCS = Path(__file__).parents[1] / "docs"


def test_every_kernel_has_a_definition_in_the_reference_a_public_name_and_a_line_in_the_docs():
    assert set(KERNELS) == {*reference.LOG_KERNELS, *reference.COMPACT_KERNELS}
    for name, kernel in KERNELS.items():
        assert getattr(scores, kernel.__name__) is kernel
        assert kernel.__name__ in scores.__all__
        assert kernel.profile.compact == (name in reference.COMPACT_KERNELS)
        assert kernel.__name__ in (DOCS / "reference" / "parts.md").read_text()
        assert f'"{name}"' in (DOCS / "tables.md").read_text()


@pytest.mark.parametrize("name", KERNELS)
def test_both_formulas_of_a_kernel_are_its_definition(name):
    """In torch and in NumPy, up to the edge of a compact kernel and beyond."""
    profile = KERNELS[name].profile
    u = np.concatenate([np.linspace(0, 3, 3001), 1 - np.logspace(-15, -2, 50), [1.0, 1 + 1e-15, 30.0]])
    expected = torch.tensor(reference.log_kernel(name, u))
    score = KERNELS[name](1.0)(torch.zeros(1, 1, dtype=torch.float64), torch.tensor(u)[:, None])
    # Near the edge a rounded 1 - u has few digits left.
    near = torch.tensor((u > 0.999) & (u < 1)) & profile.compact
    for found in (score[0], torch.tensor(log_kernel(KERNELS[name], u**2))):
        assert_close(found[~near], expected[~near], rtol=1e-12, atol=1e-12)
        assert_close(found[near], expected[near], rtol=0, atol=0.3)
    assert (score[0, u >= 1] == -math.inf).all() == profile.compact


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_scores_and_gradients_are_finite_just_inside_the_edge_and_nothing_is_seen_on_it(name, dtype):
    below = torch.nextafter(torch.ones(1, 1, dtype=dtype), torch.zeros(1, 1, dtype=dtype)).requires_grad_()
    score = KERNELS[name](1.0)(torch.zeros(1, 1, dtype=dtype), below)
    (gradient,) = torch.autograd.grad(score.sum(), below)
    assert score.isfinite().all()
    assert gradient.isfinite().all()
    on = KERNELS[name](1.0)(torch.zeros(1, 1, dtype=dtype), torch.ones(1, 1, dtype=dtype))
    assert on.isneginf().all() == KERNELS[name].profile.compact


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("features", [1, 2, 5])
def test_mass_and_deviation_are_the_integrals(name, features):
    u = np.linspace(0, 1 if KERNELS[name].profile.compact else 60, 600_001)
    kernel = np.exp(reference.log_kernel(name, u))
    kernel[-1] = kernel[-2]  # of a compact kernel, what it is just inside the edge

    def integral(power):
        return np.trapezoid(kernel * u**power, u)

    profile = KERNELS[name].profile
    sphere = {1: 2.0, 2: 2 * math.pi, 5: 8 / 3 * math.pi**2}[features]  # its surface
    assert math.exp(profile.log_mass(features)) == pytest.approx(sphere * integral(features - 1), rel=1e-6)
    variance = integral(features + 1) / integral(features - 1) / features
    assert profile.deviation(features) == pytest.approx(math.sqrt(variance), rel=1e-6)
    assert profile.log_mass(0) == 0
    assert profile.deviation(0) == 1


def test_a_subclass_with_another_profile_is_no_longer_taken_for_a_gaussian():
    class Wider(Gaussian):
        profile = scores.Laplace.profile

    assert is_inner_product(Gaussian(1.0))
    assert is_squared_distance(Gaussian(1.0))
    assert not is_inner_product(Wider(1.0))
    assert not is_squared_distance(Wider(1.0))
    x = torch.randn(5, 2)
    assert_close(regard.attend(x, x, x, score=Wider(1.0)), regard.attend(x, x, x, score=scores.Laplace(1.0)))


def test_mixed_subtracts_for_each_step_between_codes_and_for_any_change():
    score = Mixed(Gaussian(1.0), per_step=torch.tensor([0.5, 0.0]), per_change=torch.tensor([2.0, 0.25]))
    key = torch.tensor([[0.0, 1.0, 3.0], [0.0, 4.0, 3.0], [2.0, 1.0, 1.0]])
    assert_close(score(torch.tensor([[0.0, 1.0, 3.0]]), key), torch.tensor([[0.0, -3.5, -2.25]]))
    with pytest.raises(
        ValueError, match=re.escape("must be vectors with one entry per column, got shapes [2] and [1]")
    ):
        Mixed(Gaussian(1.0), torch.zeros(2), torch.zeros(1))
    with pytest.raises(ValueError, match="2 columns of codes need query and key of at least that size, got 1 and 3"):
        score(torch.zeros(1, 1), key)


@pytest.mark.parametrize("kernel", KERNELS.values())
def test_number_vector_and_matrix_bandwidths_mean_the_same(kernel):
    query, key = torch.randn(4, 3), torch.randn(6, 3)
    by_number = kernel(2.5)(query, key)
    assert_close(kernel(torch.full((3,), 2.5))(query, key), by_number)
    assert_close(kernel(2.5 * torch.eye(3))(query, key), by_number)


@pytest.mark.parametrize("kernel", KERNELS.values())
@pytest.mark.parametrize("bandwidth", [0.0, -1.0, float("nan"), float("inf")])
def test_a_bandwidth_that_is_not_positive_raises(kernel, bandwidth):
    message = re.escape(f"bandwidth must be positive and finite, got {bandwidth:g}")
    with pytest.raises(ValueError, match=message):
        kernel(bandwidth)
    with pytest.raises(ValueError, match=message):
        kernel(torch.tensor([1.0, bandwidth]))
    learned = nn.Parameter(torch.tensor(1.0))
    score = kernel(learned)
    with torch.no_grad():
        learned.fill_(bandwidth)
    with pytest.raises(ValueError, match=message):  # an optimizer step may do that
        regard.attend(torch.randn(2, 1), torch.randn(3, 1), torch.randn(3, 1), score=score)


def test_bandwidths_of_wrong_shape_raise():
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
    assert scores.Gaussian(1e-9).half().bandwidth == 1e-9  # it stays as given
    frozen = nn.Parameter(torch.ones(()), requires_grad=False)
    assert list(scores.Gaussian(frozen).parameters()) == [frozen]


@pytest.mark.parametrize(("bandwidth", "got"), [(None, "NoneType"), ("a", "str"), (True, "bool")])
def test_a_bandwidth_that_is_no_number_raises(bandwidth, got):
    with pytest.raises(TypeError, match=f"bandwidth must be a number or a tensor, got {got}"):
        scores.Gaussian(bandwidth)
    with pytest.raises(TypeError, match=r"bandwidth must be of real numbers, got torch.complex64"):
        scores.Gaussian(torch.ones(2, dtype=torch.complex64))


def test_a_learned_matrix_that_became_singular_raises():
    matrix = nn.Parameter(torch.eye(2))
    score = scores.Gaussian(matrix)
    with torch.no_grad():
        matrix.zero_()
    with pytest.raises(ValueError, match="a bandwidth matrix must be finite and invertible"):
        score(torch.randn(3, 2), torch.randn(4, 2))


def test_gradients_are_finite_if_query_and_key_coincide():
    points = torch.randn(5, 3)
    for kernel in KERNELS.values():
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
