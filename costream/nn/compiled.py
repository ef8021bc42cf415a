"""Loops over numbers, compiled by Numba; importing takes a second, and longer the first time.

For what PyTorch does in several passes over numbers, or in one call that takes longer to begin
than to end. The compiled code is kept beside the source, or in the user's cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba

F32 = numba.float32


def compiled(*arguments: Any) -> Callable[[Callable[..., None]], Any]:
    """Compile a function for these types of arguments, when it is defined."""

    def compile_(function: Callable[..., None]) -> Any:
        signature, fast = numba.void(*arguments), {"contract", "reassoc"}
        options = {"nogil": True, "error_model": "numpy", "fastmath": fast}
        try:
            return numba.njit(signature, cache=True, **options)(function)
        except (RuntimeError, OSError):  # there is no place to keep compiled code at
            return numba.njit(signature, **options)(function)

    return compile_
