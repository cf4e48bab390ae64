"""The station of the tour: its baseline encoder and its measure."""

import math

import numpy as np
import pytest
import torch

from regard.estimators.captioning.station import OneVector, unevenness
from regard.models.image_encoders import SmallResNet


def test_one_vector_is_the_mean_of_the_grid():
    encoder, image = SmallResNet(5, image_size=24).double().eval(), torch.randn(2, 3, 24, 24, dtype=torch.float64)
    grid, one = encoder(image), OneVector(encoder)
    assert grid.shape == (2, 5, 3, 3)
    cells = [grid[:, :, row, column] for row in range(3) for column in range(3)]
    torch.testing.assert_close(one(image)[:, :, 0, 0], sum(cells) / 9)
    assert (one.image_size, one.channels) == (24, 5)


def test_unevenness_is_the_coefficient_of_variation():
    assert unevenness(np.full((3, 5), 0.7)) == pytest.approx(0)
    alone = np.zeros((3, 5))
    alone[1, 2] = 9.0
    assert unevenness(alone) == pytest.approx(math.sqrt(15 - 1))
