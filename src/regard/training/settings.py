"""What a training is refused for before its first batch, not after an hour."""

from collections.abc import Callable

from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from regard.training.checkpoint import Checkpoint


def check_settings(
    epochs: int,
    validate: Callable[[], float] | None,
    patience: int | None,
    clip: float | None,
    accumulate: int,
    average: int,
) -> None:
    """Settings that make no sense are refused before the first batch, not after an hour."""
    if epochs < 1:
        raise ValueError(f"epochs must be at least 1, got {epochs}")
    if patience is not None and validate is None:
        raise ValueError(f"patience needs validate, got patience={patience} and validate=None")
    if patience is not None and patience < 1:
        raise ValueError(f"patience must be at least 1, got {patience}")
    if clip is not None and not clip > 0:  # NaN too is not
        raise ValueError(f"clip must be positive, got {clip}")
    if accumulate < 1:
        raise ValueError(f"accumulate must be at least 1, got {accumulate}")
    if average < 1 or (average > 1 and validate is None):
        raise ValueError(f"average must be at least 1, and 1 without validate, got {average}")


def check_parts(model: nn.Module, schedule: LRScheduler | None, checkpoint: Checkpoint | None) -> None:
    """What cannot be done with this schedule, or kept of this model, is said before the first batch too."""
    if isinstance(schedule, ReduceLROnPlateau):
        raise TypeError(
            "a schedule is stepped after every step of the optimizer, and told nothing: call the step of"
            " ReduceLROnPlateau at the end of validate, or take another"
        )
    if checkpoint is not None:
        others = [name for name, value in model.state_dict().items() if not isinstance(value, Tensor)]
        if others:
            raise TypeError(f"a checkpoint holds tensors, nothing is ever unpickled: the model also has {others}")
