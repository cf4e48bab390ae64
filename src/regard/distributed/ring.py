"""Attention to keys that lie in several processes, forward and backward.

Process r holds queries Q_r, keys K_r and values V_r. It needs attention to all keys, a fold of `merge`:

    Attended(Q_r) = merge over s of attend(Q_r, K_s, V_s)

At hop h each process sends its keys and values to the process h places after it, and gets those of the process h
places before it: a part is sent straight to where it is used, so a hop where no query sees a key needs no message.
They come in pieces of at most `ROWS` keys, the next one while attention to this one is computed, and meet as many
queries at a time. So a process holds its own part, and pieces of another.

Backward has the mean and log weight of each query over *all* keys. With them the weights of a part of the keys, and so
its gradients, need nothing of the other parts (Liu et al. 2023, Ring Attention): keys and values go round again, the
scores are computed again, and the gradients of visiting keys and values are sent back to their process, which adds
them up.

If queries are few and keys are many, the queries travel instead: they visit the keys, and `Attended` is sent back.
"""

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from regard.distributed.processes import Pending, Processes
from regard.engines.job import Job, spans
from regard.engines.stream import attend_seeded, autocast_of, hooks_off, state_of, with_state
from regard.masks import Mask, both, shifted
from regard.masks.evaluation import block_of, parts_of, tensors_of, touches
from regard.parts import Attended, merge
from regard.scores import Score
from regard.torch_modes import Context, once_differentiable
from regard.weighing import softmax

ROWS = 512
"""Keys, or queries, of one message."""


class Step(NamedTuple):
    """What this process sends to, and gets from, two others at the same time: parts of all keys, or of all queries."""

    to: int
    leaving: slice | None  # None if it is not needed there
    source: int
    arriving: slice | None


@dataclass(frozen=True)
class Call:
    """What all processes know of a call."""

    processes: Processes
    queries: list[slice]  # of each process, as an index into all queries
    keys: list[slice]
    keys_travel: bool  # or else queries
    score: Score
    mask: Mask | None  # of all queries and keys
    dropout: float
    seed: int
    leading: torch.Size  # of the scores
    reach: Tensor  # [2, all queries]  the first key in reach, and one past the last

    @property
    def rows(self) -> slice:
        """The queries of this process."""
        return self.queries[self.processes.rank]

    @property
    def columns(self) -> slice:
        """The keys of this process."""
        return self.keys[self.processes.rank]

    def sees(self, rows: slice, columns: slice) -> bool:
        """Whether some query may see some key."""
        first, stop = self.reach[:, rows]
        near = (first < columns.stop) & (stop > columns.start) & (first < stop)
        return columns.start < columns.stop and bool(near.any()) and touches(self.mask, rows, columns)

    def blocks(self, columns: slice) -> Iterator[tuple[slice, slice]]:
        """The queries of this process that see some of these keys, some at a time: among all, and among its own."""
        start = self.rows.start
        for rows in spans(self.rows.stop, 2 * ROWS, start):
            if self.sees(rows, columns):
                yield rows, slice(rows.start - start, rows.stop - start)

    def meets(self, process: int, part: slice) -> bool:
        """Whether a part that travels has something to do in a process."""
        if self.keys_travel:
            return self.sees(self.queries[process], part)
        return self.sees(part, self.keys[process])

    def pieces(self, process: int, count: int | None = None) -> Iterator[slice | None]:
        """What travels from a process, piece by piece; None beyond its end."""
        part = (self.keys if self.keys_travel else self.queries)[process]
        pieces = list(spans(part.stop, ROWS, part.start))
        return itertools.chain(pieces, itertools.repeat(None, (count or 0) - len(pieces)))

    def steps(self) -> list[Step]:
        """The messages in order. All processes have equally many steps, so that all post messages in one order."""
        rank, size = self.processes.rank, self.processes.size
        count = max(len(list(self.pieces(process))) for process in range(size))
        steps = []
        for hop in range(1, size):
            to, source = (rank + hop) % size, (rank - hop) % size
            for leaving, arriving in zip(self.pieces(rank, count), self.pieces(source, count), strict=True):
                steps.append(
                    Step(
                        to,
                        leaving if leaving and self.meets(to, leaving) else None,
                        source,
                        arriving if arriving and self.meets(rank, arriving) else None,
                    )
                )
        return steps

    def job(self, tensors: Sequence[Tensor], rows: slice, columns: slice, biases: Sequence[Tensor]) -> Job:
        """Attention of some queries to some keys; `biases` are the blocks of the bias tensors of the mask."""
        bias, parts = iter(biases), list[Mask]()
        for part in parts_of(self.mask):
            if not isinstance(part, Tensor):
                parts.append(shifted(part, rows.start, columns.start) or part)
            elif part.dtype == torch.bool:
                parts += self.cut([part], rows, columns)
            else:
                parts.append(next(bias))
        mask = functools.reduce(both, parts) if parts else None
        query, key, value = tensors
        return Job(query, key, value, self.score, mask, softmax, self.dropout, (rows.start, columns.start))

    def cut(self, tables: Sequence[Tensor], rows: slice, columns: slice) -> list[Tensor]:
        """The blocks of tensors that broadcast to the scores of all queries and keys."""
        return [block_of(table, rows, columns, len(self.leading) + 2, table.device) for table in tables]


Work = Callable[[slice, list[Tensor]], list[Tensor]]
"""What the visited process does with a part that travels: its index and tensors give the answer."""


def travel(
    call: Call,
    tensors: Sequence[Tensor],
    work: Work,
    answers: Sequence[Tensor],
    collect: Callable[[slice, list[Tensor]], None],
) -> None:
    """Take this process's tensors to all processes where they have something to do, and work on those that come here.

    tensors   [..., length, size] each, of this process; the others have alike ones of another length
    answers   the same for what `work` returns; empty if it returns nothing
    collect   takes an index into this process's part, and the answer for it
    """
    start = (call.columns if call.keys_travel else call.rows).start

    def local(part: slice) -> slice:
        return slice(part.start - start, part.stop - start)

    def pack(part: slice) -> list[Tensor]:
        return [x[..., local(part), :] for x in tensors]

    def request(step: Step) -> Pending:
        sends = pack(step.leaving) if step.leaving else []
        receives = _buffers(tensors, step.arriving) if step.arriving else []
        return call.processes.post([(step.to, x) for x in sends], [(step.source, x) for x in receives])

    def answer(step: Step, found: list[Tensor]) -> Pending:
        receives = _buffers(answers, step.leaving) if step.leaving else []
        return call.processes.post([(step.source, x) for x in found], [(step.to, x) for x in receives])

    steps = call.steps()
    ahead = request(steps[0]) if steps else None
    for part in call.pieces(call.processes.rank):
        if part and call.meets(call.processes.rank, part):
            collect(local(part), work(part, pack(part)))
    awaited: list[tuple[slice, Pending]] = []
    for step, following in itertools.zip_longest(steps, steps[1:]):
        assert ahead is not None
        arrived = ahead.wait()
        if following:
            ahead = request(following)
        sent = answer(step, work(step.arriving, arrived) if step.arriving else [])
        for part, pending in awaited:
            collect(part, pending.wait())
        awaited = [(local(step.leaving) if step.leaving else slice(0, 0), sent)]
    for part, pending in awaited:
        collect(part, pending.wait())


def _buffers(like: Sequence[Tensor], part: slice) -> list[Tensor]:
    """Memory for tensors of another length."""
    return [x.new_empty(*x.shape[:-2], part.stop - part.start, x.shape[-1]) for x in like]


def attend_ring(call: Call, tensors: Sequence[Tensor], bias_count: int) -> Attended:
    """Attention of this process's queries to the keys of all; the log weight is in float32 at least.

    tensors   query, key, value, the mask's bias tensors, `bias_count` of them, and the parameters of score and mask
    """
    return Attended(*_RingAttention.apply(call, bias_count, *tensors))  # type: ignore[no-untyped-call]


def _forward(call: Call, query: Tensor, key: Tensor, value: Tensor, biases: Sequence[Tensor]) -> Attended:
    """The fold of `merge`."""
    shape = *call.leading, query.shape[-2]
    wide = torch.promote_types(query.dtype, torch.float32)
    mean = query.new_zeros(*shape, value.shape[-1], dtype=wide)
    log_weight = query.new_full((*shape, 1), -math.inf, dtype=wide)

    def attend(tensors: Sequence[Tensor], rows: slice, columns: slice) -> list[Tensor]:
        part = attend_seeded(call.job(tensors, rows, columns, call.cut(biases, rows, columns)), call.seed)
        return [part.mean.to(wide), part.log_weight.to(wide).unsqueeze(-1)]

    def add(rows: slice, part: list[Tensor]) -> None:
        if part:
            before = Attended(mean[..., rows, :], log_weight[..., rows, 0])
            mean[..., rows, :], log_weight[..., rows, 0] = merge(before, Attended(part[0], part[1].squeeze(-1)))

    def visit_queries(columns: slice, visitors: list[Tensor]) -> list[Tensor]:
        for rows, own in call.blocks(columns):
            add(own, attend([query[..., own, :], *visitors], rows, columns))
        return []

    def visit_keys(rows: slice, visitors: list[Tensor]) -> list[Tensor]:
        return attend([*visitors, key, value], rows, call.columns)

    if call.keys_travel:
        travel(call, [key, value], visit_queries, [], add)
    else:
        travel(call, [query], visit_keys, [mean, log_weight], add)
    return Attended(mean.to(value.dtype), log_weight.squeeze(-1))


class _RingContext(Context):
    """What forward saves beside tensors."""

    call: Call
    bias_count: int
    state: dict[str, Tensor]
    autocast: Callable[[], contextlib.AbstractContextManager[object]]


class _RingAttention(torch.autograd.Function):
    """(mean, log_weight) from query, key, value, bias tensors and parameters."""

    @staticmethod
    def forward(ctx: _RingContext, call: Call, bias_count: int, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        query, key, value, *rest = tensors
        ctx.call, ctx.bias_count, ctx.state = call, bias_count, state_of(call.score)
        ctx.autocast = autocast_of(query.device.type)
        mean, log_weight = _forward(call, query, key, value, rest[:bias_count])
        ctx.save_for_backward(*tensors, mean, log_weight, *tensors_of(call.mask))
        return mean, log_weight

    @staticmethod
    @once_differentiable
    def backward(ctx: _RingContext, mean_grad: Tensor, log_weight_grad: Tensor) -> tuple[Tensor | None, ...]:
        needed = ctx.needs_input_grad[2:]
        query, key, value, *rest = (saved := ctx.saved_tensors)[: len(needed)]
        mean, log_weight = saved[len(needed) : len(needed) + 2]
        call = replace(ctx.call, score=with_state(ctx.call.score, ctx.state))
        part = _PartGradients(call, rest, [torch.zeros_like(x) for x in rest], ctx.bias_count, ctx.autocast)
        # Log weights as columns, [..., q, 1], so that all that travels has its length in the same dimension.
        whole = [mean, log_weight.unsqueeze(-1), mean_grad, log_weight_grad.unsqueeze(-1)]
        grads = [torch.zeros_like(x, memory_format=torch.contiguous_format) for x in (query, key, value)]

        def add(targets: list[Tensor]) -> Callable[[slice, list[Tensor]], None]:
            def add_part(some: slice, found: list[Tensor]) -> None:
                for target, grad in zip(targets if found else [], found, strict=True):
                    target[..., some, :] += grad

            return add_part

        def visit_queries(columns: slice, visitors: list[Tensor]) -> list[Tensor]:
            visitor_grads = [torch.zeros_like(x) for x in visitors]
            for rows, own in call.blocks(columns):
                found = part([query[..., own, :], *visitors], rows, columns, [x[..., own, :] for x in whole])
                for target, grad in zip([grads[0][..., own, :], *visitor_grads], found, strict=True):
                    target += grad
            return visitor_grads

        def visit_keys(rows: slice, visitors: list[Tensor]) -> list[Tensor]:
            query_grad, *found = part([visitors[0], key, value], rows, call.columns, visitors[1:])
            for target, grad in zip(grads[1:], found, strict=True):
                target += grad
            return [query_grad]

        with hooks_off(rest):
            if call.keys_travel:
                travel(call, [key, value], visit_queries, grads[1:], add(grads[1:]))
            else:
                travel(call, [query, *whole], visit_keys, grads[:1], add(grads[:1]))
        grads += part.rest_grads
        return None, None, *(grad if need else None for grad, need in zip(grads, needed, strict=True))


@dataclass(frozen=True)
class _PartGradients:
    """The gradients of some queries, keys and values by the pairs between them; it adds those of all else itself."""

    call: Call
    rest: list[Tensor]  # bias tensors, then parameters
    rest_grads: list[Tensor]
    bias_count: int
    autocast: Callable[[], contextlib.AbstractContextManager[object]]

    def __call__(self, tensors: list[Tensor], rows: slice, columns: slice, whole: list[Tensor]) -> list[Tensor]:
        """whole   mean and log weight of the queries over all keys, and the gradients of both"""
        tensors = [x.detach().requires_grad_() for x in tensors]
        tables, parameters = self.rest[: self.bias_count], self.rest[self.bias_count :]
        biases = [x.detach().requires_grad_(x.requires_grad) for x in self.call.cut(tables, rows, columns)]
        mean, log_weight, mean_grad, log_weight_grad = whole
        with torch.enable_grad(), self.autocast():
            job = self.call.job(tensors, rows, columns, biases)
            part = attend_seeded(job, self.call.seed, whole=Attended(mean, log_weight.squeeze(-1)))
        inputs = [*tensors, *biases, *parameters]  # parameters are leaves, which the score holds itself
        bias_grads = self.call.cut(self.rest_grads[: self.bias_count], rows, columns)
        targets = [None, None, None, *bias_grads, *self.rest_grads[self.bias_count :]]
        wanted = [(x, target) for x, target in zip(inputs, targets, strict=True) if x.requires_grad]
        output_grads = [mean_grad, log_weight_grad.squeeze(-1).to(part.log_weight.dtype)]
        found = torch.autograd.grad(list(part), [x for x, _ in wanted], output_grads, allow_unused=True)
        for (_, target), grad in zip(wanted, found, strict=True):
            if target is not None and grad is not None:
                target += grad
        return [torch.zeros_like(x) if grad is None else grad for x, grad in zip(tensors, found[:3], strict=True)]
