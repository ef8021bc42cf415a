"""Exclusive locks on open files, which end with the process."""

from __future__ import annotations

import os
from typing import IO


def try_lock(file: IO[str]) -> bool:
    """Lock ``file``, which is open for writing; return False if it is locked already."""
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
