"""Reading of skeletons from CSV tables in various dialects."""

from __future__ import annotations

import csv
import itertools
import math
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from typing import Any

import numpy as np

from costream.clock import parse_time
from costream.errors import SourceError, UsageError
from costream.layouts import Layout
from costream.sources.file import first_of, require_rate
from costream.sources.skeletons.headings import (
    IMAGE_LAYOUTS,
    TIMES,
    Column,
    Columns,
    Heading,
    TableSchema,
    interpret_headings,
    is_counted,
    is_header,
    is_long,
    joint_column,
    make_schema,
    ordered_headings,
)
from costream.sources.skeletons.lines import (
    Lines,
    decimal,
    delimiter_of,
    is_comment,
    is_valid,
    last_line,
)
from costream.sources.skeletons.persons import (
    Event,
    PersonFrame,
    SkeletonRecording,
    SkippedData,
    TruncatedRecording,
    make_person,
)

_MISSING = frozenset(("", "nan", "na", "n/a", "null", "none", "-", "#n/a", "missing"))
_BAD_ROW = "malformed row(s), left out"
_COMMAS = "row(s) with decimal commas between commas, left out; save them between semicolons"
_LATE_ROW = "row(s) out of time order, left out"
_DOUBLE = "duplicate row(s), left out"


def read_table(
    lines: Lines,
    layout: Layout | None,
    columns: Columns | None,
    rate_hz: float | None,
    where: str,
    path: str | None = None,
) -> SkeletonRecording:
    """Open a table; ``path``: the file it is read from, if any.

    Raises SourceError or UsageError with the option that resolves an ambiguity.
    """
    text = itertools.filterfalse(is_comment, lines)
    first = next(text, None)
    if first is None:
        raise SourceError("this table is empty", where=where)
    if "\0" in first or "\ufffd" in first[:2]:
        raise SourceError("this is not UTF-8 text", where=where, hint="save it as UTF-8")
    delimiter = delimiter_of(first)
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
    plan = make_schema(headings, columns, layout, joints, head, where)
    if plan.time < 0:
        require_rate(rate_hz, where, "its frames" if plan.frame >= 0 else "its rows")

    def clock() -> TableClock:
        heading = head[plan.time] if headed and plan.time >= 0 else "time"
        return TableClock(plan, rate_hz, heading, where)

    last = _cells(last_line(path), delimiter) if path is not None else []
    return SkeletonRecording(
        plan.layout,
        len(plan.signs),
        rate_hz if plan.time < 0 else None,
        clock().length_s(begin[0], last),
        _RowReader(plan, clock(), itertools.chain(begin, rows), lines).events(),
    )


def _headings(
    head: list[str], headed: bool, layout: Layout | None, columns: Columns | None, where: str
) -> list[Heading]:
    """Return the meaning of each column: from ``--columns``, its heading, or the layout."""
    if columns is not None and columns.by_order:
        return ordered_headings(columns, len(head), layout, where)
    if headed and not is_counted(head):
        return interpret_headings(head, columns, where)
    return ordered_headings(_guess(head, layout, where), len(head), layout, where)


def number(cell: str) -> float:
    """Return the number in a cell, NaN if it is missing; raises ValueError for other text."""
    try:
        return float(cell)
    except ValueError:
        if cell.strip().lower() in _MISSING:
            return float("nan")
        return decimal(cell)


def _cells(line: str, delimiter: str) -> list[str]:
    if '"' in line:
        return next(csv.reader([line], delimiter=delimiter), [])
    return line.split(delimiter)


def _guess(head: list[str], layout: Layout | None, where: str) -> Columns:
    """Return the columns of a table without headings, if they are unambiguous."""
    count = len(head)
    hint = "describe them: --layout NAME --columns x,y,z (or frame,x,y,z; x,y,score; ...)"
    each, left = divmod(count, len(layout.joints)) if layout is not None else (0, 0)
    unsure = left or (each == 3 and layout in IMAGE_LAYOUTS)
    roles = {2: ("x", "y"), 3: ("x", "y", "z"), 4: ("x", "y", "z", "score")}.get(each)
    if roles is None or unsure:
        raise SourceError(
            f"the {count} columns have no headings (the first row is {first_of(head, 4)})",
            where=where,
            hint=hint,
        )
    return Columns(tuple(Column(role) for role in roles))


def _first_moment(
    rows: Iterator[list[str]], joint: int, time: list[int], count: int
) -> tuple[list[list[str]], list[str]]:
    """Read the rows of the first frame and one more; return them and the frame's joints."""
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
            break  # without frame numbers a frame ends where a joint repeats
        moment = here
        joints.setdefault(row[joint].strip())
    return begin, list(joints)


class _RowReader:
    """Assembles the rows of a table into frames."""

    def __init__(
        self, plan: TableSchema, clock: TableClock, rows: Iterator[list[str]], lines: Lines
    ) -> None:
        self._plan, self._clock, self._rows, self._lines = plan, clock, rows, lines
        self._time_s = float("-inf")
        self._people: dict[str, tuple[Any, Any, set[int]]] = {}  # places, scores, joints seen

    def events(self) -> Iterator[Event]:
        """Yield the events of the rows, each frame as soon as it is known to be complete.

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
                whole = all(cell.strip().lstrip("+-").isdigit() for cell in cells)
                yield SkippedData(_COMMAS if whole and len(cells) > plan.cells else _BAD_ROW)
                if plan.joint < 0 and plan.person < 0:
                    self._clock.skip()
        yield from self._flush()
        if bad and self._lines.unfinished:
            yield TruncatedRecording("the table is cut off in its last row")

    def _row(self, cells: list[str]) -> Iterator[Event]:
        """Take one row; raises ValueError if it cannot be read."""
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
            yield SkippedData(_LATE_ROW)
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
            yield SkippedData(_DOUBLE)
            return
        self._people[key] = joints, scores, set()
        if self._plan.person < 0:
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
        """Yield the frame made of the rows so far."""
        if self._people:
            bodies = (
                make_person(joints, scores, key or None, signs=self._plan.signs)
                for key, (joints, scores, _) in self._people.items()
            )
            yield PersonFrame(self._time_s, tuple(bodies))
            self._people = {}


# Row times of a table: time stamps, frame numbers or a frame rate.

# Seconds since 1970 and the like: a time stamp above three years is a calendar time, and counts
# from the first row, like that of a transport stream.
CALENDAR_S = 1e8
# Time stamps without a unit are seconds, unless frames would be further apart than this.
SLOW_S = 5.0


class TableClock:
    """Reads the times of rows, which increase, or stay equal within a frame."""

    def __init__(self, plan: TableSchema, rate_hz: float | None, heading: str, where: str) -> None:
        """``heading``: of the time column, for messages. ``rate_hz``: of frames without times."""
        self._plan, self._rate_hz, self._heading, self._where = plan, rate_hz, heading, where
        self._read: Callable[[str], float] | None = None
        self._origin_s = 0.0
        self._rows = -1
        self._first_s: float | None = None
        self._sure = plan.time_unit_s is not None

    def read(self, cells: list[str], *, same: bool) -> float:
        """Return the time of a row in seconds; raises ValueError if it has none.

        ``same``: the row may belong to the frame of the row before it; used only if the row has
        neither time nor frame number. Raises SourceError if the unit must be specified.
        """
        plan = self._plan
        if plan.time >= 0:
            return self._stamp(cells[plan.time].strip())
        if plan.frame >= 0:
            return _finite(decimal(cells[plan.frame])) / (self._rate_hz or math.nan)
        self._rows += not same
        return self._rows / (self._rate_hz or math.nan)

    def skip(self) -> None:
        """Count a row that could not be read."""
        self._rows += 1

    def length_s(self, first: list[str], last: list[str]) -> float | None:
        """Return the time of a table's end from its first and last row; None if unknown.

        Call once, on a separate clock.
        """
        if len(first) != len(last) or (self._plan.time < 0 and self._plan.frame < 0):
            return None
        try:
            self.read(first, same=False)
            self._sure = True
            end_s = self.read(last, same=False)
        except ValueError:
            return None
        return end_s if self._plan.time >= 0 else end_s + 1 / (self._rate_hz or math.nan)

    def _stamp(self, text: str) -> float:
        read = self._read or self._begin(text)
        time_s = _finite(read(text) - self._origin_s)
        if self._first_s is None:
            self._first_s = time_s
        elif not self._sure and time_s > self._first_s:
            self._sure = True
            if time_s - self._first_s >= SLOW_S:
                raise SourceError(
                    f"the column {self._heading!r} has no unit and increases by "
                    f"{time_s - self._first_s:g} from one frame to the next",
                    where=self._where,
                    hint=f"give its unit: --columns time_ms={self._heading} (or time, time_us, "
                    "time_ns)",
                )
        return time_s

    def _begin(self, text: str) -> Callable[[str], float]:
        """Detect format and origin of the times from the first one."""
        unit_s = self._plan.time_unit_s
        read: Callable[[str], float]
        try:
            first = decimal(text)
        except ValueError:
            read = _calendar if is_valid(_calendar, text) else _clock_time
            self._sure = True
        else:
            if unit_s is None and first >= CALENDAR_S:
                # Today is about 1.8e9 s, 1.8e12 ms, 1.8e15 us, 1.8e18 ns after 1970.
                unit_s = 1e-3 ** max(0, round(math.log10(first / 1.8e9) / 3))
                self._sure = True
            scale = unit_s or 1.0

            def read(cell: str) -> float:
                return decimal(cell) * scale

        first_s = _finite(read(text))
        self._read = read
        if first_s >= CALENDAR_S:
            self._origin_s = first_s
        return read


_LATEST = 1e15  # in any unit


def _finite(value: float) -> float:
    if not abs(value) <= _LATEST:
        raise ValueError("not a time")
    return value


def _calendar(text: str) -> float:
    """Read "2026-01-31T12:00:00.040Z"; without a zone it is UTC."""
    when = datetime.fromisoformat(text.replace("Z", "+00:00"))
    return (when if when.tzinfo else when.replace(tzinfo=timezone.utc)).timestamp()


def _clock_time(text: str) -> float:
    try:
        return parse_time(text)
    except UsageError as error:
        raise ValueError("no time") from error
