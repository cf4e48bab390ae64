"""Show, Attend and Tell: a recurrent decoder that looks at an image's grid before each word (Xu et al. 2015).

    e_ti = f_att(a_i, h_{t-1})      α_t = softmax(e_t)      z_t = β_t ∘ Σ_i α_ti a_i      β_t = σ(f_β(h_{t-1}))
    h_t, c_t = LSTM([E y_{t-1}; z_t], h_{t-1}, c_{t-1})                  h_0, c_0 = tanh of maps of the mean of a
    p(y_t) = softmax(W tanh(E y_{t-1} + L_h h_t + L_z z_t) + b)          (equations 1 to 7)

f_att is `regard.scores.Additive`; the gate has a number for each channel. A grid is `[batch, cells, channels]`, words
`[batch, m]`, whole numbers with the start first and `PADDING` behind the last.

The loss of a caption is -log p of its words and λ Σ_i (1 - Σ_t α_ti)², the doubly stochastic term (equation 14), which
asks that each cell be looked at about once; that of a batch is their sum over its number of words.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.checks import positive
from regard.layers.feed_forward import Dropout
from regard.models.looking import Draw, Maps, Regions, Walk, walk
from regard.models.transformer import check_tokens
from regard.ops.cross_entropy import cross_entropy
from regard.scores import Additive
from regard.weighing import Weighing, softmax

PADDING = 0
"""The token that stands behind the last of a caption, and is never read out."""


class Told(NamedTuple):
    """What the decoder came to, word by word."""

    rows: Tensor  # [batch, m, size]  what the words are read from
    weights: Tensor  # [batch, m, cells]  α
    chosen: Tensor  # [batch, m]  the cells that hard attention took; -1 where it took none


class Telling(NamedTuple):
    """What decoding keeps of captions in the making."""

    hidden: Tensor  # [rows, hidden]
    cell: Tensor  # [rows, hidden]
    regions: Regions


class CaptionDecoder(nn.Module):
    """The decoder with soft attention.

    vocabulary   how many words there are, `PADDING` among them
    channels     of the grid
    size         of a word's vector, and of the rows that words are read from
    hidden       of the LSTM
    attention    of the score's hidden layer
    shape        rows and columns of the grid, where the decoder is to know its cells apart: each has a learned vector,
                 which is added to what is seen in it, and is at first linear in row and column. None: it sees what is
                 in a cell, and where that is only as the encoder says it
    dropout      the share dropped of word vectors, and of the rows that words are read from
    tied         words are read by their own vectors

    >>> import torch
    >>> decoder = CaptionDecoder(50, 7, size=8, hidden=16, attention=8)
    >>> decoder(torch.randn(3, 9, 7), torch.randint(50, (3, 5))).shape
    torch.Size([3, 5, 50])
    """

    weigh: Weighing = staticmethod(softmax)
    """How scores become weights when captions are written."""
    centre: Tensor  # [channels]  is taken off every grid
    width: Tensor  # [channels]  and it is divided by that

    def __init__(
        self,
        vocabulary: int,
        channels: int,
        *,
        size: int = 256,
        hidden: int = 512,
        attention: int = 512,
        shape: tuple[int, int] | None = None,
        dropout: float = 0.0,
        tied: bool = False,
    ) -> None:
        super().__init__()
        for name, number in {"vocabulary": vocabulary, "channels": channels, "size": size, "hidden": hidden}.items():
            positive(name, number)
        self.register_buffer("centre", torch.zeros(channels))
        self.register_buffer("width", torch.ones(channels))
        self.place = None if shape is None else nn.Parameter(places(*shape) @ torch.randn(2, channels))
        self.embedding = nn.Embedding(vocabulary, size)
        self.first_hidden, self.first_cell = nn.Linear(channels, hidden), nn.Linear(channels, hidden)
        self.score = Additive(hidden, channels, attention)
        self.gate = nn.Linear(hidden, channels)
        self.cell = nn.LSTMCell(size + channels, hidden)
        self.from_state = nn.Linear(hidden, size)
        self.from_context = nn.Linear(channels, size, bias=False)
        self.drop = Dropout(dropout)
        self.read = nn.Linear(size, vocabulary)
        nn.init.normal_(self.embedding.weight, std=size**-0.5)
        nn.init.ones_(self.cell.bias_ih[hidden : 2 * hidden].detach())  # it remembers, until it learns to forget
        nn.init.zeros_(self.read.bias)
        if tied:
            self.read.weight = self.embedding.weight

    @property
    def vocabulary(self) -> int:
        """How many words there are."""
        return self.embedding.num_embeddings

    @property
    def output_weights(self) -> tuple[Tensor, Tensor]:
        """What `logits` reads rows by: weight `[vocabulary, size]` and bias."""
        return self.read.weight, self.read.bias

    def forward(self, grid: Tensor, words: Tensor) -> Tensor:
        """The logits of the word behind each of `[batch, m]`, those before it given: `[batch, m, vocabulary]`."""
        return self.logits(self.rows(grid, words).rows)

    def rows(self, grid: Tensor, words: Tensor) -> Told:
        """What the words behind each of `[batch, m]` are read from, and where was looked."""
        vectors, walked = self.walked(grid, words)
        return Told(self.deep(vectors, walked.states, walked.contexts), walked.weights, walked.chosen)

    def draw(self, words: Tensor) -> Draw | None:
        """How cells are drawn for words `[batch, m]`: with soft attention not at all."""
        return None

    def logits(self, rows: Tensor) -> Tensor:
        """Scores of all words."""
        found: Tensor = self.read(rows)
        return found

    def walked(self, grid: Tensor, words: Tensor) -> tuple[Tensor, Walk]:
        """The words' vectors `[batch, m, size]`, and the walk of the recurrence over them."""
        check_tokens(words, self.vocabulary)
        if len(grid) != len(words):
            raise ValueError(f"each caption needs its grid, got {len(grid)} grids and {len(words)} captions")
        vectors, size = self.drop(self.embedding(words)), self.embedding.embedding_dim
        key, grid, state = self.seen(grid)
        cell, score, asked = self.cell, self.score, self.score.query_projection
        given = functional.linear(vectors, cell.weight_ih[:, :size], cell.bias_ih + cell.bias_hh)
        maps = Maps(
            score.weight,
            torch.cat([asked.weight, self.gate.weight, cell.weight_hh]),
            torch.cat([asked.bias, self.gate.bias]),
            cell.weight_ih[:, size:],
        )
        return vectors, walk(key, grid, given, *state, maps, self.draw(words))

    @torch.no_grad()
    def adapt(self, grid: Tensor) -> None:
        """From now on all grids are scaled as these `[batch, cells, channels]` must be to be 0 ± 1 in each channel."""
        flat = grid.flatten(0, 1)
        self.centre.copy_(flat.mean(dim=0))
        self.width.copy_(flat.std(dim=0, correction=0).clamp(min=1e-6))

    def seen(self, grid: Tensor) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
        """Projected keys `[batch, cells, attention]`, the grid as it is looked at, and the state before any word."""
        channels = len(self.centre)
        if grid.ndim != 3 or grid.shape[2] != channels or not grid.shape[1]:
            raise ValueError(f"a grid must be [batch, cells, {channels}], with at least a cell, got {list(grid.shape)}")
        grid = (grid - self.centre) / self.width
        key, mean = self.score.key_projection(grid), grid.mean(dim=1)
        if self.place is not None:
            if grid.shape[1] != len(self.place):
                raise ValueError(f"the decoder was made for {len(self.place)} cells, got {grid.shape[1]}")
            # The projection is linear: what places add to it is the same for all grids.
            key, grid = key + self.score.key_projection(self.place), grid + self.place
        return key, grid, (torch.tanh(self.first_hidden(mean)), torch.tanh(self.first_cell(mean)))

    def deep(self, vectors: Tensor, states: Tensor, contexts: Tensor) -> Tensor:
        """The deep output layer: rows from words, states and contexts."""
        rows: Tensor = self.drop(torch.tanh(vectors + self.from_state(states) + self.from_context(contexts)))
        return rows

    def loss(self, grid: Tensor, words: Tensor, *, spread: float = 0.0, smoothing: float = 0.0) -> Tensor:
        """The mean over words of what `words` `[batch, m + 1]`, from start to end, costs.

        spread      λ of the doubly stochastic term
        smoothing   the share of each target that is given to all words alike
        """
        real = real_words(words)
        told, (weight, bias) = self.rows(grid, words[:, :-1]), self.output_weights
        cost = cross_entropy(told.rows[real], weight, words[:, 1:][real], bias, smoothing=smoothing)
        return cost + spread * unevenness(told.weights, real).sum() / real.sum() if spread else cost

    def begin(self, grid: Tensor, max_length: int | None = None) -> Telling:
        """The state that captions of `[images, cells, channels]` are written from; `max_length` is not used."""
        key, grid, state = self.seen(grid)
        return Telling(*state, Regions(key, grid))

    def step(self, state: Telling, last: Tensor, weigh: Weighing | None = None) -> tuple[Telling, Tensor]:
        """For `regard.decoding`: the last word of each row, `[rows]`, to log probabilities `[rows, vocabulary]`."""
        hidden, cell, regions = state
        mean = regions.attended(self.score.query_projection(hidden), self.score.weight, weigh or self.weigh)
        context = torch.sigmoid(self.gate(hidden)) * mean
        vector = self.embedding(last)
        hidden, cell = self.cell(torch.cat([vector, context], dim=-1), (hidden, cell))
        logits = self.logits(self.deep(vector, hidden, context))
        return Telling(hidden, cell, regions), logits.log_softmax(dim=-1)

    def look(self, grid: Tensor, words: Tensor) -> Tensor:
        """The weights with which the word behind each of `[batch, m]` was looked for: `[batch, m, cells]`."""
        return self.rows(grid, words).weights


def places(rows: int, columns: int) -> Tensor:
    """The row and the column of each cell of a grid, from -1 to 1, `[cells, 2]`; 0 where there is only one.

    >>> places(2, 3)[:4].tolist()
    [[-1.0, -1.0], [-1.0, 0.0], [-1.0, 1.0], [1.0, -1.0]]
    """
    sides = (torch.linspace(-1, 1, positive("a grid's side", n)) if n != 1 else torch.zeros(1) for n in (rows, columns))
    return torch.cartesian_prod(*sides)


def real_words(words: Tensor) -> Tensor:
    """Which of the targets of captions `[batch, m + 1]` are words: `[batch, m]`."""
    if words.ndim != 2 or words.shape[1] < 2:
        raise ValueError(f"captions are [batch, m + 1], a start and at least an end, got shape {list(words.shape)}")
    real = words[:, 1:] != PADDING
    if not real[:, 0].all():
        raise ValueError("each caption must have a word behind its start, got one that is only padding")
    return real


def unevenness(weights: Tensor, real: Tensor) -> Tensor:
    """Σ_i (1 - Σ_t α_ti)² over the real words of each caption: `[batch]`."""
    looked = torch.einsum("bti,bt->bi", weights, real.to(weights.dtype))
    return (1 - looked).square().sum(dim=1)
