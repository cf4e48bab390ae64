"""Work spread over threads, each with its own core's cache and scratch memory."""

import math
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

Item = TypeVar("Item")
Result = TypeVar("Result")


class Scratch(threading.local):
    """Scratch memory that each thread reuses: touching fresh pages would cost more than the work done in them."""

    def __init__(self) -> None:
        self.tensors: dict[int, Tensor] = {}

    def block(self, number: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Uninitialised memory; blocks of different numbers do not overlap. A scratch has one dtype."""
        size = math.prod(shape)
        if number not in self.tensors or self.tensors[number].numel() < size:
            self.tensors[number] = torch.empty(size, dtype=dtype)
        return self.tensors[number][:size].view(shape)


def spread(task: Callable[[Item], Result], work: Sequence[Item]) -> list[Result]:
    """The task on each item, on as many threads as torch uses; results in the order of the items.

    Each thread switches torch's own parallelism off, so that a block stays in its core's cache. torch applies that to
    every thread that does its first work meanwhile: one that starts elsewhere during this call stays on one core too.
    Threads last for the call only: a pool would not survive a fork, as by a data loader.
    """
    allowed = torch.get_num_threads()
    inference = torch.is_inference_mode_enabled()
    waiting = list(enumerate(work))
    items = iter(waiting)
    results: dict[int, Result] = {}

    def run() -> None:
        # A new thread has gradients on, whatever the mode of the caller.
        with torch.inference_mode(inference), torch.no_grad(), torch.autocast("cpu", enabled=False):
            try:
                for number, item in items:
                    results[number] = task(item)
            finally:
                waiting.clear()  # on an error, no thread takes another item

    count = min(allowed, len(work))
    if count < 2:
        run()
        return [results[number] for number in range(len(work))]
    failures: list[BaseException] = []

    def run_alone() -> None:
        torch.set_num_threads(1)
        try:
            run()
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=run_alone, daemon=True) for _ in range(count)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:  # after Ctrl-C, too: no thread takes another item, and items under way are finished
        waiting.clear()
        for thread in filter(threading.Thread.is_alive, threads):
            thread.join()
        torch.set_num_threads(allowed)
    if failures:
        raise failures[0]
    return [results[number] for number in range(len(work))]
