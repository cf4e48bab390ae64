"""A GRU or an LSTM over all its steps, with or without attention, and with a hand-written backward.

    [q_t; f_t; g_t] = U s_{t−1} + b                               query, logits of the gate β_t, the cell's gates
    z_t = Σᵢ α_ti v_i,  α_t = softmax_i(wᵀ tanh(q_t + k_i))       with attention
    c_t = z_t,  or  β_t ∘ z_t,  β_t = σ(f_t)                      the context; with a gate (Xu et al. 2015, 4.2.1)
    s_t = cell(x_t + C c_t, g_t, s_{t−1})                         x_t: the input's part of the cell's gates

With a `Draw` the attention is hard: z_t = v_s, with s drawn from α_t, and z_t gives no gradient to α_t.

Autograd would add to the gradient of every weight once per step. Here backward stores the gradients of all steps: those
of U, of C and of the values are then one matrix product each. tanh is recomputed, not stored. Each thread takes some
rows through all steps, without waiting for the others in between. This needs the CPU, float32 or float64, and tanh;
everything else runs step by step in torch. Differentiable once.

Shapes have the steps first: gates `[m, rows, gates · hidden]`, states `[m, rows, hidden]`.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from regard.compiled.threads import spread
from regard.engines.job import spans
from regard.torch_modes import once_differentiable
from regard.weighing import softmax

MIN_ROWS_PER_THREAD = 8
"""Fewer rows of a recurrence are not worth a thread of their own."""
SINGLE_THREAD_LIMIT = 2**20
"""Up to this many evaluations of tanh, one thread computes a single step."""
State = tuple[Tensor, ...]
"""(s,) of a GRU, (s, memory) of an LSTM, `[rows, hidden]` each."""


class Draw(NamedTuple):
    """How hard attention chooses keys."""

    uniform: Tensor | None  # [m, rows]  in [0, 1), for sampling by inversion; None: the most probable key
    expected: Tensor  # [rows]  whether a row uses the mean of all keys instead


class RecurrentAttention(NamedTuple):
    """What a recurrence attends to, and the weights of its attention."""

    key: Tensor  # [rows, n, h]  projected
    value: Tensor  # [rows, n, v]
    score: Tensor  # [h]  w
    state_to_query: Tensor  # [h, hidden]; with a gate [h + v, hidden], to the query and the gate
    query_bias: Tensor  # [h], or with a gate [h + v]
    context_to_gates: Tensor  # [gates · hidden, v]  C
    lengths: Tensor | None = None  # [rows]  number of keys of each row, from the first on; None: all
    draw: Draw | None = None  # None: soft attention
    activation: Callable[[Tensor], Tensor] = torch.tanh


class AttentionSteps(NamedTuple):
    """The results of attention: of one step, or of all steps with a leading dimension m."""

    context: Tensor  # [rows, v]  c
    weights: Tensor  # [rows, n]  α
    chosen: Tensor  # [rows]  index of the key that hard attention chose; -1: none, the mean of all was used


def fusible(*tensors: Tensor) -> bool:
    """Whether the compiled loops apply: on the CPU, all in float32 or all in float64."""
    kinds = {(x.device.type, x.dtype) for x in tensors}
    return kinds in ({("cpu", torch.float32)}, {("cpu", torch.float64)}) and not torch.is_autocast_enabled("cpu")


def recurrence(gates: Tensor, start: State, weight: Tensor, bias: Tensor) -> Tensor:
    """All states `[m, rows, hidden]`, from the input's part of the gates and the state's weight and bias.

    >>> import torch
    >>> recurrence(torch.randn(7, 2, 9), (torch.zeros(2, 3),), torch.randn(9, 3), torch.zeros(9)).shape
    torch.Size([7, 2, 3])
    """
    none = gates.new_empty(gates.shape[1], 0, 0)  # it attends to no keys
    maps = weight[:0], bias[:0], gates.new_empty(gates.shape[2], 0)
    return attentive_recurrence(gates, start, weight, bias, RecurrentAttention(none, none, bias[:0], *maps))[0][0]


def attentive_recurrence(
    gates: Tensor, start: State, weight: Tensor, bias: Tensor, attention: RecurrentAttention
) -> tuple[State, AttentionSteps]:
    """The states of all steps, `[m, rows, hidden]` each, and the results of the attention of all steps.

    An LSTM's memory gets no gradient as an output.
    """
    parts = attention.context_to_gates, attention.key, attention.score, attention.value
    if not fusible(gates, *parts) or attention.activation is not torch.tanh:
        return _run_stepwise(gates, start, weight, bias, attention)
    weight, bias = torch.cat([attention.state_to_query, weight]), torch.cat([attention.query_bias, bias])
    first, memory = start if len(start) > 1 else (start[0], None)
    counts = _key_counts(attention)
    states, memories, *attended = _Recurrence.apply(  # type: ignore[no-untyped-call]
        gates, first, memory, weight, bias, attention.draw, *parts, counts
    )
    return (states,) if memories is None else (states, memories), AttentionSteps(*attended)


def _run_stepwise(
    gates: Tensor, start: State, weight: Tensor, bias: Tensor, attention: RecurrentAttention
) -> tuple[State, AttentionSteps]:
    """The same as `attentive_recurrence`, one step after the other, by autograd."""
    state, states, attended = start, [], []
    for t, inputs in enumerate(gates):
        attended.append(_attend_step(state[0], attention, t))
        state = cell_step(
            inputs + functional.linear(attended[-1].context, attention.context_to_gates), state, weight, bias
        )
        states.append(state)
    attention_steps = AttentionSteps(*(torch.stack(part) for part in zip(*attended, strict=True)))
    return tuple(torch.stack(part) for part in zip(*states, strict=True)), attention_steps


def _attend_step(state: Tensor, attention: RecurrentAttention, step: int) -> AttentionSteps:
    """The attention of one step, by the state before it, `[rows, hidden]`."""
    key, value, score = attention.key, attention.value, attention.score
    projected = functional.linear(state, attention.state_to_query, attention.query_bias)
    query, gate = projected[:, : len(score)], projected[:, len(score) :]
    scores = attention.activation(query.unsqueeze(1) + key) @ score
    if attention.lengths is not None:
        beyond = torch.arange(key.shape[1], device=key.device) >= attention.lengths.unsqueeze(1)
        scores = scores.masked_fill(beyond, -math.inf)
    weights = softmax(scores)
    mean = torch.bmm(weights.unsqueeze(1), value.to(weights.dtype)).squeeze(1)
    chosen = torch.full((len(key),), -1, device=key.device)
    if attention.draw is not None:
        chosen = _choose(weights, attention.draw, step, slice(None))
        mean = _chosen_values(value, chosen, mean)
    return AttentionSteps(torch.sigmoid(gate) * mean if gate.shape[1] else mean, weights, chosen)


def cell_step(gates: Tensor, state: State, weight: Tensor, bias: Tensor) -> State:
    """One step of a GRU or an LSTM, from the input's part of the gates with its bias: `[rows, gates · hidden]`.

    As torch defines them: a GRU's reset gate applies to U s + b, and its update gate is the fraction of s that stays.
    """
    projected = functional.linear(state[0], weight, bias)
    if len(state) == 1:
        reset, update, new = gates.chunk(3, dim=-1)
        projected_reset, projected_update, projected_new = projected.chunk(3, dim=-1)
        update = torch.sigmoid(update + projected_update)
        new = torch.tanh(new + torch.sigmoid(reset + projected_reset) * projected_new)
        return (new + update * (state[0] - new),)
    enter, forget, new, output = (gates + projected).chunk(4, dim=-1)
    memory = torch.sigmoid(forget) * state[1] + torch.sigmoid(enter) * torch.tanh(new)
    return torch.sigmoid(output) * torch.tanh(memory), memory


@torch.no_grad()
def additive_scores(query: Tensor, key: Tensor, weight: Tensor, index: Tensor) -> Tensor:
    """wᵀ tanh(q + k_i) of queries `[rows, h]`: `[rows, n]`, without gradients.

    key     `[groups, n, h]`
    index   `[rows]`: row r has the keys `key[index[r]]`, as the hypotheses of a beam share those of a source

    >>> import torch
    >>> additive_scores(torch.randn(3, 7), torch.randn(2, 5, 7), torch.randn(7), torch.tensor([0, 0, 1])).shape
    torch.Size([3, 5])
    """
    if not fusible(query, key, weight):
        return torch.tanh(query.unsqueeze(1) + key[index]) @ weight
    from regard.ops import recurrent_loops as loops

    out = query.new_empty(len(query), key.shape[1])
    q, k, w, indices, into = _arrays(*(x.contiguous() for x in (query, key, weight, index)), out)
    most = len(query) if len(query) * key[:1].numel() > SINGLE_THREAD_LIMIT else 1
    slices = _slices_of_rows(len(query), most)
    spread(lambda rows: loops.additive_scores(q[rows], k, w, indices[rows], into[rows]), slices)
    return out


def draw_keys(weights: Tensor, uniform: Tensor) -> Tensor:
    """Sample a key per row by inversion: where the cumulative weights exceed a number in [0, 1); `[rows]`."""
    cumulative = weights.cumsum(dim=1, dtype=torch.float64)
    target = uniform.to(torch.float64) * cumulative[:, -1]
    # right=True: the first entry above the number, so that a key of weight 0 is never drawn.
    return torch.searchsorted(cumulative, target.unsqueeze(1), right=True).squeeze(1).clamp_(max=weights.shape[1] - 1)


def _choose(weights: Tensor, draw: Draw, step: int, rows: slice) -> Tensor:
    """The index of each row's key, -1 for rows that use the mean of all."""
    weights = weights.detach()
    chosen = weights.argmax(dim=1) if draw.uniform is None else draw_keys(weights, draw.uniform[step, rows])
    return chosen.masked_fill_(draw.expected[rows], -1)


def _chosen_values(value: Tensor, chosen: Tensor, mean: Tensor) -> Tensor:
    """The value of the chosen key of each row, `[rows, v]`, or the mean for index -1."""
    values = value[torch.arange(len(value), device=value.device), chosen]  # any of them for index -1
    return torch.where(chosen.unsqueeze(1) < 0, mean, values)


def _key_counts(attention: RecurrentAttention) -> Tensor:
    """The number of keys of each row, `[rows]` in int64; raises ValueError if a length exceeds the number of keys."""
    (rows, keys), lengths = attention.key.shape[:2], attention.lengths
    if lengths is None:
        return torch.full((rows,), keys)
    if lengths.shape != (rows,) or (rows and not 0 <= int(lengths.min()) <= int(lengths.max()) <= keys):
        raise ValueError(f"lengths must be [{rows}], between 0 and {keys}, got {lengths.tolist()}")
    return lengths.to(torch.long)


def _arrays(*tensors: Tensor) -> list[NDArray[Any]]:
    """Tensors as NumPy arrays over the same memory, for the loops."""
    return [tensor.numpy() for tensor in tensors]


class _Saved(NamedTuple):
    """What backward needs."""

    weight: Tensor  # U
    context_to_gates: Tensor  # C
    key: Tensor
    score: Tensor  # w
    value: Tensor
    counts: Tensor
    states: Tensor  # [m + 1, rows, hidden]
    memory: Tensor | None  # [m + 1, rows, hidden]  of an LSTM
    projected: Tensor  # [m, rows, h (+ v) + gates · hidden]  U s + b, of which the gate β_t is activated
    active: Tensor  # [m, rows, gates · hidden]  the cell's gates after their activation
    means: Tensor  # [m, rows, v]  z
    contexts: Tensor  # [m, rows, v]  c; without a gate the same tensor
    weights: Tensor  # [m, rows, n]  α
    chosen: Tensor  # [m, rows]  index of the chosen key; -1: none
    draw: Draw | None = None

    @property
    def offset(self) -> int:
        """Query and gate are in front of the cell's gates: columns of `projected`."""
        return self.projected.shape[2] - self.active.shape[2]


class _Gradients(NamedTuple):
    """The gradients of all outputs and inputs that belong to rows."""

    states: Tensor  # [m, rows, hidden]
    gates: Tensor  # [m, rows, gates · hidden]  of the input's part
    projected: Tensor  # [m, rows, h (+ v) + gates · hidden]  of U s + b
    start: Tensor  # [rows, hidden]  of the state, updated from step to step
    memory: Tensor | None  # [rows, hidden]  of the memory, likewise
    means: Tensor  # [m, rows, v]  at first those of the contexts as outputs
    weights: Tensor  # [m, rows, n]  of α as an output; overwritten
    key: Tensor  # [rows, n, h]


class _Recurrence(torch.autograd.Function):
    """(states, memories, contexts, α, chosen) of gates, state, memory, U, b, draw, C, key, w, value and counts."""

    @staticmethod
    def forward(
        ctx: Any,
        gates: Tensor,
        start: Tensor,
        memory: Tensor | None,
        weight: Tensor,
        bias: Tensor,
        draw: Draw | None,
        *attention: Tensor,
    ) -> tuple[Tensor | None, ...]:
        context_to_gates, key, score, value, counts = (x.contiguous() for x in attention)
        steps, rows, width = gates.shape
        means = value.new_empty(steps, rows, value.shape[2])
        saved = _Saved(
            weight.contiguous(),
            context_to_gates,
            key,
            score,
            value,
            counts,
            states=_allocate_states(start, steps),
            memory=None if memory is None else _allocate_states(memory, steps),
            projected=gates.new_empty(steps, rows, len(weight)),
            active=gates.clone(memory_format=torch.contiguous_format),
            means=means,
            contexts=torch.empty_like(means) if len(weight) - width > len(score) else means,
            weights=value.new_empty(steps, *key.shape[:2]),
            chosen=counts.new_full((steps, rows), -1),
            draw=draw,
        )
        # A product of few rows with a wide matrix is faster if the matrix is stored in the order it is read.
        weight_t, context_to_gates_t = weight.t().contiguous(), context_to_gates.t().contiguous()
        spread(lambda some: _forward_rows(saved, some, bias, weight_t, context_to_gates_t), _slices_of_rows(rows))
        ctx.save_for_backward(*saved[:-1])
        ctx.draw = draw
        memories = None if saved.memory is None else saved.memory[1:]
        ctx.mark_non_differentiable(saved.chosen, *([] if memories is None else [memories]))
        # Views of the saved tensors: saving the outputs themselves would keep their own history alive.
        contexts, weights = saved.contexts.view_as(saved.contexts), saved.weights.view_as(saved.weights)
        return saved.states[1:], memories, contexts, weights, saved.chosen

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, states_grad: Tensor, _memories: None, contexts_grad: Tensor, weights_grad: Tensor, _chosen: None
    ) -> tuple[Tensor | None, ...]:
        saved = _Saved(*ctx.saved_tensors)._replace(draw=ctx.draw)
        gradients = _Gradients(
            states_grad.contiguous(),
            gates=torch.empty_like(saved.active),
            projected=torch.empty_like(saved.projected),
            start=torch.zeros_like(saved.states[0]),
            memory=None if saved.memory is None else torch.zeros_like(saved.states[0]),
            means=contexts_grad.clone(memory_format=torch.contiguous_format),
            weights=weights_grad.clone(memory_format=torch.contiguous_format),
            key=torch.zeros_like(saved.key),
        )
        slices = _slices_of_rows(saved.active.shape[1])
        score_grads = spread(lambda some: _backward_rows(saved, gradients, some), slices)
        projected_grad = gradients.projected.flatten(0, 1)  # [m · rows, h (+ v) + gates · hidden]
        value_grad = None
        if ctx.needs_input_grad[9]:
            # [rows, n, m] by [rows, m, v]
            value_grad = torch.bmm(_applied_weights(saved).permute(1, 2, 0), gradients.means.permute(1, 0, 2))
        return (
            gradients.gates,
            gradients.start,
            gradients.memory,
            projected_grad.t() @ saved.states[:-1].flatten(0, 1),
            projected_grad.sum(dim=0),
            None,
            gradients.gates.flatten(0, 1).t() @ saved.contexts.flatten(0, 1),
            gradients.key,
            sum(score_grads, torch.zeros_like(saved.score)),
            value_grad,
            None,
        )


def _allocate_states(start: Tensor, steps: int) -> Tensor:
    """Memory for the first state and those of all steps, `[m + 1, rows, hidden]`, with the first one written."""
    states = start.new_empty(steps + 1, *start.shape)
    states[0] = start
    return states


def _applied_weights(saved: _Saved) -> Tensor:
    """The weights of the values in the means: α, or 1 for a chosen key."""
    if saved.draw is None:
        return saved.weights
    chosen = saved.chosen.unsqueeze(2)
    one_hot = torch.zeros_like(saved.weights).scatter_(2, chosen.clamp(min=0), 1.0)
    return torch.where(chosen < 0, saved.weights, one_hot)


def _forward_rows(saved: _Saved, rows: slice, bias: Tensor, weight_t: Tensor, context_to_gates_t: Tensor) -> None:
    """Some rows through all steps; weight_t and context_to_gates_t are Uᵀ and Cᵀ."""
    from regard.ops import recurrent_loops as loops

    offset, size = saved.offset, len(saved.score)
    keys = loops.Keys(*_arrays(saved.key[rows], saved.score, saved.value[rows], saved.counts[rows]))
    for t in range(len(saved.active)):
        before, after = saved.states[t, rows], saved.states[t + 1, rows]
        projected, active = saved.projected[t, rows], saved.active[t, rows]
        means, weights = saved.means[t, rows], saved.weights[t, rows]
        torch.addmm(bias, before, weight_t, out=projected)
        loops.additive_forward(projected.numpy(), keys, *_arrays(means, weights))
        if saved.draw is not None:
            chosen = _choose(weights, saved.draw, t, rows)
            saved.chosen[t, rows] = chosen
            means.copy_(_chosen_values(saved.value[rows], chosen, means))
        if offset > size:
            torch.mul(means, projected[:, size:offset].sigmoid_(), out=saved.contexts[t, rows])
        active.addmm_(saved.contexts[t, rows], context_to_gates_t)
        if saved.memory is None:
            _gru_forward(active, projected[:, offset:], before, after)
        else:
            _lstm_forward(active, projected[:, offset:], saved.memory[t, rows], saved.memory[t + 1, rows], after)


def _backward_rows(saved: _Saved, gradients: _Gradients, rows: slice) -> Tensor:
    """Some rows backward through all steps; returns their gradient of the score's weight `[h]`."""
    from regard.ops import recurrent_loops as loops

    offset, size, start_grad = saved.offset, len(saved.score), gradients.start[rows]
    keys = loops.Keys(*_arrays(saved.key[rows], saved.score, saved.value[rows], saved.counts[rows]))
    score_grad = torch.zeros_like(saved.score)
    for t in reversed(range(len(saved.active))):
        start_grad.add_(gradients.states[t, rows])
        projected, projected_grad = saved.projected[t, rows], gradients.projected[t, rows]
        active, gates_grad = saved.active[t, rows], gradients.gates[t, rows]
        own_projected, own_grad = projected[:, offset:], projected_grad[:, offset:]
        if saved.memory is None or gradients.memory is None:
            _gru_backward(active, own_projected, saved.states[t, rows], start_grad, gates_grad, own_grad)
        else:
            memory, next_memory = saved.memory[t, rows], saved.memory[t + 1, rows]
            _lstm_backward(active, memory, next_memory, start_grad, gradients.memory[rows], gates_grad)
            own_grad.copy_(gates_grad)
        mean_grad = gradients.means[t, rows].addmm_(gates_grad, saved.context_to_gates)
        if offset > size:
            gate, gate_grad = projected[:, size:offset], projected_grad[:, size:offset]
            torch.mul(mean_grad * saved.means[t, rows], gate * (1 - gate), out=gate_grad)
            mean_grad *= gate
        if saved.draw is not None:
            # A chosen value gives α no gradient. A new tensor: the values still need the gradient of all rows.
            mean_grad = mean_grad * (saved.chosen[t, rows] < 0).unsqueeze(1)
        grads = mean_grad, gradients.weights[t, rows], projected_grad, gradients.key[rows], score_grad
        additive_grads = loops.AdditiveGradients(*_arrays(*grads))
        loops.additive_backward(projected.numpy(), keys, saved.weights[t, rows].numpy(), additive_grads)
        start_grad.addmm_(projected_grad, saved.weight)
    return score_grad


# The cells in place, `[rows, …]` each. Gates are in torch's order: reset, update, new for a GRU; input, forget, new,
# output for an LSTM. `projected` is the previous state's part of the gates.


def _gru_forward(gates: Tensor, projected: Tensor, before: Tensor, after: Tensor) -> None:
    """gates become reset, update and new; after = new + update · (before − new)."""
    size = before.shape[1]
    both, new = gates[:, : 2 * size], gates[:, 2 * size :]
    reset, update = both.add_(projected[:, : 2 * size]).sigmoid_().chunk(2, dim=1)
    new.addcmul_(reset, projected[:, 2 * size :]).tanh_()
    torch.lerp(new, before, update, out=after)


def _gru_backward(
    gates: Tensor, projected: Tensor, before: Tensor, grad: Tensor, gates_grad: Tensor, projected_grad: Tensor
) -> None:
    """From the gradient of `after`, which becomes the direct part of that of `before`, to those of the gates."""
    reset, update, new = gates.chunk(3, dim=1)
    reset_grad, update_grad, new_grad = gates_grad.chunk(3, dim=1)
    projected_new = projected[:, 2 * before.shape[1] :]
    torch.mul(grad * (1 - update), 1 - new.square(), out=new_grad)
    torch.mul(grad * (before - new), update * (1 - update), out=update_grad)
    torch.mul(new_grad * projected_new, reset * (1 - reset), out=reset_grad)
    grad *= update
    projected_grad.copy_(gates_grad)
    projected_grad[:, 2 * before.shape[1] :] *= reset


def _lstm_forward(gates: Tensor, projected: Tensor, memory: Tensor, next_memory: Tensor, after: Tensor) -> None:
    """gates become input, forget, new and output; next_memory and after = output · tanh(next_memory) are written."""
    enter, forget, new, output = gates.add_(projected).chunk(4, dim=1)
    gates[:, : 2 * memory.shape[1]].sigmoid_()
    new.tanh_()
    output.sigmoid_()
    torch.addcmul(forget * memory, enter, new, out=next_memory)
    torch.mul(output, next_memory.tanh(), out=after)


def _lstm_backward(
    gates: Tensor, memory: Tensor, next_memory: Tensor, grad: Tensor, memory_grad: Tensor, gates_grad: Tensor
) -> None:
    """From the gradients of `after` (becomes 0) and `next_memory` (becomes that of `memory`) to that of the gates."""
    enter, forget, new, output = gates.chunk(4, dim=1)
    enter_grad, forget_grad, new_grad, output_grad = gates_grad.chunk(4, dim=1)
    active_memory = next_memory.tanh()
    memory_grad.addcmul_(grad * output, 1 - active_memory.square())
    torch.mul(grad * active_memory, output * (1 - output), out=output_grad)
    torch.mul(memory_grad * new, enter * (1 - enter), out=enter_grad)
    torch.mul(memory_grad * memory, forget * (1 - forget), out=forget_grad)
    torch.mul(memory_grad * enter, 1 - new.square(), out=new_grad)
    memory_grad *= forget
    grad.zero_()


def _slices_of_rows(rows: int, most: int | None = None) -> list[slice]:
    """The rows in one slice per thread, at most `most`; default: with at least `MIN_ROWS_PER_THREAD` rows each."""
    most = rows // MIN_ROWS_PER_THREAD if most is None else most
    threads = max(1, min(torch.get_num_threads(), most))
    return list(spans(rows, max(1, -(-rows // threads))))
