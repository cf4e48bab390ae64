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
from regard.ops.attentive_rnn import AttentionSteps, RecurrentAttention, State, attentive_recurrence
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
        state = self.begin(source, lengths)
        words = self.target(target)
        (states, *_), attended = self._run_decoder(state, words)
        states, contexts = states.transpose(0, 1), attended.context.transpose(0, 1)  # [batch, m, …]
        if self.upper is not None:
            states = run_layers(self.upper, self.dropout(states), state.layers[1:])
        return self.dropout(self.output(states, contexts, words))  # type: ignore[no-any-return]

    def look(self, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        """The attention weights of each target position: `[batch, m, n]`."""
        return self._run_decoder(self.begin(source, lengths), self.target(target))[1].weights.transpose(0, 1)

    def begin(self, source: Tensor, lengths: Tensor, max_length: int | None = None) -> DecodingState:
        """The state before the first token; `max_length` is not used."""
        memory, encoder = self.encode(source, lengths), self.encoder
        final = encoder.backward_final(memory) if encoder.bidirectional else encoder.final(memory, lengths)
        return DecodingState(self.start(final), FixedTensors(memory, self.score.key_projection(memory), lengths))

    def _run_decoder(self, state: DecodingState, words: Tensor) -> tuple[State, AttentionSteps]:
        """The layer that attends, over words `[batch, m, size]`: its states `[m, batch, hidden]`, and its attention."""
        memory, key, lengths = state.encoded.tensors
        score, query, weights = self.score, self.score.query_projection, weights_of(self.decoder)
        bias = score.weight.new_zeros(score.width) if query.bias is None else query.bias
        inputs = key, memory, score.weight, query.weight, bias, weights.input[:, -memory.shape[-1] :]
        attention = RecurrentAttention(*inputs, lengths, activation=score.activation)
        gates = weights.gates(words.transpose(0, 1))  # [m, batch, gates · hidden]
        return attentive_recurrence(gates, state.layers[0], weights.hidden, weights.hidden_bias, attention)

    def _step(self, state: DecodingState, word: Tensor) -> tuple[DecodingState, Tensor]:
        after, attended = self._run_decoder(state, word.unsqueeze(1))
        layers = [tuple(part[0] for part in after)]
        if self.upper is not None:
            layers += layers_step(self.upper, weights_of(self.upper).gates(layers[0][0]), state.layers[1:])
        return state._replace(layers=layers), self.output(layers[-1][0], attended.context[0], word)
