"""Source for standard input and named pipes: video, sound, features or skeletons."""

from __future__ import annotations

import os
import select
import stat
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import BinaryIO

from costream.core.errors import SourceError, display_name
from costream.core.records import Item, SourceInfo
from costream.sources.base import SourceOptions, shifted
from costream.sources.file import HEAD_BYTES, READ_BYTES, FileSource, find_file_source
from costream.sources.skeletons.text_lines import first_line, is_text

# Interval at which a wait for data checks the stop flag.
POLL_S = 0.1
MAGIC_BYTES = 16
STDIN = 0


class PipeReader:
    """Reads a pipe in pieces; ``stop`` interrupts a wait, after which the pipe is at its end."""

    def __init__(self, descriptor: int) -> None:
        """``descriptor``: an open file descriptor; whoever opened it closes it."""
        self._descriptor = descriptor
        self._stopped = False
        self._ahead = b""  # read ahead, not consumed yet

    def stop(self) -> None:
        """Make the read in progress and every later one return b""."""
        self._stopped = True

    def peek(self, size: int) -> bytes:
        """Return up to ``size`` bytes without consuming them; fewer only at the end."""
        while len(self._ahead) < size and (more := self._wait(size - len(self._ahead))):
            self._ahead += more
        return self._ahead[:size]

    def peek_any(self) -> bytes:
        """Return the first bytes to arrive without consuming them; b"" only at the end."""
        self._ahead = self._ahead or self._wait(READ_BYTES)
        return self._ahead

    def peek_line(self) -> bytes:
        """Return the bytes up to the end of the first non-comment line, as ``peek`` does."""
        while b"\n" not in self._ahead or not (
            first_line(self._ahead[: self._ahead.rindex(b"\n")])
        ):
            more = self._wait(READ_BYTES) if len(self._ahead) < HEAD_BYTES else b""
            if not more:
                break
            self._ahead += more
        return self._ahead

    def read(self, size: int, /) -> bytes:
        """Return some bytes, at most ``size``; b"" at the end."""
        if self._ahead:
            out, self._ahead = self._ahead[:size], self._ahead[size:]
            return out
        return self._wait(size)

    def _wait(self, size: int) -> bytes:
        while not self._stopped:
            # Windows has no select for pipes; there a stop waits for the next bytes.
            if sys.platform == "win32" or select.select([self._descriptor], [], [], POLL_S)[0]:
                try:
                    return os.read(self._descriptor, size)
                except BlockingIOError:  # another reader was faster
                    continue
        return b""


class PipeSource:
    """Data from standard input ("-") or a named pipe: media, .npy, .npz or skeletons.

    A pipe is not seekable: ``start_s`` is reached by decoding. Rows of a skeleton table and blocks
    of sound are yielded as they arrive. The sound of a video is not read.
    """

    def __init__(self, uri: str, options: SourceOptions | None = None) -> None:
        """``uri``: "-" or the path of a pipe."""
        self.uri = uri
        self.options = options or SourceOptions()
        # Headerless samples may begin with any bytes.
        self._raw = self.options.raw is not None and self.options.sound is not None
        self._stopped = False
        self._descriptor: int | None = None
        self._reader: PipeReader | None = None
        self._file: BinaryIO | None = None
        self._inner: FileSource | None = None
        self._later_s = 0.0  # added to the times of the inner source

    @property
    def errors(self) -> int:
        """Number of errors found so far."""
        return 0 if self._inner is None else self._inner.errors

    def open(self) -> SourceInfo:
        """Wait for the first bytes and open their format; raises SourceError on failure."""
        name = "stdin" if self.uri == "-" else self.uri
        descriptor = self._descriptor = self._open_descriptor(name)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):  # "< clip.mp4": a file after all
            file = self._file = os.fdopen(os.dup(descriptor), "rb")
            head = file.read(HEAD_BYTES)
            file.seek(0)
            inner = self._inner = self._source_of(name, file, head)
        else:
            reader = self._reader = PipeReader(descriptor)
            if self._stopped:
                reader.stop()
            head = reader.peek_any() if self.options.text is not None else reader.peek(MAGIC_BYTES)
            if self.options.text is None and is_text(head) and not self._raw:
                head = reader.peek_line()
            inner = self._inner = self._source_of(name, reader, head)
        if self._stopped:
            inner.stop()
        info = inner.open()
        connecting = self.options.connecting
        self._later_s = 0.0 if connecting is None else connecting.age_s()
        if self.options.extra_audio is not None and info.kind == "video":
            return replace(info, silent="the sound of a piped video is not read")
        return info

    def _source_of(self, name: str, file: BinaryIO | PipeReader, head: bytes) -> FileSource:
        """Return the source for data that begin with ``head``."""
        piped = isinstance(file, PipeReader)
        if not head or (self._stopped and piped):
            what = "stopped before any data came" if self._stopped else "no data received"
            raise SourceError(what, where=display_name(name))
        found = find_file_source(b"" if self._raw else head, None, self.options)
        if found is None:
            raise SourceError("unknown format", where=display_name(name))
        return found[1](name, self.options, file=file, head=head if piped else b"")

    def items(self) -> Iterator[Item]:
        """Yield the items of the inner source."""
        if self._inner is not None:
            yield from shifted(self._inner.items(), self._later_s)

    def stop(self) -> None:
        """End ``open`` or ``items`` soon, even while they wait; safe in a signal handler."""
        self._stopped = True
        # The reader last: an end caused by it must not look like a truncated file.
        for part in (self._inner, self._reader):
            if part is not None:
                part.stop()

    def close(self) -> None:
        """Close the pipe; a program that still writes to it then gets SIGPIPE."""
        if self._inner is not None:
            self._inner.close()
        if self._file is not None:
            self._file.close()
        if self._descriptor is not None and self._descriptor != STDIN:
            os.close(self._descriptor)
        self._descriptor = self._file = None

    def _open_descriptor(self, name: str) -> int:
        if self.uri != "-":
            try:
                # Do not wait here for a writer: that could not be interrupted.
                return os.open(self.uri, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
            except OSError as error:
                raise SourceError(
                    f"cannot be opened ({error})", where=display_name(name)
                ) from error
        try:
            terminal = os.isatty(STDIN)
            os.fstat(STDIN)
        except OSError:
            raise SourceError("standard input is closed", where=name) from None
        if terminal:
            raise SourceError(
                "standard input is a terminal",
                where=name,
                hint="pipe something into it: ... | ... -",
            )
        return STDIN
