"""The one training loop: every model that learns by gradients learns here.

    for each epoch:                    batches(epoch) says what is seen, and in which order
        for each batch:                θ ← optimizer(θ, ∇ loss(batch)); the schedule moves on
        validate():                    lower is better; the best state is kept, and given back at the end

The loop knows nothing of what it trains. A model, its data and its loss come in as callables, so that a
kernel's metric and a translator are trained by the same lines. What is random is drawn by them: the same
callables give the same result.
"""

import copy
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from regard.progress import ProgressBar
from regard.training.checkpoint import Checkpoint, Progressed, alone, found, keep
from regard.training.distributed import Team, rows
from regard.training.settings import check_parts, check_settings
from regard.training.tensorboard import scalars

Batch = TypeVar("Batch")


class History(NamedTuple):
    """What a training went through, epoch by epoch. Epochs count from 0, as `batches` is asked for them.

    >>> import torch
    >>> model, x = torch.nn.Linear(1, 1), torch.ones(1)
    >>> descent = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> history = train(model, lambda epoch: [x], lambda x: model(x).square().sum(), optimizer=descent, epochs=3)
    >>> len(history.loss), history.loss[0] > history.loss[2], history.best_epoch
    (3, True, 2)
    """

    loss: tuple[float, ...]  # mean over the epoch's steps
    validation: tuple[float, ...]  # empty where there was no `validate`
    best_epoch: int  # whose state the model now has: the last of the lowest validation, or else the last
    averaged: int = 0  # of how many last epochs it has the mean of their states instead; 0: it does not
    best: float | None = None  # the validation of the state the model now has


def train(
    model: nn.Module,
    batches: Callable[[int], Iterable[Batch]],
    loss: Callable[[Batch], Tensor],
    *,
    optimizer: torch.optim.Optimizer,
    schedule: LRScheduler | None = None,
    epochs: int,
    validate: Callable[[], float] | None = None,
    patience: int | None = None,
    average: int = 1,
    clip: float | None = None,
    accumulate: int = 1,
    count: Callable[[Batch], int] = rows,
    unit: str | None = None,
    checkpoint: Checkpoint | None = None,
    board: str | Path | None = None,
    team: Team | None = None,
    describe: str = "training",
    progress: bool = True,
) -> History:
    """Trains the model in place, and says how it went.

    batches     what epoch 0, 1, … sees; what has a length moves the progress bar within the epoch. The same epoch
                must be given the same batches, or a run that goes on would not be the one that was begun
    loss        of one batch, a number to make small: the mean over what `count` counts
    schedule    is stepped after every step of the optimizer
    validate    is called after every epoch, without gradients and in `eval` mode; lower is better, and the
                model ends with the state of the best epoch, of equal ones the last
    patience    stops after so many epochs without a better validation
    average     the mean of the states of so many last epochs is validated too, at the end, and taken where it is better
    clip        the largest norm that the gradient, of all that the optimizer changes, may have
    accumulate  batches to a step of the optimizer, for batches that do not fit into memory at once
    count       how much a batch is worth beside others in a step: its rows, or its tokens
    unit        what is counted, to show how many of them are seen in a second
    checkpoint  where the run is kept, and whether it goes on; one that is finished, and not by `patience`, goes on if
                more epochs are asked for
    board       a folder for TensorBoard
    team        the processes that train together; `Team.found()` are those that `torchrun` started
    progress    a bar on stderr, where that is a terminal and it takes longer than a second

    >>> import torch
    >>> line = torch.nn.Linear(1, 1)
    >>> x = torch.linspace(-1, 1, 9).unsqueeze(-1)
    >>> loss = lambda batch: (line(batch) - 3 * batch).square().mean()
    >>> optimizer = torch.optim.Adam(line.parameters(), lr=0.1)
    >>> history = train(line, lambda epoch: [x], loss, optimizer=optimizer, epochs=200)
    >>> round(line.weight.item(), 2)
    3.0
    """
    check_settings(epochs, validate, patience, clip, accumulate, average)
    check_parts(model, schedule, checkpoint)
    team = team or Team()
    shown = ProgressBar(describe, epochs, shown=progress and team.leads)
    note_down = scalars(board if team.leads else None)
    with alone(checkpoint if team.leads else None), mode_kept(model), shown as bar, note_down as note:
        at = (found(checkpoint, model, optimizer, schedule) if checkpoint else None) or Progressed()
        at.finished = is_over(at, epochs, patience)
        team.same(model)
        run = Run(model, loss, optimizer, schedule, clip, accumulate, count, unit, checkpoint, team, bar, note, at)
        while not is_over(at, epochs, patience):
            run.epoch(batches(at.epoch))
            if validate is None:
                at.best_epoch = at.epoch
            else:
                at.validations.append(validated(model, validate, at.epoch, team))
                # Of equals the last is kept, which has learned most.
                if at.best is None or at.validations[-1] <= at.validations[at.best_epoch]:
                    at.best_epoch, at.best = at.epoch, copied_state(model)
                bar.note(best=at.validations[at.best_epoch])
                note("validation", at.validations[-1], at.steps)
            at.recent = [*at.recent, copied_state(model)][-average:] if average > 1 else []
            at.epoch += 1
            at.finished = is_over(at, epochs, patience)
            run.keep()
        averaged = len(at.recent) if len(at.recent) > 1 else 0
        best = at.validations[at.best_epoch] if validate is not None and at.best is not None else None
        if averaged and validate is not None and best is not None:
            model.load_state_dict(mean_state(at.recent))
            value = validated(model, validate, at.epoch, team)
            averaged, best = (averaged, value) if value < best else (0, best)
    if at.best is not None and not averaged:
        model.load_state_dict(at.best)
    return History(tuple(at.epoch_losses), tuple(at.validations), at.best_epoch, averaged, best)


def is_over(at: Progressed, epochs: int, patience: int | None) -> bool:
    """Whether a run has all its epochs, or too many without a better validation. One that is asked for more goes on."""
    if at.epoch >= epochs or patience is None or not at.validations:
        return at.epoch >= epochs
    return len(at.validations) - 1 - at.validations.index(min(at.validations)) >= patience


@dataclass
class Run(Generic[Batch]):
    """One training under way: the arguments of `train`, where it shows and notes, and how far it has come."""

    model: nn.Module
    loss: Callable[[Batch], Tensor]
    optimizer: torch.optim.Optimizer
    schedule: LRScheduler | None
    clip: float | None
    accumulate: int
    count: Callable[[Batch], int]
    unit: str | None
    checkpoint: Checkpoint | None
    team: Team
    bar: ProgressBar
    note: Callable[[str, float, int], None]
    at: Progressed
    seed: int = field(default_factory=torch.initial_seed)  # a run that goes on has that of before

    @property
    def parameters(self) -> list[nn.Parameter]:
        """All that the optimizer changes."""
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]

    def epoch(self, batches: Iterable[Batch]) -> None:
        """One pass over the epoch's batches, from the first that is not yet done."""
        self.model.train()
        at, length = self.at, len(batches) if isinstance(batches, Sized) else None
        left = itertools.islice(batches, at.batches, None)
        began, seen = time.perf_counter(), 0
        while group := list(itertools.islice(left, self.accumulate)):
            value, counted = self.step(group)
            at.losses.append(value)
            at.batches, at.steps, seen = at.batches + len(group), at.steps + 1, seen + counted
            per_second = {f"{self.unit}/s": seen / (time.perf_counter() - began)} if self.unit else {}
            self.bar.note(loss=value, done=at.epoch + (at.batches / length if length else 0), **per_second)
            self.note("loss", value, at.steps)
            self.note("rate", self.optimizer.param_groups[0]["lr"], at.steps)
            for name, number in per_second.items():
                self.note(name, number, at.steps)
            if self.checkpoint and at.steps % self.checkpoint.every == 0:
                self.keep()
        if not at.losses:
            raise ValueError(f"batches must give at least one batch an epoch, got none in epoch {at.epoch}")
        self.team.same(self.model)  # what is no parameter, as a running mean, each has from its own rows
        at.epoch_losses.append(sum(at.losses) / len(at.losses))
        at.batches, at.losses = 0, []
        self.bar.note(done=at.epoch + 1)

    def step(self, group: list[Batch]) -> tuple[float, int]:
        """One step down the gradient of some batches; the loss it started from, and how much was counted."""
        self.optimizer.zero_grad()
        if len(group) == self.team.size == 1:
            value, counted = self.backward(self.loss(group[0])), self.count(group[0])
        else:
            with self.team.apart(self.seed, self.at.steps):
                value, counted = self.together(group)
        if self.clip is not None or self.checkpoint is not None:
            limit = math.inf if self.clip is None else self.clip
            self.check(float(nn.utils.clip_grad_norm_(self.parameters, limit)), "gradient")
        self.optimizer.step()
        if self.schedule is not None:
            self.schedule.step()
        return value, counted

    def together(self, group: list[Batch]) -> tuple[float, int]:
        """The gradient of the mean over several batches, each shared by all processes."""
        total, counted = 0.0, 0
        for batch in map(self.team.share, group):
            here = self.count(batch) if rows(batch) else 0
            if here:
                total += self.backward(self.loss(batch) * here)
                counted += here
        both = self.team.add(torch.tensor([total, counted], dtype=torch.float64)).tolist()
        self.team.add_gradients(self.parameters)
        torch._foreach_div_([p.grad for p in self.parameters if p.grad is not None], both[1])
        return both[0] / both[1], int(both[1])

    def backward(self, loss: Tensor) -> float:
        """The gradients of a loss, which must be a number."""
        value = float(loss.detach())
        self.check(value, "loss")
        loss.backward()  # type: ignore[no-untyped-call]
        return value

    def check(self, value: float, what: str) -> None:
        """What is no number would make all weights none, and be written down."""
        if not math.isfinite(value):
            rate = self.optimizer.param_groups[0]["lr"]
            # Who does not clip may have no such setting.
            clip = "" if self.clip is None else f" clip={self.clip / 10:g},"
            raise FloatingPointError(
                f"the {what} became {value} in epoch {self.at.epoch}, batch {self.at.batches}: try a smaller learning"
                f" rate than {rate:g},{clip} or look for NaN and huge numbers in the data"
            )

    def keep(self) -> None:
        """Write the run down."""
        if self.checkpoint and self.team.leads:
            keep(self.checkpoint, self.at, self.model, self.optimizer, self.schedule)


def validated(model: nn.Module, validate: Callable[[], float], epoch: int, team: Team) -> float:
    """The validation, which may be infinite but must be a number: NaN is better and worse than nothing."""
    model.eval()
    with torch.no_grad():
        value = team.from_leader(float(validate()) if team.leads else 0.0)
    if math.isnan(value):
        raise FloatingPointError(
            f"validation gave NaN after epoch {epoch}: try a smaller learning rate, or look for NaN in what it reads"
        )
    return value


def copied_state(model: nn.Module) -> dict[str, Tensor]:
    """The state as it is now: `state_dict` alone would go on changing with the model.

    >>> import torch
    >>> model = torch.nn.Linear(2, 1)
    >>> before = copied_state(model)
    >>> _ = torch.nn.init.zeros_(model.weight)
    >>> bool((before["weight"] == model.weight).all())
    False
    """
    return {
        name: value.detach().clone() if isinstance(value, Tensor) else copy.deepcopy(value)
        for name, value in model.state_dict().items()
    }


def mean_state(states: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of some states; of what is counted in whole numbers, or is none, the last."""

    def mean(parts: list[Tensor]) -> Tensor:
        is_mean = isinstance(parts[0], Tensor) and parts[0].is_floating_point()
        return torch.stack(parts).mean(dim=0) if is_mean else parts[-1]

    return {name: mean([state[name] for state in states]) for name in states[-1]}


@contextmanager
def mode_kept(model: nn.Module) -> Iterator[None]:
    """Leaves each part of a model in `train` or `eval` mode as it was."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
