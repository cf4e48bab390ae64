"""Attention over a bag: one output for several instances, independent of their number and order.

    z = Σᵢ αᵢ hᵢ        ŷ = U z + b        hᵢ = embed(xᵢ),  α = weigh(score(h)) within the bag

This is attention with a learned query: for a score vᵀh it is `attend(v, bag, bag, score=dot)`, where keys and values
are the bag's own instances. Without an embedding it is the smallest attention model, ŷ = uᵀXz with z = softmax(vᵀX)
(Mineiro, 2016). The poolings differ only in α:

    BagAttention    softmax(score), for each head; scores: vᵀh; wᵀtanh(Vh) and wᵀ(tanh(Vh) ⊙ σ(Gh)), equations 8
                    and 9 of Ilse, Tomczak and Welling, "Attention-based Deep Multiple Instance Learning" (2018)
    MeanPooling     1/n: a constant score
    MaxPooling      1 for the largest instance of each feature: hard attention, divided equally among ties

A batch of bags is ragged and never padded:

    instance  [n, d]  the instances of all bags, in any order
    bag       [n]     the index of the bag of each instance
    count             the number of bags; an empty bag pools to 0, without NaN
"""

import math

import torch
from torch import Tensor, nn


def segment_sum(values: Tensor, bag: Tensor, count: int) -> Tensor:
    """The sum over each bag: [n, ...] → [count, ...].

    >>> import torch
    >>> segment_sum(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0, 0, 2]), 3).tolist()
    [3.0, 0.0, 4.0]
    """
    return values.new_zeros((count, *values.shape[1:])).index_add(0, bag, values)


def segment_max(values: Tensor, bag: Tensor, count: int) -> Tensor:
    """The maximum over each bag, -inf if it is empty: [n, ...] → [count, ...].

    >>> import torch
    >>> segment_max(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0, 0, 2]), 3).tolist()
    [2.0, -inf, 4.0]
    """
    index = bag.reshape(-1, *[1] * (values.dim() - 1)).expand_as(values)  # [n] → [n, 1, ...] → [n, ...]
    return values.new_full((count, *values.shape[1:]), -math.inf).scatter_reduce(0, index, values, "amax")


def segment_softmax(score: Tensor, bag: Tensor, count: int) -> Tensor:
    """exp(score) divided by its sum over the bag: [n, ...] → [n, ...], weights that add up to 1 in each bag.

    A score of -inf has weight 0. If all scores of a bag are -inf, all its weights are 0; no NaN, forward or backward.

    >>> import torch
    >>> segment_softmax(torch.tensor([0.0, 0.0, 1000.0]), torch.tensor([0, 0, 1]), 2).tolist()
    [0.5, 0.5, 1.0]
    """
    peak = segment_max(score.detach(), bag, count)
    peak = peak.masked_fill(peak == -math.inf, 0.0)
    exponential = torch.exp(score - peak.index_select(0, bag))
    total = segment_sum(exponential, bag, count)
    return exponential / total.masked_fill(total == 0, 1.0).index_select(0, bag)


class TanhScore(nn.Module):
    """wᵀ tanh(V h): [n, size] → [n, heads] (Ilse et al. 2018, equation 8).

    >>> import torch
    >>> TanhScore(5, hidden=3, heads=2)(torch.randn(7, 5)).shape
    torch.Size([7, 2])
    """

    gated = False

    def __init__(self, size: int, hidden: int, heads: int = 1) -> None:
        super().__init__()
        self.content = nn.Linear(size, hidden)
        self.gate = nn.Linear(size, hidden) if self.gated else None
        self.query = nn.Linear(hidden, heads, bias=False)  # softmax does not change with a constant

    def forward(self, embedded: Tensor) -> Tensor:
        content = torch.tanh(self.content(embedded))
        gated = content if self.gate is None else content * torch.sigmoid(self.gate(embedded))
        return self.query(gated)  # type: ignore[no-any-return]


class GatedScore(TanhScore):
    """wᵀ (tanh(V h) ⊙ σ(G h)): [n, size] → [n, heads] (Ilse et al. 2018, equation 9).

    >>> import torch
    >>> GatedScore(5, hidden=3, heads=2)(torch.randn(7, 5)).shape
    torch.Size([7, 2])
    """

    gated = True


def linear_score(size: int, heads: int = 1) -> nn.Linear:
    """vᵀh for each head, [n, size] → [n, heads]: `regard.scores.dot` with learned queries.

    >>> import torch
    >>> from regard.scores import dot
    >>> score, bag = linear_score(5), torch.randn(7, 5)
    >>> bool(torch.allclose(score(bag).mT, dot(score.weight, bag), atol=1e-6))
    True
    """
    return nn.Linear(size, heads, bias=False)


class _Pooling(nn.Module):
    """A weighted sum of each bag's instances: [n, e] → [count, heads, e]. Subclasses define the weights."""

    heads = 1

    def weights(self, embedded: Tensor, bag: Tensor, count: int) -> Tensor:
        """The weight of each instance: [n, heads, 1], or [n, heads, e] if it differs by feature."""
        raise NotImplementedError

    def forward(self, embedded: Tensor, bag: Tensor, count: int) -> Tensor:
        return segment_sum(self.weights(embedded, bag, count) * embedded.unsqueeze(1), bag, count)


class BagAttention(_Pooling):
    """Softmax attention within each bag, by a score [n, e] → [n, heads].

    With `linear_score`, one bag x [n, d] and queries v [heads, d] it is `attend(v, x, x, score=dot)`.

    >>> import torch
    >>> pooling = BagAttention(linear_score(5, heads=2), heads=2)
    >>> pooling(torch.randn(7, 5), torch.tensor([0, 0, 0, 1, 1, 1, 1]), 2).shape
    torch.Size([2, 2, 5])
    """

    def __init__(self, score: nn.Module, heads: int = 1) -> None:
        super().__init__()
        self.score, self.heads = score, heads

    def weights(self, embedded: Tensor, bag: Tensor, count: int) -> Tensor:
        return segment_softmax(self.score(embedded), bag, count).unsqueeze(-1)  # [n, heads] → [n, heads, 1]


class MeanPooling(_Pooling):
    """The average of each bag: every instance has weight 1/n.

    >>> import torch
    >>> MeanPooling()(torch.tensor([[1.0], [3.0], [5.0]]), torch.tensor([0, 0, 1]), 2).tolist()
    [[[2.0]], [[5.0]]]
    """

    def weights(self, embedded: Tensor, bag: Tensor, count: int) -> Tensor:
        return segment_softmax(embedded.new_zeros(len(bag)), bag, count).reshape(-1, 1, 1)  # [n] → [n, 1, 1]


class MaxPooling(_Pooling):
    """The maximum of each feature over the bag. Instances that tie share the weight and the gradient.

    >>> import torch
    >>> MaxPooling()(torch.tensor([[1.0, 4.0], [3.0, 2.0], [5.0, 0.0]]), torch.tensor([0, 0, 1]), 2).tolist()
    [[[3.0, 4.0]], [[5.0, 0.0]]]
    """

    def weights(self, embedded: Tensor, bag: Tensor, count: int) -> Tensor:
        value = embedded.detach()
        largest = (value == segment_max(value, bag, count).index_select(0, bag)).to(value.dtype)
        return (largest / segment_sum(largest, bag, count).index_select(0, bag)).unsqueeze(1)  # [n, e] → [n, 1, e]


class BagModel(nn.Module):
    """embed → pool → read: the outputs [count, outputs] of a batch of bags.

    >>> import torch
    >>> model = BagModel(torch.nn.Linear(3, 5), BagAttention(GatedScore(5, hidden=4)), size=5, outputs=2)
    >>> instance, bag = torch.randn(7, 3), torch.tensor([0, 0, 0, 1, 1, 1, 1])
    >>> weight, contribution = model.explain(instance, bag, 2)
    >>> model(instance, bag, 2).shape, weight.shape, contribution.shape
    (torch.Size([2, 2]), torch.Size([7]), torch.Size([7, 2]))
    """

    def __init__(self, embed: nn.Module, pool: _Pooling, size: int, outputs: int) -> None:
        super().__init__()
        self.embed, self.pool = embed, pool
        self.read = nn.Linear(pool.heads * size, outputs)

    def forward(self, instance: Tensor, bag: Tensor, count: int) -> Tensor:
        pooled = self.pool(self.embed(instance), bag, count)  # [count, heads, e]
        return self.read(pooled.flatten(1))  # type: ignore[no-any-return]  # [count, heads * e] → [count, outputs]

    def explain(self, instance: Tensor, bag: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """The weight of each instance [n], and its contribution to each output [n, outputs].

        The weight is the mean over heads, and over features if it differs by feature; weights add up to 1 in a bag.
        The contributions Σₕ αₕᵢ uₕᵀhᵢ of a bag's instances and the bias add up to the bag's output.
        """
        embedded = self.embed(instance)
        weight = self.pool.weights(embedded, bag, count)  # [n, heads, 1 or e]
        weighted = (weight * embedded.unsqueeze(1)).flatten(1)  # [n, heads * e]
        return weight.mean(dim=(1, 2)), weighted @ self.read.weight.T
