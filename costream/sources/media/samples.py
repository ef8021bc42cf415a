"""Position and stated size of the samples of WAV, RF64, W64, AIFF, AU, CAF; length of MP3."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Literal

# Programs that do not know the length in advance write the largest possible size, or 0.
UNKNOWN_BYTES = 0x7FFF0000
_MOST = 1 << 62  # more is -1 in CAF: not stated
_LARGE = 0xFFFFFFFF  # RF64: the size is in the chunk ds64
_GUID = bytes.fromhex("f3acd3118cd100c04f8edb8a")  # of W64, behind the four letters
# In the first frame of an MP3, with both the number of frames and that of bytes.
_XING = re.compile(rb"(?:Xing|Info)...[\x03\x07\x0b\x0f]....(....)", re.DOTALL)
_FRAME_BYTES = 4096  # more than one frame, and some padding
TAGS = (b"TAG", b"ID3", b"APETAG")  # that programs for music put behind everything


@dataclass(frozen=True)
class Samples:
    """The samples of a file, in bytes."""

    begin: int  # place of the first
    stated: int | None  # size; None: not stated
    behind: int  # bytes after them that are neither chunks nor tags


@dataclass(frozen=True)
class _Form:
    """How the chunks of a kind of file are written."""

    name_bytes: int
    size_bytes: int
    order: Literal["little", "big"]
    align: int
    inclusive: bool  # the size counts the name and itself
    prefix: int  # bytes of the data's chunk before the samples
    first: int  # place of the first chunk


@dataclass(frozen=True)
class _Chunk:
    name: bytes
    begin: int  # of its content
    size: int


# First four bytes of a file, its bytes 8 to 11 (() for any), and the form of its chunks.
_FORMS: tuple[tuple[tuple[bytes, ...], tuple[bytes, ...], _Form], ...] = (
    ((b"RIFF", b"RF64", b"BW64"), (b"WAVE",), _Form(4, 4, "little", 2, False, 0, 12)),
    ((b"RIFX",), (), _Form(4, 4, "big", 2, False, 0, 12)),
    ((b"riff",), (), _Form(16, 8, "little", 8, True, 0, 40)),
    ((b"FORM",), (b"AIFF", b"AIFC"), _Form(4, 4, "big", 2, False, 8, 12)),
    ((b"caff",), (), _Form(4, 8, "big", 1, False, 4, 8)),
)


def find_samples(path: str) -> Samples | None:
    """Return the position of the samples; None for other files and for URLs.

    Reads WAV, RF64 (EBU Tech 3306), W64 (Sony), AIFF, AU and CAF (Apple).
    """
    if not os.path.isfile(path):
        return None
    with open(path, "rb") as file:
        head, end = file.read(40), os.fstat(file.fileno()).st_size
        if head[:4] == b".snd":
            begin, size = (int.from_bytes(head[k : k + 4], "big") for k in (4, 8))
            if not 0 < size < _LARGE:
                return Samples(begin, None, 0)
            return Samples(begin, size, max(0, end - begin - size))
        for begins, kinds, form in _FORMS:
            if head[:4] in begins and (not kinds or head[8:12] in kinds):
                return _in_chunks(file, form, end)
    return None


def mp3_goes_on(path: str) -> bool:
    """Return whether an MP3 is longer than its header states, as if files were concatenated.

    FFmpeg then estimates the length from the bit rate, as it does for URLs; True for URLs.
    """
    if not os.path.isfile(path):
        return True
    with open(path, "rb") as file:
        tag, begin = file.read(10), 0
        if tag[:3] == b"ID3":
            begin = 10 + sum(byte << 7 * (3 - k) for k, byte in enumerate(tag[6:10]))
        file.seek(begin)
        found = _XING.search(file.read(_FRAME_BYTES))
        if found is None:
            return False
        size, stated = os.fstat(file.fileno()).st_size - begin, int.from_bytes(found[1], "big")
    return size - stated > stated >> 4  # the rule of FFmpeg


def _in_chunks(file: BinaryIO, form: _Form, end: int) -> Samples | None:
    large = None
    for chunk in _chunks(file, form, form.first, end):
        name = chunk.name[:4]
        if name == b"ds64":
            large = int.from_bytes(file.read(16)[8:], "little")
        elif name in (b"data", b"SSND"):
            begin, size = chunk.begin + form.prefix, chunk.size - form.prefix
            size = large if large is not None and chunk.size == _LARGE else size
            unknown = chunk.size == _LARGE or (size >= UNKNOWN_BYTES and begin + size > end)
            if size <= 0 or (form.size_bytes == 4 and large is None and unknown) or size > _MOST:
                return Samples(begin, None, 0)
            behind = 0 if _may_follow(file, form, begin + size, end) else end - begin - size
            return Samples(begin, size, max(0, behind))
    return None


def _may_follow(file: BinaryIO, form: _Form, at: int, end: int) -> bool:
    """Return whether only chunks or a tag follow from ``at`` to the end."""
    at += -at % form.align
    file.seek(min(at, end))
    if file.read(8).startswith(TAGS):
        return True
    for chunk in _chunks(file, form, at, end):
        name = chunk.name[:4]
        if not (name.isascii() and name.decode("ascii").isprintable()):
            return False
        if form.name_bytes > len(name) and chunk.name[4:] != _GUID:
            return False
        at = chunk.begin + chunk.size
        if at > end:
            return False
    return True


def _chunks(file: BinaryIO, form: _Form, at: int, end: int) -> Iterator[_Chunk]:
    """Yield the chunks from ``at`` on; the file is then at the content of each."""
    head = form.name_bytes + form.size_bytes
    while at + head <= end:
        file.seek(at)
        name = file.read(form.name_bytes)
        size = int.from_bytes(file.read(form.size_bytes), form.order)
        size = max(0, size - head) if form.inclusive else size
        yield _Chunk(name, at + head, size)
        at += head + size
        at += -at % form.align
