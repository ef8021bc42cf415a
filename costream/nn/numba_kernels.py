"""Depthwise convolution over time and space, float32 on a CPU, compiled by Numba.

Each number of a frame is read once for three adjacent taps, and a sum stays in a register until it
is complete. For the small frames of a step, the overhead of PyTorch's convolution is longer than
the whole computation here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model
from torch import Tensor

# Compilation of numerical loops by Numba; importing takes a second, the first time longer.
#
# For work that PyTorch does in several passes over the numbers, or in one call whose overhead is
# longer than the work. The compiled code is cached beside the source, or in the user's cache.


F32 = numba.float32


def compiled(*arguments: Any) -> Callable[[Callable[..., None]], Any]:
    """Return a decorator that compiles a function for these argument types when it is defined."""

    def compile_(function: Callable[..., None]) -> Any:
        signature, fast = numba.void(*arguments), {"contract", "reassoc"}
        options = {"nogil": True, "error_model": "numpy", "fastmath": fast}
        try:
            return numba.njit(signature, cache=True, **options)(function)
        except (RuntimeError, OSError):  # there is no writable place for compiled code
            return numba.njit(signature, **options)(function)

    return compile_


LANES = 16  # channels at once: one register of AVX-512, two of AVX2, four of NEON
PIXELS = 5  # adjacent pixels of a row whose sums are in registers at once
_FLAGS = ("contract",)  # a product and a sum may be fused into one instruction
_VECTOR = ir.VectorType(ir.FloatType(), LANES)


class _Lanes(types.Type):  # type: ignore[misc]
    """A SIMD vector of ``LANES`` float32 values."""


@register_model(_Lanes)
class _LanesModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _VECTOR)


_SUMS = types.UniTuple(_Lanes("lanes"), PIXELS)


class _PixelPointer:
    """Pointer to the channels of a pixel, in code being generated."""

    def __init__(self, builder: Any, pointer: Any) -> None:
        self.builder, self.pointer = builder, pointer

    @classmethod
    def of(cls, context: Any, builder: Any, kind: Any, array: Any, index: Any) -> _PixelPointer:
        data = context.make_array(kind)(context, builder, array).data
        return cls(builder, builder.gep(data, [index]))

    def beside(self, width: Any, pixels: int) -> _PixelPointer:
        offset = self.builder.mul(width, ir.Constant(width.type, pixels))
        return _PixelPointer(self.builder, self.builder.gep(self.pointer, [offset]))

    def unless(self, condition: Any, other: _PixelPointer) -> _PixelPointer:
        chosen = self.builder.select(condition, other.pointer, self.pointer)
        return _PixelPointer(self.builder, chosen)

    def load(self) -> Any:
        return self.builder.load(self._vector(), align=4)

    def store(self, value: Any) -> None:
        self.builder.store(value, self._vector(), align=4)

    def _vector(self) -> Any:
        return self.builder.bitcast(self.pointer, _VECTOR.as_pointer())


@intrinsic  # type: ignore
def _begin(typing: Any, bias: Any, at: Any) -> Any:
    """Return ``LANES`` values of ``bias`` from ``at`` on as the sum of every pixel."""

    def generate(context: Any, builder: Any, signature: Any, values: Sequence[Any]) -> Any:
        first = _PixelPointer.of(context, builder, signature.args[0], *values).load()
        return context.make_tuple(builder, signature.return_type, [first] * PIXELS)

    return _SUMS(bias, at), generate


@intrinsic  # type: ignore
def _end(typing: Any, sums: Any, out: Any, at: Any, width: Any) -> Any:
    """Write sums to ``out`` from ``at`` on, pixels being ``width`` numbers apart."""

    def generate(context: Any, builder: Any, signature: Any, values: Sequence[Any]) -> Any:
        first = _PixelPointer.of(context, builder, signature.args[1], *values[1:3])
        for pixel, value in enumerate(cgutils.unpack_tuple(builder, values[0])):
            first.beside(values[3], pixel).store(value)
        return context.get_dummy_value()

    return types.void(sums, out, at, width), generate


def _row_of_taps(stride: int) -> Any:
    @intrinsic  # type: ignore
    def add(
        typing: Any,
        sums: Any,
        frames: Any,
        at: Any,
        width: Any,
        left: Any,
        right: Any,
        taps: Any,
        tap: Any,
        zeros: Any,
    ) -> Any:
        """Add the products of three adjacent taps to the sums of adjacent pixels.

        ``at``: index of the pixel left of the first one. ``left``, ``right``: whether zeros
        replace the first and the last pixel that is read.
        """

        def generate(context: Any, builder: Any, signature: Any, values: Sequence[Any]) -> Any:
            given, frames, at, width, left, right, taps, tap, zeros = values
            kinds, count = signature.args, stride * (PIXELS - 1) + 3
            none = _PixelPointer.of(context, builder, kinds[8], zeros, ir.Constant(at.type, 0))
            first = _PixelPointer.of(context, builder, kinds[1], frames, at)
            places = [first.beside(width, pixel) for pixel in range(count)]
            places[0], places[-1] = places[0].unless(left, none), places[-1].unless(right, none)
            weight = _PixelPointer.of(context, builder, kinds[6], taps, tap)
            weights = [weight.beside(width, k).load() for k in range(3)]
            pixels, sums = [place.load() for place in places], cgutils.unpack_tuple(builder, given)
            for k, weight in enumerate(weights):
                for number in range(PIXELS):
                    product = builder.fmul(pixels[stride * number + k], weight, _FLAGS)
                    sums[number] = builder.fadd(sums[number], product, _FLAGS)
            return context.make_tuple(builder, signature.return_type, sums)

        return _SUMS(sums, frames, at, width, left, right, taps, tap, zeros), generate

    return add


_add_taps, _add_taps_2 = _row_of_taps(1), _row_of_taps(2)


@compiled(
    F32[:, :, :, :, ::1], types.intp, F32[:, :, :, ::1], F32[::1], types.intp, F32[:, :, :, ::1]
)
def _depthwise(frames: Any, oldest: int, taps: Any, bias: Any, stride: int, out: Any) -> None:
    count, height, width, channels = frames.shape[1:]
    read, weights, written = frames.ravel(), taps.ravel(), out.ravel()
    zeros = np.zeros(LANES, np.float32)
    for stream in range(out.shape[0]):
        for y in range(out.shape[1]):
            top = y * stride - 1
            for c in range(0, channels, LANES):
                channel = min(c, channels - LANES)  # the last group may repeat some channels
                for x in range(0, out.shape[2], PIXELS):
                    pixel = min(x, out.shape[2] - PIXELS)
                    first = pixel * stride - 1
                    left, right = first < 0, first + stride * (PIXELS - 1) + 2 >= width
                    sums = _begin(bias, channel)
                    for k in range(count):
                        slot = oldest + k if oldest + k < count else oldest + k - count
                        for row in range(max(top, 0), min(top + 3, height)):
                            at = ((stream * count + slot) * height + row) * width + first
                            at = at * channels + channel
                            tap = 3 * (3 * k + row - top) * channels + channel
                            if stride == 1:
                                sums = _add_taps(
                                    sums, read, at, channels, left, right, weights, tap, zeros
                                )
                            else:
                                sums = _add_taps_2(
                                    sums, read, at, channels, left, right, weights, tap, zeros
                                )
                    at = ((stream * out.shape[1] + y) * out.shape[2] + pixel) * channels + channel
                    _end(sums, written, at, channels)


class Depthwise:
    """A depthwise convolution over K frames and 3 x 3 pixels, zero-padded around each frame.

    Args:
        taps: [K, 3, 3, C], oldest first. ``bias``: [C]. At least ``LANES`` channels.
        stride: in pixels, 1 or 2.
    """

    def __init__(self, taps: Tensor, bias: Tensor, stride: int) -> None:
        self._taps, self._bias, self.stride = taps.contiguous().numpy(), bias.numpy(), stride

    def suits(self, frames: Tensor) -> bool:
        """Return whether the rows of ``frames`` are long enough."""
        return frames.shape[3] > (PIXELS - 1) * self.stride

    def __call__(self, frames: Tensor, oldest: int) -> Tensor:
        """Return [B, H', W', C] for frames [B, K, H, W, C] that ``suits`` accepts.

        ``oldest``: slot of the oldest frame; newer ones follow, wrapping around.
        """
        batch, _, height, width, channels = frames.shape
        step = self.stride
        out = frames.new_empty((batch, -(-height // step), -(-width // step), channels))
        _depthwise(frames.numpy(), oldest, self._taps, self._bias, step, out.numpy())
        return out


# Compiled single-pass loops over float32 frames on a CPU.


@compiled(F32[:, :, ::1], F32[::1])
def _shift_relu(frame: Any, shift: Any) -> None:
    for y in range(frame.shape[0]):
        for x in range(frame.shape[1]):
            pixel = frame[y, x]
            for c in range(len(pixel)):
                value = pixel[c] + shift[c]
                pixel[c] = F32(0) if value < 0 else value  # NaN stays NaN


@compiled(F32[:, :, ::1], F32[:, :, ::1], F32[::1])
def _add_relu(frame: Any, other: Any, shift: Any) -> None:
    for y in range(frame.shape[0]):
        for x in range(frame.shape[1]):
            pixel, added = frame[y, x], other[y, x]
            for c in range(len(pixel)):
                value = pixel[c] + (added[c] + shift[c])
                pixel[c] = F32(0) if value < 0 else value


@compiled(F32[:, :, :, ::1], types.intp, F32[:, ::1], F32[:, :, ::1])
def _weigh(frames: Any, oldest: int, taps: Any, out: Any) -> None:
    count, height, width, channels = frames.shape
    wide = np.empty((count, width * channels), np.float32)  # loops over few channels are slow
    for x in range(width):
        wide[:, x * channels : (x + 1) * channels] = taps
    for y in range(height):
        sums = out[y].reshape(-1)
        sums[:] = 0
        for k in range(count):
            slot = oldest + k if oldest + k < count else oldest + k - count
            row, tap = frames[slot, y].reshape(-1), wide[k]
            for i in range(len(sums)):
                sums[i] += row[i] * tap[i]


def rectify(frames: Tensor, shift: Tensor, other: Tensor | None) -> None:
    """Compute ``fast.FrameLoops.rectify``."""
    if other is None:
        for frame in frames.numpy():
            _shift_relu(frame, shift.numpy())
    else:
        for frame, added in zip(frames.numpy(), other.numpy(), strict=True):
            _add_relu(frame, added, shift.numpy())


def weigh(frames: Tensor, oldest: int, taps: Tensor, out: Tensor) -> None:
    """Compute ``fast.FrameLoops.weigh``."""
    for stream, sums in zip(frames.numpy(), out.numpy(), strict=True):
        _weigh(stream, oldest, taps.numpy(), sums)


# Products with int8 weights, which are read once and turned into float32 in registers.


@compiled(F32[:, ::1], numba.int8[:, ::1], F32[::1], F32[:, ::1])
def _int8_product(rows: Any, weight: Any, scale: Any, out: Any) -> None:
    for o in range(weight.shape[0]):
        taps = weight[o]
        for r in range(rows.shape[0]):
            row, total = rows[r], F32(0)
            for i in range(len(row)):
                total += row[i] * F32(taps[i])
            out[r, o] = total * scale[o]


def int8_product(rows: Tensor, weight: Tensor, scale: Tensor, out: Tensor) -> None:
    """Set ``out`` [N, n] to rows [N, m] times int8 weights [n, m], times the scales [n]."""
    _int8_product(rows.numpy(), weight.numpy(), scale.numpy(), out.numpy())
