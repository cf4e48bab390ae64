"""A run on disk: what it needs to go on as if it had never stopped.

Model, optimizer, schedule, torch's random numbers, the place in the epoch and the history so far, in one folder of
JSON and safetensors that is replaced as a whole: a run that is killed leaves the last one, never a part.
"""

import contextlib
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from regard import saving
from regard.checks import is_number

try:
    import fcntl
except ImportError:  # there is none on Windows
    fcntl = None  # type: ignore[assignment]


@dataclass(frozen=True)
class Checkpoint:
    """Where a run is kept, and whether it goes on.

    folder   of this run alone
    every    so many steps; also after each epoch
    resume   go on from what is there, if anything is. Without it, an unfinished run is not overwritten
    about    settings that must be the same when it goes on; a finished run may be asked for more `epochs`

    >>> Checkpoint("run", every=100, about={"size": 128})
    Checkpoint(folder='run', every=100, resume=False, about={'size': 128})
    """

    folder: str | Path
    every: int = 500
    resume: bool = False
    about: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ValueError(f"a checkpoint must be written every 1 step or more, got every={self.every}")


@contextlib.contextmanager
def run_lock(checkpoint: Checkpoint | None) -> Iterator[None]:
    """Two runs in one folder would overwrite each other: the second is refused. A run that was killed blocks nobody."""
    if checkpoint is None or fcntl is None:
        yield
        return
    folder = Path(checkpoint.folder)
    lock = folder.with_name(f".{folder.name}.lock")
    lock.parent.mkdir(parents=True, exist_ok=True)
    with locked(lock, folder):
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


@contextlib.contextmanager
def locked(path: Path, folder: Path) -> Iterator[None]:
    """A file that this process has locked, in which its number is: the lock goes with the process, whatever ends it."""
    while True:
        with path.open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                who = file.read().strip() or "unknown"
                raise BlockingIOError(
                    f"{folder} is the folder of a run that is under way, process {who}: wait for it, or choose another"
                ) from None
            except OSError:
                pass  # a place that knows no locks
            if not is_at(file.fileno(), path):
                continue  # who had it has taken it away meanwhile
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            yield
            return


def is_at(opened: int, path: Path) -> bool:
    """Whether an open file is the one of that name."""
    try:
        return os.path.samestat(os.fstat(opened), path.stat())
    except FileNotFoundError:
        return False


MORE = ("epochs",)
"""Settings that may be larger when a finished run goes on."""
NUMBERS = ("losses", "epoch_losses", "validations")
"""What a run has come to, step by step and epoch by epoch."""
STATES = ("best", "recent")
"""What it keeps beside the model's state now."""


@dataclass
class RunState:
    """How far a run has come."""

    epoch: int = 0
    batches: int = 0  # done in this epoch
    steps: int = 0  # of the optimizer, in all
    losses: list[float] = field(default_factory=list)  # of this epoch's steps
    epoch_losses: list[float] = field(default_factory=list)
    validations: list[float] = field(default_factory=list)
    best_epoch: int = 0
    best: dict[str, Tensor] | None = None
    recent: list[dict[str, Tensor]] = field(default_factory=list)  # the states after the last epochs, to be averaged
    finished: bool = False

    def saved(self) -> dict[str, Any]:
        """All but the states, as JSON can hold it: numbers that are not finite are words."""
        numbers = {name: list(map(repr, getattr(self, name))) for name in NUMBERS}
        return {name: value for name, value in vars(self).items() if name not in STATES} | numbers

    @classmethod
    def restored(cls, saved: dict[str, Any]) -> "RunState":
        """What `saved` was taken of."""
        numbers = {name: list(map(float, saved[name])) for name in NUMBERS}
        at = cls(**{**saved, **numbers})
        whole = (at.epoch, at.batches, at.steps, at.best_epoch)
        if not all(isinstance(number, int) and number >= 0 for number in whole) or at.best_epoch > at.epoch:
            raise ValueError(f"its epoch, batches, steps and best epoch are {whole}")
        return at


def write_checkpoint(
    checkpoint: Checkpoint, at: RunState, model: nn.Module, optimizer: Optimizer, schedule: LRScheduler | None
) -> None:
    """Write a run down."""
    state = optimizer.state_dict()
    arrays = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    arrays |= {f"best.{name}": tensor for name, tensor in (at.best or {}).items()}
    arrays |= {f"recent.{i}.{name}": tensor for i, one in enumerate(at.recent) for name, tensor in one.items()}
    numbers: dict[str, Any] = {}
    for number, values in state["state"].items():
        for name, value in values.items():
            where = arrays if isinstance(value, Tensor) else numbers
            where[f"optimizer.{number}.{name}"] = value
    arrays["random"] = torch.get_rng_state()
    config = {
        "checkpoint": at.saved(),
        "about": settings(checkpoint),
        "optimizer": {"groups": plain(state["param_groups"]), "numbers": numbers},
        "schedule": None if schedule is None else plain(schedule.state_dict()),
    }
    saving.write(checkpoint.folder, config, {name: saving.array_of(tensor) for name, tensor in arrays.items()})


def read_checkpoint(
    checkpoint: Checkpoint, model: nn.Module, optimizer: Optimizer, schedule: LRScheduler | None
) -> RunState | None:
    """The run in the folder, with everything set to where it was; None if there is none, or it is to be begun anew."""
    folder = Path(checkpoint.folder)
    if not (folder / saving.CONFIG).exists():
        saving.check_place(folder)
        return None
    config, arrays = saving.read(folder)
    if "checkpoint" not in config:
        raise ValueError(f"{folder} holds a model, not a run that could go on: choose another folder for checkpoints")
    try:
        at = RunState.restored(config["checkpoint"])
        before = dict(config["about"])
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise ValueError(f"{folder} holds a run that is broken, or of another version of regard: {error}") from None
    if not checkpoint.resume:
        if not at.finished:
            raise FileExistsError(
                f"{folder} holds a run that stopped after {at.steps} steps: go on with it by resume=True, or --resume"
                " on the command line, or remove the folder to begin anew"
            )
        return None
    check_about(folder, before, settings(checkpoint), MORE if at.finished else ())
    tensors = {name: torch.as_tensor(array) for name, array in arrays.items()}
    try:
        model.load_state_dict(under("model.", tensors))
        optimizer.load_state_dict(optimizer_state(config["optimizer"], under("optimizer.", tensors)))
        if schedule is not None:
            schedule.load_state_dict(like(config["schedule"], schedule.state_dict()))
        torch.set_rng_state(tensors["random"])
    except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{folder} holds a run of another model or optimizer: {error}") from None
    at.best = under("best.", tensors) or None
    while state := under(f"recent.{len(at.recent)}.", tensors):
        at.recent.append(state)
    return at


def settings(checkpoint: Checkpoint) -> dict[str, Any]:
    """What must be the same, as JSON gives it back."""
    about = {name: saving.jsonable(value) for name, value in checkpoint.about.items()}
    whole: dict[str, Any] = json.loads(json.dumps(about))
    return whole


def check_about(folder: Path, before: dict[str, Any], now: dict[str, Any], more: tuple[str, ...]) -> None:
    """A run goes on with the settings it was begun with; of some it may be asked for more."""
    for name in sorted({*before, *now}):
        old: Any = before.get(name)
        new: Any = now.get(name)
        if old == new or (name in more and is_number(old) and is_number(new) and new > old):
            continue
        raise ValueError(
            f"{folder} holds a run with {name}={old!r}, now it is {new!r}:"
            " go on with the same settings, or choose another folder"
        )


def optimizer_state(config: dict[str, Any], tensors: dict[str, Tensor]) -> dict[str, Any]:
    """An optimizer's state as it gives it, from what was written."""
    state: dict[int, dict[str, Any]] = {}
    for place, value in {**tensors, **under("optimizer.", config["numbers"])}.items():
        number, name = place.split(".", 1)
        state.setdefault(int(number), {})[name] = value
    return {"state": state, "param_groups": config["groups"]}


def under(start: str, named: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept under a name, without it."""
    return {name.removeprefix(start): value for name, value in named.items() if name.startswith(start)}


def like(saved: Any, fresh: Any) -> Any:
    """What JSON gave back of a state, with keys that are numbers, and tuples, where a fresh one has them.

    >>> from collections import Counter
    >>> like({"milestones": {"5": 1}, "rates": [0.1]}, {"milestones": Counter([5]), "rates": (0.2,)})
    {'milestones': Counter({5: 1}), 'rates': (0.1,)}
    """
    if isinstance(saved, dict) and isinstance(fresh, dict):
        key = int if fresh and all(type(name) is int for name in fresh) else str
        found = {key(name): like(value, fresh.get(key(name))) for name, value in saved.items()}
        return Counter(found) if isinstance(fresh, Counter) else found
    if isinstance(saved, list) and isinstance(fresh, list | tuple):
        return type(fresh)(like(one, dict(enumerate(fresh)).get(place)) for place, one in enumerate(saved))
    return saved


def plain(value: Any) -> Any:
    """What JSON can hold of a state: numbers and lists; a schedule's own functions are its maker's."""
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items() if not callable(one)}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value if not callable(one)]
    return value.item() if isinstance(value, Tensor) else value
