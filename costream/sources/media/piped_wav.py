"""WAV from a pipe whose header states fewer bytes than arrive."""

from __future__ import annotations

import io

from costream.sources.media.input_file import Readable
from costream.sources.media.samples import TAGS, UNKNOWN_BYTES

_UNKNOWN = b"\xff\xff\xff\xff"
_MOST_BYTES = 1 << 20  # of the header
_PIECE = 1 << 16


def is_wav(file: Readable, head: bytes) -> bool:
    """Return whether a pipe that begins with ``head``, or a file without it, is a WAV."""
    if isinstance(file, io.BufferedReader):
        head = file.read(12)
        file.seek(0)
    return head[:4] == b"RIFF" and head[8:12] == b"WAVE"


class PipedWav:
    """A WAV whose header is changed to an unknown length, so that FFmpeg reads on.

    Sound after the stated end is returned, chunks of other data are not.
    """

    def __init__(self, file: Readable) -> None:
        """``file``: a WAV, at its beginning."""
        self._file = file
        self.stated: int | None = None  # bytes of samples; None: not stated, or not WAV
        self.goes_on = False  # more sound follows the stated end
        self._ended = False
        self._ahead = self._header()
        self._left = self.stated or 0  # samples up to the stated end

    def read(self, size: int, /) -> bytes:
        """Return some bytes, at most ``size``; b"" at the end."""
        if self._ahead:
            out, self._ahead = self._ahead[:size], self._ahead[size:]
            return out
        if self._ended:
            return b""
        if self._left:
            out = self._file.read(min(size, self._left))
            self._left -= len(out)
            return out
        if self.stated is not None and not self.goes_on:
            return self._after_end(size)
        return self._file.read(size)

    def _after_end(self, size: int) -> bytes:
        """Return the data after the stated end if they are sound."""
        odd = self._take((self.stated or 0) % 2)
        head = self._take(8)
        chunk = head[:4].isascii() and head[:4].decode("ascii").isprintable() and head[7:] == b"\0"
        if len(head) < 8 or chunk or head.startswith(TAGS):
            self._ended = True
            while self._file.read(_PIECE):  # so that the writer does not get SIGPIPE
                pass
            return b""
        self.goes_on = True
        self._ahead = odd + head
        return self.read(size)

    def _header(self) -> bytes:
        """Return the bytes up to the first sample, with an unknown length."""
        header = self._take(12)
        while len(header) < _MOST_BYTES:
            chunk = self._take(8)
            size = int.from_bytes(chunk[4:], "little")
            if len(chunk) == 8 and chunk[:4] == b"data" and 0 < size < UNKNOWN_BYTES:
                self.stated = size
                return header + chunk[:4] + _UNKNOWN
            header += chunk
            if len(chunk) < 8 or chunk[:4] == b"data" or size > _MOST_BYTES:
                break
            header += self._take(size + size % 2)
        return header

    def _take(self, size: int) -> bytes:
        """Return ``size`` bytes; fewer only at the end."""
        data = b""
        while len(data) < size and (more := self._file.read(size - len(data))):
            data += more
        return data
