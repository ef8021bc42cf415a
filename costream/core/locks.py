"""Files that belong to one process: opened without following links, and locked until it ends."""

from __future__ import annotations

import errno
import os
import stat
import sys
from contextlib import suppress
from typing import IO, Any

_TAKEN = {errno.EACCES, errno.EAGAIN, errno.EWOULDBLOCK, errno.EDEADLK}
_FAR = 1 << 30  # Windows locks bytes, which others cannot read: one beyond the content


def open_own(path: str | os.PathLike[str], flags: int) -> int:
    """Open a temporary file, lock or journal for writing; the ``opener`` of ``open``.

    In a folder that others may write to, its name may be that of a link to another file, or of a
    pipe without a reader: these are removed.
    """
    with suppress(FileNotFoundError):
        found = os.lstat(path)
        alone = stat.S_ISREG(found.st_mode) and found.st_nlink == 1
        if not alone and not stat.S_ISDIR(found.st_mode):
            os.unlink(path)
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


def append_own(path: str | os.PathLike[str]) -> IO[str]:
    """Return a lock or a journal, opened by ``open_own`` for appending."""
    file = open_own(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    return os.fdopen(file, "a", encoding="utf-8", newline="")


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
