"""Plain loops over float32 numbers that Numba compiles, for work whose PyTorch calls take longer.

Importing this takes a second, so modules with compiled loops are imported when a network first
needs them. Compiled code is cached next to the source, or in the user's cache directory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numba
import numpy as np

F32 = numba.float32
VECTOR, MATRIX = F32[::1], F32[:, ::1]  # contiguous arrays
_OPTIONS: Any = {"nogil": True, "error_model": "numpy", "fastmath": {"contract", "reassoc"}}
_LOG2_E = F32(1.44269504)
# 2**x for |x| <= 1/2: the coefficients of x**6 to x**0.
_EXP2_SERIES = tuple(
    F32(x)
    for x in (1.5403530e-4, 1.3333558e-3, 9.6181291e-3, 0.055504109, 0.24022651, 0.69314718, 1)
)

inline: Callable[[Any], Any] = numba.njit(**_OPTIONS)
"""Decorator of functions that compiled functions call."""


def compiled(*arguments: Any, exact: bool = False) -> Callable[[Callable[..., None]], Any]:
    """Return a decorator that compiles a function for these argument types when it is defined.

    ``exact``: each operation is rounded, in the order that is written, as by PyTorch.

    In another thread than the main one it raises SystemExit once the main thread has ended, as the
    process waits for that thread, and nobody for what it compiles.
    """

    def compile_(function: Callable[..., None]) -> Any:
        if not threading.main_thread().is_alive():
            raise SystemExit
        signature = numba.void(*arguments)
        options = _OPTIONS | ({"fastmath": False} if exact else {})
        try:
            return numba.njit(signature, cache=True, **options)(function)
        except (RuntimeError, OSError):  # there is no writable place for compiled code
            return numba.njit(signature, **options)(function)

    return compile_


def compiled_when_used(function: Callable[..., object]) -> Any:
    """Return a function that is compiled for types of arguments when they are first used."""
    try:
        return numba.njit(cache=True, **_OPTIONS)(function)
    except (RuntimeError, OSError):  # there is no writable place for compiled code
        return numba.njit(**_OPTIONS)(function)


@inline
def exp(x: Any) -> Any:
    """Return e**x for x <= 88, by a polynomial: loops that call NumPy's are slow. NaN stays."""
    power = x * _LOG2_E
    power = F32(-126) if power < F32(-126) else power
    integer = np.floor(power + F32(0.5))
    fraction, series = power - integer, _EXP2_SERIES[0]
    for coefficient in _EXP2_SERIES[1:]:
        series = series * fraction + coefficient
    return series * np.int32((np.int32(integer) + 127) << 23).view(np.float32)
