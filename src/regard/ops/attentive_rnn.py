"""A GRU or an LSTM over all its steps, with attention in it or without, whose backward is written by hand.

    [q_t; g_t] = U s_{t−1} + b                                     the state's query, and its part of the gates
    c_t = Σᵢ α_ti v_i,  α_t = softmax_i(wᵀ tanh(q_t + k_i))        where it attends
    s_t = cell(x_t + C c_t, g_t, s_{t−1})                          x_t: the input's part of the gates

Autograd would add to the gradient of every weight once a step. Here the slopes of all steps are kept, and the gradient
of U, of C and of the values is one product of matrices each, over all steps at once. Each thread takes some rows
through all steps, with no waiting for the others in between. On the CPU, in float32 and float64.

Shapes have the steps first: gates `[m, rows, gates · hidden]`, states `[m, rows, hidden]`.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.compiled.threads import spread
from regard.engines.job import spans
from regard.ops.additive import counted, numpy

LEAST = 8
"""Rows that are worth a thread of their own."""
State = tuple[Tensor, ...]


class Looking(NamedTuple):
    """What a recurrence attends to, and how it goes into the gates."""

    query: Tensor  # [h, hidden]  from the state to the projected query
    query_bias: Tensor  # [h]
    key: Tensor  # [rows, n, h]  projected
    weight: Tensor  # [h]  of the score
    value: Tensor  # [rows, n, v]
    lengths: Tensor  # [rows]  how many keys each row sees
    context: Tensor  # [gates · hidden, v]  from the mean to the gates


def recurrence(gates: Tensor, start: State, weight: Tensor, bias: Tensor) -> Tensor:
    """All states `[m, rows, hidden]`, from the input's part of the gates and the state's weight and bias.

    start   (s₀,) for a GRU and (s₀, memory₀) for an LSTM, `[rows, hidden]`

    >>> import torch
    >>> recurrence(torch.randn(7, 2, 9), (torch.zeros(2, 3),), torch.randn(9, 3), torch.zeros(9)).shape
    torch.Size([7, 2, 3])
    """
    return Recurrence.apply(gates, *padded(start), weight, bias, *[None] * 5)[0]  # type: ignore[no-any-return, no-untyped-call]


def attentive(
    gates: Tensor, start: State, weight: Tensor, bias: Tensor, looking: Looking
) -> tuple[Tensor, Tensor, Tensor]:
    """All states `[m, rows, hidden]`, contexts `[m, rows, v]` and weights `[m, rows, n]` of one that attends."""
    return Recurrence.apply(  # type: ignore[no-any-return, no-untyped-call]
        gates,
        *padded(start),
        torch.cat([looking.query, weight]),
        torch.cat([looking.query_bias, bias]),
        looking.context,
        looking.key,
        looking.weight,
        looking.value,
        counted(looking.lengths, *looking.key.shape[:2]),
    )


def padded(start: State) -> tuple[Tensor, Tensor | None]:
    """The state, and the memory where there is one."""
    return (start[0], start[1] if len(start) > 1 else None)


class Recurrence(torch.autograd.Function):
    """(states, contexts, weights) of gates, state, memory, U, b, and where it attends C, key, w, value, lengths."""

    @staticmethod
    def forward(
        ctx: Any, gates: Tensor, start: Tensor, memory: Tensor | None, weight: Tensor, bias: Tensor, *looking: Any
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        steps, rows, _ = gates.shape
        context, key, score, value, counts = (None if x is None else x.contiguous() for x in looking)
        kept = Kept(
            weight.contiguous(),
            context,
            key,
            score,
            value,
            counts,
            states=behind(start, steps),
            memory=None if memory is None else behind(memory, steps),
            hidden=gates.new_empty(steps, rows, len(weight)),
            active=gates.clone(memory_format=torch.contiguous_format),
            contexts=None if value is None else gates.new_empty(steps, rows, value.shape[2]),
            shares=None if value is None else gates.new_empty(steps, rows, value.shape[1]),
        )
        # Few rows by a wide matrix go faster where the matrix lies as it is read.
        across = weight.t().contiguous(), None if context is None else context.t().contiguous()
        spread(lambda some: forward_rows(kept.of(some), bias, *across), pieces(rows))
        ctx.save_for_backward(*kept)
        # Views of what is kept: the outputs themselves would keep their own history alive.
        return kept.states[1:], alias(kept.contexts), alias(kept.shares)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, state_slope: Tensor, *context_slopes: Tensor | None) -> tuple[Tensor | None, ...]:
        kept = Kept(*ctx.saved_tensors)
        contexts, shares = (
            None if x is None else x.clone(memory_format=torch.contiguous_format) for x in context_slopes
        )
        slopes = Slopes(
            state_slope.contiguous(),
            contexts,
            shares,
            gates=torch.empty_like(kept.active),
            hidden=torch.empty_like(kept.hidden),
            start=torch.zeros_like(kept.states[0]),
            memory=None if kept.memory is None else torch.zeros_like(kept.states[0]),
            key=None if kept.key is None else torch.zeros_like(kept.key),
        )
        summed: list[Any] = spread(
            lambda some: backward_rows(kept.of(some), slopes.of(some)), pieces(kept.active.shape[1])
        )
        hidden = slopes.hidden.flatten(0, 1)
        weight_slope = hidden.t() @ kept.states[:-1].flatten(0, 1)
        found = slopes.gates, slopes.start, slopes.memory, weight_slope, hidden.sum(dim=0)
        if kept.contexts is None:
            return *found, *[None] * 5
        context_slope = slopes.gates.flatten(0, 1).t() @ kept.contexts.flatten(0, 1)
        value_slope = torch.bmm(kept.shares.permute(1, 2, 0), slopes.contexts.permute(1, 0, 2))
        return *found, context_slope, slopes.key, sum(summed, torch.zeros_like(kept.score)), value_slope, None


class Kept(NamedTuple):
    """What backward needs, with the rows behind the steps; None where there is no memory, or no attention."""

    weight: Tensor  # U
    context: Any  # C
    key: Any
    score: Any  # w
    value: Any
    counts: Any
    states: Tensor  # [m + 1, rows, hidden]
    memory: Any  # [m + 1, rows, hidden]
    hidden: Tensor  # [m, rows, h + gates · hidden]  U s + b
    active: Tensor  # [m, rows, gates · hidden]  what the gates were
    contexts: Any  # [m, rows, v]
    shares: Any  # [m, rows, n]

    def of(self, rows: slice) -> "Kept":
        """The part of some rows."""
        if self.key is not None:
            self = self._replace(key=self.key[rows], value=self.value[rows], counts=self.counts[rows])
        steps: Any = [None if x is None else x[:, rows] for x in self[6:]]
        return Kept(*self[:6], *steps)


class Slopes(NamedTuple):
    """What the loss gains with what a pass gave, and what it was given, row for row."""

    states: Tensor
    contexts: Any  # here that of the gates is added
    shares: Any
    gates: Tensor
    hidden: Tensor
    start: Tensor  # of the state, as it goes back
    memory: Any
    key: Any

    def of(self, rows: slice) -> "Slopes":
        """The part of some rows."""
        steps: Any = [None if x is None else x[:, rows] for x in self[:5]]
        others: Any = [None if x is None else x[rows] for x in self[5:]]
        return Slopes(*steps, *others)


def forward_rows(kept: Kept, bias: Tensor, weight: Tensor, context: Tensor | None) -> None:
    """Some rows through all steps; weight and context are Uᵀ and Cᵀ."""
    from regard.ops import additive_loops
    from regard.ops import attentive_rnn_loops as cell_loops

    skip = kept.hidden.shape[2] - kept.active.shape[2]  # before the gates' part stands the query
    for t in range(len(kept.active)):
        before, hidden, active = kept.states[t], kept.hidden[t], kept.active[t]
        torch.addmm(bias, before, weight, out=hidden)
        if context is not None:
            parts = kept.key, kept.score, kept.value, kept.counts, kept.contexts[t], kept.shares[t]
            additive_loops.forward(*numpy(hidden, *parts))
            active.addmm_(kept.contexts[t], context)
        if kept.memory is None:
            cell_loops.gru(*numpy(active, hidden), skip, *numpy(before, kept.states[t + 1]))
        else:
            cell_loops.lstm(*numpy(active, hidden), skip, *numpy(*kept.memory[t : t + 2], kept.states[t + 1]))


def backward_rows(kept: Kept, slopes: Slopes) -> Tensor | None:
    """Some rows back through all steps; the slope of the score's weight, where there is one."""
    from regard.ops import additive_loops
    from regard.ops import attentive_rnn_loops as cell_loops

    skip = kept.hidden.shape[2] - kept.active.shape[2]
    summed = None if kept.score is None else torch.zeros_like(kept.score)
    for t in reversed(range(len(kept.active))):
        slopes.start.add_(slopes.states[t])
        active, hidden, pull = numpy(kept.active[t], kept.hidden[t], slopes.start)
        into = numpy(slopes.gates[t], slopes.hidden[t])
        if kept.memory is None:
            cell_loops.gru_backward(active, hidden, skip, kept.states[t].numpy(), pull, *into)
        else:
            memory = numpy(*kept.memory[t : t + 2])
            cell_loops.lstm_backward(active, skip, *memory, pull, slopes.memory.numpy(), *into)
        if summed is not None:
            slopes.contexts[t].addmm_(slopes.gates[t], kept.context)
            parts = kept.key, kept.score, kept.value, kept.counts, kept.shares[t]
            mine = slopes.contexts[t], slopes.shares[t], slopes.hidden[t], slopes.key, summed
            additive_loops.backward(hidden, *numpy(*parts, *mine))
        slopes.start.addmm_(slopes.hidden[t], kept.weight)
    return summed


def behind(start: Tensor, steps: int) -> Tensor:
    """Room for all states, behind the first."""
    room = start.new_empty(steps + 1, *start.shape)
    room[0] = start
    return room


def alias(x: Tensor | None) -> Tensor | None:
    """The same tensor by another name."""
    return None if x is None else x.view_as(x)


def pieces(rows: int) -> list[slice]:
    """The rows, shared out between threads."""
    shares = max(1, min(torch.get_num_threads(), rows // LEAST))
    return list(spans(rows, max(1, -(-rows // shares))))
