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
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.unsafe.ndarray import to_fixed_tuple
from torch import Tensor

from costream.nn.simd import (
    EXP2_SERIES,
    F32,
    FUSED,
    LANES,
    PIXELS,
    SUMS,
    Lanes,
    PixelPointer,
    add_pixels,
    compiled,
    memory_of,
    multiply_add,
    prefetch,
    prefetch_2,
    start_sums,
    store_sums,
)


def _row_of_pixels(stride: int) -> Any:
    count = stride * (PIXELS - 1) + 3
    pixels_type = types.UniTuple(Lanes("lanes"), count)

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
            none = PixelPointer.of(
                context, builder, signature.args[5], zeros, ir.Constant(at.type, 0)
            )
            first = PixelPointer.of(context, builder, signature.args[0], frames, at)
            places = [first.beside(width, pixel) for pixel in range(count)]
            places[0], places[-1] = places[0].unless(left, none), places[-1].unless(right, none)
            pixels = [place.load() for place in places]
            return context.make_tuple(builder, signature.return_type, pixels)

        return pixels_type(frames, at, width, left, right, zeros), generate

    @intrinsic  # type: ignore
    def add(typing: Any, sums: Any, pixels: Any, taps: Any, tap: Any, width: Any) -> Any:
        """Add the products of a row of pixels with three adjacent taps to the sums."""

        def generate(context: Any, builder: Any, signature: Any, values: Sequence[Any]) -> Any:
            weight = PixelPointer.of(context, builder, signature.args[2], *values[2:4])
            sums, pixels = (cgutils.unpack_tuple(builder, value) for value in values[:2])
            for k in range(3):
                factor = weight.beside(values[4], k).load()
                for number in range(PIXELS):
                    product = builder.fmul(pixels[stride * number + k], factor, FUSED)
                    sums[number] = builder.fadd(sums[number], product, FUSED)
            return context.make_tuple(builder, signature.return_type, sums)

        return SUMS(sums, pixels, taps, tap, width), generate

    return read, add


(_row, _add_taps), (_row_2, _add_taps_2) = _row_of_pixels(1), _row_of_pixels(2)


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
                    sums = start_sums(bias, channel)
                    below = sums
                    for k in range(count):
                        slot = oldest + k if oldest + k < count else oldest + k - count
                        start = (stream * count + slot) * height
                        for row in range(max(top, 0), min(end, height)):
                            at = ((start + row) * width + first) * channels + channel
                            tap = 3 * (3 * k + row - top) * channels + channel
                            if stride == 1:
                                near = _row(read, at, channels, left, right, zeros)
                                if row < top + 3:
                                    sums = _add_taps(sums, near, weights, tap, channels)
                                if both and row > top:
                                    tap -= 3 * channels
                                    below = _add_taps(below, near, weights, tap, channels)
                            else:
                                wide = _row_2(read, at, channels, left, right, zeros)
                                sums = _add_taps_2(sums, wide, weights, tap, channels)
                        for row in range(end, min(end + 2, height)):
                            at = ((start + row) * width + first + 1) * channels + channel
                            prefetch_2(read, at, channels)
                            if stride > 1:
                                prefetch_2(read, at + PIXELS * channels, channels)
                    at = ((stream * lines + line) * across + pixel) * channels + channel
                    store_sums(sums, written, at, channels, False)
                    if both:
                        store_sums(below, written, at + across * channels, channels, False)


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
                    sums = start_sums(bias, channel)
                    here = stream * (out.strides[0] // 4) + y * down + pixel * across + channel
                    prefetch(out, here + LANES, across)
                    first = stream * (x.strides[0] // 4) + y * lower + pixel * right
                    tap = panel * rows * depth * LANES
                    for _ in range(rows):
                        for number in range(first, first + depth):
                            sums = multiply_add(sums, x, number, right, weights, tap)
                            tap += LANES
                        first += below
                    if plus:
                        at = (y * width + pixel) * channels + channel
                        sums = add_pixels(
                            sums, other, at + stream * (other.strides[0] // 4), channels
                        )
                    store_sums(sums, out, here, across, relu)


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
            sums, tap = start_sums(bias, channel), panel * rows * depth * LANES
            for first in range(0, rows * below, below):
                for number in range(first, first + depth):
                    sums = multiply_add(sums, x, number, patches, weights, tap)
                    tap += LANES
            if plus:
                sums = add_pixels(sums, other, channel, to_fixed_tuple(index[2, k], PIXELS))
            store_sums(sums, out, channel, to_fixed_tuple(index[1, k], PIXELS), True)


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
        self.on(x, out, other, relu, below)()

    def on(
        self, x: Tensor, out: Tensor, other: Tensor | None, relu: bool, below: int = 0
    ) -> Callable[[], None]:
        """Return the call with these tensors, which are read and written where they are now."""
        written, plus = out.numpy(), other is not None
        added = written if other is None else other.numpy()
        weights = self._panels, below, self._bias
        return partial(_product, x.numpy(), *weights, added, plus, relu, written)

    def bind(self, patches: Tensor, out: Tensor, other: Tensor | None) -> Callable[[], None]:
        """Return the product that sets ``out`` [B, H, W, O] by patches [B, H, W, rows, I].

        With bias, ``other`` [B, H, W, O] and ReLU. Patches may overlap; numbers of a row of a patch
        are adjacent, as those of a pixel are.
        """
        firsts = patches[..., 0, 0], out[..., 0], (out if other is None else other)[..., 0]
        (x, *_), (written, *_), (added, *_) = parts = [memory_of(first) for first in firsts]
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
            for term in EXP2_SERIES:
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
