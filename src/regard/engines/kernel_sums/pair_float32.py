"""The `pairs` loops: kernels of distances, fused, by blocks of neighbours; here in float32, sixteen queries at once.

Coordinates are relative to the queries' centre, where a distance of a few bandwidths keeps its digits; if a block
is too wide for that, they have two words, and the second is what the first was rounded by. Rows are taken as slices,
because an index that might be negative keeps a loop from being vectorised.

A query whose keys are all far is computed again in float64 (`pair_float64.py`); so are all queries if the tolerance
needs it, and all moments.

`_make_sum_blocks` makes the function that `pairs.py` runs. What it is compiled for is a constant of that one closure,
and all else is compiled into it. A closure over plain numbers is cached on disk; one over functions would be compiled
again by every process.
"""

import functools
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numba import njit

from regard.compiled import compiled
from regard.compiled.math import EXACT
from regard.compiled.simd import (
    COUNT,
    Lanes,
    add_to,
    load,
    power_of_two,
    root,
    small_power_of_two,
    splat,
    splat_from,
    store,
    where_below,
)
from regard.engines.kernel_sums.pair_float64 import (
    GAUSSIAN,
    NUMBERS,
    arithmetic,
    bound,
    fill_box,
    from_nearest,
    largest_block,
    nearest_group,
    sum_float64,
    within,
)
from regard.engines.kernel_sums.problem import Case, Data, Floats, Floats32, Integers, Points

_NEAR = -4.5
"""The log weight that some block must reach for float32: if all keys are farther, float32 rounds the exponents."""
_UNROLLED = 8
"""Number of features up to which loops are compiled for exactly that number."""
_FAINT = 3e-6
"""The mean weight of the keys visited below which a sum may be one of far keys only, however large it is."""


NARROW = 9.4
"""How many bandwidths wide a block of queries may be for coordinates of one word: scaled and relative to their
centre, those of a Gaussian are then below 4, where the next float32 is 2.4e-7 away."""
_CLOSE = 11.5
"""Distances in bandwidths up to which a Gaussian is above 2^-100, and needs no lower limit: a seventh faster in one
feature."""
_RUN = 32
"""Keys whose weights are summed in float32 before they are added to sums in float64."""
_LOG2E = 1.4426950408889634
_ZERO, _ONE, _LOG2E32 = np.float32(0), np.float32(1), np.float32(_LOG2E)


class _Frame(NamedTuple):
    """What the coordinates of a block of queries, and of the keys it meets, are relative to."""

    centre: Floats  # [features]
    scale: float
    wide: bool  # whether coordinates need two words


class _Block(NamedTuple):
    """Coordinates and codes as the lanes read them: flat, feature after feature."""

    query: Floats32  # [2 · features · queries], of a multiple of 16 queries: first words, then second words
    key: Floats32  # [2 · features · room]
    query_code: Floats32  # [columns · queries]
    key_code: Floats32  # [columns · room]
    per_step: Floats32  # [columns], in powers of two
    per_change: Floats32
    queries: int
    room: int  # for keys, of which the first are filled


@njit()
def _weight_of(case: Case, close: bool, square: Lanes) -> Lanes:
    """The kernel of a squared distance; of a Gaussian, 2 to this power."""
    if case.kernel == GAUSSIAN:
        return small_power_of_two(square) if close else power_of_two(square)
    if not case.compact:
        exponent = arithmetic(case.kernel, root(square), square)
        return power_of_two(exponent if case.degree else splat(_LOG2E32) * exponent)
    return where_below(square, splat(_ONE), arithmetic(case.kernel, root(square), square), splat(_ZERO))


@njit(fastmath=EXACT, forceinline=True)
def _weight_at(case: Case, features: int, wide: bool, close: bool, block: _Block, i: int, j: int) -> Lanes:
    """The weights of key j for sixteen queries, starting at i.

    wide    the points are far apart: their coordinates have two words, and differences lose nothing
    close   no two of them are so far apart that a Gaussian would leave the range of float32
    """
    square = splat(_ZERO)
    for feature in range(features):
        apart = load(block.query, feature * block.queries + i) - splat_from(block.key, feature * block.room + j)
        if wide:
            rest = features + feature
            rounded = load(block.query, rest * block.queries + i) - splat_from(block.key, rest * block.room + j)
            apart = apart + rounded
        square = square - apart * apart if case.kernel == GAUSSIAN else square + apart * apart
    weight = _weight_of(case, close, square)
    if case.coded:
        penalty = splat(_ZERO)
        for column in range(block.per_change.shape[0]):
            own = load(block.query_code, column * block.queries + i)
            apart = own - splat_from(block.key_code, column * block.room + j)
            apart = root(apart * apart)
            fixed = where_below(splat(_ZERO), apart, splat(block.per_change[column]), splat(_ZERO))
            penalty = penalty + splat(block.per_step[column]) * apart + fixed
        weight = weight * power_of_two(splat(_ZERO) - penalty)
    return weight


@njit(fastmath=EXACT, forceinline=True)
def _add_plain(
    case: Case, features: int, wide: bool, close: bool, block: _Block, value: Floats32, sums: Floats
) -> None:
    """Add keys of weight 1, with one value each, to the sums of a block of queries.

    value   [keys]
    sums    [2, queries]: of the weights, and of the weights times the values
    """
    size = value.shape[0]
    for i in range(0, block.queries, COUNT):
        for start in range(0, size, _RUN):
            total, found = splat(_ZERO), splat(_ZERO)
            for j in range(start, min(start + _RUN, size)):
                weight = _weight_at(case, features, wide, close, block, i, j)
                total = total + weight
                found = found + weight * splat_from(value, j)
            add_to(sums[0], i, total)
            add_to(sums[1], i, found)


@njit(fastmath=EXACT, forceinline=True)
def _add_general(
    case: Case, features: int, block: _Block, column: Floats32, left_out: Integers, tile: Floats32, sums: Floats
) -> None:
    """The same for keys of any weight, any number of values, and queries that must leave a key out.

    column     [1 + values, keys]: weights of the keys, and the values times them
    left_out   [queries]: the index among these keys that the query must not see, or -1
    tile       scratch memory for the weights of a run of keys
    sums       [1 + values, queries]
    """
    size = column.shape[1]
    for i in range(0, block.queries, COUNT):
        for start in range(0, size, _RUN):
            end = min(start + _RUN, size)
            for j in range(start, end):
                store(tile, (j - start) * COUNT, _weight_at(case, features, True, False, block, i, j))
            for lane in range(COUNT):
                if start <= left_out[i + lane] < end:
                    tile[(left_out[i + lane] - start) * COUNT + lane] = 0
            for number in range(column.shape[0]):
                total = splat(_ZERO)
                for j in range(start, end):
                    total = total + load(tile, (j - start) * COUNT) * splat(column[number, j])
                add_to(sums[number], i, total)


@njit(fastmath=EXACT)
def _split_words(points: Floats, here: int, size: int, frame: _Frame, both: bool, words: Floats32) -> None:
    """Coordinates of some points in a frame, in float32; if `both`, followed by what they were rounded by."""
    features = frame.centre.shape[0]
    stride = words.shape[0] // (2 * features) if features else 0
    for feature in range(features):
        some, middle = points[feature][here : here + size], frame.centre[feature]
        first = words[feature * stride : feature * stride + size]
        for j in range(size):
            first[j] = np.float32((some[j] - middle) * frame.scale)
        if both:
            second = words[(features + feature) * stride : (features + feature) * stride + size]
            for j in range(size):
                second[j] = np.float32((some[j] - middle) * frame.scale - first[j])


@njit(fastmath=EXACT)
def _copy_codes(codes: Floats, here: int, size: int, out: Floats32) -> None:
    """Codes in float32."""
    stride = out.shape[0] // codes.shape[0] if codes.shape[0] else 0
    for number in range(codes.shape[0]):
        for j in range(size):
            out[number * stride + j] = codes[number, here + j]


@njit(fastmath=EXACT)
def _find_left_out(left_out: Integers, here: int, size: int, out: Integers) -> bool:
    """Fill in the index in a block of keys that each query must not see; whether there is any."""
    found = False
    for i in range(left_out.shape[0]):
        index = left_out[i] - here
        out[i] = index if 0 <= index < size else -1
        found = found or out[i] >= 0
    return found


@njit(fastmath=EXACT)
def _make_frame(case: Case, box: Floats, features: int) -> _Frame:
    """The frame of a box of queries.

    Coordinates are scaled so that log K, if proportional to a power of u, becomes the logarithm of base 2. A Gaussian
    gets a factor of ½ too: it is 2^-‖query - key‖².
    """
    scale = _LOG2E ** (1 / case.degree) if case.degree else 1.0
    if case.kernel == GAUSSIAN:
        scale *= np.sqrt(0.5)
    centre, width = np.empty(features), 0.0
    for feature in range(features):
        centre[feature] = 0.5 * (box[0, feature] + box[1, feature])
        width = max(width, box[1, feature] - box[0, feature])
    return _Frame(centre, scale, width > NARROW)


@njit(fastmath=EXACT)
def _make_block(data: Data, number: int, frame: _Frame, room: int) -> _Block:
    """A block of queries in float32, with room for the keys of a block."""
    queries, keys = data.queries, data.keys
    begin, count = queries.starts[number], queries.starts[number + 1] - queries.starts[number]
    padded, dimensions, columns = -(-count // COUNT) * COUNT, frame.centre.shape[0], queries.codes.shape[0]
    words, codes = np.zeros(2 * dimensions * padded, np.float32), np.zeros(columns * padded, np.float32)
    _split_words(queries.points, begin, count, frame, True, words)
    _copy_codes(queries.codes, begin, count, codes)
    key_words, key_codes = np.empty(2 * dimensions * room, np.float32), np.empty(columns * room, np.float32)
    per_step, per_change = (keys.per_step * _LOG2E).astype(np.float32), (keys.per_change * _LOG2E).astype(np.float32)
    return _Block(words, key_words, codes, key_codes, per_step, per_change, padded, room)


@njit(fastmath=EXACT, forceinline=True)
def _sum_float32(
    case: Case, data: Data, number: int, box: Floats, nearest: int, room: int
) -> tuple[Floats, int, float]:
    """The sums [1 + values, queries] of a block of queries, the number of keys visited, and the largest log weight.

    box       of the queries
    nearest   the group to begin with
    room      for the keys of a block
    """
    queries, keys, tree, limits = data.queries, data.keys, data.tree, data.limits
    begin, end = queries.starts[number], queries.starts[number + 1]
    dimensions = queries.points.shape[0]
    features = case.features if case.features else dimensions
    frame = _make_frame(case, box, dimensions)
    block = _make_block(data, number, frame, room)
    left_out, tile = np.full(block.queries, -1), np.empty(_RUN * COUNT, np.float32)
    sums = np.zeros((keys.column.shape[0], block.queries))
    visited, closest = 0, -np.inf
    simple = keys.column.shape[0] == 2 and not limits.weighted
    for rank in range(tree.group_starts.shape[0] - 1):
        group = from_nearest(rank, nearest)
        least = np.inf
        for i in range(end - begin):
            least = min(least, limits.skipped * sums[0, i])
        if np.exp(bound(case, box, tree.group_boxes[group], keys)) <= least:
            continue
        for part in range(tree.group_starts[group], tree.group_starts[group + 1]):
            largest = bound(case, box, tree.boxes[part], keys)
            if np.exp(largest) <= least:
                continue
            closest = max(closest, largest)
            here, size = tree.starts[part], tree.starts[part + 1] - tree.starts[part]
            visited += size
            plain = not _find_left_out(queries.left_out[begin:end], here, size, left_out) and simple
            _split_words(keys.points, here, size, frame, frame.wide or not plain, block.key)
            _copy_codes(keys.codes, here, size, block.key_code)
            values = keys.column32[:, here : here + size]
            if not plain:
                _add_general(case, features, block, values, left_out, tile, sums)
            elif frame.wide:
                _add_plain(case, features, True, False, block, values[1], sums)
            elif case.kernel == GAUSSIAN and within(box, tree.boxes[part], dimensions, _CLOSE):
                _add_plain(case, features, False, True, block, values[1], sums)
            else:
                _add_plain(case, features, False, False, block, values[1], sums)
    return sums, visited, closest


def _make_sum_blocks(case: Case, version: int) -> Callable[[int, int, Data, Floats, Floats], None]:
    """The function that sums some blocks of queries over all keys.

    `version` is that of the source: a result on disk that was compiled from another version must not be found.
    """

    @compiled(nogil=True, fastmath=EXACT)
    def sum_blocks(first: int, last: int, data: Data, sums: Floats, shift: Floats) -> None:
        """Fill in the sums [queries, 1 + values], relative to exp(shift [queries]), of some blocks of queries.

        With moments, these follow for each feature: the offset, the offset times each value, and its products with
        the offsets of this and earlier features.
        """
        if version < 0:
            return
        queries, keys, tree, limits = data.queries, data.keys, data.tree, data.limits
        dimensions, columns = queries.points.shape[0], queries.codes.shape[0]
        most = largest_block(tree.starts)
        box, room = np.empty((2, dimensions + columns)), np.empty((2 + dimensions, most))
        for block in range(first, last):
            begin, end = queries.starts[block], queries.starts[block + 1]
            fill_box(queries, block, box)
            nearest = nearest_group(case, box, keys, tree)
            visited, closest = 0, -np.inf
            for i in range(begin, end):
                shift[i], sums[i, 0] = 0, 0
            if not case.moments and limits.float32_from < np.inf:
                found, visited, closest = _sum_float32(case, data, block, box, nearest, most)
                for i in range(begin, end):
                    for number in range(keys.column.shape[0]):
                        sums[i, number] = found[number, i - begin]
            for i in range(begin, end):
                enough = limits.float32_from * visited if case.compact else max(limits.float32_from, _FAINT * visited)
                if not (enough <= sums[i, 0] < np.inf) or visited == 0 or closest < _NEAR:
                    shift[i] = sum_float64(case, data, i, nearest, room, sums[i])

    return sum_blocks  # type: ignore[no-any-return]


def compile_loops(points: Points, moments: bool) -> Callable[[int, int, Data, Floats, Floats], None]:
    """The loops for one kernel and a number of features."""
    features = points.features if points.features <= _UNROLLED and not moments else 0
    profile = points.kernel.profile
    kernel = NUMBERS[points.kernel], profile.compact, profile.degree
    return _compile_case(Case(*kernel, features, points.columns > 0, moments))


@functools.cache
def _compile_case(case: Case) -> Callable[[int, int, Data, Floats, Floats], None]:
    """The loops for one case; compiled once, then cached on disk."""
    return _make_sum_blocks(case, _source_version())


@functools.cache
def _source_version() -> int:
    """A number that changes with the sources of the loops: Numba checks only the file in which a function is."""
    package = Path(__file__).parents[2]
    names = ("kernels.py", "compiled/simd.py", "compiled/math.py")
    sources = [package / name for name in names] + sorted(Path(__file__).parent.glob("*.py"))
    return zlib.crc32(b"".join(source.read_bytes() for source in sources))
