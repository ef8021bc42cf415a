"""Outputs: files that appear under their name only when finished, and standard output."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, BinaryIO, Protocol, TextIO, TypeVar

from costream.errors import OutputError, UsageError

# Write at most this long after a record came. Live sources give a few steps a second, so each
# step is on disk before the next one; a fast file costs twenty flushes a second.
_FLUSH_S = 0.05

_T = TypeVar("_T")


class Output(Protocol):
    """Where a sink writes its text. ``open`` first; ``finish`` once, at the end.

    Errors of the system become OutputError, once: after it, ``write`` and ``finish`` do nothing,
    so that a run can still finish its other sinks. BrokenPipeError is passed on as it is.
    """

    @property
    def path(self) -> Path | None: ...  # noqa: D102 - where it will be found; None: in no file

    def open(self) -> None: ...  # noqa: D102

    def write(self, text: str, *, flush: bool = False) -> None: ...  # noqa: D102

    def finish(self) -> None: ...  # noqa: D102


def part_of(path: Path) -> Path:
    """Give the name that ``path`` has while it is being written."""
    return path.with_name(path.name + ".part")


class _Output:
    """What files and streams share: prompt flushing, and errors that are raised once."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._handle: IO[Any] | None = None
        self._flushed_s = time.monotonic()

    @property
    def path(self) -> Path | None:
        """The file, None when this is none."""
        return None

    def write(self, text: str, *, flush: bool = False) -> None:
        """Append ``text``; ``flush`` hands everything to the system at once."""
        handle = self._handle
        if handle is None:
            return
        self.attempt(lambda: handle.write(text))
        now_s = time.monotonic()
        if flush or now_s - self._flushed_s >= _FLUSH_S:
            self.attempt(handle.flush)
            self._flushed_s = now_s

    def attempt(self, action: Callable[[], _T]) -> _T:
        """Do ``action``; errors of the system become OutputError, and then nothing is written."""
        try:
            return action()
        except BrokenPipeError:
            self._fail()
            raise
        except OSError as error:
            self._fail()
            reason = error.strerror or type(error).__name__
            raise OutputError(f"cannot write ({reason})", where=self._where) from error

    def _fail(self) -> None:
        self._handle = None


class AtomicFile(_Output):
    """A UTF-8 file that is written as ``NAME.part`` and renamed to NAME by ``finish``.

    Missing folders are made. ``overwrite=False``: UsageError when NAME exists.
    """

    def __init__(self, path: Path, *, overwrite: bool = False) -> None:
        super().__init__(str(path))
        self._path = path
        self._part = part_of(path)
        self._overwrite = overwrite

    @property
    def path(self) -> Path:
        """The name that the file has in the end."""
        return self._path

    def open(self) -> None:
        """Create the part file."""
        if not self._overwrite and self.attempt(self._path.exists):
            raise exists_error(self._path)
        self.attempt(lambda: self._path.parent.mkdir(parents=True, exist_ok=True))
        self._handle = self.attempt(self._create)

    def finish(self) -> None:
        """Make the file durable and give it its name."""
        handle = self._handle
        if handle is None:
            return
        self.attempt(handle.flush)
        self.attempt(lambda: os.fsync(handle.fileno()))
        self.attempt(handle.close)
        self._handle = None
        if not self._overwrite and self.attempt(self._path.exists):
            hint = f"the results are in {self._part}"
            raise OutputError("appeared during the run", where=self._path, hint=hint)
        self.attempt(lambda: os.replace(self._part, self._path))

    def _create(self) -> IO[Any]:
        # A name that is not UTF-8 reaches us with lone surrogates; as \udcXX they stay valid JSON.
        return self._part.open("w", encoding="utf-8", errors="backslashreplace", newline="")

    def _fail(self) -> None:
        """Let go of the handle; what is in the part file stays there."""
        handle, self._handle = self._handle, None
        if handle is not None:
            try:
                handle.close()
            except OSError:  # it flushes again; the first error has been told
                return


class BinaryFile(AtomicFile):
    """The same for bytes, which are written to ``file`` within ``attempt``."""

    @property
    def file(self) -> BinaryIO | None:
        """The open part file; None before ``open``, after ``finish`` and after an error."""
        return self._handle  # type: ignore[return-value]

    def _create(self) -> IO[Any]:
        return self._part.open("wb")


class Stream(_Output):
    """Text for an open handle that is not ours to close: standard output."""

    def __init__(self, handle: TextIO) -> None:
        super().__init__(getattr(handle, "name", "output"))
        self._given = handle

    def open(self) -> None:
        """Begin; nothing is written."""
        self._handle = self._given

    def finish(self) -> None:
        """Flush; the handle stays open."""
        handle = self._handle
        if handle is not None:
            self.attempt(handle.flush)
        self._handle = None


def exists_error(path: Path) -> UsageError:
    """Give the error for an output that is already there."""
    return UsageError("exists already", where=path, hint="use --overwrite or --skip-existing")
