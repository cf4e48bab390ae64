"""The recurrent encoder, the base of all recurrent models, and the encoder–decoder without attention.

    →h_i = cell(x_i, →h_{i−1})      ←h_i = cell(x_i, ←h_{i+1})      h_i = [→h_i; ←h_i]            the encoder
    c = h_n      s_t = cell([y_{t−1}; c], s_{t−1})      p(y_t) = softmax(read(output(s_t, c, y_{t−1})))      vanilla

The encoder maps rows `[batch, n, size]` and lengths `[batch]` to states `[batch, n, width]`, 0 at padding. A sentence
has the same states alone and in a padded batch. In a vanilla model (Cho et al. 2014) the one vector c carries the whole
sentence; s₀ is zero, or tanh(W c). Given all words, its decoder runs in one pass.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from regard.checks import positive
from regard.layers.cache import FixedTensors
from regard.models.recurrent.cells import (
    DEFAULTS,
    DecodingState,
    DeepOutput,
    RecurrentConfig,
    Start,
    Weights,
    layers_step,
    run_layers,
    weights_of,
    zero_states,
)
from regard.models.transformer import Embedding, SequenceToSequence, check_lengths
from regard.ops.attentive_rnn import fusible, recurrence


class RecurrentEncoder(nn.Module):
    """Layers of a GRU or an LSTM over padded sequences, by default of a GRU in both directions.

    >>> import torch
    >>> encoder = RecurrentEncoder(RecurrentConfig(size=5, hidden=3))
    >>> encoder(torch.randn(2, 7, 5), torch.tensor([7, 4])).shape
    torch.Size([2, 7, 6])
    """

    def __init__(self, config: RecurrentConfig = DEFAULTS) -> None:
        super().__init__()
        self.hidden, self.bidirectional = config.hidden, config.bidirectional is not False
        self.rnn = config.make_rnn(config.size, bidirectional=self.bidirectional)

    @property
    def width(self) -> int:
        """Number of features of a state, of both directions."""
        return self.hidden * (2 if self.bidirectional else 1)

    def forward(self, rows: Tensor, lengths: Tensor) -> Tensor:
        check_lengths(lengths, rows, least=1)
        if not fusible(rows, weights_of(self.rnn).input):
            return self._run_packed(rows, lengths)
        x = rows.transpose(0, 1)  # [n, batch, size]
        position = torch.arange(rows.shape[1]).unsqueeze(1)
        real = position < lengths  # [n, batch]
        # Indices that reverse each sentence and leave its padding; applied twice they restore it.
        reverse = torch.where(real, lengths - 1 - position, position) * len(rows) + torch.arange(len(rows))
        for layer in range(self.rnn.num_layers):
            x = functional.dropout(x, self.rnn.dropout, self.rnn.training) if layer else x
            directions = [self._run_direction(x, weights_of(self.rnn, layer))]
            if self.bidirectional:
                reversed_states = self._run_direction(
                    _gather_rows(x, reverse), weights_of(self.rnn, layer, reverse=True)
                )
                directions.append(_gather_rows(reversed_states, reverse))
            x = torch.cat(directions, dim=-1)
        return (x * real.unsqueeze(-1)).transpose(0, 1).contiguous()  # [batch, n, width]

    def _run_direction(self, x: Tensor, weights: Weights) -> Tensor:
        """One layer in one direction over all steps: `[n, batch, …]`, steps first."""
        start = zero_states(self.rnn, x.transpose(0, 1))[0]
        return recurrence(weights.gates(x), start, weights.hidden, weights.hidden_bias)

    def _run_packed(self, rows: Tensor, lengths: Tensor) -> Tensor:
        """The same as `forward`, by torch's packed sequences."""
        packed = pack_padded_sequence(rows, lengths.cpu(), batch_first=True, enforce_sorted=False)
        states, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True, total_length=rows.shape[1])
        return states

    def final(self, states: Tensor, lengths: Tensor) -> Tensor:
        """The final state of each direction, `[batch, width]`: at the last token, and at the first."""
        forward_final = states[torch.arange(len(states), device=states.device), lengths - 1, : self.hidden]
        if not self.bidirectional:
            return forward_final
        return torch.cat([forward_final, self.backward_final(states)], dim=-1)

    def backward_final(self, states: Tensor) -> Tensor:
        """The final state of the backward direction, at the first token: `[batch, hidden]`."""
        return states[:, 0, self.hidden :]


def _gather_rows(x: Tensor, index: Tensor) -> Tensor:
    """Rows of `[n, batch, size]` by indices `[n, batch]` into its first two dimensions flattened."""
    return functional.embedding(index, x.flatten(0, 1))  # of torch's ways to index, the fastest backward


class Recurrent(SequenceToSequence):
    """Base of the recurrent models, for two vocabularies of these sizes: embeddings, encoder and output layer.

    read_size   size of the rows that tokens are predicted from; default: the embedding's
    """

    def __init__(self, source: int, target: int, config: RecurrentConfig, read_size: int | None = None) -> None:
        super().__init__()
        read_size = config.size if read_size is None else read_size
        if config.shared and source != target:
            raise ValueError(f"a shared vocabulary must have one size, got {source} and {target}")
        if config.tied and config.size != read_size:
            raise ValueError(f"tied rows must have the embedding's size, {config.size}, got {read_size}")
        self.source = _make_embedding(source, config)
        self.target = self.source if config.shared else _make_embedding(target, config)
        self.read = nn.Linear(read_size, target)
        if config.tied:
            self.read.weight = self.target.token.weight
        self.encoder = RecurrentEncoder(config)
        self.dropout = nn.Dropout(config.dropout)

    def encode(self, source: Tensor, lengths: Tensor) -> Tensor:
        """The encoder's states `[batch, n, width]`."""
        states: Tensor = self.encoder(self.source(source), lengths)
        return states

    def step(self, state: DecodingState, last: Tensor) -> tuple[DecodingState, Tensor]:
        """For `regard.decoding`: the last token of each row, `[rows]`, to log probabilities `[rows, vocabulary]`."""
        state, rows = self._step(state, self.target(last.unsqueeze(1)).squeeze(1))
        return state, self.logits(rows).log_softmax(dim=-1)

    def _step(self, state: DecodingState, word: Tensor) -> tuple[DecodingState, Tensor]:
        """One step from words `[rows, size]`: the next state, and the inputs of the output layer."""
        raise NotImplementedError


def _make_embedding(vocabulary: int, config: RecurrentConfig) -> Embedding:
    """An embedding with small random vectors."""
    embedding = Embedding(positive("vocabulary", vocabulary), config.size, dropout=config.dropout)
    nn.init.normal_(embedding.token.weight, std=config.size**-0.5)
    return embedding


class Vanilla(Recurrent):
    """The encoder–decoder with one context for all steps; by default of GRUs, with an encoder that reads forward.

    warm     s₀ = tanh(W c); otherwise 0
    maxout   see `DeepOutput`

    >>> import torch
    >>> model = Vanilla(50, 60, RecurrentConfig(size=8, hidden=16))
    >>> model(torch.randint(50, (2, 7)), torch.tensor([7, 5]), torch.randint(60, (2, 9))).shape
    torch.Size([2, 9, 60])
    """

    def __init__(
        self,
        source: int,
        target: int,
        config: RecurrentConfig = DEFAULTS,
        *,
        warm: bool = True,
        maxout: bool = True,
    ) -> None:
        config = config.with_defaults(nn.GRU, bidirectional=False)
        super().__init__(source, target, config)
        size, width = config.size, self.encoder.width
        self.decoder = config.make_rnn(size + width)
        self.output = DeepOutput(config.hidden, width, size, size, maxout=maxout)
        self.start = Start(width, self.decoder) if warm else None

    def rows(self, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        state, words = self.begin(source, lengths), self.target(target)
        [context] = state.encoded.tensors
        states = run_layers(self.decoder, words, state.layers, constant=context)
        return self.dropout(self.output(states, context.unsqueeze(1), words))  # type: ignore[no-any-return]

    def look(self, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        """Raises ValueError: there are no attention weights."""
        raise ValueError("a vanilla model has no attention weights; use bahdanau, luong or transformer")

    def begin(self, source: Tensor, lengths: Tensor, max_length: int | None = None) -> DecodingState:
        """The state before the first token; `max_length` is not used."""
        context = self.encoder.final(self.encode(source, lengths), lengths)
        layers = zero_states(self.decoder, context) if self.start is None else self.start(context)
        return DecodingState(layers, FixedTensors(context))

    def _step(self, state: DecodingState, word: Tensor) -> tuple[DecodingState, Tensor]:
        (context,), weights = state.encoded.tensors, weights_of(self.decoder)
        layers = layers_step(self.decoder, weights.gates(word) + weights.extra_gates(context), state.layers)
        return state._replace(layers=layers), self.output(layers[-1][0], context, word)
