"""Checks of the files that sources read."""

from __future__ import annotations

import os
import shlex
import stat
from typing import Protocol

from costream.core.errors import SourceError, display_name


class Readable(Protocol):
    """Input of a container that is not a named file."""

    def read(self, size: int, /) -> bytes: ...  # noqa: D102


def check_file(path: str) -> None:
    """Raise SourceError unless ``path`` is a readable, non-empty file or pipe."""
    where = display_name(path)
    try:
        status = os.stat(path)
        if stat.S_ISREG(status.st_mode):
            with open(path, "rb"):
                pass
    except FileNotFoundError:
        raise SourceError("no such file", where=where) from None
    except PermissionError:
        raise SourceError("no permission to read it", where=where) from None
    except (OSError, ValueError) as error:
        raise SourceError(f"cannot be read ({error})", where=where) from error
    if stat.S_ISDIR(status.st_mode):
        folder = where.rstrip("/") or "/"
        all_of_it = f"all files: costream batch {shlex.quote(folder)} -o OUT"
        hint = f"name the files: {folder.rstrip('/')}/*; {all_of_it}"
        raise SourceError("this is a folder", where=where, hint=hint)
    if stat.S_ISREG(status.st_mode) and status.st_size == 0:
        raise SourceError("the file is empty", where=where)


def read_head(path: str, size: int) -> bytes:
    """Return the first bytes of a file, at most ``size``; raises as ``check_file``."""
    check_file(path)
    try:
        with open(path, "rb") as file:
            return file.read(size)
    except OSError as error:  # a device, or a file that was just removed
        reason = f"cannot be read ({error.strerror})"
        raise SourceError(reason, where=display_name(path)) from error
