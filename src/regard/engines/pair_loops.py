"""The loops of the `pairs` engine, in Numba: kernels of distances, fused, by blocks of near points.

Keys lie in blocks of neighbours, and those in groups; each has its bounding box. For a block of queries,
what the kernel is at a box's least distance bounds the weight of all that is in it, and what cannot
matter is passed over: nearest first, until

    K(least distance) · (weight of all keys) ≤ tolerance · (weight found so far)

which keeps the sum of all that is left out below the tolerance, in whatever order it is met.

Most pairs are done in float32, in coordinates about the queries' own centre, where a distance of a few
bandwidths keeps its digits. A query whose keys are all far is done in float64 and relative to the nearest,
where nothing underflows; so are all of them where the tolerance asks for it, and all moments.

The kernel, the number of features and the like are constants of the one closure, `make_pool`, and all else is
compiled into it, so that the compiler unrolls and prunes. A closure over plain numbers is kept on disk; one over
functions would be compiled anew by every process. Rows are cut out as slices, because an index that might be
negative keeps a loop from being vectorised.
"""

from typing import Any

import numpy as np
from numba import njit

from regard.engines.compiling import compiled
from regard.engines.lanes import COUNT, add_to, load, power_of_two, root, splat, splat_from, store, where_below
from regard.engines.loops import EXACT, SUM, exponential
from regard.engines.points import BOXCAR, EPANECHNIKOV, GAUSSIAN, LAPLACE

NARROW = 8.0
"""How many bandwidths wide a block of queries may be for coordinates of one word."""
NEAR = -4.5
"""The log weight that some block must reach for float32: of keys that are all farther, it rounds the exponents."""
FAINT = 3e-6
"""The mean weight of the keys met below which the sum may be one of far keys only, however large."""
UNROLLED = 8
"""Features up to which loops are compiled for their very number."""
RUN = 32
"""Keys whose weights are summed in float32 before they are added to sums in float64."""
LOG2E = 1.4426950408889634
ZERO, ONE = np.float32(0), np.float32(1)


def unit(kind: int) -> float:
    """What coordinates are multiplied by, so that the kernel is a power of two of their square or root."""
    return {GAUSSIAN: float(np.sqrt(0.5 * LOG2E)), LAPLACE: LOG2E}.get(kind, 1.0)


@njit
def weight_of(kind: Any, square: Any) -> Any:
    """The kernel of a squared distance, of minus that for a Gaussian; `kind` is constant once this is compiled in."""
    if kind == GAUSSIAN:
        return power_of_two(square)
    if kind == LAPLACE:
        return power_of_two(splat(ZERO) - root(square))
    if kind == BOXCAR:
        return where_below(square, splat(ONE), splat(ONE), splat(ZERO))
    rest = splat(ONE) - (square if kind == EPANECHNIKOV else square * root(square))
    rest = where_below(square, splat(ONE), rest, splat(ZERO))
    return rest if kind == EPANECHNIKOV else rest * rest * rest


@njit(fastmath=EXACT)
def log_weight64(kind: Any, square: Any) -> Any:
    """The logarithm of the kernel."""
    if kind == GAUSSIAN:
        return -0.5 * square
    if kind == LAPLACE:
        return -np.sqrt(square)
    if square >= 1:
        return -np.inf
    if kind == EPANECHNIKOV:
        return np.log1p(-square)
    if kind == BOXCAR:
        return 0.0
    return 3 * np.log1p(-square * np.sqrt(square))


@njit(fastmath=EXACT)
def compact_weight(kind: Any, square: Any) -> Any:
    """A kernel that ends; none underflows, so that no logarithm is needed."""
    if square >= 1:
        return 0.0
    if kind == EPANECHNIKOV:
        return 1 - square
    if kind == BOXCAR:
        return 1.0
    rest = 1 - square * np.sqrt(square)
    return rest * rest * rest


@njit
def bound(kind: Any, box: Any, other: Any, slope: Any, jump: Any) -> Any:
    """The largest log weight that a point in one box can have for one in the other; keys weigh 1 at most.

    A box is [2, features + columns]: low and high corner, first of the coordinates, then of the codes.
    """
    square, penalty = 0.0, 0.0
    features = box.shape[1] - jump.shape[0]
    for feature in range(features):
        apart = max(0.0, max(box[0, feature] - other[1, feature], other[0, feature] - box[1, feature]))
        square += apart * apart
    for column in range(jump.shape[0]):
        place = features + column
        apart = max(0.0, max(box[0, place] - other[1, place], other[0, place] - box[1, place]))
        penalty += slope[column] * apart + (jump[column] if apart > 0 else 0.0)
    return log_weight64(kind, square * (1 - 1e-14)) - penalty  # rounding must not hide a key at the edge


@njit(fastmath=EXACT)
def from_nearest(place: Any, nearest: Any) -> Any:
    """The group at a place in the order: the nearest first, whose weight says what can be passed over."""
    if place == 0:
        return nearest
    return place - 1 if place <= nearest else place


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


@njit(fastmath=EXACT, forceinline=True)
def weight_at(
    kind: Any,
    features: Any,
    coded: Any,
    wide: Any,
    query: Any,
    queries: Any,
    key: Any,
    keys: Any,
    codes: Any,
    i: Any,
    j: Any,
) -> Any:
    """The weights of one key for sixteen queries, from i on."""
    square = splat(ZERO)
    for feature in range(features):
        apart = load(query, feature * queries + i) - splat_from(key, feature * keys + j)
        if wide:
            rest = features + feature
            apart = apart + (load(query, rest * queries + i) - splat_from(key, rest * keys + j))
        square = square - apart * apart if kind == GAUSSIAN else square + apart * apart
    weight = weight_of(kind, square)
    if coded:
        query_code, key_code, slope, jump = codes
        penalty = splat(ZERO)
        for column in range(jump.shape[0]):
            apart = load(query_code, column * queries + i) - splat_from(key_code, column * keys + j)
            apart = root(apart * apart)
            fixed = where_below(splat(ZERO), apart, splat(jump[column]), splat(ZERO))
            penalty = penalty + splat(slope[column]) * apart + fixed
        weight = weight * power_of_two(splat(ZERO) - penalty)
    return weight


@njit(fastmath=EXACT, forceinline=True)
def add_plain(
    kind: Any, features: Any, coded: Any, wide: Any, query: Any, key: Any, keys: Any, codes: Any, value: Any, sums: Any
) -> None:
    """Add some keys to the sums of a block of queries, in float32: keys of weight 1, with one value each.

    wide         the points lie wide apart: their coordinates are of two words, and differences lose nothing
    query, key   coordinates of these, [2 · features · queries], a multiple of 16, and [2 · features · keys]
    keys         the room for keys, of which these are the first
    codes        of the queries [columns · queries] and of the keys, and slope and jump, in powers of two
    value        [keys]
    sums         [2, queries]: of the weights, and of the weights times the values
    """
    size, queries = value.shape[0], sums.shape[1]
    for i in range(0, queries, COUNT):
        for start in range(0, size, RUN):
            total, found = splat(ZERO), splat(ZERO)
            for j in range(start, min(start + RUN, size)):
                weight = weight_at(kind, features, coded, wide, query, queries, key, keys, codes, i, j)
                total = total + weight
                found = found + weight * splat_from(value, j)
            add_to(sums[0], i, total)
            add_to(sums[1], i, found)


@njit(fastmath=EXACT, forceinline=True)
def add_any(
    kind: Any,
    features: Any,
    coded: Any,
    query: Any,
    key: Any,
    keys: Any,
    codes: Any,
    column: Any,
    skip: Any,
    tile: Any,
    sums: Any,
) -> None:
    """The same for keys of any weight, any number of values, and queries that must leave a key out.

    column   [1 + values, keys]: weights of the keys, and the values times them
    skip     [queries]: a key's place among these that the query must not see, or -1
    tile     scratch for the weights of a run of keys
    sums     [1 + values, queries]
    """
    size, queries = column.shape[1], sums.shape[1]
    for i in range(0, queries, COUNT):
        for start in range(0, size, RUN):
            end = min(start + RUN, size)
            for j in range(start, end):
                weight = weight_at(kind, features, coded, True, query, queries, key, keys, codes, i, j)
                store(tile, (j - start) * COUNT, weight)
            for place in range(COUNT):
                if start <= skip[i + place] < end:
                    tile[(skip[i + place] - start) * COUNT + place] = 0
            for number in range(column.shape[0]):
                total = splat(ZERO)
                for j in range(start, end):
                    total = total + load(tile, (j - start) * COUNT) * splat(column[number, j])
                add_to(sums[number], i, total)


@njit(fastmath=EXACT)
def penalties(code: Any, others: Any, here: Any, size: Any, slope: Any, jump: Any, penalty: Any) -> None:
    """What differing codes take off the log weights of some keys."""
    for j in range(size):
        penalty[j] = 0
    for column in range(jump.shape[0]):
        some, own = others[column][here : here + size], code[column]
        for j in range(size):
            apart = abs(own - some[j])
            penalty[j] += slope[column] * apart + (jump[column] if apart > 0 else 0.0)


@njit(forceinline=True)
def log_weights(
    kind: Any, coded: Any, moments: Any, point: Any, code: Any, own: Any, known: Any, here: Any, size: Any, room: Any
) -> None:
    """Into room[0], or the weights themselves of a compact kernel; and the offsets of the keys into room[2:]."""
    keys, codes, slope, jump, log_mass = known
    compact = kind >= EPANECHNIKOV and not coded
    weight, penalty, mass = room[0], room[1], log_mass[here : here + size]
    for j in range(size):
        weight[j] = 0
    for feature in range(point.shape[0]):
        others, coordinate, offset = keys[feature][here : here + size], point[feature], room[2 + feature]
        for j in range(size):
            apart = others[j] - coordinate
            penalty[j] = apart * apart
            if moments:
                offset[j] = apart
        # Added in a loop of its own, so that product and sum are not fused, as NumPy does not: at the very edge of
        # a kernel that jumps, the last bit decides.
        for j in range(size):
            weight[j] += penalty[j]
    if compact:
        for j in range(size):
            weight[j] = compact_weight(kind, weight[j]) * exponential(mass[j])
    else:
        for j in range(size):
            weight[j] = log_weight64(kind, weight[j]) + mass[j]
    if coded:
        penalties(code, codes, here, size, slope, jump, penalty)
        for j in range(size):
            weight[j] -= penalty[j]
    if 0 <= own - here < size:
        weight[own - here] = 0 if compact else -np.inf


@njit(fastmath=SUM, forceinline=True)
def add(moments: Any, weight: Any, column: Any, room: Any, here: Any, size: Any, features: Any, sums: Any) -> None:
    """Add some keys' weights, and their products with values and offsets, to the sums."""
    place = 0
    for number in range(column.shape[0]):
        some, total = column[number][here : here + size], 0.0
        for j in range(size):
            total += weight[j] * some[j]
        sums[place] += total
        place += 1
    if not moments:
        return
    product = room[1]
    for feature in range(features):
        offset = room[2 + feature]
        for j in range(size):
            product[j] = weight[j] * offset[j]
        for number in range(column.shape[0]):
            some, total = column[number][here : here + size], 0.0
            for j in range(size):
                total += product[j] * some[j]
            sums[place] += total
            place += 1
        for other in range(feature + 1):
            some, total = room[2 + other], 0.0
            for j in range(size):
                total += product[j] * some[j]
            sums[place] += total
            place += 1


@njit(fastmath=EXACT, forceinline=True)
def careful(
    kind: Any,
    coded: Any,
    moments: Any,
    point: Any,
    code: Any,
    own: Any,
    known: Any,
    tree: Any,
    column: Any,
    nearest: Any,
    room: Any,
    allowed: Any,
    sums: Any,
) -> Any:
    """One query in float64: fill its sums, relative to exp(what is returned), the log weight of the nearest key.

    A kernel that ends underflows nowhere, and needs no such care.
    """
    _, _, slope, jump, _ = known
    compact = kind >= EPANECHNIKOV and not coded
    starts, boxes, group_starts, group_boxes = tree
    groups = group_starts.shape[0] - 1
    box = np.empty((2, boxes.shape[2]))
    for corner in range(2):
        for feature in range(point.shape[0]):
            box[corner, feature] = point[feature]
        for column_of_code in range(code.shape[0]):
            box[corner, point.shape[0] + column_of_code] = code[column_of_code]
    weight = room[0]
    highest = 0.0 if compact else -np.inf
    if not compact:
        for place in range(groups):
            group = from_nearest(place, nearest)
            if bound(kind, box, group_boxes[group], slope, jump) <= highest:
                continue
            for block in range(group_starts[group], group_starts[group + 1]):
                if bound(kind, box, boxes[block], slope, jump) <= highest:
                    continue
                here, size = starts[block], starts[block + 1] - starts[block]
                log_weights(kind, coded, moments, point, code, own, known, here, size, room)
                for j in range(size):
                    highest = max(highest, weight[j])
    for number in range(sums.shape[0]):
        sums[number] = 0
    if highest == -np.inf:
        return highest
    for place in range(groups):
        group = from_nearest(place, nearest)
        if np.exp(bound(kind, box, group_boxes[group], slope, jump) - highest) <= allowed * sums[0]:
            continue
        for block in range(group_starts[group], group_starts[group + 1]):
            if np.exp(bound(kind, box, boxes[block], slope, jump) - highest) <= allowed * sums[0]:
                continue
            here, size = starts[block], starts[block + 1] - starts[block]
            log_weights(kind, coded, moments, point, code, own, known, here, size, room)
            if not compact:
                for j in range(size):
                    weight[j] = exponential(min(0.0, weight[j] - highest))
            add(moments, weight, column, room, here, size, point.shape[0], sums)
    return highest


def make_pool(kind: int, features: int, coded: bool, moments: bool, version: int) -> Any:
    """The sums of some blocks of queries over all keys, for one kernel and a number of features (0: any).

    `version` is that of the source: what is on disk of another one must not be found.
    """
    scale = unit(kind)

    @compiled(nogil=True, fastmath=EXACT)
    def pool(
        first: Any,
        last: Any,
        asked: Any,
        known: Any,
        tree: Any,
        column: Any,
        single: Any,
        trusted: Any,
        allowed: Any,
        weighted: Any,
        sums: Any,
        shift: Any,
    ) -> None:
        """Fill in the sums [queries, 1 + values], relative to exp(shift [queries]), of some blocks of queries.

        With moments, behind them for each feature: of the offset, of the offset times each value, and of
        its products with those of this and earlier features.

        asked    queries [features, points] in bandwidths, their codes [columns, points], where their blocks
                 start and the last one ends, and the key that each must not see, or -1
        known    keys [features, points], their codes, slope and jump of each column, the logs of their weights
        tree     where blocks of keys start, their boxes, where groups of blocks start, their boxes
        column   [1 + values, keys]: ones, and the values
        single   the same in float32, times the weights of the keys
        trusted  the summed weight from which float32 is good enough; for a kernel that ends, of each key met
        allowed  a block is passed over when its largest weight is at most this share of what was found
        weighted whether the keys differ in weight
        """
        queries, query_codes, query_starts, own = asked
        if version < 0:
            return
        keys, key_codes, slope, jump, _ = known
        starts, boxes, group_starts, group_boxes = tree
        groups = group_starts.shape[0] - 1
        dimensions, columns = queries.shape[0], query_codes.shape[0]
        size_of = features if features else dimensions
        widest = 0
        for block in range(starts.shape[0] - 1):
            widest = max(widest, starts[block + 1] - starts[block])
        local, tile = np.empty((2 * dimensions, widest), np.float32), np.empty(RUN * COUNT, np.float32)
        room = np.empty((2 + dimensions, widest))
        box = np.empty((2, dimensions + columns))
        slope32, jump32 = np.empty(columns, np.float32), np.empty(columns, np.float32)
        for number in range(columns):
            slope32[number], jump32[number] = slope[number] * LOG2E, jump[number] * LOG2E
        local_codes = np.empty((columns, widest), np.float32)
        flat_local, flat_local_codes = local.reshape(-1), local_codes.reshape(-1)
        for query_block in range(first, last):
            begin, end = query_starts[query_block], query_starts[query_block + 1]
            count = end - begin
            for number in range(dimensions + columns):
                box[0, number], box[1, number] = np.inf, -np.inf
                some = queries[number] if number < dimensions else query_codes[number - dimensions]
                for i in range(begin, end):
                    box[0, number], box[1, number] = min(box[0, number], some[i]), max(box[1, number], some[i])
            nearest, highest = 0, -np.inf
            for group in range(groups):
                reach = bound(kind, box, group_boxes[group], slope, jump)
                if reach > highest:
                    nearest, highest = group, reach
            for i in range(begin, end):
                shift[i] = 0
                sums[i, 0] = 0
            met, closest = 0, -np.inf
            if not moments and trusted < np.inf:
                width = 0.0
                centre = np.empty(dimensions)
                for feature in range(dimensions):
                    centre[feature] = 0.5 * (box[0, feature] + box[1, feature])
                    width = max(width, box[1, feature] - box[0, feature])
                padded = -(-count // COUNT) * COUNT
                words, skip = np.zeros((2 * dimensions, padded), np.float32), np.empty(padded, np.int64)
                two_words(queries, begin, count, centre, scale, words, True)
                codes = np.zeros((columns, padded), np.float32)
                for number in range(columns):
                    for i in range(count):
                        codes[number, i] = query_codes[number, begin + i]
                for i in range(padded):
                    skip[i] = -1
                flat, flat_codes = words.reshape(-1), codes.reshape(-1)
                found = np.zeros((column.shape[0], padded))
                for place in range(groups):
                    group = from_nearest(place, nearest)
                    least = np.inf
                    for i in range(count):
                        least = min(least, allowed * found[0, i])
                    if np.exp(bound(kind, box, group_boxes[group], slope, jump)) <= least:
                        continue
                    for block in range(group_starts[group], group_starts[group + 1]):
                        reach = bound(kind, box, boxes[block], slope, jump)
                        if np.exp(reach) <= least:
                            continue
                        closest = max(closest, reach)
                        here, size = starts[block], starts[block + 1] - starts[block]
                        met += size
                        plain = column.shape[0] == 2 and not weighted
                        for i in range(count):
                            seat = own[begin + i] - here
                            skip[i] = seat if 0 <= seat < size else -1
                            plain = plain and skip[i] < 0
                        two_words(keys, here, size, centre, scale, local, width > NARROW or not plain)
                        for number in range(columns):
                            for j in range(size):
                                local_codes[number, j] = key_codes[number, here + j]
                        both_codes = (flat_codes, flat_local_codes, slope32, jump32)
                        values = single[:, here : here + size]
                        if not plain:
                            add_any(
                                kind, size_of, coded, flat, flat_local, widest, both_codes, values, skip, tile, found
                            )
                        elif width <= NARROW:
                            add_plain(
                                kind, size_of, coded, False, flat, flat_local, widest, both_codes, values[1], found
                            )
                        else:
                            add_plain(
                                kind, size_of, coded, True, flat, flat_local, widest, both_codes, values[1], found
                            )
                for i in range(count):
                    for number in range(column.shape[0]):
                        sums[begin + i, number] = found[number, i]
            for i in range(begin, end):
                enough = trusted * met if kind >= EPANECHNIKOV else max(trusted, FAINT * met)
                if not (enough <= sums[i, 0] < np.inf) or met == 0 or closest < NEAR:
                    point, code = queries[:, i].copy(), query_codes[:, i].copy()
                    shift[i] = careful(
                        kind, coded, moments, point, code, own[i], known, tree, column, nearest, room, allowed, sums[i]
                    )

    return pool
