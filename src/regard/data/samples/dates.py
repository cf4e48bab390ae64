"""Dates as people write them, and as ISO 8601 does: a translation whose alignment has a right answer.

"tuesday, 4 july 1976"  →  "1976-07-04"
"""

import calendar
import datetime

import numpy as np

FIRST, DAYS = datetime.date(1900, 1, 1), 73_000
FORMATS = (
    "{day} {Month} {year}",
    "{day} {Mon} {year}",
    "{Month} {day}, {year}",
    "{Mon} {day}, {year}",
    "{Weekday}, {day} {Month} {year}",
    "{Weekday} {Month} {day} {year}",
    "{day}{th} of {Month} {year}",
    "the {day}{th} of {Month}, {year}",
    "{Month} {day}{th}, {year}",
    "{day:02}.{month:02}.{year}",
    "{day}. {month}. {year}",
    "{year}/{month}/{day}",
)
"""The ways in which a date is written."""


def dates(count: int, seed: int = 0) -> tuple[list[str], list[str]]:
    """Dates from 1900 to 2099 in words, and the same in ISO's way.

    One seed, one list; no date is twice in it, as long as there are so many. Those of another seed are others, but
    for chance: `held_out_dates` are never among them.

    >>> for written, iso in zip(*dates(3, seed=1)):
    ...     print(f"{written} → {iso}")
    15 Feb 2071 → 2071-02-15
    24th of July 2026 → 2026-07-24
    6 January 1942 → 1942-01-06
    """
    return drawn(count, seed, held_out=False)


def held_out_dates(count: int, seed: int = 0) -> tuple[list[str], list[str]]:
    """The same of days that `dates` never gives: every tenth.

    >>> _, right = dates(2000)
    >>> set(held_out_dates(50)[1]) & set(right)
    set()
    """
    return drawn(count, seed, held_out=True)


def drawn(count: int, seed: int, *, held_out: bool) -> tuple[list[str], list[str]]:
    """Days that are every tenth, or are not, each in a way of its own."""
    random = np.random.default_rng(seed)
    days = np.arange(DAYS)
    days = days[(days % 10 == 9) == held_out]
    if not 1 <= count <= len(days):
        raise ValueError(f"there are {len(days)} such days, got count={count}")
    chosen = [FIRST + datetime.timedelta(days=int(day)) for day in random.permutation(days)[:count]]
    formats = random.integers(len(FORMATS), size=count)
    return [written(day, FORMATS[form]) for day, form in zip(chosen, formats, strict=True)], [
        day.isoformat() for day in chosen
    ]


def written(day: datetime.date, form: str) -> str:
    """One date in one way.

    >>> written(datetime.date(1976, 7, 4), "the {day}{th} of {Month}, {year}")
    'the 4th of July, 1976'
    """
    th = "th" if 11 <= day.day <= 13 else {1: "st", 2: "nd", 3: "rd"}.get(day.day % 10, "th")
    names = {
        "Month": calendar.month_name[day.month],
        "Mon": calendar.month_abbr[day.month],
        "Weekday": calendar.day_name[day.weekday()],
    }
    return form.format(day=day.day, month=day.month, year=day.year, th=th, **names)
