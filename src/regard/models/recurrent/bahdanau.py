"""Attention inside the recurrence: each decoder step attends before it updates the state (Bahdanau et al. 2015).

    α_t = softmax_i(wᵀ tanh(W_q s_{t−1} + b + W_k h_i))      c_t = Σᵢ α_ti h_i
    s_t = cell([y_{t−1}; c_t], s_{t−1})                      p(y_t) = softmax(read(output(s_t, c_t, y_{t−1})))

s₀ = tanh(W ←h₁), from the final state of the encoder's backward direction. Keys W_k h_i are computed once, and the
words' part of the gates for all steps at once. The first layer attends; further layers run over all steps at once.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.attend import attend, look
from regard.layers.cache import FixedTensors
from regard.masks import padding
from regard.models.recurrent.cells import (
    Cell,
    DecodingState,
    DeepOutput,
    Start,
    State,
    cell_step,
    layers_step,
    make_embeddings,
    run_layers,
    weights_of,
)
from regard.models.recurrent.encoder_decoder import Recurrent, RecurrentEncoder
from regard.models.transformer import Embedding
from regard.ops.additive import additive_step, fusible
from regard.ops.attentive_rnn import AttentionInputs, attentive_recurrence
from regard.scores import Additive


class _DecoderStates(NamedTuple):
    """States and contexts of the layer that attends, at all steps."""

    states: Tensor  # [batch, m, hidden]  s_t
    contexts: Tensor  # [batch, m, width]  c_t


class Bahdanau(Recurrent):
    """A model with one context per step, which is an input of the recurrence.

    source, target, encoder, read, dropout   see `Recurrent`
    decoder   an `nn.GRU` or `nn.LSTM` of [word; context], of one layer, batch first
    score     an `Additive` of the decoder's state and the encoder's
    output    a `DeepOutput`
    start     from the final state of the encoder's backward direction to s₀ of all layers
    upper     the layers after the one that attends

    >>> import torch
    >>> model = bahdanau(50, 60, size=8, hidden=16)
    >>> model(torch.randint(50, (2, 7)), torch.tensor([7, 5]), torch.randint(60, (2, 9))).shape
    torch.Size([2, 9, 60])
    """

    def __init__(  # noqa: PLR0913
        self,
        source: Embedding,
        target: Embedding,
        encoder: RecurrentEncoder,
        decoder: nn.GRU | nn.LSTM,
        score: Additive,
        output: DeepOutput,
        start: Start,
        read: nn.Linear,
        *,
        upper: nn.GRU | nn.LSTM | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(source, target, encoder, read, dropout)
        self.decoder, self.score, self.output, self.start, self.upper = decoder, score, output, start, upper

    def rows(self, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        memory = self.encode(source, lengths)
        words = self.target(target)
        first, *upper = self.initial_states(memory, lengths)
        states, contexts = self.run_decoder(memory, lengths, words, first)
        if self.upper is not None:
            states = run_layers(self.upper, self.dropout(states), upper)
        return self.dropout(self.output(states, contexts, words))  # type: ignore[no-any-return]

    def initial_states(self, memory: Tensor, lengths: Tensor) -> list[State]:
        """s₀ of each layer of the decoder."""
        encoder = self.encoder
        final = encoder.backward_final(memory) if encoder.bidirectional else encoder.final(memory, lengths)
        return self.start(final)  # type: ignore[no-any-return]

    def run_decoder(self, memory: Tensor, lengths: Tensor, words: Tensor, state: State) -> _DecoderStates:
        """All steps of the layer that attends, fused if the compiled loops apply."""
        if not self.is_fusible(memory, words):
            return self.run_stepwise(memory, lengths, words, state)
        weights, query = weights_of(self.decoder), self.score.query_projection
        bias = self.score.weight.new_zeros(self.score.width) if query.bias is None else query.bias
        attention = AttentionInputs(
            query.weight,
            bias,
            self.score.key_projection(memory),
            self.score.weight,
            memory,
            lengths,
            weights.input[:, -memory.shape[-1] :],
        )
        gates = weights.gates(words.transpose(0, 1))  # [m, batch, gates · hidden]
        states, contexts, _ = attentive_recurrence(gates, state, weights.hidden, weights.hidden_bias, attention)
        return _DecoderStates(states.transpose(0, 1), contexts.transpose(0, 1))  # [batch, m, …]

    def run_stepwise(self, memory: Tensor, lengths: Tensor, words: Tensor, state: State) -> _DecoderStates:
        """The same as `run_decoder`, one step after the other."""
        key = self.score.key_projection(memory)
        states, contexts = [], []
        for gates in weights_of(self.decoder).gates(words).unbind(dim=1):
            state, context = self.decoder_step(gates, state, key, memory, lengths)
            states.append(state[0])
            contexts.append(context)
        return _DecoderStates(torch.stack(states, dim=1), torch.stack(contexts, dim=1))

    def decoder_step(
        self, gates: Tensor, state: State, key: Tensor, memory: Tensor, lengths: Tensor
    ) -> tuple[State, Tensor]:
        """One step: attend, then update. Returns the new state, and the context `[rows, width]`."""
        query = self.score.query_projection(state[0])
        if self.is_fusible(key, memory):
            context = additive_step(query, key, self.score.weight, memory, lengths)[0]
        else:
            inputs = query.unsqueeze(1), key, memory
            context = attend(*inputs, score=self.projected_score, mask=padding(lengths), engine="dense").squeeze(1)
        weights = weights_of(self.decoder)
        return cell_step(gates + weights.extra_gates(context), state, weights), context

    def is_fusible(self, *tensors: Tensor) -> bool:
        """Whether the compiled loops apply: they support tanh only."""
        return self.score.activation is torch.tanh and fusible(self.score.weight, *tensors)

    def projected_score(self, query: Tensor, key: Tensor) -> Tensor:
        """The score of queries and keys that are projected already."""
        return self.score.activation(query.unsqueeze(-2) + key.unsqueeze(-3)) @ self.score.weight

    def look(self, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        """The attention weights of each target position: `[batch, m, n]`."""
        memory = self.encode(source, lengths)
        start = self.initial_states(memory, lengths)[0]
        states = self.run_decoder(memory, lengths, self.target(target), start).states
        before = torch.cat([start[0].unsqueeze(1), states[:, :-1]], dim=1)
        return look(before, memory, score=self.score, mask=padding(lengths))

    def begin(self, source: Tensor, lengths: Tensor, max_length: int) -> DecodingState:
        """The state before the first token; `max_length` is not used."""
        memory = self.encode(source, lengths)
        encoded = FixedTensors(memory, self.score.key_projection(memory), lengths)
        return DecodingState(self.initial_states(memory, lengths), encoded)

    def step(self, state: DecodingState, last: Tensor) -> tuple[DecodingState, Tensor]:
        """For `regard.decoding`: the last token of each row, `[rows]`, to log probabilities `[rows, vocabulary]`."""
        (memory, key, lengths), word = state.encoded.tensors, self.embed_token(last)
        gates = weights_of(self.decoder).gates(word)
        first, context = self.decoder_step(gates, state.layers[0], key, memory, lengths)
        layers = [first]
        if self.upper is not None:
            layers += layers_step(self.upper, weights_of(self.upper).gates(first[0]), state.layers[1:])
        logits = self.logits(self.output(layers[-1][0], context, word))
        return state._replace(layers=layers), logits.log_softmax(dim=-1)


def bahdanau(  # noqa: PLR0913
    source: int,
    target: int,
    *,
    size: int = 256,
    hidden: int = 512,
    cell: Cell = nn.GRU,
    layers: int = 1,
    bidirectional: bool = True,
    alignment: int | None = None,
    maxout: bool = True,
    dropout: float = 0.0,
    shared: bool = False,
    tied: bool = False,
) -> Bahdanau:
    """The attention model for two vocabularies of these sizes; the rows have the embedding's size.

    hidden          size of a state, in the encoder for each direction
    bidirectional   whether the encoder also reads from the end
    alignment       size of the score's hidden layer; default: `hidden`
    shared          source and target have the same vocabulary, and share one embedding
    tied            the output layer shares its weights with the target's embedding

    >>> import torch
    >>> source, lengths, target = torch.randint(50, (2, 7)), torch.tensor([7, 5]), torch.randint(60, (2, 9))
    >>> bahdanau(50, 60, size=8, hidden=16).look(source, lengths, target).shape
    torch.Size([2, 9, 7])
    """
    embeddings = make_embeddings(source, target, size, size, dropout, shared=shared, tied=tied)
    encoder = RecurrentEncoder(size, hidden, cell=cell, layers=layers, bidirectional=bidirectional, dropout=dropout)
    decoder = cell(size + encoder.width, hidden, batch_first=True)
    upper = None
    if layers > 1:
        upper = cell(hidden, hidden, layers - 1, batch_first=True, dropout=dropout if layers > 2 else 0.0)
    return Bahdanau(
        embeddings.source,
        embeddings.target,
        encoder,
        decoder,
        Additive(hidden, encoder.width, hidden if alignment is None else alignment),
        DeepOutput(hidden, encoder.width, size, size, maxout=maxout),
        Start(hidden, decoder, layers),
        embeddings.read,
        upper=upper,
        dropout=dropout,
    )
