"""The quick part of the `pairs` loops: a block of queries in float32, sixteen at once.

Coordinates are about the queries' own centre, where a distance of a few bandwidths keeps its digits; where a block
is too wide for that, they are of two words, the second what the first was rounded by. Rows are cut out as slices,
because an index that might be negative keeps a loop from being vectorised.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from regard.compiled.simd import (
    COUNT,
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
from regard.engines.fused_loops import EXACT
from regard.engines.kernel_sums.pair_bounds import bound, from_nearest, within
from regard.engines.kernel_sums.problem import BOXCAR, EPANECHNIKOV, GAUSSIAN, LAPLACE

NARROW = 9.4
"""How many bandwidths wide a block of queries may be for coordinates of one word: scaled and about their centre,
those of a Gaussian are then below 4, where the next float32 is 2.4e-7 away."""
CLOSE = 11.5
"""Distances in bandwidths up to which a Gaussian is above 2^-100."""
RUN = 32
"""Keys whose weights are summed in float32 before they are added to sums in float64."""
LOG2E = 1.4426950408889634
ZERO, ONE = np.float32(0), np.float32(1)


class Lined(NamedTuple):
    """Coordinates and codes as the lanes read them: flat, feature after feature."""

    query: Any  # [2 · features · queries], a multiple of 16 queries, twice scaled so that the kernel is a power of two
    key: Any  # [2 · features · room]
    query_code: Any  # [columns · queries]
    key_code: Any  # [columns · room]
    slope: Any  # [columns], in powers of two
    jump: Any
    queries: int
    room: int  # for keys, of which the first are filled


def unit(kind: int) -> float:
    """What coordinates are multiplied by, so that the kernel is a power of two of their square or root."""
    return {GAUSSIAN: float(np.sqrt(0.5 * LOG2E)), LAPLACE: LOG2E}.get(kind, 1.0)


@njit
def weight_of(kind: Any, close: Any, square: Any) -> Any:
    """The kernel of a squared distance, of minus that for a Gaussian; `kind` is constant once this is compiled in."""
    if kind == GAUSSIAN:
        return small_power_of_two(square) if close else power_of_two(square)
    if kind == LAPLACE:
        return power_of_two(splat(ZERO) - root(square))
    if kind == BOXCAR:
        return where_below(square, splat(ONE), splat(ONE), splat(ZERO))
    rest = splat(ONE) - (square if kind == EPANECHNIKOV else square * root(square))
    rest = where_below(square, splat(ONE), rest, splat(ZERO))
    return rest if kind == EPANECHNIKOV else rest * rest * rest


@njit(fastmath=EXACT, forceinline=True)
def weight_at(kind: Any, features: Any, coded: Any, wide: Any, close: Any, lined: Any, i: Any, j: Any) -> Any:
    """The weights of one key for sixteen queries, from i on.

    wide    the points lie wide apart: their coordinates are of two words, and differences lose nothing
    close   no two of them are so far apart that a Gaussian would leave the range of float32
    """
    square = splat(ZERO)
    for feature in range(features):
        apart = load(lined.query, feature * lined.queries + i) - splat_from(lined.key, feature * lined.room + j)
        if wide:
            rest = features + feature
            rounded = load(lined.query, rest * lined.queries + i) - splat_from(lined.key, rest * lined.room + j)
            apart = apart + rounded
        square = square - apart * apart if kind == GAUSSIAN else square + apart * apart
    weight = weight_of(kind, close, square)
    if coded:
        penalty = splat(ZERO)
        for column in range(lined.jump.shape[0]):
            own = load(lined.query_code, column * lined.queries + i)
            apart = own - splat_from(lined.key_code, column * lined.room + j)
            apart = root(apart * apart)
            fixed = where_below(splat(ZERO), apart, splat(lined.jump[column]), splat(ZERO))
            penalty = penalty + splat(lined.slope[column]) * apart + fixed
        weight = weight * power_of_two(splat(ZERO) - penalty)
    return weight


@njit(fastmath=EXACT, forceinline=True)
def add_plain(kind: Any, features: Any, coded: Any, wide: Any, close: Any, lined: Any, value: Any, sums: Any) -> None:
    """Add keys of weight 1, with one value each, to the sums of a block of queries.

    value   [keys]
    sums    [2, queries]: of the weights, and of the weights times the values
    """
    size = value.shape[0]
    for i in range(0, lined.queries, COUNT):
        for start in range(0, size, RUN):
            total, found = splat(ZERO), splat(ZERO)
            for j in range(start, min(start + RUN, size)):
                weight = weight_at(kind, features, coded, wide, close, lined, i, j)
                total = total + weight
                found = found + weight * splat_from(value, j)
            add_to(sums[0], i, total)
            add_to(sums[1], i, found)


@njit(fastmath=EXACT, forceinline=True)
def add_any(kind: Any, features: Any, coded: Any, lined: Any, column: Any, skip: Any, tile: Any, sums: Any) -> None:
    """The same for keys of any weight, any number of values, and queries that must leave a key out.

    column   [1 + values, keys]: weights of the keys, and the values times them
    skip     [queries]: a key's place among these that the query must not see, or -1
    tile     scratch for the weights of a run of keys
    sums     [1 + values, queries]
    """
    size = column.shape[1]
    for i in range(0, lined.queries, COUNT):
        for start in range(0, size, RUN):
            end = min(start + RUN, size)
            for j in range(start, end):
                store(tile, (j - start) * COUNT, weight_at(kind, features, coded, True, False, lined, i, j))
            for place in range(COUNT):
                if start <= skip[i + place] < end:
                    tile[(skip[i + place] - start) * COUNT + place] = 0
            for number in range(column.shape[0]):
                total = splat(ZERO)
                for j in range(start, end):
                    total = total + load(tile, (j - start) * COUNT) * splat(column[number, j])
                add_to(sums[number], i, total)


@njit(fastmath=EXACT)
def two_words(points: Any, here: Any, size: Any, centre: Any, scale: Any, words: Any, both: Any) -> None:
    """Coordinates about a centre, scaled, in float32, and behind them, if asked for, what they were rounded by."""
    features = centre.shape[0]
    for feature in range(features):
        some, middle = points[feature][here : here + size], centre[feature]
        first, second = words[feature], words[features + feature]
        for j in range(size):
            first[j] = np.float32((some[j] - middle) * scale)
        if both:
            for j in range(size):
                second[j] = np.float32((some[j] - middle) * scale - first[j])


@njit(fastmath=EXACT)
def narrowed(codes: Any, here: Any, size: Any, out: Any) -> None:
    """Codes in float32."""
    for number in range(codes.shape[0]):
        for j in range(size):
            out[number, j] = codes[number, here + j]


@njit(fastmath=EXACT)
def in_powers(penalty: Any) -> Any:
    """What is taken off a log weight, in float32 and in powers of two."""
    scaled = np.empty(penalty.shape[0], np.float32)
    for number in range(penalty.shape[0]):
        scaled[number] = penalty[number] * LOG2E
    return scaled


@njit(fastmath=EXACT)
def left_out(own: Any, here: Any, size: Any, skip: Any) -> Any:
    """Fill in the places, in a block of keys, of what each query must not see; whether there is any."""
    found = False
    for i in range(own.shape[0]):
        seat = own[i] - here
        skip[i] = seat if 0 <= seat < size else -1
        found = found or skip[i] >= 0
    return found


@njit(fastmath=EXACT, forceinline=True)
def quick(
    kind: Any,
    features: Any,
    coded: Any,
    scale: Any,
    block: Any,
    box: Any,
    asked: Any,
    known: Any,
    tree: Any,
    limits: Any,
    nearest: Any,
    room: Any,
) -> Any:
    """The sums [1 + values, queries, rounded up] of a block of queries, how many keys were met, and how near one was.

    features   how many, a constant where the loops are unrolled
    scale      `unit` of the kernel
    box        of the queries
    nearest    the group to begin with
    room       for the keys of a block
    """
    begin, end = asked.starts[block], asked.starts[block + 1]
    count, dimensions, columns = end - begin, asked.points.shape[0], asked.codes.shape[0]
    padded = -(-count // COUNT) * COUNT
    centre, width = np.empty(dimensions), 0.0
    for feature in range(dimensions):
        centre[feature] = 0.5 * (box[0, feature] + box[1, feature])
        width = max(width, box[1, feature] - box[0, feature])
    words, codes = np.zeros((2 * dimensions, padded), np.float32), np.zeros((columns, padded), np.float32)
    two_words(asked.points, begin, count, centre, scale, words, True)
    narrowed(asked.codes, begin, count, codes)
    local, local_codes = np.empty((2 * dimensions, room), np.float32), np.empty((columns, room), np.float32)
    lined = Lined(
        words.reshape(-1), local.reshape(-1), codes.reshape(-1), local_codes.reshape(-1),
        in_powers(known.slope), in_powers(known.jump), padded, room,
    )  # fmt: skip
    skip, tile = np.full(padded, -1), np.empty(RUN * COUNT, np.float32)
    sums = np.zeros((known.column.shape[0], padded))
    met, closest = 0, -np.inf
    simple, wide = known.column.shape[0] == 2 and not limits.weighted, width > NARROW
    for place in range(tree.group_starts.shape[0] - 1):
        group = from_nearest(place, nearest)
        least = np.inf
        for i in range(count):
            least = min(least, limits.allowed * sums[0, i])
        if np.exp(bound(kind, box, tree.group_boxes[group], known.slope, known.jump)) <= least:
            continue
        for part in range(tree.group_starts[group], tree.group_starts[group + 1]):
            reach = bound(kind, box, tree.boxes[part], known.slope, known.jump)
            if np.exp(reach) <= least:
                continue
            closest = max(closest, reach)
            here, size = tree.starts[part], tree.starts[part + 1] - tree.starts[part]
            met += size
            leaves_out = limits.leaves_out and left_out(asked.own[begin:end], here, size, skip)
            plain = simple and not leaves_out
            two_words(known.points, here, size, centre, scale, local, wide or not plain)
            narrowed(known.codes, here, size, local_codes)
            values = known.single[:, here : here + size]
            if not plain:
                add_any(kind, features, coded, lined, values, skip, tile, sums)
            elif wide:
                add_plain(kind, features, coded, True, False, lined, values[1], sums)
            elif kind == GAUSSIAN and within(box, tree.boxes[part], dimensions, CLOSE):
                add_plain(kind, features, coded, False, True, lined, values[1], sums)
            else:
                add_plain(kind, features, coded, False, False, lined, values[1], sums)
    return sums, met, closest
