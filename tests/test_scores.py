"""Scores with weights of their own: their errors. Values and gradients are compared in test_engines."""

import pytest
import torch

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
