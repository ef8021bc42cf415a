"""Product with int8 weights, float32 on a CPU, by Numba: weights become float32 in registers."""

from __future__ import annotations

from typing import Any

import numba
from torch import Tensor

from costream.nn.compiled import F32, MATRIX, VECTOR, compiled


@compiled(MATRIX, numba.int8[:, ::1], VECTOR, MATRIX)
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
