"""The public functions: checks, what the processes must know of each other, and what travels between them."""

import itertools
import math
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from regard.attend import attend as attend_alone
from regard.attend import make_job
from regard.attend import plan as plan_alone
from regard.distributed.header import give_up, meet
from regard.distributed.processes import Processes, processes_of
from regard.distributed.ring import Call, attend_ring
from regard.engines import Stream
from regard.engines.job import Job, Plan
from regard.engines.stream import make_blocks, row_reach
from regard.masks import Mask
from regard.masks.evaluation import check_polarity
from regard.scores import Score, scaled_dot, with_scale
from regard.weighing import Sinks, Weighing, softmax

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def attend(  # noqa: PLR0913  # as `regard.attend`
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    group: "ProcessGroup | None" = None,
    score: Score = scaled_dot,
    mask: Mask | None = None,
    weigh: Weighing = softmax,
    dropout: float = 0.0,
    scale: float | None = None,
) -> Tensor:
    """Attention of this process's queries to the keys of all processes of a group: `[..., q, v]`.

    query, key and value are this process's parts of the sequence, in the order of the ranks; they may be of unequal
    length, also empty. All other dimensions are the same in all processes.

    group     a torch.distributed group; default: all processes. With one process, or none but this, it is `attend`
    mask      as in `regard.attend`, for all queries and keys: indices, and the shape of a tensor, count from the first
              query and key of the first process. Masks with a reach save messages
    weigh     `softmax`, or `regard.weighing.sinks`
    score, dropout, scale   as in `regard.attend`. The weights that are dropped are those that one process would drop
              with the seed of the first

    Gradients of query, key and value are those of the summed losses of all processes. The gradient of a parameter of
    the score, or of a bias, is this process's contribution, as for all other parameters of a model: sum it over the
    processes, as DistributedDataParallel does.

    >>> import torch, regard
    >>> query, key, value = torch.randn(2, 8, 5, 16), torch.randn(2, 8, 7, 16), torch.randn(2, 8, 7, 4)
    >>> regard.distributed.attend(query, key, value, mask=regard.masks.causal).shape  # a process alone
    torch.Size([2, 8, 5, 4])
    """
    processes = processes_of(group)
    if processes is None:
        return attend_alone(query, key, value, score=score, mask=mask, weigh=weigh, dropout=dropout, scale=scale)
    job, whole, call = _prepare(processes, (query, key, value), score, mask, weigh, dropout, scale)
    _, bias_count, (_, _, _, *rest) = make_blocks(whole, 0, (1, 1))
    if torch.is_grad_enabled():
        learns = any(x.requires_grad for x in (query, key, value, *rest))
        if any(flag for (flag,) in processes.share([learns], query.device)):
            # A process without gradients of its own sends its part to others in their backward.
            rest = [*rest, torch.zeros((), requires_grad=True)]
    mean, log_weight = attend_ring(call, [job.query, job.key, job.value, *rest], bias_count)
    if isinstance(weigh, Sinks):  # the sink is one more part, with a value of 0
        mean = mean * weigh.fraction(log_weight).unsqueeze(-1).to(mean.dtype)
    return mean


def plan(  # noqa: PLR0913  # as `attend`
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    group: "ProcessGroup | None" = None,
    score: Score = scaled_dot,
    mask: Mask | None = None,
    weigh: Weighing = softmax,
    dropout: float = 0.0,
    scale: float | None = None,
) -> Plan:
    """What `regard.distributed.attend` would run: `ring`, in which keys travel, or `gather`, in which queries do.

    All processes must call it. A process alone gets the plan of `regard.attend`.

    >>> import torch, regard
    >>> x = torch.randn(1, 8, 512, 64)
    >>> regard.distributed.plan(x, x, x).engine
    'flash'
    """
    processes = processes_of(group)
    if processes is None:
        return plan_alone(query, key, value, score=score, mask=mask, weigh=weigh, dropout=dropout, scale=scale)
    _, whole, call = _prepare(processes, (query, key, value), score, mask, weigh, dropout, scale)
    keys, queries = _traffic(call, whole)
    hops = processes.size * (processes.size - 1)
    why = (
        f"forward would send {keys / 2**20:.3g} MiB of keys and values, or {queries / 2**20:.3g} MiB of queries and"
        f" results; {len(_meetings(call))} of {hops} hops are needed, at which some query sees some key"
    )
    return Plan("ring" if call.keys_travel else "gather", why, Stream().algorithm(whole))


def start_of(length: int, group: "ProcessGroup | None", device: torch.device) -> int:
    """The index of this process's first row among those of all processes of a group."""
    processes = processes_of(group)
    if processes is None:
        return 0
    return sum(number for (number,) in processes.share([length], device)[: processes.rank])


def _prepare(
    processes: Processes,
    tensors: tuple[Tensor, Tensor, Tensor],
    score: Score,
    mask: Mask | None,
    weigh: Weighing,
    dropout: float,
    scale: float | None,
) -> tuple[Job, Job, Call]:
    """This process's part as a job without a mask; all parts as one job, whose tensors hold no numbers; the call."""
    try:
        job = make_job(*tensors, with_scale(score, scale), None, weigh, dropout)
        if weigh is not softmax and not isinstance(weigh, Sinks):
            name = getattr(weigh, "__name__", weigh)
            raise ValueError(f"attention over several processes weighs by softmax or sinks only, got {name}")
    except Exception:
        give_up(processes, tensors[0].device if isinstance(tensors[0], Tensor) else torch.device("cpu"))
        raise
    headers = meet(processes, job)
    queries, keys = _spans(header.query[-2] for header in headers), _spans(header.key[-2] for header in headers)
    query, key, value = (
        x.detach().new_zeros(()).expand(*x.shape[:-2], spans[-1].stop, x.shape[-1])
        for x, spans in zip((job.query, job.key, job.value), (queries, keys, keys), strict=True)
    )
    whole = make_job(query, key, value, job.score, mask, softmax, dropout)
    check_polarity(whole.mask, whole.queries)
    call = Call(
        processes=processes,
        queries=queries,
        keys=keys,
        keys_travel=True,
        score=job.score,
        mask=whole.mask,
        dropout=job.dropout,
        seed=headers[0].seed,
        leading=whole.leading,
        reach=row_reach(whole),
    )
    by_keys, by_queries = _traffic(call, whole)
    return job, whole, replace(call, keys_travel=by_keys <= by_queries)


def _spans(lengths: Iterable[int]) -> list[slice]:
    """The parts of a sequence, one after the other."""
    return [slice(*bounds) for bounds in itertools.pairwise(itertools.accumulate(lengths, initial=0))]


def _meetings(call: Call) -> list[tuple[slice, slice]]:
    """Queries of one process and keys of another that some of them see."""
    pairs = itertools.product(enumerate(call.queries), enumerate(call.keys))
    return [(rows, columns) for (a, rows), (b, columns) in pairs if a != b and call.sees(rows, columns)]


def _traffic(call: Call, whole: Job) -> tuple[int, int]:
    """Bytes between processes in forward if keys travel, and if queries do. Backward takes about twice as many."""
    size, width = whole.query.element_size(), whole.value.shape[-1]
    wide = max(size, 4)  # results are in float32 at least
    per_key = size * sum(math.prod(x.shape[:-2]) * x.shape[-1] for x in (whole.key, whole.value))
    per_query = size * math.prod(whole.query.shape[:-2]) * whole.query.shape[-1]
    per_query += wide * math.prod(whole.leading) * (width + 1)
    meetings = _meetings(call)
    return (
        per_key * sum(columns.stop - columns.start for _, columns in meetings),
        per_query * sum(rows.stop - rows.start for rows, _ in meetings),
    )
