"""Parts of the recurrent models: configuration, layers of `nn.GRU` and `nn.LSTM`, initial states, output."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.checks import fraction, positive
from regard.layers.cache import FixedTensors
from regard.ops.attentive_rnn import State, cell_step, fusible, recurrence

Cell = type[nn.GRU] | type[nn.LSTM]


@dataclass(frozen=True)
class RecurrentConfig:
    """What all recurrent models have in common. None stands for the choice of the model's paper.

    >>> RecurrentConfig(size=8, hidden=16, layers=2).make_rnn(8)
    GRU(8, 16, num_layers=2, batch_first=True)
    """

    size: int = 256  # of an embedding
    hidden: int = 512  # of a state, in the encoder for each direction
    cell: Cell | None = None  # `nn.GRU` or `nn.LSTM`
    layers: int = 1  # of the encoder, and of the decoder
    bidirectional: bool | None = None  # whether the encoder also reads from the end
    dropout: float = 0.0  # rate of embeddings, between layers, and before the output layer
    shared: bool = False  # source and target have the same vocabulary, and share one embedding
    tied: bool = False  # the output layer shares its weights with the target's embedding

    def __post_init__(self) -> None:
        for name in ("size", "hidden", "layers"):
            positive(name, getattr(self, name))
        fraction("dropout", self.dropout)

    def with_defaults(self, cell: Cell, *, bidirectional: bool) -> "RecurrentConfig":
        """The same, with these values in place of None."""
        both = self.bidirectional
        return replace(self, cell=self.cell or cell, bidirectional=bidirectional if both is None else both)

    def make_rnn(self, size: int, layers: int | None = None, *, bidirectional: bool = False) -> nn.GRU | nn.LSTM:
        """Layers of the cell for inputs `[batch, n, size]`; default: as many as configured."""
        layers, cell = self.layers if layers is None else layers, self.cell or nn.GRU
        rate = self.dropout if layers > 1 else 0.0  # torch warns of dropout in a single layer
        return cell(size, self.hidden, layers, batch_first=True, bidirectional=bidirectional, dropout=rate)


DEFAULTS = RecurrentConfig()


class Weights(NamedTuple):
    """The parameters of one layer of an `nn.GRU` or `nn.LSTM`."""

    input: Tensor  # [gates · hidden, size]
    hidden: Tensor  # [gates · hidden, hidden]
    input_bias: Tensor
    hidden_bias: Tensor

    def gates(self, x: Tensor) -> Tensor:
        """The input's part of the gates, with bias; x may be only the first features of the input."""
        return functional.linear(x, self.input[:, : x.shape[-1]], self.input_bias)

    def extra_gates(self, x: Tensor) -> Tensor:
        """The part of the gates, without bias, of the last features of the input."""
        return functional.linear(x, self.input[:, -x.shape[-1] :])


def weights_of(rnn: nn.RNNBase, layer: int = 0, *, reverse: bool = False) -> Weights:
    """The parameters of one layer, in its forward or its reverse direction."""
    name = f"l{layer}_reverse" if reverse else f"l{layer}"
    return Weights(*(getattr(rnn, f"{kind}_{name}") for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")))


def run_layers(rnn: nn.GRU | nn.LSTM, x: Tensor, start: list[State], constant: Tensor | None = None) -> Tensor:
    """All steps of all layers from the given states: `[batch, m, size]` to `[batch, m, hidden]`.

    constant   features appended to the input of every step, `[batch, features]`
    """
    if not fusible(x, weights_of(rnn).input):
        if constant is not None:
            x = torch.cat([x, constant.unsqueeze(1).expand(-1, x.shape[1], -1)], dim=-1)
        stacked = tuple(torch.stack(part) for part in zip(*start, strict=True))
        states: Tensor = rnn(x, stacked if isinstance(rnn, nn.LSTM) else stacked[0])[0]
        return states
    x = x.transpose(0, 1)  # [m, batch, size]
    for layer, state in enumerate(start):
        weights = weights_of(rnn, layer)
        x = functional.dropout(x, rnn.dropout, rnn.training) if layer else x
        gates = weights.gates(x)
        if layer == 0 and constant is not None:
            gates = gates + weights.extra_gates(constant)
        x = recurrence(gates, state, weights.hidden, weights.hidden_bias)
    return x.transpose(0, 1)  # [batch, m, hidden]


def layers_step(rnn: nn.GRU | nn.LSTM, gates: Tensor, layers: list[State]) -> list[State]:
    """One step of all layers, from the input's part of the first one's gates: `[rows, gates · hidden]`."""
    states: list[State] = []
    for layer, state in enumerate(layers):
        weights = weights_of(rnn, layer)
        if layer:
            gates = weights.gates(functional.dropout(states[-1][0], rnn.dropout, rnn.training))
        states.append(cell_step(gates, state, weights.hidden, weights.hidden_bias))
    return states


class Start(nn.Module):
    """s₀ = tanh(W x + b) for each layer of a decoder, and likewise an LSTM's memory: `[batch, size]` to states."""

    def __init__(self, size: int, rnn: nn.RNNBase, layers: int | None = None) -> None:
        super().__init__()
        self.layers = rnn.num_layers if layers is None else layers
        self.kinds = 2 if isinstance(rnn, nn.LSTM) else 1  # tensors of a state
        self.linear = nn.Linear(size, self.layers * self.kinds * rnn.hidden_size)

    def forward(self, x: Tensor) -> list[State]:
        parts = torch.tanh(self.linear(x)).chunk(self.layers * self.kinds, dim=-1)
        return [tuple(parts[first : first + self.kinds]) for first in range(0, len(parts), self.kinds)]


def zero_states(rnn: nn.RNNBase, x: Tensor) -> list[State]:
    """s₀ = 0 for each layer, for as many rows as x has."""
    zero = x.new_zeros(len(x), rnn.hidden_size)
    return [(zero, zero) if isinstance(rnn, nn.LSTM) else (zero,)] * rnn.num_layers


class DeepOutput(nn.Module):
    """The row that a word is predicted from: an activation of W_s s_t + W_c c_t + W_y y_{t−1} + b.

    (Bahdanau et al. 2015, A.2.2.) With `maxout`, the larger of each pair of twice as many features; otherwise tanh. It
    uses the new state s_t, as in p(y_t) = g(y_{t−1}, s_t, c_t). The result is `[..., size]`.
    """

    def __init__(self, state: int, context: int, word: int, size: int, *, maxout: bool = True) -> None:
        super().__init__()
        self.size, self.maxout = positive("size", size), maxout
        width = 2 * size if maxout else size
        self.state, self.context, self.word = (
            nn.Linear(state, width),
            nn.Linear(context, width, bias=False),
            nn.Linear(word, width, bias=False),
        )

    def forward(self, state: Tensor, context: Tensor, word: Tensor) -> Tensor:
        total: Tensor = self.state(state) + self.context(context) + self.word(word)
        if not self.maxout:
            return torch.tanh(total)
        return total.view(*total.shape[:-1], self.size, 2).amax(dim=-1)  # [..., 2 · size] as pairs


class DecodingState(NamedTuple):
    """The state of translations that are being written."""

    layers: list[State]  # of the decoder
    encoded: FixedTensors  # computed from the source
    extra: State = ()  # further outputs of the last step that the next one needs
