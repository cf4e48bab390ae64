"""Bags: every form of input, indexing, targets, and bags that raise."""

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.bag_cases import SMALL_FRAME, equal_bags, long_frame, ragged_bags
from numpy.testing import assert_array_equal
from sklearn.model_selection import train_test_split

from regard.data.bags import Bags, align_targets, as_bags, group_targets


def test_all_forms_give_the_same_bags():
    bags = ragged_bags()
    sizes = [len(bag) for bag in bags]
    padded = np.full((len(bags), max(sizes) + 2, 3), np.nan)
    for index, bag in enumerate(bags):
        padded[index, : len(bag)] = bag
    names = [f"m{index}" for index in range(len(bags))][::-1]
    forms = [
        bags,
        as_bags(padded, lengths=sizes),
        as_bags(long_frame(bags, names), by="molecule"),
        np.array(bags, dtype=object),
    ]
    for form in forms:
        result = as_bags(form)
        assert_array_equal(result.instances, np.concatenate(bags))
        assert_array_equal(result.sizes, sizes)
        assert result.instances.dtype == np.float64
    assert as_bags(forms[2]).names.tolist() == names
    whole = equal_bags()
    assert_array_equal(as_bags(whole).instances, as_bags(list(whole)).instances)
    assert np.shares_memory(as_bags(whole).instances, whole)  # no copy if none is needed


def test_rows_of_a_bag_are_gathered():
    bags = ragged_bags()
    frame = long_frame(bags, [f"m{index}" for index in range(len(bags))], seed=3)
    result = as_bags(frame, by="molecule")
    assert result.names.tolist() == [f"m{index}" for index in range(len(bags))]
    for bag, theirs in zip(result, bags, strict=True):
        assert_array_equal(bag[0], theirs[0])
        assert_array_equal(np.sort(bag, axis=0), np.sort(theirs, axis=0))
    assert_array_equal(frame.loc[result.rows, ["f0", "f1", "f2"]], result.instances)


def test_frames_of_a_list_are_matched_by_their_columns():
    bags = [pd.DataFrame(bag, columns=["a", "b", "c"]) for bag in ragged_bags()]
    bags[1], bags[2] = bags[1][["c", "a", "b"]], bags[2][["b", "a", "c"]]
    result = as_bags(bags)
    assert_array_equal(result.instances, np.concatenate(ragged_bags()))
    assert result.features == ("a", "b", "c")
    numbered = [pd.DataFrame(bag) for bag in ragged_bags()]
    assert as_bags([*numbered, np.ones((2, 3))]).features is None  # pandas' default numbers are not names
    numbered[1] = numbered[1][[2, 0, 1]]
    with pytest.raises(ValueError, match="bag 0 has no names, bag 1 has '2', '0', '1'"):
        as_bags(numbered)


def test_bags_are_indexed_like_arrays():
    bags, named = ragged_bags(), as_bags(ragged_bags())
    named = Bags(named.instances, named.starts, np.arange(41) * 10, ("a", "b", "c"))
    assert_array_equal(named[-1], bags[-1])
    assert len(named) == len(list(named)) == named.shape[0] == 41
    for key in (slice(3, 30, 4), [5, 5, 2], np.arange(41) % 3 == 0, np.array([7, -1]), []):
        chosen = np.arange(41)[key]
        result = named[key]
        assert_array_equal(result.names, chosen * 10)
        assert result.features == ("a", "b", "c")
        assert len(result) == len(chosen)
        for one, index in zip(result, chosen, strict=True):
            assert_array_equal(one, bags[index])
    with pytest.raises(IndexError):
        named[41]
    some, others = train_test_split(named, random_state=0, test_size=11)
    assert isinstance(some, Bags)
    assert sorted([*some.names, *others.names]) == (np.arange(41) * 10).tolist()


def bags_with(index, row, value):
    bags = ragged_bags(count=9, most=4)
    bags[index] = np.vstack([bags[index], np.zeros((3, 3))])
    bags[index][row, 1] = value
    return bags


def test_targets_of_rows_are_grouped_by_bag():
    bag = pd.Series(["b", "a", "b", "c"])
    result = group_targets(pd.Series([1.5, 2.5, 1.5, 0.0], name="y"), bag)
    assert result.to_dict() == {"b": 1.5, "a": 2.5, "c": 0.0}
    assert list(result.index) == ["b", "a", "c"]
    with pytest.raises(ValueError, match="the same target, those of bag b have 'yes', 'no'"):
        group_targets(pd.Series(["yes", "no", "no", "yes"]), bag)


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda: as_bags([np.ones((2, 3)), np.ones((0, 3))]), r"bag 1 is empty, got shape \[0, 3\]"),
        (lambda: as_bags([np.ones((2, 3)), []]), r"bag 1 is empty"),
        (lambda: as_bags([np.ones((2, 3)), np.ones((1, 3)), np.ones((2, 4))]), "bag 0 has 3, bag 2 has 4"),
        (lambda: as_bags([np.ones((2, 3)), np.ones(3)]), r"bag 1 must be \[instances, features\], got shape \[3\]"),
        (
            lambda: as_bags([SMALL_FRAME[["x", "y"]], SMALL_FRAME[["x", "bag"]]]),
            "bag 0 has 'x', 'y', bag 1 has 'x', 'bag'",
        ),
        (lambda: as_bags([SMALL_FRAME[["x", "y"]], np.ones((2, 2))]), "bag 0 has 'x', 'y', bag 1 has no names"),
        (lambda: as_bags([SMALL_FRAME[["x", "x"]]]), "the same, each once: bag 0 has 'x', 'x'"),
        (lambda: as_bags([np.array([["a", "b"]])]), "features of bag 0 must be numbers, .* could not convert"),
        (lambda: as_bags([np.ones((1, 2)), [[1, 2], [3]]]), "features of bag 1 must be numbers, .* inhomogeneous"),
        (lambda: as_bags([np.ones((1, 2)) * 1j]), "features of bag 0 must be numbers, .* got complex128"),
        (lambda: as_bags(np.ones((2, 2, 1)) * 1j), "features of bags must be numbers, .* got complex128"),
        (
            lambda: as_bags(pd.concat([SMALL_FRAME, SMALL_FRAME[["x"]]], axis=1), by="bag"),
            "different names, got 'x' more than",
        ),
        (lambda: as_bags(as_bags([np.ones((2, 3))])[[]]), "at least one bag, got none"),
        (lambda: as_bags(None), "bags must be a list of .* got NoneType"),
        (lambda: as_bags([]), "at least one bag, got an empty list"),
        (lambda: as_bags(np.ones((5, 3))), r"bags must be a list .* got ndarray of shape \[5, 3\]"),
        (lambda: as_bags(3), "bags must be a list of .* got int"),
        (lambda: as_bags(np.ones((0, 2, 3))), r"at least one bag, instance and feature, got shape \[0, 2, 3\]"),
        (lambda: as_bags(np.ones((2, 0, 3))), r"at least one bag, instance and feature, got shape \[2, 0, 3\]"),
        (lambda: as_bags(bags_with(3, 1, np.nan)), "bag 3 has NaN in instance 1, feature 1"),
        (lambda: as_bags(bags_with(3, 2, -np.inf)), "bag 3 has an infinite number in instance 2, feature 1"),
        (lambda: as_bags(np.ones((4, 2, 3)), lengths=[1, 2]), r"lengths must be \[4\] whole numbers.* shape \[2\]"),
        (lambda: as_bags(np.ones((2, 2, 3)), lengths=[1.0, 2.0]), r"whole numbers.* of float64"),
        (lambda: as_bags(np.ones((2, 2, 3)), lengths=[1, 3]), "lengths must be from 1 to 2, .* got 3 for bag 1"),
        (lambda: as_bags(np.ones((2, 2, 3)), lengths=[1, 0]), "lengths must be from 1 to 2, .* got 0 for bag 1"),
        (lambda: as_bags([np.ones((2, 3))], lengths=[2, 1]), "lengths need a padded|lengths must be"),
        (lambda: as_bags(SMALL_FRAME, lengths=[2, 1]), r"lengths need a padded array \[bags, n, d\], got DataFrame"),
        (lambda: as_bags(SMALL_FRAME), "column that names the bags must be given; the columns are 'bag', 'x', 'y'"),
        (lambda: as_bags(SMALL_FRAME, by="bags"), "no column 'bags'; did you mean 'bag'"),
        (lambda: as_bags([np.ones((2, 3))], by="bag"), "by='bag' names a column of a frame, got list"),
        (lambda: as_bags(SMALL_FRAME.assign(y=["u", "v", "w"]), by="bag"), "must be numbers, and column 'y' is not"),
        (lambda: as_bags(SMALL_FRAME.assign(y=[0, None, 1]), by="bag"), "bag b has NaN in instance 0, feature 'y'"),
        (
            lambda: as_bags(SMALL_FRAME.assign(bag=["a", None, "a"]), by="bag"),
            "column 'bag', row 1: each row must name its bag",
        ),
        (lambda: as_bags(SMALL_FRAME[["bag"]], by="bag"), "must be a feature beside the column of bags 'bag'"),
        (lambda: as_bags(SMALL_FRAME[:0], by="bag"), "at least one bag, got a frame without rows"),
    ],
)
def test_bad_bags_raise(read, message):
    with pytest.raises(ValueError, match=message):
        read()


def test_tensors_are_read_like_arrays():
    bags = equal_bags(count=6)
    lengths = torch.tensor([5, 1, 2, 3, 4, 5])
    assert_array_equal(as_bags(torch.from_numpy(bags)).instances, as_bags(bags).instances)
    assert_array_equal(as_bags(torch.from_numpy(bags), lengths=lengths).sizes, lengths)


def test_a_series_with_more_names_than_bags_is_read_by_name():
    frame = pd.DataFrame({"bag": ["a", "a", "b"], "x": [0.0, 1.0, 2.0]})
    target = pd.Series([0, 1, 1], index=list("abc"))  # as many targets as instances
    assert align_targets(target, as_bags(frame, by="bag")).tolist() == [0, 1]


@pytest.mark.parametrize("values", [np.array([1j, 2.0]), np.array(["2020", "2021"], dtype="datetime64[D]")])
def test_complex_numbers_dates_and_masked_arrays_raise(values):
    with pytest.raises(ValueError, match="must be numbers"):
        as_bags([values[:, None]])
    with pytest.raises(ValueError, match="must be numbers, and column 'x' is not"):
        as_bags(pd.DataFrame({"bag": ["a", "b"], "x": values}), by="bag")
    with pytest.raises(ValueError, match="masked"):
        as_bags([np.ma.masked_array([[1.0, 2.0]], mask=[[True, False]])])
