"""Products of a few dozen rows with a matrix, float32 on a CPU, compiled by Numba.

Libraries copy the weights of each product into another order first, which takes a third of the time
where there are so few rows. Here both factors are read as they are: five rows times four
outputs at a time, each a sum over a vector of numbers. On an AMD EPYC (Zen 4), weights that come
from the third-level cache are multiplied with 38 to 43 GMAC/s, and with 33 to 37 by MKL in PyTorch.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from costream.nn.compiled import F32, inline

_U = np.uint64
_0, _1, _2, _3, _4, _5 = (_U(k) for k in range(6))
_ZERO = F32(0)


@inline
def _five_rows(x: Any, x_at: Any, w: Any, w0: Any, n: Any, out: Any, out_at: Any) -> None:
    """Set 5 x 4 numbers to the products of five rows of ``x`` and four rows of ``w``, [n].

    ``x_at``, ``out_at``: where the first row begins, and from one to the next.
    """
    (x0, xs), (at, step) = x_at, out_at
    x1, x2, x3, x4 = x0 + xs, x0 + _2 * xs, x0 + _3 * xs, x0 + _4 * xs
    w1, w2, w3 = w0 + n, w0 + _2 * n, w0 + _3 * n
    a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = c0 = c1 = c2 = c3 = _ZERO
    d0 = d1 = d2 = d3 = e0 = e1 = e2 = e3 = _ZERO
    for i in range(n):
        p, q, r, s = w[w0 + i], w[w1 + i], w[w2 + i], w[w3 + i]
        v = x[x0 + i]
        a0, a1, a2, a3 = a0 + v * p, a1 + v * q, a2 + v * r, a3 + v * s
        v = x[x1 + i]
        b0, b1, b2, b3 = b0 + v * p, b1 + v * q, b2 + v * r, b3 + v * s
        v = x[x2 + i]
        c0, c1, c2, c3 = c0 + v * p, c1 + v * q, c2 + v * r, c3 + v * s
        v = x[x3 + i]
        d0, d1, d2, d3 = d0 + v * p, d1 + v * q, d2 + v * r, d3 + v * s
        v = x[x4 + i]
        e0, e1, e2, e3 = e0 + v * p, e1 + v * q, e2 + v * r, e3 + v * s
    _set_four(out, at, a0, a1, a2, a3)
    _set_four(out, at + step, b0, b1, b2, b3)
    _set_four(out, at + _2 * step, c0, c1, c2, c3)
    _set_four(out, at + _3 * step, d0, d1, d2, d3)
    _set_four(out, at + _4 * step, e0, e1, e2, e3)


@inline
def _set_four(out: Any, at: Any, a: Any, b: Any, c: Any, d: Any) -> None:
    out[at], out[at + _1], out[at + _2], out[at + _3] = a, b, c, d


@inline
def _one_row(x: Any, x0: Any, w: Any, w0: Any, n: Any) -> Any:
    """Return the product of two rows [n]."""
    total = _ZERO
    for i in range(n):
        total += x[x0 + i] * w[w0 + i]
    return total


@inline
def multiply(rows: Any, x: Any, x_at: Any, w: Any, bias: Any, out: Any, out_at: Any) -> None:
    """Set rows [O] of ``out`` to rows [I] of ``x`` times ``w`` [O, I], plus ``bias`` [O].

    Arrays are memory, [N]. ``x_at``, ``out_at``: where the first row begins, and from one to the
    next. Indices are unsigned, without which loops are not vectorised.
    """
    (x0, xs), (at, step), outputs = x_at, out_at, _U(len(bias))
    inputs, whole = _U(len(w)) // outputs, outputs // _4 * _4 if rows >= _5 else _0
    for o in range(_0, whole, _4):
        for first in range(_0, rows, _5):
            p = min(first, rows - _5)  # the last may repeat some rows
            _five_rows(x, (x0 + p * xs, xs), w, o * inputs, inputs, out, (at + p * step + o, step))
    for p in range(rows):
        for o in range(whole, outputs):
            out[at + p * step + o] = _one_row(x, x0 + p * xs, w, o * inputs, inputs)
        for o in range(outputs):
            out[at + p * step + o] += bias[o]


@inline
def add(more: Any, more_at: Any, out: Any, at: Any, n: Any) -> None:
    """Add ``n`` numbers."""
    for c in range(n):
        out[at + c] += more[more_at + c]


@inline
def rectify(x: Any, at: Any, n: Any) -> None:
    """Replace ``n`` numbers by 0 where they are negative; NaN stays."""
    for c in range(n):
        x[at + c] = _ZERO if x[at + c] < _ZERO else x[at + c]
