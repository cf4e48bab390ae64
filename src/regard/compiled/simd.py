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
_Intrinsic = tuple[Signature, Callable[[BaseContext, ir.IRBuilder, Signature, Sequence[ir.Value]], ir.Value]]
"""What a definition returns to Numba: the types of the call, and what emits its LLVM code."""


class Lanes(Protocol):
    """Sixteen float32 numbers, as compiled code sees them."""

    def __add__(self, other: "Lanes | float | np.float32", /) -> "Lanes": ...
    def __sub__(self, other: "Lanes | float | np.float32", /) -> "Lanes": ...
    def __mul__(self, other: "Lanes | float | np.float32", /) -> "Lanes": ...


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


def _define(signature: Signature, emit: Callable[..., ir.Value | None]) -> _Intrinsic:
    """A call whose code is emitted by `emit(builder, *arguments)`. A contiguous array and an index are one argument:
    the address of the element."""

    def generate(
        context: BaseContext, builder: ir.IRBuilder, signature: Signature, arguments: Sequence[ir.Value]
    ) -> ir.Value:
        array_type = signature.args[0]
        if isinstance(array_type, types.Array):
            array = context.make_array(array_type)(context, builder, arguments[0])
            index = [arguments[1]]
            address = cgutils.get_item_pointer(context, builder, array_type, array, index, wraparound=False)
            arguments = [address, *arguments[2:]]
        result = emit(builder, *arguments)
        return context.get_dummy_value() if result is None else result

    return signature, generate


@operation
def load(typing: Context, array: types.Array, index: types.Integer) -> _Intrinsic:
    """Sixteen numbers of a contiguous float32 array, starting at an index."""

    def emit(builder: ir.IRBuilder, address: ir.Value) -> ir.Value:
        return builder.load(builder.bitcast(address, _FLOATS.as_pointer()), align=4, typ=_FLOATS)

    return _define(lanes(array, types.intp), emit)


@operation
def store(typing: Context, array: types.Array, index: types.Integer, some: _LanesType) -> _Intrinsic:
    """Put the lanes into a contiguous float32 array, starting at an index."""

    def emit(builder: ir.IRBuilder, address: ir.Value, some: ir.Value) -> None:
        builder.store(some, builder.bitcast(address, _FLOATS.as_pointer()), align=4)

    return _define(types.none(array, types.intp, lanes), emit)


@operation
def splat(typing: Context, number: types.Float) -> _Intrinsic:
    """One float32 in every lane."""
    return _define(lanes(types.float32), lambda builder, number: _repeated(builder, number, _FLOATS))


@operation
def splat_from(typing: Context, array: types.Array, index: types.Integer) -> _Intrinsic:
    """One number of a contiguous float32 array in every lane: loaded and repeated at once, without an index check."""

    def emit(builder: ir.IRBuilder, address: ir.Value) -> ir.Value:
        return _repeated(builder, builder.load(address, typ=ir.FloatType()), _FLOATS)

    return _define(lanes(array, types.intp), emit)


@operation
def add_to(typing: Context, array: types.Array, index: types.Integer, some: _LanesType) -> _Intrinsic:
    """Add the lanes to sixteen numbers of a contiguous float64 array, starting at an index."""

    def emit(builder: ir.IRBuilder, address: ir.Value, some: ir.Value) -> None:
        address = builder.bitcast(address, _DOUBLES.as_pointer())
        before = builder.load(address, align=8, typ=_DOUBLES)
        builder.store(builder.fadd(before, builder.fpext(some, _DOUBLES)), address, align=8)

    return _define(types.none(array, types.intp, lanes), emit)


def _define_operator(symbol: Callable[..., object], name: str) -> None:
    """An operator between lanes, or lanes and a number, by LLVM's name for it; a product and a sum may be fused."""

    @operation
    def between(typing: Context, left: _LanesType, right: _LanesType) -> _Intrinsic:
        return _define(lanes(lanes, lanes), lambda builder, *sides: getattr(builder, name)(*sides, flags=("contract",)))

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


for _symbol, _name in ((operator.add, "fadd"), (operator.sub, "fsub"), (operator.mul, "fmul")):
    _define_operator(_symbol, _name)


@operation
def root(typing: Context, some: _LanesType) -> _Intrinsic:
    """The square root of each lane."""

    def emit(builder: ir.IRBuilder, some: ir.Value) -> ir.Value:
        kind = ir.FunctionType(_FLOATS, [_FLOATS])
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.sqrt.v16f32"), [some])

    return _define(lanes(lanes), emit)


@operation
def where_below(
    typing: Context, some: _LanesType, limit: _LanesType, chosen: _LanesType, otherwise: _LanesType
) -> _Intrinsic:
    """In each lane the third number if the first is below the second, else the fourth."""

    def emit(builder: ir.IRBuilder, some: ir.Value, limit: ir.Value, *choices: ir.Value) -> ir.Value:
        return builder.select(builder.fcmp_ordered("<", some, limit), *choices)

    return _define(lanes(lanes, lanes, lanes, lanes), emit)


@operation
def _scaled_by_bits(typing: Context, some: _LanesType, shifted: _LanesType) -> _Intrinsic:
    """The first times 2^n, where n is in the low bits of the second."""

    def emit(builder: ir.IRBuilder, *both: ir.Value) -> ir.Value:
        bits, exponent = (builder.bitcast(x, _INTEGERS) for x in both)
        shift = _repeated(builder, ir.Constant(ir.IntType(32), 23), _INTEGERS)
        return builder.bitcast(builder.add(bits, builder.shl(exponent, shift)), _FLOATS)

    return _define(lanes(lanes, lanes), emit)


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
    rounded = x + _ROUND
    f = x - (rounded - _ROUND)
    p = ((((f * _P5 + _P4) * f + _P3) * f + _P2) * f + _P1) * f + _P0
    return _scaled_by_bits(p, rounded)
