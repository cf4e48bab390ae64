"""The fused CPU loops of the `stream` engine, in Numba: one pass over a block of scores.

Each works in place on a block `[rows, keys]`, releases the GIL, and is compiled for float32 and for float64 and cached
on disk. A NamedTuple groups arguments that belong together.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.compiled import compiled
from regard.compiled.math import EXACT, SUM, Float, Floats, Words, exponential, hash_word, running_max

Counts = NDArray[np.int64]


class RowSums(NamedTuple):
    """The running sums of an online softmax."""

    largest: Floats  # [rows]  largest score so far
    total: Floats  # [rows]  sum of exp(score - largest), dropped or not
    weighted: Floats  # [rows, values]  values weighted by exp(score - largest); it decays as `largest` grows


class RowGradients(NamedTuple):
    """What backward knows about each row."""

    largest: Floats  # [rows]  of forward: the log weight they add up to has fewer digits
    total: Floats  # [rows]
    offset: Floats  # [rows]  mean' · mean - log_weight': softmax subtracts it from every gradient of the row


class RowDropout(NamedTuple):
    """The dropout hash of some rows; see `dropout_hash`."""

    first: Words  # [rows]
    second: Words  # [rows]
    threshold: np.uint32  # 0: no dropout
    scale: Float  # factor of what is not dropped


@compiled(nogil=True, fastmath=EXACT)
def distances(query: Floats, key: Floats, block: Floats) -> None:
    """block[i, j] = -½‖query_i - key_j‖². Coordinates are [features, points] in float64; differences are rounded."""
    number = block.dtype.type
    half = number(-0.5)
    for i in range(block.shape[0]):
        row = block[i]
        row[:] = 0
        for feature in range(query.shape[0]):
            here, others = query[feature, i], key[feature]
            for j in range(row.shape[0]):
                step = number(here - others[j])
                row[j] += step * step
        for j in range(row.shape[0]):
            row[j] *= half


@compiled(nogil=True, fastmath=SUM)
def distances_backward(score_grad: Floats, query: Floats, key: Floats, query_grad: Floats, key_grad: Floats) -> None:
    """Add score_grad[i, j] · (key_j - query_i) to the gradient of query_i, and subtract it from that of key_j."""
    number = score_grad.dtype.type
    for i in range(score_grad.shape[0]):
        row = score_grad[i]
        for feature in range(query.shape[0]):
            here, others, to_key = query[feature, i], key[feature], key_grad[feature]
            summed = number(0)
            for j in range(row.shape[0]):
                step = row[j] * number(others[j] - here)
                summed += step
                to_key[j] -= step
            query_grad[feature, i] += summed


@compiled(nogil=True, fastmath=SUM)
def softmax_block(block: Floats, visible: Counts, sums: RowSums, dropout: RowDropout, start: int) -> None:
    """Scores become exp(score - largest), with dropout; the running sums are updated.

    visible   [2, rows]  the first key of the block that a row sees, and one past the last; the others become 0
    start     index of the block's first key
    """
    zero = block.dtype.type(0)
    for i in range(block.shape[0]):
        first, stop = visible[0, i], visible[1, i]
        row = block[i, first:stop]
        block[i, :first] = 0
        block[i, stop:] = 0
        if row.shape[0] == 0:
            continue
        before = sums.largest[i]
        largest = running_max(before, row)
        sums.largest[i] = largest
        if largest == -np.inf:  # no visible key so far
            row[:] = 0
            continue
        decay = exponential(before - largest)
        if before != -np.inf:
            for v in range(sums.weighted.shape[1]):
                sums.weighted[i, v] *= decay
        total = zero
        if dropout.threshold == 0:
            for j in range(row.shape[0]):
                weight = exponential(row[j] - largest)
                total += weight
                row[j] = weight
        else:
            word, second = np.uint32(dropout.first[i] + np.uint32(start + first)), dropout.second[i]
            threshold, scale = dropout.threshold, dropout.scale
            for j in range(row.shape[0]):
                weight = exponential(row[j] - largest)
                total += weight
                row[j] = zero if hash_word(word, second, j) < threshold else weight * scale
        sums.total[i] = sums.total[i] * decay + total


@compiled(nogil=True, fastmath=EXACT)
def normalise(total: Floats, weighted: Floats) -> None:
    """Weighted sums become means. A row without a visible key keeps a mean of 0, and a total of 1, whose log is 0."""
    for i in range(weighted.shape[0]):
        if total[i] == 0:
            total[i] = 1
        for v in range(weighted.shape[1]):
            weighted[i, v] /= total[i]


@compiled(nogil=True, fastmath=SUM)
def softmax_block_backward(
    block: Floats, gradient: Floats, visible: Counts, rows: RowGradients, dropout: RowDropout, start: int
) -> None:
    """Scores become the weights that multiplied the values; gradients by weight become gradients by score.

    gradient         [rows, keys]  in: mean' · value, out: d loss / d score
    visible, start   as for `softmax_block`
    """
    zero = block.dtype.type(0)
    for i in range(block.shape[0]):
        first, stop = visible[0, i], visible[1, i]
        block[i, :first] = 0
        block[i, stop:] = 0
        gradient[i, :first] = 0
        gradient[i, stop:] = 0
        row, grads = block[i, first:stop], gradient[i, first:stop]
        largest, scale, offset = rows.largest[i], 1 / rows.total[i], rows.offset[i]
        if largest == -np.inf:
            row[:] = 0
            grads[:] = 0
        elif dropout.threshold == 0:
            for j in range(row.shape[0]):
                weight = exponential(row[j] - largest) * scale
                row[j] = weight
                grads[j] = weight * (grads[j] - offset)
        else:
            word, second = np.uint32(dropout.first[i] + np.uint32(start + first)), dropout.second[i]
            threshold, keep_scale = dropout.threshold, dropout.scale
            for j in range(row.shape[0]):
                weight = exponential(row[j] - largest) * scale
                keep = zero if hash_word(word, second, j) < threshold else keep_scale
                row[j] = weight * keep
                grads[j] = weight * (grads[j] * keep - offset)
