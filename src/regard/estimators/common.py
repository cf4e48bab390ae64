"""What several estimators share: saving, training runs, evidence, and the classes and names of targets."""

import functools
import math
import operator
import os
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Concatenate, NamedTuple, ParamSpec, Self, SupportsIndex, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from regard.checks import is_count, is_number, positive
from regard.data.tokenizers import PADDING
from regard.estimators.settings import BaseTraining, Seeded, check_settings, saved_settings, seed_of
from regard.saving import Array, to_array, to_json, write_folder
from regard.training import Checkpoint, History, Monitor, Muon, ProcessGroup, Recipe, train, warm_cosine

Given = ParamSpec("Given")
Model = TypeVar("Model")
Method = TypeVar("Method", bound=Callable[..., Any])
Module = TypeVar("Module", bound=nn.Module)

WHOLE_LIMIT = 2 * 2**30
"""Limit on the bytes of all weights of an evidence together."""


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


def adamw(
    model: nn.Module, *, lr: float, weight_decay: float, betas: tuple[float, float] = (0.9, 0.99)
) -> torch.optim.AdamW:
    """AdamW with weight decay of matrices, but not of gains and biases."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [parameter for parameter in trained if parameter.ndim > 1], "weight_decay": weight_decay},
        {"params": [parameter for parameter in trained if parameter.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=lr, betas=betas, fused=True)


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {"muon": Muon.of, "adamw": adamw}
"""Optimizers by the values of the setting."""


class TrainedEstimator(BaseTraining, Seeded, SavedEstimator):
    """An estimator that trains networks in a run that can be saved and resumed."""

    history_: History

    def state(self) -> State:
        state, history = super().state(), self.history_
        # The names are part of the format of saved models; the losses are not.
        best = {"best_epoch": history.best_epoch, "averaged": history.averaged, "best": history.best}
        return state._replace(config=state.config | {"history": list(history.validation), **best})

    @classmethod
    def from_state(cls, config: dict[str, Any], arrays: dict[str, Any]) -> Self:
        model = super().from_state(config, arrays)
        history = config["history"]
        best = min(history, default=None)  # older folders have the validations alone
        best_epoch = history.index(best) if history else 0
        values: dict[str, Any] = {"best_epoch": best_epoch, "averaged": 0, "best": best} | config
        model.history_ = History((), tuple(history), values["best_epoch"], values["averaged"], values["best"])
        return model

    def _checked_seed(self) -> int:
        """One seed for all random numbers of a `fit`; raises on a setting that is not allowed."""
        check_settings(self)
        return seed_of(self.random_state)

    def _start_run(
        self,
        monitor: Monitor,
        folder: str | Path | None,
        resume: bool,
        *,
        seed: int,
        data: Iterable[str],
        every: int = 1 << 30,
    ) -> Callable[..., History]:
        """`train` with a monitor, a checkpoint in a folder, and all processes.

        A resumed run must have the same settings, seed and data.

        data    texts that identify the training data; a hash of them is written
        every   steps between two checkpoints; by default they are written after each epoch only
        """
        checkpoint = None
        if folder is None and resume:
            raise ValueError("resume=True needs checkpoint, the folder of the run to resume")
        if folder is not None:
            if self.random_state is None:
                raise ValueError("checkpoint needs a seed, so that the run can be resumed: set random_state")
            digest = sha256()
            for text in data:
                digest.update(text.encode() + b"\0")
            settings = {**saved_settings(self), "seed": seed, "data": digest.hexdigest()}
            del settings["verbose"]
            checkpoint = Checkpoint(folder, every=every, resume=resume, settings=settings)
        return functools.partial(train, monitor=monitor, checkpoint=checkpoint, group=ProcessGroup.from_environment())

    def _recipe(
        self,
        optimizer: torch.optim.Optimizer,
        epochs: int,
        steps: int,
        count: Callable[[Any], int],
        *,
        average: int = 1,
        least: float = 0.02,
    ) -> Recipe:
        """How a network is trained; the learning rate falls along a cosine to `least` of its peak."""
        return Recipe(
            optimizer,
            epochs,
            schedule=warm_cosine(optimizer, steps, warm=min(self.warm, steps), least=least),
            clip=self.clip,
            accumulate=self.accumulate,
            count=count,
            average=average,
            patience=self.patience,
        )


def split_held_out(count: int, fraction: float, seed: int, noun: str) -> tuple[list[int], list[int]]:
    """The indices of `count` examples to train on, and of a random fraction of them to validate with.

    >>> split_held_out(6, 0.3, seed=0, noun="pairs")
    ([0, 1, 4, 5], [2, 3])
    """
    held_out = max(1, round(fraction * count))
    if held_out >= count:
        raise ValueError(f"{held_out} of {count} {noun} are held out for validation, which leaves none to train on")
    order = np.random.default_rng(seed).permutation(count).tolist()
    return sorted(order[held_out:]), sorted(order[:held_out])


def predicted_tokens(target: Tensor) -> int:
    """The number of tokens to predict in targets `[rows, m]` from START to END; padding does not count."""
    return int((target[:, 1:] != PADDING).sum())


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


def check_jobs(name: str, value: object) -> None:
    """Raise unless a value is a number of threads as scikit-learn has it."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if value is not None and not (whole and (value == -1 or value > 0)):  # type: ignore[operator]
        raise ValueError(f"{name} must be a positive whole number, -1 for all cores, or None, got {value!r}")


def threaded(method: Method) -> Method:
    """A decorator: a method runs on `n_jobs` threads; None leaves their number to torch."""

    @functools.wraps(method)
    def run(model: Any, /, *args: Any, **kwargs: Any) -> Any:
        jobs, before = getattr(model, "n_jobs", None), torch.get_num_threads()
        if jobs is None:
            return method(model, *args, **kwargs)
        torch.set_num_threads((os.cpu_count() or 1) if jobs == -1 else max(1, int(jobs)))
        try:
            return method(model, *args, **kwargs)
        finally:
            torch.set_num_threads(before)

    return cast(Method, run)


def check_search(beam: int, penalty: float) -> None:
    """Raise unless these are settings of a beam search."""
    positive("beam", beam)
    if not is_number(penalty) or not 0 <= penalty < math.inf:
        raise ValueError(f"penalty must be a number of at least 0, got {penalty!r}")


def checked_top(top: SupportsIndex | None, most: int, of: str) -> int:
    """The number of weights to show, at most `most`; None means all."""
    if top is not None and not is_count(top):
        raise ValueError(f"top must be a positive whole number, or None for all {of}, got {top!r}")
    return most if top is None else min(operator.index(top), most)


def check_memory(queries: int, keys: int, noun: str, numbers_per_weight: int = 2) -> None:
    """Raise if weights [queries, keys], of `numbers_per_weight` numbers each, would take too much memory."""
    size = numbers_per_weight * 8 * queries * keys
    if size > WHOLE_LIMIT:
        raise ValueError(
            f"{keys:,} weights of each of {queries:,} {noun} would take {size / 2**30:.1f} GiB, above the limit"
            f" of 2 GiB: ask for top=8, or for fewer {noun} at a time"
        )


def largest_weights(weight: NDArray[np.float64], top: int) -> tuple[NDArray[np.int64], ...]:
    """Row, rank from 1, and column of the `top` largest weights of each row.

    >>> [index.tolist() for index in largest_weights(np.array([[0.1, 0.9], [0.6, 0.4]]), top=1)]
    [[0, 1], [1, 1], [1, 0]]
    """
    order = np.argsort(-weight, axis=1, kind="stable")[:, :top]  # [rows, top]
    row, rank = np.indices(order.shape).reshape(2, -1)  # [rows · top] each
    return row, rank + 1, order.ravel()


def target_names(y: Any) -> list[str] | None:
    """The names of targets that are a frame or a series of pandas or polars, or a table of Arrow."""
    if hasattr(y, "columns"):
        return [str(name) for name in getattr(y, "column_names", y.columns)]
    name = getattr(y, "name", None)
    return None if name is None else [str(name)]


def saved_target(model: Any) -> dict[str, Any]:
    """The names of a model's targets, and of a classifier the labels and their type, as JSON."""
    names = {"names": model.targets_}
    if not hasattr(model, "classes_"):
        return names
    return names | {"classes": [to_json(label) for label in model.classes_], "dtype": model.classes_.dtype.str}


def restore_target(model: Any, state: dict[str, Any]) -> None:
    """Set what `saved_target` returned."""
    model.targets_ = state["names"]
    if "classes" in state:
        dtype = object if np.dtype(state["dtype"]) == object else state["dtype"]
        model.classes_ = np.array(state["classes"], dtype=dtype)
