"""Messages between the processes of a group, by torch.distributed: numbers that all get, and tensors under way."""

from collections.abc import Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterator


class Pending(NamedTuple):
    """Messages under way. What is sent must not change, nor what is received be used, before `wait`."""

    works: "list[dist.Work]"
    sent: list[Tensor]  # kept until they have arrived
    received: list[Tensor]

    def wait(self) -> list[Tensor]:
        """The tensors that were received."""
        with others_alive():
            for work in self.works:
                work.wait()
        return self.received


class Processes:
    """The processes of a group: their number, `size`, and the index of this one, `rank`."""

    def __init__(self, group: "dist.ProcessGroup") -> None:
        self.group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        if self.rank < 0:
            raise ValueError("this process is not in the group: only its members may call this")

    def __deepcopy__(self, memo: object) -> "Processes":
        return self  # a copy of a layer is in the same group

    def share(self, numbers: Sequence[int], device: torch.device) -> list[list[int]]:
        """The numbers of each process, equally many."""
        own = torch.tensor(numbers, device=device)
        received = [torch.empty_like(own) for _ in range(self.size)]
        with others_alive():
            dist.all_gather(received, own, group=self.group)
        return [some.tolist() for some in received]

    def post(self, sends: Sequence[tuple[int, Tensor]], receives: Sequence[tuple[int, Tensor]]) -> Pending:
        """Begin to send tensors, and to receive others in the memory of those given, each with its process."""
        sent = [(process, x.contiguous()) for process, x in sends if x.numel()]
        operations = [self._operation(dist.isend, *message) for message in sent]
        operations += [self._operation(dist.irecv, *message) for message in receives if message[1].numel()]
        with others_alive():
            works = dist.batch_isend_irecv(operations) if operations else []
        return Pending(works, [x for _, x in sent], [x for _, x in receives])

    def _operation(self, kind: object, process: int, x: Tensor) -> "dist.P2POp":
        return dist.P2POp(kind, x, dist.get_global_rank(self.group, process), self.group)  # type: ignore[arg-type]


def processes_of(group: "dist.ProcessGroup | None") -> Processes | None:
    """The processes of a group, by default of all that torch.distributed has; None if this one is alone."""
    if not (dist.is_available() and dist.is_initialized()):
        return None
    processes = Processes(dist.group.WORLD if group is None else group)  # type: ignore[arg-type]
    return processes if processes.size > 1 else None


@contextmanager
def others_alive() -> "Iterator[None]":
    """Raise with advice if a message fails, because a process has died or does not answer."""
    try:
        yield
    except RuntimeError as error:
        raise RuntimeError(
            "another process of the group died, or did not answer within the group's timeout (that of"
            f" torch.distributed.init_process_group or new_group); its own error is the reason: {error}"
        ) from error
