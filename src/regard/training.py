"""The one training loop: every model that learns by gradients learns here.

    for each epoch:                    batches(epoch) says what is seen, and in which order
        for each batch:                θ ← optimizer(θ, ∇ loss(batch)); the schedule moves on
        validate():                    lower is better; the best state is kept, and given back at the end

The loop knows nothing of what it trains. A model, its data and its loss come in as callables, so that a
kernel's metric and a translator are trained by the same lines. What is random is drawn by them: the same
callables give the same result.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from regard.progress import ProgressBar

Batch = TypeVar("Batch")


class History(NamedTuple):
    """What a training went through, epoch by epoch. Epochs count from 0, as `batches` is asked for them."""

    loss: tuple[float, ...]  # mean over the epoch's batches
    validation: tuple[float, ...]  # empty where there was no `validate`
    best_epoch: int  # whose state the model now has: the lowest validation, or else the last


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
    clip: float | None = None,
    describe: str = "training",
    progress: bool = True,
) -> History:
    """Trains the model in place, and says how it went.

    batches    what epoch 0, 1, … sees; what has a length moves the progress bar within the epoch
    loss       of one batch, a number to make small
    schedule   is stepped after every batch
    validate   is called after every epoch, without gradients and in `eval` mode; lower is better, and the
               model ends with the state of the best epoch
    patience   stops after so many epochs without a better validation
    clip       the largest norm that the gradient, of all that the optimizer changes, may have
    progress   a bar on stderr, where that is a terminal and it takes longer than a second

    >>> import torch
    >>> line = torch.nn.Linear(1, 1)
    >>> x = torch.linspace(-1, 1, 9).unsqueeze(-1)
    >>> loss = lambda batch: (line(batch) - 3 * batch).square().mean()
    >>> optimizer = torch.optim.Adam(line.parameters(), lr=0.1)
    >>> history = train(line, lambda epoch: [x], loss, optimizer=optimizer, epochs=200)
    >>> round(line.weight.item(), 2)
    3.0
    """
    check_settings(epochs, validate, patience, clip)
    losses: list[float] = []
    validations: list[float] = []
    best_epoch, best_state = 0, None
    with mode_kept(model), ProgressBar(describe, epochs, shown=progress) as bar:
        for epoch in range(epochs):
            losses.append(run_epoch(model, batches(epoch), loss, optimizer, schedule, clip, epoch, bar))
            if validate is None:
                best_epoch = epoch
                continue
            validations.append(validated(model, validate, epoch))
            if best_state is None or validations[-1] < validations[best_epoch]:
                best_epoch, best_state = epoch, copied_state(model)
            bar.note(best=validations[best_epoch])
            if patience is not None and epoch - best_epoch >= patience:
                break
    if best_state is not None:
        model.load_state_dict(best_state)
    return History(tuple(losses), tuple(validations), best_epoch)


def run_epoch(
    model: nn.Module,
    batches: Iterable[Batch],
    loss: Callable[[Batch], Tensor],
    optimizer: torch.optim.Optimizer,
    schedule: LRScheduler | None,
    clip: float | None,
    epoch: int,
    bar: ProgressBar,
) -> float:
    """One pass over the epoch's batches; the mean of their losses."""
    model.train()
    length = len(batches) if isinstance(batches, Sized) else None
    total, count = 0.0, 0
    for batch in batches:
        value = update(loss(batch), optimizer, clip, epoch, count)
        if schedule is not None:
            schedule.step()
        total, count = total + value, count + 1
        bar.note(loss=value, done=epoch + (count / length if length else 0))
    if not count:
        raise ValueError(f"batches must give at least one batch an epoch, got none in epoch {epoch}")
    bar.note(done=epoch + 1)
    return total / count


def update(loss: Tensor, optimizer: torch.optim.Optimizer, clip: float | None, epoch: int, batch: int) -> float:
    """One step down the gradient; the loss it started from."""
    value = float(loss.detach())
    if not math.isfinite(value):
        rate = optimizer.param_groups[0]["lr"]
        raise FloatingPointError(
            f"the loss became {value} in epoch {epoch}, batch {batch}: try a smaller learning rate than {rate:g},"
            f" clip={1.0 if clip is None else clip / 10:g}, or look for NaN in the data"
        )
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    if clip is not None:
        nn.utils.clip_grad_norm_([parameter for group in optimizer.param_groups for parameter in group["params"]], clip)
    optimizer.step()
    return value


def validated(model: nn.Module, validate: Callable[[], float], epoch: int) -> float:
    """The validation, which may be infinite but must be a number: NaN is better and worse than nothing."""
    model.eval()
    with torch.no_grad():
        value = float(validate())
    if math.isnan(value):
        raise FloatingPointError(
            f"validation gave NaN after epoch {epoch}: try a smaller learning rate, or look for NaN in what it reads"
        )
    return value


def copied_state(model: nn.Module) -> dict[str, Tensor]:
    """The state as it is now: `state_dict` alone would go on changing with the model."""
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def check_settings(epochs: int, validate: Callable[[], float] | None, patience: int | None, clip: float | None) -> None:
    """Settings that make no sense are refused before the first batch, not after an hour."""
    if epochs < 1:
        raise ValueError(f"epochs must be at least 1, got {epochs}")
    if patience is not None and validate is None:
        raise ValueError(f"patience needs validate, got patience={patience} and validate=None")
    if patience is not None and patience < 1:
        raise ValueError(f"patience must be at least 1, got {patience}")
    if clip is not None and not clip > 0:  # NaN too is not
        raise ValueError(f"clip must be positive, got {clip}")


@contextmanager
def mode_kept(model: nn.Module) -> Iterator[None]:
    """Leaves each part of a model in `train` or `eval` mode as it was."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
