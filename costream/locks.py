"""Exclusive locks on open files, which end with the process."""

from __future__ import annotations

import errno
import os
import sys
from typing import IO, Any

_TAKEN = {errno.EACCES, errno.EAGAIN, errno.EWOULDBLOCK, errno.EDEADLK}
_FAR = 1 << 30  # Windows locks bytes, which others cannot read: one beyond the content


def try_lock(file: IO[Any]) -> bool:
    """Lock ``file``, which is open for writing; return False if it is locked already.

    Some network file systems have no locks: there it is always True.
    """
    try:
        if sys.platform == "win32":
            import msvcrt

            at = os.lseek(file.fileno(), 0, os.SEEK_CUR)
            os.lseek(file.fileno(), _FAR, os.SEEK_SET)
            try:
                msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
            finally:
                os.lseek(file.fileno(), at, os.SEEK_SET)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in _TAKEN
    return True
