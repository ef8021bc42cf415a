"""Programs of layers for one picture, float32, compiled by Numba; ``chain.py`` makes them.

All numbers of a program are in one buffer. A map is either planar, [C, H W] with C a multiple of 4,
or interleaved, [H W, C] with C a multiple of 16, for small maps with many channels, so that the
innermost loops are long in both. Indices are unsigned: otherwise they are not vectorised.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from costream.nn.compiled import F32, VECTOR, compiled, exp, inline

_U = np.uint64
_0, _1, _2, _3, _4, _5 = (_U(k) for k in range(6))
_ZERO, _ONE, _THREE, _SIX, _SIXTH = F32(0), F32(1), F32(3), F32(6), F32(1 / 6)
_VECTOR = _U(16)  # numbers; loops over a multiple of these have no slow end
_BLOCK = _U(1024)  # places of planar maps that are multiplied together


# Operations: products of planar channels, and of interleaved ones with weights [I, O] or [O, I];
# depthwise convolutions of both, of interleaved ones with weights [k k, C], and over time, of
# planar ones; what each place of a convolution reads, planar; planar channels become interleaved;
# their means; each channel times its factor; rows and columns that a stride leaves.
PLANAR, WIDE, DEEP, DEPTHWISE_PLANAR, DEPTHWISE, RING, UNFOLD, INTERLEAVE, MEAN, SCALE = range(10)
COPY = 10
# Functions of the output of an operation.
NONE, RELU, RELU6, HARD_SWISH, SIGMOID, SWISH = range(6)
# Columns of a program, uint64: the operation and the function; where in the buffer the input, the
# second input (0: none; it is added to products), the output and the scratch begin; where in the
# weights they and the biases begin; channels of the input and the output, height and width of both;
# side and stride of the kernel, zeros above the map and to its left; whether the input is planar;
# frames of a kernel over time, where in the buffer that begins which is held for them, and the slot
# of the oldest frame in a ring.
KIND, FUNCTION, X, MORE, OUT, SCRATCH, WEIGHT, BIAS, IN, CHANNELS = range(10)
HEIGHT, WIDTH, ROWS, COLUMNS, SIDE, STRIDE, ABOVE, BEFORE, IS_PLANAR = range(10, 19)
TAPS, HELD, PHASE = 19, 20, 21
COUNT = 22  # of columns


@inline
def _activate(kind: int, x: Any, at: Any, n: Any) -> None:
    """Replace ``n`` numbers by their activation; NaN stays."""
    if kind == RELU:
        for c in range(n):
            v = x[at + c]
            x[at + c] = _ZERO if v < _ZERO else v
    elif kind == RELU6:
        for c in range(n):
            v = x[at + c]
            v = _ZERO if v < _ZERO else v
            x[at + c] = _SIX if v > _SIX else v
    elif kind == HARD_SWISH:
        for c in range(n):
            v = x[at + c]
            gate = v + _THREE
            gate = _ZERO if gate < _ZERO else gate
            gate = _SIX if gate > _SIX else gate
            x[at + c] = v * gate * _SIXTH
    elif kind != NONE:
        for c in range(n):
            v = x[at + c]
            power = F32(87) if v < F32(-87) else -v
            x[at + c] = (v if kind == SWISH else _ONE) / (_ONE + exp(power))


@inline
def _add(x: Any, at: Any, more: Any, n: Any) -> None:
    """Add to ``n`` numbers those at ``more``."""
    for p in range(n):
        x[at + p] += x[more + p]


@inline
def _begin(bias: Any, buffer: Any, at: Any, more: Any, n: Any) -> None:
    """Set ``n`` numbers to a bias, added to those at ``more`` unless that is 0."""
    if more == _0:
        for p in range(n):
            buffer[at + p] = bias
    else:
        for p in range(n):
            buffer[at + p] = buffer[more + p] + bias


@inline
def _begin_row(weights: Any, bias: Any, buffer: Any, at: Any, more: Any, n: Any) -> None:
    """Set ``n`` numbers to biases, added to those at ``more`` unless that is 0."""
    if more == _0:
        for p in range(n):
            buffer[at + p] = weights[bias + p]
    else:
        for p in range(n):
            buffer[at + p] = buffer[more + p] + weights[bias + p]


@inline
def _add_four(w: Any, w_at: Any, x: Any, x_at: Any, out: Any, out_at: Any, n: Any) -> None:
    """Add to four rows of ``n`` numbers of ``out`` four rows of ``x``, weighted.

    ``x_at``, ``out_at``: where the first row begins, and from one to the next; ``w_at`` so for the
    weights of a row of ``out``, which follow one another.
    """
    (wi, ws), (xi, xs), (oi, os) = w_at, x_at, out_at
    w00, w01, w02, w03 = w[wi], w[wi + _1], w[wi + _2], w[wi + _3]
    wi += ws
    w10, w11, w12, w13 = w[wi], w[wi + _1], w[wi + _2], w[wi + _3]
    wi += ws
    w20, w21, w22, w23 = w[wi], w[wi + _1], w[wi + _2], w[wi + _3]
    wi += ws
    w30, w31, w32, w33 = w[wi], w[wi + _1], w[wi + _2], w[wi + _3]
    x1, x2, x3 = xi + xs, xi + xs + xs, xi + xs + xs + xs
    o1, o2, o3 = oi + os, oi + os + os, oi + os + os + os
    for p in range(n):
        a, b, c, d = x[xi + p], x[x1 + p], x[x2 + p], x[x3 + p]
        out[oi + p] += w00 * a + w01 * b + w02 * c + w03 * d
        out[o1 + p] += w10 * a + w11 * b + w12 * c + w13 * d
        out[o2 + p] += w20 * a + w21 * b + w22 * c + w23 * d
        out[o3 + p] += w30 * a + w31 * b + w32 * c + w33 * d


@inline
def _multiply_planar(op: Any, weights: Any, buffer: Any) -> None:
    """Multiply planes [I, P] by a matrix [O, I]."""
    inputs, places, more = op[IN], op[ROWS] * op[COLUMNS], op[MORE]
    for first in range(_0, places, _BLOCK):
        n = min(_BLOCK, places - first)
        for o in range(_0, op[CHANNELS], _4):
            at = op[OUT] + o * places + first
            for k in range(_4):
                add = _0 if more == _0 else more + (o + k) * places + first
                _begin(weights[op[BIAS] + o + k], buffer, at + k * places, add, n)
            for i in range(_0, inputs, _4):
                w, x = (op[WEIGHT] + o * inputs + i, inputs), (op[X] + i * places + first, places)
                _add_four(weights, w, buffer, x, buffer, (at, places), n)
            for k in range(_4):
                _activate(op[FUNCTION], buffer, at + k * places, n)


@inline
def _multiply_wide(op: Any, weights: Any, buffer: Any) -> None:
    """Multiply rows [P, I], four at least, by a matrix [I, O]: many channels of the output."""
    inputs, n, places, more = op[IN], op[CHANNELS], op[ROWS] * op[COLUMNS], op[MORE]
    for row in range(_0, places, _4):
        p = min(row + _4, places) - _4  # the last four, of which some may be done
        at, x = op[OUT] + p * n, op[X] + p * inputs
        for k in range(_4):
            add = _0 if more == _0 else more + (p + k) * n
            _begin_row(weights, op[BIAS], buffer, at + k * n, add, n)
        for i in range(_0, inputs, _4):
            w = op[WEIGHT] + i * n
            _add_four(buffer, (x + i, inputs), weights, (w, n), buffer, (at, n), n)
        _activate(op[FUNCTION], buffer, at, _4 * n)


@inline
def _multiply_deep(op: Any, weights: Any, buffer: Any) -> None:
    """Multiply rows [P, I] by a matrix [O, I]: many channels of the input at a time."""
    inputs, outputs, places, out = op[IN], op[CHANNELS], op[ROWS] * op[COLUMNS], op[OUT]
    for p in range(places):
        more = _0 if op[MORE] == _0 else op[MORE] + p * outputs
        _begin_row(weights, op[BIAS], buffer, out + p * outputs, more, outputs)
    for o in range(_0, outputs, _4):
        w = op[WEIGHT] + o * inputs
        for p in range(_0, places // _4 * _4, _4):
            x, at = op[X] + p * inputs, out + p * outputs + o
            _add_dots(weights, w, buffer, x, inputs, at, outputs)
        for p in range(places // _4 * _4, places):
            _add_dot(weights, w, buffer, op[X] + p * inputs, inputs, out + p * outputs + o)
    _activate(op[FUNCTION], buffer, out, places * outputs)


@inline
def _add_dots(w: Any, w0: Any, x: Any, x0: Any, n: Any, at: Any, step: Any) -> None:
    """Add the products of four rows of ``w`` and four rows of ``x``, [n], to 4 x 4 of ``x``."""
    w1, w2, w3 = w0 + n, w0 + n + n, w0 + n + n + n
    x1, x2, x3 = x0 + n, x0 + n + n, x0 + n + n + n
    s00 = s01 = s02 = s03 = s10 = s11 = s12 = s13 = _ZERO
    s20 = s21 = s22 = s23 = s30 = s31 = s32 = s33 = _ZERO
    for i in range(n):
        a, b, c, d = x[x0 + i], x[x1 + i], x[x2 + i], x[x3 + i]
        e, f, g, h = w[w0 + i], w[w1 + i], w[w2 + i], w[w3 + i]
        s00, s01, s02, s03 = s00 + a * e, s01 + a * f, s02 + a * g, s03 + a * h
        s10, s11, s12, s13 = s10 + b * e, s11 + b * f, s12 + b * g, s13 + b * h
        s20, s21, s22, s23 = s20 + c * e, s21 + c * f, s22 + c * g, s23 + c * h
        s30, s31, s32, s33 = s30 + d * e, s31 + d * f, s32 + d * g, s33 + d * h
    _add_sums(x, at, s00, s01, s02, s03)
    _add_sums(x, at + step, s10, s11, s12, s13)
    _add_sums(x, at + step + step, s20, s21, s22, s23)
    _add_sums(x, at + step + step + step, s30, s31, s32, s33)


@inline
def _add_dot(w: Any, w0: Any, x: Any, x0: Any, n: Any, at: Any) -> None:
    """Add the products of four rows of ``w`` and a row of ``x``, [n], to four numbers of ``x``."""
    w1, w2, w3 = w0 + n, w0 + n + n, w0 + n + n + n
    s0 = s1 = s2 = s3 = _ZERO
    for i in range(n):
        a = x[x0 + i]
        s0, s1, s2, s3 = (
            s0 + a * w[w0 + i],
            s1 + a * w[w1 + i],
            s2 + a * w[w2 + i],
            s3 + a * w[w3 + i],
        )
    _add_sums(x, at, s0, s1, s2, s3)


@inline
def _add_sums(x: Any, at: Any, a: Any, b: Any, c: Any, d: Any) -> None:
    x[at] += a
    x[at + _1] += b
    x[at + _2] += c
    x[at + _3] += d


@inline
def _padded(op: Any) -> Any:
    """Return what describes a padded plane: see ``_pad_plane``.

    It has (stride - 1), the length of a row, that of a part, and where it begins.
    """
    half = op[STRIDE] - _1
    more = (op[SIDE] - _1) >> half
    line = op[COLUMNS] + more
    return half, line, (op[ROWS] + more) * line, op[SCRATCH]


@inline
def _seen(padded: Any, i: Any, j: Any) -> Any:
    """Return where those places of a padded plane begin that row i, column j of a kernel are for.

    They follow one another as those of the output do, but that rows are longer.
    """
    half, line, part, pad = padded
    return pad + ((i & half) * _2 + (j & half)) * part + (i >> half) * line + (j >> half)


@inline
def _clear(padded: Any, buffer: Any) -> Any:
    """Set a padded plane to zeros, return its end."""
    half, _, part, pad = padded
    n = (half * _3 + _1) * part
    for p in range(n):
        buffer[pad + p] = _ZERO
    return pad + n


@inline
def _pad_plane(op: Any, padded: Any, buffer: Any, x: Any) -> None:
    """Copy a plane into the zeros of a padded one.

    With a stride of 2 it has four parts: even and odd rows, and even and odd columns of each.
    """
    half, line, _, pad = padded
    side, above, before, wide = op[SIDE], op[ABOVE], op[BEFORE], op[WIDTH]
    count = min(wide, ((op[COLUMNS] - _1) << half) + side - before)
    for y in range(min(op[HEIGHT], ((op[ROWS] - _1) << half) + side - above)):
        row, at = x + y * wide, y + above
        if half == _0:
            to = pad + at * line + before
            for c in range(count):
                buffer[to + c] = buffer[row + c]
        else:
            first, second = _seen(padded, at, before), _seen(padded, at, before + _1)
            for c in range(count >> _1):
                buffer[first + c] = buffer[row + c + c]
                buffer[second + c] = buffer[row + c + c + _1]
            if count & _1 == _1:
                buffer[first + (count >> _1)] = buffer[row + count - _1]


@inline
def _convolve_planes(op: Any, weights: Any, buffer: Any) -> None:
    """Compute a depthwise convolution of planes, weights [C, k k], or [K, C, k k] over time.

    Over time, outputs are sums over K frames; those of the next K - 1 outputs are held, planes
    [K - 1, C, H line and some more], whose rows are not cut.
    """
    side, n, rows, padded = op[SIDE], op[COLUMNS], op[ROWS], _padded(op)
    x, places, out, function = op[X], op[HEIGHT] * op[WIDTH], op[OUT], op[FUNCTION]
    channels, line, last = op[CHANNELS], padded[1], op[TAPS] - _1
    count = (rows * line + _VECTOR - _1) // _VECTOR * _VECTOR  # before rows are cut
    result = _clear(padded, buffer) + side + _VECTOR
    for c in range(channels):
        _pad_plane(op, padded, buffer, x + c * places)
        w, at, sums = op[WEIGHT] + c * side * side, result, op[HELD] + c * count
        for tap in range(op[TAPS]):
            bias = weights[op[BIAS] + tap * channels + c]
            if side == _3:
                _square3(padded, weights, w, bias, buffer, at, count)
            else:
                _begin(bias, buffer, at, _0, count)
                for i in range(side):
                    _row(padded, weights, w + i * side, i, side, buffer, at, count)
            if tap < last:
                _add(buffer, at, sums, count)
            at, sums, w = sums, sums + channels * count, w + channels * side * side
        _activate(function, buffer, result, count)
        for y in range(rows):
            at, row = out + (c * rows + y) * n, result + y * line
            for p in range(n):
                buffer[at + p] = buffer[row + p]


@inline
def _square3(padded: Any, weights: Any, w: Any, bias: Any, x: Any, at: Any, n: Any) -> None:
    """Set ``n`` numbers from a padded plane and 3 x 3 weights."""
    w0, w1, w2, w3 = weights[w], weights[w + _1], weights[w + _2], weights[w + _3]
    w += _4
    w4, w5, w6, w7 = weights[w], weights[w + _1], weights[w + _2], weights[w + _3]
    w8 = weights[w + _4]
    a0, a1, a2 = _seen(padded, _0, _0), _seen(padded, _0, _1), _seen(padded, _0, _2)
    b0, b1, b2 = _seen(padded, _1, _0), _seen(padded, _1, _1), _seen(padded, _1, _2)
    c0, c1, c2 = _seen(padded, _2, _0), _seen(padded, _2, _1), _seen(padded, _2, _2)
    for p in range(n):
        upper = x[a0 + p] * w0 + x[a1 + p] * w1 + x[a2 + p] * w2
        middle = x[b0 + p] * w3 + x[b1 + p] * w4 + x[b2 + p] * w5
        lower = x[c0 + p] * w6 + x[c1 + p] * w7 + x[c2 + p] * w8
        x[at + p] = upper + middle + lower + bias


@inline
def _row(padded: Any, weights: Any, w: Any, i: Any, side: Any, x: Any, at: Any, n: Any) -> None:
    """Add to ``n`` numbers a padded plane times row ``i`` of weights."""
    done = _0
    if side == _5:
        w0, w1, w2, w3 = weights[w], weights[w + _1], weights[w + _2], weights[w + _3]
        w4 = weights[w + _4]
        a, b, c = _seen(padded, i, _0), _seen(padded, i, _1), _seen(padded, i, _2)
        d, e = _seen(padded, i, _3), _seen(padded, i, _4)
        for p in range(n):
            left = x[a + p] * w0 + x[b + p] * w1 + x[c + p] * w2
            x[at + p] += left + x[d + p] * w3 + x[e + p] * w4
        done = _5
    for j in range(done, side):
        factor, a = weights[w + j], _seen(padded, i, j)
        for p in range(n):
            x[at + p] += x[a + p] * factor


@inline
def _convolve_places(op: Any, weights: Any, buffer: Any) -> None:
    """Compute a depthwise convolution of an interleaved map, weights [k k, C] or [K, k k, C].

    Over time as that of planes; held are [K - 1, P, C].
    """
    n, side, stride, wide, last = op[CHANNELS], op[SIDE], op[STRIDE], op[COLUMNS], op[TAPS] - _1
    line, one = ((wide - _1) * stride + side) * n, op[ROWS] * wide * n
    _pad_map(op, buffer, line)
    for y in range(op[ROWS]):
        for x in range(wide):
            place = (y * wide + x) * n
            w, bias, at, sums = op[WEIGHT], op[BIAS], op[OUT] + place, op[HELD] + place
            top = op[SCRATCH] + y * stride * line + x * stride * n
            for tap in range(op[TAPS]):
                if side == _3:
                    _square3_places(weights, w, bias, buffer, top, line, at, n)
                else:
                    _begin_row(weights, bias, buffer, at, _0, n)
                    for i in range(side):
                        _row_places(weights, w + i * side * n, buffer, top + i * line, at, n, side)
                if tap < last:
                    _add(buffer, at, sums, n)
                at, sums, w, bias = sums, sums + one, w + side * side * n, bias + n
            _activate(op[FUNCTION], buffer, op[OUT] + place, n)


@inline
def _pad_map(op: Any, buffer: Any, line: Any) -> None:
    """Copy an interleaved map, with zeros around it, to the scratch, rows of ``line`` numbers."""
    n, above, before, pad, wide = op[CHANNELS], op[ABOVE], op[BEFORE], op[SCRATCH], op[WIDTH]
    high = (op[ROWS] - _1) * op[STRIDE] + op[SIDE]
    for p in range(high * line):
        buffer[pad + p] = _ZERO
    count = min(wide * n, line - before * n)
    for y in range(min(op[HEIGHT], high - above)):
        row, to = op[X] + y * wide * n, pad + (y + above) * line + before * n
        for c in range(count):
            buffer[to + c] = buffer[row + c]


@inline
def _square3_places(w: Any, u: Any, bias: Any, x: Any, a: Any, line: Any, at: Any, n: Any) -> None:
    """Set a place, [n], from 3 x 3 padded ones and their weights."""
    b, d, n2, n3 = a + line, a + line + line, n + n, n + n + n
    u1, u2 = u + n3, u + n3 + n3
    for c in range(n):
        upper = x[a + c] * w[u + c] + x[a + n + c] * w[u + n + c] + x[a + n2 + c] * w[u + n2 + c]
        middle = x[b + c] * w[u1 + c] + x[b + n + c] * w[u1 + n + c]
        middle += x[b + n2 + c] * w[u1 + n2 + c]
        lower = x[d + c] * w[u2 + c] + x[d + n + c] * w[u2 + n + c]
        lower += x[d + n2 + c] * w[u2 + n2 + c]
        x[at + c] = w[bias + c] + upper + middle + lower


@inline
def _row_places(w: Any, u: Any, x: Any, a: Any, at: Any, n: Any, side: Any) -> None:
    """Add to a place, [n], the ``side`` padded ones from ``a`` on times their weights."""
    if side == _5:
        n2, n3 = n + n, n + n + n
        n4 = n2 + n2
        for c in range(n):
            left = x[a + c] * w[u + c] + x[a + n + c] * w[u + n + c]
            right = x[a + n3 + c] * w[u + n3 + c] + x[a + n4 + c] * w[u + n4 + c]
            x[at + c] += left + right + x[a + n2 + c] * w[u + n2 + c]
    else:
        for j in range(side):
            first, factors = a + j * n, u + j * n
            for c in range(n):
                x[at + c] += x[first + c] * w[factors + c]


@inline
def _unfold(op: Any, buffer: Any) -> None:
    """Set planes [I k k, P] to what each place of a convolution reads."""
    side, n, rows, out, padded = op[SIDE], op[COLUMNS], op[ROWS], op[OUT], _padded(op)
    places, line = rows * n, padded[1]
    _clear(padded, buffer)
    for c in range(op[IN]):
        _pad_plane(op, padded, buffer, op[X] + c * op[HEIGHT] * op[WIDTH])
        for k in range(side * side):
            to, first = out + (c * side * side + k) * places, _seen(padded, k // side, k % side)
            for y in range(rows):
                at, row = to + y * n, first + y * line
                for p in range(n):
                    buffer[at + p] = buffer[row + p]
    for p in range(op[IN] * side * side * places, op[CHANNELS] * places):
        buffer[out + p] = _ZERO


@inline
def _interleave(op: Any, buffer: Any) -> None:
    """Turn planes [C, P] to rows [P, C]."""
    n, places, x, out = op[CHANNELS], op[ROWS] * op[COLUMNS], op[X], op[OUT]
    for p in range(places):
        for c in range(op[IN]):
            buffer[out + p * n + c] = buffer[x + c * places + p]
        for c in range(op[IN], n):
            buffer[out + p * n + c] = _ZERO
    _activate(op[FUNCTION], buffer, out, n * places)


@inline
def _mean(op: Any, buffer: Any) -> None:
    """Set [C] to the means of a map."""
    n, places, x, out = op[CHANNELS], op[HEIGHT] * op[WIDTH], op[X], op[OUT]
    if op[IS_PLANAR]:
        _begin(_ZERO, buffer, out, _0, n)
        for c in range(op[IN]):
            total, at = _ZERO, x + c * places
            for p in range(places):
                total += buffer[at + p]
            buffer[out + c] = total
    else:
        _begin(_ZERO, buffer, out, _0, n)
        for p in range(_0, places // _4 * _4, _4):
            a = x + p * n
            b, d, e = a + n, a + n + n, a + n + n + n
            for c in range(n):
                buffer[out + c] += buffer[a + c] + buffer[b + c] + buffer[d + c] + buffer[e + c]
        for p in range(places // _4 * _4, places):
            a = x + p * n
            for c in range(n):
                buffer[out + c] += buffer[a + c]
    count = F32(places)
    for c in range(n):
        buffer[out + c] /= count
    _activate(op[FUNCTION], buffer, out, n)


@inline
def _scale(op: Any, buffer: Any) -> None:
    """Multiply each channel of a map by its factor."""
    n, places, x, more, out = op[IN], op[HEIGHT] * op[WIDTH], op[X], op[MORE], op[OUT]
    if op[IS_PLANAR]:
        for c in range(n):
            factor, at, to = buffer[more + c], x + c * places, out + c * places
            for p in range(places):
                buffer[to + p] = buffer[at + p] * factor
    else:
        for p in range(places):
            at, to = x + p * n, out + p * n
            for c in range(n):
                buffer[to + c] = buffer[at + c] * buffer[more + c]
    _activate(op[FUNCTION], buffer, out, n * places)


@inline
def _convolve_ring(op: Any, weights: Any, buffer: Any) -> None:
    """Compute a depthwise convolution over time of planes, weights [C, K].

    The K - 1 frames before the newest one are held in a ring; it takes the place of the oldest.
    """
    places, channels, slots = op[ROWS] * op[COLUMNS], op[CHANNELS], op[TAPS] - _1
    for c in range(channels):
        w, oldest = op[WEIGHT] + c * op[TAPS], op[HELD] + (op[PHASE] * channels + c) * places
        bias, newest = weights[op[BIAS] + c], weights[w + slots]
        for first in range(_0, places, _BLOCK):
            n, x = min(_BLOCK, places - first), op[X] + c * places + first
            at = op[OUT] + c * places + first
            for p in range(n):
                buffer[at + p] = buffer[x + p] * newest + bias
            for k in range(slots):
                slot = op[PHASE] + k
                slot = slot - slots if slot >= slots else slot
                factor, row = weights[w + k], op[HELD] + (slot * channels + c) * places + first
                for p in range(n):
                    buffer[at + p] += buffer[row + p] * factor
            for p in range(n):
                buffer[oldest + first + p] = buffer[x + p]
            _activate(op[FUNCTION], buffer, at, n)


@inline
def _copy(op: Any, buffer: Any) -> None:
    """Copy the rows and columns of a map that a stride leaves."""
    n, rows, columns, stride, out = op[CHANNELS], op[ROWS], op[COLUMNS], op[STRIDE], op[OUT]
    if op[IS_PLANAR]:
        for c in range(n):
            for y in range(rows):
                x = op[X] + (c * op[HEIGHT] + y * stride) * op[WIDTH]
                at = out + (c * rows + y) * columns
                for p in range(columns):
                    buffer[at + p] = buffer[x + p * stride]
    else:
        for y in range(rows):
            for p in range(columns):
                x = op[X] + (y * stride * op[WIDTH] + p * stride) * n
                at = out + (y * columns + p) * n
                for c in range(n):
                    buffer[at + c] = buffer[x + c]


@inline
def _multiply(op: Any, weights: Any, buffer: Any) -> None:
    if op[KIND] == PLANAR:
        _multiply_planar(op, weights, buffer)
    elif op[KIND] == WIDE:
        _multiply_wide(op, weights, buffer)
    else:
        _multiply_deep(op, weights, buffer)


@inline
def _convolve(op: Any, weights: Any, buffer: Any) -> None:
    if op[KIND] == DEPTHWISE_PLANAR:
        _convolve_planes(op, weights, buffer)
    elif op[KIND] == DEPTHWISE:
        _convolve_places(op, weights, buffer)
    else:
        _convolve_ring(op, weights, buffer)


@compiled(types.uint64[:, ::1], VECTOR, VECTOR)
def run(program: Any, weights: Any, buffer: Any) -> None:
    """Carry out the operations of a program, one a row, see above for its columns."""
    for k in range(len(program)):
        op = program[k]
        kind = op[KIND]
        if kind <= DEEP:
            _multiply(op, weights, buffer)
        elif kind <= RING:
            _convolve(op, weights, buffer)
        elif kind == UNFOLD:
            _unfold(op, buffer)
        elif kind == INTERLEAVE:
            _interleave(op, buffer)
        elif kind == MEAN:
            _mean(op, buffer)
        elif kind == SCALE:
            _scale(op, buffer)
        else:
            _copy(op, buffer)
