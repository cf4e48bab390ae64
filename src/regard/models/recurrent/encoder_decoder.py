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

from regard.checks import fraction, positive
from regard.layers import Dropout
from regard.layers.cache import FixedTensors
from regard.models.recurrent.cells import (
    Cell,
    DecodingState,
    DeepOutput,
    Start,
    State,
    Weights,
    drop_between,
    layers_step,
    make_embeddings,
    run_layers,
    weights_of,
    zero_states,
)
from regard.models.transformer import Embedding
from regard.ops.additive import fusible
from regard.ops.attentive_rnn import recurrence


class RecurrentEncoder(nn.Module):
    """Layers of a GRU or an LSTM over padded sequences.

    cell            `nn.GRU` or `nn.LSTM`
    bidirectional   whether each layer also reads from the end, with `hidden` features in each direction
    dropout         rate between layers, in training

    >>> import torch
    >>> encoder = RecurrentEncoder(5, 3)
    >>> encoder(torch.randn(2, 7, 5), torch.tensor([7, 4])).shape
    torch.Size([2, 7, 6])
    """

    def __init__(
        self,
        size: int,
        hidden: int,
        *,
        cell: Cell = nn.GRU,
        layers: int = 1,
        bidirectional: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.hidden, self.bidirectional = positive("hidden", hidden), bidirectional
        rate = fraction("dropout", dropout) if positive("layers", layers) > 1 else 0.0
        self.rnn = cell(
            positive("size", size), hidden, layers, batch_first=True, bidirectional=bidirectional, dropout=rate
        )

    @property
    def width(self) -> int:
        """Number of features of a state, of both directions."""
        return self.hidden * (2 if self.bidirectional else 1)

    def forward(self, rows: Tensor, lengths: Tensor) -> Tensor:
        _check_lengths(lengths, rows)
        if not fusible(rows, weights_of(self.rnn).input):
            return self.run_packed(rows, lengths)
        x = rows.transpose(0, 1)  # [n, batch, size]
        position = torch.arange(rows.shape[1]).unsqueeze(1)
        real = position < lengths  # [n, batch]
        # Indices that reverse each sentence and leave its padding; applied twice they restore it.
        reverse = torch.where(real, lengths - 1 - position, position) * len(rows) + torch.arange(len(rows))
        for layer in range(self.rnn.num_layers):
            x = drop_between(self.rnn, x) if layer else x
            directions = [self.run_direction(x, weights_of(self.rnn, layer))]
            if self.bidirectional:
                reversed_states = self.run_direction(
                    _gather_rows(x, reverse), weights_of(self.rnn, layer, reverse=True)
                )
                directions.append(_gather_rows(reversed_states, reverse))
            x = torch.cat(directions, dim=-1)
        return (x * real.unsqueeze(-1)).transpose(0, 1).contiguous()  # [batch, n, width]

    def run_direction(self, x: Tensor, weights: Weights) -> Tensor:
        """One layer in one direction over all steps: `[n, batch, …]`, steps first."""
        zero = x.new_zeros(x.shape[1], self.hidden)
        start = (zero, zero) if isinstance(self.rnn, nn.LSTM) else (zero,)
        return recurrence(weights.gates(x), start, weights.hidden, weights.hidden_bias)

    def run_packed(self, rows: Tensor, lengths: Tensor) -> Tensor:
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


def _check_lengths(lengths: Tensor, rows: Tensor) -> None:
    """Raise ValueError unless each sentence has at least one token, and no more than there are."""
    if lengths.is_floating_point() or lengths.shape != rows.shape[:1]:
        raise ValueError(
            f"lengths must be whole numbers [{len(rows)}], got shape {list(lengths.shape)} of {lengths.dtype}"
        )
    if len(lengths) and not lengths.is_cuda:
        least, most = (int(bound) for bound in torch.aminmax(lengths))
        if least < 1 or most > rows.shape[1]:
            wrong = least if least < 1 else most
            raise ValueError(f"lengths must be at least 1 and at most {rows.shape[1]}, the tokens given, got {wrong}")


class Recurrent(nn.Module):
    """Base of the recurrent models: embeddings, encoder and output layer.

    source, target   an `Embedding` for each; they may be the same
    encoder          a `RecurrentEncoder`
    read             from rows to logits; its weight may be that of the target's embedding
    dropout          rate for the rows before the output layer, in training
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
        """Rows from which the next token of each position is predicted: `[batch, m, size]`."""
        raise NotImplementedError

    def logits(self, rows: Tensor) -> Tensor:
        """Logits of all tokens."""
        return functional.linear(rows, *self.output_weights)

    @property
    def output_weights(self) -> tuple[Tensor, Tensor | None]:
        """The weight `[vocabulary, size]` and the bias `[vocabulary]` of the logits."""
        return self.read.weight, self.read.bias

    def forward(self, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        """Logits of the next token at each position of `target` `[batch, m]`: `[batch, m, vocabulary]`."""
        return self.logits(self.rows(source, lengths, target))

    def embed_token(self, last: Tensor) -> Tensor:
        """The vector of the last token of each row, `[rows, size]`."""
        vectors: Tensor = self.target(last.unsqueeze(1))
        return vectors.squeeze(1)


class Vanilla(Recurrent):
    """The encoder–decoder with one context for all steps.

    source, target, encoder, read, dropout   see `Recurrent`
    decoder   an `nn.GRU` or `nn.LSTM` of [word; context], batch first
    output    a `DeepOutput`
    start     from the context to s₀; None: s₀ = 0

    >>> import torch
    >>> model = vanilla(50, 60, size=8, hidden=16)
    >>> model(torch.randint(50, (2, 7)), torch.tensor([7, 5]), torch.randint(60, (2, 9))).shape
    torch.Size([2, 9, 60])
    """

    def __init__(
        self,
        source: Embedding,
        target: Embedding,
        encoder: RecurrentEncoder,
        decoder: nn.GRU | nn.LSTM,
        output: DeepOutput,
        read: nn.Linear,
        *,
        start: Start | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(source, target, encoder, read, dropout)
        self.decoder, self.output, self.start = decoder, output, start

    def rows(self, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        context = self.encoder.final(self.encode(source, lengths), lengths)
        words = self.target(target)
        states = run_layers(self.decoder, words, self.initial_states(context), constant=context)
        return self.dropout(self.output(states, context.unsqueeze(1), words))  # type: ignore[no-any-return]

    def initial_states(self, context: Tensor) -> list[State]:
        """s₀ of each layer of the decoder."""
        return zero_states(self.decoder, context) if self.start is None else self.start(context)

    def look(self, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        """Raises ValueError: there are no attention weights."""
        raise ValueError("a vanilla model has no attention weights; use bahdanau, luong or transformer")

    def begin(self, source: Tensor, lengths: Tensor, max_length: int) -> DecodingState:
        """The state before the first token; `max_length` is not used."""
        context = self.encoder.final(self.encode(source, lengths), lengths)
        return DecodingState(self.initial_states(context), FixedTensors(context))

    def step(self, state: DecodingState, last: Tensor) -> tuple[DecodingState, Tensor]:
        """For `regard.decoding`: the last token of each row, `[rows]`, to log probabilities `[rows, vocabulary]`."""
        (context,), word = state.encoded.tensors, self.embed_token(last)
        weights = weights_of(self.decoder)
        layers = layers_step(self.decoder, weights.gates(word) + weights.extra_gates(context), state.layers)
        logits = self.logits(self.output(layers[-1][0], context, word))
        return state._replace(layers=layers), logits.log_softmax(dim=-1)


def vanilla(  # noqa: PLR0913
    source: int,
    target: int,
    *,
    size: int = 256,
    hidden: int = 512,
    cell: Cell = nn.GRU,
    layers: int = 1,
    bidirectional: bool = False,
    warm: bool = True,
    maxout: bool = True,
    dropout: float = 0.0,
    shared: bool = False,
    tied: bool = False,
) -> Vanilla:
    """The encoder–decoder for two vocabularies of these sizes; the rows have the embedding's size.

    bidirectional   whether the encoder also reads from the end
    warm            s₀ = tanh(W c); otherwise 0
    shared          source and target have the same vocabulary, and share one embedding
    tied            the output layer shares its weights with the target's embedding

    >>> import torch
    >>> source, lengths, target = torch.randint(50, (2, 7)), torch.tensor([7, 5]), torch.randint(60, (2, 9))
    >>> vanilla(50, 60, size=8, hidden=16, cell=nn.LSTM)(source, lengths, target).shape
    torch.Size([2, 9, 60])
    """
    embeddings = make_embeddings(source, target, size, size, dropout, shared=shared, tied=tied)
    encoder = RecurrentEncoder(size, hidden, cell=cell, layers=layers, bidirectional=bidirectional, dropout=dropout)
    decoder = cell(size + encoder.width, hidden, layers, batch_first=True, dropout=dropout if layers > 1 else 0.0)
    output = DeepOutput(hidden, encoder.width, size, size, maxout=maxout)
    start = Start(encoder.width, decoder) if warm else None
    return Vanilla(
        embeddings.source,
        embeddings.target,
        encoder,
        decoder,
        output,
        embeddings.read,
        start=start,
        dropout=dropout,
    )
