"""What the layers ask of their settings and inputs; an error says what must hold and what was got."""

from torch import Tensor

from regard.checks import is_number


def share(name: str, number: float) -> float:
    """A share, once it is one."""
    if not is_number(number) or not 0 <= number <= 1:
        raise ValueError(f"{name} must be a number between 0 and 1, got {number!r}")
    return float(number)


def check_rows(name: str, x: Tensor, size: int, rank: int | None = None) -> None:
    """A layer is given `[..., length, size]` of the size it was made for; one with heads, three dimensions."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a torch tensor, got {type(x).__name__}")
    shape = x.shape
    if len(shape) < 2 or shape[-1] != size or (rank is not None and len(shape) != rank):
        leading = "batch" if rank == 3 else "..."
        raise ValueError(f"{name} must be [{leading}, length, {size}], got {list(shape)}")
