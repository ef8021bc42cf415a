"""Pickled feature arrays, read without executing anything in the file."""

from __future__ import annotations

import mmap
import os
from functools import lru_cache
from typing import Any

from costream.core import pickles
from costream.core.errors import SourceError, display_name
from costream.sources.media.input_file import check_file


def load_pickle(path: str) -> Any:
    """Return the content of a pickle: plain Python data and numeric numpy arrays.

    The last file is cached, since a pickle of many videos is read once per video. Raises
    SourceError if it is damaged or contains anything else.
    """
    check_file(path)
    status = os.stat(path)
    return _load(path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=1)
def _load(path: str, _mtime_ns: int, _size: int) -> Any:
    try:
        with (
            open(path, "rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            return pickles.plain(pickles.load(content))
    except OSError as error:
        raise SourceError(f"cannot be read ({error})", where=display_name(path)) from error
    except pickles.RefusedError as error:
        raise SourceError(
            str(error),
            where=display_name(path),
            hint="only arrays of numbers are read from pickles",
        ) from None
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise SourceError(
            f"this pickle is damaged ({type(error).__name__}: {str(error)[:120]})",
            where=display_name(path),
        ) from error
