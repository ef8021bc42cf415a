"""Retroactive attention in O(n d) by running sums, float32 on a CPU, compiled by Numba.

Continual Transformers (Hedegaard et al., ICLR 2023) adds exp(q k_new) v_new to the sums of each
row and subtracts exp(q k_old) v_old. The subtraction cancels: where the key that leaves had most of
a row's weight, what remains is rounding error. Here the sums are float64, each row has a bound
of its error, and a row whose bound exceeds ``_TOLERANCE`` of its size is computed from the cached
keys and values again. The newest row always is, so that no sum is older than n steps.

The bound: a product q k of float32 numbers in float64 has an error below c |q| |k|, c = 2^-52
times a small factor, and so have an exponential relative to itself and each sum relative to its
terms. A step adds c (1 + |q| max |k|) (w_new + w_old + D) max |v| to the bound of a row with sum D.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import types
from torch import Tensor

from costream.nn.compiled import F32, compiled, inline

_F64 = types.float64
_ROUNDING = 16 * 2.0**-52
_TOLERANCE = 1e-6  # of a row's error, relative to the largest value in the window
_LOG2_E, _LN_2 = 1.4426950408889634, 0.6931471805599453
_SERIES = tuple(1 / float(np.prod(range(1, k + 1))) for k in range(12, -1, -1))  # of e**x
_HIGHEST = 30.0  # logit above the reference of a row from which it is computed again


@inline
def _exp(x: Any) -> Any:
    """Return e**x in float64 for x below 700; NaN stays."""
    power = x * _LOG2_E
    power = -1000.0 if power < -1000.0 else power
    integer = np.floor(power + 0.5)
    fraction, series = (power - integer) * _LN_2, _SERIES[0]
    for coefficient in _SERIES[1:]:
        series = series * fraction + coefficient
    return series * np.int64((np.int64(integer) + 1023) << 52).view(np.float64)


@inline
def _renew(row: int, keys: Any, values: Any, columns: Any, sums: Any, weighted: Any) -> None:
    """Compute the reference logit and the sums of a row from keys and values [m, e]."""
    logits, query, mean = np.empty(len(keys)), np.empty(len(columns)), np.zeros(len(columns))
    for c in range(len(query)):
        query[c] = columns[c, row]
    top, total = -np.inf, 0.0
    for j in range(len(logits)):
        key, product = keys[j], 0.0
        for c in range(len(query)):
            product += np.float64(key[c]) * query[c]
        logits[j], top = product, max(top, product)
    for j in range(len(logits)):
        logits[j] = _exp(logits[j] - top)
        total += logits[j]
    for j in range(len(logits)):
        weight, value = logits[j], values[j]
        for c in range(len(mean)):
            mean[c] += weight * np.float64(value[c])
    for c in range(len(mean)):
        weighted[c, row] = mean[c]
    sums[0, row], sums[1, row] = top, total


@inline
def _add(columns: Any, vector: Any, logits: Any) -> None:
    """Set ``logits`` [m] to the products of the queries ``columns`` [e, n] with a key [e]."""
    logits[:] = 0.0
    for c in range(len(vector)):
        factor, column = np.float64(vector[c]), columns[c]
        for r in range(len(logits)):
            logits[r] += factor * np.float64(column[r])


@inline
def _exchange(entering: Any, new: Any, leaving: Any, old: Any, weighted: Any) -> None:
    """Add the products of weights [m] and values [e] that enter, subtract those that leave."""
    for c in range(len(new)):
        row, added, removed = weighted[c], np.float64(new[c]), np.float64(old[c])
        for r in range(len(entering)):
            row[r] += entering[r] * added - leaving[r] * removed


@inline
def _largest(vector: Any) -> Any:
    size = 0.0
    for c in range(len(vector)):
        size = max(size, abs(np.float64(vector[c])))
    return size


@inline
def _length(vector: Any) -> Any:
    total = 0.0
    for c in range(len(vector)):
        total += np.float64(vector[c]) * np.float64(vector[c])
    return np.sqrt(total)


@inline
def _divide(weighted: Any, total: Any, out: Any) -> None:
    """Set ``out`` [e, m] to the weighted sums [e, n] of m rows, divided by their weights."""
    for c in range(len(out)):
        row, attended = weighted[c], out[c]
        for r in range(len(attended)):
            attended[r] = F32(row[r] / total[r])


@inline
def _head(
    place: Any, rings: Any, old: Any, columns: Any, sums: Any, weighted: Any, out: Any
) -> int:
    """Update the rows of one head, and return how many were computed again."""
    slot, filled, known = place
    keys, values = rings[0][:filled], rings[1][:filled]
    key, value = keys[slot], values[slot]
    lowest, total, error, lengths, norms, sizes = sums
    norm, size = norms[slot], sizes[slot]  # of the key and value that leave
    norms[slot], sizes[slot] = _length(key), _largest(value)
    largest = 0.0
    for r in range(filled):
        norm, largest = max(norm, norms[r]), max(largest, sizes[r])
    size = max(size, largest)
    entering, leaving = np.empty(filled), np.zeros(filled)
    _add(columns, key, entering)
    if known:
        _add(columns, old[0], leaving)
    for r in range(filled):
        high = entering[r] > lowest[r] + _HIGHEST
        added = _exp(entering[r] - lowest[r])
        removed = _exp(leaving[r] - lowest[r]) if known else 0.0
        total[r] += added - removed
        bound = error[r] + (1 + lengths[r] * norm) * (added + removed + total[r]) * size
        error[r] = np.inf if high else bound
        entering[r], leaving[r] = added, removed
    _exchange(entering, value, leaving, old[1], weighted)
    again = 0
    for r in range(filled):
        if r == slot or not _ROUNDING * error[r] <= _TOLERANCE * total[r] * largest:
            _renew(r, keys, values, columns, sums, weighted)
            error[r] = (1 + lengths[r] * norm) * total[r] * largest
            again += 1
    _divide(weighted, total, out)
    return again


_RINGS = types.UniTuple(F32[:, :, ::1], 3)
_ROWS = F32[:, :, :, :]


@compiled(
    _ROWS, _RINGS, F32[:, :, ::1], _F64[:, :, ::1], _F64[:, :, ::1], types.UniTuple(types.intp, 3),
    F32[:, :, ::1], types.intp[::1],
)  # fmt: skip
def _step(
    new: Any, rings: Any, columns: Any, sums: Any, weighted: Any, place: Any, out: Any, again: Any
) -> None:
    """Store the rows ``new`` [B, 3, h, e] in the rings, set ``out`` [B h, e, m] to all rows."""
    slot = place[0]
    _, _, heads, width = new.shape
    queries, keys, values = rings
    old = np.empty((2, width), np.float32)
    for k in range(len(keys)):
        b, h = k // heads, k % heads
        old[0], old[1] = keys[k, slot], values[k, slot]
        for c in range(width):
            queries[k, slot, c], keys[k, slot, c] = new[b, 0, h, c], new[b, 1, h, c]
            values[k, slot, c], columns[k, c, slot] = new[b, 2, h, c], new[b, 0, h, c]
        sums[k, 3, slot] = _length(queries[k, slot])
        again[0] += _head(
            place, (keys[k], values[k]), old, columns[k], sums[k], weighted[k], out[k]
        )


@compiled(_RINGS, F32[:, :, ::1], _F64[:, :, ::1], types.intp)
def _begin(rings: Any, columns: Any, sums: Any, filled: int) -> None:
    """Prepare for rings of ``filled`` rows; each row will be computed in the next step."""
    queries, keys, values = rings
    for k in range(len(keys)):
        for r in range(filled):
            for c in range(keys.shape[2]):
                columns[k, c, r] = queries[k, r, c]
            sums[k, 0, r], sums[k, 1, r], sums[k, 2, r] = 0.0, 0.0, np.inf
            sums[k, 3, r], sums[k, 4, r] = _length(queries[k, r]), _length(keys[k, r])
            sums[k, 5, r] = _largest(values[k, r])


class RunningSums:
    """Sums of retroactive attention for streams with the same number of steps.

    Args:
        queries, keys, values: rings [B, h, n, e], which a step writes.
    """

    def __init__(self, queries: Tensor, keys: Tensor, values: Tensor) -> None:
        self._kept = queries, keys, values
        self._rings = tuple(r.flatten(0, 1).numpy() for r in self._kept)
        heads, window, width = self._rings[0].shape
        self._columns = np.zeros((heads, width, window), np.float32)
        # Of each row: reference logit, sum of weights, bound of its error / _ROUNDING, lengths of
        # the query and of the key, largest value.
        self._sums = np.zeros((heads, 6, window))
        self._weighted = np.zeros((heads, width, window))
        self._again = np.zeros(1, np.intp)
        self._next = -1  # step that the sums are ready for
        self._versions = self._now()

    @property
    def renewed(self) -> int:
        """Rows that were computed from all keys, over all heads and steps, without the newest."""
        return int(self._again[0])

    def step(self, new: Tensor, steps: int) -> Tensor:
        """Store projected rows ``new`` [B, 3, h, e], return all rows after attention, [B, m, h e].

        ``steps``: taken before this one by each stream.
        """
        window = self._sums.shape[2]
        slot, filled = steps % window, min(steps + 1, window)
        if self._next != steps or self._versions != self._now():
            _begin(self._rings, self._columns, self._sums, min(steps, window))
        rows = np.empty((*self._columns.shape[:2], filled), np.float32)
        place = slot, filled, int(steps >= window)
        row = new.detach().numpy()
        _step(row, self._rings, self._columns, self._sums, self._weighted, place, rows, self._again)
        self._again[0] -= len(self._sums)
        self._next, self._versions = steps + 1, self._now()
        return torch.from_numpy(rows).view(len(new), -1, filled).transpose(1, 2)

    def _now(self) -> tuple[int, ...]:
        """Return what changes when others write into the rings."""
        return tuple(r._version for r in self._kept)
