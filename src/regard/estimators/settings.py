"""What all estimators do alike with their settings and their targets: a seed, and how a file keeps them."""

import functools
import math
import numbers
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
from sklearn.utils import check_random_state

from regard.checks import is_number, positive
from regard.saving import jsonable

Array = Any
Given = ParamSpec("Given")
Model = TypeVar("Model")
SEEDS = 2**64
"""How many seeds there are: torch's generator takes no larger one."""


def seed_of(random_state: Any) -> int:
    """One seed for all that is drawn, 0 where none is given."""
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(2**31 - 1))
    if random_state is None or isinstance(random_state, numbers.Integral):
        if random_state is not None and not 0 <= int(random_state) < SEEDS:
            raise ValueError(
                f"random_state, the seed, must be a whole number of at least 0 and below 2**64, got {random_state}"
            )
        return int(random_state or 0)
    return int(check_random_state(random_state).randint(2**31 - 1))


def all_or_nothing(fit: Callable[Concatenate[Model, Given], Model]) -> Callable[Concatenate[Model, Given], Model]:
    """A `fit` that fails, or is stopped, leaves the model as it was before."""

    @functools.wraps(fit)
    def fitted(model: Model, /, *args: Given.args, **kwargs: Given.kwargs) -> Model:
        before = dict(vars(model))
        try:
            return fit(model, *args, **kwargs)
        except BaseException:
            vars(model).clear()
            vars(model).update(before)
            raise

    return fitted


def check_search(beam: int, penalty: float) -> None:
    """What a translation or a caption is searched with."""
    positive("beam", beam)
    if not is_number(penalty) or not 0 <= penalty < math.inf:
        raise ValueError(f"penalty must be a number of at least 0, got {penalty!r}")


def saved_settings(model: Any) -> dict[str, Any]:
    """The settings of a model as JSON can hold them; a generator of random numbers it cannot."""
    settings = {name: jsonable(value) for name, value in model.get_params(deep=False).items()}
    if not isinstance(settings.get("random_state", 0), int):
        settings["random_state"] = None
    return settings


def target_names(y: Any) -> list[str] | None:
    """The names that pandas gives to targets."""
    if hasattr(y, "columns"):
        return [str(name) for name in y.columns]
    name = getattr(y, "name", None)
    return None if name is None else [str(name)]


def saved_classes(classes: Array) -> dict[str, Any]:
    """Labels as JSON can hold them, and what they were."""
    return {"classes": [jsonable(label) for label in classes], "dtype": classes.dtype.str}


def restored_classes(state: dict[str, Any]) -> Array:
    """The labels that `saved_classes` was given."""
    dtype = object if np.dtype(state["dtype"]) == object else state["dtype"]
    return np.array(state["classes"], dtype=dtype)
