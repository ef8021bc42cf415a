"""Secrets among the arguments of this process, which other users of the machine can see."""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress
from pathlib import Path

from costream.core.urls import redact

_PROCESS = Path("/proc/self")
_FIRST, _ARGUMENTS = 3, 48  # fields of ``stat``: the first after the name; where arguments begin


def hide_secrets() -> None:
    """Replace logins and other secrets of URLs in what ``ps`` shows of this process (Linux)."""
    if sys.platform != "linux":
        return
    with suppress(OSError, ValueError, IndexError):
        given = (_PROCESS / "cmdline").read_bytes()
        fields = (_PROCESS / "stat").read_bytes().rpartition(b")")[2].split()
        start = int(fields[_ARGUMENTS - _FIRST])
        if start:  # 0: not known
            shown = b"\0".join(map(_shown, given.split(b"\0")))
            ctypes.memmove(start, shown, len(given))


def _shown(argument: bytes) -> bytes:
    """Return an argument without its secrets, in as many bytes."""
    text = argument.decode("utf-8", "surrogateescape")
    hidden = redact(text) if "://" in text else text
    if hidden == text:
        return argument
    return hidden.encode("utf-8", "surrogateescape")[: len(argument)].ljust(len(argument))
