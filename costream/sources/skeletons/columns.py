"""Columns of skeleton tables as the ``--columns`` option names them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from costream.core.errors import UsageError

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
