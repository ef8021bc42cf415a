"""Assembly of the rows of a skeleton table into frames."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from costream.sources.skeletons.order import Row
from costream.sources.skeletons.person import make_person
from costream.sources.skeletons.skeleton_recording import (
    Event,
    PersonFrame,
    SkippedData,
    TruncatedRecording,
)
from costream.sources.skeletons.table_clock import TableClock
from costream.sources.skeletons.table_schema import TableSchema
from costream.sources.skeletons.text_lines import Lines, decimal

_MISSING = frozenset(("", "nan", "na", "n/a", "null", "none", "-", "#n/a", "missing"))
_BAD_ROW = "malformed row(s), left out"
_COMMAS = (
    "row(s) with decimal commas and commas as delimiters, left out; use semicolons as delimiters"
)
_LATE_ROW = "row(s) out of time order, left out"
_LATE_IN_PIPE = "row(s) out of time order, left out (files are sorted, pipes cannot be)"
CUT_OFF = "the table is cut off in its last row"
_DOUBLE = "duplicate row(s), left out"


def number(cell: str) -> float:
    """Return the number in a cell, NaN if it is missing; raises ValueError for other text."""
    try:
        return float(cell)
    except ValueError:
        if cell.strip().lower() in _MISSING:
            return float("nan")
        return decimal(cell)


class RowReader:
    """Assembles the rows of a table into frames."""

    def __init__(
        self,
        plan: TableSchema,
        clock: TableClock,
        rows: Iterator[Row],
        lines: Lines,
        *,
        from_file: bool,
    ) -> None:
        """``from_file``: a frame may be kept until the first row of the next one is read."""
        self._plan, self._clock, self._rows, self._lines = plan, clock, rows, lines
        self._from_file, self._timed = from_file, plan.time >= 0 or plan.frame >= 0
        self._time_s = float("-inf")
        # By person: places, scores, joints seen; persons without an id by their order.
        self._people: dict[str | int, tuple[Any, Any, set[int]]] = {}

    def events(self) -> Iterator[Event]:
        """Yield the events of the rows, each frame as soon as it is complete.

        Raises SourceError if the unit of the times must be specified.
        """
        plan, bad = self._plan, False
        for cells in self._rows:
            if len(cells) == plan.cells + 1 and not cells[-1].strip():
                cells.pop()  # a delimiter at the end of the row
            bad = len(cells) != plan.cells
            if not bad:
                try:
                    yield from self._row(cells)
                except ValueError:
                    bad = True
            if bad and not self._lines.unfinished:
                integers = all(cell.strip().lstrip("+-").isdigit() for cell in cells)
                yield SkippedData(_COMMAS if integers and len(cells) > plan.cells else _BAD_ROW)
                if plan.joint < 0 and plan.person < 0:
                    self._clock.skip()
        yield from self._flush()
        if bad and self._lines.unfinished:
            yield TruncatedRecording(CUT_OFF)

    def _row(self, cells: list[str]) -> Iterator[Event]:
        """Process one row; raises ValueError if it cannot be read."""
        plan = self._plan
        key = cells[plan.person].strip() if plan.person >= 0 else ""
        joint = plan.joint_of(cells[plan.joint].strip()) if plan.joint >= 0 else -1
        if joint is None:
            return
        wanted = plan.places.ravel()
        joints = np.array([number(cells[k]) if k >= 0 else np.nan for k in wanted])
        joints = joints.reshape(plan.places.shape)
        scores = None
        if plan.scores is not None:
            scores = np.array([number(cells[k]) if k >= 0 else 1.0 for k in plan.scores])
        seen = key in self._people and (joint < 0 or joint in self._people[key][2])
        time_s = self._clock.read(cells, same=bool(self._people) and not seen)
        if time_s < self._time_s or (time_s == self._time_s and not self._people):
            alone = self._from_file or (plan.person < 0 and plan.joint < 0)
            yield SkippedData(_LATE_ROW if alone else _LATE_IN_PIPE)
            return
        if time_s > self._time_s:
            yield from self._flush()
            self._time_s = time_s
        if joint < 0:
            yield from self._wide(key, joints, scores)
        else:
            yield from self._long(key, joint, joints[0], None if scores is None else scores[0])

    def _wide(self, key: str, joints: Any, scores: Any) -> Iterator[Event]:
        name: str | int = key
        if key in self._people:
            if key or any(_same(joints, scores, *other[:2]) for other in self._people.values()):
                yield SkippedData(_DOUBLE)
                return
            name = len(self._people)
        self._people[name] = joints, scores, set()
        if self._plan.person < 0 and not (self._from_file and self._timed):
            yield from self._flush()

    def _long(self, key: str, joint: int, place: Any, score: float | None) -> Iterator[Event]:
        count = len(self._plan.layout.joints)
        if key not in self._people:
            self._people[key] = np.full((count, len(place)), np.nan), np.ones(count), set()
        joints, scores, seen = self._people[key]
        if joint in seen:
            yield SkippedData(_DOUBLE)
            return
        seen.add(joint)
        joints[joint] = place
        scores[joint] = 1.0 if score is None else score
        if self._plan.person < 0 and len(seen) == count:
            yield from self._flush()

    def _flush(self) -> Iterator[Event]:
        """Yield the frame of the rows so far."""
        if self._people:
            bodies = (
                make_person(joints, scores, _identity(key), signs=self._plan.signs)
                for key, (joints, scores, _) in self._people.items()
            )
            yield PersonFrame(self._time_s, tuple(bodies))
            self._people = {}


def _same(joints: Any, scores: Any, other: Any, other_scores: Any) -> bool:
    """Return whether two rows of a frame contain the same numbers."""
    return np.array_equal(joints, other, equal_nan=True) and (
        scores is None or np.array_equal(scores, other_scores, equal_nan=True)
    )


def _identity(key: str | int) -> str | None:
    """Return the id of a person; None without an id."""
    return key if isinstance(key, str) and key else None
