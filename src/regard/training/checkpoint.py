"""A run on disk: all that is needed to resume it to the same weights as if it had never stopped.

Model, optimizer, schedule, torch's random state, the position in the epoch and the history so far are in one folder of
JSON and safetensors. The folder is replaced as a whole: a killed run leaves its last checkpoint, never part of one.
"""

import contextlib
import errno
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from filelock import FileLock, Timeout
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from regard import saving

Value = TypeVar("Value")

_WITHOUT_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK)
"""Errors of file systems that do not support locks; a run there is not locked."""


@dataclass(frozen=True)
class Checkpoint:
    """Where a run is saved, and whether it is resumed.

    folder    of this run alone
    every     write a checkpoint every so many steps; also after each epoch
    resume    resume the run in the folder, if there is one. Without it, an unfinished run raises FileExistsError
    settings  must be the same when the run is resumed; only `epochs` of a finished run may grow

    >>> Checkpoint("run", every=100, settings={"size": 128})
    Checkpoint(folder='run', every=100, resume=False, settings={'size': 128})
    """

    folder: str | Path
    every: int = 500
    resume: bool = False
    settings: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ValueError(f"every must be at least 1 step, got every={self.every}")


@contextlib.contextmanager
def run_lock(checkpoint: Checkpoint | None) -> Iterator[None]:
    """Lock the folder of a run: a second run in it raises BlockingIOError.

    The operating system releases the lock when the process ends, so that a killed run blocks nobody.
    """
    if checkpoint is None:
        yield
        return
    folder = Path(checkpoint.folder)
    path = folder.with_name(f".{folder.name}.lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path, blocking=False, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout:
        raise BlockingIOError(
            f"{folder} is in use by another training (process {_read_process(path)}): wait for it to end, or choose"
            " another folder"
        ) from None
    except OSError as error:
        if error.errno not in _WITHOUT_LOCKS:
            raise
    with contextlib.suppress(OSError):  # Windows lets nobody write to a locked file
        path.write_text(str(os.getpid()))
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # nor remove it
            path.unlink()
        lock.release()


def _read_process(path: Path) -> str:
    try:
        return path.read_text().strip() or "unknown"
    except OSError:
        return "unknown"


_GROWING = ("epochs",)
"""Settings that may be larger when a finished run is resumed."""
_NUMBERS = ("losses", "epoch_losses", "validations")
"""Fields of a state with lists of numbers."""
_STATES = ("best", "recent")
"""Fields of a state with tensors."""


@dataclass
class RunState:
    """How far a run has come. The names of the fields are those in the file."""

    epoch: int = 0
    batches: int = 0  # done in this epoch
    steps: int = 0  # of the optimizer, in all epochs
    losses: list[float] = field(default_factory=list)  # of this epoch's steps
    epoch_losses: list[float] = field(default_factory=list)
    validations: list[float] = field(default_factory=list)
    best_epoch: int = 0
    best: dict[str, Tensor] | None = None
    recent: list[dict[str, Tensor]] = field(default_factory=list)  # model states after the last epochs, to average
    finished: bool = False

    def to_json(self) -> dict[str, object]:
        """All but the tensors. Lists of numbers become text, because JSON has no NaN or inf."""
        numbers = {name: list(map(repr, getattr(self, name))) for name in _NUMBERS}
        return {name: value for name, value in vars(self).items() if name not in _STATES} | numbers

    @classmethod
    def from_json(cls, config: dict[str, Any]) -> "RunState":
        """The state that `to_json` was called on."""
        numbers = {name: list(map(float, config[name])) for name in _NUMBERS}
        state = cls(**{**config, **numbers})
        counts = (state.epoch, state.batches, state.steps, state.best_epoch)
        if not all(isinstance(count, int) and count >= 0 for count in counts) or state.best_epoch > state.epoch:
            raise ValueError(f"epoch, batches, steps and best_epoch are {counts}")
        return state


def write_checkpoint(
    checkpoint: Checkpoint, at: RunState, model: nn.Module, optimizer: Optimizer, schedule: LRScheduler | None
) -> None:
    """Write a run to its folder."""
    state = optimizer.state_dict()
    arrays = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    arrays |= {f"best.{name}": tensor for name, tensor in (at.best or {}).items()}
    arrays |= {f"recent.{i}.{name}": tensor for i, one in enumerate(at.recent) for name, tensor in one.items()}
    numbers: dict[str, float] = {}
    for index, values in state["state"].items():
        for name, value in values.items():
            target = arrays if isinstance(value, Tensor) else numbers
            target[f"optimizer.{index}.{name}"] = value
    arrays["random"] = torch.get_rng_state()
    config = {
        "checkpoint": at.to_json(),
        "about": _json_settings(checkpoint),
        "optimizer": {"groups": _to_plain(state["param_groups"]), "numbers": numbers},
        "schedule": None if schedule is None else _to_plain(schedule.state_dict()),
    }
    saving.write_folder(checkpoint.folder, config, {name: saving.to_array(tensor) for name, tensor in arrays.items()})


def read_checkpoint(
    checkpoint: Checkpoint, model: nn.Module, optimizer: Optimizer, schedule: LRScheduler | None
) -> RunState | None:
    """Restore the run in the folder, and return its state; None if there is none, or it is not to be resumed."""
    folder = Path(checkpoint.folder)
    if not (folder / saving.CONFIG).exists():
        saving.check_folder(folder)
        return None
    config, arrays = saving.read_folder(folder)
    if "checkpoint" not in config:
        raise ValueError(f"{folder} is a finished model, not a training checkpoint: choose another folder")
    try:
        state = RunState.from_json(config["checkpoint"])
        before = dict(config["about"])
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise ValueError(f"{folder} is a broken checkpoint, or one of another version of regard: {error}") from None
    if not checkpoint.resume:
        if not state.finished:
            raise FileExistsError(
                f"{folder} is the checkpoint of an unfinished run (step {state.steps}): resume it with resume=True, or"
                " --resume on the command line, or remove the folder"
            )
        return None
    _check_settings(folder, before, _json_settings(checkpoint), _GROWING if state.finished else ())
    tensors = {name: torch.as_tensor(array) for name, array in arrays.items()}
    try:
        model.load_state_dict(_without_prefix("model.", tensors))
        optimizer.load_state_dict(_optimizer_state(config["optimizer"], _without_prefix("optimizer.", tensors)))
        if schedule is not None:
            schedule.load_state_dict(_from_plain(config["schedule"], schedule.state_dict()))
        torch.set_rng_state(tensors["random"])
    except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{folder} is a checkpoint of another model or optimizer: {error}") from None
    state.best = _without_prefix("best.", tensors) or None
    while recent := _without_prefix(f"recent.{len(state.recent)}.", tensors):
        state.recent.append(recent)
    return state


def _json_settings(checkpoint: Checkpoint) -> dict[str, object]:
    """The settings as they are read from JSON, to compare them."""
    settings = {name: saving.to_json(value) for name, value in checkpoint.settings.items()}
    plain: dict[str, object] = json.loads(json.dumps(settings))
    return plain


def _check_settings(folder: Path, before: dict[str, object], now: dict[str, object], growing: tuple[str, ...]) -> None:
    """A resumed run must keep its settings; only `epochs` may grow."""
    for name in sorted({*before, *now}):
        old, new = before.get(name), now.get(name)
        if old == new or (name in growing and isinstance(old, int) and isinstance(new, int) and new > old):
            continue
        raise ValueError(
            f"a resumed run must keep its settings: the run in {folder} has {name}={old!r}, got {name}={new!r}; use"
            " the same settings, or choose another folder"
        )


def _optimizer_state(config: dict[str, Any], tensors: dict[str, Tensor]) -> dict[str, Any]:
    """The state of an optimizer, as its `state_dict` gives it, from a file's."""
    state: dict[int, dict[str, object]] = {}
    for key, value in {**tensors, **_without_prefix("optimizer.", config["numbers"])}.items():
        index, name = key.split(".", 1)
        state.setdefault(int(index), {})[name] = value
    return {"state": state, "param_groups": config["groups"]}


def _without_prefix(prefix: str, named: Mapping[str, Value]) -> dict[str, Value]:
    """The items whose names start with a prefix, by their names without it."""
    return {name.removeprefix(prefix): value for name, value in named.items() if name.startswith(prefix)}


def _to_plain(value: Any) -> Any:
    """The numbers, lists and dictionaries of a state; functions are left out, because they are made anew."""
    if isinstance(value, dict):
        return {name: _to_plain(one) for name, one in value.items() if not callable(one)}
    if isinstance(value, list | tuple):
        return [_to_plain(one) for one in value if not callable(one)]
    return value.item() if isinstance(value, Tensor) else value


def _from_plain(plain: Any, fresh: Any) -> Any:
    """A state from JSON, with integer keys, tuples and counters where a fresh state has them.

    >>> from collections import Counter
    >>> _from_plain({"milestones": {"5": 1}, "rates": [0.1]}, {"milestones": Counter([5]), "rates": (0.2,)})
    {'milestones': Counter({5: 1}), 'rates': (0.1,)}
    """
    if isinstance(plain, dict) and isinstance(fresh, dict):
        key = int if fresh and all(type(name) is int for name in fresh) else str
        restored = {key(name): _from_plain(value, fresh.get(key(name))) for name, value in plain.items()}
        return Counter(restored) if isinstance(fresh, Counter) else restored
    if isinstance(plain, list) and isinstance(fresh, list | tuple):
        by_index = dict(enumerate(fresh))
        return type(fresh)(_from_plain(one, by_index.get(index)) for index, one in enumerate(plain))
    return plain
