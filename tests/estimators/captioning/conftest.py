"""A small captioner, trained once for all tests."""

import pytest
from helpers.caption_cases import TINY, colour_pictures

from regard import Captioner


@pytest.fixture(scope="session")
def few():
    """Pictures of one colour."""
    return colour_pictures()


@pytest.fixture(scope="session")
def tiny(few):
    """A captioner of pictures of one colour."""
    captioner = Captioner(**TINY).fit(few.images, few.captions)
    assert len(set(captioner.caption(few.images))) > 2, "equal captions would hide errors"
    return captioner
