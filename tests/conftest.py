"""What all tests share: one seed, and no network."""

import os

import pytest
import torch

os.environ["HF_HUB_OFFLINE"] = "1"  # read when Hugging Face's packages are imported: nothing is ever fetched


@pytest.fixture(autouse=True)
def seeded():
    """One seed, one result, whatever ran before."""
    torch.manual_seed(0)
