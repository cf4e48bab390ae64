"""The loops of the `pairs` engine, compiled by Numba: for each query, the weights of one block of keys after another.

Keys are in blocks of neighbours, and blocks in groups; each has a bounding box. The kernel at the least distance
between two boxes bounds the weight of every pair of points in them. A block or group of keys is skipped if

    K(least distance) · (weight of all keys) ≤ tolerance · (weight summed so far)

which keeps the sum of everything that is skipped below the tolerance, in whatever order blocks are visited.

In float32, a block of queries visits the same keys. Coordinates are relative to the centre of the block, where a
distance of a few bandwidths keeps its digits; if the block is too wide for that, they have two words, and the second is
what the first was rounded by. The weights of a block of keys are summed in float32, and these sums are added in
float64. A query whose keys are all far is computed again in float64; so are all queries if the tolerance needs it, and
all moments. In float64, queries are visited one by one, and summed relative to the largest weight so far, so that
nothing underflows.

`sum_blocks` is compiled once, for all kernels and any number of features, and cached on disk. What depends on these is
in two small functions that it is passed, `Formulas`: another kernel takes little time to compile. They are closures
over plain numbers, which are cached on disk; one over functions would be compiled again by every process. One of the
numbers is the version of the source: a result on disk that was compiled from another version must not be used.

A function is compiled again for each constant that it is given as an argument, and operations on whole arrays take
seconds to compile: so `_visit` has one call, and elements are assigned in loops.

LLVM vectorises the inner loops, each over one row of numbers. Rows are taken as slices, because an index that might be
negative keeps a loop from being vectorised.
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
from regard.compiled.math import EXACT, SUM, Float, exponential, negative_power_of_two, row_max
from regard.engines.kernel_sums.problem import Blocks, Data, Floats, Floats32, Integers
from regard.kernels import KERNELS, Kernel

_inner = functools.partial(njit, no_cpython_wrapper=True, no_cfunc_wrapper=True)
"""For functions that only loops call: what Python would call them by takes as long to compile as they do."""
_LOG2E = 1.4426950408889634
_UNROLLED = 8
"""Number of features up to which loops are compiled for exactly that number."""
NARROW = 9.4
"""How many bandwidths wide a block of queries may be for coordinates of one word: scaled and relative to its centre,
those of a Gaussian are then below 4, where the next float32 is 2.4e-7 away."""
_NEAR = -4.5
"""The log weight that some block must reach for float32: if all keys are farther, float32 rounds the exponents."""
_FAINT = 3e-6
"""The mean weight of the keys visited below which a sum may be one of far keys only, however large it is."""
_ZERO, _ONE, _MINUS_LOG2E = np.float32(0), np.float32(1), np.float32(-_LOG2E)


class _Block32(NamedTuple):
    """A block of queries and one of keys in float32, and scratch memory."""

    query: Floats32  # [2 · features + columns, queries]: first words of the coordinates, second words, codes
    key: Floats32  # [2 · features + columns, keys of a block]
    penalty: Floats32  # [2, columns]: subtracted from log2 of a weight per step between codes, and per change
    column: Floats32  # [1 + values, all keys]: the weights of the keys, and the values times them
    left_out: Integers  # [queries]: the key that each must not see, or -1
    room: Floats32  # [2, keys of a block]


_Matrix = types.float32[:, ::1]
_BLOCK32 = types.NamedTuple(  # type: ignore[no-untyped-call]
    (_Matrix, _Matrix, _Matrix, _Matrix, types.int64[::1], _Matrix), _Block32
)


class Formulas(NamedTuple):
    """The functions that are compiled for one kernel and number of features; `sum_blocks` is passed them."""

    evaluate: Callable[[Floats], None]
    add_float32: Callable[[_Block32, bool, int, int, Floats], None]


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


@_inner(fastmath=SUM)
def _multiply_penalties(block: _Block32, i: int, weight: Floats32) -> None:
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


@_inner(fastmath=SUM)
def _fill_squares(block: _Block32, i: int, size: int) -> None:
    """Squared distances between a query and some keys, of any number of features."""
    square, features = block.room[0][:size], (block.key.shape[0] - block.penalty.shape[1]) // 2
    square[:] = 0
    for feature in range(features):
        some, own = block.key[feature][:size], block.query[feature, i]
        rest, own_rest = block.key[features + feature][:size], block.query[features + feature, i]
        for j in range(size):
            apart = (some[j] - own) + (rest[j] - own_rest)
            square[j] += apart * apart


@_inner(inline="always")
def _weigh(
    number: int, compact: bool, degree: int, features: int, block: _Block32, wide: bool, i: int, j: int
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
    def add_float32(block: _Block32, wide: bool, here: int, size: int, sums: Floats) -> None:
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
    number, profile, version = list(KERNELS.values()).index(kernel), kernel.profile, _source_version()
    features = features if features <= _UNROLLED else -1
    return Formulas(
        _make_evaluate(number, profile.compact, version),
        _make_add_float32(number, profile.compact, profile.degree, features, version),
    )


@functools.cache
def _source_version() -> int:
    """A number that changes with the sources of the loops: Numba checks only the file in which a function is."""
    package = Path(__file__).parents[2]
    sources = [package / "kernels.py", package / "compiled/math.py", *sorted(Path(__file__).parent.glob("*.py"))]
    return zlib.crc32(b"".join(source.read_bytes() for source in sources))


class _Room(NamedTuple):
    """Scratch memory in float64, for one query and a block of keys."""

    offset: Floats  # [features + columns, keys of a block]: coordinates and codes, relative to those of the query
    weight: Floats  # [keys of a block]
    other: Floats  # [keys of a block]


@_inner(fastmath=EXACT)
def _make_room(sides: int, size: int) -> _Room:
    return _Room(np.empty((sides, size)), np.empty(size), np.empty(size))


@_inner()
def _fill_weights(data: Data, formulas: Formulas, room: _Room, size: int) -> None:
    """Fill in the weights at some offsets, without penalties and the weights of the keys: K(u) if it is compact, else
    log K(u)."""
    weight, features = room.weight[:size], room.offset.shape[0] - data.penalty.shape[1]
    weight[:] = 0
    # Without fastmath, product and sum are not fused, because NumPy does not fuse them: at the edge of a kernel that
    # jumps, the last bit decides.
    for feature in range(features):
        offset = room.offset[feature][:size]
        for j in range(size):
            weight[j] += offset[j] * offset[j]
    formulas.evaluate(weight)


@_inner()
def _take_logs(data: Data, room: _Room, size: int) -> None:
    """Make log weights of these, with penalties."""
    weight, penalty, columns = room.weight[:size], room.other[:size], data.penalty.shape[1]
    features = room.offset.shape[0] - columns
    if data.compact:
        for j in range(size):
            weight[j] = np.log(weight[j])
    if not columns:
        return
    penalty[:] = 0
    for column in range(columns):
        offset = room.offset[features + column][:size]
        per_step, per_change = data.penalty[0, column], data.penalty[1, column]
        for j in range(size):
            penalty[j] += per_step * abs(offset[j]) + (per_change if offset[j] != 0 else 0.0)
    for j in range(size):
        weight[j] -= penalty[j]


@_inner()
def _bounds(
    data: Data, formulas: Formulas, box: tuple[Floats, Floats], blocks: Blocks, first: int, last: int
) -> Floats:
    """The largest log weight that a point of each of some blocks can have for one in a box; keys weigh 1 at most."""
    low, high = box
    size = last - first
    room = _make_room(low.shape[0], size)
    for side in range(low.shape[0]):
        row, lows, highs = room.offset[side], blocks.low[side][first:last], blocks.high[side][first:last]
        for j in range(size):
            # Rounding must not hide a key at the edge.
            row[j] = max(0.0, max(low[side] - highs[j], lows[j] - high[side])) * (1 - 1e-14)
    _fill_weights(data, formulas, room, size)
    _take_logs(data, room, size)
    return room.weight


@_inner(fastmath=SUM)
def _dot(weight: Floats, column: Floats) -> float:
    total = 0.0
    for j in range(weight.shape[0]):
        total += weight[j] * column[j]
    return total


@_inner(fastmath=SUM)
def _multiply_masses(weight: Floats, mass: Floats, logs: bool, shift: float) -> float:
    """Weights, or the logs of them relative to a shift, times the weights of the keys; their sum."""
    total = 0.0
    if logs:
        for j in range(weight.shape[0]):
            weight[j] = exponential(weight[j] - shift) * mass[j]
            total += weight[j]
    else:
        for j in range(weight.shape[0]):
            weight[j] *= mass[j]
            total += weight[j]
    return total


@_inner(fastmath=EXACT)
def _add_moments(data: Data, room: _Room, here: int, size: int, sums: Floats) -> None:
    """Add the products of the weights with offsets, values and other offsets to the sums that follow the values'."""
    weight, product, columns = room.weight[:size], room.other[:size], data.column.shape[0]
    features = room.offset.shape[0] - data.penalty.shape[1]
    for feature in range(features):
        offset, index = room.offset[feature][:size], columns + feature * (columns + features)
        sums[index] += _dot(weight, offset)
        for j in range(size):
            product[j] = weight[j] * offset[j]
        for number in range(1, columns):
            sums[index + number] += _dot(product, data.column[number][here : here + size])
        for other in range(feature + 1):
            sums[index + columns + other] += _dot(product, room.offset[other][:size])


@_inner(fastmath=EXACT)
def _add_float64(
    data: Data, formulas: Formulas, room: _Room, i: int, here: int, size: int, sums: Floats, shift: float
) -> float:
    """Add a block of keys to the sums [1 + values + moments] of query i, relative to exp(shift); the new shift."""
    logs = not data.compact or data.penalty.shape[1] > 0
    weight, mass = room.weight[:size], data.column[0][here : here + size]
    for side in range(data.keys.shape[0]):
        some, row, own = data.keys[side][here : here + size], room.offset[side], data.queries[side, i]
        for j in range(size):
            row[j] = some[j] - own
    _fill_weights(data, formulas, room, size)
    if logs:
        _take_logs(data, room, size)
    left_out = data.left_out[i] - here
    if 0 <= left_out < size:
        weight[left_out] = -np.inf if logs else 0.0
    if logs:
        highest = float(row_max(weight))
        if highest > shift:
            decay = np.exp(shift - highest)
            for number in range(sums.shape[0]):
                sums[number] *= decay
            shift = highest
        if shift == -np.inf:
            return shift
    sums[0] += _multiply_masses(weight, mass, logs, shift)
    for number in range(1, data.column.shape[0]):
        sums[number] += _dot(weight, data.column[number][here : here + size])
    if data.moments:
        _add_moments(data, room, here, size, sums)
    return shift


@_inner(fastmath=EXACT)
def _split_words(points: Floats, here: int, size: int, centre: Floats, scale: float, words: Floats32) -> None:
    """Scaled coordinates of some points in float32, relative to a centre; what they were rounded by; then codes."""
    features = words.shape[0] - points.shape[0]
    for feature in range(features):
        some, middle = points[feature][here : here + size], centre[feature]
        first, second = words[feature], words[features + feature]
        for j in range(size):
            first[j] = (some[j] - middle) * scale
        for j in range(size):
            second[j] = (some[j] - middle) * scale - first[j]
    for side in range(features, points.shape[0]):
        some, first = points[side][here : here + size], words[features + side]
        for j in range(size):
            first[j] = some[j]


@_inner(fastmath=EXACT)
def _make_block32(data: Data, box: tuple[Floats, Floats], begin: int, end: int) -> tuple[_Block32, Floats, bool]:
    """A block of queries in float32, with room for a block of keys; the centre that all are relative to; and whether
    it is so wide that coordinates need two words."""
    low, high = box
    sides, size = data.keys.shape[0], data.blocks.starts[1]  # the first block is the largest
    features = sides - data.penalty.shape[1]
    centre, wide = np.empty(features), False
    for feature in range(features):
        centre[feature] = 0.5 * (low[feature] + high[feature])
        wide = wide or high[feature] - low[feature] > NARROW
    penalty = np.empty((2, data.penalty.shape[1]), np.float32)
    for column in range(penalty.shape[1]):
        penalty[0, column], penalty[1, column] = _LOG2E * data.penalty[0, column], _LOG2E * data.penalty[1, column]
    block = _Block32(
        np.empty((features + sides, end - begin), np.float32),
        np.empty((features + sides, size), np.float32),
        penalty,
        data.column32,
        data.left_out[begin:end],
        np.empty((2, size), np.float32),
    )
    _split_words(data.queries, begin, end - begin, centre, data.scale, block.query)
    return block, centre, wide


@_inner(fastmath=EXACT)
def _negligible(data: Data, sums: Floats, shift: float) -> float:
    """The log weight up to which a block of keys may be skipped; NaN, which no number is below, if none may be."""
    least = np.inf
    for i in range(sums.shape[0]):
        least = min(least, sums[i, 0])
    return np.log(data.skipped * least) + shift  # type: ignore[no-any-return]


@_inner(fastmath=EXACT)
def _visit(
    data: Data, formulas: Formulas, room: _Room, begin: int, end: int, exact: bool, sums: Floats
) -> tuple[int, float, float]:
    """Add all keys that matter to the sums [queries, 1 + values + moments] of some queries; of one query, if exact.

    Returns the number of keys visited, the largest bound of their log weights, and what the sums are relative to the
    exponential of.
    """
    low, high = data.queries[:, begin].copy(), data.queries[:, begin].copy()
    for side in range(low.shape[0]):
        for i in range(begin, end):
            low[side], high[side] = min(low[side], data.queries[side, i]), max(high[side], data.queries[side, i])
    box = low, high
    blocks, groups = data.blocks, data.groups
    block32, centre, wide = _make_block32(data, box, begin, end)
    group_bounds = _bounds(data, formulas, box, groups, groups.starts[0], groups.low.shape[1])
    nearest = np.argmax(group_bounds)  # visited first, because its weight decides what is skipped
    visited, closest = 0, -np.inf
    shift = -np.inf if exact and (not data.compact or data.penalty.shape[1]) else 0.0
    for rank in range(-1, group_bounds.shape[0]):
        group = nearest if rank < 0 else rank
        if rank == nearest or group_bounds[group] <= _negligible(data, sums, shift):
            continue
        first = groups.starts[group]
        bounds = _bounds(data, formulas, box, blocks, first, groups.starts[group + 1])
        for number in range(bounds.shape[0]):
            if bounds[number] <= _negligible(data, sums, shift):
                continue
            here = blocks.starts[first + number]
            size = blocks.starts[first + number + 1] - here
            visited, closest = visited + size, max(closest, bounds[number])
            if exact:
                shift = _add_float64(data, formulas, room, begin, here, size, sums[0], shift)
            else:
                _split_words(data.keys, here, size, centre, data.scale, block32.key)
                formulas.add_float32(block32, wide, here, size, sums)
    return visited, closest, shift


@functools.cache
def compile_loops() -> Callable[[int, int, Data, Formulas, Floats, Floats], None]:
    """The function that sums some blocks of queries over all keys; compiled once, then cached on disk."""
    version = _source_version()

    @compiled(nogil=True, fastmath=EXACT)
    def sum_blocks(first: int, last: int, data: Data, formulas: Formulas, sums: Floats, shift: Floats) -> None:
        """Fill in the sums [queries, 1 + values], relative to exp(shift [queries]), of some blocks of queries.

        With moments, these follow for each feature: the offset, the offset times each value, and its products with
        the offsets of all features, where those of later features are 0.
        """
        if version < 0:
            return
        room = _make_room(data.keys.shape[0], data.blocks.starts[1])
        for block in range(first, last):
            begin, end = data.query_starts[block], data.query_starts[block + 1]
            visited, closest = 0, -np.inf
            for i in range(begin - 1, end):  # all of them in float32 first, then one by one: one call, compiled once
                exact = i >= begin
                if not exact and data.float32_from == np.inf:
                    continue
                enough = data.float32_from * visited if data.compact else max(data.float32_from, _FAINT * visited)
                if exact and visited and closest >= _NEAR and enough <= sums[i, 0] < np.inf:
                    continue
                some = slice(i, i + 1) if exact else slice(begin, end)
                sums[some] = 0
                found = _visit(data, formulas, room, some.start, some.stop, exact, sums[some])
                if exact:
                    shift[i] = found[2]
                else:
                    visited, closest, _ = found

    return sum_blocks  # type: ignore[no-any-return]
