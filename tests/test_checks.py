"""One rule for what counts something, and for what is a number."""

import math

import numpy as np
import pytest
import torch

from regard.checks import is_number, positive


@pytest.mark.parametrize("value", [1, 7, np.int64(3), np.uint8(255), torch.tensor(2)])
def test_what_counts(value):
    found = positive("size", value)
    assert type(found) is int
    assert found == int(value)


@pytest.mark.parametrize("value", [0, -1, True, 2.0, np.float32(3), "4", None, np.int64(0), [1]])
def test_what_does_not(value):
    with pytest.raises(ValueError, match="size must be a positive whole number, got "):
        positive("size", value)


@pytest.mark.parametrize(
    ("value", "is_one"),
    [(0, True), (1.5, True), (math.nan, True), (np.float32(2), True), (np.int8(1), True), (False, False), ("1", False)],
)
def test_numbers(value, is_one):
    assert is_number(value) == is_one
