"""Chained Ogg files: several recordings, one after the other (RFC 3533, section 4).

FFmpeg fails at a recording of another rate or number of channels; opened one by one, all are read.
"""

from __future__ import annotations

import mmap
import os
from itertools import pairwise

_MAGIC = b"OggS"
_FIRST_PAGE = b"OggS\0\2"  # of a logical stream
_SERIAL = slice(14, 18)  # of a page: the number of its logical stream
_PAGE_BYTES = 65_307  # at most


def recordings_of(path: str) -> list[tuple[int, int]]:
    """Return the first byte of each recording and of the next, 0 after the last.

    The list is empty unless this is an Ogg file of several recordings.
    """
    if not os.path.isfile(path) or not _is_chained(path):
        return []
    with (
        open(path, "rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        begins, at = [0], _end_of_first_pages(content, 0)
        while (at := content.find(_FIRST_PAGE, at)) >= 0:
            begins.append(at)
            at = _end_of_first_pages(content, at)
    return list(pairwise([*begins, 0]))


def _is_chained(path: str) -> bool:
    """Return whether the last page is of none of the streams that begin at the start."""
    with open(path, "rb") as file:
        head = file.read(_PAGE_BYTES)
        if not head.startswith(_MAGIC):
            return False
        file.seek(max(0, os.fstat(file.fileno()).st_size - _PAGE_BYTES))
        tail = file.read()
    last = tail.rfind(_MAGIC)
    at, serials = 0, set[bytes]()
    while head.startswith(_FIRST_PAGE, at):
        serials.add(head[at:][_SERIAL])
        at = head.find(_MAGIC, at + 1)
    return tail[last:][_SERIAL] not in serials


def _end_of_first_pages(content: mmap.mmap, at: int) -> int:
    """Return the byte after the first pages, at ``at``, of the streams of a recording."""
    while content[at : at + len(_FIRST_PAGE)] == _FIRST_PAGE:
        at = content.find(_MAGIC, at + 1)
    return len(content) if at < 0 else at
