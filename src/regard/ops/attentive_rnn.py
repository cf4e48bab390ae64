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
from torch.autograd.function import once_differentiable
from torch.nn import functional

from regard.compiled.threads import spread
from regard.engines.job import spans
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
    return _Recurrence.apply(gates, *_state_and_memory(start), weight, bias, None)[0]  # type: ignore[no-any-return, no-untyped-call]


def attentive_recurrence(
    gates: Tensor, start: State, weight: Tensor, bias: Tensor, attention: RecurrentAttention
) -> tuple[Tensor, AttentionSteps]:
    """All states `[m, rows, hidden]`, and the results of the attention of all steps."""
    key, value, score = attention.key, attention.value, attention.score
    if not fusible(gates, key, value, score) or attention.activation is not torch.tanh:
        return _run_stepwise(gates, start, weight, bias, attention)
    states, *attended = _Recurrence.apply(  # type: ignore[no-untyped-call]
        gates,
        *_state_and_memory(start),
        torch.cat([attention.state_to_query, weight]),
        torch.cat([attention.query_bias, bias]),
        attention.draw,
        attention.context_to_gates,
        key,
        score,
        value,
        _key_counts(attention),
    )
    return states, AttentionSteps(*attended)


def _run_stepwise(
    gates: Tensor, start: State, weight: Tensor, bias: Tensor, attention: RecurrentAttention
) -> tuple[Tensor, AttentionSteps]:
    """The same as `attentive_recurrence`, one step after the other, by autograd."""
    state, states, attended = start, [], []
    for t, inputs in enumerate(gates):
        attended.append(attend_step(state[0], attention, t))
        state = cell_step(
            inputs + functional.linear(attended[-1].context, attention.context_to_gates), state, weight, bias
        )
        states.append(state[0])
    return torch.stack(states), AttentionSteps(*(torch.stack(part) for part in zip(*attended, strict=True)))


def attend_step(state: Tensor, attention: RecurrentAttention, step: int = 0) -> AttentionSteps:
    """The attention of one step, by the state before it, `[rows, hidden]`."""
    key, value, score = attention.key, attention.value, attention.score
    projected = functional.linear(state, attention.state_to_query, attention.query_bias)
    query, gate = projected[:, : len(score)], projected[:, len(score) :]
    if attention.activation is torch.tanh and not torch.is_grad_enabled() and fusible(query, key, value, score):
        mean, weights = _attend_fused(projected, attention)
    else:
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
    spread(
        lambda rows: loops.additive_scores(q[rows], k, w, indices[rows], into[rows]),
        _slices_of_step(len(query), key[:1].numel()),
    )
    return out


def _attend_fused(projected: Tensor, attention: RecurrentAttention) -> tuple[Tensor, Tensor]:
    """The mean `[rows, v]` and the weights `[rows, n]`, without gradients; the first h columns are the queries."""
    from regard.ops import recurrent_loops as loops

    key, value, score = (x.contiguous() for x in (attention.key, attention.value, attention.score))
    mean, weights = value.new_empty(len(value), value.shape[2]), key.new_empty(key.shape[:2])
    counts = _key_counts(attention)

    def task(rows: slice) -> None:
        keys = loops.Keys(*_arrays(key[rows], score, value[rows], counts[rows]))
        loops.additive_forward(projected[rows].numpy(), keys, *_arrays(mean[rows], weights[rows]))

    spread(task, _slices_of_step(len(key), key[:1].numel()))
    return mean, weights


def draw_keys(weights: Tensor, uniform: Tensor) -> Tensor:
    """Sample a key per row by inversion: where the cumulative weights exceed a number in [0, 1); `[rows]`."""
    cumulative = weights.cumsum(dim=1, dtype=torch.float64)
    target = uniform.to(torch.float64) * cumulative[:, -1]
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


def _state_and_memory(start: State) -> tuple[Tensor, Tensor | None]:
    """The state, and the memory of an LSTM; None for a GRU."""
    return start[0], start[1] if len(start) > 1 else None


def _arrays(*tensors: Tensor) -> list[NDArray[Any]]:
    """Tensors as NumPy arrays over the same memory, for the loops."""
    return [tensor.numpy() for tensor in tensors]


class _SavedAttention(NamedTuple):
    """What backward needs of the attention."""

    context_to_gates: Tensor  # C
    key: Tensor
    score: Tensor  # w
    value: Tensor
    counts: Tensor
    means: Tensor  # [m, rows, v]  z
    contexts: Tensor  # [m, rows, v]  c; without a gate the same tensor
    weights: Tensor  # [m, rows, n]  α
    chosen: Tensor  # [m, rows]  index of the chosen key; -1: none
    draw: Draw | None = None


class _Saved(NamedTuple):
    """What backward needs."""

    weight: Tensor  # U
    states: Tensor  # [m + 1, rows, hidden]
    memory: Tensor | None  # [m + 1, rows, hidden]  of an LSTM
    projected: Tensor  # [m, rows, h (+ v) + gates · hidden]  U s + b, of which the gate b_t is activated
    active: Tensor  # [m, rows, gates · hidden]  the cell's gates after their activation
    attention: _SavedAttention | None

    @property
    def offset(self) -> int:
        """Query and gate are in front of the cell's gates: columns of `projected`."""
        return self.projected.shape[2] - self.active.shape[2]


class _AttentionGradients(NamedTuple):
    """The gradients of the attention."""

    means: Tensor  # [m, rows, v]  at first those of the contexts as outputs
    weights: Tensor  # [m, rows, n]  of α as an output; overwritten
    key: Tensor  # [rows, n, h]


class _Gradients(NamedTuple):
    """The gradients of all outputs and inputs that belong to rows."""

    states: Tensor  # [m, rows, hidden]
    gates: Tensor  # [m, rows, gates · hidden]  of the input's part
    projected: Tensor  # [m, rows, h (+ v) + gates · hidden]  of U s + b
    start: Tensor  # [rows, hidden]  of the state, updated from step to step
    memory: Tensor | None  # [rows, hidden]  of the memory, likewise
    attention: _AttentionGradients | None


class _Recurrence(torch.autograd.Function):
    """(states, contexts, α, chosen) of gates, state, memory, U, b, draw, and of attention C, key, w, value, counts."""

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
        steps, rows, width = gates.shape
        saved = _Saved(
            weight.contiguous(),
            states=_allocate_states(start, steps),
            memory=None if memory is None else _allocate_states(memory, steps),
            projected=gates.new_empty(steps, rows, len(weight)),
            active=gates.clone(memory_format=torch.contiguous_format),
            attention=_allocate_attention(steps, len(weight) - width, draw, *attention) if attention else None,
        )
        # A product of few rows with a wide matrix is faster if the matrix is stored in the order it is read.
        weight_t = weight.t().contiguous()
        context_to_gates_t = saved.attention.context_to_gates.t().contiguous() if saved.attention else None
        spread(lambda some: _forward_rows(saved, some, bias, weight_t, context_to_gates_t), _slices_of_rows(rows))
        ctx.save_for_backward(*saved[:5], *(saved.attention[:-1] if saved.attention else ()))
        ctx.draw = draw
        if saved.attention is None:
            return saved.states[1:], None, None, None
        ctx.mark_non_differentiable(saved.attention.chosen)
        # Views of the saved tensors: saving the outputs themselves would keep their own history alive.
        contexts, weights, chosen = saved.attention[-4:-1]
        return saved.states[1:], contexts.view_as(contexts), weights.view_as(weights), chosen

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, states_grad: Tensor, *attention_grads: Tensor) -> tuple[Tensor | None, ...]:
        tensors = ctx.saved_tensors
        attention = _SavedAttention(*tensors[5:])._replace(draw=ctx.draw) if len(tensors) > 5 else None
        weight, states, memory, projected, active = tensors[:5]
        saved = _Saved(weight, states, memory, projected, active, attention)
        gradients = _Gradients(
            states_grad.contiguous(),
            gates=torch.empty_like(active),
            projected=torch.empty_like(projected),
            start=torch.zeros_like(states[0]),
            memory=None if memory is None else torch.zeros_like(states[0]),
            attention=None if attention is None else _allocate_gradients(attention, *attention_grads[:2]),
        )
        score_grads = spread(lambda some: _backward_rows(saved, gradients, some), _slices_of_rows(active.shape[1]))
        projected_grad = gradients.projected.flatten(0, 1)  # [m · rows, h (+ v) + gates · hidden]
        weight_grad = projected_grad.t() @ states[:-1].flatten(0, 1)
        cell_grads = gradients.gates, gradients.start, gradients.memory, weight_grad, projected_grad.sum(dim=0), None
        if attention is None or gradients.attention is None:
            return cell_grads
        context_to_gates_grad = gradients.gates.flatten(0, 1).t() @ attention.contexts.flatten(0, 1)
        score_grad = sum(score_grads, torch.zeros_like(attention.score))
        value_grad = None
        if ctx.needs_input_grad[9]:
            # [rows, n, m] by [rows, m, v]
            weights = _applied_weights(attention).permute(1, 2, 0)
            value_grad = torch.bmm(weights, gradients.attention.means.permute(1, 0, 2))
        return *cell_grads, context_to_gates_grad, gradients.attention.key, score_grad, value_grad, None


def _allocate_states(start: Tensor, steps: int) -> Tensor:
    """Memory for the first state and those of all steps, `[m + 1, rows, hidden]`, with the first one written."""
    states = start.new_empty(steps + 1, *start.shape)
    states[0] = start
    return states


def _allocate_attention(
    steps: int,
    offset: int,
    draw: Draw | None,
    context_to_gates: Tensor,
    key: Tensor,
    score: Tensor,
    value: Tensor,
    counts: Tensor,
) -> _SavedAttention:
    """The inputs of the attention, contiguous, with memory for its results of all steps."""
    rows, keys, size = value.shape
    context_to_gates, key, score, value, counts = (
        x.contiguous() for x in (context_to_gates, key, score, value, counts)
    )
    means = value.new_empty(steps, rows, size)
    contexts = torch.empty_like(means) if offset > len(score) else means
    weights, chosen = value.new_empty(steps, rows, keys), counts.new_full((steps, rows), -1)
    return _SavedAttention(context_to_gates, key, score, value, counts, means, contexts, weights, chosen, draw)


def _allocate_gradients(attention: _SavedAttention, contexts_grad: Tensor, weights_grad: Tensor) -> _AttentionGradients:
    """Copies of the outputs' gradients, which backward overwrites, and zeros for that of the keys."""
    contexts, weights = (grad.clone(memory_format=torch.contiguous_format) for grad in (contexts_grad, weights_grad))
    return _AttentionGradients(contexts, weights, torch.zeros_like(attention.key))


def _applied_weights(attention: _SavedAttention) -> Tensor:
    """The weights of the values in the means: α, or 1 for a chosen key."""
    if attention.draw is None:
        return attention.weights
    chosen = attention.chosen.unsqueeze(2)
    one_hot = torch.zeros_like(attention.weights).scatter_(2, chosen.clamp(min=0), 1.0)
    return torch.where(chosen < 0, attention.weights, one_hot)


def _forward_rows(
    saved: _Saved, rows: slice, bias: Tensor, weight_t: Tensor, context_to_gates_t: Tensor | None
) -> None:
    """Some rows through all steps; weight_t and context_to_gates_t are Uᵀ and Cᵀ."""
    from regard.ops import recurrent_loops as loops

    attention, offset = saved.attention, saved.offset
    for t in range(len(saved.active)):
        before, after = saved.states[t, rows], saved.states[t + 1, rows]
        projected, active = saved.projected[t, rows], saved.active[t, rows]
        torch.addmm(bias, before, weight_t, out=projected)
        if attention is not None and context_to_gates_t is not None:
            _attend_forward(attention, projected, offset, t, rows)
            active.addmm_(attention.contexts[t, rows], context_to_gates_t)
        if saved.memory is None:
            loops.gru_forward(*_arrays(active, projected), offset, *_arrays(before, after))
        else:
            loops.lstm_forward(*_arrays(active, projected), offset, *_arrays(*saved.memory[t : t + 2, rows], after))


def _attend_forward(attention: _SavedAttention, projected: Tensor, offset: int, t: int, rows: slice) -> None:
    """The attention of some rows at step t."""
    from regard.ops import recurrent_loops as loops

    means, weights, value = attention.means[t, rows], attention.weights[t, rows], attention.value[rows]
    keys = loops.Keys(*_arrays(attention.key[rows], attention.score, value, attention.counts[rows]))
    loops.additive_forward(projected.numpy(), keys, *_arrays(means, weights))
    if attention.draw is not None:
        chosen = _choose(weights, attention.draw, t, rows)
        attention.chosen[t, rows] = chosen
        means.copy_(_chosen_values(value, chosen, means))
    if offset > len(attention.score):
        gate = projected[:, len(attention.score) : offset].sigmoid_()
        torch.mul(means, gate, out=attention.contexts[t, rows])


def _backward_rows(saved: _Saved, gradients: _Gradients, rows: slice) -> Tensor:
    """Some rows backward through all steps; returns their gradient of the score's weight `[h]`."""
    from regard.ops import recurrent_loops as loops

    attention, offset, start_grad = saved.attention, saved.offset, gradients.start[rows]
    score_grad = start_grad.new_zeros(0 if attention is None else len(attention.score))
    for t in reversed(range(len(saved.active))):
        start_grad.add_(gradients.states[t, rows])
        projected, projected_grad = saved.projected[t, rows], gradients.projected[t, rows]
        gates_grad = gradients.gates[t, rows]
        active, grad, *outputs = _arrays(saved.active[t, rows], start_grad, gates_grad, projected_grad)
        if saved.memory is None or gradients.memory is None:
            loops.gru_backward(active, projected.numpy(), offset, saved.states[t, rows].numpy(), grad, *outputs)
        else:
            memory = _arrays(*saved.memory[t : t + 2, rows])
            loops.lstm_backward(active, offset, *memory, grad, gradients.memory[rows].numpy(), *outputs)
        if attention is not None and gradients.attention is not None:
            means_grad, weights_grad, key_grad = gradients.attention
            mean_grad = means_grad[t, rows].addmm_(gates_grad, attention.context_to_gates)
            if offset > len(attention.score):
                gate, gate_grad = (x[:, len(attention.score) : offset] for x in (projected, projected_grad))
                torch.mul(mean_grad * attention.means[t, rows], gate * (1 - gate), out=gate_grad)
                mean_grad *= gate
            if attention.draw is not None:
                # A chosen value gives α no gradient. A new tensor: the values still need the gradient of all rows.
                mean_grad = mean_grad * (attention.chosen[t, rows] < 0).unsqueeze(1)
            inputs = attention.key[rows], attention.score, attention.value[rows], attention.counts[rows]
            grads = mean_grad, weights_grad[t, rows], projected_grad, key_grad[rows], score_grad
            weights = attention.weights[t, rows].numpy()
            loops.additive_backward(
                projected.numpy(), loops.Keys(*_arrays(*inputs)), weights, loops.AdditiveGradients(*_arrays(*grads))
            )
        start_grad.addmm_(projected_grad, saved.weight)
    return score_grad


def _slices_of_rows(rows: int) -> list[slice]:
    """The rows of a recurrence, divided among threads."""
    return _divide(rows, rows // MIN_ROWS_PER_THREAD)


def _slices_of_step(rows: int, size: int) -> list[slice]:
    """The rows of one step, of `size` evaluations of tanh each, divided among threads if there is much work."""
    return _divide(rows, rows if rows * size > SINGLE_THREAD_LIMIT else 1)


def _divide(rows: int, most: int) -> list[slice]:
    """The rows in one slice per thread, at most `most`."""
    threads = max(1, min(torch.get_num_threads(), most))
    return list(spans(rows, max(1, -(-rows // threads))))
