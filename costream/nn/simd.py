"""SIMD vectors of float32 numbers in loops that Numba compiles, and sums of products in registers.

Compiled loops are for work that PyTorch does in several passes over the numbers, or in one call
whose overhead is longer than the work. A vector is ``LANES`` adjacent numbers; ``PIXELS`` sums of
that many numbers are in registers at once. Importing takes a second, the first time longer; the
compiled code is cached beside the source, or in the user's cache.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numba
import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, overload, register_model
from numba.np.arrayobj import populate_array
from torch import Tensor

F32 = numba.float32
LANES = 16  # numbers at once: one register of AVX-512, two of AVX2, four of NEON
PIXELS = 5  # vectors of sums that are in registers at once
FUSED = ("contract",)  # a product and a sum may be fused into one instruction
VECTOR = ir.VectorType(ir.FloatType(), LANES)
_AHEAD = 256  # steps between the taps that are used and those that are fetched
_OPTIONS: Any = {"nogil": True, "error_model": "numpy", "fastmath": {"contract", "reassoc"}}
inline: Callable[[Any], Any] = numba.njit(**_OPTIONS)  # of functions that compiled ones call


def compiled(*arguments: Any) -> Callable[[Callable[..., None]], Any]:
    """Return a decorator that compiles a function for these argument types when it is defined."""

    def compile_(function: Callable[..., None]) -> Any:
        signature = numba.void(*arguments)
        try:
            return numba.njit(signature, cache=True, **_OPTIONS)(function)
        except (RuntimeError, OSError):  # there is no writable place for compiled code
            return numba.njit(signature, **_OPTIONS)(function)

    return compile_


class Lanes(types.Type):  # type: ignore[misc]
    """A SIMD vector of ``LANES`` float32 values."""


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, VECTOR)


_ONE, _ZEROS = Lanes("lanes"), np.zeros(LANES, np.float32)
SUMS = types.UniTuple(_ONE, PIXELS)


class PixelPointer:
    """Pointer to the numbers of a pixel, its channels, in code being generated."""

    def __init__(self, builder: Any, pointer: Any) -> None:
        self.builder, self.pointer = builder, pointer

    @classmethod
    def of(cls, context: Any, builder: Any, kind: Any, array: Any, index: Any) -> PixelPointer:
        """Return the pointer to the number at an index of an array of this type."""
        data = context.make_array(kind)(context, builder, array).data
        return cls(builder, builder.gep(data, [index]))

    def beside(self, width: Any, pixels: int) -> PixelPointer:
        """Return the pointer to another pixel; ``width``: of one, or distances to all, a tuple."""
        if isinstance(width.type, ir.ArrayType):
            offset = self.builder.extract_value(width, pixels)
        else:
            offset = self.builder.mul(width, ir.Constant(width.type, pixels))
        return PixelPointer(self.builder, self.builder.gep(self.pointer, [offset]))

    def unless(self, condition: Any, other: PixelPointer) -> PixelPointer:
        """Return the other pointer if the condition is true, else this one."""
        chosen = self.builder.select(condition, other.pointer, self.pointer)
        return PixelPointer(self.builder, chosen)

    def load(self) -> Any:
        """Return the vector there."""
        return self.builder.load(self._vector(), align=4)

    def store(self, value: Any) -> None:
        """Write a vector there."""
        self.builder.store(value, self._vector(), align=4)

    def spread(self) -> Any:
        """Return a vector of the one number there."""
        number, none = ir.Constant(ir.IntType(32), 0), ir.Constant(VECTOR, ir.Undefined)
        one = self.builder.insert_element(none, self.builder.load(self.pointer), number)
        order = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
        return self.builder.shuffle_vector(one, none, order)

    def fetch(self, level: int) -> None:
        """Begin to read what is there into the cache of this level."""
        number, byte = ir.IntType(32), ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [byte] + [number] * 3)
        function = cgutils.get_or_insert_function(self.builder.module, kind, "llvm.prefetch.p0i8")
        how = [ir.Constant(number, value) for value in (0, 4 - level, 1)]
        self.builder.call(function, [self.builder.bitcast(self.pointer, byte), *how])

    def _vector(self) -> Any:
        return self.builder.bitcast(self.pointer, VECTOR.as_pointer())


@intrinsic  # type: ignore
def start_sums(typing: Any, bias: Any, at: Any) -> Any:
    """Return ``LANES`` values of ``bias`` from ``at`` on as the sum of every pixel."""

    def generate(context: Any, builder: Any, signature: Any, values: Sequence[Any]) -> Any:
        first = PixelPointer.of(context, builder, signature.args[0], *values).load()
        return context.make_tuple(builder, signature.return_type, [first] * PIXELS)

    return SUMS(bias, at), generate


@intrinsic  # type: ignore
def store_sums(typing: Any, sums: Any, out: Any, at: Any, width: Any, relu: Any) -> Any:
    """Write sums, or their ReLU, to ``out`` from ``at`` on, pixels ``width`` numbers apart."""

    def generate(context: Any, builder: Any, signature: Any, values: Sequence[Any]) -> Any:
        first = PixelPointer.of(context, builder, signature.args[1], *values[1:3])
        none = ir.Constant(VECTOR, None)
        for pixel, value in enumerate(cgutils.unpack_tuple(builder, values[0])):
            above = builder.select(builder.fcmp_ordered("<", value, none), none, value)  # NaN stays
            first.beside(values[3], pixel).store(builder.select(values[4], above, value))
        return context.get_dummy_value()

    return types.void(sums, out, at, width, relu), generate


def _prefetching(level: int) -> Any:
    @intrinsic  # type: ignore
    def fetch(typing: Any, array: Any, at: Any, width: Any) -> Any:
        """Begin to read pixels, or what will be written over, into the cache of this level."""

        def generate(context: Any, builder: Any, signature: Any, values: Sequence[Any]) -> Any:
            first = PixelPointer.of(context, builder, signature.args[0], *values[:2])
            for pixel in range(PIXELS):
                first.beside(values[2], pixel).fetch(level)
            return context.get_dummy_value()

        return types.void(array, at, width), generate

    return fetch


prefetch, prefetch_2 = _prefetching(1), _prefetching(2)


@intrinsic  # type: ignore
def multiply_add(
    typing: Any, sums: Any, rows: Any, at: Any, width: Any, taps: Any, tap: Any
) -> Any:
    """Add the products of the number at ``at`` of each pixel with ``LANES`` taps to its sums."""

    def generate(context: Any, builder: Any, signature: Any, values: Sequence[Any]) -> Any:
        sums = cgutils.unpack_tuple(builder, values[0])
        first = PixelPointer.of(context, builder, signature.args[1], *values[1:3])
        taps = PixelPointer.of(context, builder, signature.args[4], *values[4:6])
        taps.beside(ir.Constant(values[5].type, LANES), _AHEAD).fetch(2)
        factor = taps.load()
        for pixel in range(PIXELS):
            product = builder.fmul(first.beside(values[3], pixel).spread(), factor, FUSED)
            sums[pixel] = builder.fadd(sums[pixel], product, FUSED)
        return context.make_tuple(builder, signature.return_type, sums)

    return SUMS(sums, rows, at, width, taps, tap), generate


@intrinsic  # type: ignore
def add_pixels(typing: Any, sums: Any, other: Any, at: Any, width: Any) -> Any:
    """Return sums plus adjacent pixels of ``other``."""

    def generate(context: Any, builder: Any, signature: Any, values: Sequence[Any]) -> Any:
        first = PixelPointer.of(context, builder, signature.args[1], *values[1:3])
        sums = [
            builder.fadd(value, first.beside(values[3], pixel).load())
            for pixel, value in enumerate(cgutils.unpack_tuple(builder, values[0]))
        ]
        return context.make_tuple(builder, signature.return_type, sums)

    return SUMS(sums, other, at, width), generate


# Vectors of ``LANES`` numbers.


def _operation(kind: Any, build: Callable[..., Any], symbol: Any = None) -> Any:
    """Return an operation of two arguments, which ``symbol`` means for vectors."""

    @intrinsic  # type: ignore
    def compute(typing: Any, a: Any, b: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            return build(context, builder, signature.args[0], *values)

        return kind(a, b), generate

    def chosen(a: Any, b: Any) -> Any:
        return (lambda a, b: compute(a, b)) if isinstance(a, Lanes) else None

    if symbol is not None:
        overload(symbol, strict=False)(chosen)
    return compute


def _call(builder: Any, name: str, x: Any) -> Any:
    kind, name = ir.FunctionType(VECTOR, [VECTOR]), f"llvm.{name}.v{LANES}f32"
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [x])


def _build_times_two_to(context: Any, builder: Any, kind: Any, x: Any, whole: Any) -> Any:
    number = ir.VectorType(ir.IntType(32), LANES)
    shift = builder.shl(builder.fptosi(whole, number), ir.Constant(number, [23] * LANES))
    return builder.bitcast(builder.add(builder.bitcast(x, number), shift), VECTOR)


def _build_array_at(context: Any, builder: Any, kind: Any, address: Any, size: Any) -> Any:
    array = context.make_array(_NUMBERS)(context, builder)
    pointer = builder.inttoptr(address, ir.FloatType().as_pointer())
    step = context.get_constant(types.intp, 4)
    populate_array(array, pointer, [size], [step], step, meminfo=None)
    return array._getvalue()


def _build_broadcast(context: Any, builder: Any, kind: Any, value: Any, _: Any) -> Any:
    none, number = ir.Constant(VECTOR, ir.Undefined), ir.IntType(32)
    one = builder.insert_element(none, value, ir.Constant(number, 0))
    return builder.shuffle_vector(one, none, ir.Constant(ir.VectorType(number, LANES), [0] * LANES))


_NUMBERS = types.Array(F32, 1, "C")
floats_at = _operation(_NUMBERS, _build_array_at)  # the array at an address, of this size
load = _operation(_ONE, lambda c, b, kind, x, at: PixelPointer.of(c, b, kind, x, at).load())
_broadcast = _operation(_ONE, _build_broadcast)  # of the first argument
floor = _operation(_ONE, lambda c, b, k, x, _: _call(b, "floor", x))
sqrt = _operation(_ONE, lambda c, b, k, x, _: _call(b, "sqrt", x))
_times_two_to = _operation(_ONE, _build_times_two_to)  # x 2**y for whole y
# NaN stays where it is the second argument.
maximum = _operation(_ONE, lambda c, b, k, x, y: b.select(b.fcmp_ordered(">", x, y), x, y))
_operation(_ONE, lambda c, b, k, x, y: b.fadd(x, y, FUSED), operator.add)
_operation(_ONE, lambda c, b, k, x, y: b.fsub(x, y, FUSED), operator.sub)
_operation(_ONE, lambda c, b, k, x, y: b.fmul(x, y, FUSED), operator.mul)
_operation(_ONE, lambda c, b, k, x, y: b.fdiv(x, y, FUSED), operator.truediv)


@intrinsic  # type: ignore
def store(typing: Any, array: Any, at: Any, value: Any) -> Any:
    """Write a vector to an array from ``at`` on."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        PixelPointer.of(context, builder, signature.args[0], *values[:2]).store(values[2])
        return context.get_dummy_value()

    return types.void(array, at, value), generate


@inline
def broadcast(value: Any) -> Any:
    """Return a vector of a number."""
    return _broadcast(F32(value), 0)


# 2**x for |x| <= 1/2: the factors of x**5 to x**0, behind that of x**6.
EXP2_SERIES = tuple(
    F32(x) for x in (1.3333558e-3, 9.6181291e-3, 0.055504109, 0.24022651, 0.69314718, 1)
)


@inline
def exp(x: Any) -> Any:
    """Return e**x for x <= 0; below the normal numbers, the smallest of them."""
    power = maximum(broadcast(-126), x * broadcast(1.44269504))
    whole = floor(power + broadcast(0.5), 0)
    part, series = power - whole, broadcast(1.5403530e-4)
    for term in EXP2_SERIES:
        series = series * part + broadcast(term)
    return _times_two_to(series, whole)


@inline
def dot_products(
    rows: Any, at: int, apart: int, step: int, count: int, panel: Any, tap: int
) -> Any:
    """Return sums of ``PIXELS`` outputs: ``count`` numbers of each times those of a panel."""
    sums = start_sums(_ZEROS, 0)
    for _ in range(count):
        sums = multiply_add(sums, rows, at, apart, panel, tap)
        at, tap = at + step, tap + LANES
    return sums


def memory_of(x: Tensor, group: int = PIXELS) -> tuple[Any, Any]:
    """Return all numbers where ``x`` is, and its places [..., group], the last one repeated."""
    size = x.untyped_storage().nbytes() // 4
    places = torch.arange(size).as_strided(x.shape, x.stride(), x.storage_offset()).flatten()
    whole = np.pad(places.numpy(), (0, -len(places) % group), "edge").reshape(-1, group)
    return x.as_strided((size,), (1,), 0).numpy(), whole
