"""Weighings: how scores become weights.

A weighing is a callable from scores `[..., q, k]`, -inf for masked keys, to weights of the same shape.
Masked keys get weight 0, whatever the weighing. If all keys of a query are masked, all its weights are
0, and there is no NaN, forward or backward.

A `BlockWeighing` also goes by blocks of keys, so that no engine has to build the matrix. What it must know about all
keys of a query before it can weigh one of them is a monoid, lift → merge → finish:

    state = merge([lift(block) for each block of scores])        row = finish(state)
    weight of a key = weights(score, row)

Softmax goes by blocks as well: its monoid holds the mean too, and is `regard.merge`. `sinks` is softmax times a factor.
Any other callable runs on the engine `dense`.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.checks import is_number
from regard.torch_modes import compiling, transforming

Weighing = Callable[[Tensor], Tensor]

_PRUNED = 8192
"""Number of merged scores from which those without a weight are left out of a sparse weighing's state."""


class Derivatives(NamedTuple):
    """The weights of a block and their derivatives. x' is the gradient of the loss with respect to x:

    score' = own · weight' - shared · Σ part · weight' / total        the sum is over all keys of the query

    >>> import torch
    >>> scores = torch.tensor([[0.0, -torch.inf]])
    >>> sigmoid().derivatives(scores, scores[..., :0]).own.tolist()
    [[0.25, 0.0]]
    """

    weight: Tensor  # [..., q, k]
    own: Tensor  # [..., q, k]  of a key's weight by its own score, for a given row
    shared: Tensor | None = None  # [..., q, k]  None: weights of other keys do not depend on the score
    part: Tensor | None = None  # [..., q, k]
    total: Tensor | None = None  # [..., q, 1]  None: 1


class BlockWeighing(ABC):
    """A weighing that goes by blocks of keys. A larger score must not give a smaller weight.

    States and rows are `[..., q, n]`, with any n. `lift`, `merge` and `finish` need not be written for a weighing
    whose weights depend on their own score only.

    >>> import torch, regard
    >>> class Squared(BlockWeighing):
    ...     def weights(self, scores, row):
    ...         return scores.relu().square()
    ...
    ...     def derivatives(self, scores, row):
    ...         return Derivatives(self.weights(scores, row), 2 * scores.relu())
    >>> x = torch.randn(9, 4)
    >>> regard.attend(x, x, x, weigh=Squared(), engine="stream").shape
    torch.Size([9, 4])
    """

    def lift(self, scores: Tensor) -> Tensor:
        """The state of some keys, from their scores `[..., q, k]`."""
        return scores[..., :0]

    def merge(self, states: Sequence[Tensor]) -> Tensor:
        """The state of the keys of all states."""
        return torch.cat(list(states), dim=-1)

    def finish(self, state: Tensor) -> Tensor:
        """What `weights` and `derivatives` need to know about a row."""
        return state

    @abstractmethod
    def weights(self, scores: Tensor, row: Tensor) -> Tensor:
        """The weights of some keys `[..., q, k]`; 0 for a score of -inf."""

    @abstractmethod
    def derivatives(self, scores: Tensor, row: Tensor) -> Derivatives:
        """The same weights and their derivatives."""

    def __call__(self, scores: Tensor) -> Tensor:
        wide = scores.to(torch.promote_types(scores.dtype, torch.float32))
        return self.weights(wide, self.finish(self.lift(wide))).to(scores.dtype)

    def __repr__(self) -> str:
        return type(self).__name__.lower()

    def __reduce__(self) -> Any:
        # A copy of one without settings is the same object.
        return repr(self) if globals().get(repr(self)) is self else super().__reduce__()


def softmax(scores: Tensor) -> Tensor:
    """exp(score) divided by its sum: positive weights with sum 1.

    >>> import torch
    >>> softmax(torch.tensor([[0.0, 0.0], [0.0, -torch.inf], [-torch.inf, -torch.inf]])).tolist()
    [[0.5, 0.5], [1.0, 0.0], [0.0, 0.0]]
    """
    empty = all_masked(scores)
    return torch.softmax(scores.masked_fill(empty, 0.0), dim=-1).masked_fill(empty, 0.0)


class Linear(BlockWeighing):
    """The raw scores, not normalised: linear attention, tr(XᵀX vuᵀ) for a bag X [n, d] (Mineiro, 2016).

    >>> import torch
    >>> linear(torch.tensor([[2.0, -1.0, -torch.inf]])).tolist()
    [[2.0, -1.0, 0.0]]
    """

    def weights(self, scores: Tensor, row: Tensor) -> Tensor:
        return scores.masked_fill(scores == -math.inf, 0.0)

    def derivatives(self, scores: Tensor, row: Tensor) -> Derivatives:
        return Derivatives(self.weights(scores, row), (scores != -math.inf).to(scores.dtype))


linear = Linear()
"""The raw scores: see `Linear`."""


class Sigmoid(BlockWeighing):
    """1 / (1 + exp(-score - bias)), each key on its own, not normalised (Ramapuram et al. 2024): see `sigmoid`."""

    def __init__(self, bias: float = 0.0) -> None:
        if not is_number(bias):
            raise TypeError(
                f"bias must be a number, got {bias!r}; one that learns is a mask, which is added to the scores"
            )
        if not math.isfinite(bias):
            raise ValueError(f"bias must be finite, got {bias!r}")
        self.bias = float(bias)

    def weights(self, scores: Tensor, row: Tensor) -> Tensor:
        return torch.sigmoid(scores + self.bias)

    def derivatives(self, scores: Tensor, row: Tensor) -> Derivatives:
        weight = self.weights(scores, row)
        return Derivatives(weight, weight * (1 - weight))

    def __repr__(self) -> str:
        return f"sigmoid(bias={self.bias:g})"


def sigmoid(bias: float = 0.0) -> Sigmoid:
    """1 / (1 + exp(-score - bias)), each key on its own, not normalised (Ramapuram et al. 2024).

    The authors' bias is -log(number of keys), with which the weights add up to about 1.

    >>> import torch
    >>> sigmoid(bias=-1.0)(torch.tensor([[1.0, -torch.inf]])).tolist()
    [[0.5, 0.0]]
    """
    return Sigmoid(bias)


class Sinks(nn.Module):
    """Softmax with one more logit, which has no value: see `sinks`."""

    def __init__(self, logit: float | Tensor) -> None:
        super().__init__()
        if not is_number(logit) and not (isinstance(logit, Tensor) and logit.is_floating_point()):
            raise TypeError(f"the logit of sinks must be a number, or a tensor of one for each head, got {logit!r}")
        if is_number(logit) and math.isnan(logit):
            raise ValueError(f"the logit of sinks must be a number, got {logit!r}")
        self.logit = logit

    def forward(self, scores: Tensor) -> Tensor:
        sink = self._beside(scores).unsqueeze(-1).expand(*scores.shape[:-1], 1)
        return softmax(torch.cat([scores, sink], dim=-1))[..., :-1]

    def fraction(self, log_weight: Tensor) -> Tensor:
        """The part of the weight that the keys get, `[..., q]`, from the log of their summed exp(score)."""
        return torch.sigmoid(log_weight - self._beside(log_weight.unsqueeze(-1)))

    def _beside(self, scores: Tensor) -> Tensor:
        """The logit of each query, to be broadcast to `[..., q]`."""
        logit = torch.as_tensor(self.logit, device=scores.device).to(scores.dtype)
        heads = scores.shape[:-2]
        if logit.ndim > len(heads) or any(
            a not in (1, b) for a, b in zip(logit.shape[::-1], heads[::-1], strict=False)
        ):
            raise ValueError(f"the logit of sinks must broadcast to the heads {list(heads)}, got {list(logit.shape)}")
        return logit.unsqueeze(-1)

    def extra_repr(self) -> str:
        return f"{self.logit:g}" if is_number(self.logit) else str(list(self.logit.shape))  # type: ignore[union-attr]


def sinks(logit: float | Tensor) -> Sinks:
    """Softmax with one more logit, which has no value: a query may look at nothing (Xiao et al. 2024; gpt-oss).

    logit   a number, or a tensor `[heads]`, which may learn: an `nn.Parameter` is trained with the layer

    >>> import math, torch
    >>> sinks(math.log(2))(torch.zeros(1, 2)).tolist()  # two keys of weight 1, a sink of weight 2
    [[0.25, 0.25]]
    """
    return Sinks(logit)


class Softpick(BlockWeighing):
    """relu(exp(score) - 1) / Σ |exp(score) - 1|: a key with a negative score gets no weight (Zuhri et al. 2025).

    The weights add up to less than 1 if there is such a key, and 0 / 0 is 0.

    >>> import math, torch
    >>> weight = softpick(torch.tensor([[math.log(4), math.log(2), -math.inf, -50.0]]))
    >>> [round(number, 4) for number in weight[0].tolist()]
    [0.6, 0.2, 0.0, 0.0]
    """

    def lift(self, scores: Tensor) -> Tensor:
        """Largest score, at least 0, and the sum of |exp(score) - 1| / exp(largest)."""
        if not scores.shape[-1]:
            return scores.new_zeros(*scores.shape[:-1], 2)
        largest = scores.detach().amax(dim=-1, keepdim=True).clamp(min=0)
        size = ((scores - largest).exp() - (-largest).exp()).abs().masked_fill(scores == -math.inf, 0.0)
        return torch.cat([largest, size.sum(dim=-1, keepdim=True)], dim=-1)

    def merge(self, states: Sequence[Tensor]) -> Tensor:
        largest, total = torch.stack(list(states)).unbind(dim=-1)  # [states, ..., q]
        peak = largest.amax(dim=0)
        return torch.stack([peak, (total * (largest - peak).exp()).sum(dim=0)], dim=-1)

    def finish(self, state: Tensor) -> Tensor:
        largest, total = state.unbind(dim=-1)
        return torch.stack([largest, total.masked_fill(total == 0, 1.0)], dim=-1)

    def weights(self, scores: Tensor, row: Tensor) -> Tensor:
        largest, total = _columns(row)
        return ((scores - largest).exp() - (-largest).exp()).relu() / total

    def derivatives(self, scores: Tensor, row: Tensor) -> Derivatives:
        largest, total = _columns(row)
        weight, grown = self.weights(scores, row), (scores - largest).exp() / total
        return Derivatives(weight, grown * (scores > 0), grown * scores.sign(), weight)


softpick = Softpick()
"""Softmax that gives negative scores no weight: see `Softpick`."""


class SparseWeighing(BlockWeighing):
    """relu(scale · score - threshold)^power, with the threshold at which the weights of a query add up to 1.

    Its monoid is the scores that have a weight: a key without weight among some keys has none among more of them,
    since the threshold only grows.

    >>> import torch
    >>> sparsemax.finish(torch.tensor([[1.0, 0.5, -1.0]])).tolist()  # largest, threshold below it, keys with a weight
    [[1.0, -0.75, 2.0]]
    """

    scale: float
    power: int

    def merge(self, states: Sequence[Tensor]) -> Tensor:
        merged = torch.cat(list(states), dim=-1)
        if merged.shape[-1] < _PRUNED or compiling() or transforming() or merged.is_meta:
            return merged
        largest, threshold, _ = _columns(self.finish(merged))
        count = int((self._above(merged, largest, threshold) > 0).sum(dim=-1).max()) if merged.numel() else 0
        return merged.topk(count, dim=-1).values if count < merged.shape[-1] // 2 else merged

    def lift(self, scores: Tensor) -> Tensor:
        return scores

    def finish(self, state: Tensor) -> Tensor:
        """The largest score, the threshold of scale · (score - largest), and the sum of the derivatives."""
        plain = compiling() or transforming()
        if not plain and state.device.type == "cpu" and not (state.requires_grad and torch.is_grad_enabled()):
            from regard.compiled.thresholds import row_thresholds  # imports Numba

            row = state.new_empty(math.prod(state.shape[:-1]), 3)
            row_thresholds(
                state.detach().reshape(len(row), state.shape[-1]).numpy(), self.scale, self.power, row.numpy()
            )
            return row.view(*state.shape[:-1], 3)
        if not state.shape[-1]:
            return state.new_tensor([math.inf, 0.0, 1.0]).expand(*state.shape[:-1], 3)
        largest = state.detach().amax(dim=-1, keepdim=True)
        largest = largest.masked_fill(largest == -math.inf, math.inf)
        scores = (state - largest) * self.scale
        inside = self._inside(scores.detach())
        # The threshold in closed form, from the keys that have a weight: differentiable as often as needed.
        count = inside.sum(dim=-1, keepdim=True).clamp(min=1).to(state.dtype)
        scores = torch.where(inside, scores, 0.0)
        mean = scores.sum(dim=-1, keepdim=True) / count
        if self.power == 1:
            return torch.cat([largest, mean - 1 / count, count], dim=-1)
        spread = torch.where(inside, scores - mean, 0.0).square().sum(dim=-1, keepdim=True)
        below = ((1 - spread) / count).clamp(min=torch.finfo(state.dtype).tiny).sqrt()
        return torch.cat([largest, mean - below, below * count], dim=-1)

    def _inside(self, scores: Tensor) -> Tensor:
        """Which keys have a weight: `[..., q, k]`, by sorting."""
        ordered = scores.sort(dim=-1, descending=True).values.clamp(min=-1.0)  # -1 and less have no weight
        count = torch.arange(1, scores.shape[-1] + 1, device=scores.device, dtype=scores.dtype)
        mean = ordered.cumsum(dim=-1) / count
        if self.power == 1:
            threshold = mean - 1 / count
        else:
            spread = ordered.square().cumsum(dim=-1) - count * mean.square()
            threshold = mean - ((1 - spread) / count).clamp(min=0.0).sqrt()
        support = (threshold < ordered).sum(dim=-1, keepdim=True).clamp(min=1)
        return scores > threshold.gather(-1, support - 1)

    def _above(self, scores: Tensor, largest: Tensor, threshold: Tensor) -> Tensor:
        return (scores - largest).mul_(self.scale).sub_(threshold).relu_()


class Sparsemax(SparseWeighing):
    """relu(score - threshold), which adds up to 1: most keys get no weight at all (Martins & Astudillo 2016).

    The weights are the point of the simplex that is nearest to the scores.

    >>> import torch
    >>> sparsemax(torch.tensor([[1.0, 0.5, -1.0, -3.0]])).tolist()
    [[0.75, 0.25, 0.0, 0.0]]
    """

    scale, power = 1.0, 1

    def weights(self, scores: Tensor, row: Tensor) -> Tensor:
        largest, threshold, _ = _columns(row)
        return self._above(scores, largest, threshold)

    def derivatives(self, scores: Tensor, row: Tensor) -> Derivatives:
        largest, threshold, total = _columns(row)
        weight = self._above(scores, largest, threshold)
        derivative = weight.sign()
        return Derivatives(weight, derivative, derivative, derivative, total)


class Entmax15(SparseWeighing):
    """relu(score / 2 - threshold)², which adds up to 1: between softmax and sparsemax (Peters et al. 2019, α = 1.5).

    >>> import torch
    >>> weight = entmax15(torch.tensor([[0.5, 0.0, -2.0]]))
    >>> [round(number, 3) for number in weight[0].tolist()]
    [0.674, 0.326, 0.0]
    """

    scale, power = 0.5, 2

    def weights(self, scores: Tensor, row: Tensor) -> Tensor:
        largest, threshold, _ = _columns(row)
        return self._above(scores, largest, threshold).square()

    def derivatives(self, scores: Tensor, row: Tensor) -> Derivatives:
        largest, threshold, total = _columns(row)
        derivative = self._above(scores, largest, threshold)
        return Derivatives(derivative.square(), derivative, derivative, derivative, total)


sparsemax = Sparsemax()
"""The nearest point of the simplex: see `Sparsemax`."""
entmax15 = Entmax15()
"""Between softmax and sparsemax: see `Entmax15`."""


def _columns(row: Tensor) -> tuple[Tensor, ...]:
    """The numbers of each query, `[..., q, 1]` each."""
    return row.unsqueeze(-2).unbind(dim=-1)


def hard(scores: Tensor) -> Tensor:
    """Weight 1 for the key with the largest score, the first if several have it: hard attention in evaluation.

    In training the key is sampled: see `HardSample`. The scores get no gradient.

    >>> import torch
    >>> hard(torch.tensor([[1.0, 3.0, 2.0]])).tolist()
    [[0.0, 1.0, 0.0]]
    """
    if scores.shape[-1] == 0:
        return torch.zeros_like(scores)
    return one_hot(scores.detach().argmax(dim=-1), scores.detach())


class HardSample:
    """Hard attention in training: one key per query, sampled with softmax's probabilities.

    The sample has no gradient; REINFORCE needs the logarithm of its probability and the
    distribution's entropy (Xu et al. 2015, section 4.1). Make one for each forward pass, pass it as
    `weigh`, and read both afterwards; they have gradients with respect to the scores.

    >>> import torch, regard
    >>> query, key, value = torch.randn(2, 4), torch.randn(5, 4), torch.randn(5, 3)
    >>> draw = HardSample()
    >>> context = regard.attend(query, key, value, weigh=draw)
    >>> draw.index.shape, draw.log_probability.shape, draw.entropy.shape
    (torch.Size([2]), torch.Size([2]), torch.Size([2]))
    >>> bool((context == value[draw.index]).all())
    True

    If all keys of a query are masked: weights 0, log probability 0, entropy 0.
    """

    index: Tensor  # [..., q]  the sampled key
    log_probability: Tensor  # [..., q]  of that key
    entropy: Tensor  # [..., q]  of the distribution

    def __init__(self, generator: torch.Generator | None = None) -> None:
        self.generator = generator

    def __call__(self, scores: Tensor) -> Tensor:
        if scores.shape[-1] == 0:
            self.index = torch.zeros(scores.shape[:-1], dtype=torch.long, device=scores.device)
            self.log_probability = self.entropy = scores.sum(dim=-1)
            return torch.zeros_like(scores)
        empty = all_masked(scores)
        log_weight = torch.log_softmax(scores.masked_fill(empty, 0.0), dim=-1)  # [..., q, k]
        weight = log_weight.detach().exp()
        flat = weight.reshape(-1, weight.shape[-1])
        # NaN scores have no distribution: the sample is arbitrary and the log probability NaN.
        flat = torch.where(flat.isnan(), torch.ones_like(flat), flat)
        sample = torch.multinomial(flat, 1, generator=self.generator) if len(flat) else flat[:, :0].long()
        self.index = sample.view(weight.shape[:-1])
        chosen = log_weight.gather(-1, self.index.unsqueeze(-1)).squeeze(-1)
        self.log_probability = chosen.masked_fill(empty.squeeze(-1), 0.0)
        finite = log_weight.masked_fill(log_weight == -math.inf, 0.0)  # 0 log 0 = 0
        entropy = -(log_weight.exp() * finite).sum(dim=-1)
        self.entropy = entropy.masked_fill(empty.squeeze(-1), 0.0)
        return one_hot(self.index, scores.detach())


def all_masked(scores: Tensor) -> Tensor:
    """Whether all keys of a query are masked: `[..., q, 1]`."""
    return (scores == -math.inf).all(dim=-1, keepdim=True)


def one_hot(index: Tensor, scores: Tensor) -> Tensor:
    """Weight 1 at `index`; 0 for a query whose keys are all masked; NaN for a query with a NaN score."""
    weight = torch.zeros_like(scores).scatter_(-1, index.unsqueeze(-1), 1.0).masked_fill_(all_masked(scores), 0.0)
    return weight.masked_fill_(scores.isnan().any(dim=-1, keepdim=True), math.nan)
