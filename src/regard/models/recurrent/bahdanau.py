"""Attention in the recurrence: each decoder step looks at the source before it moves (Bahdanau, Cho, Bengio 2015).

    α_t = softmax_i(wᵀ tanh(W_q s_{t−1} + b + W_k h_i))      c_t = Σᵢ α_ti h_i
    s_t = cell([y_{t−1}; c_t], s_{t−1})                      p(y_t) = softmax(read(output(s_t, c_t, y_{t−1})))

s₀ = tanh(W ←h₁), of the encoder's way back when it is through. Keys W_k h_i are computed once, and the words' part of
the gates for all steps at once. Further layers stand above the one that attends, and run over all steps at once.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.attend import attend, look
from regard.layers.cache import FixedTensors
from regard.masks import padding
from regard.models.recurrent.cells import Cell, State, cell_step, run, stack_step, weights_of
from regard.models.recurrent.encoder import RecurrentEncoder
from regard.models.recurrent.parts import DeepOutput, Reading, Recurrent, Start, ends
from regard.models.transformer import Embedding
from regard.ops.additive import additive_step, fusible
from regard.ops.attentive_rnn import Looking, attentive
from regard.scores import Additive


class Course(NamedTuple):
    """What the attending layer went through, `[batch, m, …]`."""

    state: Tensor  # s_t
    context: Tensor  # c_t


class Bahdanau(Recurrent):
    """A context of its own for each step, which goes into the recurrence.

    source, target, encoder, read, dropout   see `Recurrent`
    decoder   an `nn.GRU` or `nn.LSTM` of [word; context], of one layer, batch first
    score     an `Additive` of the decoder's state and the encoder's
    output    a `DeepOutput`
    start     from the encoder's way back to s₀ of all layers
    upper     further layers, above the one that attends

    >>> import torch
    >>> model = bahdanau(50, 60, size=8, hidden=16)
    >>> model(torch.randint(50, (2, 7)), torch.tensor([7, 5]), torch.randint(60, (2, 9))).shape
    torch.Size([2, 9, 60])
    """

    def __init__(
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
        first, *above = self.first(memory, lengths)
        course = self.course(memory, lengths, words, first)
        states = course.state
        if self.upper is not None:
            states = run(self.upper, self.dropout(states), above)
        return self.dropout(self.output(states, course.context, words))  # type: ignore[no-any-return]

    def first(self, memory: Tensor, lengths: Tensor) -> list[State]:
        """The states that the decoder starts from."""
        found = self.encoder.turned(memory) if self.encoder.both_ways else self.encoder.last(memory, lengths)
        return self.start(found)  # type: ignore[no-any-return]

    def course(self, memory: Tensor, lengths: Tensor, words: Tensor, state: State) -> Course:
        """All steps of the layer that attends: fused where it can be, which is compared with `stepwise`."""
        if not self.fused(memory, words):
            return self.stepwise(memory, lengths, words, state)
        weights, query = weights_of(self.decoder), self.score.query_projection
        bias = self.score.weight.new_zeros(self.score.width) if query.bias is None else query.bias
        looking = Looking(
            query.weight,
            bias,
            self.score.key_projection(memory),
            self.score.weight,
            memory,
            lengths,
            weights.input[:, -memory.shape[-1] :],
        )
        gates = weights.gates(words.transpose(0, 1))
        states, contexts, _ = attentive(gates, state, weights.hidden, weights.hidden_bias, looking)
        return Course(states.transpose(0, 1), contexts.transpose(0, 1))

    def stepwise(self, memory: Tensor, lengths: Tensor, words: Tensor, state: State) -> Course:
        """The same, one step after the other."""
        key = self.score.key_projection(memory)
        states, contexts = [], []
        for gates in weights_of(self.decoder).gates(words).unbind(dim=1):
            state, context = self.move(gates, state, key, memory, lengths)
            states.append(state[0])
            contexts.append(context)
        return Course(torch.stack(states, dim=1), torch.stack(contexts, dim=1))

    def move(self, gates: Tensor, state: State, key: Tensor, memory: Tensor, lengths: Tensor) -> tuple[State, Tensor]:
        """One step: look, then move. The new state, and the context `[rows, width]`."""
        query = self.score.query_projection(state[0])
        if self.fused(key, memory):
            context = additive_step(query, key, self.score.weight, memory, lengths)[0]
        else:
            parts = query.unsqueeze(1), key, memory
            context = attend(*parts, score=self.projected, mask=padding(lengths), engine="dense").squeeze(1)
        weights = weights_of(self.decoder)
        return cell_step(gates + weights.more(context), state, weights), context

    def fused(self, *tensors: Tensor) -> bool:
        """Whether loops of their own can do it, which know tanh alone."""
        return self.score.activation is torch.tanh and fusible(self.score.weight, *tensors)

    def projected(self, query: Tensor, key: Tensor) -> Tensor:
        """The score of queries and keys that are projected already."""
        return self.score.activation(query.unsqueeze(-2) + key.unsqueeze(-3)) @ self.score.weight

    def look(self, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        """How each target position looked at the source: `[batch, m, n]`."""
        memory = self.encode(source, lengths)
        start = self.first(memory, lengths)[0]
        states = self.course(memory, lengths, self.target(target), start).state
        before = torch.cat([start[0].unsqueeze(1), states[:, :-1]], dim=1)
        return look(before, memory, score=self.score, mask=padding(lengths))

    def begin(self, source: Tensor, lengths: Tensor, max_length: int) -> Reading:
        """The state that decoding starts from; `max_length` is not used."""
        memory = self.encode(source, lengths)
        return Reading(self.first(memory, lengths), FixedTensors(memory, self.score.key_projection(memory), lengths))

    def step(self, state: Reading, last: Tensor) -> tuple[Reading, Tensor]:
        """For `regard.decoding`: the last token of each row, `[rows]`, to log probabilities `[rows, vocabulary]`."""
        (memory, key, lengths), word = state.kept.tensors, self.word(last)
        first, context = self.move(weights_of(self.decoder).gates(word), state.layers[0], key, memory, lengths)
        layers = [first]
        if self.upper is not None:
            layers += stack_step(self.upper, weights_of(self.upper).gates(first[0]), state.layers[1:])
        logits = self.logits(self.output(layers[-1][0], context, word))
        return state._replace(layers=layers), logits.log_softmax(dim=-1)


def bahdanau(
    source: int,
    target: int,
    *,
    size: int = 256,
    hidden: int = 512,
    cell: Cell = nn.GRU,
    layers: int = 1,
    both_ways: bool = True,
    alignment: int | None = None,
    maxout: bool = True,
    dropout: float = 0.0,
    shared: bool = False,
    tied: bool = False,
) -> Bahdanau:
    """The attention model for two vocabularies of these sizes; what is read has the embedding's size.

    hidden         numbers of a state, of the encoder for each way
    alignment      hidden numbers of the score; as many as of a state where not given
    shared, tied   one vector for a token of both sides; and for what its logit is read with

    >>> import torch
    >>> source, lengths, target = torch.randint(50, (2, 7)), torch.tensor([7, 5]), torch.randint(60, (2, 9))
    >>> bahdanau(50, 60, size=8, hidden=16).look(source, lengths, target).shape
    torch.Size([2, 9, 7])
    """
    into, out, read = ends(source, target, size, size, dropout, shared=shared, tied=tied)
    encoder = RecurrentEncoder(size, hidden, cell=cell, layers=layers, both_ways=both_ways, dropout=dropout)
    decoder = cell(size + encoder.width, hidden, batch_first=True)
    above = layers - 1
    upper = cell(hidden, hidden, above, batch_first=True, dropout=dropout if above > 1 else 0.0) if above else None
    return Bahdanau(
        into,
        out,
        encoder,
        decoder,
        Additive(hidden, encoder.width, hidden if alignment is None else alignment),
        DeepOutput(hidden, encoder.width, size, size, maxout=maxout),
        Start(hidden, decoder, layers),
        read,
        upper=upper,
        dropout=dropout,
    )
