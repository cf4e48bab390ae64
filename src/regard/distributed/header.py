"""What each process tells the others before attention begins: the shapes of its part, and what must be alike."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from regard.compiled import dropout_hash
from regard.distributed.processes import Processes
from regard.engines.job import Job

_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_DIMENSIONS = 8
_UNIT = 2**53
"""Dropout is sent as a whole number of this part of 1."""


@dataclass(frozen=True)
class Header:
    """The part of one process."""

    query: torch.Size
    key: torch.Size
    value: torch.Size
    dtype: torch.dtype
    dropout: float
    gradients: bool  # whether autograd records
    seed: int

    @classmethod
    def of(cls, job: Job) -> "Header":
        if job.query.dtype not in _DTYPES:
            raise TypeError(f"query must have a dtype of {', '.join(map(str, _DTYPES))}, got {job.query.dtype}")
        if len(job.shape) > _DIMENSIONS:
            raise ValueError(f"tensors must have at most {_DIMENSIONS} dimensions, got scores of {list(job.shape)}")
        seed = dropout_hash.draw_seed() if job.dropout else 0
        return cls(
            job.query.shape, job.key.shape, job.value.shape, job.query.dtype, job.dropout, torch.is_grad_enabled(), seed
        )

    def numbers(self) -> list[int]:
        """All of it as whole numbers, always equally many."""
        numbers = [1, _DTYPES.index(self.dtype), round(self.dropout * _UNIT), self.gradients, self.seed]
        for shape in (self.query, self.key, self.value):
            numbers += [len(shape), *shape, *[0] * (_DIMENSIONS - len(shape))]
        return numbers

    @classmethod
    def from_numbers(cls, numbers: list[int]) -> "Header":
        _, dtype, dropout, gradients, seed, *rest = numbers
        rows = [rest[first : first + 1 + _DIMENSIONS] for first in range(0, len(rest), 1 + _DIMENSIONS)]
        query, key, value = (torch.Size(row[1 : 1 + row[0]]) for row in rows)
        return cls(query, key, value, _DTYPES[dtype], dropout / _UNIT, bool(gradients), seed)

    def differences(self, other: "Header") -> Iterator[str]:
        """What must be alike, and is not."""
        for name in ("query", "key", "value"):
            ours, theirs = getattr(self, name), getattr(other, name)
            if (*ours[:-2], ours[-1]) != (*theirs[:-2], theirs[-1]):
                yield f"the shape of {name} beside its length, {list(ours)} and {list(theirs)}"
        for name, text in (
            ("dtype", "the dtype"),
            ("dropout", "dropout"),
            ("gradients", "whether gradients are enabled"),
        ):
            if getattr(self, name) != getattr(other, name):
                yield f"{text}, {getattr(self, name)} and {getattr(other, name)}"


def meet(processes: Processes, job: Job) -> list[Header]:
    """The headers of all processes, after a check that they fit together."""
    rows = processes.share(Header.of(job).numbers(), job.query.device)
    failed = [rank for rank, row in enumerate(rows) if not row[0]]
    if failed:
        raise RuntimeError(f"process {failed[0]} of the group raised an error before attention began: see its message")
    headers = [Header.from_numbers(row) for row in rows]
    for rank, header in enumerate(headers):
        for difference in headers[0].differences(header):
            raise ValueError(f"all processes of a group must agree in {difference} in processes 0 and {rank}")
    return headers


def give_up(processes: Processes, device: torch.device) -> None:
    """Tell the others that this process has no part to give, so that they raise too instead of waiting."""
    processes.share([0] * (5 + 3 * (1 + _DIMENSIONS)), device)
