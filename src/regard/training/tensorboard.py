"""Numbers of a training for TensorBoard, where somebody wants them."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any


def scalars(folder: str | Path | None) -> AbstractContextManager[Callable[[str, float, int], Any]]:
    """A function that notes a number, by name and step, for TensorBoard; without a folder it notes nothing."""
    return nullcontext(lambda name, value, step: None) if folder is None else to_board(Path(folder))


@contextmanager
def to_board(folder: Path) -> Iterator[Callable[[str, float, int], Any]]:
    """The same where there is a folder."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ModuleNotFoundError("a TensorBoard folder was given: pip install tensorboard") from None
    with SummaryWriter(str(folder)) as writer:
        yield writer.add_scalar
