"""Lines of text files and pipes."""

from __future__ import annotations

import codecs
import os
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from costream.sources.file import HEAD_BYTES, READ_BYTES
from costream.sources.media.input_file import Readable

DELIMITERS = ",;\t"

ParsedT = TypeVar("ParsedT")


class Lines:
    """Lines of a text in UTF-8, with or without a byte order mark.

    A line is yielded as soon as its end has arrived, without waiting for more.
    """

    def __init__(self, file: Readable) -> None:
        """``file``: ``read`` returns some bytes, b"" at the end."""
        self._file = file
        self.unfinished = False  # the last line has no line end: the text may be cut off

    def __iter__(self) -> Iterator[str]:
        """Yield the lines without their ends."""
        rest, first = b"", True
        while chunk := self._file.read(READ_BYTES):
            *complete, rest = (rest + chunk).split(b"\n")
            for line in complete:
                yield _decoded(line, first)
                first = False
        if rest:
            self.unfinished = True
            yield _decoded(rest, first)


def last_line(path: str) -> str:
    """Return the last complete non-comment line of a file; "" if it is not near the end."""
    with open(path, "rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - HEAD_BYTES))
        complete = file.read().split(b"\n")[:-1]
    return next((line for line in map(_text, reversed(complete)) if not is_comment(line)), "")


def _decoded(line: bytes, first: bool) -> str:
    return _text(line).removeprefix("\ufeff") if first else _text(line)


def _text(line: bytes) -> str:
    return line.removesuffix(b"\r").decode("utf-8", "replace")


def is_text(head: bytes) -> bool:
    """Return whether ``head`` is UTF-8 text (the last character may be incomplete)."""
    try:
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(head)
    except UnicodeDecodeError:
        return False
    return all(c.isprintable() or c in "\t\r\n\ufeff" for c in text)


def first_line(head: bytes) -> str:
    """Return the first line that is neither empty nor a comment."""
    for line in head.decode("utf-8-sig", "replace").split("\n"):
        if not is_comment(line):
            return line.strip()
    return ""


def delimiter_of(line: str) -> str:
    """Return the delimiter of a line; a comma is not one if there are tabs or semicolons."""
    for delimiter in "\t;":
        if line.count(delimiter) > 1 or (delimiter in line and "," not in line):
            return delimiter
    return ","


def decimal(text: str) -> float:
    """Return a number with a decimal point or comma; raises ValueError for other text."""
    try:
        return float(text)
    except ValueError:
        return float(text.replace(",", "."))


def is_valid(read: Callable[[str], float], text: str) -> bool:
    """Return whether ``read`` reads a text without ValueError."""
    try:
        read(text)
    except ValueError:
        return False
    return True


def parse_lines(lines: Iterable[str], parse: Callable[[str], ParsedT]) -> tuple[list[ParsedT], int]:
    """Return what ``parse`` makes of each line that is not empty, and the number of bad lines.

    A line is bad if ``parse`` raises ValueError or IndexError.
    """
    parsed, bad = [], 0
    for line in filter(str.strip, lines):
        try:
            parsed.append(parse(line))
        except (ValueError, IndexError):
            bad += 1
    return parsed, bad


def is_comment(line: str) -> bool:
    """Return whether a line is empty or starts with "#"."""
    return not line.strip() or line.lstrip().startswith("#")
