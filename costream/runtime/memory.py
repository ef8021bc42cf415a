"""Memory of programs that run for weeks."""

from __future__ import annotations

import ctypes
import gc
import sys


def settle() -> None:
    """Let what is there now live to the end, unseen by the garbage collector.

    Python looks for cycles among all objects only once there are a quarter more of them, which is
    hours after PyTorch has brought half a million. Without those it looks often, in little time.
    """
    gc.freeze()
    gc.collect()


def give_back() -> None:
    """Return what is free of the heap to the system, where that can be asked for (glibc).

    glibc itself does so at the end of a heap only: what a backlog of frames took would stay.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)
