"""What a setting is: a field of a dataclass with its type, its bounds and one line of help, declared once.

    @with_settings
    class Translator(Training, TrainedEstimator):
        epochs: int = setting("passes over the training pairs", default=30)
        dropout: float = setting("fraction of activations dropped", default=0.3, at_least=0, below=1)

From the field come the constructor, the check in `fit` and its error (`check_settings`), the command's option and its
help (`regard.cli.fit`), the row in the docs (`settings_table`), and the saved config (`saved_settings`). A subclass
changes a default by a plain assignment, `epochs: int = 20`: help and bounds are inherited.
"""

import dataclasses
import math
import numbers
import operator
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, TypeVar, Unpack, dataclass_transform

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state

from regard.checks import is_number
from regard.saving import to_json

Class = TypeVar("Class")
REQUIRED: Any = dataclasses.MISSING
"""The default of a setting that has none."""
_METADATA = "setting"


class Bounds(TypedDict, total=False):
    """Bounds of a number. A whole number is at least 1 by default."""

    at_least: float
    above: float
    at_most: float
    below: float


@dataclass(frozen=True)
class Setting:
    """One setting as its class declares it."""

    name: str
    kinds: tuple[object, ...]  # the members of its type: int, float, bool, str, Path, or anything else
    choices: tuple[object, ...]  # the values of its Literal types
    optional: bool  # whether None is allowed
    default: object
    help: str
    bounds: Bounds
    check: Callable[[str, Any], object] | None  # raises where the type cannot say what must hold
    parse: Callable[[str], object] | None  # the value of an option, as typed
    option: bool  # whether the command line offers it

    def requirement(self) -> str:
        """What must hold of a value, in words.

        >>> [setting.requirement() for setting in settings_of(Training)[:3]]
        ['muon or adamw', 'a positive whole number', 'a whole number of at least 0']
        """
        words = [str(choice) for choice in self.choices]
        number = "a number" if float in self.kinds else "a whole number" if int in self.kinds else ""
        if number == "a whole number" and self.bounds == {"at_least": 1}:
            words.append("a positive whole number")
        elif number:
            order = (("above", "above"), ("at_least", "of at least"), ("below", "below"), ("at_most", "at most"))
            limits = [f"{word} {self.bounds[name]:g}" for name, word in order if name in self.bounds]  # type: ignore[literal-required]
            words.append(f"{number} {' and '.join(limits)}".strip())
        if bool in self.kinds:
            words.append("True or False")
        if str in self.kinds:
            words.append("a string")
        if self.optional:
            words.append("None")
        return " or ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]

    def allows(self, value: object) -> bool:
        """Whether a value has the declared type and lies within the bounds."""
        value = value.item() if isinstance(value, np.generic) else value  # a grid search may give NumPy's scalars
        if value is None:
            return self.optional
        if any(value == choice and type(value) is type(choice) for choice in self.choices):
            return True
        if type(value) in (bool, str):
            return type(value) in self.kinds
        if float in self.kinds and is_number(value):
            return self.within(typing.cast(float, value))
        if int in self.kinds:
            try:
                return self.within(operator.index(typing.cast(int, value)))
            except TypeError:
                return False
        return False

    def within(self, value: float) -> bool:
        """Whether a number is finite and lies within the bounds."""
        hold = {"at_least": operator.ge, "above": operator.gt, "at_most": operator.le, "below": operator.lt}
        return math.isfinite(value) and all(hold[name](value, self.bounds[name]) for name in self.bounds)  # type: ignore[literal-required]

    def verify(self, value: object) -> None:
        """Raise ValueError where a value is not allowed. A type that is not simple is left to `check`."""
        if self.check is not None:
            self.check(self.name, value)
        elif all(kind in _SIMPLE for kind in self.kinds) and not self.allows(value):
            raise ValueError(f"{self.name} must be {self.requirement()}, got {value!r}")


_SIMPLE: tuple[object, ...] = (int, float, bool, str)
"""Types that `Setting.verify` knows."""


def setting(
    help: str,  # noqa: A002
    *,
    default: Any = REQUIRED,
    kw_only: bool = True,
    check: Callable[[str, Any], object] | None = None,
    parse: Callable[[str], object] | None = None,
    option: bool = True,
    **bounds: Unpack[Bounds],
) -> Any:
    """A field of a class `with_settings`.

    help       one line: it is shown in `--help`, in the class's docstring and in the docs
    default    its default value; a setting without one is required
    kw_only    False: it may be given by position
    check      `(name, value)`, raises ValueError where the type and the bounds cannot say what must hold
    parse      turns the text of a command's option into a value, where the type is not simple
    option     False: the command line does not offer it
    """
    declared = {"help": help, "bounds": bounds, "check": check, "parse": parse, "option": option}
    return dataclasses.field(default=default, kw_only=kw_only, metadata={_METADATA: declared})


@dataclass_transform(kw_only_default=True, eq_default=False, field_specifiers=(setting,))
def with_settings(cls: type[Class]) -> type[Class]:
    """Make a class a dataclass of its settings, and list them in its docstring."""
    made = dataclass(kw_only=True, eq=False, repr=False)(cls)
    first, *rest = (cls.__doc__ or "").rstrip().split("\n\n")
    listed = "\n".join(f"    {row.name:<20} {row.help} [{_shown(row.default)}]" for row in settings_of(made))
    made.__doc__ = "\n\n".join([first, listed, *rest]) + "\n    "
    return made


def settings_of(cls: type) -> list[Setting]:
    """The settings of a class in the order of their declaration, its own before those of its bases."""
    hints = typing.get_type_hints(cls)
    order = list(dict.fromkeys(name for base in cls.__mro__ for name in vars(base).get("__annotations__", {})))
    fields = sorted(dataclasses.fields(cls), key=lambda field: order.index(field.name))
    return [_setting(cls, field, hints[field.name]) for field in fields if field.init]


def _setting(cls: type, field: "dataclasses.Field[Any]", hint: object) -> Setting:
    """A field with the metadata that it, or the field that it overrides in a base class, was declared with."""
    above = (getattr(base, "__dataclass_fields__", {}).get(field.name) for base in cls.__mro__)
    declared = next((base.metadata[_METADATA] for base in above if base and _METADATA in base.metadata), None)
    if declared is None:
        raise TypeError(f"{cls.__name__}.{field.name} must be declared by setting(help, default=…)")
    members = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    literals = [member for member in members if typing.get_origin(member) is Literal]
    choices = tuple(choice for literal in literals for choice in typing.get_args(literal))
    kinds = tuple(member for member in members if member not in (*literals, type(None)))
    if int in kinds and not declared["bounds"]:
        declared = {**declared, "bounds": {"at_least": 1}}
    return Setting(field.name, kinds, choices, type(None) in members or None in choices, field.default, **declared)


def check_settings(estimator: object) -> None:
    """Raise ValueError for the first setting whose value is not allowed."""
    for field in settings_of(type(estimator)):
        field.verify(getattr(estimator, field.name))


def saved_settings(estimator: BaseEstimator) -> dict[str, Any]:
    """The settings as JSON can hold them; a generator of random numbers cannot be saved."""
    settings = {name: to_json(value) for name, value in estimator.get_params(deep=False).items()}
    if not isinstance(settings.get("random_state", 0), int):
        settings["random_state"] = None
    return settings


def settings_table(cls: type) -> str:
    """The settings of a class as a Markdown table, for the docs.

    >>> print(settings_table(Seeded))
    | setting | default | what it is | values |
    |---|---|---|---|
    | `random_state` | `None` | seed: one seed, one result |  |
    | `verbose` | `True` | show progress bars for work longer than a second | True or False |
    """
    rows = ["| setting | default | what it is | values |", "|---|---|---|---|"]
    for field in settings_of(cls):
        simple = field.check is None and all(kind in _SIMPLE for kind in field.kinds) and (field.kinds or field.choices)
        cells = [f"`{field.name}`", f"`{_shown(field.default)}`", field.help, field.requirement() if simple else ""]
        rows.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
    return "\n".join(rows)


def _shown(default: object) -> str:
    """A default value as Python code."""
    return "required" if default is REQUIRED else f'"{default}"' if isinstance(default, str) else repr(default)


_SEEDS = 2**64
"""The number of seeds: torch's generator takes no larger one."""


def seed_of(random_state: object) -> int:
    """One seed for all random numbers; 0 by default."""
    _check_seed("random_state", random_state)
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(2**31 - 1))
    if random_state is None or isinstance(random_state, numbers.Integral):
        return int(random_state or 0)
    return int(check_random_state(random_state).randint(2**31 - 1))


def _check_seed(name: str, value: object) -> None:
    """Raise ValueError unless a value is a seed or draws random numbers, as scikit-learn has it."""
    if isinstance(value, numbers.Integral) and not 0 <= int(value) < _SEEDS:
        raise ValueError(f"{name}, the seed, must be a whole number of at least 0 and below 2**64, got {value}")
    if not isinstance(value, np.random.Generator | numbers.Integral | None):
        check_random_state(value)


@with_settings
class Seeded:
    """What every estimator shares."""

    random_state: int | None = setting("seed: one seed, one result", default=None, check=_check_seed, option=False)
    verbose: bool = setting("show progress bars for work longer than a second", default=True, option=False)


@with_settings
class BaseTraining:
    """The settings of all estimators that train with checkpoints."""

    accumulate: int = setting("batches per optimizer step", default=1)
    warm: int = setting("steps in which the learning rate rises", default=400, at_least=0)
    weight_decay: float = setting("weight decay of matrices, times the learning rate", default=0.01, at_least=0)
    clip: float = setting("largest norm of the gradient", default=1.0, above=0)
    validation_fraction: float = setting("fraction held out to choose the best weights", default=0.05, above=0, below=1)
    patience: int | None = setting("validations without improvement before stopping", default=None)


@with_settings
class Training(BaseTraining):
    """`BaseTraining`, with a choice of the optimizer."""

    optimizer: Literal["muon", "adamw"] = setting("muon learns more per step; adamw is cheaper", default="muon")
