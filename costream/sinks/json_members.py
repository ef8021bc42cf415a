"""Streaming parser of the members of a large JSON object, in constant memory."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, TextIO

_CHUNK = 1 << 16
_MOST = 1 << 26  # maximum characters of one value
_SPACE = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()


class Members:
    """Iterator of ``(key, value)`` for each member, or ``(key, element)`` for each of a list.

    It ends at the end of the object. ValueError is raised where the text is not a JSON object or
    is truncated, after everything before that place has been yielded.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._text = ""
        self._at = 0
        self._ended = False

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        self._take("{")
        if self._next() == "}":
            return
        while True:
            key = self._value()
            if not isinstance(key, str):
                raise ValueError("a key is not a string")
            self._take(":")
            if self._next() == "[":
                yield from ((key, element) for element in self._elements())
            else:
                yield key, self._value()
            if self._take(",}") == "}":
                return

    def _elements(self) -> Iterator[Any]:
        self._take("[")
        if self._next() == "]":
            self._take("]")
            return
        while True:
            yield self._value()
            if self._take(",]") == "]":
                return

    def _value(self) -> Any:
        self._next()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
            except RecursionError as error:
                raise ValueError("nested too deeply") from error
            except ValueError:
                if len(self._text) - self._at > _MOST or not self._more():
                    raise
                continue
            # A number at the end of the buffer may continue.
            if end == len(self._text) and self._more():
                continue
            self._at = end
            return value

    def _take(self, allowed: str) -> str:
        found = self._next()
        if not found or found not in allowed:
            raise ValueError(f"expected one of {allowed!r}, found {found!r}")
        self._at += 1
        return found

    def _next(self) -> str:
        """Return the next character that is not a space, without consuming it; '' at the end."""
        while True:
            match = _SPACE.match(self._text, self._at)
            self._at = match.end() if match else self._at
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def _more(self) -> bool:
        """Read more; the buffer at least doubles, so the total time is not quadratic."""
        if self._ended:
            return False
        rest = self._text[self._at :]
        read = self._file.read(max(_CHUNK, len(rest)))
        self._text, self._at = rest + read, 0
        self._ended = not read
        return bool(read)
