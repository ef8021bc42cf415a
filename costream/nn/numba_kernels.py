"""Convolutions of frames, depthwise and pointwise, float32 on a CPU, compiled by Numba.

A sum stays in a register until it is complete, and what comes after it (bias, residual, ReLU) is
done there. For the small frames of a step, the overhead of PyTorch's convolution is longer than the
whole computation here; and frames of some steps ago and weights are no longer in the cache, so they
are fetched ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numba
import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model
from numba.np.unsafe.ndarray import to_fixed_tuple
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
_AHEAD = 256  # steps between the taps that are used and those that are fetched


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
        """Return the pointer to another pixel; ``width``: of one, or distances to all, a tuple."""
        if isinstance(width.type, ir.ArrayType):
            offset = self.builder.extract_value(width, pixels)
        else:
            offset = self.builder.mul(width, ir.Constant(width.type, pixels))
        return _PixelPointer(self.builder, self.builder.gep(self.pointer, [offset]))

    def unless(self, condition: Any, other: _PixelPointer) -> _PixelPointer:
        chosen = self.builder.select(condition, other.pointer, self.pointer)
        return _PixelPointer(self.builder, chosen)

    def load(self) -> Any:
        return self.builder.load(self._vector(), align=4)

    def store(self, value: Any) -> None:
        self.builder.store(value, self._vector(), align=4)

    def spread(self) -> Any:
        number, none = ir.Constant(ir.IntType(32), 0), ir.Constant(_VECTOR, ir.Undefined)
        one = self.builder.insert_element(none, self.builder.load(self.pointer), number)
        order = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
        return self.builder.shuffle_vector(one, none, order)

    def fetch(self, level: int) -> None:
        number, byte = ir.IntType(32), ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [byte] + [number] * 3)
        function = cgutils.get_or_insert_function(self.builder.module, kind, "llvm.prefetch.p0i8")
        how = [ir.Constant(number, value) for value in (0, 4 - level, 1)]
        self.builder.call(function, [self.builder.bitcast(self.pointer, byte), *how])

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
def _end(typing: Any, sums: Any, out: Any, at: Any, width: Any, relu: Any) -> Any:
    """Write sums, or their ReLU, to ``out`` from ``at`` on, pixels ``width`` numbers apart."""

    def generate(context: Any, builder: Any, signature: Any, values: Sequence[Any]) -> Any:
        first = _PixelPointer.of(context, builder, signature.args[1], *values[1:3])
        none = ir.Constant(_VECTOR, None)
        for pixel, value in enumerate(cgutils.unpack_tuple(builder, values[0])):
            above = builder.select(builder.fcmp_ordered("<", value, none), none, value)  # NaN stays
            first.beside(values[3], pixel).store(builder.select(values[4], above, value))
        return context.get_dummy_value()

    return types.void(sums, out, at, width, relu), generate


def _fetching(level: int) -> Any:
    @intrinsic  # type: ignore
    def fetch(typing: Any, array: Any, at: Any, width: Any) -> Any:
        """Begin to read pixels, or what will be written over, into the cache of this level."""

        def generate(context: Any, builder: Any, signature: Any, values: Sequence[Any]) -> Any:
            first = _PixelPointer.of(context, builder, signature.args[0], *values[:2])
            for pixel in range(PIXELS):
                first.beside(values[2], pixel).fetch(level)
            return context.get_dummy_value()

        return types.void(array, at, width), generate

    return fetch


_fetch, _fetch_2 = _fetching(1), _fetching(2)


def _row_of_pixels(stride: int) -> Any:
    count = stride * (PIXELS - 1) + 3
    pixels_type = types.UniTuple(_Lanes("lanes"), count)

    @intrinsic  # type: ignore
    def read(
        typing: Any, frames: Any, at: Any, width: Any, left: Any, right: Any, zeros: Any
    ) -> Any:
        """Return the pixels of a row that adjacent sums need.

        ``at``: index of the pixel left of the first one. ``left``, ``right``: whether zeros
        replace the first and the last pixel that is read.
        """

        def generate(context: Any, builder: Any, signature: Any, values: Sequence[Any]) -> Any:
            frames, at, width, left, right, zeros = values
            none = _PixelPointer.of(
                context, builder, signature.args[5], zeros, ir.Constant(at.type, 0)
            )
            first = _PixelPointer.of(context, builder, signature.args[0], frames, at)
            places = [first.beside(width, pixel) for pixel in range(count)]
            places[0], places[-1] = places[0].unless(left, none), places[-1].unless(right, none)
            pixels = [place.load() for place in places]
            return context.make_tuple(builder, signature.return_type, pixels)

        return pixels_type(frames, at, width, left, right, zeros), generate

    @intrinsic  # type: ignore
    def add(typing: Any, sums: Any, pixels: Any, taps: Any, tap: Any, width: Any) -> Any:
        """Add the products of a row of pixels with three adjacent taps to the sums."""

        def generate(context: Any, builder: Any, signature: Any, values: Sequence[Any]) -> Any:
            weight = _PixelPointer.of(context, builder, signature.args[2], *values[2:4])
            sums, pixels = (cgutils.unpack_tuple(builder, value) for value in values[:2])
            for k in range(3):
                factor = weight.beside(values[4], k).load()
                for number in range(PIXELS):
                    product = builder.fmul(pixels[stride * number + k], factor, _FLAGS)
                    sums[number] = builder.fadd(sums[number], product, _FLAGS)
            return context.make_tuple(builder, signature.return_type, sums)

        return _SUMS(sums, pixels, taps, tap, width), generate

    return read, add


(_read, _add_taps), (_read_2, _add_taps_2) = _row_of_pixels(1), _row_of_pixels(2)


@compiled(
    F32[:, :, :, :, ::1], types.intp, F32[:, :, :, ::1], F32[::1], types.intp, F32[:, :, :, ::1]
)
def _depthwise(frames: Any, oldest: int, taps: Any, bias: Any, stride: int, out: Any) -> None:
    count, height, width, channels = frames.shape[1:]
    read, weights, written = frames.ravel(), taps.ravel(), out.ravel()
    zeros = np.zeros(LANES, np.float32)
    lines, across = out.shape[1:3]
    both = stride == 1 and lines > 1  # two lines share most of what they read
    for stream in range(out.shape[0]):
        for y in range(0, lines, 2 if both else 1):
            line = min(y, lines - 2) if both else y  # as below, the last may be repeated
            top = line * stride - 1
            end = top + (4 if both else 3)
            for x in range(0, across, PIXELS):
                pixel = min(x, across - PIXELS)
                first = pixel * stride - 1
                left, right = first < 0, first + stride * (PIXELS - 1) + 2 >= width
                for c in range(0, channels, LANES):
                    channel = min(c, channels - LANES)  # the last group may repeat some channels
                    sums = _begin(bias, channel)
                    below = sums
                    for k in range(count):
                        slot = oldest + k if oldest + k < count else oldest + k - count
                        start = (stream * count + slot) * height
                        for row in range(max(top, 0), min(end, height)):
                            at = ((start + row) * width + first) * channels + channel
                            tap = 3 * (3 * k + row - top) * channels + channel
                            if stride == 1:
                                near = _read(read, at, channels, left, right, zeros)
                                if row < top + 3:
                                    sums = _add_taps(sums, near, weights, tap, channels)
                                if both and row > top:
                                    tap -= 3 * channels
                                    below = _add_taps(below, near, weights, tap, channels)
                            else:
                                wide = _read_2(read, at, channels, left, right, zeros)
                                sums = _add_taps_2(sums, wide, weights, tap, channels)
                        for row in range(end, min(end + 2, height)):
                            at = ((start + row) * width + first + 1) * channels + channel
                            _fetch_2(read, at, channels)
                            if stride > 1:
                                _fetch_2(read, at + PIXELS * channels, channels)
                    at = ((stream * lines + line) * across + pixel) * channels + channel
                    _end(sums, written, at, channels, False)
                    if both:
                        _end(below, written, at + across * channels, channels, False)


@intrinsic  # type: ignore
def _multiply(typing: Any, sums: Any, rows: Any, at: Any, width: Any, taps: Any, tap: Any) -> Any:
    """Add the products of the number at ``at`` of each pixel with ``LANES`` taps to its sums."""

    def generate(context: Any, builder: Any, signature: Any, values: Sequence[Any]) -> Any:
        sums = cgutils.unpack_tuple(builder, values[0])
        first = _PixelPointer.of(context, builder, signature.args[1], *values[1:3])
        taps = _PixelPointer.of(context, builder, signature.args[4], *values[4:6])
        taps.beside(ir.Constant(values[5].type, LANES), _AHEAD).fetch(2)
        factor = taps.load()
        for pixel in range(PIXELS):
            product = builder.fmul(first.beside(values[3], pixel).spread(), factor, _FLAGS)
            sums[pixel] = builder.fadd(sums[pixel], product, _FLAGS)
        return context.make_tuple(builder, signature.return_type, sums)

    return _SUMS(sums, rows, at, width, taps, tap), generate


@intrinsic  # type: ignore
def _plus(typing: Any, sums: Any, other: Any, at: Any, width: Any) -> Any:
    """Return sums plus adjacent pixels of ``other``."""

    def generate(context: Any, builder: Any, signature: Any, values: Sequence[Any]) -> Any:
        first = _PixelPointer.of(context, builder, signature.args[1], *values[1:3])
        sums = [
            builder.fadd(value, first.beside(values[3], pixel).load())
            for pixel, value in enumerate(cgutils.unpack_tuple(builder, values[0]))
        ]
        return context.make_tuple(builder, signature.return_type, sums)

    return _SUMS(sums, other, at, width), generate


_FRAMES, _FLAG = F32[:, :, :, :], types.boolean  # channels are contiguous


@compiled(_FRAMES, F32[:, :, :, ::1], types.intp, F32[::1], _FRAMES, _FLAG, _FLAG, _FRAMES)
def _product(
    x: Any, panels: Any, below: int, bias: Any, other: Any, plus: bool, relu: bool, out: Any
) -> None:
    streams, height, width, channels = out.shape
    rows, depth, lower, right = panels.shape[1], x.shape[3], x.strides[1] // 4, x.strides[2] // 4
    down, across = out.strides[1] // 4, out.strides[2] // 4
    if width < PIXELS:  # frames are contiguous; of sides of 1, NumPy may say anything
        right, across, lower, down = depth, channels, width * depth, width * channels
    if rows == 1 and lower == width * right and down == width * across:  # all pixels are one row
        height, width = 1, height * width
    weights = panels.ravel()
    for panel in range(len(panels)):
        channel = min(LANES * panel, channels - LANES)  # the last may repeat some channels
        for stream in range(streams):
            for y in range(height):
                for k in range(0, width, PIXELS):
                    pixel = min(k, width - PIXELS)
                    sums = _begin(bias, channel)
                    here = stream * (out.strides[0] // 4) + y * down + pixel * across + channel
                    _fetch(out, here + LANES, across)
                    first = stream * (x.strides[0] // 4) + y * lower + pixel * right
                    tap = panel * rows * depth * LANES
                    for _ in range(rows):
                        for number in range(first, first + depth):
                            sums = _multiply(sums, x, number, right, weights, tap)
                            tap += LANES
                        first += below
                    if plus:
                        at = (y * width + pixel) * channels + channel
                        sums = _plus(sums, other, at + stream * (other.strides[0] // 4), channels)
                    _end(sums, out, here, across, relu)


@compiled(
    *(F32[::1], numba.int64[:, :, ::1], types.intp, F32[:, :, :, ::1], F32[::1], F32[::1], _FLAG),
    F32[::1],
)
def _patch_product(
    x: Any, index: Any, below: int, panels: Any, bias: Any, other: Any, plus: bool, out: Any
) -> None:
    rows, depth, weights = panels.shape[1], panels.shape[2], panels.ravel()
    for panel in range(len(panels)):
        channel = min(LANES * panel, len(bias) - LANES)  # the last may repeat some channels
        for k in range(index.shape[1]):
            patches = to_fixed_tuple(index[0, k], PIXELS)
            sums, tap = _begin(bias, channel), panel * rows * depth * LANES
            for first in range(0, rows * below, below):
                for number in range(first, first + depth):
                    sums = _multiply(sums, x, number, patches, weights, tap)
                    tap += LANES
            if plus:
                sums = _plus(sums, other, channel, to_fixed_tuple(index[2, k], PIXELS))
            _end(sums, out, channel, to_fixed_tuple(index[1, k], PIXELS), True)


def _memory(x: Tensor, group: int = PIXELS) -> tuple[Any, Any]:
    """Return all numbers where ``x`` is, and its places [..., group], the last one repeated."""
    size = x.untyped_storage().nbytes() // 4
    places = torch.arange(size).as_strided(x.shape, x.stride(), x.storage_offset()).flatten()
    whole = np.pad(places.numpy(), (0, -len(places) % group), "edge").reshape(-1, group)
    return x.as_strided((size,), (1,), 0).numpy(), whole


class Product:
    """Pointwise convolution of frames, or one over some rows of pixels.

    Args:
        taps: [rows, I, O], at least ``LANES`` outputs. ``bias``: [O].
    """

    def __init__(self, taps: Tensor, bias: Tensor) -> None:
        firsts = [min(k, len(bias) - LANES) for k in range(0, len(bias), LANES)]
        panels = [taps.numpy()[..., k : k + LANES] for k in firsts]
        self._panels = np.ascontiguousarray(np.stack(panels))
        self._bias = bias.numpy()

    def suits(self, x: Tensor) -> bool:
        """Return whether frames have enough pixels side by side, and lie in memory as needed."""
        if x.shape[2] >= PIXELS:
            return x.stride(3) == 1
        enough = len(self._panels[0]) == 1 and x.shape[1] * x.shape[2] >= PIXELS
        return enough and x[0].is_contiguous()

    def __call__(
        self, x: Tensor, out: Tensor, other: Tensor | None, relu: bool, below: int = 0
    ) -> None:
        """Set ``out`` [B, H, W, O] to the result for ``x`` [B, H, W, I], plus ``other``.

        A frame of one stream is contiguous in ``other``, and where it is narrow in ``out``.
        ``below``: numbers from one row of a kernel to the next.
        """
        written, plus = out.numpy(), other is not None
        added = written if other is None else other.numpy()
        _product(x.numpy(), self._panels, below, self._bias, added, plus, relu, written)

    def bind(self, patches: Tensor, out: Tensor, other: Tensor | None) -> Callable[[], None]:
        """Return the product that sets ``out`` [B, H, W, O] by patches [B, H, W, rows, I].

        With bias, ``other`` [B, H, W, O] and ReLU. Patches may overlap; numbers of a row of a patch
        are adjacent, as those of a pixel are.
        """
        firsts = patches[..., 0, 0], out[..., 0], (out if other is None else other)[..., 0]
        (x, *_), (written, *_), (added, *_) = parts = [_memory(first) for first in firsts]
        index, plus = np.stack([places for _, places in parts]), other is not None
        below, weights = patches.stride(3), (self._panels, self._bias)
        return partial(_patch_product, x, index, below, *weights, added, plus, written)


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


# Swish of float32 frames, after squeeze-and-excitation if there is.


_SERIES = tuple(
    F32(x) for x in (1.3333558e-3, 9.6181291e-3, 0.055504109, 0.24022651, 0.69314718, 1)
)
_UNGATED = (*[np.empty((0, 0), np.float32), np.empty(0, np.float32)] * 2,)


@compiled(F32[:, ::1], F32[:, ::1], F32[::1], F32[:, ::1], F32[::1])
def _swish(rows: Any, first: Any, first_bias: Any, second: Any, second_bias: Any) -> None:
    count, channels = rows.shape
    gate = np.ones(channels, np.float32)
    if len(first):
        sums, hidden, gate = np.zeros(channels, np.float32), first_bias.copy(), second_bias.copy()
        for k in range(count):
            row = rows[k]
            for c in range(channels):
                sums[c] += row[c]
        for c in range(channels):
            mean = sums[c] / F32(count)
            for h in range(len(hidden)):
                hidden[h] += mean * first[c, h]
        for h in range(len(hidden)):
            value = max(hidden[h], F32(0))
            for c in range(channels):
                gate[c] += value * second[h, c]
        for c in range(channels):
            gate[c] = F32(1) / (F32(1) + np.exp(-gate[c]))
    for k in range(count):
        row = rows[k]
        for c in range(channels):
            value = row[c] * gate[c]
            # exp(-value), by a polynomial, since NumPy's is not vectorised: 2**whole times 2**part
            power = min(max(value * F32(-1.44269504), F32(-126)), F32(126))
            whole = np.floor(power + F32(0.5))
            part, series = power - whole, F32(1.5403530e-4)
            for term in _SERIES:
                series = series * part + term
            scale = np.int32((np.int32(whole) + 127) << 23).view(np.float32)
            row[c] = value / (F32(1) + series * scale)


def swish(frames: Tensor, gate: Sequence[Tensor]) -> None:
    """Compute ``fast.swish``."""
    weights = [part.numpy() for part in gate] or _UNGATED
    for frame in frames.numpy():
        _swish(frame.reshape(-1, frame.shape[-1]), *weights)


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
