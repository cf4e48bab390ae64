"""Work spread over threads, each with one core's cache and scratch memory of its own."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

Item = TypeVar("Item")
Result = TypeVar("Result")


class Room(threading.local):
    """Scratch memory that a thread uses again and again: fresh pages cost more than what is done in them."""

    def __init__(self) -> None:
        self.tensors: dict[int, Tensor] = {}
        self.blocks: dict[tuple[int, int, int], Tensor] = {}

    def block(self, which: int, rows: int, columns: int, like: Tensor) -> Tensor:
        """`[rows, columns]` of anything, in the place of that number."""
        if (which, rows, columns) not in self.blocks:
            size = rows * columns
            if which not in self.tensors or self.tensors[which].numel() < size:
                self.tensors[which] = like.new_empty(size)
            self.blocks[which, rows, columns] = self.tensors[which][:size].view(rows, columns)
        return self.blocks[which, rows, columns]


def spread(task: Callable[[Item], Result], work: Sequence[Item]) -> list[Result]:
    """The task on each item, over as many threads as torch has; results in the order of the items.

    Each thread keeps torch's own parallelism off, so that a block stays in its core's cache. Threads are
    made for the call: a pool that outlives it would not survive a fork, as a data loader's.
    """
    allowed = torch.get_num_threads()
    threads = min(allowed, len(work))
    if threads < 2:
        return [quiet(task, item) for item in work]
    # Set for the thread that asks; also for threads yet to start, so it is put back below.
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return list(pool.map(lambda item: quiet(task, item), work))
    finally:
        torch.set_num_threads(allowed)


def quiet(task: Callable[[Item], Result], item: Item) -> Result:
    """The task without gradients: a thread starts with them on."""
    with torch.no_grad():
        return task(item)
