"""Skeletons from tables: CSV in the dialects that people have."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from costream.errors import SourceError, UsageError
from costream.layouts import Layout
from costream.sources.bodies import Ended, Event, Moment, Recording, Spoiled, make_body
from costream.sources.columns import TIMES, Column, Columns
from costream.sources.headings import (
    IMAGE_LAYOUTS,
    Heading,
    Plan,
    is_counted,
    is_header,
    is_long,
    joint_column,
    make_plan,
    ordered_headings,
    told_headings,
)
from costream.sources.lines import DELIMITERS, Lines, is_comment, last_line
from costream.sources.tabletime import Clock

_MISSING = frozenset(("", "nan", "na", "n/a", "null", "none", "-", "#n/a", "missing"))

_BAD_ROW = "malformed row(s), left out"
_LATE_ROW = "row(s) out of order of time, left out"
_DOUBLE = "row(s) that say the same twice, left out"


def read_table(
    lines: Lines,
    layout: Layout | None,
    columns: Columns | None,
    rate_hz: float | None,
    where: str,
    path: str | None = None,
) -> Recording:
    """Open a table; ``path``: the file it is, if it is one.

    SourceError or UsageError says what is not clear and which option helps.
    """
    text = itertools.filterfalse(is_comment, lines)
    first = next(text, None)
    if first is None:
        raise SourceError("there is nothing in this table", where=where)
    if "\0" in first or "\ufffd" in first[:2]:
        raise SourceError("this is no text in UTF-8", where=where, hint="save it as UTF-8")
    delimiter = max(DELIMITERS, key=first.count)
    head = _cells(first, delimiter)
    rows: Iterator[list[str]] = (_cells(line, delimiter) for line in text)
    headed = is_header(head)
    begin = list(itertools.islice(rows, 1)) if headed else [head]
    if not begin:
        raise SourceError("the table has headings but no rows", where=where)
    headings = _headings(head, headed, layout, columns, where)
    joints: list[str] = []
    if is_long(headings):
        when = [k for k, h in enumerate(headings) if h.role in ("frame", *TIMES)]
        rows = itertools.chain(begin, rows)
        begin, joints = _first_moment(rows, joint_column(headings), when, len(headings))
    plan = make_plan(headings, columns, layout, joints, where)
    if plan.time < 0 and rate_hz is None:
        what = "frames" if plan.frame >= 0 else "rows"
        raise UsageError(f"its {what} carry no times", where=where, hint="give their rate: --fps")

    def clock() -> Clock:
        heading = head[plan.time] if headed and plan.time >= 0 else "time"
        return Clock(plan, rate_hz, heading, where)

    last = _cells(last_line(path), delimiter) if path is not None else []
    return Recording(
        plan.layout,
        len(plan.signs),
        rate_hz if plan.time < 0 else None,
        clock().length_s(begin[0], last),
        _Reader(plan, clock(), itertools.chain(begin, rows), lines).events(),
    )


def _headings(
    head: list[str], headed: bool, layout: Layout | None, columns: Columns | None, where: str
) -> list[Heading]:
    """Give what each column is: as the user says, or by its heading, or as there is no choice."""
    if columns is not None and columns.by_order:
        return ordered_headings(columns, len(head), layout, where)
    if headed and not is_counted(head):
        return told_headings(head, columns, where)
    return ordered_headings(_guess(len(head), layout, where), len(head), layout, where)


def number(cell: str) -> float:
    """Give the number in a cell, NaN when it is missing. ValueError when it is something else."""
    try:
        return float(cell)
    except ValueError:
        if cell.strip().lower() in _MISSING:
            return float("nan")
        return float(cell.replace(",", "."))


def _cells(line: str, delimiter: str) -> list[str]:
    if '"' in line:
        return next(csv.reader([line], delimiter=delimiter), [])
    return line.split(delimiter)


def _guess(count: int, layout: Layout | None, where: str) -> Columns:
    """Give what the columns of a table without headings are, if there is only one way."""
    hint = "say what they are: --layout NAME --columns x,y,z (or frame,x,y,z; x,y,score; ...)"
    each, left = divmod(count, len(layout.joints)) if layout is not None else (0, 0)
    unsure = left or (each == 3 and layout in IMAGE_LAYOUTS)
    roles = {2: ("x", "y"), 3: ("x", "y", "z"), 4: ("x", "y", "z", "score")}.get(each)
    if roles is None or unsure:
        raise SourceError(f"the {count} columns have no headings", where=where, hint=hint)
    return Columns(tuple(Column(role) for role in roles))


def _first_moment(
    rows: Iterator[list[str]], joint: int, time: list[int], count: int
) -> tuple[list[list[str]], list[str]]:
    """Read the rows of the first moment and one more; give them and the joints named there."""
    begin: list[list[str]] = []
    joints: dict[str, None] = {}
    moment: list[str] | None = None
    for row in rows:
        begin.append(row)
        if len(row) != count:
            continue
        here = [row[k] for k in time] if time else None
        if moment is not None and here != moment:
            break
        if here is None and row[joint].strip() in joints:
            break  # no frame is named: it ends where a joint comes again
        moment = here
        joints.setdefault(row[joint].strip())
    return begin, list(joints)


class _Reader:
    """Puts the rows of a table together to moments."""

    def __init__(self, plan: Plan, clock: Clock, rows: Iterator[list[str]], lines: Lines) -> None:
        self._plan, self._clock, self._rows, self._lines = plan, clock, rows, lines
        self._time_s = float("-inf")
        self._people: dict[str, tuple[Any, Any, set[int]]] = {}  # places, scores, joints given

    def events(self) -> Iterator[Event]:
        """Yield what the rows say, each moment as soon as it is known to be whole.

        SourceError when the unit of the times has to be asked for.
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
                yield Spoiled(_BAD_ROW)
                if plan.joint < 0 and plan.person < 0:
                    self._clock.skip()
        yield from self._flush()
        if bad and self._lines.unfinished:
            yield Ended("the table is cut off in its last row")

    def _row(self, cells: list[str]) -> Iterator[Event]:
        """Take one row; ValueError when it cannot be read."""
        plan = self._plan
        key = cells[plan.person].strip() if plan.person >= 0 else ""
        joint = plan.joint_of(cells[plan.joint].strip()) if plan.joint >= 0 else -1
        if joint is None:
            return
        wanted = plan.places.ravel()
        joints = np.array([number(cells[k]) if k >= 0 else np.nan for k in wanted])
        joints = joints.reshape(plan.places.shape) * plan.signs
        scores = None
        if plan.scores is not None:
            scores = np.array([number(cells[k]) if k >= 0 else 1.0 for k in plan.scores])
        told = key in self._people and (joint < 0 or joint in self._people[key][2])
        time_s = self._clock.read(cells, same=bool(self._people) and not told)
        if time_s < self._time_s or (time_s == self._time_s and not self._people):
            yield Spoiled(_LATE_ROW)
            return
        if time_s > self._time_s:
            yield from self._flush()
            self._time_s = time_s
        if joint < 0:
            yield from self._wide(key, joints, scores)
        else:
            yield from self._long(key, joint, joints[0], None if scores is None else scores[0])

    def _wide(self, key: str, joints: Any, scores: Any) -> Iterator[Event]:
        if key in self._people:
            yield Spoiled(_DOUBLE)
            return
        self._people[key] = joints, scores, set()
        if self._plan.person < 0:
            yield from self._flush()

    def _long(self, key: str, joint: int, place: Any, score: float | None) -> Iterator[Event]:
        count = len(self._plan.layout.joints)
        if key not in self._people:
            self._people[key] = np.full((count, len(place)), np.nan), np.ones(count), set()
        joints, scores, given = self._people[key]
        if joint in given:
            yield Spoiled(_DOUBLE)
            return
        given.add(joint)
        joints[joint] = place
        scores[joint] = 1.0 if score is None else score
        if self._plan.person < 0 and len(given) == count:
            yield from self._flush()

    def _flush(self) -> Iterator[Event]:
        """Yield the moment that the rows so far make."""
        if self._people:
            bodies = (
                make_body(joints, scores, key or None)
                for key, (joints, scores, _) in self._people.items()
            )
            yield Moment(self._time_s, tuple(bodies))
            self._people = {}
