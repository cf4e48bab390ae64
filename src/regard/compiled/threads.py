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
    threads = min(allowed, len(work))
    inference = torch.is_inference_mode_enabled()
    results: dict[int, Result] = {}
    failures: list[BaseException] = []
    items = iter(list(enumerate(work)))

    def run() -> None:
        # A new thread has gradients on, whatever the mode of the caller.
        with torch.inference_mode(inference), torch.no_grad(), torch.autocast("cpu", enabled=False):
            for number, item in items:
                if failures:
                    return
                try:
                    results[number] = task(item)
                except BaseException as failure:
                    failures.append(failure)

    if threads < 2:
        run()
    else:
        try:
            _run_on_threads(run, threads, failures)
        finally:
            torch.set_num_threads(allowed)
    if failures:
        raise failures[0]
    return [results[number] for number in range(len(work))]


def _run_on_threads(run: Callable[[], None], count: int, failures: list[BaseException]) -> None:
    """Run it on several threads at once, each with torch's own parallelism off, and wait for all of them."""

    def run_alone() -> None:
        torch.set_num_threads(1)
        run()

    threads = [threading.Thread(target=run_alone, daemon=True) for _ in range(count)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except BaseException as stop:  # Ctrl-C: no thread takes another item, and items under way are finished
        failures.append(stop)
        for thread in threads:
            if thread.is_alive():
                thread.join()
        raise
