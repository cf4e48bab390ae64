"""Checks of counts, numbers and fractions."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from regard.checks import check_rows, fraction, is_number, is_plain_linear, positive


@pytest.mark.parametrize("value", [1, 7, np.int64(3), np.uint8(255), torch.tensor(2)])
def test_positive_whole_numbers(value):
    result = positive("size", value)
    assert type(result) is int
    assert result == int(value)


@pytest.mark.parametrize("value", [0, -1, True, 2.0, np.float32(3), "4", None, np.int64(0), [1]])
def test_other_values_raise(value):
    with pytest.raises(ValueError, match="size must be a positive whole number, got "):
        positive("size", value)


@pytest.mark.parametrize(
    ("value", "is_one"),
    [(0, True), (1.5, True), (math.nan, True), (np.float32(2), True), (np.int8(1), True), (False, False), ("1", False)],
)
def test_is_number(value, is_one):
    assert is_number(value) == is_one


@pytest.mark.parametrize("value", [0, 1, 0.25, np.float32(0.5)])
def test_fractions(value):
    assert type(fraction("dropout", value)) is float
    assert fraction("dropout", value) == value


@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan, True, "0.5", None])
def test_other_values_are_not_fractions(value):
    with pytest.raises(ValueError, match="dropout must be a number between 0 and 1, got "):
        fraction("dropout", value)


def test_rows_have_a_size_and_a_rank():
    check_rows("x", torch.zeros(2, 5, 3), 3)
    check_rows("x", torch.zeros(2, 5, 3), 3, rank=3)
    with pytest.raises(ValueError, match=r"x must be \[..., length, 3\], got \[3\]"):
        check_rows("x", torch.zeros(3), 3)
    with pytest.raises(ValueError, match=r"x must be \[batch, length, 3\], got \[5, 3\]"):
        check_rows("x", torch.zeros(5, 3), 3, rank=3)
    with pytest.raises(TypeError, match="x must be a torch tensor, got list"):
        check_rows("x", [1.0], 3)


def test_a_linear_layer_is_plain_unless_something_changes_its_call():
    class Other(nn.Linear):
        pass

    linear = nn.Linear(3, 2)
    assert is_plain_linear(linear)
    assert not is_plain_linear(Other(3, 2))
    handle = linear.register_forward_hook(lambda *_: None)
    assert not is_plain_linear(linear)
    handle.remove()
    assert is_plain_linear(linear)
    everywhere = nn.modules.module.register_module_forward_hook(lambda *_: None)
    assert not is_plain_linear(linear)
    everywhere.remove()
    linear.forward = lambda x: x
    assert not is_plain_linear(linear)
