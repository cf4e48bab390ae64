"""The loops of the `pairs` engine that are compiled for one kernel: small, so that another one takes little time.

In float32, coordinates are relative to the centre of a block of queries, where a distance of a few bandwidths keeps its
digits; if the block is too wide for that, they have two words, and the second is what the first was rounded by. The
weights of a block of keys are summed in float32, and these sums are added in float64.

A closure over plain numbers is cached on disk; one over functions would be compiled again by every process. One of the
numbers is the version of the source: a result on disk that was compiled from another version must not be used.
"""

import functools
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numba import njit, types
from numba.extending import overload

from regard.compiled import compiled
from regard.compiled.math import EXACT, SUM, Float, negative_power_of_two
from regard.engines.kernel_sums.problem import Floats, Floats32, Integers
from regard.kernels import KERNELS, Kernel

LOG2E = 1.4426950408889634
_UNROLLED = 8
"""Number of features up to which loops are compiled for exactly that number."""
_ZERO, _ONE, _MINUS_LOG2E = np.float32(0), np.float32(1), np.float32(-LOG2E)


class Block32(NamedTuple):
    """A block of queries and one of keys in float32, and scratch memory."""

    query: Floats32  # [2 · features + columns, queries]: first words of the coordinates, second words, codes
    key: Floats32  # [2 · features + columns, keys of a block]
    penalty: Floats32  # [2, columns]: subtracted from log2 of a weight per step between codes, and per change
    column: Floats32  # [1 + values, all keys]: the weights of the keys, and the values times them
    left_out: Integers  # [queries]: the key that each must not see, or -1
    room: Floats32  # [2, keys of a block]


_Matrix = types.float32[:, ::1]
_BLOCK32 = types.NamedTuple(  # type: ignore[no-untyped-call]
    (_Matrix, _Matrix, _Matrix, _Matrix, types.int64[::1], _Matrix), Block32
)


class Formulas(NamedTuple):
    """The functions that are compiled for one kernel and number of features; `sum_blocks` is passed them."""

    evaluate: Callable[[Floats], None]
    add_float32: Callable[[Block32, bool, int, int, Floats], None]


def _arithmetic(number: int, u: Float, square: Float) -> Any:
    """`Profile.arithmetic` of the kernel of this number, which must be a constant."""
    raise NotImplementedError("compiled code only")


@overload(_arithmetic, prefer_literal=True)
def _overload_arithmetic(number: Any, u: Any, square: Any) -> Any:
    formula = njit(fastmath=SUM)(list(KERNELS.values())[number.literal_value].profile.arithmetic)

    # Numba wants the same annotations here as above.
    def evaluate(number: Any, u: Any, square: Any) -> Any:
        return formula(u, square)

    return evaluate


@functools.cache
def _make_evaluate(number: int, compact: bool, version: int) -> Any:
    @compiled(types.void(types.float64[::1]), fastmath=EXACT)
    def evaluate(row: Floats) -> None:
        """Replace squared distances by K(u) if the kernel is compact, else by log K(u)."""
        if version < 0:
            return
        for j in range(row.shape[0]):
            square = row[j]
            inside = _arithmetic(number, np.sqrt(square), square)
            row[j] = inside if not compact or square < 1 else 0.0

    return evaluate


@njit(fastmath=SUM)
def _multiply_penalties(block: Block32, i: int, weight: Floats32) -> None:
    """Multiply the weights of some keys for query i by what different codes subtract from log2 of them."""
    size, columns = weight.shape[0], block.penalty.shape[1]
    penalty = block.room[1][:size]
    penalty[:] = 0
    for column in range(columns):
        side = block.key.shape[0] - columns + column
        some, own = block.key[side][:size], block.query[side, i]
        per_step, per_change = block.penalty[0, column], block.penalty[1, column]
        for j in range(size):
            apart = abs(some[j] - own)
            penalty[j] += per_step * apart + (per_change if apart > 0 else _ZERO)
    for j in range(size):
        weight[j] *= negative_power_of_two(penalty[j])


@njit(fastmath=SUM)
def _fill_squares(block: Block32, i: int, size: int) -> None:
    """Squared distances between a query and some keys, of any number of features."""
    square, features = block.room[0][:size], (block.key.shape[0] - block.penalty.shape[1]) // 2
    square[:] = 0
    for feature in range(features):
        some, own = block.key[feature][:size], block.query[feature, i]
        rest, own_rest = block.key[features + feature][:size], block.query[features + feature, i]
        for j in range(size):
            apart = (some[j] - own) + (rest[j] - own_rest)
            square[j] += apart * apart


@njit(inline="always")
def _weigh(
    number: int, compact: bool, degree: int, features: int, block: Block32, wide: bool, i: int, j: int
) -> np.float32:
    """The weight of key j for query i. The first four parameters must be constants."""
    square = _ZERO
    if features < 0:
        square = block.room[0, j]
    for feature in range(features):
        apart = block.key[feature, j] - block.query[feature, i]
        if wide:
            apart += block.key[features + feature, j] - block.query[features + feature, i]
        square += apart * apart
    if degree:
        return negative_power_of_two(square if degree == 2 else np.sqrt(square))
    inside = _arithmetic(number, np.sqrt(square), square)
    if compact:
        return inside if square < _ONE else _ZERO
    return negative_power_of_two(_MINUS_LOG2E * inside)


@functools.cache
def _make_add_float32(number: int, compact: bool, degree: int, features: int, version: int) -> Any:
    """`features` is -1 for any number; else the loop over them is unrolled."""

    @compiled(types.void(_BLOCK32, types.boolean, types.intp, types.intp, types.float64[:, ::1]), fastmath=SUM)
    def add_float32(block: Block32, wide: bool, here: int, size: int, sums: Floats) -> None:
        """Add a block of keys to the sums [queries, 1 + values] of a block of queries."""
        if version < 0:
            return
        weight, mass, values = block.room[0][:size], block.column[0][here : here + size], block.column.shape[0] - 1
        value = block.column[values][here : here + size]
        for i in range(sums.shape[0]):
            left_out = block.left_out[i] - here
            if features < 0:
                _fill_squares(block, i, size)
            if values == 1 and not 0 <= left_out < size and not block.penalty.shape[1]:
                total, other = _ZERO, _ZERO
                if wide:  # twice the same loop, because LLVM vectorises it only if `wide` is a constant
                    for j in range(size):
                        w = _weigh(number, compact, degree, features, block, True, i, j)
                        total += w * mass[j]
                        other += w * value[j]
                else:
                    for j in range(size):
                        w = _weigh(number, compact, degree, features, block, False, i, j)
                        total += w * mass[j]
                        other += w * value[j]
                sums[i, 0] += total
                sums[i, 1] += other
                continue
            for j in range(size):
                weight[j] = _weigh(number, compact, degree, features, block, True, i, j)
            if block.penalty.shape[1]:
                _multiply_penalties(block, i, weight)
            if 0 <= left_out < size:
                weight[left_out] = 0
            for column in range(values + 1):
                some, total = block.column[column][here : here + size], _ZERO
                for j in range(size):
                    total += weight[j] * some[j]
                sums[i, column] += total

    return add_float32


def make_formulas(kernel: type[Kernel], features: int) -> Formulas:
    """Compiled once for a kernel and a number of features, then cached on disk."""
    number, profile, version = list(KERNELS.values()).index(kernel), kernel.profile, source_version()
    features = features if features <= _UNROLLED else -1
    return Formulas(
        _make_evaluate(number, profile.compact, version),
        _make_add_float32(number, profile.compact, profile.degree, features, version),
    )


@functools.cache
def source_version() -> int:
    """A number that changes with the sources of the loops: Numba checks only the file in which a function is."""
    package = Path(__file__).parents[2]
    sources = [package / "kernels.py", package / "compiled/math.py", *sorted(Path(__file__).parent.glob("*.py"))]
    return zlib.crc32(b"".join(source.read_bytes() for source in sources))
