"""Sixteen float32 numbers at once, for Numba loops that the compiler does not vectorise well by itself.

`Lanes` is an LLVM vector: one register of AVX-512, two of AVX2. `load` and `store` them, fill them with one number
by `splat` or `splat_from`, use + - * between them or with a number, and `power_of_two`, `root`, `where_below`;
`add_to` adds them to float64 sums. A sum in lanes needs no reduction at the end of a loop, which is most of the
cost of the compiler's own vectors in short loops.
"""

import operator
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.core.base import BaseContext
from numba.core.datamodel import DataModelManager
from numba.core.typing import Context, Signature
from numba.extending import intrinsic, models, overload, register_model

COUNT = 16
FLOATS, INTEGERS = ir.VectorType(ir.FloatType(), COUNT), ir.VectorType(ir.IntType(32), COUNT)
DOUBLES = ir.VectorType(ir.DoubleType(), COUNT)
Generator = Callable[[BaseContext, ir.IRBuilder, Signature, Sequence[ir.Value]], ir.Value]
"""Emits the LLVM code of a call."""
Intrinsic = tuple[Signature, Generator]
"""What a definition returns to Numba: the types of the call, and what emits its code."""


class Lanes(Protocol):
    """Sixteen float32 numbers, as compiled code sees them."""

    def __add__(self, other: "Lanes | float", /) -> "Lanes": ...
    def __sub__(self, other: "Lanes | float", /) -> "Lanes": ...
    def __mul__(self, other: "Lanes | float", /) -> "Lanes": ...


class LanesType(types.Type):
    """Their type, as Numba sees it."""

    def __init__(self) -> None:
        super().__init__(name="Lanes")


lanes = LanesType()


@register_model(LanesType)
class LanesModel(models.PrimitiveModel):
    """How Numba represents them: as the vector itself."""

    def __init__(self, manager: DataModelManager, kind: LanesType) -> None:
        super().__init__(manager, kind, FLOATS)


def operation(define: Callable[..., Intrinsic]) -> Callable[..., Lanes]:
    """Numba's `intrinsic`. Compiled code calls the function without its first parameter, the typing context."""
    return intrinsic(define)


def repeated(builder: ir.IRBuilder, number: ir.Value, vector: ir.VectorType) -> ir.Value:
    """One LLVM number in every lane."""
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), number, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(
        first, ir.Constant(vector, ir.Undefined), ir.Constant(ir.VectorType(ir.IntType(32), COUNT), [0] * COUNT)
    )


def element(
    context: BaseContext, builder: ir.IRBuilder, array_type: types.Array, array: ir.Value, index: ir.Value
) -> ir.Value:
    """The address of an element of a contiguous array."""
    made = context.make_array(array_type)(context, builder, array)
    return cgutils.get_item_pointer(context, builder, array_type, made, [index], wraparound=False)


@operation
def load(typing: Context, array: types.Array, index: types.Integer) -> Intrinsic:
    """Sixteen numbers of a contiguous float32 array, starting at an index."""

    def code(context: BaseContext, builder: ir.IRBuilder, signature: Signature, given: Sequence[ir.Value]) -> ir.Value:
        address = element(context, builder, signature.args[0], given[0], given[1])
        return builder.load(builder.bitcast(address, FLOATS.as_pointer()), align=4, typ=FLOATS)

    return lanes(array, types.intp), code


@operation
def store(typing: Context, array: types.Array, index: types.Integer, some: LanesType) -> Intrinsic:
    """Put the lanes into a contiguous float32 array, starting at an index."""

    def code(context: BaseContext, builder: ir.IRBuilder, signature: Signature, given: Sequence[ir.Value]) -> ir.Value:
        address = element(context, builder, signature.args[0], given[0], given[1])
        builder.store(given[2], builder.bitcast(address, FLOATS.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.none(array, types.intp, lanes), code


@operation
def splat(typing: Context, number: types.Float) -> Intrinsic:
    """One float32 in every lane."""
    return lanes(types.float32), lambda _, builder, __, given: repeated(builder, given[0], FLOATS)


@operation
def splat_from(typing: Context, array: types.Array, index: types.Integer) -> Intrinsic:
    """One number of a contiguous float32 array in every lane: loaded and repeated at once, without an index check."""

    def code(context: BaseContext, builder: ir.IRBuilder, signature: Signature, given: Sequence[ir.Value]) -> ir.Value:
        address = element(context, builder, signature.args[0], given[0], given[1])
        return repeated(builder, builder.load(address, typ=ir.FloatType()), FLOATS)

    return lanes(array, types.intp), code


@operation
def total(typing: Context, some: LanesType) -> Intrinsic:
    """The sum of the lanes, in whatever order is fast."""

    def code(context: BaseContext, builder: ir.IRBuilder, signature: Signature, given: Sequence[ir.Value]) -> ir.Value:
        kind = ir.FunctionType(ir.FloatType(), [ir.FloatType(), FLOATS])
        add = cgutils.get_or_insert_function(builder.module, kind, "llvm.vector.reduce.fadd.v16f32")
        return builder.call(add, [ir.Constant(ir.FloatType(), -0.0), given[0]], fastmath=("reassoc",))

    return types.float32(lanes), code


@operation
def add_to(typing: Context, array: types.Array, index: types.Integer, some: LanesType) -> Intrinsic:
    """Add the lanes to sixteen numbers of a contiguous float64 array, starting at an index."""

    def code(context: BaseContext, builder: ir.IRBuilder, signature: Signature, given: Sequence[ir.Value]) -> ir.Value:
        address = element(context, builder, signature.args[0], given[0], given[1])
        address = builder.bitcast(address, DOUBLES.as_pointer())
        before = builder.load(address, align=8, typ=DOUBLES)
        builder.store(builder.fadd(before, builder.fpext(given[2], DOUBLES)), address, align=8)
        return context.get_dummy_value()

    return types.none(array, types.intp, lanes), code


def define_operator(symbol: Callable[..., object], name: str) -> None:
    """An operator between lanes, or lanes and a number, by LLVM's name for it; a product and a sum may be fused."""

    @operation
    def between(typing: Context, left: LanesType, right: LanesType) -> Intrinsic:
        return lanes(lanes, lanes), lambda _, builder, __, given: getattr(builder, name)(*given, flags=("contract",))

    # Numba wants the same annotations on what is chosen as on what chooses.
    def both(left: types.Type, right: types.Type) -> Lanes:
        return between(left, right)

    def with_number(left: types.Type, right: types.Type) -> Lanes:
        return between(left, splat(np.float32(right)))  # type: ignore[arg-type]

    def number_with(left: types.Type, right: types.Type) -> Lanes:
        return between(splat(np.float32(left)), right)  # type: ignore[arg-type]

    @overload(symbol)
    def typed(left: types.Type, right: types.Type) -> Callable[..., Lanes] | None:
        if left is lanes and right is lanes:
            return both
        if left is lanes and isinstance(right, types.Float):
            return with_number
        return number_with if right is lanes and isinstance(left, types.Float) else None


define_operator(operator.add, "fadd")
define_operator(operator.sub, "fsub")
define_operator(operator.mul, "fmul")


@operation
def root(typing: Context, some: LanesType) -> Intrinsic:
    """The square root of each lane."""

    def code(context: BaseContext, builder: ir.IRBuilder, signature: Signature, given: Sequence[ir.Value]) -> ir.Value:
        kind = ir.FunctionType(FLOATS, [FLOATS])
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.sqrt.v16f32"), given)

    return lanes(lanes), code


@operation
def where_below(
    typing: Context, some: LanesType, limit: LanesType, chosen: LanesType, otherwise: LanesType
) -> Intrinsic:
    """In each lane the third number if the first is below the second, else the fourth."""

    def code(context: BaseContext, builder: ir.IRBuilder, signature: Signature, given: Sequence[ir.Value]) -> ir.Value:
        below = builder.fcmp_ordered("<", given[0], given[1])
        return builder.select(below, given[2], given[3])

    return lanes(lanes, lanes, lanes, lanes), code


@operation
def scaled_by_bits(typing: Context, some: LanesType, shifted: LanesType) -> Intrinsic:
    """The first times 2^n, where n is in the low bits of the second."""

    def code(context: BaseContext, builder: ir.IRBuilder, signature: Signature, given: Sequence[ir.Value]) -> ir.Value:
        bits, exponent = (builder.bitcast(x, INTEGERS) for x in given)
        shift = repeated(builder, ir.Constant(ir.IntType(32), 23), INTEGERS)
        return builder.bitcast(builder.add(bits, builder.shl(exponent, shift)), FLOATS)

    return lanes(lanes, lanes), code


# 2^f for |f| ≤ ½, by the polynomial with the smallest maximum relative error: 7.5e-8.
P0, P1, P2 = np.float32(1.00000007165), np.float32(0.693146967037), np.float32(0.240221197267)
P3, P4, P5 = np.float32(0.055507133185), np.float32(0.00967554121833), np.float32(0.00132764574456)
ROUND = np.float32(1.5 * 2**23)
"""Added to a number, it leaves the nearest integer in the low bits."""
LEAST = np.float32(-100)
"""Below it, 2^x times a small value would be subnormal, which is slow on CPUs."""


@njit()
def power_of_two(x: Lanes) -> Lanes:
    """2^x for x ≤ 0, to 2e-7; 8e-31 if it would be less."""
    return small_power_of_two(where_below(x, splat(LEAST), splat(LEAST), x))


@njit()
def small_power_of_two(x: Lanes) -> Lanes:
    """2^x for |x| ≤ 100, to 2e-7."""
    rounded = x + splat(ROUND)
    f = x - (rounded - splat(ROUND))
    p = splat(P5) * f + splat(P4)
    p = p * f + splat(P3)
    p = p * f + splat(P2)
    p = p * f + splat(P1)
    p = p * f + splat(P0)
    return scaled_by_bits(p, rounded)
