"""Loops over chosen places of feature maps that are kept, compiled by Numba.

Maps of all streams are one buffer [B L]: a map of stream b has the numbers ``begin`` to ``begin + H
W C`` from b L on, channels last. ``places`` int64 [M] are numbers of places among the maps [S, H',
W'] that are computed, of the streams whose numbers begin at ``streams`` int64 [S] in the buffer.
Results are rows [M C]. ``shape`` is (begin, H, W, C) of the map that is read, and (H', W') of the
one that is computed; ``window`` is the side of a square, its stride, and the zeros above and before
the map. Indices are unsigned, without which the innermost loops are not vectorised.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from costream.nn.compiled import compiled_when_used, inline

_U = np.uint64


@inline
def _start(n: int, size: tuple[int, int], window: tuple[int, ...]) -> tuple[int, int, int]:
    """Return the stream, and the first row and column that place ``n`` reads."""
    high, wide = size
    s, place = n // (high * wide), n % (high * wide)
    _, stride, above, before = window
    return s, place // wide * stride - above, place % wide * stride - before


@compiled_when_used
def changes(pictures: Any, buffer: Any, streams: Any, shape: Any, out: Any) -> None:
    """Set ``out`` [S, h, w] to the mean square of the change of each cell of ``pictures``.

    ``pictures`` [S H W C] are compared with the first map of each stream; ``shape``: (H, W, C) and
    the side of a cell.
    """
    height, width, channels, cell = shape
    out[:] = 0
    for s in range(len(out)):
        for y in range(height):
            sums = out[s, y // cell]
            for j in range(out.shape[2]):
                first = y * width + j * cell
                n = _U(min(cell, width - j * cell) * channels)
                now, before = _U((s * height * width + first) * channels), _U(first * channels)
                before, total = before + _U(streams[s]), sums[j]
                for k in range(n):
                    change = pictures[now + k] - buffer[before + k]
                    total += change * change
                sums[j] = total
        for i in range(out.shape[1]):
            high = min(cell, height - i * cell)
            for j in range(out.shape[2]):
                out[s, i, j] /= high * min(cell, width - j * cell) * channels


@compiled_when_used
def keep_cells(pictures: Any, buffer: Any, streams: Any, shape: Any, chosen: Any) -> None:
    """Copy the chosen cells, bool [S, h, w], of ``pictures`` to the first map; see ``changes``."""
    height, width, channels, cell = shape
    for s in range(len(chosen)):
        for y in range(height):
            some = chosen[s, y // cell]
            for j in range(len(some)):
                if some[j]:
                    first = y * width + j * cell
                    n = _U(min(cell, width - j * cell) * channels)
                    now, at = _U((s * height * width + first) * channels), _U(first * channels)
                    at += _U(streams[s])
                    for k in range(n):
                        buffer[at + k] = pictures[now + k]


@compiled_when_used
def reach(chosen: Any, rows: Any, columns: Any, out: Any) -> int:
    """Write the places that chosen cells, bool [S, h, w], reach to ``out``, return their number.

    ``rows`` [2, H'], ``columns`` [2, W']: the first cell that reaches each, and the one after the
    last.
    """
    count, wide = 0, columns.shape[1]
    sums = np.zeros(chosen.shape[2] + 1, np.int64)  # of the cells to the left of each
    for s in range(len(chosen)):
        for y in range(rows.shape[1]):
            for x in range(chosen.shape[2]):
                some = False
                for i in range(rows[0, y], rows[1, y]):
                    some |= chosen[s, i, x]
                sums[x + 1] = sums[x] + some
            if sums[-1] == 0:
                continue
            first = (s * rows.shape[1] + y) * wide
            for x in range(wide):
                if sums[columns[1, x]] > sums[columns[0, x]]:
                    out[count] = first + x
                    count += 1
    return count


@compiled_when_used
def put(rows: Any, places: Any, buffer: Any, streams: Any, shape: Any, slope: Any) -> None:
    """Write rows [M C] to their places in a map; numbers below zero times ``slope``."""
    begin, _, _, channels, high, wide = shape
    for m in range(len(places)):
        place = places[m] % (high * wide)
        first = _U(streams[places[m] // (high * wide)] + begin + place * channels)
        row = _U(m * channels)
        if slope == 1:
            for c in range(_U(channels)):
                buffer[first + c] = rows[row + c]
        else:
            for c in range(_U(channels)):
                value = rows[row + c]
                buffer[first + c] = value * slope if value < 0 else value


@compiled_when_used
def patches(buffer: Any, streams: Any, places: Any, shape: Any, window: Any, out: Any) -> None:
    """Set ``out`` [M side side C] to what each place of a convolution reads; zeros outside."""
    begin, height, width, channels, high, wide = shape
    side, n = window[0], _U(channels)
    for m in range(len(places)):
        s, top, left = _start(places[m], (high, wide), window)
        for i in range(side):
            for j in range(side):
                y, x = top + i, left + j
                to = _U((m * side * side + i * side + j) * channels)
                if 0 <= y < height and 0 <= x < width:
                    at = _U(streams[s] + begin + (y * width + x) * channels)
                    for c in range(n):
                        out[to + c] = buffer[at + c]
                else:
                    for c in range(n):
                        out[to + c] = 0


@compiled_when_used
def depthwise(
    buffer: Any, streams: Any, places: Any, shape: Any, window: Any, layer: Any, out: Any
) -> None:
    """Set ``out`` [M C] to a depthwise convolution; ``layer``: weight [side side C], bias [C]."""
    begin, height, width, channels, high, wide = shape
    weight, bias = layer
    side, n = window[0], _U(channels)
    for m in range(len(places)):
        s, top, left = _start(places[m], (high, wide), window)
        first, to = streams[s] + begin, _U(m * channels)
        whole = left >= 0 and left + side <= width
        if whole and side == 3 and top >= 0 and top + side <= height:
            at = _U(first + (top * width + left) * channels)
            _square3(buffer, at, n, _U(width * channels), weight, bias, out, to)
            continue
        for c in range(n):
            out[to + c] = bias[c]
        for i in range(max(0, -top), min(side, height - top)):
            row, factors = first + ((top + i) * width + left) * channels, i * side * channels
            if whole and side == 5:
                _row5(buffer, _U(row), n, weight, _U(factors), out, to)
                continue
            for j in range(max(0, -left), min(side, width - left)):
                a, u = _U(row + j * channels), _U(factors + j * channels)
                for c in range(n):
                    out[to + c] += buffer[a + c] * weight[u + c]


@inline
def _square3(
    kept: Any, a: Any, n: Any, line: Any, weight: Any, bias: Any, out: Any, to: Any
) -> None:
    """Set ``out`` from ``to`` on to the sum of 3 x 3 places times their weights."""
    b, d = a + line, a + line + line
    n2 = n + n
    n3, n4 = n2 + n, n2 + n2
    n5, n6, n7, n8 = n4 + n, n4 + n2, n4 + n3, n4 + n4
    for c in range(n):
        top = kept[a + c] * weight[c] + kept[a + n + c] * weight[n + c]
        top += kept[a + n2 + c] * weight[n2 + c]
        middle = kept[b + c] * weight[n3 + c] + kept[b + n + c] * weight[n4 + c]
        middle += kept[b + n2 + c] * weight[n5 + c]
        low = kept[d + c] * weight[n6 + c] + kept[d + n + c] * weight[n7 + c]
        low += kept[d + n2 + c] * weight[n8 + c]
        out[to + c] = bias[c] + top + middle + low


@inline
def _row5(kept: Any, a: Any, n: Any, weight: Any, u: Any, out: Any, to: Any) -> None:
    """Add to ``out`` from ``to`` on the sum of five places times their weights."""
    n2 = n + n
    n3, n4 = n2 + n, n2 + n2
    for c in range(n):
        left = kept[a + c] * weight[u + c] + kept[a + n + c] * weight[u + n + c]
        right = kept[a + n3 + c] * weight[u + n3 + c] + kept[a + n4 + c] * weight[u + n4 + c]
        out[to + c] += left + right + kept[a + n2 + c] * weight[u + n2 + c]


@compiled_when_used
def interleave(first: Any, second: Any, steps: Any, out: Any) -> None:
    """Set ``out`` [M, 2 C] to the channels of two matrices [M, C] in turn.

    ``steps``: numbers from one row to the next of each, which are flat.
    """
    n = _U(out.shape[1] // 2)
    for m in range(len(out)):
        a, b, row = _U(m * steps[0]), _U(m * steps[1]), out[m]
        for c in range(n):
            row[c + c], row[c + c + _U(1)] = first[a + c], second[b + c]


@compiled_when_used
def max_pool(buffer: Any, streams: Any, places: Any, shape: Any, window: Any, out: Any) -> None:
    """Set ``out`` [M C] to the largest number of each channel in a window."""
    begin, height, width, channels, high, wide = shape
    side, n = window[0], _U(channels)
    for m in range(len(places)):
        s, top, left = _start(places[m], (high, wide), window)
        to = _U(m * channels)
        for c in range(n):
            out[to + c] = -np.inf
        for i in range(max(0, -top), min(side, height - top)):
            for j in range(max(0, -left), min(side, width - left)):
                at = _U(streams[s] + begin + ((top + i) * width + left + j) * channels)
                for c in range(n):
                    value, most = buffer[at + c], out[to + c]
                    out[to + c] = value if value > most or value != value else most  # NaN stays


@compiled_when_used
def enlarge(buffer: Any, streams: Any, places: Any, shape: Any, factor: Any, out: Any) -> None:
    """Set ``out`` [M C] to a map enlarged by ``factor``, bilinear; if negative, the nearest."""
    begin, height, width, channels, high, wide = shape
    linear, factor = factor > 0, abs(factor)
    near = np.empty(4, out.dtype)  # weights of the upper, lower, left and right places
    for m in range(len(places)):
        s, place = places[m] // (high * wide), places[m] % (high * wide)
        first, to = streams[s] + begin, _U(m * channels)
        y, x = place // wide, place % wide
        if linear:
            v, u = max(0.0, (y + 0.5) / factor - 0.5), max(0.0, (x + 0.5) / factor - 0.5)
        else:
            v, u = float(int(y / factor)), float(int(x / factor))
        top, left = min(int(v), height - 1), min(int(u), width - 1)
        lower, right = min(top + 1, height - 1), min(left + 1, width - 1)
        near[1], near[3] = v - top, u - left
        near[0], near[2] = 1 - near[1], 1 - near[3]
        a, b = first + (top * width + left) * channels, first + (top * width + right) * channels
        d, e = first + (lower * width + left) * channels, first + (lower * width + right) * channels
        _blend(buffer, (_U(a), _U(b), _U(d), _U(e)), near, out, to, _U(channels))


@inline
def _blend(kept: Any, corners: Any, near: Any, out: Any, to: Any, n: Any) -> None:
    """Set ``out`` from ``to`` on to four places, weighted."""
    a, b, d, e = corners
    p, q, r, s = near[0] * near[2], near[0] * near[3], near[1] * near[2], near[1] * near[3]
    for c in range(n):
        out[to + c] = kept[a + c] * p + kept[b + c] * q + kept[d + c] * r + kept[e + c] * s
