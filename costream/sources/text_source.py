"""Text sources: lines or words of files and pipes, also of files that are being written."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import BinaryIO
from urllib.parse import urlsplit

from costream.core.errors import SourceError, UsageError
from costream.core.records import Fault, Gap, Item, SourceInfo, TextLine
from costream.sources.base import Connection, ConnectionOptions, SourceOptions, source
from costream.sources.file import READ_BYTES, FileSource, file_name
from costream.sources.live.address import feed_name
from costream.sources.live.backoff import Backoff
from costream.sources.live.failures import ENDED
from costream.sources.waiting import StopEvent

LONGEST = 1 << 14  # bytes of a line; the rest is ignored
POLL_S = 0.1  # interval between checks for new data
_WORD = re.compile(r"\s*\S+")
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


@source("text", kind="text", order=-1)
class TextSource(FileSource):
    """Lines of a UTF-8 text, or their words, in order; empty lines are ignored.

    The time of a line is its number, from 0, as seconds, and its words divide that second evenly;
    with ``options.arrival`` it is the time since the arrival of the first line. A line of a pipe is
    yielded as soon as it is complete. Invalid UTF-8 is replaced and lines longer than LONGEST bytes
    are cut; both count as errors.
    """

    _opened: BinaryIO | None = None
    _first = b""  # bytes that were read by open
    _began_s: float | None = None  # time.monotonic() at time 0 of arrivals; None: of the first line

    @staticmethod
    def sniff(head: bytes, path: str | None, options: SourceOptions) -> bool:
        """Return whether the options ask for text."""
        return options.text is not None

    def open(self) -> SourceInfo:
        """Open the file. Raises SourceError if it cannot be opened, is empty or binary."""
        head, live = self._head, bool(self._head)
        if self._file is None:
            self._file = self._opened = self._open_file()
        if not live:  # of a pipe the head will be read again
            head = self._first = self._file.read(READ_BYTES)
        if not head:
            raise SourceError("the file is empty", where=self._where)
        self._check_text(head)
        return SourceInfo(file_name(self._uri), self._where, "text", None, None, live=live)

    def items(self) -> Iterator[Item]:
        """Yield TextLine items, and Faults for lines that are cut or not UTF-8."""
        options, number = self._options, 0
        for raw in self._lines():
            if not isinstance(raw, bytes):
                yield raw
                continue
            arrived_s = time.monotonic()
            began_s = self._began_s = arrived_s if self._began_s is None else self._began_s
            at_s = arrived_s - began_s if options.arrival else float(number)
            if self._stopped or (options.end_s is not None and at_s >= options.end_s):
                break
            if at_s >= options.start_s:
                yield from self._items(raw, number, at_s, arrived_s)
            number += 1
        yield from self._damage.flush()

    def close(self) -> None:
        """Close the file, if this opened it."""
        if self._opened is not None:
            self._opened.close()
            self._opened = self._file = None

    def _open_file(self) -> BinaryIO:
        try:
            return open(self._uri, "rb")
        except OSError as error:
            what = f"cannot be opened ({error.strerror})"
            raise SourceError(what, where=self._where) from error

    def _check_text(self, head: bytes) -> None:
        if head.startswith(_UTF16):
            hint = "convert it: iconv -f UTF-16 -t UTF-8"
            raise SourceError("is UTF-16, not UTF-8", where=self._where, hint=hint)
        if b"\0" in head:
            raise SourceError("is not text: it contains zero bytes", where=self._where)

    def _items(self, raw: bytes, number: int, at_s: float, arrived_s: float) -> Iterator[Item]:
        """Yield the items of a line."""
        text = self._decoded(raw, number, at_s)
        words = _WORD.findall(text)
        yield from self._damage.report(at_s, intact=True)
        if self._options.text == "line" and words:
            yield TextLine(number, at_s, text.strip(), arrived_s=arrived_s)
            return
        step_s = 0.0 if self._options.arrival else 1 / max(1, len(words))
        for k, word in enumerate(words):
            ends = k == len(words) - 1
            yield TextLine(number, at_s + k * step_s, word.strip(), ends, None, arrived_s)

    def _decoded(self, raw: bytes, number: int, at_s: float) -> str:
        if len(raw) > LONGEST:
            self._damage.add(f"line(s) of more than {LONGEST} bytes, cut", at_s)
            raw = raw[:LONGEST]
            while raw and raw[-1] & 0xC0 == 0x80:  # the last character may be cut, too
                raw = raw[:-1]
            raw = raw[:-1] if raw and raw[-1] >= 0xC0 else raw
        raw = raw.removeprefix(b"\xef\xbb\xbf") if number == 0 else raw
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            self._damage.add("line(s) not in UTF-8", at_s)
            return raw.decode("utf-8", "replace")

    def _lines(self) -> Iterator[bytes | Gap | Fault]:
        """Yield lines without line ends (long ones cut), and Gap and Fault items."""
        rest = b""
        for chunk in self._chunks():
            if not isinstance(chunk, bytes):
                if rest:
                    yield rest
                rest = b""
                yield chunk
                continue
            *complete, end = chunk.split(b"\n")
            for line in complete:
                yield (rest + line)[: LONGEST + 1].removesuffix(b"\r")
                rest = b""
            rest = (rest + end)[: LONGEST + 1]
        if rest:
            yield rest

    def _chunks(self) -> Iterator[bytes | Gap | Fault]:
        """Yield the bytes in pieces that are not empty."""
        file = self._file
        while file is not None and not self._stopped:
            chunk, self._first = self._first or file.read(READ_BYTES), b""
            if not chunk:
                break
            yield chunk


class TextFeed(TextSource):
    """Lines that are appended to a file or sent by a TCP server, as they arrive.

    The present content of a file is skipped. A file that replaces it (log rotation) or that was
    truncated is read from its start. A connection that the server closes is opened again; the time
    between is a Gap. Times are seconds since ``open``, or ``zero_s``.
    """

    dropped = 0
    drift_ppm: float | None = None

    def __init__(self, uri: str, options: SourceOptions) -> None:
        """``uri``: a path or tcp://HOST:PORT. Raises UsageError for a URL without a port."""
        super().__init__(uri, replace(options, arrival=True))
        self._connecting = options.connecting or ConnectionOptions()
        self._stop = StopEvent()
        self.connection = Connection("connecting")
        self._address: tuple[str, int] | None = None
        if "://" in uri:
            try:
                parts = urlsplit(uri)
                self._address = (parts.hostname or "", parts.port or 0)
            except ValueError:
                self._address = ("", 0)
            if not all(self._address):
                hint = "as in tcp://localhost:9000"
                raise UsageError("has no host or no port", where=self._where, hint=hint)

    def open(self) -> SourceInfo:
        """Begin at the end of the file; a server is not connected to yet. Raises SourceError."""
        age_s = self._connecting.age_s()
        self._began_s = time.monotonic() - age_s
        name = feed_name(self._uri) if self._address else file_name(self._uri)
        if self._address is None:
            self._file = self._opened = self._open_file()
            self._check_text(self._opened.read(READ_BYTES))
            self._opened.seek(0, os.SEEK_END)
            self.connection = Connection("live")
        began_s = time.time() - age_s
        return SourceInfo(name, self._where, "text", None, None, live=True, began_s=began_s)

    def stop(self) -> None:
        """End ``items`` soon; safe in a signal handler."""
        super().stop()
        self._stop.set()

    def _chunks(self) -> Iterator[bytes | Gap | Fault]:
        return self._appended() if self._address is None else self._received(self._address)

    def _appended(self) -> Iterator[bytes | Gap | Fault]:
        while (file := self._opened) is not None and not self._stop.is_set:
            chunk = file.read(READ_BYTES)
            if chunk:
                yield chunk
                continue
            new = self._successor(file)
            if new is None:
                self._stop.wait(POLL_S)
                continue
            if last := file.read():  # written since
                yield last
            self._opened = self._file = new
            file.close()

    def _successor(self, file: BinaryIO) -> BinaryIO | None:
        """Return the file that has replaced this one; rewind this one if it was truncated."""
        held = os.fstat(file.fileno())
        if held.st_size < file.tell():
            file.seek(0)
        try:
            now = os.stat(self._uri)
            return None if os.path.samestat(now, held) else open(self._uri, "rb")
        except OSError:  # it was moved away, and the next one is not there yet
            return None

    def _received(self, address: tuple[str, int]) -> Iterator[bytes | Gap | Fault]:
        backoff, retries, failures, reason = Backoff(), self._connecting.retries, 0, ""
        lost_s: float | None = None  # when the last connection ended
        while not self._stop.is_set:
            live = False
            try:
                with socket.create_connection(address, self._connecting.timeout_s) as link:
                    live, failures = True, 0
                    count = self.connection.reconnects + (lost_s is not None)
                    self.connection = Connection("live", reconnects=count)
                    if lost_s is not None:
                        yield Gap(lost_s, self._now_s(), reason)
                    yield from self._read(link, backoff)
                    reason = ENDED
            except OSError as error:
                reason, failures = error.strerror or str(error), failures + (not live)
            if self._stop.is_set or (live and retries == 0):
                break
            lost_s = self._now_s() if live else lost_s
            if 0 <= retries < failures:
                self.connection = replace(self.connection, state="lost", message=reason)
                yield Fault(self._now_s(), reason, fatal=True)
                return
            if live or failures == 1:
                yield Fault(self._now_s(), reason)
            self.connection = replace(self.connection, state="waiting", message=reason)
            self._stop.wait(backoff.next_s())
        self.connection = replace(self.connection, state="ended")

    def _read(self, link: socket.socket, backoff: Backoff) -> Iterator[bytes]:
        """Yield the received bytes until the connection is closed."""
        link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        link.settimeout(POLL_S)
        while not self._stop.is_set:
            try:
                chunk = link.recv(READ_BYTES)
            except TimeoutError:
                continue
            if not chunk:
                return
            backoff.reset()
            yield chunk

    def _now_s(self) -> float:
        return time.monotonic() - (self._began_s or 0.0)
