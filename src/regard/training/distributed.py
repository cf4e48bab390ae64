"""Who trains together: this process alone, or all that `torchrun` or `accelerate launch` started.

Every process has the whole model, takes its share of the rows of each batch, and the gradients are added up: many
processes train the same model as one. The processes find each other by `accelerate`.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

Batch = TypeVar("Batch")


@dataclass(frozen=True)
class Team:
    """One of `size` processes, counted from 0.

    >>> import torch
    >>> [Team(rank, size=2).share(torch.arange(5)).tolist() for rank in range(2)], Team.found().leads
    ([[0, 2, 4], [1, 3]], True)
    """

    rank: int = 0
    size: int = 1

    @classmethod
    def found(cls) -> "Team":
        """The processes that were started together."""
        if int(os.environ.get("WORLD_SIZE", "1")) == 1:
            return cls()
        from accelerate import PartialState

        state = PartialState(cpu=not torch.cuda.is_available())
        return cls(state.process_index, state.num_processes)

    @property
    def leads(self) -> bool:
        """Whether this is the one that writes and shows."""
        return self.rank == 0

    def share(self, batch: Batch) -> Batch:
        """This process's rows of a batch: of every tensor in it, along the first dimension."""
        return batch if self.size == 1 else cut(batch, self.rank, self.size)

    def add(self, tensor: Tensor) -> Tensor:
        """The sum over all processes."""
        if self.size == 1:
            return tensor
        from accelerate.utils import reduce

        summed: Tensor = reduce(tensor, "sum")
        return summed

    def from_leader(self, number: float) -> float:
        """A number that only the leader has worked out."""
        return float(self.add(torch.tensor(number if self.leads else 0.0, dtype=torch.float64)))

    def same(self, model: nn.Module) -> None:
        """Give every process the leader's weights."""
        if self.size > 1:
            from accelerate.utils import broadcast

            for tensor in filter(torch.is_tensor, model.state_dict().values()):
                tensor.copy_(broadcast(tensor.contiguous()))

    @contextmanager
    def apart(self, *entropy: int) -> Iterator[None]:
        """Random numbers of one's own in here, or dropout would hide the same in all shares; outside they are alike.

        They follow from `entropy` alone: who begins anew from there draws the same.
        """
        if self.size == 1:
            yield
            return
        seed = np.random.SeedSequence([self.rank, *entropy]).generate_state(1, np.uint64)[0]
        with torch.random.fork_rng([torch.cuda.current_device()] if torch.cuda.is_available() else []):
            torch.manual_seed(int(seed >> 1))  # torch takes 63 bits
            yield

    def add_gradients(self, parameters: list[nn.Parameter]) -> None:
        """Add up what every process found, in one message. Who found nothing for a parameter counts as zero."""
        if self.size == 1:
            return
        found = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        summed = self.add(torch.cat([gradient.reshape(-1) for gradient in found]))
        for parameter, part in zip(parameters, torch.split(summed, [p.numel() for p in parameters]), strict=True):
            parameter.grad = part.view_as(parameter)


def cut(batch: Any, rank: int, size: int) -> Any:
    """Every `size`-th row, from `rank` on, of all tensors in a nest of tuples, lists, dictionaries and dataclasses."""
    if isinstance(batch, Tensor):
        return batch[rank::size]
    if isinstance(batch, dict):
        return {name: cut(part, rank, size) for name, part in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(cut(part, rank, size) for part in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(cut(part, rank, size) for part in batch)
    if is_dataclass(batch) and not isinstance(batch, type):
        return replace(batch, **{f.name: cut(getattr(batch, f.name), rank, size) for f in fields(batch)})
    raise TypeError(f"several processes can share batches made of tensors, got {type(batch).__name__}")


def rows(batch: Any) -> int:
    """How many rows the first tensor of a batch has; 1 for what has no rows."""
    first = next(tensors_in(batch), None)
    return 1 if first is None or not first.ndim else len(first)


def tensors_in(batch: Any) -> Iterator[Any]:
    """The tensors and arrays in a nest of tuples, lists, mappings and dataclasses, one after the other."""
    if isinstance(batch, Tensor | np.ndarray):
        yield batch
    elif isinstance(batch, Mapping):
        yield from tensors_in(list(batch.values()))
    elif is_dataclass(batch) and not isinstance(batch, type):
        yield from tensors_in([getattr(batch, f.name) for f in fields(batch)])
    elif isinstance(batch, list | tuple):
        for part in batch:
            yield from tensors_in(part)
