"""Hard attention for captions: before each word one cell is drawn, and learned by sampling (Xu et al. 2015, 4.1).

    s_t ~ α_t      z_t = β_t ∘ a_{s_t}      L = E_s log p(y | s)  ≤  log p(y)
    ∇L = E_s [∇ log p(y | s)  +  Σ_t (R_t - b n_t) ∇ log α_t(s_t)]         R_t = Σ_{t' ≥ t} log p(y_t' | s)

The reward of a draw is the log probability of the words from it on: those before it do not depend on it, and would
add nothing but noise. The baseline is b for each of these n_t words, and b ← 0.9 b + 0.1 log p a word, batch by batch:
as it does not depend on the draw, the mean stays and the variance falls. The entropy of α is added, and with
probability 0.5 a caption takes the expected cell Σ_i α_i a_i at each of its words, through which the gradient goes as
in soft attention. An encoder that is trained along needs more of that gradient before its cells are worth drawing: all
captions of the first `soft_steps` take the expected cell.
"""

import torch
from torch import Tensor
from torch.nn import functional

from regard.checks import fraction, positive
from regard.models.captioner import CaptionDecoder, real_words, unevenness
from regard.models.looking import Draw
from regard.weighing import Weighing, hard

KEPT = 0.9
"""The share of the baseline that a new batch leaves."""
LEAST = 1e-30
"""Weights below it have its logarithm."""


class HardCaptionDecoder(CaptionDecoder):
    """The decoder with hard attention: it draws cells in `train` mode, and takes the likeliest in `eval` mode.

    To draw when captions are written too, give `step` a weighing: `partial(decoder.step, weigh=HardSample())`.

    samples      how many times the cells of each caption are drawn
    reward       the weight of the draws' gradient
    entropy      the weight of the entropy
    expected     the share of captions that take the expected cell
    soft_steps   how many first calls of `loss` in `train` mode take it for all captions
    others       the arguments of `CaptionDecoder`

    >>> import torch
    >>> decoder = HardCaptionDecoder(50, 7, size=8, hidden=16, attention=8).eval()
    >>> decoder.rows(torch.randn(3, 9, 7), torch.randint(50, (3, 5))).chosen.shape
    torch.Size([3, 5])
    """

    weigh: Weighing = staticmethod(hard)
    baseline: Tensor  # []  log p a word, as it was lately
    steps: Tensor  # []  how many there were

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
        samples: int = 1,
        reward: float = 1.0,
        entropy: float = 0.002,
        expected: float = 0.5,
        soft_steps: int = 0,
    ) -> None:
        super().__init__(
            vocabulary,
            channels,
            size=size,
            hidden=hidden,
            attention=attention,
            shape=shape,
            dropout=dropout,
            tied=tied,
        )
        self.samples, self.expected = positive("samples", samples), fraction("expected", expected)
        self.reward, self.entropy, self.soft_steps = reward, entropy, soft_steps
        self.register_buffer("steps", torch.tensor(0))
        self.register_buffer("baseline", -torch.tensor(float(vocabulary)).log())  # of words that are all alike

    def draw(self, words: Tensor) -> Draw:
        """A number for each word; in `eval` mode the likeliest cell."""
        if not self.training:
            return Draw(None, torch.zeros(len(words), dtype=torch.bool, device=words.device))
        shot = torch.rand(words.shape, dtype=torch.float64, device=words.device)
        expected = self.expected if self.steps >= self.soft_steps else 1.0
        return Draw(shot, torch.rand(len(words), device=words.device) < expected)

    def loss(self, grid: Tensor, words: Tensor, *, spread: float = 0.0, smoothing: float = 0.0) -> Tensor:
        """As soft attention's; its gradient is the estimate, its value -log p given the cells that were drawn.

        In `train` mode the baseline moves, and the step counts.
        """
        if self.samples > 1:
            grid, words = grid.repeat_interleave(self.samples, dim=0), words.repeat_interleave(self.samples, dim=0)
        real = real_words(words)
        told, targets = self.rows(grid, words[:, :-1]), words[:, 1:][real]
        logits = self.logits(told.rows[real])
        costs = functional.cross_entropy(logits, targets, label_smoothing=smoothing, reduction="none")  # [words]
        cost = costs.sum()
        gained = torch.zeros_like(real, dtype=costs.dtype).masked_scatter(real, -costs.detach())  # log p of each word
        surrogate = self.reward * (self.advantage(gained, real) * log_chosen(told.weights, told.chosen)).sum()
        surrogate = surrogate + self.entropy * (entropies(told.weights) * real).sum()
        cost = cost - (surrogate - surrogate.detach())  # a gradient, and no value
        if spread:
            cost = cost + spread * unevenness(told.weights, real).sum()
        if self.training:
            self.baseline += (1 - KEPT) * (gained.sum() / real.sum() - self.baseline)
            self.steps += 1
        return cost / real.sum()

    def advantage(self, gained: Tensor, real: Tensor) -> Tensor:
        """R_t - b n_t of each word, from log p of each `[batch, m]`; 0 behind the last."""
        better = (gained - self.baseline) * real
        return better.flip(1).cumsum(dim=1).flip(1) * real


def log_chosen(weights: Tensor, chosen: Tensor) -> Tensor:
    """log α of the cells that were drawn, `[batch, m]`; 0 where none was."""
    found = weights.gather(2, chosen.clamp(min=0).unsqueeze(2)).squeeze(2)
    return found.clamp(min=LEAST).log() * (chosen >= 0)


def entropies(weights: Tensor) -> Tensor:
    """-Σ_i α_i log α_i of each word, `[batch, m]`."""
    return -(weights * weights.clamp(min=LEAST).log()).sum(dim=2)
