"""Steps of encoder blocks of one stream, float32 on a CPU, compiled by Numba.

PyTorch takes a dozen calls for the new row of a block; for all rows of a window it passes over
memory between products, and its attention is slow for narrow heads. Here a block is one call. Rows
of a window are in panels [C, LANES], one row a lane: products then read weights as ``nn.Linear``
stores them, and norms and softmax have no sum over the numbers of a vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numba
import numpy as np
import torch
from numba import types
from torch import Tensor

from costream.nn.simd import (
    F32,
    LANES,
    PIXELS,
    add_pixels,
    broadcast,
    compiled,
    dot_products,
    exp,
    floats_at,
    inline,
    load,
    maximum,
    sqrt,
    store,
    store_sums,
)

# Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26
_ERF = tuple(F32(x) for x in (-1.453152027, 1.421413741, -0.284496736, 0.254829592))


@inline
def _gelu(x: Any) -> Any:
    """Return x (1 + erf(x / sqrt 2)) / 2."""
    one, zero = broadcast(1), broadcast(0)
    size = maximum(zero - x, x)
    t = one / (one + size * broadcast(0.3275911 * 0.5**0.5))
    series = broadcast(1.061405429)
    for term in _ERF:
        series = series * t + broadcast(term)
    # erfc(|x| / sqrt 2) / 2
    rest = series * t * exp(x * x * broadcast(-0.5)) * broadcast(0.5)
    return maximum(zero, x) - size * rest


@inline
def _activate(x: Any, relu: int) -> None:
    for at in range(0, len(x), LANES):
        value = load(x, at)
        store(x, at, maximum(broadcast(0), value) if relu else _gelu(value))


# All rows of a window: a block behind retroactive attention. Panels are [P, C, LANES].


@inline
def _times_panels(weight: Any, bias: Any, x: Any, other: Any, out: Any) -> None:
    """Set panels ``out`` to weight [O, I] times panels ``x``, plus bias, plus ``other`` if any."""
    outs, width, biases = len(bias), len(weight) // len(bias), np.empty(LANES * PIXELS, np.float32)
    for k in range(0, outs, PIXELS):
        o = min(k, outs - PIXELS)  # the last group may repeat some outputs
        for p in range(PIXELS):
            store(biases, p * LANES, broadcast(bias[o + p]))
        for panel in range(len(x) // (width * LANES)):
            sums = dot_products(weight, o * width, width, 1, width, x, panel * width * LANES)
            sums, at = add_pixels(sums, biases, 0, LANES), (panel * outs + o) * LANES
            sums = add_pixels(sums, other, at, LANES) if len(other) else sums
            store_sums(sums, out, at, LANES, False)


@inline
def _normalise_panels(x: Any, weight: Any, bias: Any, eps: Any) -> None:
    width = len(weight)
    for start in range(0, len(x), width * LANES):
        here, mean, square = range(start, start + width * LANES, LANES), broadcast(0), broadcast(0)
        for at in here:
            mean = mean + load(x, at)
        mean = mean / broadcast(width)
        for at in here:
            square = square + (load(x, at) - mean) * (load(x, at) - mean)
        scale = broadcast(1) / sqrt(square / broadcast(width) + broadcast(eps), 0)
        for c in range(width):
            value = (load(x, start + c * LANES) - mean) * scale
            store(x, start + c * LANES, value * broadcast(weight[c]) + broadcast(bias[c]))


@inline
def _transpose(rows: Any, width: int, panels: Any, back: bool) -> None:
    """Copy rows [n, C] to panels, or back; what is over of the last panel is its last row."""
    count = len(rows) // width
    for start in range(0, len(panels) // width, LANES):
        for first in range(0, width, LANES):
            for lane in range(LANES):
                row, at = min(start + lane, count - 1) * width, start * width + lane
                for c in range(first, min(first + LANES, width)):
                    if back:
                        rows[row + c] = panels[at + c * LANES]
                    else:
                        panels[at + c * LANES] = rows[row + c]


@inline
def _attend_panels(q: Any, k: Any, v: Any, e: int, n: int, out: Any) -> None:
    """Set panels ``out`` to attention of queries, scaled keys and values [h, n, e]."""
    panels, inner = -(-n // LANES), len(q) // n
    query, logits = np.empty(panels * e * LANES, np.float32), np.empty(n * LANES, np.float32)
    for start in range(0, len(q), n * e):
        _transpose(q[start : start + n * e], e, query, False)
        for panel in range(panels):
            for j in range(0, n, PIXELS):
                key = min(j, n - PIXELS)
                sums = dot_products(k, start + key * e, e, 1, e, query, panel * e * LANES)
                store_sums(sums, logits, key * LANES, LANES, False)
            top, total = load(logits, 0), broadcast(0)
            for at in range(LANES, n * LANES, LANES):
                top = maximum(top, load(logits, at))
            for at in range(0, n * LANES, LANES):
                value = exp(load(logits, at) - top)
                store(logits, at, value)
                total = total + value
            here = (panel * inner + start // n) * LANES
            for first in range(0, e, PIXELS):
                c = min(first, e - PIXELS)
                sums = dot_products(v, start + c, 1, e, n, logits, 0)
                store_sums(sums, out, here + c * LANES, LANES, False)
            for at in range(here, here + e * LANES, LANES):
                store(out, at, load(out, at) / total)


# The new row.


@inline
def _new(count: int) -> Any:
    return np.empty(count, np.float32)


@inline
def _whole(count: int) -> int:
    return -(-count // LANES) * LANES


@inline
def _dots(x: Any, rows: Any, out: Any) -> None:
    """Set ``out`` [m] to the products of rows [m, C] with ``x`` [C]."""
    for m in range(len(out)):
        row, total = rows[m * len(x) : (m + 1) * len(x)], F32(0)
        for c in range(len(x)):
            total += x[c] * row[c]
        out[m] = total


@inline
def _mix(weights: Any, rows: Any, out: Any) -> None:
    """Set ``out`` [C] to the sum of rows [m, C] with ``weights`` [m]."""
    out[:] = 0
    for m in range(len(weights)):
        row, weight = rows[m * len(out) : (m + 1) * len(out)], weights[m]
        for c in range(len(out)):
            out[c] += weight * row[c]


@inline
def _linear(x: Any, weight: Any, bias: Any) -> Any:
    """Return a row after a linear layer; memory reaches to a multiple of ``LANES``."""
    out = _new(_whole(len(bias)))[: len(bias)]
    _dots(x, weight, out)
    out += bias
    return out


@inline
def _normalise(x: Any, weight: Any, bias: Any, eps: Any, out: Any) -> None:
    mean, square, width = F32(0), F32(0), F32(len(x))
    for c in range(len(x)):
        mean += x[c]
    mean /= width
    for c in range(len(x)):
        square += (x[c] - mean) * (x[c] - mean)
    scale = F32(1) / np.sqrt(square / width + eps)
    for c in range(len(x)):
        out[c] = (x[c] - mean) * scale * weight[c] + bias[c]


@inline
def _softmax(logits: Any, filled: int) -> None:
    """Replace logits by their softmax, 0 from ``filled`` on; a multiple of ``LANES`` numbers."""
    logits[filled:] = -np.inf
    lanes, top, total = _new(LANES), load(logits, 0), broadcast(0)
    for at in range(LANES, len(logits), LANES):
        top = maximum(top, load(logits, at))
    store(lanes, 0, top)
    top = broadcast(lanes.max())
    for at in range(0, len(logits), LANES):
        store(logits, at, exp(load(logits, at) - top))
        total = total + load(logits, at)
    store(lanes, 0, total)
    logits *= F32(1) / lanes.sum()
    logits[filled:] = 0


@inline
def _at(where: Any, k: int) -> Any:
    return floats_at(where[0, k], where[1, k])


@inline
def _weights(where: Any) -> Any:
    first = (_at(where, 0), _at(where, 1), _at(where, 2), _at(where, 3), _at(where, 4))
    others = (_at(where, 5), _at(where, 6), _at(where, 7), _at(where, 8), _at(where, 9))
    return (*first, *others, _at(where, 10), _at(where, 11))


@inline
def _project(w: Any, x: Any, e: int) -> Any:
    """Return the query, key / sqrt(e) and value of a row, [3, h e]."""
    row = _linear(x, w[0], w[1]).reshape(3, -1)
    row[1] /= np.sqrt(F32(e))
    return row


@inline
def _finish(w: Any, x: Any, attended: Any, relu: int, eps: Any, out: Any) -> None:
    """Set ``out`` [d] to a row ``x`` [d] after the block, for its attention before projection."""
    y = _linear(attended, w[2], w[3]) + x
    _normalise(y, w[8], w[9], eps[0], y)
    hidden = _linear(y, w[4], w[5])
    _activate(hidden, relu)
    _normalise(_linear(hidden, w[6], w[7]) + y, w[10], w[11], eps[1], out)


# Steps. ``where``: addresses and sizes of weights, input, output, rings; see BlockLoops.


_step = compiled(numba.int64[:, ::1], numba.int64[::1], types.UniTuple(F32, 2), *[types.intp] * 2)


@_step
def _one_row(where: Any, sizes: Any, eps: Any, slot: int, filled: int) -> None:
    e, n, relu, wide = sizes
    w, x, keys, values = _weights(where), _at(where, 12), _at(where, 14), _at(where, 15)
    row, logits = _project(w, x, e), _new(_whole(n))
    attended = _new(row.shape[1])
    for first in range(0, len(attended), e):
        query, out = row[0, first : first + e], attended[first : first + e]
        k, v = keys[first * n : (first + e) * n], values[first * n : (first + e) * n]
        for c in range(e):
            at = slot * e + c if wide else c * n + slot
            k[at], v[at] = row[1, first + c], row[2, first + c]
        if wide:
            _dots(query, k, logits[:n])
        else:
            _mix(query, k, logits[:n])
        _softmax(logits, filled)
        if wide:
            _mix(logits[:n], v, out)
        else:
            _dots(logits[:n], v, out)
    _finish(w, x, attended, relu, eps, _at(where, 13))


@_step
def _changed_rows(where: Any, sizes: Any, eps: Any, slot: int, _: int) -> None:
    e, n, relu, _ = sizes
    w, rows, out = _weights(where), _at(where, 12), _at(where, 13)
    d, inner = len(out), len(w[1]) // 3
    x = rows[slot * d : (slot + 1) * d]
    query = _linear(x, w[0], w[1][:inner]) / np.sqrt(F32(e))
    mean, attended, logits = _new(d), _new(inner), _new(_whole(n))
    for first in range(0, inner, e):  # see SingleOutputAttention.attend_changed
        _mix(query[first : first + e], w[0][(inner + first) * d :], mean)
        _dots(mean, rows, logits[:n])
        _softmax(logits, n)
        _mix(logits[:n], rows, mean)
        _dots(mean, w[0][(2 * inner + first) * d :], attended[first : first + e])
    _finish(w, x, attended + w[1][2 * inner :], relu, eps, out)


@_step
def _all_rows(where: Any, sizes: Any, eps: Any, slot: int, _: int) -> None:
    e, n, relu, _ = sizes
    w, x, k, v = _weights(where), _at(where, 12), _at(where, 14), _at(where, 15)
    q, rows, row = _at(where, 16), _at(where, 17), _project(w, x, e)
    d, inner, lines = len(x), row.shape[1], _whole(n)
    for c in range(inner):
        at = c // e * n * e + slot * e + c % e
        q[at], k[at], v[at] = row[0, c], row[1, c], row[2, c]
    rows[slot * d : (slot + 1) * d] = x
    attended, y, z = _new(lines * inner), _new(lines * d), _new(lines * d)
    hidden = _new(lines * len(w[5]))
    _attend_panels(q, k, v, e, n, attended)
    _transpose(rows, d, z, False)
    _times_panels(w[2], w[3], attended, z, y)
    _normalise_panels(y, w[8], w[9], eps[0])
    _times_panels(w[4], w[5], y, _new(0), hidden)
    _activate(hidden, relu)
    _times_panels(w[6], w[7], hidden, y, z)
    _normalise_panels(z, w[10], w[11], eps[1])
    _transpose(_at(where, 13), d, z, True)


class BlockLoops:
    """The compiled steps of a post-norm block with the state of one stream.

    ``weights``: W and b of the input and output projections, of both layers of the feed-forward,
    and of both norms. They may change in place; ``fits`` tells when they moved. ``sizes``: head
    width, window, whether it is ReLU (or GELU), whether rings are [h, n, e] (or [h, e, n]).
    """

    def __init__(
        self, weights: list[Tensor], rings: list[Tensor], steps: Tensor, sizes: Any, eps: Any
    ) -> None:
        given = [*weights, *weights[:2], *rings, weights[0]]
        where = [[t.data_ptr() for t in given], [t.numel() for t in given]]
        self._kept, self._places, self._eps = given, _places(weights), eps
        self._where, self._sizes = np.array(where, np.int64), np.array(sizes, np.int64)
        self._steps, self.window, self.width = steps.numpy(), sizes[1], weights[0].shape[1]

    def fits(self, weights: Sequence[Tensor | None]) -> bool:
        """Return whether the weights are where they were."""
        return _places(weights) == self._places

    def step(self, x: Tensor) -> Tensor:
        """Return a row [1, d] after single-output attention and the rest of the block."""
        return self._run(_one_row, x, torch.empty_like(x), self._count())

    def slide(self, x: Tensor, rows: Tensor) -> tuple[Tensor, int] | None:
        """Store a row, return all rows after the block and the newest's slot.

        ``rows``: the ring [1, n, d] of input rows. None before the window is full; nothing is done.
        """
        if self._steps[0] + 1 < self.window:
            return None
        time = self._count()
        self._where[:, 17] = rows.data_ptr(), rows.numel()
        return self._run(_all_rows, x, torch.empty_like(rows), time), time % self.window

    def newest(self, rows: Tensor, slot: int) -> Tensor:
        """Return the row in this slot of [1, n, d], which are all new, after the block, [1, d]."""
        return self._run(_changed_rows, rows, rows.new_empty(1, self.width), slot)

    def _count(self) -> int:
        time = int(self._steps[0])
        self._steps[0] = time + 1
        return time

    def _run(self, loop: Any, x: Tensor, out: Tensor, time: int) -> Tensor:
        where, n = self._where, self.window
        where[0, 12], where[0, 13] = x.data_ptr(), out.data_ptr()
        where[1, 12], where[1, 13] = x.numel(), out.numel()
        loop(where, self._sizes, self._eps, time % n, min(time + 1, n))
        return out


def _places(tensors: Sequence[Tensor | None]) -> list[int]:
    return [t.data_ptr() for t in tensors if t is not None]
