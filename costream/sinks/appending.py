"""A file that lines are appended to, each whole or not at all."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path
from typing import BinaryIO

log = logging.getLogger("costream")

_FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)
_HEAD = 1 << 20  # bytes; no header is as long
_BLOCK = 1 << 16


class AppendedFile:
    """The file ``path``, open or not. What goes wrong comes as OSError.

    One thread writes; another may call ``sync`` meanwhile.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0  # bytes
        self._file: int | None = None
        self._synced = True
        self._guard = threading.Lock()  # held while the descriptor is synced or given up

    @property
    def is_open(self) -> bool:
        """Whether it can be appended to."""
        return self._file is not None

    def open(self) -> bytes:
        """Open it, making it if need be, and give its first line.

        What follows the last whole line, the end of a run that was killed, is cut off.
        """
        file = os.open(self.path, _FLAGS, 0o666)
        try:
            with open(file, "rb", closefd=False) as reading:
                first, self.size = reading.readline(_HEAD), _whole(reading)
            cut = os.fstat(file).st_size - self.size
            if cut:
                os.ftruncate(file, self.size)
                log.warning("%s: half a line at its end (%d bytes) is cut off", self.path, cut)
        except OSError:
            os.close(file)
            raise
        self._file = file
        return first if self.size else b""

    def append(self, data: bytes) -> None:
        """Hand whole lines to the system at once. What it takes only in part is cut off again."""
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
        """Whether the open file is still the one that its path names."""
        try:
            found = os.stat(self.path)
        except FileNotFoundError:
            return False
        return self._file is not None and os.path.samestat(found, os.fstat(self._file))

    def sync(self) -> None:
        """Make durable what was appended."""
        with self._guard:
            if self._file is not None and not self._synced:
                self._synced = True
                os.fsync(self._file)

    def close(self) -> None:
        """Let go of it; nothing happens when it is closed."""
        with self._guard:
            file, self._file = self._file, None
            if file is not None:
                os.close(file)

    def _cut_back(self, file: int) -> None:
        try:
            os.ftruncate(file, self.size)
        except OSError:  # opening it again does that
            self.close()


def _whole(file: BinaryIO) -> int:
    """Give the length up to and with the last line feed, in bytes."""
    end = file.seek(0, os.SEEK_END)
    while end:
        begin = max(0, end - _BLOCK)
        file.seek(begin)
        found = file.read(end - begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        end = begin
    return 0
