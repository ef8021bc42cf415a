"""Temporary storage of text until the end of a run, in constant memory."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from typing import TypeVar

from costream.errors import OutputError

SPOOL_CHARS = 1 << 20  # longer texts are moved to a temporary file

_T = TypeVar("_T")


class Spool:
    """Lines that are written one after another and read at the end.

    Methods raise OutputError if the temporary file cannot be written or read.
    """

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(  # noqa: SIM115 - closed by close
            max_size=SPOOL_CHARS,
            mode="w+",
            encoding="utf-8",
            errors="backslashreplace",
            newline="",
        )

    def add(self, text: str) -> None:
        """Append ``text``."""
        _try(lambda: self._file.write(text))

    def lines(self) -> Iterator[str]:
        """Yield all lines from the beginning; one reader at a time."""
        _try(lambda: self._file.seek(0))
        while line := _try(self._file.readline):
            yield line

    def close(self) -> None:
        """Discard the text."""
        self._file.close()


def _try(action: Callable[[], _T]) -> _T:
    try:
        return action()
    except OSError as error:
        raise OutputError(
            f"cannot write a temporary file ({error.strerror})", where=tempfile.gettempdir()
        ) from error
