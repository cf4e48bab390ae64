"""Work spread over threads, each with one core's cache and scratch memory of its own."""

import threading
from collections.abc import Callable, Sequence
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

    Each thread keeps torch's own parallelism off, so that a block stays in its core's cache. torch can only
    be told so for all threads that do their first work meanwhile: one that starts elsewhere during this call
    keeps to one core too. Threads are made for the call: a pool that outlives it would not survive a fork,
    as a data loader's.
    """
    allowed = torch.get_num_threads()
    threads = min(allowed, len(work))
    inference = torch.is_inference_mode_enabled()
    results: dict[int, Result] = {}
    failures: list[BaseException] = []
    items = iter(list(enumerate(work)))

    def run() -> None:
        # A thread starts with gradients on, whatever the caller's mode is.
        with torch.inference_mode(inference), torch.no_grad(), torch.autocast("cpu", enabled=False):
            for number, item in items:
                if failures:
                    return
                try:
                    results[number] = task(item)
                except BaseException as failure:
                    failures.append(failure)

    def run_alone() -> None:
        torch.set_num_threads(1)
        run()

    if threads < 2:
        run()
    else:
        started = [threading.Thread(target=run_alone, daemon=True) for _ in range(threads)]
        try:
            for thread in started:
                thread.start()
            for thread in started:
                thread.join()
        except BaseException as stop:  # Ctrl-C: nobody takes another item, and what is under way comes to its end
            failures.append(stop)
            for thread in started:
                if thread.is_alive():
                    thread.join()
            raise
        finally:
            torch.set_num_threads(allowed)
    if failures:
        raise failures[0]
    return [results[number] for number in range(len(work))]
