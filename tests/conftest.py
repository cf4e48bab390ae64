"""What all tests share: doctests see the seed they need."""

import pytest
import torch


@pytest.fixture(autouse=True)
def seeded():
    """One seed, one result, whatever ran before."""
    torch.manual_seed(0)
