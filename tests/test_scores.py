"""Scores with weights of their own: their errors. Values and gradients are compared in test_engines."""

import pytest
import torch

import regard
from regard import scores


def test_additive_raises_on_wrong_settings():
    with pytest.raises(ValueError, match="hidden must be a positive whole number, got 0"):
        scores.Additive(3, 3, 0)
    with pytest.raises(TypeError, match=r"activation must be callable, such as torch.tanh, got 'tanh'"):
        scores.Additive(3, 3, 4, activation="tanh")


@pytest.mark.parametrize("score", [scores.Additive(3, 3, 4), scores.Bilinear(3, 3)])
def test_weights_of_another_dtype_raise(score):
    message = r"has weights of torch.float32, got a query of torch.float64: convert it with score.to\(torch.float64\)"
    with pytest.raises(TypeError, match=message):
        score(torch.randn(2, 3).double(), torch.randn(2, 3).double())


def test_sizes_that_a_score_was_not_made_for_raise():
    with pytest.raises(ValueError, match="Bilinear was made for query size 3 and key size 5, got 5 and 5"):
        scores.Bilinear(3, 5)(torch.randn(2, 5), torch.randn(2, 5))
    with pytest.raises(ValueError, match="Additive was made for query size 3 and key size 5, got 3 and 4"):
        scores.Additive(3, 5, 7)(torch.randn(2, 3), torch.randn(2, 4))


def test_softcap_raises_on_wrong_settings():
    with pytest.raises(ValueError, match="cap must be a positive number, got 0"):
        scores.softcap(scores.dot, 0)
    with pytest.raises(TypeError, match="score must be callable"):
        scores.softcap("dot", 5.0)


def test_softcap_learns_what_its_score_learns():
    inner = scores.Additive(3, 3, 4)
    capped = scores.softcap(inner, 2.0)
    assert capped.width == 4
    assert [*capped.parameters()] == [*inner.parameters()]
    assert repr(scores.softcap(scores.dot, 2.0)) == "_Softcap(dot, 2.0)"


def test_scale_takes_the_place_of_the_factor_everywhere():
    query, key, value = torch.randn(5, 3), torch.randn(7, 3), torch.randn(7, 2)
    weight = torch.softmax(0.3 * query @ key.T, dim=-1)
    for score in (scores.dot, scores.scaled_dot):
        torch.testing.assert_close(regard.attend(query, key, value, score=score, scale=0.3), weight @ value)
        torch.testing.assert_close(regard.look(query, key, score=score, scale=0.3), weight)
        found = regard.attend_parts(query, key, value, score=score, scale=0.3)
        torch.testing.assert_close(found.log_weight, (0.3 * query @ key.T).logsumexp(dim=-1))
    assert regard.plan(query, key, value, scale=0.3).engine == "flash"


def test_scale_of_other_scores_raises():
    x = torch.randn(5, 3)
    with pytest.raises(
        ValueError, match=r"scale replaces the factor of the scores dot and scaled_dot only, .* constant"
    ):
        regard.attend(x, x, x, score=scores.constant, scale=2.0)
    with pytest.raises(ValueError, match="scale must be a finite number, got nan"):
        regard.attend(x, x, x, scale=float("nan"))
    with pytest.raises(ValueError, match="scale must be a finite number, got '1'"):
        regard.look(x, x, scale="1")
