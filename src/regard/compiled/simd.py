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
_FLOATS, _INTEGERS = ir.VectorType(ir.FloatType(), COUNT), ir.VectorType(ir.IntType(32), COUNT)
_DOUBLES = ir.VectorType(ir.DoubleType(), COUNT)
Generator = Callable[[BaseContext, ir.IRBuilder, Signature, Sequence[ir.Value]], ir.Value]
"""Emits the LLVM code of a call."""
_Intrinsic = tuple[Signature, Generator]
"""What a definition returns to Numba: the types of the call, and what emits its code."""


class Lanes(Protocol):
    """Sixteen float32 numbers, as compiled code sees them."""

    def __add__(self, other: "Lanes | float", /) -> "Lanes": ...
    def __sub__(self, other: "Lanes | float", /) -> "Lanes": ...
    def __mul__(self, other: "Lanes | float", /) -> "Lanes": ...


class _LanesType(types.Type):
    """Their type, as Numba sees it."""

    def __init__(self) -> None:
        super().__init__(name="Lanes")


lanes = _LanesType()


@register_model(_LanesType)
class _LanesModel(models.PrimitiveModel):
    """How Numba represents them: as the vector itself."""

    def __init__(self, manager: DataModelManager, kind: _LanesType) -> None:
        super().__init__(manager, kind, _FLOATS)


def operation(define: Callable[..., _Intrinsic]) -> Callable[..., Lanes]:
    """Numba's `intrinsic`. Compiled code calls the function without its first parameter, the typing context."""
    return intrinsic(define)


def _repeated(builder: ir.IRBuilder, number: ir.Value, vector: ir.VectorType) -> ir.Value:
    """One LLVM number in every lane."""
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), number, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(
        first, ir.Constant(vector, ir.Undefined), ir.Constant(ir.VectorType(ir.IntType(32), COUNT), [0] * COUNT)
    )


def _element(
    context: BaseContext, builder: ir.IRBuilder, array_type: types.Array, array: ir.Value, index: ir.Value
) -> ir.Value:
    """The address of an element of a contiguous array."""
    made = context.make_array(array_type)(context, builder, array)
    return cgutils.get_item_pointer(context, builder, array_type, made, [index], wraparound=False)


@operation
def load(typing: Context, array: types.Array, index: types.Integer) -> _Intrinsic:
    """Sixteen numbers of a contiguous float32 array, starting at an index."""

    def code(context: BaseContext, builder: ir.IRBuilder, signature: Signature, given: Sequence[ir.Value]) -> ir.Value:
        address = _element(context, builder, signature.args[0], given[0], given[1])
        return builder.load(builder.bitcast(address, _FLOATS.as_pointer()), align=4, typ=_FLOATS)

    return lanes(array, types.intp), code


@operation
def store(typing: Context, array: types.Array, index: types.Integer, some: _LanesType) -> _Intrinsic:
    """Put the lanes into a contiguous float32 array, starting at an index."""

    def code(context: BaseContext, builder: ir.IRBuilder, signature: Signature, given: Sequence[ir.Value]) -> ir.Value:
        address = _element(context, builder, signature.args[0], given[0], given[1])
        builder.store(given[2], builder.bitcast(address, _FLOATS.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.none(array, types.intp, lanes), code


@operation
def splat(typing: Context, number: types.Float) -> _Intrinsic:
    """One float32 in every lane."""
    return lanes(types.float32), lambda _, builder, __, given: _repeated(builder, given[0], _FLOATS)


@operation
def splat_from(typing: Context, array: types.Array, index: types.Integer) -> _Intrinsic:
    """One number of a contiguous float32 array in every lane: loaded and repeated at once, without an index check."""

    def code(context: BaseContext, builder: ir.IRBuilder, signature: Signature, given: Sequence[ir.Value]) -> ir.Value:
        address = _element(context, builder, signature.args[0], given[0], given[1])
        return _repeated(builder, builder.load(address, typ=ir.FloatType()), _FLOATS)

    return lanes(array, types.intp), code


@operation
def total(typing: Context, some: _LanesType) -> _Intrinsic:
    """The sum of the lanes, in whatever order is fast."""

    def code(context: BaseContext, builder: ir.IRBuilder, signature: Signature, given: Sequence[ir.Value]) -> ir.Value:
        kind = ir.FunctionType(ir.FloatType(), [ir.FloatType(), _FLOATS])
        add = cgutils.get_or_insert_function(builder.module, kind, "llvm.vector.reduce.fadd.v16f32")
        return builder.call(add, [ir.Constant(ir.FloatType(), -0.0), given[0]], fastmath=("reassoc",))

    return types.float32(lanes), code


@operation
def add_to(typing: Context, array: types.Array, index: types.Integer, some: _LanesType) -> _Intrinsic:
    """Add the lanes to sixteen numbers of a contiguous float64 array, starting at an index."""

    def code(context: BaseContext, builder: ir.IRBuilder, signature: Signature, given: Sequence[ir.Value]) -> ir.Value:
        address = _element(context, builder, signature.args[0], given[0], given[1])
        address = builder.bitcast(address, _DOUBLES.as_pointer())
        before = builder.load(address, align=8, typ=_DOUBLES)
        builder.store(builder.fadd(before, builder.fpext(given[2], _DOUBLES)), address, align=8)
        return context.get_dummy_value()

    return types.none(array, types.intp, lanes), code


def _define_operator(symbol: Callable[..., object], name: str) -> None:
    """An operator between lanes, or lanes and a number, by LLVM's name for it; a product and a sum may be fused."""

    @operation
    def between(typing: Context, left: _LanesType, right: _LanesType) -> _Intrinsic:
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


_define_operator(operator.add, "fadd")
_define_operator(operator.sub, "fsub")
_define_operator(operator.mul, "fmul")


@operation
def root(typing: Context, some: _LanesType) -> _Intrinsic:
    """The square root of each lane."""

    def code(context: BaseContext, builder: ir.IRBuilder, signature: Signature, given: Sequence[ir.Value]) -> ir.Value:
        kind = ir.FunctionType(_FLOATS, [_FLOATS])
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.sqrt.v16f32"), given)

    return lanes(lanes), code


@operation
def where_below(
    typing: Context, some: _LanesType, limit: _LanesType, chosen: _LanesType, otherwise: _LanesType
) -> _Intrinsic:
    """In each lane the third number if the first is below the second, else the fourth."""

    def code(context: BaseContext, builder: ir.IRBuilder, signature: Signature, given: Sequence[ir.Value]) -> ir.Value:
        below = builder.fcmp_ordered("<", given[0], given[1])
        return builder.select(below, given[2], given[3])

    return lanes(lanes, lanes, lanes, lanes), code


@operation
def _scaled_by_bits(typing: Context, some: _LanesType, shifted: _LanesType) -> _Intrinsic:
    """The first times 2^n, where n is in the low bits of the second."""

    def code(context: BaseContext, builder: ir.IRBuilder, signature: Signature, given: Sequence[ir.Value]) -> ir.Value:
        bits, exponent = (builder.bitcast(x, _INTEGERS) for x in given)
        shift = _repeated(builder, ir.Constant(ir.IntType(32), 23), _INTEGERS)
        return builder.bitcast(builder.add(bits, builder.shl(exponent, shift)), _FLOATS)

    return lanes(lanes, lanes), code


# 2^f for |f| ≤ ½, by the polynomial with the smallest maximum relative error: 7.5e-8.
_P0, _P1, _P2 = np.float32(1.00000007165), np.float32(0.693146967037), np.float32(0.240221197267)
_P3, _P4, _P5 = np.float32(0.055507133185), np.float32(0.00967554121833), np.float32(0.00132764574456)
_ROUND = np.float32(1.5 * 2**23)
"""Added to a number, it leaves the nearest integer in the low bits."""
_LEAST = np.float32(-100)
"""Below it, 2^x times a small value would be subnormal, which is slow on CPUs."""


@njit()
def power_of_two(x: Lanes) -> Lanes:
    """2^x for x ≤ 0, to 2e-7; 8e-31 if it would be less."""
    return small_power_of_two(where_below(x, splat(_LEAST), splat(_LEAST), x))


@njit()
def small_power_of_two(x: Lanes) -> Lanes:
    """2^x for |x| ≤ 100, to 2e-7."""
    rounded = x + splat(_ROUND)
    f = x - (rounded - splat(_ROUND))
    p = splat(_P5) * f + splat(_P4)
    p = p * f + splat(_P3)
    p = p * f + splat(_P2)
    p = p * f + splat(_P1)
    p = p * f + splat(_P0)
    return _scaled_by_bits(p, rounded)
