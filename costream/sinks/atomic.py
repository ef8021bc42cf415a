"""Outputs: files that are renamed to their final name when finished, and standard output."""

from __future__ import annotations

import errno
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, BinaryIO, Protocol, TextIO, TypeVar

from costream.core.errors import OutputError, UsageError
from costream.core.locks import open_own, try_lock

# Temporary storage of text until the end of a run, in constant memory.

SPOOL_CHARS = 1 << 20  # longer texts are moved to a temporary file
REPLACE = "use --overwrite or --skip-existing"  # hint on the command line
# Of a full disk, a quota, and a limit for a file; Windows has no quotas.
_FULL = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}
_T = TypeVar("_T")


class Spool:
    """Lines that are written one after another and read at the end.

    Methods raise OutputError if the temporary file cannot be written or read.
    """

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(  # noqa: SIM115 - closed by close
            max_size=SPOOL_CHARS, mode="w+", encoding="utf-8", errors="backslashreplace", newline=""
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


def check_folder(folder: Path) -> None:
    """Raise UsageError unless files can be written to a folder, which exists or can be created."""
    try:
        while not os.path.lexists(folder) and folder != folder.parent:
            folder = folder.parent
        if not folder.is_dir():
            what = "is a link to what does not exist" if folder.is_symlink() else "is not a folder"
            raise UsageError(what, where=folder, hint="name a folder")
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        what, hint = f"cannot be written ({error.strerror})", "name another folder"
        where = folder if folder.name else folder.absolute()
        raise UsageError(what, where=where, hint=hint) from error


# Flush interval. Live sources yield a few steps a second, so each step is on disk before the
# next one; a fast file costs twenty flushes a second.
_FLUSH_S = 0.05


class TextOutput(Protocol):
    """Text output of a sink. ``open`` first; ``finish`` once, at the end.

    OSError becomes OutputError, once: afterwards, ``write`` and ``finish`` do nothing, so that a
    run can still finish its other sinks. BrokenPipeError is passed on unchanged.
    """

    @property
    def path(self) -> Path | None: ...  # noqa: D102 - path of the finished file; None: no file

    def open(self) -> None: ...  # noqa: D102

    def write(self, text: str, *, flush: bool = False) -> None: ...  # noqa: D102

    def finish(self) -> None: ...  # noqa: D102


def part_path(path: Path) -> Path:
    """Return the temporary name of ``path`` while it is being written."""
    return path.with_name(path.name + ".part")


class _Output:
    """Base of files and streams: prompt flushing, and errors that are raised once."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._handle: IO[Any] | None = None
        self.failed = False  # the system has refused to write
        self._flushed_s = time.monotonic()

    @property
    def path(self) -> Path | None:
        """The path of the file; None for a stream."""
        return None

    def write(self, text: str, *, flush: bool = False) -> None:
        """Append ``text``; ``flush``: flush the buffer at once."""
        handle = self._handle
        if handle is None:
            return
        self.attempt(lambda: handle.write(text))
        now_s = time.monotonic()
        if flush or now_s - self._flushed_s >= _FLUSH_S:
            self.attempt(handle.flush)
            self._flushed_s = now_s

    def attempt(self, action: Callable[[], _T]) -> _T:
        """Run ``action``; OSError becomes OutputError, and later writes are ignored."""
        try:
            return action()
        except BrokenPipeError:
            self._fail()
            raise
        except OSError as error:
            self._fail()
            self.failed = True
            reason = error.strerror or type(error).__name__
            raise OutputError(f"cannot write ({reason})", where=self._where) from error

    def _fail(self) -> None:
        self._handle = None


class AtomicFile(_Output):
    """A UTF-8 file that is written as ``NAME.part`` and renamed to NAME by ``finish``.

    Missing folders are created. ``overwrite=False``: UsageError if NAME exists. The part file is
    locked, so that a second process with the same output gets a UsageError; the lock ends with
    the process, and a part file left by a crash is replaced.

    ``together``: the files of one run, to which this one is added. If one of them cannot be
    written, as on a full disk, the others stay part files, too.
    """

    def __init__(
        self, path: Path, *, overwrite: bool = False, together: list[AtomicFile] | None = None
    ) -> None:
        super().__init__(str(path))
        self._together: list[AtomicFile] = [] if together is None else together
        self._together.append(self)
        self._path = path
        self._part = part_path(path)
        self._overwrite = overwrite

    @property
    def path(self) -> Path:
        """The final path of the file."""
        return self._path

    def open(self) -> None:
        """Create and lock the part file. If that fails, unlock the others of the same run."""
        try:
            self._open()
        except BaseException:
            for file in self._together:
                file._fail()
            raise

    def _open(self) -> None:
        self._check_new()
        self.attempt(lambda: self._path.parent.mkdir(parents=True, exist_ok=True))
        handle = self.attempt(self._create)
        try:
            self.attempt(lambda: self._take(handle))
        except BaseException:
            handle.close()
            raise
        self._handle = handle

    def _take(self, handle: IO[Any]) -> None:
        """Lock and empty the part file; UsageError if another process has it."""
        # Renamed since it was opened: the other process has just finished.
        if not try_lock(handle) or not self._is_part(handle):
            raise UsageError(
                "another run writes to it", where=self._path, hint="name another output with -o"
            )
        self._check_new()
        handle.truncate(0)

    def _is_part(self, handle: IO[Any]) -> bool:
        try:
            return os.path.samestat(os.fstat(handle.fileno()), self._part.stat())
        except FileNotFoundError:
            return False

    def _check_new(self) -> None:
        if not self._overwrite and self.attempt(self._path.exists):
            raise exists_error(self._path)

    def finish(self) -> None:
        """Flush the file to disk and rename it to its final name."""
        handle = self._handle
        if handle is None:
            return
        self.attempt(handle.flush)
        self.attempt(lambda: os.fsync(handle.fileno()))
        if os.name == "nt":  # where an open file cannot be renamed
            self.attempt(handle.close)
        if any(file.failed for file in self._together):
            self._fail()
            return
        if not self._overwrite and self.attempt(self._path.exists):
            self._fail()
            hint = f"the results are in {self._part}"
            raise OutputError("appeared during the run", where=self._path, hint=hint)
        self.attempt(lambda: os.replace(self._part, self._path))
        self.attempt(handle.close)  # and with it the lock, after the renaming
        self._handle = None

    def _create(self) -> IO[Any]:
        # A name that is not UTF-8 contains lone surrogates; as \udcXX they stay valid JSON.
        return open(
            self._part,
            "w",
            encoding="utf-8",
            errors="backslashreplace",
            newline="",
            opener=_open_as_it_is,
        )

    def _fail(self) -> None:
        """Close the handle; the part file stays as it is."""
        handle, self._handle = self._handle, None
        if handle is not None:
            try:
                handle.close()
            except OSError:  # it flushes again; the first error has been reported
                return


class BinaryFile(AtomicFile):
    """An AtomicFile for bytes, which are written to ``file`` within ``attempt``.

    If the disk is full, its part file is removed: without the end of the file it cannot be read.
    """

    def attempt(self, action: Callable[[], _T]) -> _T:
        """As of text, but a full disk keeps no part file."""
        try:
            return super().attempt(action)
        except OutputError as error:
            if getattr(error.__cause__, "errno", None) in _FULL:
                with suppress(OSError):
                    self._part.unlink()
            raise

    @property
    def file(self) -> BinaryIO | None:
        """The open part file; None before ``open``, after ``finish`` and after an error."""
        return self._handle  # type: ignore[return-value]

    def _create(self) -> IO[Any]:
        return open(self._part, "wb", opener=_open_as_it_is)


def _open_as_it_is(path: str, flags: int) -> int:
    """Open a file for writing without truncating it: another process may be writing to it."""
    return open_own(path, flags & ~os.O_TRUNC)


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file through a part file, without waiting for the disk. Raises OSError."""
    part = part_path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(part, "wb", opener=open_own) as file:
        file.write(data)
    os.replace(part, path)


def write_file(path: Path, data: bytes) -> None:
    """Replace a file through a part file, which is removed on failure."""
    file = BinaryFile(path, overwrite=True)
    try:
        file.open()
        if (handle := file.file) is not None:
            file.attempt(lambda: handle.write(data))
        file.finish()
    except OutputError:
        with suppress(OSError):
            part_path(path).unlink()
        raise


class StreamOutput(_Output):
    """Text output to an open handle that must not be closed: standard output.

    ``lead``: text before everything that is written at once.
    """

    def __init__(self, handle: TextIO, lead: str = "") -> None:
        super().__init__(getattr(handle, "name", "output"))
        self._given, self._lead = handle, lead

    def open(self) -> None:
        """Start; nothing is written."""
        self._handle = self._given

    def write(self, text: str, *, flush: bool = False) -> None:
        """Append the lead and ``text``; ``flush``: flush the buffer at once."""
        super().write(self._lead + text, flush=flush)

    def finish(self) -> None:
        """Flush; the handle stays open."""
        handle = self._handle
        if handle is not None:
            self.attempt(handle.flush)
        self._handle = None


def exists_error(path: Path, hint: str = REPLACE) -> UsageError:
    """Return the error for an output that already exists."""
    return UsageError("exists already", where=path, hint=hint)
