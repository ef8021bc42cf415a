"""Detection of lost H.264 frames by missing frame numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from av.packet import Packet

# Types of NAL units (ITU-T H.264, table 7-1).
_SLICE = 1
_IDR = 5
_SPS = 7
_START = re.compile(b"\x00\x00\x01")
# Profiles whose parameter sets also describe the chroma format (7.3.2.1.1).
_HIGH = {100, 110, 122, 244, 44, 83, 86, 118, 128, 138, 139, 134, 135}
_HEAD = 64  # bytes of a unit that are read


@dataclass(frozen=True)
class _Numbering:
    """How a parameter set numbers frames."""

    bits: int
    planes: bool  # slices have a colour plane
    gaps: bool  # numbers may be left out


class FrameNumbers:
    """Counts the reference frames that are missing before each packet of a byte stream."""

    def __init__(self, extradata: bytes | None) -> None:
        """``extradata``: of the codec; parameter sets within the stream are read too."""
        self._numbering: _Numbering | None = None
        self._last: tuple[int, bool] | None = None  # number, and whether others refer to it
        for unit in _units(extradata or b""):
            self._note(unit)

    def missing_before(self, packet: Packet[Any]) -> int:
        """Return how many frames are missing before a packet; 0 if unknown."""
        for unit in _units(bytes(packet)):
            kind = unit[0] & 31
            if kind == _SPS:
                self._note(unit)
            elif kind in (_SLICE, _IDR):
                return self._count(unit, kind == _IDR)
        return 0

    def _note(self, unit: bytes) -> None:
        if unit[0] & 31 == _SPS:
            try:
                self._numbering = _numbering(unit)
            except IndexError:  # damaged
                self._numbering = None

    def _count(self, unit: bytes, idr: bool) -> int:
        numbering, last = self._numbering, self._last
        if numbering is None:
            return 0
        bits = _Bits(unit[1:])
        try:
            for _ in range(3):  # first macroblock, type, picture parameter set
                bits.exp_golomb()
            bits.take(2 if numbering.planes else 0)
            number = bits.take(numbering.bits)
        except IndexError:
            return 0
        self._last = number, bool(unit[0] & 0x60)
        if last is None or idr or numbering.gaps:
            return 0
        before, refers = last
        if number == before:
            return 0
        return (number - before - refers) % (1 << numbering.bits)


class _Bits:
    """Reads the bits of a unit, without the bytes that prevent start codes (7.4.1)."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data[:_HEAD].replace(b"\x00\x00\x03", b"\x00\x00"), 0

    def take(self, count: int) -> int:
        """Return the next bits as a number; IndexError after the end."""
        value = 0
        for _ in range(count):
            value = value << 1 | self._data[self._at >> 3] >> (7 - self._at & 7) & 1
            self._at += 1
        return value

    def exp_golomb(self) -> int:
        """Return the next number of variable length (9.1)."""
        zeros = 0
        while not self.take(1):
            zeros += 1
        return (1 << zeros) - 1 + self.take(zeros)


def _units(data: bytes) -> Iterator[bytes]:
    """Yield the beginnings of the NAL units of a byte stream."""
    for match in _START.finditer(data):
        if unit := data[match.end() : match.end() + _HEAD]:
            yield unit


def _numbering(unit: bytes) -> _Numbering | None:
    """Read a sequence parameter set (7.3.2.1.1); None if its head is too long."""
    bits = _Bits(unit[1:])
    profile, planes = bits.take(8), False
    bits.take(16)
    bits.exp_golomb()
    if profile in _HIGH:
        if bits.exp_golomb() == 3:
            planes = bool(bits.take(1))
        bits.exp_golomb()
        bits.exp_golomb()
        bits.take(1)
        if bits.take(1):  # scaling matrices: rare, and long
            return None
    length = bits.exp_golomb() + 4
    order = bits.exp_golomb()
    if order == 0:
        bits.exp_golomb()
    elif order == 1:
        bits.take(1)
        for _ in range(2):
            bits.exp_golomb()
        for _ in range(bits.exp_golomb()):
            bits.exp_golomb()
    bits.exp_golomb()  # reference frames
    return _Numbering(length, planes, bool(bits.take(1)))
