"""Interpretation of the columns of skeleton tables, from headings or ``--columns``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from costream.core.errors import SourceError, UsageError
from costream.core.layouts import BODY_25, COCO_17, OPENPOSE_18, Layout
from costream.sources.file import first_of
from costream.sources.numbering import beginning
from costream.sources.skeletons.joint_names import (
    LAYOUT_BY_JOINT_COUNT,
    find_joints,
    joint_index,
    words_of,
)
from costream.sources.skeletons.lines import decimal, is_valid

# Image layouts: the third of three numbers per joint may be a score.
IMAGE_LAYOUTS = (COCO_17, OPENPOSE_18, BODY_25)
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
_SHORT_SCORES = ("v", "c", "s", "p")  # only beside a joint: nose_v
_LENGTHS = ("m", "mm", "cm", "px", "pixel", "pixels", "meters", "metres")
_AROUND = (*_JOINT, "pos", "position", "coord", "point", "pt")  # carries no information: joint_0_x


@dataclass(frozen=True)
class Heading:
    """Meaning of one heading."""

    role: str  # "time", "x", "score", ...; "_" if unknown
    joint: str = ""  # the joint as the table names it; "" for none
    has_unit: bool = False  # time: the unit is in the heading
    rank: int = 0  # of several scores the lowest is used: visibility before presence


@dataclass(frozen=True)
class TableSchema:
    """Cell index of each quantity in a row, -1 for none.

    Wide tables have V rows of places and scores; long ones, with one row per joint, have one.
    """

    layout: Layout
    cells: int  # per row
    places: npt.NDArray[np.intp]  # [V or 1, C], cell of each coordinate
    signs: npt.NDArray[np.float64]  # [C]
    scores: npt.NDArray[np.intp] | None  # [V or 1] cell of each score
    time: int = -1
    time_unit_s: float | None = None  # None: unknown
    frame: int = -1
    person: int = -1
    joint: int = -1
    joint_base: int = 0  # long tables with numbered joints: the first number
    joint_names: dict[str, int] = field(default_factory=dict)  # long tables: the names seen so far

    def joint_of(self, cell: str) -> int | None:
        """Return the joint named by a cell of the joint column; None if not in the layout."""
        if cell not in self.joint_names:
            if cell.isdecimal():
                k = int(cell) - self.joint_base
                found = {cell: k} if 0 <= k < len(self.layout.joints) else {}
            else:
                found = joint_index(self.layout, [*self.joint_names, cell])
            self.joint_names.update(found)
        return self.joint_names.get(cell)


def read_heading(text: str) -> Heading:
    """Return the meaning of a heading on its own."""
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
    """Return whether a first row is headings: not all numbers, or numbers of the columns."""
    counted = [cell.strip() for cell in cells if cell.strip()]
    return not all(is_valid(decimal, cell or "0") for cell in cells) or is_counted(counted)


def is_counted(cells: Sequence[str]) -> bool:
    """Return whether the headings are 0, 1, 2, ..., as of an array that was dumped as is."""
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
                f"there is no column {column.heading!r}, which --columns names ({_quoted(cells)})",
                where=where,
            )
    return headings


def _places(heading: Heading) -> bool:
    return heading.role in (*AXES, "score", "joint")


def _forget(headings: list[Heading], role: str) -> None:
    family = tuple(TIMES) if role in TIMES else (role,)
    for k, heading in enumerate(headings):
        if heading.role in family and not heading.joint:
            headings[k] = Heading("_")


def ordered_headings(
    columns: Columns, count: int, layout: Layout | None, where: str
) -> list[Heading]:
    """Return the meaning of each of ``count`` columns when only their order is given."""
    once = [c for c in columns.all if c.role not in (*AXES, "score")]
    each = [c for c in columns.all if c.role in (*AXES, "score")]
    if columns.get("joint"):
        headings = [_ordered(column) for column in columns.all]
        if len(headings) != count:
            raise SourceError(
                f"the table has {count} columns, --columns names {len(headings)}", where=where
            )
        return headings
    joints, left = divmod(count - len(once), len(each))
    known = layout or LAYOUT_BY_JOINT_COUNT.get(joints)
    if left or joints < 1 or (layout is not None and joints != len(layout.joints)):
        wanted = f" of {layout.name}" if layout else ""
        raise SourceError(
            f"{count} columns are not {len(once)} and {len(each)} for each joint{wanted}",
            where=where,
        )
    names = [str(k) for k in range(len(known.joints) if known else joints)]
    return [_ordered(c) for c in once] + [Heading(c.role, name) for name in names for c in each]


def _ordered(column: Column) -> Heading:
    return Heading(column.role, has_unit=True)


def make_schema(
    headings: Sequence[Heading],
    columns: Columns | None,
    layout: Layout | None,
    joints: Sequence[str],
    cells: Sequence[str],
    where: str,
) -> TableSchema:
    """Return the plan of a table. ``joints``: for long tables, joint names in the first rows.

    ``cells``: the first row, to be quoted in messages.
    """
    long = is_long(headings)
    names = list(joints if long else dict.fromkeys(h.joint for h in headings if h.joint))
    names = [
        name for name in names if long or any(_axis(headings, a, name, where) >= 0 for a in AXES)
    ]
    if not names:
        raise SourceError(
            f"there are no joints in its columns ({_quoted(cells)})",
            where=where,
            hint="headings like left_wrist_x, x0, or joint and x are known; others need --columns",
        )
    axes = [a for a in AXES if any(h.role == a and (long or h.joint) for h in headings)]
    if axes not in (["x", "y"], ["x", "y", "z"]):
        lacking = [a for a in AXES[:2] if a not in axes]
        raise SourceError(
            f"it has no columns for {' and '.join(lacking)} ({_quoted(cells)})", where=where
        )
    found_layout, index = find_joints(names, layout, where)
    rows = [("", 0)] if long else [(name, index[name]) for name in names if name in index]
    size = 1 if long else len(found_layout.joints)
    places = np.full((size, len(axes)), -1, np.intp)
    scores = np.full(size, -1, np.intp)
    for name, k in rows:
        places[k] = [_axis(headings, axis, name, where) for axis in axes]
        scores[k] = _score(headings, name)
        if (places[k] < 0).any():
            raise SourceError(f"the joint {name!r} lacks some of {', '.join(axes)}", where=where)
    signs = orientation(found_layout, len(axes))
    for c, axis in enumerate(axes):
        column = columns.get(axis) if columns is not None else None
        signs[c] *= column.sign if column is not None else 1
    time = next((k for k, h in enumerate(headings) if h.role in TIMES), -1)
    unit = TIMES[headings[time].role] if time >= 0 and headings[time].has_unit else None
    return TableSchema(
        found_layout,
        len(headings),
        places,
        signs,
        scores if (scores >= 0).any() else None,
        time,
        unit,
        _one(headings, "frame"),
        _one(headings, "person"),
        joint_column(headings) if long else -1,
        int(names[0]) - index[names[0]] if names[0].isdecimal() else 0,
        dict(index) if long else {},
    )


def orientation(layout: Layout, axes: int) -> npt.NDArray[np.float64]:
    """Return the signs that make y point up in a table's coordinates.

    In images y points down. MediaPipe's 3-D coordinates are a camera's (x right, y down, z away
    from it): they are rotated about z, so that left and right do not swap.
    """
    if axes == 2:
        return np.array([1.0, -1.0])
    return np.array([-1.0, -1.0, 1.0] if layout.name == "mediapipe-33" else [1.0, 1.0, 1.0])


def is_long(headings: Sequence[Heading]) -> bool:
    """Return whether a table has one row per joint."""
    roles = {h.role for h in headings if not h.joint}
    return "joint" in roles and {"x", "y"} <= roles


def joint_column(headings: Sequence[Heading]) -> int:
    """Return the joint column; one with names is preferred to one with numbers."""
    ranked = [(h.rank, k) for k, h in enumerate(headings) if h.role == "joint"]
    return min(ranked)[1] if ranked else -1


def _axis(headings: Sequence[Heading], role: str, joint: str, where: str) -> int:
    found = [k for k, h in enumerate(headings) if h.role == role and h.joint == joint]
    if len(found) > 1:
        raise SourceError(
            f"columns {found[0] + 1} and {found[1] + 1} are both {role} of {joint or 'a joint'}",
            where=where,
            hint="choose one: --columns x={}_x,y={}_y",
        )
    return found[0] if found else -1


def _score(headings: Sequence[Heading], joint: str) -> int:
    ranked = [(h.rank, k) for k, h in enumerate(headings) if h.role == "score" and h.joint == joint]
    return min(ranked)[1] if ranked else -1


def _quoted(cells: Sequence[str]) -> str:
    """Return the columns of a table for a message."""
    return first_of((cell.strip() or "(empty)" for cell in cells), 8)


def _one(headings: Sequence[Heading], role: str) -> int:
    return next((k for k, h in enumerate(headings) if h.role == role), -1)


# Parsing of the ``--columns`` option for skeleton tables.

AXES = ("x", "y", "z")
TIMES = {"time": 1.0, "time_ms": 1e-3, "time_us": 1e-6, "time_ns": 1e-9}  # seconds in a unit
ROLES = (*TIMES, "frame", "person", "joint", *AXES, "score", "_")


@dataclass(frozen=True)
class Column:
    """A column, or a pattern for one column per joint."""

    role: str  # one of ROLES
    heading: str | None = None  # None: columns are identified by order; "{}": the joint
    sign: int = 1  # -1: values are negated

    def joint_in(self, heading: str) -> str | None:
        """Return the joint named in a heading; None if it does not match or names none."""
        if "{}" not in (self.heading or ""):
            return None
        pattern = re.escape(self.heading or "").replace(re.escape("{}"), "(.+)", 1)
        found = re.fullmatch(pattern, heading.strip(), re.IGNORECASE)
        return found[1] if found else None


@dataclass(frozen=True)
class Columns:
    """Parsed ``--columns`` option; each role occurs once, except "_"."""

    all: tuple[Column, ...]

    @property
    def by_order(self) -> bool:
        """Whether columns are identified by their order, not by their headings."""
        return self.all[0].heading is None

    def get(self, role: str) -> Column | None:
        """Return the column of this role, if any."""
        return next((column for column in self.all if column.role == role), None)


@dataclass(frozen=True)
class AxesOption:
    """How ``--columns`` names the axes of a recording."""

    headings: tuple[str, ...] = ()  # of x, y, z in its file; none: they are given in order
    more: tuple[str, ...] = ()  # what is to be named too: "score", or "joint=Joint"
    oriented: bool = True  # the signs of ``orientation`` apply too

    def text(self, order: Sequence[int], signs: Sequence[float], base: Sequence[float]) -> str:
        """Return the option that takes other axes as x, y, z.

        ``order``, ``signs``: which axis is x, y, z, of those that are read now: the file's with the
        signs ``base``.
        """
        if self.oriented:
            signs = [
                int(base[k] * base[o] * sign)
                for k, (o, sign) in enumerate(zip(order, signs, strict=True))
            ]
        else:
            signs = [int(base[o] * sign) for o, sign in zip(order, signs, strict=True)]
        minus = ["-" if sign < 0 else "" for sign in signs]
        if not self.headings:
            role = {o: f"{minus[k]}{AXES[k]}" for k, o in enumerate(order)}
            return "--columns " + ",".join([*(role[o] for o in range(len(order))), *self.more])
        parts = [f"{AXES[k]}={minus[k]}{self.headings[o]}" for k, o in enumerate(order)]
        return "--columns '" + ",".join([*parts, *self.more]) + "'"


def axes_option(
    plan: TableSchema, cells: Sequence[str], columns: Columns | None
) -> AxesOption | None:
    """Return how ``--columns`` names the axes of a table with these headings; None: it cannot.

    ``columns``: what was given.
    """
    axes = [[cells[k].strip() for k in column if k >= 0] for column in plan.places.T]
    if columns is not None and columns.by_order:
        return None
    headings = tuple(map(_pattern, axes)) if plan.joint < 0 else tuple(names[0] for names in axes)
    if not all(headings):
        return None
    more = [] if plan.joint < 0 else [f"joint={cells[plan.joint].strip()}"]
    if plan.scores is not None:
        scores = [cells[k].strip() for k in plan.scores if k >= 0]
        more += [f"score={_pattern(scores) if plan.joint < 0 else scores[0]}"]
    return AxesOption(headings, tuple(more))


def _pattern(names: Sequence[str]) -> str:
    """Return what headings have in common, with ``{}`` where they differ; "" if they do not."""
    first, last = beginning(names), beginning([name[::-1] for name in names])
    if len(names) < 2 or any(len(first) + len(last) >= len(name) for name in names):
        return ""
    return first + "{}" + last[::-1]


def parse_columns(text: str) -> Columns:
    """Parse "frame,x,y,z" or "time_ms=Stamp,x={}_px,y=-{}_py"; raises UsageError."""
    parsed = tuple(_column(part.strip()) for part in text.split(","))
    for role in ROLES[:-1]:
        if sum(column.role == role for column in parsed) > 1:
            raise UsageError(f"--columns names {role} twice")
    if len({column.heading is None for column in parsed}) > 1:
        raise UsageError("--columns either names every heading (x=HEADING) or none")
    columns = Columns(parsed)
    _check_axes(columns)
    return columns


def _check_axes(columns: Columns) -> None:
    axes = [axis for axis in AXES if columns.get(axis)]
    if columns.by_order or axes:
        if axes not in (["x", "y"], ["x", "y", "z"]):
            raise UsageError("--columns needs x and y, or x, y and z")
        wide = [c for c in columns.all if c.role in (*AXES, "score")]
        if columns.by_order and not columns.get("joint"):
            k = columns.all.index(wide[0])
            if list(columns.all[k:]) != wide:
                raise UsageError("--columns: columns without a joint must come before x, y, z")
        holes = {(c.heading or "").count("{}") for c in wide}
        if not columns.by_order and holes not in ({0}, {1}):
            raise UsageError("--columns: x, y, z and score must all contain one {}, or none")
        if holes == {0} and not columns.by_order and not columns.get("joint"):
            raise UsageError("--columns: x=HEADING needs {} for the joint, or joint=HEADING")


def _column(part: str) -> Column:
    role, equals, heading = (piece.strip() for piece in part.partition("="))
    sign = 1
    if equals:
        heading, sign = (heading[1:], -1) if heading.startswith("-") else (heading, 1)
    elif role.startswith("-"):
        role, sign = role[1:], -1
    if role not in ROLES or (equals and (role == "_" or not heading)):
        raise UsageError(
            f"--columns: cannot parse {part!r}",
            hint=f"write ROLE or ROLE=HEADING with the roles {', '.join(ROLES)}",
        )
    if sign < 0 and role not in AXES:
        raise UsageError(f"--columns: only x, y and z can be negated, not {role}")
    return Column(role, heading if equals else None, sign)
