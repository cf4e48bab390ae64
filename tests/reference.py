"""The one slow definition of everything, in float64, one query and one key at a time.

Nothing here is shared with the package: scores, masks and weighings are written out again, so that a
mistake in the package cannot hide behind itself. Gradients come from autograd through these loops.
"""

import math

import numpy as np
import torch
from torch import Tensor

NEGATIVE = -math.inf


def logits(query, key, leading, score, mask=None, bias=None):
    """A list of scores for each query at each index of the leading dimensions.

    score(q, k)      a number from two vectors; -inf: may not look
    mask(lead, i, j) whether query i may look at key j, at that index of the leading dimensions
    bias             [..., q, k], added to the score
    """
    queries, keys = rows(query, leading), rows(key, leading)
    scores = {(lead, i): [score(q, k) for k in keys[lead]] for lead in queries for i, q in enumerate(queries[lead])}
    return masked(scores, leading, mask, bias)


def masked(scores, leading, mask=None, bias=None):
    """The same lists, with -inf for what the mask forbids, and the bias added to the rest."""
    if bias is not None:
        queries, keys = len(scores) // max(1, math.prod(leading)), len(next(iter(scores.values()), []))
        bias = rows(bias.expand(*leading, queries, keys), leading)
    found = {}
    for (lead, i), row in scores.items():
        found[lead, i] = [
            NEGATIVE
            if mask is not None and not mask(lead, i, j)
            else score
            if bias is None
            else score + bias[lead][i][j]
            for j, score in enumerate(row)
        ]
    return found


def average(scores, value, leading, queries, weigh=None, keep=None):
    """Mean [..., q, v] and log weight [..., q] of such lists.

    weigh            None: softmax; else a function from a list of scores to a list of weights
    keep             [..., q, k], what each weight is multiplied by after normalisation (dropout)
    """
    values = rows(value, leading)
    means, log_weights = [], []
    for lead in indices(leading):
        for i in range(queries):
            row = scores[lead, i]
            weights, log_weight = softmax(row) if weigh is None else (weigh(row), math.nan)
            mean = value.new_zeros(value.shape[-1])
            for j, weight in enumerate(weights):
                mean = mean + (weight if keep is None else weight * keep[lead][i, j]) * values[lead][j]
            means.append(mean)
            log_weights.append(torch.as_tensor(log_weight, dtype=value.dtype))
    mean = torch.stack(means) if means else value.new_zeros(0)
    log_weight = torch.stack(log_weights) if log_weights else value.new_zeros(0)
    return mean.reshape(*leading, queries, value.shape[-1]), log_weight.reshape(*leading, queries)


def attend(query, key, value, score, mask=None, bias=None, weigh=None, keep=None):
    """Both in one."""
    leading = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])
    scores = logits(query, key, leading, score, mask, bias)
    return average(scores, value, leading, query.shape[-2], weigh, keep)


def indices(leading):
    """Every index of the leading dimensions, the last one running fastest."""
    found = [()]
    for size in leading:
        found = [(*lead, index) for lead in found for index in range(size)]
    return found


def rows(x, leading):
    """The vectors of x [..., n, d] in a list for each place of the leading dimensions.

    Taken apart at once, since the gradient of an index is a tensor as large as x, for each vector again.
    """
    x = x.expand(*leading, *x.shape[-2:])
    flat = iter(x.flatten(0, -2).unbind())
    return {lead: [next(flat) for _ in range(x.shape[-2])] for lead in indices(leading)}


def number(x):
    return x.item() if isinstance(x, Tensor) else float(x)


def forbidden(score):
    return number(score) == NEGATIVE


def softmax(scores):
    """Weights of a list of scores, and the log of their unnormalised sum."""
    allowed = [s for s in scores if not forbidden(s)]
    if not allowed:
        return [0.0 for _ in scores], NEGATIVE
    top = max(number(s) for s in allowed)
    total = sum(exp(s - top) for s in allowed)
    weights = [0.0 if forbidden(s) else exp(s - top) / total for s in scores]
    return weights, log(total) + top


def linear(scores):
    return [0.0 if forbidden(s) else s for s in scores]


def sigmoid(bias):
    return lambda scores: [0.0 if forbidden(s) else 1 / (1 + exp(-s - bias)) for s in scores]


def sinks(logit):
    """The logit is a number."""
    return lambda scores: softmax([*scores, logit])[0][:-1]


def softpick(scores):
    allowed = [s for s in scores if not forbidden(s)]
    total = sum(abs(exp(s) - 1) for s in allowed)
    return [0.0 if forbidden(s) or number(s) <= 0 else (exp(s) - 1) / total for s in scores]


def sparsemax(scores):
    """The support by trying each number of keys, the largest first; the threshold is their mean less 1 / count."""

    def threshold(best):
        return (sum(best) - 1) / len(best)

    return sparse(scores, threshold, lambda s, t: s - t)


def entmax15(scores):
    """Σ (s / 2 - t)² = 1 over the support is a quadratic equation in t."""

    def threshold(best):
        mean = sum(best) / (2 * len(best))
        spread = sum((s / 2 - mean) ** 2 for s in best)
        inside = (1 - spread) / len(best)
        return mean - inside**0.5 if number(inside) > 0 else math.inf

    return sparse(scores, threshold, lambda s, t: (s / 2 - t) ** 2)


def sparse(scores, threshold, weight):
    """The largest support whose keys all have a weight: a key has one if its score is above the threshold."""
    order = sorted((i for i, s in enumerate(scores) if not forbidden(s)), key=lambda i: -number(scores[i]))
    weights = [0.0 for _ in scores]
    half = 1 if weight(2.0, 0.0) == 2.0 else 2
    for count in range(len(order), 0, -1):
        found = threshold([scores[i] for i in order[:count]])
        if number(scores[order[count - 1]]) / half > number(found):
            for i in order[:count]:
                weights[i] = weight(scores[i], found)
            return weights
    return weights


def hard(scores):
    allowed = [number(s) for s in scores if not forbidden(s)]
    best = max(allowed, default=None)
    first = None if best is None else next(i for i, s in enumerate(scores) if number(s) == best)
    return [1.0 if i == first else 0.0 for i in range(len(scores))]


def exp(x):
    return x.exp() if isinstance(x, Tensor) else math.exp(x)


def log(x):
    return x.log() if isinstance(x, Tensor) else math.log(x)


# Scores of two vectors.


def constant(q, k):
    return 0.0 * q.sum() * k.sum()


def dot(q, k):
    return (q * k).sum()


def scaled_dot(q, k):
    return dot(q, k) / math.sqrt(len(q))


def softcap(score, cap):
    return lambda q, k: cap * torch.tanh(score(q, k) / cap)


def bilinear(weight):
    return lambda q, k: (q[:, None] * weight * k[None, :]).sum()


def additive(query_weight, query_bias, key_weight, weight, activation):
    def score(q, k):
        hidden = (query_weight * q).sum(dim=1) + query_bias + (key_weight * k).sum(dim=1)
        return (weight * activation(hidden)).sum()

    return score


def distance(q, k, bandwidth):
    """‖H⁻¹(q - k)‖, with the inverse of a matrix written out by torch."""
    difference = torch.linalg.inv(bandwidth) @ (q - k) if bandwidth.ndim == 2 else (q - k) / bandwidth
    square = (difference * difference).sum()
    return square.sqrt() if number(square) > 0 else 0.0 * square


LOG_KERNELS = {"gaussian": lambda u: -(u**2) / 2, "laplace": lambda u: -u}
COMPACT_KERNELS = {
    "epanechnikov": lambda u: 1 - u**2,
    "boxcar": lambda u: 1 + 0 * u,
    "tricube": lambda u: (1 - u**3) ** 3,
    "triweight": lambda u: (1 - u**2) ** 3,
    "cosine": lambda u: torch.cos(math.pi / 2 * u),
}
"""Kernels of a distance in bandwidths, by name: log K(u), or K(u) of one that is 0 from u = 1 on."""


def kernel(name, bandwidth):
    """The score of a kernel."""

    def score(q, k):
        u = distance(q, k, bandwidth)
        if name in LOG_KERNELS:
            return LOG_KERNELS[name](u)
        return COMPACT_KERNELS[name](u).log() if number(u) < 1 else NEGATIVE

    return score


def log_kernel(name, u):
    """log K(u) of an array of distances."""
    u = torch.as_tensor(u)
    if name in LOG_KERNELS:
        return LOG_KERNELS[name](u).numpy()
    inside = u < 1
    return torch.where(inside, COMPACT_KERNELS[name](torch.where(inside, u, 0.0)).log(), NEGATIVE).numpy()


def kernel_sums(points):
    """Log weights, and weighted means of values, offsets and their products, of `Points`."""
    name = points.kernel.__name__.lower()
    log_weights, means, offsets, squares, products = [], [], [], [], []
    for number, query in enumerate(points.query):
        offset = points.key - query
        distance = np.sqrt((offset**2).sum(axis=1))
        with np.errstate(divide="ignore"):
            score = log_kernel(name, distance) + (0.0 if points.weight is None else np.log(points.weight))
        for column in range(points.columns):
            apart = np.abs(points.key_code[:, column] - points.query_code[number, column])
            score = score - points.per_step[column] * apart - points.per_change[column] * (apart != 0)
        if points.left_out is not None and points.left_out[number] >= 0:
            score[points.left_out[number]] = -np.inf
        highest = score.max()
        weight = np.exp(score - highest) if highest > -np.inf else np.zeros(len(score))
        log_weights.append(highest + np.log(weight.sum()) if highest > -np.inf else -np.inf)
        weight = weight / max(weight.sum(), 1e-300)
        means.append(weight @ points.value)
        offsets.append(weight @ offset)
        squares.append((offset * weight[:, None]).T @ offset)
        products.append((offset * weight[:, None]).T @ points.value)
    return tuple(np.array(part) for part in (log_weights, means, offsets, squares, products))
