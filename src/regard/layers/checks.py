"""What the layers ask of their settings and inputs; an error says what must hold and what was got."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn
from torch.nn.modules import module

from regard.checks import is_number

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
EVERYWHERE = [getattr(module, "_global" + name) for name in HOOKS]


def share(name: str, number: float) -> float:
    """A share, once it is one."""
    if not is_number(number) or not 0 <= number <= 1:
        raise ValueError(f"{name} must be a number between 0 and 1, got {number!r}")
    return float(number)


def hooks_of(layers: Iterable[nn.Module]) -> list[Any]:
    """Where hooks of these layers, or of all layers, are kept: none of them is called where all are empty."""
    return [getattr(layer, name) for layer in layers for name in HOOKS] + EVERYWHERE


def bare(layer: nn.Module) -> bool:
    """Whether a layer is torch's own linear map with nothing put on it, so that its weights may be used without a call.

    An adapter in its place, a norm of its weights, or a hook would else be passed over.
    """
    return type(layer) is nn.Linear and not any(hooks_of([layer])) and "forward" not in vars(layer)


def check_rows(name: str, x: Tensor, size: int, rank: int | None = None) -> None:
    """A layer is given `[..., length, size]` of the size it was made for; one with heads, three dimensions."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a torch tensor, got {type(x).__name__}")
    shape = x.shape
    if len(shape) < 2 or shape[-1] != size or (rank is not None and len(shape) != rank):
        leading = "batch" if rank == 3 else "..."
        raise ValueError(f"{name} must be [{leading}, length, {size}], got {list(shape)}")
