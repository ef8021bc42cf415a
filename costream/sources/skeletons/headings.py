"""Interpretation of the columns of skeleton tables, from headings or ``--columns``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from costream.core.errors import SourceError
from costream.sources.file import first_of
from costream.sources.skeletons.columns import AXES, TIMES, Columns
from costream.sources.skeletons.joint_names import words_of
from costream.sources.skeletons.text_lines import decimal, is_valid

_TIME = ("time", "t", "timestamp", "stamp", "seconds", "sec", "elapsed", "datetime", "ms", "msec")
_FRAME = ("frame", "frames", "frameno", "framenum", "frameid", "frameindex", "frameidx")
_PERSON = ("person", "body", "track", "tracking", "player", "skeleton", "human", "pid", "bodyid")
_JOINT = ("joint", "landmark", "keypoint", "kp", "bodypart", "marker", "jointtype", "part")
_NUMBER = ("id", "no", "nr", "num", "number", "index", "idx", "name", "type", "stamp")
_UNITS = {
    "s": "time",
    "sec": "time",
    "secs": "time",
    "seconds": "time",
    "ms": "time_ms",
    "msec": "time_ms",
    "millis": "time_ms",
    "milliseconds": "time_ms",
    "us": "time_us",
    "usec": "time_us",
    "microseconds": "time_us",
    "ns": "time_ns",
    "nanoseconds": "time_ns",
}
_SCORES = ("visibility", "score", "confidence", "conf", "likelihood", "presence", "vis", "prob")
_SHORT_SCORES = ("v", "c", "s", "p")  # only together with a joint: nose_v
_LENGTHS = ("m", "mm", "cm", "px", "pixel", "pixels", "meters", "metres")
_AROUND = (*_JOINT, "pos", "position", "coord", "point", "pt")  # filler words: joint_0_x


@dataclass(frozen=True)
class Heading:
    """Meaning of one heading."""

    role: str  # "time", "x", "score", ...; "_" if unknown
    joint: str = ""  # the joint as the table names it; "" for none
    has_unit: bool = False  # time: the unit is in the heading
    rank: int = 0  # of several scores the lowest rank is used: visibility before presence


def read_heading(text: str) -> Heading:
    """Return the meaning of a single heading."""
    words = words_of(text)
    if len(words) > 1 and words[-1] in _LENGTHS and words[-2] in AXES:
        words.pop()
    if not words:
        return Heading("_")
    single = _single(words)
    if single.role != "_":
        return single
    for role, ends in (("axis", AXES), ("score", (*_SCORES, *_SHORT_SCORES))):
        for at in (-1, 0):
            rest = words[:-1] if at else words[1:]
            if words[at] in ends and rest:
                joint = [w for w in rest if w not in _AROUND] or rest
                while len(joint) > 1 and joint[0].isdecimal():
                    joint = joint[1:]  # the number before the name: 11_nose_x
                rank = _SCORES.index(words[at]) if words[at] in _SCORES else 0
                name = " ".join(joint)
                return Heading(words[at] if role == "axis" else role, name, rank=rank)
    return single


def _single(words: list[str]) -> Heading:
    first, rest = words[0], words[1:]
    if len(words) == 1 and first in AXES:
        return Heading(first)
    if len(words) == 1 and first in (*_SCORES, *_SHORT_SCORES[:2]):
        return Heading("score", rank=_SCORES.index(first) if first in _SCORES else 0)
    units = [word for word in words if word in _UNITS]
    if first in _TIME and all(word in (*_UNITS, *_TIME) for word in rest):
        return Heading(_UNITS[units[-1]] if units else "time", has_unit=bool(units))
    for role, names in (("frame", _FRAME), ("person", _PERSON), ("joint", _JOINT)):
        if first in names and all(word in _NUMBER for word in rest):
            return Heading(role, rank=0 if "name" in rest else 1)
    return Heading("_")


def is_header(cells: Sequence[str]) -> bool:
    """Return whether a first row is headings: text, or the numbers of the columns."""
    counted = [cell.strip() for cell in cells if cell.strip()]
    return not all(is_valid(decimal, cell or "0") for cell in cells) or is_counted(counted)


def is_counted(cells: Sequence[str]) -> bool:
    """Return whether the headings are 0, 1, 2, ..., as in the dump of an array."""
    return len(cells) > 2 and list(cells) == [str(k) for k in range(len(cells))]


def interpret_headings(cells: Sequence[str], columns: Columns | None, where: str) -> list[Heading]:
    """Return the meaning of each heading; ``--columns`` takes precedence."""
    headings = [read_heading(cell) for cell in cells]
    if columns is None:
        return headings
    if any(column.role in AXES for column in columns.all):
        headings = [h if not _places(h) else Heading("_") for h in headings]
    for column in columns.all:
        found = False
        for k, cell in enumerate(cells):
            joint = column.joint_in(cell)
            if joint is not None:
                headings[k], found = Heading(column.role, joint), True
            elif cell.strip() == column.heading:
                _forget(headings, column.role)
                headings[k], found = Heading(column.role, has_unit=True), True
        if not found:
            raise SourceError(
                f"there is no column {column.heading!r}, which --columns names "
                f"({quoted_columns(cells)})",
                where=where,
            )
    return headings


def quoted_columns(cells: Sequence[str]) -> str:
    """Return the columns of a table for a message."""
    return first_of((cell.strip() or "(empty)" for cell in cells), 8)


def _places(heading: Heading) -> bool:
    return heading.role in (*AXES, "score", "joint")


def _forget(headings: list[Heading], role: str) -> None:
    family = tuple(TIMES) if role in TIMES else (role,)
    for k, heading in enumerate(headings):
        if heading.role in family and not heading.joint:
            headings[k] = Heading("_")
