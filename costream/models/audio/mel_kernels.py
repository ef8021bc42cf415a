"""Log-mel frames of blocks of sound, float32 on a CPU, compiled by Numba.

PyTorch takes six calls for the frames of a hop, and plans its Fourier transform in each. Here it is
one call: sixteen frames are transformed side by side, one a lane of a vector.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numba
import numpy as np
from torch import Tensor

from costream.nn.simd import (
    F32,
    LANES,
    PIXELS,
    broadcast,
    compiled,
    dot_products,
    load,
    memory_of,
    store,
    store_sums,
)

_PLACES, _ROWS, _ROW = numba.int64[:, ::1], F32[:, ::1], F32[::1]


@compiled(_ROW, _PLACES, _ROW, _ROWS, numba.int64[::1], _ROW, F32, numba.boolean, _ROWS)
def _log_mel(
    x: Any,
    places: Any,
    hann: Any,
    turns: Any,
    order: Any,
    matrix: Any,
    add: Any,
    root: bool,
    out: Any,
) -> None:
    size, (frames, bands) = len(order), out.shape
    z, sums = np.empty(2 * size * LANES, np.float32), np.empty(bands * LANES, np.float32)
    power = np.empty((size + 1) * LANES, np.float32)
    for panel in range(len(places)):
        z[:] = 0  # real and imaginary numbers: even and odd samples
        for k in range(len(hann)):
            to = (2 * order[k // 2] + k % 2) * LANES
            for lane in range(LANES):
                z[to + lane] = x[places[panel, lane] + k] * hann[k]
        half = 1
        while half < size:  # Cooley and Tukey, 1965
            for k in range(half):
                c, s = (
                    broadcast(turns[0, k * (size // half)]),
                    broadcast(turns[1, k * (size // half)]),
                )
                for first in range(k, size, 2 * half):
                    a, b = 2 * first * LANES, 2 * (first + half) * LANES
                    u, v = load(z, b), load(z, b + LANES)
                    u, v = u * c - v * s, u * s + v * c
                    left, right = load(z, a), load(z, a + LANES)
                    store(z, a, left + u)
                    store(z, a + LANES, right + v)
                    store(z, b, left - u)
                    store(z, b + LANES, right - v)
            half *= 2
        for k in range(size // 2 + 1):  # twice the transforms of even and of odd samples
            c, s = broadcast(turns[0, k]), broadcast(turns[1, k])
            a, b = 2 * k * LANES, 2 * ((size - k) % size) * LANES
            even, odd = load(z, a) + load(z, b), load(z, a + LANES) + load(z, b + LANES)
            even_i, odd_i = load(z, a + LANES) - load(z, b + LANES), load(z, b) - load(z, a)
            odd, odd_i = odd * c - odd_i * s, odd * s + odd_i * c
            u, v = even + odd, even_i + odd_i
            store(power, k * LANES, (u * u + v * v) * broadcast(0.25))
            u, v = even - odd, even_i - odd_i
            store(power, (size - k) * LANES, (u * u + v * v) * broadcast(0.25))
        if root:
            power[:] = np.sqrt(power)
        for band in range(0, bands, PIXELS):
            o = min(band, bands - PIXELS)  # the last group may repeat some bands
            tile = dot_products(matrix, o, 1, bands, size + 1, power, 0)
            store_sums(tile, sums, o * LANES, LANES, False)
        for lane in range(min(LANES, frames - panel * LANES)):
            for band in range(bands):
                out[panel * LANES + lane, band] = np.log(sums[band * LANES + lane] + add)


def log_mel_loop(
    windows: Tensor, hann: Tensor, matrix: Tensor, add: float, root: bool, out: Tensor
) -> Callable[[], None] | None:
    """Return what sets ``out`` [B, T, bands] to the log-mel frames of windows [B, T, window].

    ``matrix``: [fft / 2 + 1, bands]. Samples and parameters may change in place. None if ``fft`` is
    not a power of two, or for few bands.
    """
    size = len(matrix) - 1
    if size & (size - 1) or not size or matrix.shape[1] < PIXELS:
        return None
    angles = -np.pi * np.arange(size) / size
    turns, order = np.stack([np.cos(angles), np.sin(angles)]), np.zeros(1, np.int64)
    for _ in range(int(math.log2(size))):
        order = np.concatenate([2 * order, 2 * order + 1])
    memory, places = memory_of(windows[..., 0], LANES)
    weights = hann.numpy(), turns.astype(np.float32), order, matrix.view(-1).numpy()
    return partial(_log_mel, memory, places, *weights, add, root, out.flatten(0, 1).numpy())
