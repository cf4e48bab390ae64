"""Dates in words: they mean what their translation says, and those held out are others."""

import datetime

import pytest

from regard.data.samples.dates import FORMATS, dates, held_out_dates, written


def test_one_seed_one_list_and_no_date_is_twice():
    assert dates(50, seed=3) == dates(50, seed=3)
    assert dates(50, seed=3) != dates(50, seed=4)
    assert len(set(dates(5000)[1])) == 5000


def test_held_out_days_are_never_among_the_others():
    assert not set(dates(60_000)[1]) & set(held_out_dates(7000)[1])


def test_what_is_written_is_the_day_it_is_the_translation_of():
    for words, iso in zip(*dates(500), strict=True):
        day = datetime.date.fromisoformat(iso)
        assert words in {written(day, form) for form in FORMATS}
        assert str(day.year) in words


@pytest.mark.parametrize(("day", "words"), [(1, "1st"), (2, "2nd"), (3, "3rd"), (4, "4th"), (11, "11th"), (22, "22nd")])
def test_ordinals(day, words):
    assert written(datetime.date(2000, 1, day), "{day}{th}") == words


def test_more_days_than_there_are_is_refused():
    with pytest.raises(ValueError, match="there are 7300 such days, got count=7301"):
        held_out_dates(7301)
