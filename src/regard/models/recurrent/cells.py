"""The cells of torch's `nn.GRU` and `nn.LSTM`: their weights, one step of them, and all steps at once."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.ops.additive import fusible
from regard.ops.attentive_rnn import recurrence
from regard.ops.hashed_dropout import dropped

Cell = type[nn.GRU] | type[nn.LSTM]
State = tuple[Tensor, ...]
"""Of one layer: (s,) for a GRU, (s, memory) for an LSTM, `[rows, hidden]` each."""


class Weights(NamedTuple):
    """The parameters of one layer of an `nn.GRU` or `nn.LSTM`."""

    input: Tensor  # [gates · hidden, size]
    hidden: Tensor  # [gates · hidden, hidden]
    input_bias: Tensor
    hidden_bias: Tensor

    def gates(self, x: Tensor) -> Tensor:
        """The part of the gates that an input has, which may be the first numbers of the cell's: with the bias."""
        return functional.linear(x, self.input[:, : x.shape[-1]], self.input_bias)

    def more(self, x: Tensor) -> Tensor:
        """The part of the gates that the last numbers of an input have."""
        return functional.linear(x, self.input[:, -x.shape[-1] :])


def weights_of(rnn: nn.RNNBase, layer: int = 0, back: bool = False) -> Weights:
    """The parameters of one layer, of the way back where it has one."""
    name = f"l{layer}_reverse" if back else f"l{layer}"
    return Weights(*(getattr(rnn, f"{kind}_{name}") for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")))


def cell_step(gates: Tensor, state: State, weights: Weights) -> State:
    """One step of a GRU or an LSTM, whose input's part of the gates is given with its bias: `[rows, gates · hidden]`.

    As torch defines them: a GRU's reset gate is on U s + b, and its update gate says how much of s stays.
    """
    hidden = functional.linear(state[0], weights.hidden, weights.hidden_bias)
    if len(state) == 1:
        reset, update, new = gates.chunk(3, dim=-1)
        hidden_reset, hidden_update, hidden_new = hidden.chunk(3, dim=-1)
        update = torch.sigmoid(update + hidden_update)
        new = torch.tanh(new + torch.sigmoid(reset + hidden_reset) * hidden_new)
        return (new + update * (state[0] - new),)
    enter, forget, new, out = (gates + hidden).chunk(4, dim=-1)
    memory = torch.sigmoid(forget) * state[1] + torch.sigmoid(enter) * torch.tanh(new)
    return torch.sigmoid(out) * torch.tanh(memory), memory


def run(rnn: nn.GRU | nn.LSTM, x: Tensor, start: list[State], constant: Tensor | None = None) -> Tensor:
    """All steps of all layers, from states of their own: `[batch, m, size]` to `[batch, m, hidden]`.

    constant   what stands behind x in the input of every step, `[batch, more]`
    """
    if not fusible(x, weights_of(rnn).input):
        if constant is not None:
            x = torch.cat([x, constant.unsqueeze(1).expand(-1, x.shape[1], -1)], dim=-1)
        stacked = tuple(torch.stack(part) for part in zip(*start, strict=True))
        states: Tensor = rnn(x, stacked if isinstance(rnn, nn.LSTM) else stacked[0])[0]
        return states
    x = x.transpose(0, 1)  # steps first
    for number, state in enumerate(start):
        weights = weights_of(rnn, number)
        x = between(rnn, x) if number else x
        gates = weights.gates(x)
        if number == 0 and constant is not None:
            gates = gates + weights.more(constant)
        x = recurrence(gates, state, weights.hidden, weights.hidden_bias)
    return x.transpose(0, 1)


def stack_step(rnn: nn.GRU | nn.LSTM, gates: Tensor, layers: list[State]) -> list[State]:
    """One step of all layers, from the input's part of the first one's gates: `[rows, gates · hidden]`."""
    made: list[State] = []
    for number, state in enumerate(layers):
        weights = weights_of(rnn, number)
        if number:
            gates = weights.gates(between(rnn, made[-1][0]))
        made.append(cell_step(gates, state, weights))
    return made


def between(rnn: nn.GRU | nn.LSTM, x: Tensor) -> Tensor:
    """What goes from a layer to the next, of which the share that the module says is dropped in training."""
    return dropped(x, rnn.dropout) if rnn.training else x
