"""Attention inside the recurrence: each decoder step attends before it updates the state (Bahdanau et al. 2015).

    α_t = softmax_i(wᵀ tanh(W_q s_{t−1} + b + W_k h_i))      c_t = Σᵢ α_ti h_i
    s_t = cell([y_{t−1}; c_t], s_{t−1})                      p(y_t) = softmax(read(output(s_t, c_t, y_{t−1})))

s₀ = tanh(W ←h₁), from the final state of the encoder's backward direction. Keys W_k h_i are computed once, and the
words' part of the gates for all steps at once. The first layer attends; further layers run over all steps at once.
"""

from torch import Tensor, nn

from regard.layers.cache import FixedTensors
from regard.models.recurrent.cells import (
    DEFAULTS,
    DecodingState,
    DeepOutput,
    RecurrentConfig,
    Start,
    layers_step,
    run_layers,
    weights_of,
)
from regard.models.recurrent.encoder_decoder import Recurrent
from regard.ops.attentive_rnn import (
    AttentionSteps,
    RecurrentAttention,
    State,
    attend_step,
    attentive_recurrence,
    cell_step,
)
from regard.scores import Additive


class Bahdanau(Recurrent):
    """A model with one context per step, which is an input of the recurrence; by default of GRUs, both ways.

    alignment   size of the score's hidden layer; default: `hidden`
    maxout      see `DeepOutput`

    >>> import torch
    >>> model = Bahdanau(50, 60, RecurrentConfig(size=8, hidden=16))
    >>> source, lengths, target = torch.randint(50, (2, 7)), torch.tensor([7, 5]), torch.randint(60, (2, 9))
    >>> model(source, lengths, target).shape, model.look(source, lengths, target).shape
    (torch.Size([2, 9, 60]), torch.Size([2, 9, 7]))
    """

    def __init__(
        self,
        source: int,
        target: int,
        config: RecurrentConfig = DEFAULTS,
        *,
        alignment: int | None = None,
        maxout: bool = True,
    ) -> None:
        config = config.with_defaults(nn.GRU, bidirectional=True)
        super().__init__(source, target, config)
        size, hidden, width = config.size, config.hidden, self.encoder.width
        self.decoder = config.make_rnn(size + width, 1)
        # The layers after the one that attends.
        self.upper = config.make_rnn(hidden, config.layers - 1) if config.layers > 1 else None
        self.score = Additive(hidden, width, hidden if alignment is None else alignment)
        self.output = DeepOutput(hidden, width, size, size, maxout=maxout)
        self.start = Start(hidden, self.decoder, config.layers)

    def rows(self, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        memory = self.encode(source, lengths)
        words = self.target(target)
        first, *upper = self.initial_states(memory, lengths)
        states, attended = self._run_decoder(memory, lengths, words, first)
        states, contexts = states.transpose(0, 1), attended.context.transpose(0, 1)  # [batch, m, …]
        if self.upper is not None:
            states = run_layers(self.upper, self.dropout(states), upper)
        return self.dropout(self.output(states, contexts, words))  # type: ignore[no-any-return]

    def initial_states(self, memory: Tensor, lengths: Tensor) -> list[State]:
        """s₀ of each layer of the decoder."""
        encoder = self.encoder
        final = encoder.backward_final(memory) if encoder.bidirectional else encoder.final(memory, lengths)
        return self.start(final)  # type: ignore[no-any-return]

    def _run_decoder(
        self, memory: Tensor, lengths: Tensor, words: Tensor, state: State
    ) -> tuple[Tensor, AttentionSteps]:
        """All steps of the layer that attends: states `[m, batch, hidden]`, and the results of its attention."""
        weights = weights_of(self.decoder)
        attention = self._attention(memory, self.score.key_projection(memory), lengths)
        gates = weights.gates(words.transpose(0, 1))  # [m, batch, gates · hidden]
        return attentive_recurrence(gates, state, weights.hidden, weights.hidden_bias, attention)

    def _attention(self, memory: Tensor, key: Tensor, lengths: Tensor) -> RecurrentAttention:
        """Attention to the encoder's states, whose projected keys are given."""
        score, query = self.score, self.score.query_projection
        bias = score.weight.new_zeros(score.width) if query.bias is None else query.bias
        context_to_gates = weights_of(self.decoder).input[:, -memory.shape[-1] :]
        inputs = key, memory, score.weight, query.weight, bias, context_to_gates
        return RecurrentAttention(*inputs, lengths, activation=score.activation)

    def look(self, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        """The attention weights of each target position: `[batch, m, n]`."""
        memory = self.encode(source, lengths)
        start = self.initial_states(memory, lengths)[0]
        return self._run_decoder(memory, lengths, self.target(target), start)[1].weights.transpose(0, 1)

    def begin(self, source: Tensor, lengths: Tensor, max_length: int) -> DecodingState:
        """The state before the first token; `max_length` is not used."""
        memory = self.encode(source, lengths)
        encoded = FixedTensors(memory, self.score.key_projection(memory), lengths)
        return DecodingState(self.initial_states(memory, lengths), encoded)

    def _step(self, state: DecodingState, word: Tensor) -> tuple[DecodingState, Tensor]:
        (before, *upper), weights = state.layers, weights_of(self.decoder)
        context = attend_step(before[0], self._attention(*state.encoded.tensors)).context
        gates = weights.gates(word) + weights.extra_gates(context)
        layers = [cell_step(gates, before, weights.hidden, weights.hidden_bias)]
        if self.upper is not None:
            layers += layers_step(self.upper, weights_of(self.upper).gates(layers[0][0]), upper)
        return state._replace(layers=layers), self.output(layers[-1][0], context, word)
