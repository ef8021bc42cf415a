"""A lock that goes with an open file, and away with its process however that ends."""

from __future__ import annotations

import os
from typing import IO


def locked(file: IO[str]) -> bool:
    """Take the lock of ``file``, which is open for writing; False when another holds it."""
    try:
        if os.name == "nt":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
