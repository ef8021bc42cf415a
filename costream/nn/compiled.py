"""Compilation of numerical loops by Numba; importing takes a second, the first time longer.

For work that PyTorch does in several passes over the numbers, or in one call whose overhead is
longer than the work. The compiled code is cached beside the source, or in the user's cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba

F32 = numba.float32


def compiled(*arguments: Any) -> Callable[[Callable[..., None]], Any]:
    """Return a decorator that compiles a function for these argument types when it is defined."""

    def compile_(function: Callable[..., None]) -> Any:
        signature, fast = numba.void(*arguments), {"contract", "reassoc"}
        options = {"nogil": True, "error_model": "numpy", "fastmath": fast}
        try:
            return numba.njit(signature, cache=True, **options)(function)
        except (RuntimeError, OSError):  # there is no writable place for compiled code
            return numba.njit(signature, **options)(function)

    return compile_
