"""Positions of the quantities in the rows of a skeleton table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from costream.core.errors import SourceError
from costream.core.layouts import BODY_25, COCO_17, OPENPOSE_18, Layout
from costream.sources.skeletons.columns import AXES, TIMES, Column, Columns
from costream.sources.skeletons.headings import Heading, quoted_columns
from costream.sources.skeletons.joint_names import LAYOUT_BY_JOINT_COUNT, find_joints, joint_index

# Image layouts: the third of three numbers per joint may be a score.
IMAGE_LAYOUTS = (COCO_17, OPENPOSE_18, BODY_25)


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


def ordered_headings(
    columns: Columns, count: int, layout: Layout | None, where: str
) -> list[Heading]:
    """Return the meaning of each of ``count`` columns when only their order is given."""
    row_columns = [c for c in columns.all if c.role not in (*AXES, "score")]
    joint_columns = [c for c in columns.all if c.role in (*AXES, "score")]
    if columns.get("joint"):
        headings = [_ordered(column) for column in columns.all]
        if len(headings) != count:
            raise SourceError(
                f"the table has {count} columns, --columns names {len(headings)}", where=where
            )
        return headings
    joints, left = divmod(count - len(row_columns), len(joint_columns))
    known_layout = layout or LAYOUT_BY_JOINT_COUNT.get(joints)
    if left or joints < 1 or (layout is not None and joints != len(layout.joints)):
        wanted = f" of {layout.name}" if layout else ""
        raise SourceError(
            f"{count} columns are not {len(row_columns)} and {len(joint_columns)} for each "
            f"joint{wanted}",
            where=where,
        )
    names = [str(k) for k in range(len(known_layout.joints) if known_layout else joints)]
    return [_ordered(c) for c in row_columns] + [
        Heading(c.role, name) for name in names for c in joint_columns
    ]


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
            f"there are no joints in its columns ({quoted_columns(cells)})",
            where=where,
            hint="headings like left_wrist_x, x0, or joint and x are known; others need --columns",
        )
    axes = [a for a in AXES if any(h.role == a and (long or h.joint) for h in headings)]
    if axes not in (["x", "y"], ["x", "y", "z"]):
        lacking = [a for a in AXES[:2] if a not in axes]
        raise SourceError(
            f"it has no columns for {' and '.join(lacking)} ({quoted_columns(cells)})", where=where
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


def _one(headings: Sequence[Heading], role: str) -> int:
    return next((k for k, h in enumerate(headings) if h.role == role), -1)
