"""One fitted translator of each kind for all tests. Tests must not change them."""

from functools import cache

import pytest
from helpers.translation_cases import SMALL, TINY

from regard import Translator
from regard.data.samples import dates, held_out_dates


@pytest.fixture(scope="session")
def translator():
    """A translator of dates with attention, whose translations differ and are mostly right."""
    fitted = Translator("bahdanau", **SMALL).fit(*dates(400))
    assert len(set(fitted.translate(held_out_dates(30)[0]))) > 20, "equal translations would hide errors"
    return fitted


@pytest.fixture(scope="session")
def tiny():
    """The tiny translator of a model, `tiny("luong")`, trained once."""
    return cache(lambda model: Translator(model, **TINY).fit(*dates(60)))
