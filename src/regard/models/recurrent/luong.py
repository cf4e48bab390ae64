"""Attention after the recurrence: the decoder moves, then its new state looks (Luong, Pham, Manning 2015).

    s_t = cell(y_{t−1}, s_{t−1})        c_t = attend(s_t, h)        s̃_t = tanh(W [c_t; s_t])
    p(y_t) = softmax(read(s̃_t))

    global    all source states; score: `dot`, `Bilinear` ("general"), `Additive` ("concat") or `Location`
    local     those at most `radius` D from a centre p_t, monotonic ("local-m": p_t = t) or predicted ("local-p")

With input feeding the cell's input is [y_{t−1}; s̃_{t−1}]. Without it the states know nothing of what was looked at:
the decoder runs over all steps in one call, and all steps attend in one.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.attend import attend, look
from regard.checks import positive
from regard.layers.cache import FixedTensors
from regard.masks import Mask, both, padding
from regard.models.recurrent.cells import Cell, State, run, stack_step, weights_of
from regard.models.recurrent.encoder import RecurrentEncoder
from regard.models.recurrent.parts import Reading, Recurrent, Start, ends
from regard.models.transformer import Embedding
from regard.scores import Additive, Bilinear, Score, dot
from regard.weighing import softmax


class Location(nn.Module):
    """Luong's "location" score, W s: of the query alone, one number for each place (section 3.1).

    It is the inner product of the query and a learned vector for the place; what stands there plays no part. Places
    count from the first key that it is given: it must be given all of them at once, not blocks as by `stream`.

    room   how many places there are vectors for; a longer source is refused

    >>> import torch
    >>> Location(3, room=20)(torch.randn(2, 7, 3), torch.randn(2, 11, 5)).shape
    torch.Size([2, 7, 11])
    """

    width = 1

    def __init__(self, query_size: int, room: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(positive("room", room), query_size))
        nn.init.xavier_uniform_(self.weight)

    def as_dot(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, float]:
        room, places = len(self.weight), key.shape[-2]
        if places > room:
            raise ValueError(f"a location score was made for sources of at most {room} tokens, got {places}")
        return query, self.weight[:places].expand(*key.shape[:-1], -1), 1.0

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        query, key, _ = self.as_dot(query, key)
        return query @ key.mT


class Global(nn.Module):
    """Attention to all source states, by a score.

    query `[batch, m, hidden]` of the steps from `at` on, memory `[batch, n, width]`.
    """

    def __init__(self, score: Score = dot) -> None:
        super().__init__()
        self.score = score

    def forward(self, query: Tensor, memory: Tensor, lengths: Tensor, at: int | Tensor = 0) -> Tensor:
        """The contexts `[batch, m, width]`."""
        return attend(query, memory, memory, score=self.score, mask=padding(lengths))

    def look(self, query: Tensor, memory: Tensor, lengths: Tensor) -> Tensor:
        """The weights `[batch, m, n]`."""
        return look(query, memory, score=self.score, mask=padding(lengths))


class Near(NamedTuple):
    """The source around each step's centre, and how much each place in it counts."""

    mask: Mask
    fall: Tensor | None  # [batch, m, n]  exp(−(i − p_t)² / 2σ²)


class Local(nn.Module):
    """Attention to the source states at most `radius` D from a centre p_t (section 3.2).

    monotonic   p_t = t, and the last token where the source is shorter
    predicted   p_t = n · σ(vᵀ tanh(W s_t)); the softmax over the window is multiplied by a Gaussian around p_t of
                σ = D/2, so that weights need not add up to 1. p_t learns through the Gaussian.

    hidden   numbers of a query, for a predicted centre; None: monotonic
    """

    def __init__(self, score: Score = dot, radius: int = 10, *, hidden: int | None = None) -> None:
        super().__init__()
        self.score, self.radius = score, positive("radius", radius)
        self.centre = None
        if hidden is not None:
            self.centre = nn.Sequential(
                nn.Linear(hidden, hidden, bias=False), nn.Tanh(), nn.Linear(hidden, 1, bias=False)
            )

    def near(self, query: Tensor, memory: Tensor, lengths: Tensor, at: int | Tensor) -> Near:
        """Which places the steps see."""
        place = torch.arange(memory.shape[1], device=query.device)
        if self.centre is None:
            first = torch.as_tensor(at, device=query.device).reshape(-1, 1)
            step = torch.arange(query.shape[1], device=query.device) + first
            away = place - torch.minimum(step, lengths.unsqueeze(-1) - 1).unsqueeze(-1)
            return Near(both(padding(lengths), away.abs() <= self.radius), None)
        centre = lengths.reshape(-1, 1, 1) * torch.sigmoid(self.centre(query))  # [batch, m, 1]
        away = place - centre
        near = away.detach().abs() <= self.radius
        return Near(both(padding(lengths), near), torch.exp(-2 * (away / self.radius).square()))  # 1/2σ² = 2/D²

    def forward(self, query: Tensor, memory: Tensor, lengths: Tensor, at: int | Tensor = 0) -> Tensor:
        """The contexts `[batch, m, width]`."""
        mask, fall = self.near(query, memory, lengths, at)
        if fall is None:
            return attend(query, memory, memory, score=self.score, mask=mask)
        return attend(query, memory, memory, score=self.score, mask=mask, weigh=lambda score: softmax(score) * fall)

    def look(self, query: Tensor, memory: Tensor, lengths: Tensor) -> Tensor:
        """The weights `[batch, m, n]`."""
        mask, fall = self.near(query, memory, lengths, 0)
        weight = look(query, memory, score=self.score, mask=mask)
        return weight if fall is None else weight * fall


class Course(NamedTuple):
    """What the decoder went through, `[batch, m, …]`."""

    state: Tensor  # s_t of the highest layer, which asks
    read: Tensor  # s̃_t


class Luong(Recurrent):
    """A context of its own for each step, which goes into what is read.

    source, target, encoder, read, dropout   see `Recurrent`
    decoder     an `nn.GRU` or `nn.LSTM` of words, or with input feeding of [word; s̃], batch first
    attention   a `Global` or a `Local`
    output      from [c; s] to s̃ before its tanh
    start       from the encoder's last states to s₀ of all layers
    feeding     whether s̃_{t−1} is fed to step t

    >>> import torch
    >>> model = luong(50, 60, size=8, hidden=16, radius=2)
    >>> model(torch.randint(50, (2, 7)), torch.tensor([7, 5]), torch.randint(60, (2, 9))).shape
    torch.Size([2, 9, 60])
    """

    def __init__(
        self,
        source: Embedding,
        target: Embedding,
        encoder: RecurrentEncoder,
        decoder: nn.GRU | nn.LSTM,
        attention: Global | Local,
        output: nn.Linear,
        start: Start,
        read: nn.Linear,
        *,
        feeding: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(source, target, encoder, read, dropout)
        self.decoder, self.attention, self.output, self.start = decoder, attention, output, start
        self.feeding = feeding

    def rows(self, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        memory = self.encode(source, lengths)
        return self.dropout(self.course(memory, lengths, target).read)  # type: ignore[no-any-return]

    def course(self, memory: Tensor, lengths: Tensor, target: Tensor) -> Course:
        """All steps of the decoder."""
        words, layers = self.target(target), self.start(self.encoder.last(memory, lengths))
        if not self.feeding:
            states = run(self.decoder, words, layers)
            return Course(states, self.attentional(states, self.attention(states, memory, lengths)))
        passed, reads = [], []
        read = words.new_zeros(len(words), self.output.out_features)
        weights = weights_of(self.decoder)
        for at, gates in enumerate(weights.gates(words).unbind(dim=1)):
            layers, read = self.move(gates + weights.more(read), layers, memory, lengths, at)
            passed.append(layers[-1][0])
            reads.append(read)
        return Course(torch.stack(passed, dim=1), torch.stack(reads, dim=1))

    def move(
        self, gates: Tensor, layers: list[State], memory: Tensor, lengths: Tensor, at: int | Tensor
    ) -> tuple[list[State], Tensor]:
        """One step: move, then look. The new states, and s̃ `[rows, size]`."""
        layers = stack_step(self.decoder, gates, layers)
        query = layers[-1][0].unsqueeze(1)
        return layers, self.attentional(query, self.attention(query, memory, lengths, at)).squeeze(1)

    def attentional(self, state: Tensor, context: Tensor) -> Tensor:
        """s̃ = tanh(W [c; s])."""
        return torch.tanh(self.output(torch.cat([context, state], dim=-1)))

    def look(self, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        """How each target position looked at the source: `[batch, m, n]`."""
        memory = self.encode(source, lengths)
        return self.attention.look(self.course(memory, lengths, target).state, memory, lengths)

    def begin(self, source: Tensor, lengths: Tensor, max_length: int) -> Reading:
        """The state that decoding starts from; `max_length` is not used."""
        memory = self.encode(source, lengths)
        read = memory.new_zeros(len(memory), self.output.out_features)
        layers = self.start(self.encoder.last(memory, lengths))
        return Reading(layers, FixedTensors(memory, lengths), (read, torch.zeros_like(lengths)))

    def step(self, state: Reading, last: Tensor) -> tuple[Reading, Tensor]:
        """For `regard.decoding`: the last token of each row, `[rows]`, to log probabilities `[rows, vocabulary]`."""
        (memory, lengths), (read, at), weights = state.kept.tensors, state.more, weights_of(self.decoder)
        gates = weights.gates(self.word(last))
        if self.feeding:
            gates = gates + weights.more(read)
        layers, read = self.move(gates, state.layers, memory, lengths, at)
        return state._replace(layers=layers, more=(read, at + 1)), self.logits(read).log_softmax(dim=-1)


def luong(
    source: int,
    target: int,
    *,
    size: int = 256,
    hidden: int = 512,
    cell: Cell = nn.LSTM,
    layers: int = 1,
    both_ways: bool = False,
    score: Callable[[int, int], Score] | None = Bilinear,
    radius: int | None = None,
    predicted: bool = True,
    feeding: bool = True,
    dropout: float = 0.0,
    shared: bool = False,
    tied: bool = False,
) -> Luong:
    """The attention model for two vocabularies of these sizes; s̃ has the size of a state, or of a vector where tied.

    both_ways      whether the encoder also reads from the end
    score          from the sizes of a decoder's and an encoder's state to the score: `Bilinear`, `concat`, or
                   `lambda state, _: Location(state, room=100)`; None: `dot`, for which they must be equal
    radius         D of local attention, around a centre that is predicted or not; None: global
    feeding        whether s̃ is fed to the next step
    shared, tied   one vector for a token of both sides; and for what its logit is read with

    >>> import torch
    >>> source, lengths, target = torch.randint(50, (2, 7)), torch.tensor([7, 5]), torch.randint(60, (2, 9))
    >>> luong(50, 60, size=8, hidden=16).look(source, lengths, target).shape
    torch.Size([2, 9, 7])
    """
    read_size = size if tied else hidden
    into, out, read = ends(source, target, size, read_size, dropout, shared=shared, tied=tied)
    encoder = RecurrentEncoder(size, hidden, cell=cell, layers=layers, both_ways=both_ways, dropout=dropout)
    if score is None and encoder.width != hidden:
        raise ValueError(f"dot needs states of one size, got {hidden} and {encoder.width}: use Bilinear")
    made = dot if score is None else score(hidden, encoder.width)
    attention = Global(made) if radius is None else Local(made, radius, hidden=hidden if predicted else None)
    x = size + read_size if feeding else size
    decoder = cell(x, hidden, layers, batch_first=True, dropout=dropout if layers > 1 else 0.0)
    output, start = nn.Linear(encoder.width + hidden, read_size, bias=False), Start(encoder.width, decoder)
    return Luong(into, out, encoder, decoder, attention, output, start, read, feeding=feeding, dropout=dropout)


def concat(state: int, memory: int) -> Additive:
    """Luong's "concat" score, vᵀ tanh(W [s; h])."""
    return Additive(state, memory, state, bias=False)
