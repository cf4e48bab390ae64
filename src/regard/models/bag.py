"""Attention over a bag: one answer for several instances, whatever their number and order.

    z = Σᵢ αᵢ hᵢ        ŷ = U z + b        hᵢ = embed(xᵢ),  α = weigh(score(h)) within the bag

The law with a learned query: for a score vᵀh this is `attend(v, bag, bag, score=dot)`, where keys and values are the
bag's own instances. Without an embedding it is the smallest attention model there is, ŷ = uᵀXz with z = softmax(vᵀX)
(Mineiro, 2016). What the poolings differ in is α alone:

    BagAttention    softmax(score), one for each head; scores: vᵀh; wᵀtanh(Vh) and wᵀ(tanh(Vh) ⊙ σ(Gh)), equations 8
                    and 9 of Ilse, Tomczak and Welling, "Attention-based Deep Multiple Instance Learning" (2018)
    MeanPooling     1/n: a constant score
    MaxPooling      all on the largest, in each feature by itself: hard attention, shared where several are equal

A batch of bags is ragged, and is never padded. Its shapes are

    instance  [n, d]  the instances of all bags, in any order
    bag       [n]     which bag each of them is in, from 0
    count             how many bags there are; one without instances pools to 0, without NaN
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
    """The largest of each bag, -inf where it is empty: [n, ...] → [count, ...].

    >>> import torch
    >>> segment_max(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0, 0, 2]), 3).tolist()
    [2.0, -inf, 4.0]
    """
    place = bag.reshape(-1, *[1] * (values.dim() - 1)).expand_as(values)
    return values.new_full((count, *values.shape[1:]), -math.inf).scatter_reduce(0, place, values, "amax")


def segment_softmax(score: Tensor, bag: Tensor, count: int) -> Tensor:
    """exp(score) over its sum in the bag: [n, ...] → [n, ...], positive weights that add up to 1 in each bag.

    A score of -inf has weight 0, and in a bag of nothing else all are 0; no NaN, forward or backward.

    >>> import torch
    >>> segment_softmax(torch.tensor([0.0, 0.0, 1000.0]), torch.tensor([0, 0, 1]), 2).tolist()
    [0.5, 0.5, 1.0]
    """
    peak = segment_max(score.detach(), bag, count)
    peak = peak.masked_fill(peak == -math.inf, 0.0)
    size = torch.exp(score - peak.index_select(0, bag))
    total = segment_sum(size, bag, count)
    return size / total.masked_fill(total == 0, 1.0).index_select(0, bag)


class TanhScore(nn.Module):
    """wᵀ tanh(V h): [n, size] → [n, heads] (Ilse et al. 2018, equation 8).

    >>> import torch
    >>> TanhScore(5, hidden=3, heads=2)(torch.randn(7, 5)).shape
    torch.Size([7, 2])
    """

    def __init__(self, size: int, hidden: int, heads: int = 1) -> None:
        super().__init__()
        self.content = nn.Linear(size, hidden)
        self.query = nn.Linear(hidden, heads, bias=False)  # a constant would change no softmax

    def forward(self, embedded: Tensor) -> Tensor:
        return self.query(torch.tanh(self.content(embedded)))  # type: ignore[no-any-return]


class GatedScore(nn.Module):
    """wᵀ (tanh(V h) ⊙ σ(G h)): [n, size] → [n, heads] (Ilse et al. 2018, equation 9).

    >>> import torch
    >>> GatedScore(5, hidden=3, heads=2)(torch.randn(7, 5)).shape
    torch.Size([7, 2])
    """

    def __init__(self, size: int, hidden: int, heads: int = 1) -> None:
        super().__init__()
        self.content, self.gate = nn.Linear(size, hidden), nn.Linear(size, hidden)
        self.query = nn.Linear(hidden, heads, bias=False)

    def forward(self, embedded: Tensor) -> Tensor:
        gated = torch.tanh(self.content(embedded)) * torch.sigmoid(self.gate(embedded))
        return self.query(gated)  # type: ignore[no-any-return]


def linear_score(size: int, heads: int = 1) -> nn.Linear:
    """vᵀh for each head, [n, size] → [n, heads]: `regard.scores.dot` with queries that are learned.

    >>> import torch
    >>> from regard.scores import dot
    >>> score, bag = linear_score(5), torch.randn(7, 5)
    >>> bool(torch.allclose(score(bag).mT, dot(score.weight, bag), atol=1e-6))
    True
    """
    return nn.Linear(size, heads, bias=False)


class Pooling(nn.Module):
    """A weighted sum of each bag's instances: [n, e] → [count, heads, e]. What the weights are, its children say."""

    heads = 1

    def weights(self, embedded: Tensor, bag: Tensor, count: int) -> Tensor:
        """What each instance counts for: [n, heads, 1], or [n, heads, e] where features differ."""
        raise NotImplementedError

    def forward(self, embedded: Tensor, bag: Tensor, count: int) -> Tensor:
        return segment_sum(self.weights(embedded, bag, count) * embedded.unsqueeze(1), bag, count)


class BagAttention(Pooling):
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
        return segment_softmax(self.score(embedded), bag, count).unsqueeze(-1)


class MeanPooling(Pooling):
    """The average of each bag: every instance has weight 1/n.

    >>> import torch
    >>> MeanPooling()(torch.tensor([[1.0], [3.0], [5.0]]), torch.tensor([0, 0, 1]), 2).tolist()
    [[[2.0]], [[5.0]]]
    """

    def weights(self, embedded: Tensor, bag: Tensor, count: int) -> Tensor:
        return segment_softmax(embedded.new_zeros(len(bag)), bag, count).reshape(-1, 1, 1)


class MaxPooling(Pooling):
    """The largest of each feature in the bag. Instances that share it share the weight, and the gradient.

    >>> import torch
    >>> MaxPooling()(torch.tensor([[1.0, 4.0], [3.0, 2.0], [5.0, 0.0]]), torch.tensor([0, 0, 1]), 2).tolist()
    [[[3.0, 4.0]], [[5.0, 0.0]]]
    """

    def weights(self, embedded: Tensor, bag: Tensor, count: int) -> Tensor:
        fixed = embedded.detach()
        best = (fixed == segment_max(fixed, bag, count).index_select(0, bag)).to(fixed.dtype)
        return (best / segment_sum(best, bag, count).index_select(0, bag)).unsqueeze(1)


class BagModel(nn.Module):
    """embed → pool → read: the outputs [count, outputs] of a batch of bags.

    >>> import torch
    >>> model = BagModel(torch.nn.Linear(3, 5), BagAttention(GatedScore(5, hidden=4)), size=5, outputs=2)
    >>> instance, bag = torch.randn(7, 3), torch.tensor([0, 0, 0, 1, 1, 1, 1])
    >>> weight, contribution = model.explain(instance, bag, 2)
    >>> model(instance, bag, 2).shape, weight.shape, contribution.shape
    (torch.Size([2, 2]), torch.Size([7]), torch.Size([7, 2]))
    """

    def __init__(self, embed: nn.Module, pool: Pooling, size: int, outputs: int) -> None:
        super().__init__()
        self.embed, self.pool = embed, pool
        self.read = nn.Linear(pool.heads * size, outputs)

    def forward(self, instance: Tensor, bag: Tensor, count: int) -> Tensor:
        pooled = self.pool(self.embed(instance), bag, count)  # [count, heads, e]
        return self.read(pooled.flatten(1))  # type: ignore[no-any-return]

    def explain(self, instance: Tensor, bag: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """What each instance counts for [n], adding up to 1 in its bag, and what it adds to each output [n, outputs].

        Its weight is the mean over the heads, and over the features where they differ. What a bag's instances add,
        Σₕ αₕᵢ uₕᵀhᵢ, together with the bias is the bag's output.
        """
        embedded = self.embed(instance)
        weight = self.pool.weights(embedded, bag, count)  # [n, heads, 1 or e]
        share = (weight * embedded.unsqueeze(1)).flatten(1)  # [n, heads * e]
        return weight.mean(dim=(1, 2)), share @ self.read.weight.T
