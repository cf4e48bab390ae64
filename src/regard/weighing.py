"""Weighings: how scores become weights.

A weighing is a callable from scores `[..., q, k]`, -inf for masked keys, to weights of the same shape.
Masked keys get weight 0, whatever the weighing. If all keys of a query are masked, all its weights are
0, and there is no NaN, forward or backward.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

Weighing = Callable[[Tensor], Tensor]


def softmax(scores: Tensor) -> Tensor:
    """exp(score) divided by its sum: positive weights with sum 1.

    >>> import torch
    >>> softmax(torch.tensor([[0.0, 0.0], [0.0, -torch.inf], [-torch.inf, -torch.inf]])).tolist()
    [[0.5, 0.5], [1.0, 0.0], [0.0, 0.0]]
    """
    empty = all_masked(scores)
    return torch.softmax(scores.masked_fill(empty, 0.0), dim=-1).masked_fill(empty, 0.0)


def linear(scores: Tensor) -> Tensor:
    """The raw scores, not normalised: linear attention, tr(XᵀX vuᵀ) for a bag X [n, d] (Mineiro, 2016).

    >>> import torch
    >>> linear(torch.tensor([[2.0, -1.0, -torch.inf]])).tolist()
    [[2.0, -1.0, 0.0]]
    """
    return scores.masked_fill(scores == -math.inf, 0.0)


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
