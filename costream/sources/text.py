"""Text source: the lines, or words, of files and pipes."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import BinaryIO

from costream.errors import SourceError
from costream.records import Item, SourceInfo, TextLine
from costream.sources.base import SourceOptions, source
from costream.sources.file import READ_BYTES, FileSource, file_name

LONGEST = 1 << 14  # bytes of a line; the rest is left out
_WORD = re.compile(r"\s*\S+")
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


@source("text", kind="text", order=-1)
class TextSource(FileSource):
    """Lines of a text in UTF-8, or their words, in order; lines without any word are left out.

    The time of a line is its number, from 0, as seconds, and its words divide that second evenly;
    with ``options.arrival`` it is the time since the first line came. A line of a pipe is yielded
    as soon as its end has come. Bytes that are not UTF-8 are replaced, and lines of more than
    LONGEST bytes cut, which is counted.
    """

    _opened: BinaryIO | None = None
    _first = b""  # read already

    @staticmethod
    def sniff(head: bytes, path: str | None, options: SourceOptions) -> bool:
        """Return whether text is wanted."""
        return options.text is not None

    def open(self) -> SourceInfo:
        """Open the file. Raises SourceError if it cannot be opened, is empty or binary."""
        head, live = self._head, bool(self._head)
        if self._file is None:
            try:
                self._file = self._opened = open(self._uri, "rb")  # noqa: SIM115
            except OSError as error:
                what = f"cannot be opened ({error.strerror})"
                raise SourceError(what, where=self._where) from error
        if not live:  # of a pipe the head will be read again
            head = self._first = self._file.read(READ_BYTES)
        if not head:
            raise SourceError("the file is empty", where=self._where)
        if head.startswith(_UTF16):
            hint = "convert it: iconv -f UTF-16 -t UTF-8"
            raise SourceError("is UTF-16, not UTF-8", where=self._where, hint=hint)
        if b"\0" in head:
            raise SourceError("is no text: it holds zero bytes", where=self._where)
        return SourceInfo(file_name(self._uri), self._where, "text", None, None, live=live)

    def items(self) -> Iterator[Item]:
        """Yield TextLine items, and Faults for lines that are cut or not UTF-8."""
        options, began_s = self._options, time.monotonic()
        for number, raw in enumerate(self._lines()):
            arrived_s = time.monotonic()
            began_s = arrived_s if number == 0 else began_s
            at_s = arrived_s - began_s if options.arrival else float(number)
            if self._stopped or (options.end_s is not None and at_s >= options.end_s):
                break
            if at_s < options.start_s:
                continue
            text = self._decoded(raw, number, at_s)
            words = _WORD.findall(text)
            yield from self._damage.report(at_s, intact=True)
            if options.text == "line" and words:
                yield TextLine(number, at_s, text.strip(), arrived_s=arrived_s)
                continue
            step_s = 0.0 if options.arrival else 1 / max(1, len(words))
            for k, word in enumerate(words):
                ends = k == len(words) - 1
                yield TextLine(number, at_s + k * step_s, word.strip(), ends, None, arrived_s)
        yield from self._damage.flush()

    def close(self) -> None:
        """Close the file, if this opened it."""
        if self._opened is not None:
            self._opened.close()
            self._opened = self._file = None

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
            self._damage.add("line(s) that are not UTF-8", at_s)
            return raw.decode("utf-8", "replace")

    def _lines(self) -> Iterator[bytes]:
        """Yield lines without their ends, of longer ones the first bytes."""
        rest, file = b"", self._file
        while file is not None and not self._stopped:
            chunk, self._first = self._first or file.read(READ_BYTES), b""
            if not chunk:
                break
            *whole, end = chunk.split(b"\n")
            for line in whole:
                yield (rest + line)[: LONGEST + 1].removesuffix(b"\r")
                rest = b""
            rest = (rest + end)[: LONGEST + 1]
        if rest:
            yield rest
