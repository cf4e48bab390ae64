"""One declaration of a setting gives the constructor, the check, the error, the docs row and the saved config."""

import inspect
from typing import Literal

import numpy as np
import pytest
from sklearn.base import BaseEstimator, clone

import regard.estimators
from regard.estimators.settings import (
    Seeded,
    check_settings,
    saved_settings,
    seed_of,
    setting,
    settings_of,
    settings_table,
    with_settings,
)


def check_even(name, value):
    if value % 2:
        raise ValueError(f"{name} must be even, got {value}")


@with_settings
class Base(Seeded, BaseEstimator):
    """A base."""

    kind: Literal["a", "b"] | None = setting("which kind", default="a", kw_only=False)
    count: int = setting("how many", default=3)
    rate: float = setting("a rate", default=0.5, above=0, at_most=1)
    size: int | None = setting("a size", default=None)
    width: int = setting("an even width", default=2, check=check_even)
    on: bool = setting("whether it is on", default=False)


@with_settings
class Child(Base):
    """A child.

    More words.
    """

    count: int = 7
    name: str = setting("a name", default="x")


def test_the_constructor_stores_what_it_is_given():
    model = Child("b", count=5)
    assert (model.kind, model.count, model.rate, model.name) == ("b", 5, 0.5, "x")
    with pytest.raises(TypeError, match="positional"):
        Child("b", 5)
    with pytest.raises(TypeError, match="unexpected keyword argument 'cuont'"):
        Child(cuont=5)


def test_scikit_learn_sees_the_settings():
    model = Child("b", rate=1.0)
    assert clone(model).get_params() == model.get_params()
    assert repr(model) == "Child(kind='b', rate=1.0)"
    assert model.set_params(count=9).count == 9
    assert next(iter(inspect.signature(Child).parameters)) == "kind"


def test_a_subclass_changes_a_default_and_keeps_help_and_bounds():
    found = {each.name: each for each in settings_of(Child)}
    assert (found["count"].default, found["count"].help) == (7, "how many")
    assert next(iter(found)) == "count"  # its own before those of its bases
    with pytest.raises(ValueError, match="count must be a positive whole number, got 0"):
        check_settings(Child(count=0))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kind": "c"}, "kind must be a, b or None, got 'c'"),
        ({"kind": 1}, "kind must be a, b or None, got 1"),
        ({"count": 0}, "count must be a positive whole number, got 0"),
        ({"count": 2.0}, "count must be a positive whole number, got 2.0"),
        ({"count": True}, "count must be a positive whole number, got True"),
        ({"count": None}, "count must be a positive whole number, got None"),
        ({"rate": 0}, "rate must be a number above 0 and at most 1, got 0"),
        ({"rate": 1.01}, "rate must be a number above 0 and at most 1, got 1.01"),
        ({"rate": float("nan")}, "rate must be a number above 0 and at most 1, got nan"),
        ({"rate": "x"}, "rate must be a number above 0 and at most 1, got 'x'"),
        ({"rate": True}, "rate must be a number above 0 and at most 1, got True"),
        ({"size": -1}, "size must be a positive whole number or None, got -1"),
        ({"width": 3}, "width must be even, got 3"),
        ({"on": 1}, "on must be True or False, got 1"),
        ({"name": 3}, "name must be a string, got 3"),
        ({"random_state": -1}, r"random_state, the seed, must be a whole number of at least 0 and below 2\*\*64"),
    ],
)
def test_a_wrong_value_raises_with_what_must_hold(given, message):
    with pytest.raises(ValueError, match=message):
        check_settings(Child(**given))


@pytest.mark.parametrize(
    "given", [{"kind": None}, {"count": np.int64(2)}, {"rate": 1}, {"rate": np.float32(0.5)}, {"size": 4}, {"on": True}]
)
def test_a_right_value_is_accepted(given):
    check_settings(Child(**given))


def test_infinity_is_no_value_of_a_number():
    @with_settings
    class Open:
        """Open."""

        rate: float = setting("a rate", default=1.0, above=0)

    check_settings(Open(rate=1e300))
    with pytest.raises(ValueError, match="rate must be a number above 0, got inf"):
        check_settings(Open(rate=float("inf")))


def test_the_docstring_lists_the_settings_behind_its_first_paragraph():
    first, listed, rest = Child.__doc__.split("\n\n")
    assert first == "A child."
    assert "count                how many [7]" in listed
    assert rest.strip() == "More words."


def test_the_docs_row_and_the_saved_config_come_from_the_field():
    assert "| `rate` | `0.5` | a rate | a number above 0 and at most 1 |" in settings_table(Child).splitlines()
    assert saved_settings(Child(random_state=np.random.RandomState(0)))["random_state"] is None
    assert saved_settings(Child(count=4))["count"] == 4


def test_a_field_without_a_declaration_raises():
    @with_settings
    class Fine:
        """Fine."""

        size: int = setting("a size")

    with pytest.raises(TypeError, match="size"):
        Fine()
    with pytest.raises(TypeError, match=r"Bare\.size must be declared by setting\(help, default=…\)"):

        @with_settings
        class Bare:
            """Bare."""

            size: int = 3


def test_a_check_draws_no_random_numbers():
    state = np.random.RandomState(0)
    check_settings(Child(random_state=state))
    assert seed_of(state) == seed_of(np.random.RandomState(0))


def test_the_seed_of_a_generator_stays_the_same_in_all_versions():
    assert (seed_of(None), seed_of(3), seed_of(np.int64(7))) == (0, 3, 7)
    assert seed_of(np.random.RandomState(0)) == np.random.RandomState(0).randint(2**31 - 1)
    assert seed_of(np.random.default_rng(1)) == np.random.default_rng(1).integers(2**31 - 1)


@pytest.mark.parametrize("name", regard.estimators.ESTIMATORS)
def test_every_setting_of_an_estimator_has_one_short_line_of_help(name):
    for each in settings_of(getattr(regard.estimators, name)):
        assert 3 < len(each.help) <= 90, each.name
        assert "\n" not in each.help
        assert not each.help.endswith("."), each.name
