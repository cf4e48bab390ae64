"""One fitted language model of each kind for all tests. Tests must not change them."""

import pytest
from helpers.writing_cases import LINE, SMALL, TINY

from regard import Writer


@pytest.fixture(scope="session")
def writer():
    """A language model of characters that knows `LINE` by heart."""
    return Writer(steps=250, batch_size=16, learning_rate=5e-3, warm=20, **SMALL).fit(LINE * 60)


@pytest.fixture(scope="session")
def piecewise():
    """A language model of BPE pieces."""
    settings = SMALL | {"tokens": "pieces", "vocabulary": 300}
    return Writer(steps=60, batch_size=8, learning_rate=5e-3, warm=10, **settings).fit((LINE + "žluťoučký kůň\n") * 60)


@pytest.fixture(scope="session")
def tiny():
    """A language model of 20 steps."""
    return Writer(**TINY).fit(LINE * 40)
