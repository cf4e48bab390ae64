"""Attention after the recurrence: the decoder updates its state, which then attends (Luong, Pham, Manning 2015).

    s_t = cell(y_{t−1}, s_{t−1})        c_t = attend(s_t, h)        s̃_t = tanh(W [c_t; s_t])
    p(y_t) = softmax(read(s̃_t))

    global    all source states; score: `dot`, `Bilinear` ("general"), `Additive` ("concat") or `Location`
    local     those at most `radius` D from a centre p_t, monotonic ("local-m": p_t = t) or predicted ("local-p")

With input feeding the cell's input is [y_{t−1}; s̃_{t−1}]. Without it the states do not depend on the attention: the
decoder runs over all steps in one call, and all steps attend in one.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from regard.attend import attend, look
from regard.checks import positive
from regard.layers.cache import FixedTensors
from regard.masks import Mask, both, padding
from regard.models.recurrent.cells import (
    DEFAULTS,
    DecodingState,
    RecurrentConfig,
    Start,
    layers_step,
    run_layers,
    weights_of,
)
from regard.models.recurrent.encoder_decoder import Recurrent
from regard.scores import Additive, Bilinear, Score, dot
from regard.weighing import softmax


class Location(nn.Module):
    """Luong's "location" score, W s: one number per position, from the query alone (section 3.1).

    It is the inner product of the query and a learned vector of the position, whatever the key there. Positions count
    from the first key of a call: a call must get all keys at once, not blocks of them as in `stream`.

    max_length   number of positions with a vector; a longer source raises ValueError

    >>> import torch
    >>> Location(3, max_length=20)(torch.randn(2, 7, 3), torch.randn(2, 11, 5)).shape
    torch.Size([2, 7, 11])
    """

    width = 1

    def __init__(self, query_size: int, max_length: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(positive("max_length", max_length), query_size))
        nn.init.xavier_uniform_(self.weight)

    def as_dot(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, float]:
        max_length, length = len(self.weight), key.shape[-2]
        if length > max_length:
            raise ValueError(f"this location score was made for sources of at most {max_length} tokens, got {length}")
        return query, self.weight[:length].expand(*key.shape[:-1], -1), 1.0

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        query, key, _ = self.as_dot(query, key)
        return query @ key.mT


class Global(nn.Module):
    """Attention to all source states, by a score.

    query `[batch, m, hidden]` of the steps from `first_step` on, memory `[batch, n, width]`.
    """

    def __init__(self, score: Score = dot) -> None:
        super().__init__()
        self.score = score

    def forward(self, query: Tensor, memory: Tensor, lengths: Tensor, first_step: int | Tensor = 0) -> Tensor:
        """The contexts `[batch, m, width]`."""
        mask, falloff = self._window(query, memory, lengths, first_step)
        weigh = softmax if falloff is None else lambda score: softmax(score) * falloff
        return attend(query, memory, memory, score=self.score, mask=mask, weigh=weigh)

    def look(self, query: Tensor, memory: Tensor, lengths: Tensor) -> Tensor:
        """The weights `[batch, m, n]`."""
        mask, falloff = self._window(query, memory, lengths, 0)
        weight = look(query, memory, score=self.score, mask=mask)
        return weight if falloff is None else weight * falloff

    def _window(
        self, query: Tensor, memory: Tensor, lengths: Tensor, first_step: int | Tensor
    ) -> tuple[Mask, Tensor | None]:
        """What each step may attend to, and the factors of the weights there, `[batch, m, n]`; None: 1."""
        return padding(lengths), None


class Local(Global):
    """Attention to the source states at most `radius` D from a centre p_t (section 3.2).

    monotonic   p_t = t, or the last token if the source is shorter
    predicted   p_t = n · σ(vᵀ tanh(W s_t)); the softmax over the window is multiplied by a Gaussian around p_t of
                σ = D/2, so weights need not sum to 1. The Gaussian gives p_t its gradient.

    hidden   size of a query, for a predicted centre; None: monotonic
    """

    def __init__(self, score: Score = dot, radius: int = 10, *, hidden: int | None = None) -> None:
        super().__init__(score)
        self.radius, self.centre = positive("radius", radius), None
        if hidden is not None:
            self.centre = nn.Sequential(
                nn.Linear(hidden, hidden, bias=False), nn.Tanh(), nn.Linear(hidden, 1, bias=False)
            )

    def _window(
        self, query: Tensor, memory: Tensor, lengths: Tensor, first_step: int | Tensor
    ) -> tuple[Mask, Tensor | None]:
        position = torch.arange(memory.shape[1], device=query.device)
        falloff = None
        if self.centre is None:
            first = torch.as_tensor(first_step, device=query.device).reshape(-1, 1)  # [1 or batch, 1]
            step = torch.arange(query.shape[1], device=query.device) + first
            distance = position - torch.minimum(step, lengths.unsqueeze(-1) - 1).unsqueeze(-1)  # [batch, m, n]
        else:
            distance = position - lengths.reshape(-1, 1, 1) * torch.sigmoid(self.centre(query))  # [batch, m, n]
            falloff = torch.exp(-2 * (distance / self.radius).square())  # exp(−(i − p_t)² / 2σ²), 1/2σ² = 2/D²
        return both(padding(lengths), distance.detach().abs() <= self.radius), falloff


class Luong(Recurrent):
    """A model with one context per step, which is an input of the output layer; by default of LSTMs, read forward.

    s̃ has the size of a state, if tied of an embedding.

    score       from the sizes of a decoder's and an encoder's state to the score: `Bilinear`, `concat`, or
                `lambda state, _: Location(state, max_length=100)`; None: `dot`, for which they must be equal
    radius      D of local attention; None: global attention
    predicted   whether the centre of local attention is predicted; otherwise monotonic
    feeding     whether s̃ is an input of the next step

    >>> import torch
    >>> model = Luong(50, 60, RecurrentConfig(size=8, hidden=16), radius=2)
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
        score: Callable[[int, int], Score] | None = Bilinear,
        radius: int | None = None,
        predicted: bool = True,
        feeding: bool = True,
    ) -> None:
        config = config.with_defaults(nn.LSTM, bidirectional=False)
        size, hidden = config.size, config.hidden
        read_size = size if config.tied else hidden
        super().__init__(source, target, config, read_size)
        width, self.feeding = self.encoder.width, feeding
        if score is None and width != hidden:
            raise ValueError(f"dot needs states of one size, got {hidden} and {width}: use Bilinear")
        scoring = dot if score is None else score(hidden, width)
        self.attention = Global(scoring)
        if radius is not None:
            self.attention = Local(scoring, radius, hidden=hidden if predicted else None)
        self.decoder = config.make_rnn(size + read_size if feeding else size)
        self.output = nn.Linear(width + hidden, read_size, bias=False)  # from [c; s] to s̃ before its tanh
        self.start = Start(width, self.decoder)

    def rows(self, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        return self.dropout(self._run_decoder(self.begin(source, lengths), target)[1])  # type: ignore[no-any-return]

    def look(self, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        """The attention weights of each target position: `[batch, m, n]`."""
        state = self.begin(source, lengths)
        return self.attention.look(self._run_decoder(state, target)[0], *state.encoded.tensors)

    def begin(self, source: Tensor, lengths: Tensor, max_length: int | None = None) -> DecodingState:
        """The state before the first token; `max_length` is not used."""
        memory = self.encode(source, lengths)
        attentional = memory.new_zeros(len(memory), self.output.out_features)
        layers = self.start(self.encoder.final(memory, lengths))
        return DecodingState(layers, FixedTensors(memory, lengths), (attentional, torch.zeros_like(lengths)))

    def _run_decoder(self, state: DecodingState, target: Tensor) -> tuple[Tensor, Tensor]:
        """All steps: the states s `[batch, m, hidden]` of the last layer, and s̃ `[batch, m, size]`."""
        words = self.target(target)
        if not self.feeding:
            states = run_layers(self.decoder, words, state.layers)
            return states, self._attentional_state(states, self.attention(states, *state.encoded.tensors))
        all_states, all_attentional = [], []
        for gates in weights_of(self.decoder).gates(words).unbind(dim=1):
            state, attentional = self._decoder_step(state, gates)
            all_states.append(state.layers[-1][0])
            all_attentional.append(attentional)
        return torch.stack(all_states, dim=1), torch.stack(all_attentional, dim=1)

    def _decoder_step(self, state: DecodingState, gates: Tensor) -> tuple[DecodingState, Tensor]:
        """One step from the word's part of the gates: update, then attend. The next state, and s̃ `[rows, size]`."""
        attentional, step = state.extra
        if self.feeding:
            gates = gates + weights_of(self.decoder).extra_gates(attentional)
        layers = layers_step(self.decoder, gates, state.layers)
        query = layers[-1][0].unsqueeze(1)
        context = self.attention(query, *state.encoded.tensors, step)
        attentional = self._attentional_state(query, context).squeeze(1)
        return state._replace(layers=layers, extra=(attentional, step + 1)), attentional

    def _step(self, state: DecodingState, word: Tensor) -> tuple[DecodingState, Tensor]:
        return self._decoder_step(state, weights_of(self.decoder).gates(word))

    def _attentional_state(self, state: Tensor, context: Tensor) -> Tensor:
        """s̃ = tanh(W [c; s])."""
        return torch.tanh(self.output(torch.cat([context, state], dim=-1)))


def concat(state: int, memory: int) -> Additive:
    """Luong's "concat" score, vᵀ tanh(W [s; h])."""
    return Additive(state, memory, state, bias=False)
