"""Show, Attend and Tell: a recurrent decoder that attends to an image's grid before each word (Xu et al. 2015).

    e_ti = f_att(a_i, h_{t-1})      α_t = softmax(e_t)      z_t = β_t ∘ Σ_i α_ti a_i      β_t = σ(f_β(h_{t-1}))
    h_t, c_t = LSTM([E y_{t-1}; z_t], h_{t-1}, c_{t-1})                  h_0, c_0 = tanh of maps of the mean of a
    p(y_t) = softmax(W tanh(E y_{t-1} + L_h h_t + L_z z_t) + b)          (equations 1 to 7)

f_att is `regard.scores.Additive`; the gate β has one number per channel. A grid is `[batch, cells, channels]`. Words
are integers `[batch, m]`: the start token, the words, then `PADDING`.

The loss of a caption is -log p of its words plus λ Σ_i (1 - Σ_t α_ti)², the doubly stochastic term (equation 14), which
makes each cell get a total weight of about one; the loss of a batch is their sum divided by its number of words.

Hard attention (section 4.1) draws one cell before each word, and is trained by sampling:

    s_t ~ α_t      z_t = β_t ∘ a_{s_t}      L = E_s log p(y | s)  ≤  log p(y)
    ∇L = E_s [∇ log p(y | s)  +  Σ_t (R_t - b n_t) ∇ log α_t(s_t)]         R_t = Σ_{t' ≥ t} log p(y_t' | s)

The reward R_t of a draw is the log probability of the words from it on: the earlier words do not depend on it, and
would only add noise. The baseline is b for each of these n_t words, with b ← 0.9 b + 0.1 log p per word, batch by
batch: it does not depend on the draw, so it lowers the variance and leaves the mean unchanged. The loss is
-L - `entropy` · Σ_t H(α_t), where H is the entropy.

With probability `expected`, a caption uses the expected cell Σ_i α_i a_i at each of its words, which has the gradient
of soft attention. A trained encoder needs more of that gradient at first: all captions of the first
`soft_steps` use it.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.checks import fraction, positive
from regard.models.transformer import check_tokens
from regard.ops.attentive_rnn import Draw, RecurrentAttention, additive_scores, attentive_recurrence
from regard.ops.cross_entropy import cross_entropy
from regard.scores import Additive
from regard.weighing import Weighing, hard, softmax

PADDING = 0
"""The token after the end of a caption; the decoder never writes it."""
_BASELINE_DECAY = 0.9
"""The fraction of the baseline that remains after a batch."""
_MIN_WEIGHT = 1e-30
"""Attention weights are at least this large in a logarithm."""


@dataclass(frozen=True)
class CaptionConfig:
    """Sizes and options of a caption decoder.

    >>> CaptionDecoder(50, 7, CaptionConfig(size=8, hidden=16, score_size=8)).cell
    LSTMCell(15, 16)
    """

    size: int = 256  # of word vectors, and of the rows that words are predicted from
    hidden: int = 512  # of the LSTM
    score_size: int = 512  # of the hidden layer of the score
    shape: tuple[int, int] | None = None
    """Rows and columns of the grid: each cell gets a learned vector that is added to its channels, at first linear in
    row and column. None: the decoder knows the position of a cell only through the encoder."""
    dropout: float = 0.0  # rate for word vectors, and for the rows that words are predicted from
    tied: bool = False  # the output layer shares its weights with the embedding

    def __post_init__(self) -> None:
        for name in ("size", "hidden", "score_size"):
            positive(name, getattr(self, name))


@dataclass(frozen=True)
class HardAttention:
    """How hard attention is trained; the module's docstring has the estimate.

    >>> HardCaptionDecoder(50, 7, hard=HardAttention(samples=2)).hard.samples
    2
    """

    samples: int = 1  # number of draws for each caption
    reward: float = 1.0  # weight of the gradient of the draws
    entropy: float = 0.002  # weight of the entropy
    expected: float = 0.5  # probability that a caption uses the expected cell instead of a draw
    soft_steps: int = 0  # number of first calls of `loss` in `train` mode in which all captions use the expected cell

    def __post_init__(self) -> None:
        positive("samples", self.samples)
        fraction("expected", self.expected)


_CONFIG, _HARD = CaptionConfig(), HardAttention()


class Regions:
    """The grids of captions that are being written, stored once per image however many captions it has.

    key     `[images, cells, hidden]`, projected
    value   `[images, cells, channels]`
    index   `[rows]`  the image of each row; default: one row per image
    """

    def __init__(self, key: Tensor, value: Tensor, index: Tensor | None = None) -> None:
        self.key, self.value = key, value
        self.index = torch.arange(len(key), device=key.device) if index is None else index

    def select(self, rows: Tensor) -> "Regions":
        """The same for some rows; images without rows are removed."""
        images, index = self.index[rows].unique(return_inverse=True)  # type: ignore[no-untyped-call]
        if len(images) == len(self.key):
            return Regions(self.key, self.value, index)
        return Regions(self.key[images], self.value[images], index)

    def attend(self, query: Tensor, weight: Tensor, weigh: Weighing) -> Tensor:
        """The attended values `[rows, channels]` of projected queries `[rows, hidden]`."""
        scores = additive_scores(query, self.key, weight, self.index).unsqueeze(1)  # [rows, 1, cells]
        per_image = len(query) // len(self.key)
        regular = torch.arange(len(self.key), device=query.device).repeat_interleave(per_image)
        if len(regular) == len(query) and torch.equal(regular, self.index):
            # The rows of each image are adjacent: [images, rows per image, cells], and no value is copied.
            scores, value = scores.view(len(self.key), per_image, -1), self.value
        else:
            value = self.value[self.index]
        return (weigh(scores) @ value).flatten(0, 1)


class _DecoderOutput(NamedTuple):
    """The outputs of the decoder at each word."""

    rows: Tensor  # [batch, m, size]  the next word is predicted from them
    weights: Tensor  # [batch, m, cells]  α
    chosen_cells: Tensor  # [batch, m]  index of the cell that hard attention chose; -1: none, the mean of all was used


_DecodingState = tuple[Tensor, Tensor, Regions]
"""The state of captions that are being written: hidden state and memory of the LSTM, `[rows, hidden]` each; grids."""


class CaptionDecoder(nn.Module):
    """The decoder with soft attention.

    vocabulary   number of words, including `PADDING`
    channels     of the grid

    >>> import torch
    >>> decoder = CaptionDecoder(50, 7, CaptionConfig(size=8, hidden=16, score_size=8))
    >>> decoder(torch.randn(3, 9, 7), torch.randint(50, (3, 5))).shape
    torch.Size([3, 5, 50])
    """

    weigh: Weighing = staticmethod(softmax)
    """From scores to weights when captions are written."""
    centre: Tensor  # [channels]  subtracted from every grid
    width: Tensor  # [channels]  every grid is then divided by it

    def __init__(self, vocabulary: int, channels: int, config: CaptionConfig = _CONFIG) -> None:
        super().__init__()
        size, hidden, shape = config.size, config.hidden, config.shape
        positive("vocabulary", vocabulary)
        positive("channels", channels)
        self.register_buffer("centre", torch.zeros(channels))
        self.register_buffer("width", torch.ones(channels))
        # The learned vector of each cell, [cells, channels]; the name is part of the file format.
        self.place = None if shape is None else nn.Parameter(_cell_coordinates(*shape) @ torch.randn(2, channels))
        self.embedding = nn.Embedding(vocabulary, size)
        self.first_hidden, self.first_cell = nn.Linear(channels, hidden), nn.Linear(channels, hidden)
        self.score = Additive(hidden, channels, config.score_size)
        self.gate = nn.Linear(hidden, channels)
        self.cell = nn.LSTMCell(size + channels, hidden)
        self.from_state = nn.Linear(hidden, size)
        self.from_context = nn.Linear(channels, size, bias=False)
        self.drop = nn.Dropout(config.dropout)
        self.read = nn.Linear(size, vocabulary)
        nn.init.normal_(self.embedding.weight, std=size**-0.5)
        nn.init.ones_(self.cell.bias_ih[hidden : 2 * hidden].detach())  # the forget gate starts open
        nn.init.zeros_(self.read.bias)
        if config.tied:
            self.read.weight = self.embedding.weight

    @property
    def vocabulary(self) -> int:
        """Number of words."""
        return self.embedding.num_embeddings

    @property
    def output_weights(self) -> tuple[Tensor, Tensor]:
        """Weight `[vocabulary, size]` and bias `[vocabulary]` of `logits`."""
        return self.read.weight, self.read.bias

    def forward(self, grid: Tensor, words: Tensor) -> Tensor:
        """Logits of the next word at each position, given the earlier words: `[batch, m, vocabulary]`."""
        return self.logits(self.rows(grid, words).rows)

    def rows(self, grid: Tensor, words: Tensor) -> _DecoderOutput:
        """Rows from which the next word of each position `[batch, m]` is predicted, and the attention weights."""
        check_tokens(words, self.vocabulary)
        if len(grid) != len(words):
            raise ValueError(f"each caption needs its grid, got {len(grid)} grids and {len(words)} captions")
        vectors, size = self.drop(self.embedding(words)), self.embedding.embedding_dim
        key, grid, start = self._prepare_grid(grid)
        cell, score, query = self.cell, self.score, self.score.query_projection
        attention = RecurrentAttention(
            key,
            grid,
            score.weight,
            torch.cat([query.weight, self.gate.weight]),
            torch.cat([query.bias, self.gate.bias]),
            cell.weight_ih[:, size:],
            draw=self._draw(words),
        )
        # [m, batch, 4 · hidden]
        gates = functional.linear(vectors.transpose(0, 1), cell.weight_ih[:, :size], cell.bias_ih)
        (states, _), attended = attentive_recurrence(gates, start, cell.weight_hh, cell.bias_hh, attention)
        # [m, batch, …] to [batch, m, …]
        states, contexts, weights, chosen = (part.transpose(0, 1) for part in (states, *attended))
        return _DecoderOutput(self.output_rows(vectors, states, contexts), weights, chosen)

    def _draw(self, words: Tensor) -> Draw | None:
        """How cells are drawn for words `[batch, m]`; None: soft attention draws none."""
        return None

    def logits(self, rows: Tensor) -> Tensor:
        """Logits of all words."""
        logits: Tensor = self.read(rows)
        return logits

    @torch.no_grad()
    def fit_scaling(self, grid: Tensor) -> None:
        """Scale all later grids by the mean and deviation of each channel of these, `[batch, cells, channels]`."""
        flat = grid.flatten(0, 1)  # [batch · cells, channels]
        self.centre.copy_(flat.mean(dim=0))
        self.width.copy_(flat.std(dim=0, correction=0).clamp(min=1e-6))

    def _prepare_grid(self, grid: Tensor) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
        """Projected keys `[batch, cells, attention]`, the scaled grid, and the state before the first word."""
        channels = len(self.centre)
        if grid.ndim != 3 or grid.shape[2] != channels or not grid.shape[1]:
            raise ValueError(f"a grid must be [batch, cells, {channels}], with at least a cell, got {list(grid.shape)}")
        grid = (grid - self.centre) / self.width
        key, mean = self.score.key_projection(grid), grid.mean(dim=1)
        if self.place is not None:
            if grid.shape[1] != len(self.place):
                raise ValueError(f"the decoder was made for {len(self.place)} cells, got {grid.shape[1]}")
            # The projection is linear, so the cells' vectors add the same to the keys of all grids.
            key, grid = key + self.score.key_projection(self.place), grid + self.place
        return key, grid, (torch.tanh(self.first_hidden(mean)), torch.tanh(self.first_cell(mean)))

    def output_rows(self, vectors: Tensor, states: Tensor, contexts: Tensor) -> Tensor:
        """The deep output layer (equation 7, before W): rows from words, states and contexts."""
        rows: Tensor = self.drop(torch.tanh(vectors + self.from_state(states) + self.from_context(contexts)))
        return rows

    def loss(self, grid: Tensor, words: Tensor, *, spread: float = 0.0, smoothing: float = 0.0) -> Tensor:
        """The mean loss per word of `words` `[batch, m + 1]`, from start to end.

        spread      λ of the doubly stochastic term
        smoothing   the fraction of each target that is divided equally among all words
        """
        real = _real_words(words)
        output = self.rows(grid, words[:, :-1])
        loss = self._word_loss(output, words[:, 1:][real], real, smoothing)
        if not spread:
            return loss
        totals = torch.einsum("bti,bt->bi", output.weights, real.to(output.weights.dtype))  # Σ_t α_ti
        return loss + spread * (1 - totals).square().sum() / real.sum()

    def _word_loss(self, output: _DecoderOutput, targets: Tensor, real: Tensor, smoothing: float) -> Tensor:
        """The mean loss of the words `targets`, which are at the positions `real` `[batch, m]`."""
        weight, bias = self.output_weights
        return cross_entropy(output.rows[real], weight, targets, bias, smoothing=smoothing)

    def begin(self, grid: Tensor, max_length: int | None = None) -> _DecodingState:
        """The state before the first word of captions of `[images, cells, channels]`; `max_length` is not used."""
        key, grid, state = self._prepare_grid(grid)
        return *state, Regions(key, grid)

    def step(self, state: _DecodingState, last: Tensor, weigh: Weighing | None = None) -> tuple[_DecodingState, Tensor]:
        """For `regard.decoding`: the last word of each row, `[rows]`, to log probabilities `[rows, vocabulary]`."""
        hidden, cell, regions = state
        mean = regions.attend(self.score.query_projection(hidden), self.score.weight, weigh or self.weigh)
        context = torch.sigmoid(self.gate(hidden)) * mean
        vector = self.embedding(last)
        hidden, cell = self.cell(torch.cat([vector, context], dim=-1), (hidden, cell))
        logits = self.logits(self.output_rows(vector, hidden, context))
        return (hidden, cell, regions), logits.log_softmax(dim=-1)

    def look(self, grid: Tensor, words: Tensor) -> Tensor:
        """The attention weights for the next word at each position of `[batch, m]`: `[batch, m, cells]`."""
        return self.rows(grid, words).weights


class HardCaptionDecoder(CaptionDecoder):
    """The decoder with hard attention: it draws cells in `train` mode, and takes the most probable in `eval` mode.

    To draw also when captions are written, pass a weighing to `step`: `partial(decoder.step, weigh=HardSample())`.

    hard   how it is trained

    >>> import torch
    >>> decoder = HardCaptionDecoder(50, 7, CaptionConfig(size=8, hidden=16, score_size=8)).eval()
    >>> decoder.rows(torch.randn(3, 9, 7), torch.randint(50, (3, 5))).chosen_cells.shape
    torch.Size([3, 5])
    """

    weigh: Weighing = staticmethod(hard)
    baseline: Tensor  # []  moving average of log p per word
    steps: Tensor  # []  number of calls of `loss` in `train` mode

    def __init__(
        self, vocabulary: int, channels: int, config: CaptionConfig = _CONFIG, hard: HardAttention = _HARD
    ) -> None:
        super().__init__(vocabulary, channels, config)
        self.hard = hard
        self.register_buffer("steps", torch.tensor(0))
        self.register_buffer("baseline", -torch.tensor(float(vocabulary)).log())  # log p of equally probable words

    def _draw(self, words: Tensor) -> Draw:
        """In `train` mode one uniform number per word; in `eval` mode the most probable cell."""
        if not self.training:
            return Draw(None, torch.zeros(len(words), dtype=torch.bool, device=words.device))
        uniform = torch.rand(words.shape, dtype=torch.float64, device=words.device).T  # [m, batch]
        expected = self.hard.expected if self.steps >= self.hard.soft_steps else 1.0
        return Draw(uniform, torch.rand(len(words), device=words.device) < expected)

    def loss(self, grid: Tensor, words: Tensor, *, spread: float = 0.0, smoothing: float = 0.0) -> Tensor:
        """The mean loss per word; its gradient is minus the estimate of the module's docstring.

        Without `spread` and `smoothing`, its value is -log p given the drawn (or expected) cells. With either it is
        not -log p: smoothing changes the targets, also in the rewards, and spread adds its term. Reward and entropy
        contribute a gradient, and no value. In `train` mode it also updates the baseline and counts the step.
        """
        if self.hard.samples > 1:
            grid, words = (x.repeat_interleave(self.hard.samples, dim=0) for x in (grid, words))
        return super().loss(grid, words, spread=spread, smoothing=smoothing)

    def _word_loss(self, output: _DecoderOutput, targets: Tensor, real: Tensor, smoothing: float) -> Tensor:
        logits = self.logits(output.rows[real])
        losses = functional.cross_entropy(logits, targets, label_smoothing=smoothing, reduction="none")  # [words]
        log_probs = torch.zeros_like(real, dtype=losses.dtype).masked_scatter(real, -losses.detach())  # [batch, m]
        log_weights = _chosen_log_weights(output.weights, output.chosen_cells)
        surrogate = self.hard.reward * (self._advantage(log_probs, real) * log_weights).sum()
        entropy: Tensor = torch.special.entr(output.weights.clamp(min=_MIN_WEIGHT))[real].sum()
        surrogate = surrogate + self.hard.entropy * entropy
        if self.training:
            self.baseline += (1 - _BASELINE_DECAY) * (log_probs.sum() / real.sum() - self.baseline)
            self.steps += 1
        # The surrogate gives a gradient, and no value.
        return (losses.sum() - (surrogate - surrogate.detach())) / real.sum()

    def _advantage(self, log_probs: Tensor, real: Tensor) -> Tensor:
        """R_t - b n_t of each word, from log p of each `[batch, m]`; 0 at padding."""
        above_baseline = (log_probs - self.baseline) * real
        return above_baseline.flip(1).cumsum(dim=1).flip(1) * real


def _cell_coordinates(rows: int, columns: int) -> Tensor:
    """The row and the column of each cell of a grid, from -1 to 1, `[cells, 2]`; 0 if there is only one.

    >>> _cell_coordinates(2, 3)[:4].tolist()
    [[-1.0, -1.0], [-1.0, 0.0], [-1.0, 1.0], [1.0, -1.0]]
    """
    sides = (torch.linspace(-1, 1, positive("a grid's side", n)) if n != 1 else torch.zeros(1) for n in (rows, columns))
    return torch.cartesian_prod(*sides)


def _real_words(words: Tensor) -> Tensor:
    """Which targets of captions `[batch, m + 1]` are words, not padding: `[batch, m]`."""
    if words.ndim != 2 or words.shape[1] < 2:
        raise ValueError(
            f"captions must be [batch, m + 1], with a start and at least an end, got shape {list(words.shape)}"
        )
    real = words[:, 1:] != PADDING
    if not real[:, 0].all():
        raise ValueError("each caption must have a word after its start, got one with padding only")
    return real


def _chosen_log_weights(weights: Tensor, chosen_cells: Tensor) -> Tensor:
    """log α of the drawn cells, `[batch, m]`; 0 for captions that used the expected cell, which index -1 marks."""
    chosen = weights.gather(2, chosen_cells.clamp(min=0).unsqueeze(2)).squeeze(2)
    return chosen.clamp(min=_MIN_WEIGHT).log() * (chosen_cells >= 0)
