"""Sixteen float32 numbers at once, for loops in Numba that the compiler does not vectorise well by itself.

`Lanes` is a vector of LLVM's: one register of AVX-512, two of AVX2. `load` and `store` them, fill them with
one number by `splat` or `splat_from`, use + - * between them, and `power_of_two`, `root`, `where_below`;
`add_to` adds them to float64 sums. A sum kept in lanes needs no reduction at the end of a loop, which for short
loops is most of what the compiler's own vectors cost.
"""

import operator
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic, models, overload, register_model

COUNT = 16
FLOATS, INTEGERS = ir.VectorType(ir.FloatType(), COUNT), ir.VectorType(ir.IntType(32), COUNT)
DOUBLES = ir.VectorType(ir.DoubleType(), COUNT)


class Lanes(types.Type):
    """The type of sixteen float32 numbers in compiled code."""

    def __init__(self) -> None:
        super().__init__(name="Lanes")


lanes = Lanes()


@register_model(Lanes)
class LanesModel(models.PrimitiveModel):
    """How Numba keeps them: as the vector itself."""

    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, FLOATS)


def repeated(builder: Any, number: Any, vector: Any) -> Any:
    """One LLVM number in every lane."""
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), number, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(
        first, ir.Constant(vector, ir.Undefined), ir.Constant(ir.VectorType(ir.IntType(32), COUNT), [0] * COUNT)
    )


def element(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> Any:
    """The address of an element of a contiguous array."""
    made = context.make_array(array_type)(context, builder, array)
    return cgutils.get_item_pointer(context, builder, array_type, made, [index], wraparound=False)


@intrinsic
def load(typing: Any, array: Any, index: Any) -> Any:
    """Sixteen numbers of a contiguous float32 array, from an index on."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = element(context, builder, signature.args[0], arguments[0], arguments[1])
        return builder.load(builder.bitcast(address, FLOATS.as_pointer()), align=4, typ=FLOATS)

    return lanes(array, types.intp), code


@intrinsic
def store(typing: Any, array: Any, index: Any, some: Any) -> Any:
    """Put the lanes into a contiguous float32 array, from an index on."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = element(context, builder, signature.args[0], arguments[0], arguments[1])
        builder.store(arguments[2], builder.bitcast(address, FLOATS.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.none(array, types.intp, lanes), code


@intrinsic
def splat(typing: Any, number: Any) -> Any:
    """One float32 in every lane."""
    return lanes(types.float32), lambda _, builder, __, arguments: repeated(builder, arguments[0], FLOATS)


@intrinsic
def splat_from(typing: Any, array: Any, index: Any) -> Any:
    """One number of a contiguous float32 array in every lane: read as it is spread, without a check of the index."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = element(context, builder, signature.args[0], arguments[0], arguments[1])
        return repeated(builder, builder.load(address, typ=ir.FloatType()), FLOATS)

    return lanes(array, types.intp), code


@intrinsic
def total(typing: Any, some: Any) -> Any:
    """The sum of the lanes, in whatever order is quick."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(ir.FloatType(), [ir.FloatType(), FLOATS])
        add = cgutils.get_or_insert_function(builder.module, kind, "llvm.vector.reduce.fadd.v16f32")
        return builder.call(add, [ir.Constant(ir.FloatType(), -0.0), arguments[0]], fastmath=("reassoc",))

    return types.float32(lanes), code


@intrinsic
def add_to(typing: Any, array: Any, index: Any, some: Any) -> Any:
    """Add the lanes to sixteen numbers of a contiguous float64 array, from an index on."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = element(context, builder, signature.args[0], arguments[0], arguments[1])
        address = builder.bitcast(address, DOUBLES.as_pointer())
        before = builder.load(address, align=8, typ=DOUBLES)
        builder.store(builder.fadd(before, builder.fpext(arguments[2], DOUBLES)), address, align=8)
        return context.get_dummy_value()

    return types.none(array, types.intp, lanes), code


def between_lanes(symbol: Any, name: str) -> None:
    """An operator between lanes, by LLVM's name for it; a product and a sum may become one."""

    @intrinsic
    def operation(typing: Any, left: Any, right: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return getattr(builder, name)(*arguments, flags=("contract",))

        return lanes(lanes, lanes), code

    @overload(symbol)
    def typed(left: Any, right: Any) -> Any:
        def run(left: Any, right: Any) -> Any:
            return operation(left, right)

        return run if left is lanes and right is lanes else None


between_lanes(operator.add, "fadd")
between_lanes(operator.sub, "fsub")
between_lanes(operator.mul, "fmul")


@intrinsic
def root(typing: Any, some: Any) -> Any:
    """The square root of each lane."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(FLOATS, [FLOATS])
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.sqrt.v16f32"), arguments)

    return lanes(lanes), code


@intrinsic
def where_below(typing: Any, some: Any, limit: Any, chosen: Any, otherwise: Any) -> Any:
    """In each lane the third number where the first is below the second, else the fourth."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        below = builder.fcmp_ordered("<", arguments[0], arguments[1])
        return builder.select(below, arguments[2], arguments[3])

    return lanes(lanes, lanes, lanes, lanes), code


@intrinsic
def scaled_by_bits(typing: Any, some: Any, shifted: Any) -> Any:
    """The first times 2^n, where n stands in the low bits of the second."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        bits, exponent = (builder.bitcast(x, INTEGERS) for x in arguments)
        places = repeated(builder, ir.Constant(ir.IntType(32), 23), INTEGERS)
        return builder.bitcast(builder.add(bits, builder.shl(exponent, places)), FLOATS)

    return lanes(lanes, lanes), code


# 2^f for |f| ≤ ½, by the polynomial whose largest relative error is least: 7.5e-8.
P0, P1, P2 = np.float32(1.00000007165), np.float32(0.693146967037), np.float32(0.240221197267)
P3, P4, P5 = np.float32(0.055507133185), np.float32(0.00967554121833), np.float32(0.00132764574456)
ROUND = np.float32(1.5 * 2**23)
"""Added to a number, it leaves the nearest whole one in the low bits."""
LEAST = np.float32(-100)
"""Below it, 2^x times a small value would be subnormal, where the CPU is slow."""


@njit
def power_of_two(x: Any) -> Any:
    """2^x for x ≤ 0, to 2e-7; 8e-31 where it would be less."""
    return small_power_of_two(where_below(x, splat(LEAST), splat(LEAST), x))


@njit
def small_power_of_two(x: Any) -> Any:
    """2^x for |x| ≤ 100, to 2e-7."""
    rounded = x + splat(ROUND)
    f = x - (rounded - splat(ROUND))
    p = splat(P5) * f + splat(P4)
    p = p * f + splat(P3)
    p = p * f + splat(P2)
    p = p * f + splat(P1)
    p = p * f + splat(P0)
    return scaled_by_bits(p, rounded)
