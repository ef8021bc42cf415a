"""Compiled single-pass loops over float32 frames on a CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from torch import Tensor

from costream.nn.compiled import F32, compiled
from costream.nn.loops import FrameLoops, prefers_one_thread


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


class CompiledLoops(FrameLoops):
    """Compiled loops in one thread; PyTorch's loops where several threads are faster."""

    def rectify(self, frames: Tensor, shift: Tensor, other: Tensor | None) -> None:  # noqa: D102
        if not prefers_one_thread(frames.numel()):
            super().rectify(frames, shift, other)
        elif other is None:
            for frame in frames.numpy():
                _shift_relu(frame, shift.numpy())
        else:
            for frame, added in zip(frames.numpy(), other.numpy(), strict=True):
                _add_relu(frame, added, shift.numpy())

    def weigh(self, frames: Tensor, oldest: int, taps: Tensor, out: Tensor) -> None:  # noqa: D102
        if prefers_one_thread(out.numel()):
            for given, sums in zip(frames.numpy(), out.numpy(), strict=True):
                _weigh(given, oldest, taps.numpy(), sums)
        else:
            super().weigh(frames, oldest, taps, out)
