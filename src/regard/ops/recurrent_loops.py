"""Numba loops of `attentive_rnn`: the additive score of one query per row, to the mean in one pass, and its backward.

Arrays are `[rows, …]` with each row contiguous; loops are compiled for float32 and float64. Division follows NumPy's
`error_model`: Python's check for zero would prevent vectorisation.
"""

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from regard.compiled import compiled
from regard.compiled.math import SUM, Floats, exponential, tanh


class Keys(NamedTuple):
    """What the queries attend to."""

    key: Floats  # [rows, n, h]
    score: Floats  # [h]  the weight of the score
    value: Floats  # [rows, n, v]
    counts: NDArray[np.int64]  # [rows]  number of keys of each row


class AdditiveGradients(NamedTuple):
    """The gradients of the outputs of `additive_forward`, and where those of its inputs are written."""

    mean: Floats  # [rows, v]
    weights: Floats  # [rows, n]  of the weights as an output of their own; overwritten
    query: Floats  # [rows, h or more]  the first h are written
    key: Floats  # [rows, n, h]  added to
    score: Floats  # [h]  added to


@njit(fastmath=SUM, error_model="numpy")
def _score_keys(query: Floats, keys: Floats, score_weight: Floats, scores: Floats) -> None:
    """The scores of some keys [n, h] for one query [h or more]."""
    size = score_weight.shape[0]
    query = query[:size]
    for i in range(scores.shape[0]):
        key, score = keys[i], scores.dtype.type(0)
        for j in range(size):
            score += score_weight[j] * tanh(query[j] + key[j])
        scores[i] = score


@compiled(nogil=True)
def additive_scores(query: Floats, key: Floats, score_weight: Floats, index: NDArray[np.int64], out: Floats) -> None:
    """out [rows, n] = score_weightᵀ tanh(query + key); row r has the keys key[index[r]]."""
    for row in range(query.shape[0]):
        _score_keys(query[row], key[index[row]], score_weight, out[row])


@compiled(nogil=True, fastmath=SUM, error_model="numpy")
def additive_forward(query: Floats, keys: Keys, mean: Floats, weights: Floats) -> None:
    """weights = softmax(score_weightᵀ tanh(query + key)) over the first `counts` keys; mean = Σ weights · value.

    query                               [rows, h or more], of which the first h count
    mean [rows, v], weights [rows, n]   written; both are 0 for a row without keys
    """
    key, score_weight, value, counts = keys
    for row in range(key.shape[0]):
        count, total_mean = counts[row], mean[row]
        row_weights = weights[row, :count]
        _score_keys(query[row], key[row], score_weight, row_weights)
        highest, total = row_weights.dtype.type(-np.inf), row_weights.dtype.type(0)
        for i in range(count):
            highest = max(highest, row_weights[i])
        for i in range(count):
            row_weights[i] = exponential(row_weights[i] - highest)
            total += row_weights[i]
        for i in range(count):
            row_weights[i] /= total
        weights[row, count:] = 0
        total_mean[:] = 0
        i = 0
        while i + 4 <= count:  # four at a time: the mean is read and written a quarter as often
            a, b, c, d = row_weights[i], row_weights[i + 1], row_weights[i + 2], row_weights[i + 3]
            first, second, third, fourth = value[row, i], value[row, i + 1], value[row, i + 2], value[row, i + 3]
            for j in range(total_mean.shape[0]):
                total_mean[j] += a * first[j] + b * second[j] + c * third[j] + d * fourth[j]
            i += 4
        while i < count:
            a, first = row_weights[i], value[row, i]
            for j in range(total_mean.shape[0]):
                total_mean[j] += a * first[j]
            i += 1


@compiled(nogil=True, fastmath=SUM, error_model="numpy")
def additive_backward(query: Floats, keys: Keys, weights: Floats, gradients: AdditiveGradients) -> None:
    """From the gradients of mean and weights to those of query, key and score.

    The gradient of the values, weights ⊗ mean's, is one matrix product over several queries: the caller does it.
    """
    key, score_weight, value, counts = keys
    mean_grad, weights_grad, query_grad, key_grad, score_weight_grad = gradients
    size = key.shape[2]
    one = score_weight.dtype.type(1)
    for row in range(key.shape[0]):
        row_query, row_weights, row_mean_grad, count = query[row, :size], weights[row], mean_grad[row], counts[row]
        grads, row_query_grad = weights_grad[row], query_grad[row, :size]
        total = score_weight.dtype.type(0)
        for i in range(count):
            row_value, grad = value[row, i], grads[i]
            for j in range(row_mean_grad.shape[0]):
                grad += row_mean_grad[j] * row_value[j]
            grads[i] = grad
            total += row_weights[i] * grad
        row_query_grad[:] = 0
        for i in range(count):
            row_key, row_key_grad, score_grad = key[row, i], key_grad[row, i], row_weights[i] * (grads[i] - total)
            for j in range(size):
                u = tanh(row_query[j] + row_key[j])
                sum_grad = score_grad * score_weight[j] * (one - u * u)
                score_weight_grad[j] += score_grad * u
                row_query_grad[j] += sum_grad
                row_key_grad[j] += sum_grad
