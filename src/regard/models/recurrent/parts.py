"""What the recurrent models share: how a decoder starts, what is read of a step, and the calls that are alike."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.checks import positive
from regard.layers import Dropout
from regard.layers.cache import FixedTensors
from regard.models.recurrent.cells import State
from regard.models.recurrent.encoder import RecurrentEncoder
from regard.models.transformer import Embedding


class Start(nn.Module):
    """s₀ = tanh(W x + b) for each layer of a decoder, and so an LSTM's memory: `[batch, size]` to states."""

    def __init__(self, size: int, rnn: nn.RNNBase, layers: int | None = None) -> None:
        super().__init__()
        self.layers = rnn.num_layers if layers is None else layers
        self.kinds = 2 if isinstance(rnn, nn.LSTM) else 1
        self.linear = nn.Linear(size, self.layers * self.kinds * rnn.hidden_size)

    def forward(self, x: Tensor) -> list[State]:
        parts = torch.tanh(self.linear(x)).chunk(self.layers * self.kinds, dim=-1)
        return [tuple(parts[at : at + self.kinds]) for at in range(0, len(parts), self.kinds)]


def from_nothing(rnn: nn.RNNBase, x: Tensor) -> list[State]:
    """s₀ = 0 for each layer."""
    zero = x.new_zeros(len(x), rnn.hidden_size)
    return [(zero, zero) if isinstance(rnn, nn.LSTM) else (zero,)] * rnn.num_layers


class DeepOutput(nn.Module):
    """What is read of a step: an activation of W_s s_t + W_c c_t + W_y y_{t−1} + b (Bahdanau et al. 2015, A.2.2).

    With `maxout`, the larger of each two of twice as many numbers; otherwise their tanh. It is of the new state s_t,
    as p(y_t) = g(y_{t−1}, s_t, c_t) says. The three give `[..., size]`.
    """

    def __init__(self, state: int, context: int, word: int, size: int, *, maxout: bool = True) -> None:
        super().__init__()
        self.size, self.maxout = positive("size", size), maxout
        wide = 2 * size if maxout else size
        self.state, self.context, self.word = (
            nn.Linear(state, wide),
            nn.Linear(context, wide, bias=False),
            nn.Linear(word, wide, bias=False),
        )

    def forward(self, state: Tensor, context: Tensor, word: Tensor) -> Tensor:
        summed: Tensor = self.state(state) + self.context(context) + self.word(word)
        if not self.maxout:
            return torch.tanh(summed)
        return summed.view(*summed.shape[:-1], self.size, 2).amax(dim=-1)


class Reading(NamedTuple):
    """What decoding keeps of a sentence that is being translated."""

    layers: list[State]  # the decoder's states
    kept: FixedTensors  # what the encoder gave
    more: Any = None  # what else the next step needs of the last


class Recurrent(nn.Module):
    """What the recurrent models do alike: embed, encode, read.

    source, target   an `Embedding` for each; they may be one
    encoder          a `RecurrentEncoder`
    read             from rows to logits; its weight may be that of the target's embedding
    dropout          the share of each row dropped before it is read, in training
    """

    def __init__(
        self, source: Embedding, target: Embedding, encoder: RecurrentEncoder, read: nn.Linear, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.source, self.target, self.encoder, self.read = source, target, encoder, read
        self.dropout = Dropout(dropout)

    def encode(self, source: Tensor, lengths: Tensor) -> Tensor:
        """The encoder's states `[batch, n, width]`."""
        states: Tensor = self.encoder(self.source(source), lengths)
        return states

    def rows(self, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        """The rows that are read out `[batch, m, size]`."""
        raise NotImplementedError

    def logits(self, rows: Tensor) -> Tensor:
        """Scores of all tokens."""
        return functional.linear(rows, *self.output_weights)

    @property
    def output_weights(self) -> tuple[Tensor, Tensor | None]:
        """The weight `[vocabulary, size]` and the bias `[vocabulary]` of the logits."""
        return self.read.weight, self.read.bias

    def forward(self, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        """The logits of what follows each token of `target` `[batch, m]`: `[batch, m, vocabulary]`."""
        return self.logits(self.rows(source, lengths, target))

    def word(self, last: Tensor) -> Tensor:
        """The vector of the last token of each row, `[rows, size]`."""
        words: Tensor = self.target(last.unsqueeze(1))
        return words.squeeze(1)


class Ends(NamedTuple):
    """Where a model's words come in and go out."""

    source: Embedding
    target: Embedding
    read: nn.Linear


def ends(
    source: int, target: int, size: int, read_size: int, dropout: float, *, shared: bool = False, tied: bool = False
) -> Ends:
    """Embeddings of two vocabularies, and the readout of rows of `read_size`.

    shared   one vocabulary for both, with one vector for each token
    tied     a token's vector is also what its logit is read with
    """
    if shared and source != target:
        raise ValueError(f"a shared vocabulary has one size, got {source} and {target}")
    if tied and size != read_size:
        raise ValueError(f"a tied readout has the embedding's size, got rows of {read_size} and vectors of {size}")

    def embedding(vocabulary: int) -> Embedding:
        made = Embedding(positive("vocabulary", vocabulary), positive("size", size), dropout=dropout)
        nn.init.normal_(made.token.weight, std=size**-0.5)
        return made

    first = embedding(source)
    second = first if shared else embedding(target)
    read = nn.Linear(read_size, target)
    if tied:
        read.weight = second.token.weight
    return Ends(first, second, read)
