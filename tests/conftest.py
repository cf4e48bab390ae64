"""What all tests share: one seed."""

import pytest
import torch


@pytest.fixture(autouse=True)
def seeded():
    """One seed, one result, whatever ran before."""
    torch.manual_seed(0)
