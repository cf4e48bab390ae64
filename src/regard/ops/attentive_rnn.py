"""A GRU or an LSTM over all its steps, with or without attention, and with a hand-written backward.

    [q_t; g_t] = U s_{t−1} + b                                     the state's query, and its part of the gates
    c_t = Σᵢ α_ti v_i,  α_t = softmax_i(wᵀ tanh(q_t + k_i))        with attention
    s_t = cell(x_t + C c_t, g_t, s_{t−1})                          x_t: the input's part of the gates

Autograd would add to the gradient of every weight once per step. Here backward stores the gradients of all steps: those
of U, of C and of the values are then one matrix product each. Each thread takes some rows through all steps, without
waiting for the others in between. On the CPU, in float32 and float64.

Shapes have the steps first: gates `[m, rows, gates · hidden]`, states `[m, rows, hidden]`.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.compiled.threads import spread
from regard.engines.job import spans
from regard.ops.additive import as_arrays, key_counts

MIN_ROWS_PER_THREAD = 8
"""Fewer rows are not worth a thread of their own."""
State = tuple[Tensor, ...]


class AttentionInputs(NamedTuple):
    """What a recurrence attends to, and the weights of its attention."""

    query: Tensor  # [h, hidden]  from the state to the projected query
    query_bias: Tensor  # [h]
    key: Tensor  # [rows, n, h]  projected
    weight: Tensor  # [h]  of the score
    value: Tensor  # [rows, n, v]
    lengths: Tensor  # [rows]  number of keys of each row
    context: Tensor  # [gates · hidden, v]  from the mean to the gates


def recurrence(gates: Tensor, start: State, weight: Tensor, bias: Tensor) -> Tensor:
    """All states `[m, rows, hidden]`, from the input's part of the gates and the state's weight and bias.

    start   (s₀,) for a GRU and (s₀, memory₀) for an LSTM, `[rows, hidden]`

    >>> import torch
    >>> recurrence(torch.randn(7, 2, 9), (torch.zeros(2, 3),), torch.randn(9, 3), torch.zeros(9)).shape
    torch.Size([7, 2, 3])
    """
    return _Recurrence.apply(gates, *_state_and_memory(start), weight, bias)[0]  # type: ignore[no-any-return, no-untyped-call]


def attentive_recurrence(
    gates: Tensor, start: State, weight: Tensor, bias: Tensor, attention: AttentionInputs
) -> tuple[Tensor, Tensor, Tensor]:
    """All states `[m, rows, hidden]`, contexts `[m, rows, v]` and attention weights `[m, rows, n]`."""
    return _Recurrence.apply(  # type: ignore[no-any-return, no-untyped-call]
        gates,
        *_state_and_memory(start),
        torch.cat([attention.query, weight]),
        torch.cat([attention.query_bias, bias]),
        attention.context,
        attention.key,
        attention.weight,
        attention.value,
        key_counts(attention.lengths, *attention.key.shape[:2]),
    )


def _state_and_memory(start: State) -> tuple[Tensor, Tensor | None]:
    """The state, and the memory of an LSTM; None for a GRU."""
    return start[0], start[1] if len(start) > 1 else None


class _SavedAttention(NamedTuple):
    """What backward needs of the attention."""

    context: Tensor  # C
    key: Tensor
    weight: Tensor  # w, of the score
    value: Tensor
    counts: Tensor
    contexts: Tensor  # [m, rows, v]  c
    weights: Tensor  # [m, rows, n]  α

    def select(self, rows: slice) -> "_SavedAttention":
        """The part of some rows."""
        fixed = self.context, self.key[rows], self.weight, self.value[rows], self.counts[rows]
        return _SavedAttention(*fixed, self.contexts[:, rows], self.weights[:, rows])


class _Saved(NamedTuple):
    """What backward needs."""

    weight: Tensor  # U
    states: Tensor  # [m + 1, rows, hidden]
    memory: Tensor | None  # [m + 1, rows, hidden]  of an LSTM
    hidden: Tensor  # [m, rows, h + gates · hidden]  U s + b
    active: Tensor  # [m, rows, gates · hidden]  the gates after their activation
    attention: _SavedAttention | None

    def select(self, rows: slice) -> "_Saved":
        """The part of some rows."""
        return _Saved(
            self.weight,
            self.states[:, rows],
            None if self.memory is None else self.memory[:, rows],
            self.hidden[:, rows],
            self.active[:, rows],
            None if self.attention is None else self.attention.select(rows),
        )


class _AttentionGradients(NamedTuple):
    """The gradients of the attention."""

    contexts: Tensor  # [m, rows, v]  the part that comes through the gates is added
    weights: Tensor  # [m, rows, n]  of α as an output; overwritten
    key: Tensor  # [rows, n, h]


class _Gradients(NamedTuple):
    """The gradients of all outputs and inputs that belong to rows."""

    states: Tensor  # [m, rows, hidden]
    gates: Tensor  # [m, rows, gates · hidden]  of the input's part
    hidden: Tensor  # [m, rows, h + gates · hidden]  of U s + b
    start: Tensor  # [rows, hidden]  of the state, updated from step to step
    memory: Tensor | None  # [rows, hidden]  of the memory, likewise
    attention: _AttentionGradients | None

    def select(self, rows: slice) -> "_Gradients":
        """The part of some rows."""
        attention = self.attention
        if attention is not None:
            contexts, weights, key = attention
            attention = _AttentionGradients(contexts[:, rows], weights[:, rows], key[rows])
        return _Gradients(
            self.states[:, rows],
            self.gates[:, rows],
            self.hidden[:, rows],
            self.start[rows],
            None if self.memory is None else self.memory[rows],
            attention,
        )


class _Recurrence(torch.autograd.Function):
    """(states, contexts, α) of gates, state, memory, U, b, and with attention C, key, w, value, number of keys."""

    @staticmethod
    def forward(
        ctx: Any, gates: Tensor, start: Tensor, memory: Tensor | None, weight: Tensor, bias: Tensor, *attention: Tensor
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        steps, rows, _ = gates.shape
        saved = _Saved(
            weight.contiguous(),
            states=_allocate_states(start, steps),
            memory=None if memory is None else _allocate_states(memory, steps),
            hidden=gates.new_empty(steps, rows, len(weight)),
            active=gates.clone(memory_format=torch.contiguous_format),
            attention=_allocate_attention(steps, *attention) if attention else None,
        )
        # A product of few rows with a wide matrix is faster if the matrix is stored in the order it is read.
        weight_t = weight.t().contiguous()
        context_t = saved.attention.context.t().contiguous() if saved.attention else None
        spread(lambda some: _forward_rows(saved.select(some), bias, weight_t, context_t), row_slices(rows))
        ctx.save_for_backward(*saved[:5], *(saved.attention or ()))
        if saved.attention is None:
            return saved.states[1:], None, None
        # Views of the saved tensors: saving the outputs themselves would keep their own history alive.
        contexts, weights = saved.attention[-2:]
        return saved.states[1:], contexts.view_as(contexts), weights.view_as(weights)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, states_grad: Tensor, *attention_grads: Tensor | None) -> tuple[Tensor | None, ...]:
        tensors = ctx.saved_tensors
        attention = _SavedAttention(*tensors[5:]) if len(tensors) > 5 else None
        weight, states, memory, hidden, active = tensors[:5]
        saved = _Saved(weight, states, memory, hidden, active, attention)
        gradients = _Gradients(
            states_grad.contiguous(),
            gates=torch.empty_like(active),
            hidden=torch.empty_like(hidden),
            start=torch.zeros_like(states[0]),
            memory=None if memory is None else torch.zeros_like(states[0]),
            attention=None if attention is None else _allocate_gradients(attention, *attention_grads),
        )
        weight_grads = spread(
            lambda some: _backward_rows(saved.select(some), gradients.select(some)), row_slices(active.shape[1])
        )
        hidden_grad = gradients.hidden.flatten(0, 1)  # [m · rows, h + gates · hidden]
        weight_grad = hidden_grad.t() @ states[:-1].flatten(0, 1)
        cell_grads = gradients.gates, gradients.start, gradients.memory, weight_grad, hidden_grad.sum(dim=0)
        if attention is None or gradients.attention is None:
            return cell_grads
        context_grad = gradients.gates.flatten(0, 1).t() @ attention.contexts.flatten(0, 1)
        score_grad = torch.zeros_like(attention.weight)
        for part in weight_grads:
            score_grad += part
        # [rows, n, m] by [rows, m, v]
        value_grad = torch.bmm(attention.weights.permute(1, 2, 0), gradients.attention.contexts.permute(1, 0, 2))
        return *cell_grads, context_grad, gradients.attention.key, score_grad, value_grad, None


def _allocate_states(start: Tensor, steps: int) -> Tensor:
    """Memory for the first state and those of all steps, `[m + 1, rows, hidden]`, with the first one written."""
    states = start.new_empty(steps + 1, *start.shape)
    states[0] = start
    return states


def _allocate_attention(
    steps: int, context: Tensor, key: Tensor, weight: Tensor, value: Tensor, counts: Tensor
) -> _SavedAttention:
    """The inputs of the attention, contiguous, with memory for the contexts and the weights of all steps."""
    rows, keys, size = value.shape
    outputs = value.new_empty(steps, rows, size), value.new_empty(steps, rows, keys)
    return _SavedAttention(*(x.contiguous() for x in (context, key, weight, value, counts, *outputs)))


def _allocate_gradients(
    attention: _SavedAttention, contexts_grad: Tensor | None, weights_grad: Tensor | None
) -> _AttentionGradients:
    """Copies of the outputs' gradients, which backward overwrites, and zeros for that of the keys."""
    contexts, weights = (
        torch.zeros_like(output) if grad is None else grad.clone(memory_format=torch.contiguous_format)
        for output, grad in ((attention.contexts, contexts_grad), (attention.weights, weights_grad))
    )
    return _AttentionGradients(contexts, weights, torch.zeros_like(attention.key))


def _forward_rows(saved: _Saved, bias: Tensor, weight_t: Tensor, context_t: Tensor | None) -> None:
    """Some rows through all steps; weight_t and context_t are Uᵀ and Cᵀ."""
    from regard.ops import recurrent_loops as loops

    offset = saved.hidden.shape[2] - saved.active.shape[2]  # the query is in front of the gates' part
    attention = saved.attention
    for t in range(len(saved.active)):
        before, after, hidden, active = saved.states[t], saved.states[t + 1], saved.hidden[t], saved.active[t]
        torch.addmm(bias, before, weight_t, out=hidden)
        if attention is not None and context_t is not None:
            inputs = hidden, attention.key, attention.weight, attention.value, attention.counts
            loops.additive_forward(*as_arrays(*inputs, attention.contexts[t], attention.weights[t]))
            active.addmm_(attention.contexts[t], context_t)
        if saved.memory is None:
            loops.gru_forward(*as_arrays(active, hidden), offset, *as_arrays(before, after))
        else:
            loops.lstm_forward(*as_arrays(active, hidden), offset, *as_arrays(*saved.memory[t : t + 2], after))


def _backward_rows(saved: _Saved, gradients: _Gradients) -> Tensor:
    """Some rows backward through all steps; returns their gradient of the score's weight `[h]`."""
    from regard.ops import recurrent_loops as loops

    offset = saved.hidden.shape[2] - saved.active.shape[2]
    attention, start_grad = saved.attention, gradients.start
    weight_grad = start_grad.new_zeros(0 if attention is None else len(attention.weight))
    for t in reversed(range(len(saved.active))):
        start_grad.add_(gradients.states[t])
        active, hidden, grad = as_arrays(saved.active[t], saved.hidden[t], start_grad)
        outputs = as_arrays(gradients.gates[t], gradients.hidden[t])
        if saved.memory is None or gradients.memory is None:
            loops.gru_backward(active, hidden, offset, saved.states[t].numpy(), grad, *outputs)
        else:
            memory = as_arrays(*saved.memory[t : t + 2])
            loops.lstm_backward(active, offset, *memory, grad, gradients.memory.numpy(), *outputs)
        if attention is not None and gradients.attention is not None:
            contexts_grad, weights_grad, key_grad = gradients.attention
            contexts_grad[t].addmm_(gradients.gates[t], attention.context)
            inputs = attention.key, attention.weight, attention.value, attention.counts, attention.weights[t]
            grads = contexts_grad[t], weights_grad[t], gradients.hidden[t], key_grad, weight_grad
            loops.additive_backward(hidden, *as_arrays(*inputs, *grads))
        start_grad.addmm_(gradients.hidden[t], saved.weight)
    return weight_grad


def row_slices(rows: int) -> list[slice]:
    """The rows, divided among threads."""
    threads = max(1, min(torch.get_num_threads(), rows // MIN_ROWS_PER_THREAD))
    return list(spans(rows, max(1, -(-rows // threads))))
