"""The loop of `one_query.py`, in Numba: a C function that takes heads as long as there are any left.

It is called on several threads at once with the same numbers: addresses and sizes, and behind them how many heads have
been taken, which each thread counts on in one indivisible step.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.extending import intrinsic

from regard.compiled.cache import compiled, compiled_for_c
from regard.compiled.simd import COUNT as LANES
from regard.compiled.simd import load, splat, splat_from, store, total
from regard.engines.fused_loops import SUM, exponential

TWO = 2 * LANES
ZERO, ONE = np.float32(0), np.float32(1)

QUERY, STORE, OUT, ROWS, HEADS, STEP, KV_HEADS, ROOM, COUNT, SIZE, TAKEN = range(11)
"""What the numbers are. STEP: how many floats a row of queries is from the next."""


@intrinsic
def floats(typing: Any, address: Any) -> Any:
    """The float32 numbers at an address."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], ir.FloatType().as_pointer())

    return types.CPointer(types.float32)(types.int64), code


@intrinsic
def next_of(typing: Any, numbers: Any, place: Any) -> Any:
    """One of the int64 numbers at an address as it was, and it is one more: no two threads are given the same."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        one = ir.Constant(ir.IntType(64), 1)
        return builder.atomic_rmw("add", builder.gep(arguments[0], [arguments[1]]), one, "monotonic")

    return types.int64(types.CPointer(types.int64), types.int64), code


@compiled(nogil=True, fastmath=SUM, error_model="numpy")
def attend(query: Any, key: Any, value: Any, count: int, weight: Any, out: Any) -> None:
    """out [size] = Σᵢ softmaxᵢ(query · key_i / √size) value_i over the first `count` rows of key and value.

    key, value   [room · size], a row behind the other; size is a multiple of `TWO`
    weight       [count or more], scratch
    """
    size = query.shape[0]
    scale, highest = ONE / np.sqrt(np.float32(size)), np.float32(-np.inf)
    for i in range(count):
        a, b = splat(ZERO), splat(ZERO)
        for j in range(0, size, TWO):
            a = a + load(query, j) * load(key, i * size + j)
            b = b + load(query, j + LANES) * load(key, i * size + j + LANES)
        weight[i] = total(a + b) * scale
        highest = max(highest, weight[i])
    whole = ZERO
    for i in range(count):
        weight[i] = exponential(weight[i] - highest)
        whole += weight[i]
    share, fours = splat(ONE / whole), count // 4 * 4
    for j in range(0, size, TWO):
        a, b, c, d = splat(ZERO), splat(ZERO), splat(ZERO), splat(ZERO)
        e, f, g, h = splat(ZERO), splat(ZERO), splat(ZERO), splat(ZERO)
        for i in range(0, fours, 4):  # eight sums that do not wait for each other
            w, here = splat_from(weight, i), i * size + j
            a, e = a + w * load(value, here), e + w * load(value, here + LANES)
            w, here = splat_from(weight, i + 1), here + size
            b, f = b + w * load(value, here), f + w * load(value, here + LANES)
            w, here = splat_from(weight, i + 2), here + size
            c, g = c + w * load(value, here), g + w * load(value, here + LANES)
            w, here = splat_from(weight, i + 3), here + size
            d, h = d + w * load(value, here), h + w * load(value, here + LANES)
        for i in range(fours, count):
            w, here = splat_from(weight, i), i * size + j
            a, e = a + w * load(value, here), e + w * load(value, here + LANES)
        store(out, j, (a + b + c + d) * share)
        store(out, j + LANES, (e + f + g + h) * share)


@compiled_for_c(types.void(types.CPointer(types.int64)))
def attend_all(numbers: Any) -> None:
    """`attend` for each row and head of queries [rows, heads, size] and a store [rows, 2, kv_heads, room, size]."""
    given = carray(numbers, (TAKEN,))
    rows, heads, step, kv_heads = given[ROWS], given[HEADS], given[STEP], given[KV_HEADS]
    room, count, size = given[ROOM], given[COUNT], given[SIZE]
    query, out = carray(floats(given[QUERY]), (rows, step)), carray(floats(given[OUT]), (rows, heads, size))
    kept = carray(floats(given[STORE]), (rows, 2, kv_heads, room * size))
    weight = np.empty(count, np.float32)
    while True:
        taken = next_of(numbers, TAKEN)
        if taken >= rows * heads:
            break
        row, head = taken // heads, taken % heads
        asked, there = query[row, head * size : (head + 1) * size], head * kv_heads // heads
        attend(asked, kept[row, 0, there], kept[row, 1, there], count, weight, out[row, head])
