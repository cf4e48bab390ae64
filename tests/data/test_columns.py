"""Columns of a table as numbers: categories, dates, other libraries' tables."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose

from regard import NadarayaWatson


def test_an_unseen_category_differs_from_all_others_and_raises_if_they_are_ordered():
    frame = pd.DataFrame({"x": [0.0, 1.0, 0.0, 1.0], "colour": list("aabb")})
    y = np.array([0.0, 1.0, 10.0, 11.0])
    model = NadarayaWatson([0.3, 0.1]).fit(frame, y)
    unseen = pd.DataFrame({"x": [0.0], "colour": ["z"]})
    with pytest.warns(
        UserWarning, match="column 'colour': 1 of 1 rows hold a category that was not in the training data"
    ):
        assert model.predict(unseen)[0] == pytest.approx(5.0, abs=0.1)
    model = NadarayaWatson([0.3, 0.1], ordered=["colour"]).fit(frame, y)
    with pytest.raises(ValueError, match="'z' is not in the training data: its rank is unknown"):
        model.predict(unseen)


def test_unseen_categories_warn_with_their_number():
    frame = pd.DataFrame({"x": np.arange(9.0), "city": list("aabbaabba")})
    model = NadarayaWatson(bandwidth=1.0).fit(frame, frame["x"])
    model.predict(frame)
    with pytest.warns(UserWarning, match="column 'city': 2 of 3 rows hold a category that was not in .* such as 'c'"):
        model.predict(pd.DataFrame({"x": [1.0, 2.0, 3.0], "city": ["a", "c", "d"]}))


class Foreign:
    """A table of another library: it has names, and knows the way to pandas."""

    def __init__(self, frame):
        self.frame, self.columns, self.shape = frame, list(frame.columns), frame.shape

    def to_pandas(self):
        return self.frame


def test_a_table_of_another_library_is_converted_to_pandas():
    random = np.random.default_rng(0)
    frame = pd.DataFrame({"area": random.normal(size=40), "kind": random.choice(["flat", "house"], 40)})
    target = frame["area"] + 2 * (frame["kind"] == "house")
    ours, theirs = (NadarayaWatson().fit(table, target) for table in (frame, Foreign(frame)))
    assert list(theirs.feature_names_in_) == ["area", "kind"]
    assert_allclose(theirs.predict(Foreign(frame[:5])), ours.predict(frame[:5]))
    assert_allclose(theirs.evidence(Foreign(frame[:5])).weight, ours.evidence(frame[:5]).weight)


def test_dates_raise_and_row_names_warn():
    n = 30
    frame = pd.DataFrame({"x": np.arange(n, dtype=float), "when": pd.date_range("2020-01-01", periods=n)})
    for column in (frame["when"], frame["when"] - frame["when"].min(), frame["when"].dt.date):
        with pytest.raises(ValueError, match=r"column 'when' holds dates or times, .* categorical=\[…\]"):
            NadarayaWatson().fit(frame.assign(when=column), frame["x"])
    days = frame.assign(when=(frame["when"] - frame["when"].min()).dt.days)
    assert NadarayaWatson().fit(days, frame["x"]).columns_.categories == {}
    named = frame[["x"]].assign(id=[f"u{number}" for number in range(n)])
    with pytest.warns(UserWarning, match="column 'id' has 30 categories in 30 rows: leave it out"):
        NadarayaWatson().fit(named, frame["x"])
    NadarayaWatson().fit(named.astype({"id": "category"}), frame["x"])  # somebody has decided it


def test_dates_raise_in_a_table_without_rows():
    with pytest.raises(ValueError, match="column 't' holds dates or times: turn it into numbers"):
        NadarayaWatson().fit(pd.DataFrame({"t": pd.to_datetime([])}), [])
