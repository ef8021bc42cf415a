"""The step of an encoder block with single-output attention, one stream, float32, by Numba.

PyTorch makes a dozen calls for the new row of a block, and most of them take longer than the
computation. Here a block is one call. The equations are those of ``block.EncoderBlock`` (post-norm)
and ``attention.SingleOutputAttention``. On one core of a Xeon with AVX-512, blocks of width 64 to
192 take 0.25 to 0.4 of PyTorch's time, those of width 1024 as long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numba import types
from torch import Tensor

from costream.nn.choices import choices
from costream.nn.compiled import F32, MATRIX, VECTOR, compiled, exp, inline
from costream.nn.product_kernels import multiply

_U = np.uint64
_0 = _U(0)

# Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26
_ERF = tuple(F32(x) for x in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592))
_ERF_SCALE = F32(0.3275911 * 0.5**0.5)
_LAYER = (MATRIX, VECTOR)  # weight, bias
_WEIGHTS = types.Tuple((*_LAYER * 4, *(VECTOR,) * 4))
_RING = F32[:, :, ::1]


@inline
def _linear(x: Any, weight: Any, bias: Any, fours: bool) -> Any:
    """Return ``weight x + bias``. ``fours``: four outputs at a time, see ``BlockStep``."""
    out = np.empty_like(bias)
    done = len(out) // 4 * 4 if fours else 0
    for o in range(0, done, 4):
        row0, row1, row2, row3 = weight[o], weight[o + 1], weight[o + 2], weight[o + 3]
        total0, total1, total2, total3 = F32(0), F32(0), F32(0), F32(0)
        for i in range(len(x)):
            total0 += x[i] * row0[i]
            total1 += x[i] * row1[i]
            total2 += x[i] * row2[i]
            total3 += x[i] * row3[i]
        out[o], out[o + 1] = total0 + bias[o], total1 + bias[o + 1]
        out[o + 2], out[o + 3] = total2 + bias[o + 2], total3 + bias[o + 3]
    for o in range(done, len(out)):
        row, total = weight[o], F32(0)
        for i in range(len(x)):
            total += x[i] * row[i]
        out[o] = total + bias[o]
    return out


@inline
def _normalise(x: Any, weight: Any, bias: Any, eps: Any, out: Any) -> None:
    """Set ``out`` [d] to the layer norm of ``x`` [d]."""
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
def _rectify(x: Any) -> None:
    for c in range(len(x)):
        x[c] = F32(0) if x[c] < F32(0) else x[c]  # NaN stays


@inline
def _gelu(x: Any) -> None:
    """Replace numbers by x (1 + erf(x / sqrt 2)) / 2."""
    for c in range(len(x)):
        value = x[c]
        size = abs(value)
        t, series = F32(1) / (F32(1) + size * _ERF_SCALE), F32(0)
        for coefficient in _ERF:
            series = (series * t) + coefficient
        tail = series * t * exp(value * value * F32(-0.5)) * F32(0.5)  # erfc(|x| / sqrt 2) / 2
        above = F32(0) if value < F32(0) else value  # NaN stays
        x[c] = above - size * tail


@inline
def _softmax(logits: Any) -> None:
    top, total = logits[0], F32(0)
    for j in range(len(logits)):
        top = max(top, logits[j])
    for j in range(len(logits)):
        logits[j] = exp(logits[j] - top)
    for j in range(len(logits)):
        total += logits[j]
    scale = F32(1) / total
    for j in range(len(logits)):
        logits[j] *= scale


@inline
def _attend_wide(query: Any, keys: Any, values: Any, filled: int, out: Any) -> None:
    """Set ``out`` [e] to the attention of a query [e] to the first rows of keys, values [n, e]."""
    logits = np.empty(filled, np.float32)
    for j in range(filled):
        row, total = keys[j], F32(0)
        for c in range(len(query)):
            total += query[c] * row[c]
        logits[j] = total
    _softmax(logits)
    out[:] = 0
    for j in range(filled):
        row, weight = values[j], logits[j]
        for c in range(len(out)):
            out[c] += weight * row[c]


@inline
def _attend_narrow(query: Any, keys: Any, values: Any, filled: int, out: Any) -> None:
    """Set ``out`` [e] to the attention of a query [e] to the first rows of keys, values [e, n]."""
    logits = np.zeros(filled, np.float32)
    for c in range(len(query)):
        row, factor = keys[c], query[c]
        for j in range(filled):
            logits[j] += factor * row[j]
    _softmax(logits)
    for c in range(len(out)):
        row, total = values[c], F32(0)
        for j in range(filled):
            total += logits[j] * row[j]
        out[c] = total


@inline
def _attend(row: Any, keys: Any, values: Any, wide: bool, slot: int, filled: int) -> Any:
    """Store the key and value of ``row`` [3, h, e] in the rings, return the attention [h e]."""
    _, heads, width = row.shape
    scale, attended = F32(1) / np.sqrt(F32(width)), np.empty((heads, width), np.float32)
    for h in range(heads):
        k, v = keys[h], values[h]
        if wide:
            for c in range(width):
                k[slot, c], v[slot, c] = row[1, h, c] * scale, row[2, h, c]
            _attend_wide(row[0, h], k, v, filled, attended[h])
        else:
            for c in range(width):
                k[c, slot], v[c, slot] = row[1, h, c] * scale, row[2, h, c]
            _attend_narrow(row[0, h], k, v, filled, attended[h])
    return attended.ravel()


_FLAGS = types.UniTuple(types.boolean, 3)
_EPS = types.UniTuple(F32, 2)
_PLACE = types.UniTuple(types.intp, 2)


@inline
def _after_attention(x: Any, attended: Any, weights: Any, flags: Any, eps: Any, out: Any) -> None:
    """Set ``out`` [d] to the row ``x`` [d] after the block, of which ``attended`` [h e] is known.

    ``flags``: whether the activation is ReLU, and whether products take four outputs at a time.
    """
    _, _, project, project_bias, up, up_bias, down, down_bias, w1, b1, w2, b2 = weights
    relu, fours = flags
    y = _linear(attended, project, project_bias, fours)
    y += x
    _normalise(y, w1, b1, eps[0], y)
    hidden = _linear(y, up, up_bias, fours)
    if relu:
        _rectify(hidden)
    else:
        _gelu(hidden)
    z = _linear(hidden, down, down_bias, fours)
    z += y
    _normalise(z, w2, b2, eps[1], out)


@compiled(VECTOR, _WEIGHTS, _RING, _RING, _FLAGS, _EPS, _PLACE, VECTOR)
def _step(
    x: Any, weights: Any, keys: Any, values: Any, flags: Any, eps: Any, place: Any, out: Any
) -> None:
    """Set ``out`` [d] to the row ``x`` [d] after the block.

    ``flags``: whether rings are [h, n, e], whether the activation is ReLU, and whether products
    take four outputs at a time. ``place``: slot of the row in the rings, and the number of filled
    slots.
    """
    qkv, qkv_bias = weights[:2]
    wide, relu, fours = flags
    slot, filled = place
    row = _linear(x, qkv, qkv_bias, fours).reshape(3, len(keys), -1)
    attended = _attend(row, keys, values, wide, slot, filled)
    _after_attention(x, attended, weights, (relu, fours), eps, out)


class BlockSettings(NamedTuple):
    """What a compiled step needs to know besides weights."""

    window: int  # rows
    wide: bool  # whether rings are [h, n, e], else [h, e, n]
    relu: bool  # else GELU
    eps: tuple[float, float]  # of the layer norms


class BlockStep:
    """The compiled step of a post-norm block for one stream.

    Products with one output at a time, or with four, are timed, see ``choices``: matrices that
    stay in the cache took 0.75 of the time with four on a Xeon with AVX-512, large ones up to 1.08.

    Args:
        weights: weight and bias, which may be None, of the input and output projections, of both
            layers of the feed-forward, and of both norms. They may change in place; ``fits`` is
            False when they have moved.
        keys, values: rings of the stream, [1, h, ...]. ``steps``: its counter, [1].
    """

    def __init__(
        self,
        weights: Sequence[Tensor | None],
        keys: Tensor,
        values: Tensor,
        steps: Tensor,
        settings: BlockSettings,
    ) -> None:
        self._addresses = _addresses(weights)
        self._kept = weights  # so that the memory stays where the arrays are
        self._arrays = _arrays(weights)
        self._keys, self._values = keys[0].numpy(), values[0].numpy()
        self._steps, self._window, self._eps = steps.numpy(), settings.window, settings.eps
        self.width = self._arrays[0].shape[1]
        ways = {"1 output": self._trial(settings, False), "4 outputs": self._trial(settings, True)}
        heads, hidden = len(self._keys), len(self._arrays[4])
        work = f"block, {self.width}, {heads} heads, {hidden} hidden, {settings.window} rows"
        fours = choices.fastest(work, ways) == "4 outputs"
        self._flags = settings.wide, settings.relu, fours

    def _trial(self, settings: BlockSettings, fours: bool) -> Callable[[], object]:
        """Return a function of a step in other memory than the stream's."""
        rings = np.zeros_like(self._keys), np.zeros_like(self._values)
        x, out = np.zeros(self.width, np.float32), np.empty(self.width, np.float32)
        flags = settings.wide, settings.relu, fours
        return lambda: _step(x, self._arrays, *rings, flags, self._eps, (0, 1), out)

    def fits(self, weights: Sequence[Tensor | None]) -> bool:
        """Return whether the weights are where they were."""
        return _addresses(weights) == self._addresses

    def __call__(self, x: Tensor) -> Tensor:
        """Take the next row [1, d] of the stream, return it after the block, [1, d]."""
        taken, out = int(self._steps[0]), np.empty((1, self.width), np.float32)
        self._steps[0] = taken + 1
        place = taken % self._window, min(taken + 1, self._window)
        row = (x.detach() if x.requires_grad else x).numpy()[0]
        rings = self._keys, self._values
        _step(row, self._arrays, *rings, self._flags, self._eps, place, out[0])
        return torch.from_numpy(out)


# All rows of a window: a block behind retroactive attention.


@inline
def _normalise_row(x: Any, at: Any, weight: Any, bias: Any, eps: Any) -> None:
    """Replace d numbers by their layer norm."""
    row = x[at : at + len(weight)]
    _normalise(row, weight, bias, eps, row)


@compiled(MATRIX, MATRIX, _WEIGHTS, types.boolean, _EPS, MATRIX)
def _all_rows(x: Any, attended: Any, weights: Any, relu: bool, eps: Any, out: Any) -> None:
    """Set rows ``out`` [n, d] to rows ``x`` [n, d] after the block.

    ``attended``: [n, h e], what attention returns before its output projection.
    """
    _, _, project, project_bias, up, up_bias, down, down_bias, w1, b1, w2, b2 = weights
    rows, width = _U(x.shape[0]), _U(x.shape[1])
    inner, hidden = _U(attended.shape[1]), np.empty(x.shape[0] * len(up_bias), np.float32)
    y, z, wide = np.empty(x.size, np.float32), out.ravel(), _U(len(up_bias))
    multiply(rows, attended.ravel(), (_0, inner), project.ravel(), project_bias, y, (_0, width))
    for p in range(len(x)):
        row = y[p * x.shape[1] : (p + 1) * x.shape[1]]
        row += x[p]
        _normalise(row, w1, b1, eps[0], row)
    multiply(rows, y, (_0, width), up.ravel(), up_bias, hidden, (_0, wide))
    if relu:
        _rectify(hidden)
    else:
        _gelu(hidden)
    multiply(rows, hidden, (_0, wide), down.ravel(), down_bias, z, (_0, width))
    for p in range(len(x)):
        out[p] += y[p * x.shape[1] : (p + 1) * x.shape[1]]
        _normalise(out[p], w2, b2, eps[1], out[p])


@inline
def _mix_rows(weights: Any, rows: Any, out: Any) -> None:
    """Set ``out`` [d] to the sum of rows [n, d] with ``weights`` [n]."""
    out[:] = 0
    done = len(weights) // 4 * 4
    for j in range(0, done, 4):
        a, b, c, d = rows[j], rows[j + 1], rows[j + 2], rows[j + 3]
        p, q, r, s = weights[j], weights[j + 1], weights[j + 2], weights[j + 3]
        for k in range(len(out)):
            out[k] += p * a[k] + q * b[k] + r * c[k] + s * d[k]
    for j in range(done, len(weights)):
        row, weight = rows[j], weights[j]
        for k in range(len(out)):
            out[k] += weight * row[k]


@compiled(MATRIX, types.intp, types.intp, _WEIGHTS, types.boolean, _EPS, VECTOR)
def _newest_row(
    rows: Any, slot: int, heads: int, weights: Any, relu: bool, eps: Any, out: Any
) -> None:
    """Set ``out`` [d] to a row of ``rows`` [n, d], which are all new, after the block.

    See ``SingleOutputAttention.attend_changed``.
    """
    qkv, qkv_bias = weights[:2]
    x, (count, width), inner = rows[slot], rows.shape, len(qkv) // 3
    head_width = inner // heads
    query, attended = _linear(x, qkv[:inner], qkv_bias[:inner], True), np.empty(inner, np.float32)
    query *= F32(1) / np.sqrt(F32(head_width))
    means, logits = np.empty((heads, width), np.float32), np.empty((heads, count), np.float32)
    for h in range(heads):
        part = slice(h * head_width, (h + 1) * head_width)
        _mix_rows(query[part], qkv[inner : 2 * inner][part], means[h])
    flat, none = (_0, _U(width)), np.zeros(count, np.float32)
    out_at = _0, _U(count)
    multiply(_U(heads), means.ravel(), flat, rows.ravel(), none, logits.ravel(), out_at)
    for h in range(heads):
        part = slice(h * head_width, (h + 1) * head_width)
        _softmax(logits[h])
        _mix_rows(logits[h], rows, means[h])
        values, bias = qkv[2 * inner :][part], qkv_bias[2 * inner :][part]
        attended[part] = _linear(means[h], values, bias, True)
    _after_attention(x, attended, weights, (relu, True), eps, out)


class StackStep:
    """The compiled first and last block of a stack for one stream, behind retroactive attention.

    Args:
        first, last: weights of the blocks, see ``BlockStep``.
        heads: of the last block. ``relu``: whether that is the activation, else GELU.
        eps: of the layer norms of both blocks.
    """

    def __init__(
        self,
        first: Sequence[Tensor | None],
        last: Sequence[Tensor | None],
        heads: int,
        relu: bool,
        eps: Sequence[tuple[float, float]],
    ) -> None:
        self._addresses = _addresses([*first, *last])
        self._kept = first, last  # so that the memory stays where the arrays are
        self._first, self._last = map(_arrays, self._kept)
        self._heads, self._relu, self._eps = heads, relu, eps

    def fits(self, weights: Sequence[Tensor | None]) -> bool:
        """Return whether the weights of both blocks are where they were."""
        return _addresses(weights) == self._addresses

    def rows(self, x: Tensor, attended: Tensor) -> Tensor:
        """Return rows ``x`` [1, n, d] after the first block.

        ``attended``: [1, n, h e], what attention returns before its output projection.
        """
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        given = (t[0].contiguous().numpy() for t in (x, attended))
        _all_rows(*given, self._first, self._relu, self._eps[0], out[0].numpy())
        return out

    def newest(self, x: Tensor, slot: int) -> Tensor:
        """Return the row in a slot of ``x`` [1, n, d] after the last block, [1, d]."""
        out, rows = np.empty((1, x.shape[2]), np.float32), x[0].contiguous().numpy()
        _newest_row(rows, slot, self._heads, self._last, self._relu, self._eps[1], out[0])
        return torch.from_numpy(out)


def _addresses(tensors: Sequence[Tensor | None]) -> list[int]:
    return [t.data_ptr() for t in tensors if t is not None]


def _arrays(weights: Sequence[Tensor | None]) -> tuple[Any, ...]:
    """Return weights and biases as arrays; a bias that is None is zeros."""
    found: list[Any] = []
    for weight in weights:
        if weight is None:
            found.append(np.zeros(len(found[-1]), np.float32))
        else:
            found.append(weight.detach().numpy())
    return tuple(found)
