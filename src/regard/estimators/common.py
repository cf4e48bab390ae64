"""What all estimators that train for long do alike: check their settings, choose an optimizer, keep the run."""

import functools
import math
from collections.abc import Callable, Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from regard.checks import is_number, positive
from regard.estimators.settings import saved_settings
from regard.saving import to_json
from regard.training import Checkpoint, History, Muon

Given = ParamSpec("Given")
Model = TypeVar("Model")


def check_whole(estimator: Any, names: Iterable[str]) -> None:
    """These settings count something."""
    for name in names:
        positive(name, getattr(estimator, name))


def check_between(estimator: Any, /, **ranges: tuple[float, float]) -> None:
    """These settings are numbers above the first and below the second of their range."""
    for name, (low, high) in ranges.items():
        value = getattr(estimator, name)
        if not is_number(value) or not low < value < high:
            raise ValueError(f"{name} must be a number above {low} and below {high}, got {value!r}")


def check_from_zero(estimator: Any, /, **below: float) -> None:
    """These settings are numbers of at least 0, and below what is given."""
    for name, high in below.items():
        value = getattr(estimator, name)
        if not is_number(value) or not 0 <= value < high:
            limit = "" if high == math.inf else f" and below {high}"
            raise ValueError(f"{name} must be a number of at least 0{limit}, got {value!r}")


def check_choice(estimator: Any, /, **choices: tuple[Any, ...]) -> None:
    """These settings are one of some words, or of true and false."""
    for name, known in choices.items():
        if getattr(estimator, name) not in known:
            *words, last = map(str, known)
            raise ValueError(f"{name} must be {', '.join(words)} or {last}, got {getattr(estimator, name)!r}")


def saved_history(history: History) -> dict[str, Any]:
    """What a training went through, as JSON can hold it; not the losses of its epochs."""
    kept = {"best_epoch": history.best_epoch, "averaged": history.averaged, "best": history.best}
    return {"history": list(history.validation), **kept}


def restored_history(config: dict[str, Any]) -> History:
    """What `saved_history` was given, without the losses."""
    history = config["history"]
    best = min(history, default=None)  # in folders of before it was kept
    best_epoch = history.index(best) if history else 0
    kept: dict[str, Any] = {"best_epoch": best_epoch, "averaged": 0, "best": best} | config
    return History((), tuple(history), kept["best_epoch"], kept["averaged"], kept["best"])


def adamw(model: nn.Module, rate: float, decay: float, betas: tuple[float, float] = (0.9, 0.99)) -> torch.optim.AdamW:
    """AdamW, where matrices decay, and gains and biases do not."""
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [parameter for parameter in learned if parameter.ndim > 1], "weight_decay": decay},
        {"params": [parameter for parameter in learned if parameter.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=rate, betas=betas, fused=True)


def muon(model: nn.Module, rate: float, decay: float, betas: tuple[float, float] = (0.9, 0.99)) -> Muon:
    """Muon for the matrices of layers, AdamW for the rest; gains and biases do not decay here either."""
    return Muon.of(model, lr=rate, weight_decay=decay, betas=betas)


OPTIMIZERS = {"muon": muon, "adamw": adamw}
"""What goes down the gradient, by the word that is a setting."""


def kept_run(
    estimator: Any, folder: str | Path | None, resume: bool, *, every: int, seed: int, data: Iterable[str]
) -> Checkpoint | None:
    """Where the run of an estimator is kept, and what must be the same when it goes on: settings, seed and data."""
    if folder is None:
        if resume:
            raise ValueError("resume=True needs the checkpoint folder of the run that is to go on")
        return None
    if estimator.random_state is None:
        raise ValueError("a run with a checkpoint needs a seed, so that it can go on: set random_state")
    digest = sha256()
    for text in data:
        digest.update(text.encode() + b"\0")
    about = {**saved_settings(estimator), "seed": seed, "data": digest.hexdigest()}
    del about["verbose"]
    return Checkpoint(folder, every=every, resume=resume, settings=about)


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


def target_names(y: Any) -> list[str] | None:
    """The names that pandas gives to targets."""
    if hasattr(y, "columns"):
        return [str(name) for name in y.columns]
    name = getattr(y, "name", None)
    return None if name is None else [str(name)]


def saved_classes(classes: NDArray[Any]) -> dict[str, Any]:
    """Labels as JSON can hold them, and what they were."""
    return {"classes": [to_json(label) for label in classes], "dtype": classes.dtype.str}


def restored_classes(state: dict[str, Any]) -> NDArray[Any]:
    """The labels that `saved_classes` was given."""
    dtype = object if np.dtype(state["dtype"]) == object else state["dtype"]
    return np.array(state["classes"], dtype=dtype)
