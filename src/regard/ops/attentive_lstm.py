"""The recurrence of a captioner, an LSTM with gated attention to a grid, over all steps in one call.

    [q; b; r] = M h_{t-1} + [bias; 0]      e_ti = wᵀ tanh(q + k_i)      α = softmax(e)      z = σ(b) ∘ Σ_i α_i a_i
    h_t, c_t = LSTM gates of x_t + r + C z                               x_t: the word's part of the gates, with bias

(Xu et al. 2015, equations 1 to 5.) The inputs that do not depend on the state are computed before: keys k, and x of all
words. Backward is written by hand: the gradients of matrices are one product over all steps each, and the score's
hidden layer is recomputed, not stored. With a `Draw` the attention is hard: z = σ(b) ∘ a_s with s drawn from α, and z
gives no gradient to α. Differentiable once.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.ops import additive


class Maps(NamedTuple):
    """The weights of the recurrence, for `a` hidden units of the score, `d` channels and `n` units of the LSTM."""

    weight: Tensor  # [a]  of the score
    state: Tensor  # [a + d + 4n, n]  M: from the state to query, gate and LSTM
    bias: Tensor  # [a + d]  of query and gate
    context: Tensor  # [4n, d]  C: from the context to the LSTM


class Draw(NamedTuple):
    """How hard attention chooses cells."""

    uniform: Tensor | None  # [batch, m]  in [0, 1), for sampling by inversion; None: the most probable cell
    expected: Tensor  # [batch]  captions that use the mean of all cells instead


class Trajectory(NamedTuple):
    """The outputs of the recurrence at each step."""

    states: Tensor  # [batch, m, n]
    contexts: Tensor  # [batch, m, d]  z
    weights: Tensor  # [batch, m, cells]  α
    chosen_cells: Tensor  # [batch, m]  index of the cell that hard attention chose; -1: none, the mean of all was used


class _SavedSteps(NamedTuple):
    """What backward needs of each step, steps first."""

    states: Tensor  # [m + 1, batch, n]
    memory: Tensor  # [m + 1, batch, n]  c of the LSTM
    gates: Tensor  # [m, batch, 4n]  after their activation
    weights: Tensor  # [m, batch, cells]  α
    chosen_cells: Tensor  # [m, batch]
    queries: Tensor  # [m, batch, a]
    means: Tensor  # [m, batch, d]  the attended value, before the gate
    betas: Tensor  # [m, batch, d]  σ(b)


def run_recurrence(
    key: Tensor, grid: Tensor, inputs: Tensor, state: tuple[Tensor, Tensor], maps: Maps, draw: Draw | None
) -> Trajectory:
    """The recurrence over all words.

    key      `[batch, cells, a]`, projected
    grid     `[batch, cells, d]`
    inputs   `[batch, m, 4n]`, the words' part of the LSTM's gates with biases, in torch's order
    state    hidden state and memory before the first word, `[batch, n]` each
    draw     default: soft attention
    """
    return Trajectory(*_AttentiveLSTM.apply(key, grid, inputs, *state, *maps, draw))  # type: ignore[no-untyped-call]


class _AttentiveLSTM(torch.autograd.Function):
    """All steps of the recurrence."""

    @staticmethod
    def forward(
        ctx: Any, key: Tensor, grid: Tensor, inputs: Tensor, hidden: Tensor, memory: Tensor, *rest: Any
    ) -> tuple[Tensor, ...]:
        maps, draw = Maps(*rest[:4]), rest[4]
        keys_and_values = additive.KeysAndValues(key.contiguous(), maps.weight, grid.contiguous())
        saved = _allocate_steps(grid, inputs, hidden, memory, len(maps.weight))
        size, channels, width = hidden.shape[1], grid.shape[2], len(maps.weight)
        bias = torch.cat([maps.bias, maps.bias.new_zeros(4 * size)])
        for t in range(inputs.shape[1]):
            from_state = torch.addmm(bias, saved.states[t], maps.state.T)
            query, beta, state_gates = torch.split(from_state, [width, channels, 4 * size], 1)
            saved.queries[t] = query
            additive.forward(saved.queries[t], keys_and_values, saved.means[t], saved.weights[t])
            if draw is not None:
                _choose_cells(saved, t, grid, draw)
            torch.sigmoid(beta, out=saved.betas[t])
            gates = saved.gates[t]
            gates += state_gates
            gates.addmm_(saved.means[t] * saved.betas[t], maps.context.T)
            lstm_forward(gates, saved.memory[t], saved.memory[t + 1], saved.states[t + 1])
        contexts = saved.means * saved.betas
        ctx.save_for_backward(*keys_and_values[:3], maps.state, maps.context)
        ctx.steps, ctx.contexts, ctx.hard = saved, contexts, draw is not None
        ctx.mark_non_differentiable(saved.chosen_cells)
        # [m, batch, …] to [batch, m, …]
        outputs = (part.transpose(0, 1) for part in (saved.states[1:], contexts, saved.weights))
        return *outputs, saved.chosen_cells.T

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, states_grad: Tensor, contexts_grad: Tensor, weights_grad: Tensor, _: None
    ) -> tuple[Tensor | None, ...]:
        key, weight, grid, state_map, context_map = ctx.saved_tensors
        keys_and_values = additive.KeysAndValues(key, weight, grid)
        saved: _SavedSteps = ctx.steps
        steps, batch, width, channels = *saved.gates.shape[:2], len(weight), grid.shape[2]
        size = saved.states.shape[2]
        state_outputs_grad = weight.new_empty(steps, batch, width + channels + 4 * size)  # of [q; b; gates]
        means_grad = torch.empty_like(saved.means)
        attention_grad = weights_grad.transpose(0, 1).clone(memory_format=torch.contiguous_format)  # [m, batch, cells]
        key_grad, weight_grad = torch.zeros_like(key), torch.zeros_like(weight)
        hidden_grad, memory_grad = torch.zeros_like(saved.states[0]), torch.zeros_like(saved.memory[0])
        for t in reversed(range(steps)):
            _, beta_grad, gates_grad = state_outputs_grad[t].split([width, channels, 4 * size], 1)
            memories = saved.memory[t], saved.memory[t + 1]
            state_grad = states_grad[:, t] + hidden_grad
            memory_grad = lstm_backward(saved.gates[t], memories, state_grad, memory_grad, gates_grad)
            context_grad = torch.addmm(contexts_grad[:, t], gates_grad, context_map)
            beta = saved.betas[t]
            torch.mul(context_grad * saved.means[t], beta * (1 - beta), out=beta_grad)
            torch.mul(context_grad, beta, out=means_grad[t])
            mean_grad = means_grad[t]
            if ctx.hard:  # only captions that used the expected cell (index -1) give α a gradient through the context
                mean_grad = mean_grad * (saved.chosen_cells[t] < 0).unsqueeze(1)
            gradients = additive.StepGradients(mean_grad, attention_grad[t], state_outputs_grad[t], key_grad)
            weight_grad += additive.backward(saved.queries[t], keys_and_values, saved.weights[t], gradients)
            hidden_grad = state_outputs_grad[t] @ state_map
        flat = state_outputs_grad.flatten(0, 1)  # [m · batch, a + d + 4n]
        return (
            key_grad,
            _grid_gradient(saved, means_grad, ctx.hard) if ctx.needs_input_grad[1] else None,
            state_outputs_grad[..., width + channels :].transpose(0, 1),
            hidden_grad,
            memory_grad,
            weight_grad,
            flat.T @ saved.states[:-1].flatten(0, 1),
            flat[:, : width + channels].sum(dim=0),
            flat[:, width + channels :].T @ ctx.contexts.flatten(0, 1),
            None,
        )


def _allocate_steps(grid: Tensor, inputs: Tensor, hidden: Tensor, memory: Tensor, width: int) -> _SavedSteps:
    """Memory for all steps, with the first state and the words' part of the gates written."""
    (batch, cells, channels), steps, size = grid.shape, inputs.shape[1], hidden.shape[1]
    states, memories = hidden.new_empty(steps + 1, batch, size), hidden.new_empty(steps + 1, batch, size)
    states[0], memories[0] = hidden, memory
    return _SavedSteps(
        states,
        memories,
        inputs.transpose(0, 1).contiguous(),  # [m, batch, 4n]
        grid.new_empty(steps, batch, cells),
        torch.full((steps, batch), -1, device=grid.device),  # -1: no cell was chosen
        *(grid.new_empty(steps, batch, n) for n in (width, channels, channels)),
    )


def _choose_cells(saved: _SavedSteps, t: int, grid: Tensor, draw: Draw) -> None:
    """Choose the cells of step t by its weights; their values replace the means, except for expected cells."""
    weights, means = saved.weights[t], saved.means[t]
    chosen = weights.argmax(dim=1) if draw.uniform is None else draw_cells(weights, draw.uniform[:, t])
    # Index -1 marks captions that use the expected cell; indexing with it is harmless, as `where` keeps their mean.
    saved.chosen_cells[t] = chosen.masked_fill_(draw.expected, -1)
    values = grid[torch.arange(len(grid), device=grid.device), saved.chosen_cells[t]]
    saved.means[t] = torch.where(draw.expected.unsqueeze(1), means, values)


def draw_cells(weights: Tensor, uniform: Tensor) -> Tensor:
    """Sample a cell per row by inversion: where the cumulative weights exceed a number in [0, 1); `[batch]`."""
    cumulative = weights.cumsum(dim=1, dtype=torch.float64)
    target = uniform.to(torch.float64) * cumulative[:, -1]
    return torch.searchsorted(cumulative, target.unsqueeze(1), right=True).squeeze(1).clamp_(max=weights.shape[1] - 1)


def _grid_gradient(saved: _SavedSteps, means_grad: Tensor, hard: bool) -> Tensor:
    """The gradient of the grid, `[batch, cells, d]`, over all steps at once."""
    weights = saved.weights
    if hard:
        expected = (saved.chosen_cells < 0).unsqueeze(2)
        one_hot = torch.zeros_like(weights).scatter_(2, saved.chosen_cells.clamp(min=0).unsqueeze(2), 1.0)
        weights = torch.where(expected, weights, one_hot)
    return torch.einsum("tbi,tbd->bid", weights, means_grad)


def lstm_forward(gates: Tensor, before: Tensor, memory: Tensor, hidden: Tensor) -> None:
    """One step of an LSTM: gates `[batch, 4n]` are activated in place, `memory` and `hidden` are written."""
    size = before.shape[1]
    gates[:, : 2 * size].sigmoid_()
    gates[:, 2 * size : 3 * size].tanh_()
    gates[:, 3 * size :].sigmoid_()
    enter, forget, new, output = gates.chunk(4, dim=1)
    torch.mul(forget, before, out=memory)
    memory.addcmul_(enter, new)
    torch.tanh(memory, out=hidden)
    hidden.mul_(output)


def lstm_backward(
    gates: Tensor, memories: tuple[Tensor, Tensor], state_grad: Tensor, memory_grad: Tensor, out: Tensor
) -> Tensor:
    """Write the gradient of one step's gates into `out` `[batch, 4n]`; returns that of the memory before the step.

    gates         after their activation
    memories      before and after the step
    memory_grad   of the memory after the step, from later steps
    """
    enter, forget, new, output = gates.chunk(4, dim=1)
    before, after = memories
    squashed = torch.tanh(after)
    memory_grad = torch.addcmul(memory_grad, state_grad * output, 1 - squashed.square())
    enter_grad, forget_grad, new_grad, output_grad = out.chunk(4, dim=1)
    torch.mul(memory_grad * new, enter * (1 - enter), out=enter_grad)
    torch.mul(memory_grad * before, forget * (1 - forget), out=forget_grad)
    torch.mul(memory_grad * enter, 1 - new.square(), out=new_grad)
    torch.mul(state_grad * squashed, output * (1 - output), out=output_grad)
    return memory_grad * forget
