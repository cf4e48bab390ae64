"""The recurrence of a decoder that looks at a grid before each step, all steps in one call.

    [q; b; r] = M h_{t-1} + [bias; 0]      e_ti = wᵀ tanh(q + k_i)      α = softmax(e)      z = σ(b) ∘ Σ_i α_i a_i
    h_t, c_t = LSTM gates of x_t + r + C z                               x_t: what the word gives, bias included

What does not depend on the state is given: keys k, and x of all words. Backward is written by hand: the gradients of
matrices are one product over all steps, the hidden layer of the score is computed again, not kept. With a `Draw` the
attention is hard: z = σ(b) ∘ a_s with s drawn from α, and no gradient comes to α from z. It is differentiated once.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.attend import attend
from regard.ops import additive
from regard.weighing import Weighing


class Maps(NamedTuple):
    """The weights of the recurrence: attention, channels and hidden are a, d and n."""

    weight: Tensor  # [a]  of the score
    state: Tensor  # [a + d + 4n, n]  M: what the state gives to query, gate and LSTM
    bias: Tensor  # [a + d]  of query and gate
    context: Tensor  # [4n, d]  C: what the context gives to the LSTM


class Draw(NamedTuple):
    """How cells are drawn."""

    # [batch, m]  in [0, 1): where it falls on the cumulated weights is the cell; None: the likeliest
    shot: Tensor | None
    expected: Tensor  # [batch]  captions that take the mean of all cells instead


class Walk(NamedTuple):
    """What the recurrence came to at each step."""

    states: Tensor  # [batch, m, n]
    contexts: Tensor  # [batch, m, d]  z
    weights: Tensor  # [batch, m, cells]  α
    chosen: Tensor  # [batch, m]  the cells that were drawn; -1 where none was


class Regions:
    """The grids that captions in the making look at: kept once an image, however many captions it has.

    key    `[images, cells, hidden]`, projected
    value  `[images, cells, channels]`
    which  `[rows]`  the image of each row
    """

    def __init__(self, key: Tensor, value: Tensor, which: Tensor | None = None) -> None:
        self.key, self.value = key, value
        self.which = torch.arange(len(key), device=key.device) if which is None else which

    def select(self, rows: Tensor) -> "Regions":
        """The same for some rows; images that no row is of leave."""
        which = self.which[rows]
        images, which = which.unique(return_inverse=True)  # type: ignore[no-untyped-call]
        if len(images) == len(self.key):
            return Regions(self.key, self.value, which)
        return Regions(self.key[images], self.value[images], which)

    def attended(self, query: Tensor, weight: Tensor, weigh: Weighing) -> Tensor:
        """What projected queries `[rows, hidden]` see: `[rows, channels]`."""
        scores = additive.scores(query, self.key, weight, self.which).unsqueeze(1)  # [rows, 1, cells]
        each = len(query) // len(self.key)
        beam = torch.arange(len(self.key), device=query.device).repeat_interleave(each)
        if len(beam) == len(query) and torch.equal(beam, self.which):  # the rows of an image stand together
            scores, value = scores.view(len(self.key), each, -1), self.value
        else:
            value = self.value[self.which]
        return attend(scores, value, value, score=as_given, weigh=weigh, engine="dense").flatten(0, 1)


def as_given(scores: Tensor, key: Tensor) -> Tensor:
    """The score that is known already, in the place of a query."""
    return scores


def walk(key: Tensor, grid: Tensor, given: Tensor, hidden: Tensor, cell: Tensor, maps: Maps, draw: Draw | None) -> Walk:
    """The recurrence over all words.

    key            `[batch, cells, a]`, projected
    grid           `[batch, cells, d]`
    given          `[batch, m, 4n]`, what words and biases give to the LSTM's gates, in torch's order
    hidden, cell   `[batch, n]`, the state before the first word
    """
    return Walk(*Recurrence.apply(key, grid, given, hidden, cell, *maps, draw))  # type: ignore[no-untyped-call]


class Recurrence(torch.autograd.Function):
    """All steps; buffers have the steps first."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, ...]:
        key, grid, given, hidden, cell, weight, state_map, bias, context_map, draw = inputs
        seen = additive.Seen(key.contiguous(), weight, grid.contiguous())
        steps, (batch, cells, channels), size = given.shape[1], grid.shape, hidden.shape[1]
        width = len(weight)
        states, memory = hidden.new_empty(steps + 1, batch, size), hidden.new_empty(steps + 1, batch, size)
        states[0], memory[0] = hidden, cell
        gates = given.transpose(0, 1).contiguous()  # [m, batch, 4n]  they become σ, σ, tanh, σ of what they hold
        weights, chosen = grid.new_empty(steps, batch, cells), torch.full((steps, batch), -1, device=grid.device)
        queries, means, betas = (grid.new_empty(steps, batch, n) for n in (width, channels, channels))
        whole_bias = torch.cat([bias, bias.new_zeros(4 * size)])
        for t in range(steps):
            asked = torch.addmm(whole_bias, states[t], state_map.T)
            query, beta, rest = torch.split(asked, [width, channels, 4 * size], 1)
            queries[t] = query
            additive.forward(queries[t], seen, means[t], weights[t])
            if draw is not None:
                took = weights[t].argmax(dim=1) if draw.shot is None else drawn(weights[t], draw.shot[:, t])
                chosen[t] = took.masked_fill_(draw.expected, -1)
                alone = grid[torch.arange(batch, device=grid.device), chosen[t]]
                means[t] = torch.where(draw.expected.unsqueeze(1), means[t], alone)
            torch.sigmoid(beta, out=betas[t])
            gates[t] += rest
            gates[t].addmm_(means[t] * betas[t], context_map.T)
            opened(gates[t], memory[t], memory[t + 1], states[t + 1])
        contexts = means * betas
        ctx.save_for_backward(*seen[:3], state_map, context_map)
        ctx.kept = states, memory, gates, weights, chosen, queries, means, betas, contexts
        ctx.hard = draw is not None
        ctx.mark_non_differentiable(chosen)
        return (*(part.transpose(0, 1) for part in (states[1:], contexts, weights)), chosen.T)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, states_slope: Tensor, contexts_slope: Tensor, weights_slope: Tensor, _: Any
    ) -> tuple[Tensor | None, ...]:
        key, weight, grid, state_map, context_map = ctx.saved_tensors
        seen = additive.Seen(key, weight, grid)
        states, memory, gates, weights, chosen, queries, means, betas, contexts = ctx.kept
        steps, batch, size = gates.shape[0], gates.shape[1], states.shape[2]
        width, channels = len(weight), grid.shape[2]
        every = gates.new_empty(steps, batch, width + channels + 4 * size)  # slopes of [q; b; gates]
        means_slope = torch.empty_like(means)
        pulls = weights_slope.transpose(0, 1).clone(memory_format=torch.contiguous_format)
        key_slope, weight_slope = torch.zeros_like(key), torch.zeros_like(weight)
        later, cell_slope = torch.zeros_like(states[0]), torch.zeros_like(memory[0])
        for t in reversed(range(steps)):
            _, beta_slope, gates_slope = every[t].split([width, channels, 4 * size], 1)
            cell_slope = closed(gates[t], memory[t], memory[t + 1], states_slope[:, t] + later, cell_slope, gates_slope)
            context_slope = torch.addmm(contexts_slope[:, t], gates_slope, context_map)
            beta = betas[t]
            torch.mul(context_slope * means[t], beta * (1 - beta), out=beta_slope)
            torch.mul(context_slope, beta, out=means_slope[t])
            through = means_slope[t]
            if ctx.hard:
                through = through * (chosen[t] < 0).unsqueeze(1)
            slopes = additive.Slopes(through, pulls[t], every[t], key_slope)
            weight_slope += additive.backward(queries[t], seen, weights[t], slopes)
            later = every[t] @ state_map
        flat, gates_slope = every.flatten(0, 1), every[..., width + channels :]
        grid_slope = None
        if ctx.needs_input_grad[1]:
            used = weights
            if ctx.hard:
                one = torch.zeros_like(weights).scatter_(2, chosen.clamp(min=0).unsqueeze(2), 1.0)
                used = torch.where((chosen < 0).unsqueeze(2), weights, one)
            grid_slope = torch.einsum("tbi,tbd->bid", used, means_slope)
        return (
            key_slope,
            grid_slope,
            gates_slope.transpose(0, 1),
            later,
            cell_slope,
            weight_slope,
            flat.T @ states[:-1].flatten(0, 1),
            flat[:, : width + channels].sum(dim=0),
            flat[:, width + channels :].T @ contexts.flatten(0, 1),
            None,
        )


def drawn(weights: Tensor, shot: Tensor) -> Tensor:
    """The cell where a number in [0, 1) falls on the cumulated weights of each row, `[batch]`."""
    reached = weights.cumsum(dim=1, dtype=torch.float64)
    shot = shot.to(torch.float64) * reached[:, -1]
    return torch.searchsorted(reached, shot.unsqueeze(1), right=True).squeeze(1).clamp_(max=weights.shape[1] - 1)


def opened(gates: Tensor, before: Tensor, cell: Tensor, hidden: Tensor) -> None:
    """One step of an LSTM from what its gates are given, `[batch, 4n]`, which becomes how far they are open."""
    size = before.shape[1]
    gates[:, : 2 * size].sigmoid_()
    gates[:, 2 * size : 3 * size].tanh_()
    gates[:, 3 * size :].sigmoid_()
    enter, forget, new, leave = gates.chunk(4, dim=1)
    torch.mul(forget, before, out=cell)
    cell.addcmul_(enter, new)
    torch.tanh(cell, out=hidden)
    hidden.mul_(leave)


def closed(gates: Tensor, before: Tensor, cell: Tensor, slope: Tensor, cell_slope: Tensor, out: Tensor) -> Tensor:
    """The slopes of what one step's gates were given, into `out`, and that of the cell before it."""
    enter, forget, new, leave = gates.chunk(4, dim=1)
    shown = torch.tanh(cell)
    cell_slope = torch.addcmul(cell_slope, slope * leave, 1 - shown.square())
    into = out.chunk(4, dim=1)
    torch.mul(cell_slope * new, enter * (1 - enter), out=into[0])
    torch.mul(cell_slope * before, forget * (1 - forget), out=into[1])
    torch.mul(cell_slope * enter, 1 - new.square(), out=into[2])
    torch.mul(slope * shown, leave * (1 - leave), out=into[3])
    return cell_slope * forget
