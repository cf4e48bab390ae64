"""Sparse weighings of a block of scores, in Numba: products with the few keys that have a weight, and no others.

    derivative = relu(scale · (score - largest) - threshold)^(power - 1)        weight = relu(…)^power

A block is `[heads, rows, keys]`; `row` has largest, threshold and the sum of the derivatives, `[heads, rows, 3]`. Each
loop releases the GIL, and is compiled for float32 and for float64 and cached on disk.
"""

from typing import NamedTuple

from torch import Tensor

from regard.compiled import compiled
from regard.compiled.math import SUM, Floats

FEW = 1 / 16
"""Fraction of keys with a weight, up to which these loops are faster than matrix products."""
_CHUNK = 64


class Sparse(NamedTuple):
    """A sparse weighing and what it knows about the rows of a strip."""

    row: Floats  # [heads, rows, 3]
    scale: float
    power: int


@compiled(nogil=True, fastmath=SUM)
def next_key(some: Floats, start: int) -> int:
    """The first key from `start` whose number is not 0; the number of keys if there is none."""
    zero, stop = some.dtype.type(0), some.shape[0]
    while start < stop:
        end = int(min(stop, start + _CHUNK))
        found = 0
        for j in range(start, end):  # vectorised: most chunks have none
            found += 1 if some[j] != zero else 0
        if found:
            while some[start] == zero:
                start += 1
            return start
        start = end
    return int(stop)


@compiled(nogil=True, fastmath=SUM)
def subtract_thresholds(block: Floats, sparse: Sparse) -> None:
    """Scores become relu(scale · (score - largest) - threshold)."""
    number = block.dtype.type
    zero, scale = number(0), number(sparse.scale)
    for head in range(block.shape[0]):
        for i in range(block.shape[1]):
            some = block[head, i]
            largest, threshold = sparse.row[head, i, 0], sparse.row[head, i, 1]
            for j in range(some.shape[0]):
                above = (some[j] - largest) * scale - threshold
                some[j] = zero if above <= zero else above  # NaN stays


@compiled(nogil=True, fastmath=SUM)
def count_above(block: Floats, sparse: Sparse) -> int:
    """Number of keys that have a weight, in all rows."""
    number = block.dtype.type
    zero, scale, found = number(0), number(sparse.scale), 0
    for head in range(block.shape[0]):
        for i in range(block.shape[1]):
            some, count = block[head, i], 0
            largest, threshold = sparse.row[head, i, 0], sparse.row[head, i, 1]
            for j in range(some.shape[0]):
                count += 0 if (some[j] - largest) * scale - threshold <= zero else 1
            found += count
    return found


@compiled(nogil=True, fastmath=SUM)
def add_mean(block: Floats, power: int, value: Floats, mean: Floats) -> None:
    """mean += weight · value, for a block of `subtract_thresholds`. value [heads, keys, v], mean [heads, rows, v]."""
    for head in range(block.shape[0]):
        for i in range(block.shape[1]):
            some, to = block[head, i], mean[head, i]
            j = next_key(some, 0)
            while j < some.shape[0]:
                above = some[j]
                weight = above if power == 1 else above * above
                of = value[head, j]
                for v in range(to.shape[0]):
                    to[v] += weight * of[v]
                j = next_key(some, j + 1)


@compiled(nogil=True, fastmath=SUM)
def add_offset(block: Floats, sparse: Sparse, value: Floats, mean_grad: Floats, offset: Floats) -> None:
    """offset += Σ derivative · weight' / total, with weight' = mean' · value, for a block of `subtract_thresholds`."""
    number = block.dtype.type
    for head in range(block.shape[0]):
        for i in range(block.shape[1]):
            some, grad, summed = block[head, i], mean_grad[head, i], number(0)
            j = next_key(some, 0)
            while j < some.shape[0]:
                above = some[j]
                of, product = value[head, j], number(0)
                for v in range(grad.shape[0]):
                    product += grad[v] * of[v]
                summed += product if sparse.power == 1 else product * above
                j = next_key(some, j + 1)
            offset[head, i] += summed / sparse.row[head, i, 2]


@compiled(nogil=True, fastmath=SUM)
def add_value_gradient(
    block: Floats, power: int, value: Floats, mean_grad: Floats, offset: Floats, value_grad: Floats
) -> None:
    """Add to the gradient of the values; a block of `subtract_thresholds` becomes the gradient of its scores."""
    number = block.dtype.type
    for head in range(block.shape[0]):
        for i in range(block.shape[1]):
            some, grad = block[head, i], mean_grad[head, i]
            j = next_key(some, 0)
            while j < some.shape[0]:
                above = some[j]
                of, to, product = value[head, j], value_grad[head, j], number(0)
                weight = above if power == 1 else above * above
                for v in range(grad.shape[0]):
                    product += grad[v] * of[v]
                    to[v] += weight * grad[v]
                some[j] = (product - offset[head, i]) * (number(1) if power == 1 else above)
                j = next_key(some, j + 1)


@compiled(nogil=True, fastmath=SUM)
def add_score_gradient(score_grad: Floats, query: Floats, key: Floats, query_grad: Floats, key_grad: Floats) -> None:
    """Add to the gradients of query [heads, rows, d] and key [heads, keys, d], for inner products."""
    for head in range(score_grad.shape[0]):
        for i in range(score_grad.shape[1]):
            some, here, to_query = score_grad[head, i], query[head, i], query_grad[head, i]
            j = next_key(some, 0)
            while j < some.shape[0]:
                number = some[j]
                other, to_key = key[head, j], key_grad[head, j]
                for d in range(here.shape[0]):
                    to_query[d] += number * other[d]
                    to_key[d] += number * here[d]
                j = next_key(some, j + 1)


def arrays(*tensors: Tensor) -> list[Floats]:
    """Tensors as arrays that share their memory."""
    return [tensor.numpy() for tensor in tensors]
