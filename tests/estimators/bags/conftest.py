"""One fitted model of each kind for all tests of bags."""

from functools import cache

import pytest
from helpers.bag_cases import ALL, equal_bags, target_for
from sklearn.base import clone


@pytest.fixture(scope="session")
def fitted():
    """The model of a name in `ALL`, fitted once on `equal_bags()`. Tests must not change it."""

    @cache
    def fit(name):
        bags = equal_bags()
        return clone(ALL[name]).fit(bags, target_for(ALL[name], bags))

    return fit
