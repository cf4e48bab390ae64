"""Several processes that train one model: those that `torchrun` started, or this process alone.

Every process has the whole model and takes its own rows of each batch; the gradients are summed. So several processes
train the same model as one. They communicate by torch.distributed.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed
from torch import Tensor, nn

Batch = TypeVar("Batch")


@dataclass(frozen=True)
class ProcessGroup:
    """The processes that train together: their number, `size`, and the index of this one, `rank`.

    >>> import torch
    >>> [ProcessGroup(rank, size=2).shard(torch.arange(5)).tolist() for rank in range(2)]
    [[0, 2, 4], [1, 3]]
    >>> ProcessGroup.from_environment().is_main
    True
    """

    rank: int = 0
    size: int = 1

    @classmethod
    def from_environment(cls) -> "ProcessGroup":
        """The processes that `torchrun` started; this one alone if it was not started so."""
        if int(os.environ.get("WORLD_SIZE", "1")) == 1:
            return cls()
        if not torch.distributed.is_initialized():
            if torch.cuda.is_available():
                torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
            torch.distributed.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
        return cls(torch.distributed.get_rank(), torch.distributed.get_world_size())

    @property
    def is_main(self) -> bool:
        """Whether this process is the one that validates, writes files and shows progress."""
        return self.rank == 0

    def shard(self, batch: Batch) -> Batch:
        """This process's rows of a batch: of every tensor in it, along the first dimension."""
        if self.size == 1:
            return batch
        from regard.decoding.step import select  # it loads the layers, which most trainings of others do not need

        count = rows(batch)
        return select(batch, torch.arange(self.rank, count, self.size), of=count)

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over all processes."""
        if self.size == 1:
            return tensor
        total = tensor.clone()
        torch.distributed.all_reduce(total)
        return total

    def from_main(self, number: float) -> float:
        """The main process's number, in every process."""
        return float(self.sum(torch.tensor(number if self.is_main else 0.0, dtype=torch.float64)))

    def copy_from_main(self, model: nn.Module) -> None:
        """Set the tensors of a model's state to the main process's."""
        if self.size > 1:
            for tensor in filter(torch.is_tensor, model.state_dict().values()):
                received = tensor.contiguous()
                torch.distributed.broadcast(received, src=0)
                tensor.copy_(received)

    @contextmanager
    def own_random_numbers(self, *entropy: int) -> Iterator[None]:
        """Random numbers that differ between processes; outside of this context they are the same in all.

        Otherwise dropout would use the same mask in all processes. The numbers depend on `entropy` alone, so that a
        resumed run draws the same.
        """
        if self.size == 1:
            yield
            return
        seed = np.random.SeedSequence([self.rank, *entropy]).generate_state(1, np.uint64)[0]
        with torch.random.fork_rng([torch.cuda.current_device()] if torch.cuda.is_available() else []):
            torch.manual_seed(int(seed >> 1))  # torch takes 63 bits
            yield

    def sum_gradients(self, parameters: list[nn.Parameter]) -> None:
        """Sum the gradients over all processes, in one message. A missing gradient counts as zero."""
        if self.size == 1:
            return
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        total = self.sum(torch.cat([gradient.reshape(-1) for gradient in gradients]))  # [numbers in all]
        for parameter, part in zip(parameters, torch.split(total, [p.numel() for p in parameters]), strict=True):
            parameter.grad = part.view_as(parameter)


def rows(batch: object) -> int:
    """The number of rows of the first tensor in a batch; 1 if it has none."""
    first = next(_tensors_in(batch), None)
    return 1 if first is None or not first.ndim else len(first)


def _tensors_in(batch: object) -> Iterator[Tensor | np.ndarray[Any, Any]]:
    """The tensors and arrays in nested tuples, lists, mappings and dataclasses, in order."""
    if isinstance(batch, Tensor | np.ndarray):
        yield batch
    elif isinstance(batch, Mapping):
        yield from _tensors_in(list(batch.values()))
    elif is_dataclass(batch) and not isinstance(batch, type):
        yield from _tensors_in([getattr(batch, f.name) for f in fields(batch)])
    elif isinstance(batch, list | tuple):
        for part in batch:
            yield from _tensors_in(part)
