"""What several estimators share: saving, optimizers, checkpoints and histories of trainings, names of targets."""

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Concatenate, NamedTuple, ParamSpec, Protocol, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted
from torch import nn

from regard.checks import is_number, positive
from regard.estimators.settings import saved_settings
from regard.saving import Array, to_array, to_json, write_folder
from regard.training import Checkpoint, History, Muon

Given = ParamSpec("Given")
Model = TypeVar("Model")
Module = TypeVar("Module", bound=nn.Module)


class State(NamedTuple):
    """A fitted model as a folder holds it."""

    config: dict[str, Any]  # as JSON can hold it
    arrays: Mapping[str, Array]
    texts: dict[str, str] = {}  # noqa: RUF012  (a NamedTuple's default is never changed)


class SavedEstimator(BaseEstimator):  # type: ignore[misc]
    """An estimator that is saved as its settings and what it learned."""

    def save(self, folder: str | Path) -> Path:
        """Write the model to a folder, from which `regard.load` reads it."""
        check_is_fitted(self)
        return write_folder(folder, *self.state())

    def state(self) -> State:
        """The fitted model: its settings, and what it learned."""
        learned = self._learned()
        config = {"estimator": type(self).__name__, "settings": saved_settings(self)}
        return learned._replace(config=config | learned.config)

    @classmethod
    def from_state(cls, config: dict[str, Any], arrays: dict[str, Any]) -> Self:
        """The model that `state` was called on; `config` has the texts too, by name."""
        model = cls(**config["settings"])
        model._restore(config, arrays)
        return model

    def _learned(self) -> State:
        """What `fit` learned; an entry "settings" replaces the current ones."""
        raise NotImplementedError

    def _restore(self, config: dict[str, Any], arrays: dict[str, Any]) -> None:
        """Set what was learned from the config and the arrays of a `state`."""
        raise NotImplementedError


def module_arrays(module: nn.Module, prefix: str = "") -> dict[str, Array]:
    """The state of a module as arrays, with a prefix before their names."""
    return {f"{prefix}{name}": to_array(tensor) for name, tensor in module.state_dict().items()}


def restored_module(module: Module, arrays: dict[str, Any], prefix: str = "", *, assign: bool = False) -> Module:
    """A module with the state of `module_arrays`, for inference.

    assign   take the types of the arrays too, such as float16
    """
    named = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
    module.load_state_dict({name: torch.as_tensor(array) for name, array in named.items()}, assign=assign)
    return module.eval().requires_grad_(False)


def saved_history(history: History) -> dict[str, Any]:
    """A history as JSON, without the losses. The names are part of the format of saved models."""
    best = {"best_epoch": history.best_epoch, "averaged": history.averaged, "best": history.best}
    return {"history": list(history.validation), **best}


def restored_history(config: dict[str, Any]) -> History:
    """The history from the config of a saved model, without the losses."""
    history = config["history"]
    best = min(history, default=None)  # older folders have the validations alone
    best_epoch = history.index(best) if history else 0
    values: dict[str, Any] = {"best_epoch": best_epoch, "averaged": 0, "best": best} | config
    return History((), tuple(history), values["best_epoch"], values["averaged"], values["best"])


def adamw(model: nn.Module, rate: float, decay: float, betas: tuple[float, float] = (0.9, 0.99)) -> torch.optim.AdamW:
    """AdamW with weight decay of matrices, but not of gains and biases."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [parameter for parameter in trained if parameter.ndim > 1], "weight_decay": decay},
        {"params": [parameter for parameter in trained if parameter.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=rate, betas=betas, fused=True)


def muon(model: nn.Module, rate: float, decay: float, betas: tuple[float, float] = (0.9, 0.99)) -> Muon:
    """Muon for the weight matrices of layers, AdamW for the rest; gains and biases do not decay."""
    return Muon.of(model, lr=rate, weight_decay=decay, betas=betas)


OPTIMIZERS = {"muon": muon, "adamw": adamw}
"""Optimizers by the values of the setting."""


class _SeededEstimator(Protocol):
    """An estimator with a seed, whose settings a resumed run must keep."""

    random_state: int | None

    def get_params(self, deep: bool = ...) -> dict[str, Any]: ...


def run_checkpoint(
    estimator: _SeededEstimator, folder: str | Path | None, resume: bool, *, every: int, seed: int, data: Iterable[str]
) -> Checkpoint | None:
    """The checkpoint of a training. A resumed run must have the same settings, seed and data.

    data   texts that identify the training data; a hash of them is written
    """
    if folder is None:
        if resume:
            raise ValueError("resume=True needs checkpoint, the folder of the run to resume")
        return None
    if estimator.random_state is None:
        raise ValueError("checkpoint needs a seed, so that the run can be resumed: set random_state")
    digest = sha256()
    for text in data:
        digest.update(text.encode() + b"\0")
    settings = {**saved_settings(estimator), "seed": seed, "data": digest.hexdigest()}
    del settings["verbose"]
    return Checkpoint(folder, every=every, resume=resume, settings=settings)


def all_or_nothing(
    fit: Callable[Concatenate[Model, Given], Model],
) -> Callable[Concatenate[Model, Given], Model]:
    """A decorator: a `fit` that raises, or is interrupted, leaves the model as it was before."""

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
    """Raise unless these are settings of a beam search."""
    positive("beam", beam)
    if not is_number(penalty) or not 0 <= penalty < math.inf:
        raise ValueError(f"penalty must be a number of at least 0, got {penalty!r}")


def target_names(y: Any) -> list[str] | None:
    """The names of targets that are a frame or a series of pandas."""
    if hasattr(y, "columns"):
        return [str(name) for name in y.columns]
    name = getattr(y, "name", None)
    return None if name is None else [str(name)]


def saved_classes(classes: NDArray[Any]) -> dict[str, Any]:
    """Class labels and their type as JSON."""
    return {"classes": [to_json(label) for label in classes], "dtype": classes.dtype.str}


def restored_classes(state: dict[str, Any]) -> NDArray[Any]:
    """The class labels from JSON."""
    dtype = object if np.dtype(state["dtype"]) == object else state["dtype"]
    return np.array(state["classes"], dtype=dtype)
