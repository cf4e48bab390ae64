"""The one training loop, for every model that learns by gradients.

    for each epoch:                    batches(epoch) gives the epoch's batches in order
        for each batch:                θ ← optimizer(θ, ∇ loss(batch)); schedule.step()
        validate():                    lower is better; the model ends with the state of the best epoch

The loop knows nothing about the model. Model, data and loss come in as callables, so that a kernel's metric and a
translator are trained by the same lines. All random numbers are drawn by these callables: the same callables give the
same result. A schedule is a factor on the optimizer's own rate, step by step: up at first, then down.
"""

import copy
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, ReduceLROnPlateau

from regard.checks import optional_import
from regard.progress import ProgressBar
from regard.torch_modes import restored_modes
from regard.training.checkpoint import Checkpoint, RunState, read_checkpoint, run_lock, write_checkpoint
from regard.training.distributed import ProcessGroup, rows

Batch = TypeVar("Batch")


@dataclass(frozen=True)
class Recipe:
    """The settings of a training, checked before the first batch.

    optimizer   holds the parameters that are trained
    epochs      passes over the batches
    schedule    stepped after every step of the optimizer
    clip        maximum norm of the gradient of all parameters of the optimizer; None does not clip
    accumulate  batches per step of the optimizer, for batches that do not fit into memory at once
    count       the weight of a batch among those of a step: the number of its rows (the default), or of its tokens
    average     the mean of the states after this many last epochs is validated at the end, and used if it is better
    patience    stop after this many epochs without a better validation; None does not stop early

    >>> import torch
    >>> Recipe(torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=0.1), epochs=0)
    Traceback (most recent call last):
    ValueError: epochs must be at least 1, got 0
    """

    optimizer: Optimizer
    epochs: int
    schedule: LRScheduler | None = None
    clip: float | None = None
    accumulate: int = 1
    count: Callable[[Any], int] = rows
    average: int = 1
    patience: int | None = None

    def __post_init__(self) -> None:
        for name in ("epochs", "accumulate", "average", "patience"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if self.clip is not None and not self.clip > 0:  # also raises on NaN
            raise ValueError(f"clip must be positive, got {self.clip}")
        if isinstance(self.schedule, ReduceLROnPlateau):
            raise TypeError(
                "schedule is stepped after every step of the optimizer and gets no metric: call the step of"
                " ReduceLROnPlateau at the end of validate, or use another schedule"
            )


@dataclass(frozen=True)
class Monitor:
    """What is reported while a model trains.

    description  shown beside the progress bar
    progress     show a bar on stderr, if that is a terminal and training takes longer than a second
    unit         name of what `count` counts, such as "tokens", to show the number per second; None shows none
    tensorboard  a folder for TensorBoard; None writes nothing

    >>> Monitor("learning to write", unit="tokens")
    Monitor(description='learning to write', progress=True, unit='tokens', tensorboard=None)
    """

    description: str = "training"
    progress: bool = True
    unit: str | None = None
    tensorboard: str | Path | None = None

    @contextmanager
    def scalar_log(self) -> Iterator[Callable[[str, float, int], None]]:
        """A function that logs a number, by name and step, for TensorBoard; without a folder it does nothing."""
        if self.tensorboard is None:
            yield lambda name, value, step: None
            return
        with optional_import("a TensorBoard folder needs the package tensorboard"):
            from torch.utils.tensorboard import SummaryWriter
        with SummaryWriter(str(self.tensorboard)) as writer:
            yield writer.add_scalar


class History(NamedTuple):
    """What happened in a training, epoch by epoch. Epochs count from 0, as in `batches(epoch)`.

    >>> import torch
    >>> model, x = torch.nn.Linear(1, 1), torch.ones(1)
    >>> recipe = Recipe(torch.optim.SGD(model.parameters(), lr=0.1), epochs=3)
    >>> history = train(model, lambda epoch: [x], lambda x: model(x).square().sum(), recipe)
    >>> len(history.loss), history.loss[0] > history.loss[2], history.best_epoch
    (3, True, 2)
    """

    loss: tuple[float, ...]  # mean over the epoch's steps
    validation: tuple[float, ...]  # empty without `validate`
    best_epoch: int  # the last epoch with the lowest validation, whose state the model has; else the last epoch
    averaged: int = 0  # the model has the mean of the states of this many last epochs instead; 0: it does not
    best: float | None = None  # the validation of the model's state


def train(
    model: nn.Module,
    batches: Callable[[int], Iterable[Batch]],
    loss: Callable[[Batch], Tensor],
    recipe: Recipe,
    *,
    validate: Callable[[], float] | None = None,
    monitor: Monitor | None = None,
    checkpoint: Checkpoint | None = None,
    group: ProcessGroup | None = None,
) -> History:
    """Train a model in place, and return the history of the training.

    batches     the batches of epoch 0, 1, …; the progress bar moves within an epoch if they have a length. An epoch
                must always give the same batches, so that a resumed run continues the one that was stopped
    loss        of one batch, to be minimised: the mean over what `recipe.count` counts
    validate    called after every epoch, without gradients and in `eval` mode; lower is better. The model ends with
                the state of the best epoch, the last of equal ones
    checkpoint  where the run is saved, and whether it is resumed; a finished run continues with a larger `epochs`
    group       the processes that train together; `ProcessGroup.from_environment()` has those that `torchrun` started

    >>> import torch
    >>> line = torch.nn.Linear(1, 1)
    >>> x = torch.linspace(-1, 1, 9).unsqueeze(-1)
    >>> recipe = Recipe(torch.optim.Adam(line.parameters(), lr=0.1), epochs=200)
    >>> history = train(line, lambda epoch: [x], lambda x: (line(x) - 3 * x).square().mean(), recipe)
    >>> round(line.weight.item(), 2)
    3.0
    """
    _check_arguments(model, recipe, validate, checkpoint)
    monitor, group = monitor or Monitor(), group or ProcessGroup()
    if not group.is_main:
        monitor = Monitor(progress=False)
    bar = ProgressBar(monitor.description, recipe.epochs, shown=monitor.progress)
    lock = run_lock(checkpoint if group.is_main else None)
    with lock, restored_modes(model), bar, monitor.scalar_log() as log:
        state = checkpoint and read_checkpoint(checkpoint, model, recipe.optimizer, recipe.schedule)
        run = Run(model, loss, recipe, validate, monitor, checkpoint, group, bar, log, state or RunState())
        group.copy_from_main(model)
        run.state.finished = run.is_over()
        while not run.is_over():
            run.run_epoch(batches(run.state.epoch))
        return run.finish()


def _check_arguments(
    model: nn.Module, recipe: Recipe, validate: Callable[[], float] | None, checkpoint: Checkpoint | None
) -> None:
    """Raise before the first batch on what does not fit together."""
    if validate is None and recipe.patience is not None:
        raise ValueError(f"patience needs validate, got patience={recipe.patience} and validate=None")
    if validate is None and recipe.average > 1:
        raise ValueError(f"average needs validate, got average={recipe.average} and validate=None")
    if checkpoint is not None:
        others = [name for name, value in model.state_dict().items() if not isinstance(value, Tensor)]
        if others:
            raise TypeError(f"a checkpoint can only hold tensors, but the state of the model also has {others}")


@dataclass
class Run(Generic[Batch]):
    """A training in progress: the arguments of `train`, where its numbers are shown, and its state."""

    model: nn.Module
    loss: Callable[[Batch], Tensor]
    recipe: Recipe
    validate: Callable[[], float] | None
    monitor: Monitor
    checkpoint: Checkpoint | None
    group: ProcessGroup
    bar: ProgressBar
    log: Callable[[str, float, int], None]
    state: RunState
    seed: int = field(default_factory=torch.initial_seed)  # of torch's generator, which a resumed run has restored

    @property
    def parameters(self) -> list[nn.Parameter]:
        """All parameters of the optimizer."""
        return [parameter for group in self.recipe.optimizer.param_groups for parameter in group["params"]]

    def is_over(self) -> bool:
        """Whether all epochs are done, or the last `patience` epochs had no better validation."""
        epoch, validations, patience = self.state.epoch, self.state.validations, self.recipe.patience
        if epoch >= self.recipe.epochs or patience is None or not validations:
            return epoch >= self.recipe.epochs
        return len(validations) - 1 - validations.index(min(validations)) >= patience

    def run_epoch(self, batches: Iterable[Batch]) -> None:
        """One pass over the batches, the validation after it, and a checkpoint."""
        self.run_steps(batches)
        state, average = self.state, self.recipe.average
        if self.validate is None:
            state.best_epoch = state.epoch
        else:
            state.validations.append(self.validation(self.validate))
            # Of equal epochs the last is best: it has trained longest.
            if state.best is None or state.validations[-1] <= state.validations[state.best_epoch]:
                state.best_epoch, state.best = state.epoch, copied_state(self.model)
            self.bar.update(best=state.validations[state.best_epoch])
            self.log("validation", state.validations[-1], state.steps)
        state.recent = [*state.recent, copied_state(self.model)][-average:] if average > 1 else []
        state.epoch += 1
        state.finished = self.is_over()
        self.save()

    def run_steps(self, batches: Iterable[Batch]) -> None:
        """The steps of an epoch, from the first batch that is not yet done."""
        self.model.train()
        state, length = self.state, len(batches) if isinstance(batches, Sized) else None
        remaining = itertools.islice(batches, state.batches, None)
        start, total = time.perf_counter(), 0
        while some := list(itertools.islice(remaining, self.recipe.accumulate)):
            value, count = self.run_step(some)
            state.losses.append(value)
            state.batches, state.steps, total = state.batches + len(some), state.steps + 1, total + count
            unit = self.monitor.unit
            per_second = {f"{unit}/s": total / (time.perf_counter() - start)} if unit else {}
            self.bar.update(loss=value, done=state.epoch + (state.batches / length if length else 0), **per_second)
            rate = self.recipe.optimizer.param_groups[0]["lr"]
            for name, number in {"loss": value, "rate": rate, **per_second}.items():
                self.log(name, number, state.steps)
            if self.checkpoint and state.steps % self.checkpoint.every == 0:
                self.save()
        if not state.losses:
            raise ValueError(f"batches must give at least one batch per epoch, got none in epoch {state.epoch}")
        # Each process has its own buffers, such as running means, from its own rows.
        self.group.copy_from_main(self.model)
        state.epoch_losses.append(sum(state.losses) / len(state.losses))
        state.batches, state.losses = 0, []
        self.bar.update(done=state.epoch + 1)

    def run_step(self, batches: list[Batch]) -> tuple[float, int]:
        """One step of the optimizer on some batches; returns the loss before it and their total count."""
        optimizer, clip = self.recipe.optimizer, self.recipe.clip
        optimizer.zero_grad()
        if len(batches) == self.group.size == 1:
            value, count = self.backward(self.loss(batches[0])), self.recipe.count(batches[0])
        else:
            with self.group.own_random_numbers(self.seed, self.state.steps):
                value, count = self.backward_of_shards(batches)
        if clip is not None or self.checkpoint is not None:
            norm = nn.utils.clip_grad_norm_(self.parameters, math.inf if clip is None else clip)
            self.check_finite(float(norm), "gradient")
        optimizer.step()
        if self.recipe.schedule is not None:
            self.recipe.schedule.step()
        return value, count

    def backward_of_shards(self, batches: list[Batch]) -> tuple[float, int]:
        """The gradient of the mean over several batches, each divided among all processes."""
        total, count = 0.0, 0
        for batch in map(self.group.shard, batches):
            weight = self.recipe.count(batch) if rows(batch) else 0
            if weight:
                total += self.backward(self.loss(batch) * weight)
                count += weight
        sums = self.group.sum(torch.tensor([total, count], dtype=torch.float64)).tolist()
        self.group.sum_gradients(self.parameters)
        torch._foreach_div_([p.grad for p in self.parameters if p.grad is not None], sums[1])
        return sums[0] / sums[1], int(sums[1])

    def backward(self, loss: Tensor) -> float:
        """Add the gradients of a loss, and return its value."""
        value = float(loss.detach())
        self.check_finite(value, "loss")
        loss.backward()  # type: ignore[no-untyped-call]
        return value

    def check_finite(self, value: float, name: str) -> None:
        """Raise on NaN or inf before it reaches the weights or a checkpoint."""
        if not math.isfinite(value):
            rate, clip = self.recipe.optimizer.param_groups[0]["lr"], self.recipe.clip
            # Without clipping, the caller may have no such setting.
            smaller_clip = "" if clip is None else f" clip={clip / 10:g},"
            raise FloatingPointError(
                f"the {name} became {value} in epoch {self.state.epoch}, batch {self.state.batches}: try a smaller"
                f" learning rate than {rate:g},{smaller_clip} or look for NaN and huge numbers in the data"
            )

    def validation(self, validate: Callable[[], float]) -> float:
        """The value of `validate`, computed by the main process. It may be infinite, but not NaN."""
        self.model.eval()
        with torch.no_grad():
            value = self.group.from_main(float(validate()) if self.group.is_main else 0.0)
        if math.isnan(value):
            raise FloatingPointError(
                f"validation gave NaN after epoch {self.state.epoch}: try a smaller learning rate, or look for NaN in"
                " the validation data"
            )
        return value

    def save(self) -> None:
        """Write a checkpoint, if there is a folder for it."""
        if self.checkpoint and self.group.is_main:
            write_checkpoint(self.checkpoint, self.state, self.model, self.recipe.optimizer, self.recipe.schedule)

    def finish(self) -> History:
        """Set the model to its best state: that of the best epoch, or the mean of the last ones."""
        state, averaged = self.state, len(self.state.recent) if len(self.state.recent) > 1 else 0
        best = state.validations[state.best_epoch] if self.validate is not None and state.best is not None else None
        if averaged and self.validate is not None and best is not None:
            self.model.load_state_dict(_mean_state(state.recent))
            value = self.validation(self.validate)
            averaged, best = (averaged, value) if value < best else (0, best)
        if state.best is not None and not averaged:
            self.model.load_state_dict(state.best)
        return History(tuple(state.epoch_losses), tuple(state.validations), state.best_epoch, averaged, best)


def copied_state(model: nn.Module) -> dict[str, Tensor]:
    """A copy of a model's state: the tensors of `state_dict` itself change with the model.

    >>> import torch
    >>> model = torch.nn.Linear(2, 1)
    >>> before = copied_state(model)
    >>> _ = torch.nn.init.zeros_(model.weight)
    >>> bool((before["weight"] == model.weight).all())
    False
    """
    return copy.deepcopy(model.state_dict())


def _mean_state(states: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of several states; the last value of integers and of what is not a tensor."""

    def mean(values: list[Tensor]) -> Tensor:
        is_float = isinstance(values[0], Tensor) and values[0].is_floating_point()
        return torch.stack(values).mean(dim=0) if is_float else values[-1]

    return {name: mean([state[name] for state in states]) for name in states[-1]}


def warm_cosine(optimizer: Optimizer, steps: int, *, warm: int = 0, least: float = 0.1) -> LambdaLR:
    """Linear warm-up for `warm` steps, then half a cosine down to `least` of the rate at `steps`, constant after that.

    >>> import torch
    >>> optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    >>> schedule = warm_cosine(optimizer, 10, warm=2, least=0.0)
    >>> [round(schedule.lr_lambdas[0](step), 2) for step in (0, 1, 2, 6, 10, 99)]
    [0.5, 1.0, 1.0, 0.5, 0.0, 0.0]
    """
    _check_steps(steps, warm)

    def factor(step: int) -> float:
        if step < warm:
            return (step + 1) / warm
        fraction = min(1.0, (step - warm) / max(1, steps - warm))
        return least + (1 - least) * 0.5 * (1 + math.cos(math.pi * fraction))

    return LambdaLR(optimizer, factor)


def warm_root(optimizer: Optimizer, *, warm: int) -> LambdaLR:
    """Linear warm-up for `warm` steps, then 1/√step (Vaswani et al. 2017, 5.3), with a maximum of 1.

    >>> import torch
    >>> optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    >>> schedule = warm_root(optimizer, warm=4)
    >>> [round(schedule.lr_lambdas[0](step), 2) for step in (0, 3, 15)]
    [0.25, 1.0, 0.5]
    """
    _check_steps(warm, 0)
    return LambdaLR(optimizer, lambda step: min((step + 1) / warm, math.sqrt(warm / (step + 1))))


def _check_steps(steps: int, warm: int) -> None:
    """Raise unless a schedule has at least one step and no longer a warm-up than that."""
    if steps < 1 or not 0 <= warm <= steps:
        raise ValueError(f"a schedule needs steps ≥ 1 and 0 ≤ warm ≤ steps, got steps={steps} and warm={warm}")
