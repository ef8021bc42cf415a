"""Steps of blocks of skeleton networks, float32 on a CPU, compiled by Numba.

A block is a graph convolution, a convolution over time, and a residual. Its calls of PyTorch take
longer than elsewhere, because the weights of each product push everything else out of the cache.
The equations are those of ``FoldedGraphConvolution`` and ``TemporalConvolution``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from costream.nn.compiled import F32, MATRIX, VECTOR, compiled, inline
from costream.nn.product_kernels import add, multiply, rectify

_U = np.uint64
_0, _1, _ZERO = _U(0), _U(1), F32(0)
# Sizes of a block, uint64: persons, joints; numbers of a joint in the input, after the graph and in
# the output; slots of the ring of the convolution; steps until an output, and from one to the next;
# whether the input is added after the graph; whether there is a residual, how many steps late,
# slots of its ring.
PERSONS, JOINTS, IN, MIDDLE, OUT, SLOTS, DELAY, STRIDE = range(8)
ADDS_INPUT, HAS_RESIDUAL, WAIT, PAST_SLOTS = range(8, 12)
# Arrays of a block: weights [O, I] and biases of the products after the graph and over time, the
# weights of the residual's and zeros; rings of the convolution [N, V, K - 1, C], of the residual
# [N, L, V, C]; room for mixed joints and the product of the residual, and for the K frames
# [N, V, K, C] of an output; the output [N, V, O].
ARRAYS = 11
_GRAPH, _GRAPH_BIAS, _TIME, _TIME_BIAS, _BESIDE, _ZEROS = range(6)
_RING, _PAST, _ROOM, _WINDOW, _OUT = range(6, ARRAYS)


@inline
def _mix(graph: Any, x: Any, n: Any, room: Any) -> None:
    """Set rows [P V, C] to the sums of the joints of person ``n`` with ``graph`` [P V, V].

    A joint is linked with few others, so most numbers of a graph are 0.
    """
    width = _U(x.shape[2])
    for k in range(len(graph)):
        at, row = (_U(n) * _U(len(graph)) + _U(k)) * width, graph[k]
        for c in range(width):
            room[at + c] = _ZERO
        for v in range(len(row)):
            factor, joint = row[v], x[n, v]
            if factor != _ZERO:
                for c in range(width):
                    room[at + c] += factor * joint[c]


@inline
def _apply_graph(sizes: Any, slot: Any, x: Any, graph: Any, arrays: Any) -> None:
    """Store the output of the graph convolution in a slot of the ring."""
    joints, width, room, ring = sizes[JOINTS], sizes[MIDDLE], arrays[_ROOM], arrays[_RING]
    rows, line = sizes[PERSONS] * joints, sizes[SLOTS] * width
    for n in range(x.shape[0]):
        _mix(graph, x, n, room)
    inputs, at = _U(len(arrays[_GRAPH])) // width, slot * width
    weights = arrays[_GRAPH], arrays[_GRAPH_BIAS]
    multiply(rows, room, (_0, inputs), weights[0], weights[1], ring, (at, line))
    for p in range(rows):
        if sizes[ADDS_INPUT]:
            joint = x[_U(p) // joints, _U(p) % joints]
            add(joint, _0, ring, at + _U(p) * line, width)
        rectify(ring, at + _U(p) * line, width)


@inline
def _copy_frames(sizes: Any, low: Any, high: Any, first: Any, arrays: Any) -> None:
    """Copy slots ``low`` to ``high`` - 1 of the ring to frames of the window, [N V, K C].

    ``first``: which of the K frames the first one is.
    """
    width, count = sizes[MIDDLE], (high - low) * sizes[MIDDLE]
    line, ring, window = sizes[SLOTS] * width, arrays[_RING], arrays[_WINDOW]
    for p in range(sizes[PERSONS] * sizes[JOINTS]):
        at, to = _U(p) * line + low * width, _U(p) * (line + width) + first * width
        for c in range(count):
            window[to + c] = ring[at + c]


@inline
def _remember(sizes: Any, slot: Any, x: Any, past: Any) -> None:
    """Store a frame in a slot of the residual's ring."""
    joints, width = sizes[JOINTS], sizes[IN]
    for n in range(x.shape[0]):
        for v in range(joints):
            to = ((_U(n) * sizes[PAST_SLOTS] + slot) * joints + _U(v)) * width
            row = x[n, v]
            for c in range(width):
                past[to + c] = row[c]


@inline
def _add_residual(sizes: Any, x: Any, past: Any, past_at: Any, arrays: Any) -> None:
    """Add a person's residual, [V, C] from ``past_at`` on, to the output; ``x``: its rows."""
    joints, width, outputs = sizes[JOINTS], sizes[IN], sizes[OUT]
    person, count = x * joints * outputs, joints * outputs
    if len(arrays[_BESIDE]) == 0:
        add(past, past_at, arrays[_OUT], person, count)
    else:
        weights, room = arrays[_BESIDE], arrays[_ROOM]
        multiply(joints, past, (past_at, width), weights, arrays[_ZEROS], room, (_0, outputs))
        add(room, _0, arrays[_OUT], person, count)


_ARRAYS = types.UniTuple(VECTOR, ARRAYS)


@compiled(types.uint64, types.uint64[::1], F32[:, :, ::1], MATRIX, _ARRAYS)
def step(time: Any, sizes: Any, x: Any, graph: Any, arrays: Any) -> None:
    """Take frame number ``time`` [N, V, C], set the output if this step has one."""
    slot, joints, outputs = time % sizes[SLOTS], sizes[JOINTS], sizes[OUT]
    slots, stride, rows = sizes[PAST_SLOTS], sizes[STRIDE], sizes[PERSONS] * joints
    is_due = time >= sizes[DELAY] and (time - sizes[DELAY]) % stride == _0
    if is_due:
        _copy_frames(sizes, slot, sizes[SLOTS], _0, arrays)
    _apply_graph(sizes, slot, x, graph, arrays)
    if slots > _0 and time % stride == _0:
        _remember(sizes, time // stride % slots, x, arrays[_PAST])
    if not is_due:
        return
    _copy_frames(sizes, _0, slot + _1, sizes[SLOTS] - slot, arrays)
    line, out = (sizes[SLOTS] + _1) * sizes[MIDDLE], arrays[_OUT]
    weights, bias = arrays[_TIME], arrays[_TIME_BIAS]
    multiply(rows, arrays[_WINDOW], (_0, line), weights, bias, out, (_0, outputs))
    if sizes[HAS_RESIDUAL]:
        for n in range(sizes[PERSONS]):
            if slots > _0:
                late = (time - sizes[WAIT]) // stride % slots
                at = (_U(n) * slots + late) * joints * sizes[IN]
                _add_residual(sizes, _U(n), arrays[_PAST], at, arrays)
            else:  # it is the frame itself
                _add_residual(sizes, _U(n), x[n].ravel(), _0, arrays)
    rectify(out, _0, rows * outputs)
