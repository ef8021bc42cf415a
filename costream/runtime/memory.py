"""Memory of programs that run for weeks: garbage collection and the heap."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_M_ARENA_MAX = -8  # of glibc's malloc.h


def share_heap() -> None:
    """Make all threads started after this call use one heap (glibc only).

    By default glibc creates up to eight heaps per core, and each keeps the memory it needed at its
    peak: ``give_back`` returns the free end of the main heap only. The environment variable
    MALLOC_ARENA_MAX takes precedence.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None and "MALLOC_ARENA_MAX" not in os.environ:
        mallopt(_M_ARENA_MAX, 1)


def settle() -> None:
    """Exempt all current objects from garbage collection (``gc.freeze``).

    Python collects the oldest generation only when it has grown by a quarter: with the half million
    objects of PyTorch that takes hours. Without them, collections are frequent and short.
    """
    gc.freeze()
    gc.collect()


@contextmanager
def settling() -> Iterator[None]:
    """Turn garbage collection off in the block, and ``settle`` at its end.

    For loading a model: collections during the import of PyTorch take 0.2 s in all.
    """
    gc.disable()
    try:
        yield
        settle()
    finally:
        gc.enable()


def give_back() -> None:
    """Return the free memory of the heap to the system (``malloc_trim``, glibc only).

    By itself glibc returns the end of a heap only, so that the memory of a backlog of frames would
    stay with the process.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)
