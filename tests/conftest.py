"""What tests share: one seed, no network, and the parts of those of grids on disk."""

import os

import pytest
import torch

if "PYTEST_XDIST_WORKER" in os.environ:  # one thread per process; tests that need more ask for them
    os.environ["OMP_NUM_THREADS"] = "1"  # of the processes that tests start
    torch.set_num_threads(1)
os.environ["HF_HUB_OFFLINE"] = "1"  # read when Hugging Face's packages are imported: nothing is ever fetched


@pytest.fixture(autouse=True)
def seeded():
    """One seed and one number of threads, whatever ran before: sums by more threads differ in their last digits."""
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def encoder():
    """An encoder whose grids are kept on disk; its running means are not those it was made with."""
    from helpers.feature_cases import trained_encoder

    return trained_encoder()


@pytest.fixture
def small_files(monkeypatch):
    """Three grids a file, so that a few images fill several."""
    from helpers.feature_cases import three_in_a_file

    three_in_a_file(monkeypatch)


def pytest_collection_modifyitems(config, items):
    """Coverage is that of the fast tests: measuring it would make the slow ones take a quarter longer."""
    for item in items:
        if config.pluginmanager.hasplugin("_cov") and item.get_closest_marker("slow"):
            item.add_marker("no_cover")
