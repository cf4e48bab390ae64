"""How many small steps run soonest: on one thread, and with numbers that are next to 0 taken for 0."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Steps of a few milliseconds, on one thread: the same bits on every machine.

    More threads wait for one another at each operation. Where another process has a core, that was measured
    to take 25 times as long.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def subnormals_as_zero() -> Iterator[None]:
    """Takes weights below 1e-38 for 0. Most keys of a narrow kernel have one, and the CPU is 5 times as slow there.

    It holds for the thread that asks for it.
    """
    before = float(torch.tensor(1e-39) * 1.0) == 0
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)
