"""Numba loops of `attentive_rnn`: the additive score, and the gates of GRU and LSTM.

Arrays are `[rows, …]` with each row contiguous; loops are compiled for float32 and float64. Division follows NumPy's
`error_model`: Python's check for zero would prevent vectorisation.

Additive score: one query per row, from the score to the mean in one pass, and its backward.

Cells: one pass per step, forward and backward. Gates are in torch's order: reset, update, new for a GRU; input, forget,
new, output for an LSTM. `projected` is the previous state's part of the gates, from column `offset` on. Each loop
writes one array, so that the compiler has few arrays to check for overlap before it vectorises.
"""

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from regard.compiled import compiled
from regard.compiled.math import EXACT, SUM, Floats, exponential, sigmoid, tanh


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


@compiled(nogil=True, fastmath=EXACT, error_model="numpy")
def gru_forward(gates: Floats, projected: Floats, offset: int, before: Floats, after: Floats) -> None:
    """gates become reset, update and new; after = new + update · (before − new)."""
    size = before.shape[1]
    for row in range(before.shape[0]):
        both, projected_both = gates[row, : 2 * size], projected[row, offset : offset + 2 * size]
        for j in range(2 * size):
            both[j] = sigmoid(both[j] + projected_both[j])
        reset, new, projected_new = gates[row, :size], gates[row, 2 * size :], projected[row, offset + 2 * size :]
        for j in range(size):
            new[j] = tanh(new[j] + reset[j] * projected_new[j])
        update, old_state, new_state = gates[row, size : 2 * size], before[row], after[row]
        for j in range(size):
            new_state[j] = new[j] + update[j] * (old_state[j] - new[j])


@compiled(nogil=True, fastmath=EXACT, error_model="numpy")
def gru_backward(
    gates: Floats,
    projected: Floats,
    offset: int,
    before: Floats,
    state_grad: Floats,
    gates_grad: Floats,
    projected_grad: Floats,
) -> None:
    """From the gradient of `after` to those of both parts of the gates (written).

    gates        reset, update and new, as `gru_forward` left them
    state_grad   the gradient of `after`; becomes the direct part of that of `before`, without the gates' part
    """
    size = before.shape[1]
    one = state_grad.dtype.type(1)
    for row in range(before.shape[0]):
        reset, update, new = gates[row, :size], gates[row, size : 2 * size], gates[row, 2 * size :]
        old_state, grad, projected_new = before[row], state_grad[row], projected[row, offset + 2 * size :]
        outer, inner = gates_grad[row], projected_grad[row, offset:]
        reset_grad, update_grad, new_grad = outer[:size], outer[size : 2 * size], outer[2 * size :]
        for j in range(size):
            new_grad[j] = grad[j] * (one - update[j]) * (one - new[j] * new[j])
        for j in range(size):
            update_grad[j] = grad[j] * (old_state[j] - new[j]) * update[j] * (one - update[j])
        for j in range(size):
            reset_grad[j] = new_grad[j] * projected_new[j] * reset[j] * (one - reset[j])
        for j in range(size):
            grad[j] *= update[j]
        for j in range(2 * size):
            inner[j] = outer[j]
        projected_new_grad = inner[2 * size :]
        for j in range(size):
            projected_new_grad[j] = new_grad[j] * reset[j]


@compiled(nogil=True, fastmath=EXACT, error_model="numpy")
def lstm_forward(
    gates: Floats, projected: Floats, offset: int, memory: Floats, next_memory: Floats, after: Floats
) -> None:
    """gates become input, forget, new and output; next_memory and after = output · tanh(next_memory) are written."""
    size = memory.shape[1]
    for row in range(memory.shape[0]):
        both, projected_both = gates[row, : 2 * size], projected[row, offset : offset + 2 * size]
        for j in range(2 * size):
            both[j] = sigmoid(both[j] + projected_both[j])
        new, projected_new = gates[row, 2 * size : 3 * size], projected[row, offset + 2 * size : offset + 3 * size]
        for j in range(size):
            new[j] = tanh(new[j] + projected_new[j])
        output, projected_output = gates[row, 3 * size :], projected[row, offset + 3 * size :]
        for j in range(size):
            output[j] = sigmoid(output[j] + projected_output[j])
        enter, forget = gates[row, :size], gates[row, size : 2 * size]
        old_memory, new_memory = memory[row], next_memory[row]
        for j in range(size):
            new_memory[j] = forget[j] * old_memory[j] + enter[j] * new[j]
        new_state = after[row]
        for j in range(size):
            new_state[j] = output[j] * tanh(new_memory[j])


@compiled(nogil=True, fastmath=EXACT, error_model="numpy")
def lstm_backward(
    gates: Floats,
    offset: int,
    memory: Floats,
    next_memory: Floats,
    state_grad: Floats,
    memory_grad: Floats,
    gates_grad: Floats,
    projected_grad: Floats,
) -> None:
    """From the gradients of `after` and `next_memory` to those of both parts of the gates (written).

    memory_grad   the gradient of `next_memory`; becomes that of `memory`
    state_grad    the gradient of `after`; becomes 0, as the state before enters through the gates only
    """
    size = memory.shape[1]
    one = state_grad.dtype.type(1)
    for row in range(memory.shape[0]):
        enter, forget = gates[row, :size], gates[row, size : 2 * size]
        new, output = gates[row, 2 * size : 3 * size], gates[row, 3 * size :]
        old_memory, new_memory, grad, carry = memory[row], next_memory[row], state_grad[row], memory_grad[row]
        outer, inner = gates_grad[row], projected_grad[row, offset:]
        enter_grad, forget_grad = outer[:size], outer[size : 2 * size]
        new_grad, output_grad = outer[2 * size : 3 * size], outer[3 * size :]
        for j in range(size):
            output_grad[j] = tanh(new_memory[j])
        for j in range(size):
            carry[j] += grad[j] * output[j] * (one - output_grad[j] * output_grad[j])
        for j in range(size):
            output_grad[j] *= grad[j] * output[j] * (one - output[j])
        for j in range(size):
            enter_grad[j] = carry[j] * new[j] * enter[j] * (one - enter[j])
        for j in range(size):
            forget_grad[j] = carry[j] * old_memory[j] * forget[j] * (one - forget[j])
        for j in range(size):
            new_grad[j] = carry[j] * enter[j] * (one - new[j] * new[j])
        for j in range(size):
            carry[j] *= forget[j]
        grad[:] = 0
        for j in range(4 * size):
            inner[j] = outer[j]
