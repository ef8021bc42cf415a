"""Memory of programs that run for weeks."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_M_ARENA_MAX = -8  # of glibc's malloc.h
_PASSING = 50_000  # more than the table has room for once PyTorch has interned its names


def share_heap() -> None:
    """Let threads to come share the main heap, where that can be asked for (glibc).

    glibc gives threads up to eight heaps a core, and each keeps what it held at its fullest:
    ``give_back`` has the end of the main heap alone returned. What MALLOC_ARENA_MAX says in the
    environment goes first.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None and "MALLOC_ARENA_MAX" not in os.environ:
        mallopt(_M_ARENA_MAX, 1)


def settle() -> None:
    """Let what is there now live to the end, unseen by the garbage collector.

    Python looks for cycles among all objects only once there are a quarter more of them, which is
    hours after PyTorch has brought half a million. Without those it looks often, in little time.
    """
    gc.freeze()
    gc.collect()


@contextmanager
def settling() -> Iterator[None]:
    """Look for no cycles while what is to ``settle`` is loaded.

    To look through the objects of PyTorch, again and again as they come, takes 0.2 s.
    """
    gc.disable()
    try:
        yield
        settle()
    finally:
        gc.enable()


def widen_strings() -> None:
    """Bring about now that CPython's table of interned strings is made anew, with twice the room.

    It is once as many strings, such as parts of paths, came and went as it had room for: in the
    middle of a watch, at the cost of some megabytes.
    """
    if sys.version_info[:2] != (3, 12):  # there they stay for ever
        passing = [sys.intern(f"costream {k}") for k in range(_PASSING)]
        del passing


def give_back() -> None:
    """Return what is free of the heap to the system, where that can be asked for (glibc).

    glibc itself does so at the end of a heap only: what a backlog of frames took would stay.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)
