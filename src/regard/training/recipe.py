"""How a model is trained and what is reported meanwhile: `Recipe`, `Monitor`, and learning rate schedules.

A schedule is a factor on the optimizer's own rate, step by step: up at first, then down.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, ReduceLROnPlateau

from regard.training.distributed import rows


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
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ModuleNotFoundError("writing a TensorBoard folder needs: pip install tensorboard") from None
        with SummaryWriter(str(self.tensorboard)) as writer:
            yield writer.add_scalar


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
