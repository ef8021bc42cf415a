"""An append-only file of complete lines, robust against crashes."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path
from typing import BinaryIO

log = logging.getLogger("costream")
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)
_HEAD = 1 << 20  # bytes; longer than any header
_BLOCK = 1 << 16


class AppendedFile:
    """An append-only file at ``path``, open or not. Methods raise OSError.

    One thread writes; another may call ``sync`` at the same time.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0  # bytes
        self._file: int | None = None
        self._synced = True
        self._guard = threading.Lock()  # held while the descriptor is synced or closed

    @property
    def is_open(self) -> bool:
        """Whether the file is open for appending."""
        return self._file is not None

    def open(self) -> bytes:
        """Open the file, creating it if missing, and return its first line.

        An incomplete last line, left by a killed run, is removed.
        """
        file = os.open(self.path, _FLAGS, 0o666)
        try:
            with open(file, "rb", closefd=False) as reading:
                first, self.size = reading.readline(_HEAD), _complete_length(reading)
            cut = os.fstat(file).st_size - self.size
            if cut:
                os.ftruncate(file, self.size)
                log.warning("%s: incomplete last line removed (%d bytes)", self.path, cut)
        except OSError:
            os.close(file)
            raise
        self._file = file
        return first if self.size else b""

    def append(self, data: bytes) -> None:
        """Write complete lines in one call. A partial write is undone."""
        if self._file is None:
            raise ValueError(f"{self.path} is not open")
        self._synced = False
        try:
            done = 0
            while done < len(data):
                done += os.write(self._file, data[done:])
        except OSError:
            self._cut_back(self._file)
            raise
        self.size += len(data)

    def is_there(self) -> bool:
        """Return whether ``path`` still names the open file."""
        try:
            found = os.stat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return self._file is not None and os.path.samestat(found, os.fstat(self._file))

    def sync(self) -> None:
        """Flush appended data to disk."""
        with self._guard:
            if self._file is not None and not self._synced:
                self._synced = True
                os.fsync(self._file)

    def close(self) -> None:
        """Close the file; do nothing if it is closed."""
        with self._guard:
            file, self._file = self._file, None
            if file is not None:
                os.close(file)

    def _cut_back(self, file: int) -> None:
        try:
            os.ftruncate(file, self.size)
        except OSError:  # done when the file is opened again
            self.close()


def _complete_length(file: BinaryIO) -> int:
    """Return the length up to and including the last line feed, in bytes."""
    end = file.seek(0, os.SEEK_END)
    while end:
        begin = max(0, end - _BLOCK)
        file.seek(begin)
        found = file.read(end - begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        end = begin
    return 0
