"""Work spread over threads, each with its own core's cache and scratch memory."""

import math
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
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


_POOLS: dict[tuple[int, int], ThreadPoolExecutor] = {}
"""Threads by process and number: those of a parent do not exist in a process that was forked from it."""
_POOLS_LOCK = threading.Lock()


def _pool(count: int) -> ThreadPoolExecutor:
    """This many threads, in which torch's own parallelism is off."""
    key = os.getpid(), count
    with _POOLS_LOCK:
        if key not in _POOLS:
            pool = ThreadPoolExecutor(count, "regard", initializer=_switch_parallelism_off)
            every = threading.Barrier(count)
            try:
                list(pool.map(lambda _: every.wait(), range(count)))  # all have started
            finally:
                # What one thread sets is also what torch gives to threads that start later.
                torch.set_num_threads(count)
            _POOLS[key] = pool
        return _POOLS[key]


def _switch_parallelism_off() -> None:
    torch.get_num_threads()  # the first call in a thread sets its number to that of the others
    torch.set_num_threads(1)


def spread(task: Callable[[Item], Result], work: Sequence[Item]) -> list[Result]:
    """The task on each item, on as many threads as torch uses; results in the order of the items.

    In these threads torch's own parallelism is off, so that a block stays in its core's cache. They start with the
    first call in a process and stay: torch would give that setting to any thread that starts while it is being set.
    """
    allowed = torch.get_num_threads()
    inference = torch.is_inference_mode_enabled()
    waiting = list(enumerate(work))
    items = iter(waiting)
    results: dict[int, Result] = {}

    def run() -> None:
        # Another thread has gradients on, whatever the mode of the caller.
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
    pool = _pool(allowed)
    runs: list[Future[None]] = []
    try:
        runs.extend(pool.submit(run) for _ in range(count))
        while wait(runs, timeout=0.1).not_done:
            pass  # a signal that arrives just before a wait without end would be noticed only after it
    finally:  # after Ctrl-C, too: no thread takes another item, and items under way are finished
        waiting.clear()
        wait(runs)
    for one in runs:
        one.result()  # raises what a task raised
    return [results[number] for number in range(len(work))]
