"""Reading of skeletons from CSV tables in various dialects."""

from __future__ import annotations

import csv
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from costream.core.errors import SourceError
from costream.core.layouts import Layout
from costream.sources.file import first_of, require_rate
from costream.sources.skeletons.headings import (
    IMAGE_LAYOUTS,
    TIMES,
    Column,
    Columns,
    Heading,
    TableSchema,
    axes_option,
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
from costream.sources.skeletons.order import (
    Row,
    RowKeys,
    by_time,
    calendar_s,
    clock_s,
    in_blocks,
    is_grouped,
    times_of,
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
_LATE_IN_PIPE = "row(s) out of time order, left out: a file is sorted, a pipe cannot be"
_CUT_OFF = "the table is cut off in its last row"
_TRIED = 100  # rows that show how far frames are apart
_DOUBLE = "duplicate row(s), left out"


@dataclass(frozen=True)
class _Table:
    """The rows of a table, and what is known of them before they are read."""

    headings: Sequence[Heading]
    keys: RowKeys
    rows: Iterator[Row]
    whole: bool = False  # of a file, which has all the rows of a frame
    joints: tuple[str, ...] = ()  # of a whole long table: those in the joint column
    last: Row = field(default_factory=list)  # the last row of a whole table
    cut_off: bool = False  # its last line is not complete
    spacing: float | None = None  # least difference between the first times or frame numbers


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
    headed = is_header(head)
    rows: Iterator[Row] = (_cells(line, delimiter) for line in text)
    begin = list(itertools.islice(rows, 1)) if headed else [head]
    if not begin:
        raise SourceError("the table has headings but no rows", where=where)
    headings = _headings(head, headed, layout, columns, where)
    keys = _row_keys(headings)
    table = _Table(headings, keys, itertools.chain(begin, rows))
    if path is not None:
        table = _of_file(table, path, delimiter, headed, where)
    begin, joints = list(itertools.islice(table.rows, 1)), list(table.joints)
    rows = itertools.chain(begin, table.rows)
    if keys.joint >= 0:
        begin, shown = _first_moment(rows, keys, where)
        joints, rows = joints or shown, itertools.chain(begin, rows)
        if path is None and len(joints) == 1:
            raise SourceError(
                f"its first frame has one joint only ({joints[0]})",
                where=where,
                hint="in a pipe the rows of a frame follow each other; a file may have any order",
            )
    plan = make_schema(headings, columns, layout, joints, head, where)
    assumed = []
    if plan.time < 0:
        rate = require_rate(rate_hz, where, "its frames" if plan.frame >= 0 else "its rows")
        if table.spacing is not None and table.spacing / rate > SLOW_S:
            assumed.append(
                f"frames are {table.spacing / rate:.3g} s apart, as {head[plan.frame].strip()!r} "
                f"counts by {table.spacing:g} and --fps is {rate:g}"
            )

    def clock() -> TableClock:
        heading = head[plan.time] if headed and plan.time >= 0 else "time"
        return TableClock(plan, rate_hz, heading, where, table.spacing)

    events = _RowReader(plan, clock(), rows, lines, whole=table.whole).events()
    if table.cut_off:
        events = itertools.chain(events, [TruncatedRecording(_CUT_OFF)])
    return SkeletonRecording(
        plan.layout,
        len(plan.signs),
        rate_hz if plan.time < 0 else None,
        clock().length_s(begin[0], table.last),
        events,
        assumed=tuple(assumed),
        option=axes_option(plan, head, columns) if headed else None,
    )


def _row_keys(headings: Sequence[Heading]) -> RowKeys:
    """Return the columns that say which frame, person and joint a row is about."""
    roles = [heading.role for heading in headings]
    when = [k for k, role in enumerate(roles) if role in TIMES] + [
        k for k, role in enumerate(roles) if role == "frame"
    ]
    return RowKeys(
        len(roles),
        when[0] if when else -1,
        roles.index("person") if "person" in roles else -1,
        joint_column(headings) if is_long(headings) else -1,
    )


def _of_file(table: _Table, path: str, delimiter: str, headed: bool, where: str) -> _Table:
    """Return a table with what the rows of the whole file show, and the rows in order of time."""

    def again(file: Lines) -> Iterator[Row]:
        text = itertools.filterfalse(is_comment, file)
        return (_cells(line, delimiter) for line in itertools.islice(text, int(headed), None))

    keys = table.keys
    table = replace(table, whole=True, last=_cells(last_line(path), delimiter))
    if keys.when >= 0:
        with open(path, "rb") as file:
            times = sorted(
                {time for time, _ in times_of(itertools.islice(again(Lines(file)), _TRIED), keys)}
            )
        steps = [b - a for a, b in itertools.pairwise(times) if b > a]
        table = replace(table, spacing=min(steps, default=None))
    if keys.person < 0 and keys.joint < 0:
        return table
    with open(path, "rb") as file:
        if keys.when < 0:
            if in_blocks(again(Lines(file)), keys):
                what = "its rows are one person or joint after the other, without frame numbers"
                raise SourceError(what, where=where, hint="add a column frame, or time")
        elif is_grouped(times_of(again(Lines(file)), keys)):
            file.seek(0)
            lines = Lines(file)
            rows = list(again(lines))
            cut_off = lines.unfinished and len(rows[-1]) != keys.cells
            rows = by_time(rows[:-1] if cut_off else rows, keys)
            table = replace(table, rows=iter(rows), last=rows[-1], cut_off=cut_off)
        if keys.joint >= 0:
            file.seek(0)
            counts = Counter(
                row[keys.joint].strip() for row in again(Lines(file)) if len(row) == keys.cells
            )
            most = max(counts.values(), default=0)
            names = [name for name, count in counts.items() if count > 1 or most == 1]
            table = replace(table, joints=tuple(names))
    return table


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


def _first_moment(rows: Iterator[Row], keys: RowKeys, where: str) -> tuple[list[Row], list[str]]:
    """Read the rows of the first frame and one more; return them and the frame's joints.

    Raises SourceError if it has several rows for its joints, and nothing says whose they are.
    """
    begin: list[Row] = []
    owners: dict[tuple[str, ...], int] = {}
    now: str | None = None
    for row in rows:
        begin.append(row)
        if len(row) != keys.cells:
            continue
        here = row[keys.when] if keys.when >= 0 else None
        who = keys.who(row)
        if now is not None and here != now:
            break
        if here is None and who in owners:
            break  # without frame numbers a frame ends where a joint repeats
        now = here
        owners[who] = owners.get(who, 0) + 1
    if 2 * sum(count > 1 for count in owners.values()) > len(owners):
        what = "a frame has several rows for a joint, and no column says whose they are"
        raise SourceError(what, where=where, hint="add a column person")
    return begin, list(dict.fromkeys(who[-1] for who in owners))


class _RowReader:
    """Assembles the rows of a table into frames."""

    def __init__(
        self,
        plan: TableSchema,
        clock: TableClock,
        rows: Iterator[Row],
        lines: Lines,
        *,
        whole: bool,
    ) -> None:
        """``whole``: of a file, where a frame may wait for the first row of the next one."""
        self._plan, self._clock, self._rows, self._lines = plan, clock, rows, lines
        self._whole, self._timed = whole, plan.time >= 0 or plan.frame >= 0
        self._time_s = float("-inf")
        # By person: places, scores, joints seen; of several without an id in order of the rows.
        self._people: dict[str | int, tuple[Any, Any, set[int]]] = {}

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
            yield TruncatedRecording(_CUT_OFF)

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
            alone = self._whole or (plan.person < 0 and plan.joint < 0)
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
        if self._plan.person < 0 and not (self._whole and self._timed):
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
                make_person(joints, scores, _identity(key), signs=self._plan.signs)
                for key, (joints, scores, _) in self._people.items()
            )
            yield PersonFrame(self._time_s, tuple(bodies))
            self._people = {}


def _same(joints: Any, scores: Any, other: Any, other_scores: Any) -> bool:
    """Return whether two rows of a frame have the same numbers."""
    return np.array_equal(joints, other, equal_nan=True) and (
        scores is None or np.array_equal(scores, other_scores, equal_nan=True)
    )


def _identity(key: str | int) -> str | None:
    """Return the id of a person, None for those who have none."""
    return key if isinstance(key, str) and key else None


# Row times of a table: time stamps, frame numbers or a frame rate.

# Seconds since 1970 and the like: a time stamp above three years is a calendar time, and counts
# from the first row, like that of a transport stream.
CALENDAR_S = 1e8
# Time stamps without a unit are seconds, unless frames would be further apart than this.
SLOW_S = 0.5


class TableClock:
    """Reads the times of rows, which increase, or stay equal within a frame."""

    def __init__(
        self,
        plan: TableSchema,
        rate_hz: float | None,
        heading: str,
        where: str,
        spacing: float | None = None,
    ) -> None:
        """``heading``: of the time column, for messages. ``rate_hz``: of frames without times.

        ``spacing``: least difference between the first times, of a file; of a pipe it is that of
        the first two frames.
        """
        self._plan, self._rate_hz, self._heading, self._where = plan, rate_hz, heading, where
        self._spacing = spacing
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
            spacing = self._spacing or time_s - self._first_s
            if spacing > SLOW_S:
                raise SourceError(
                    f"the column {self._heading!r} has no unit and increases by "
                    f"{spacing:g} from one frame to the next",
                    where=self._where,
                    hint=f"give its unit: --columns time_ms={self._heading} (or time, time_us, "
                    "time_ns; or frame, with --fps, if it counts frames)",
                )
        return time_s

    def _begin(self, text: str) -> Callable[[str], float]:
        """Detect format and origin of the times from the first one."""
        unit_s = self._plan.time_unit_s
        read: Callable[[str], float]
        try:
            first = decimal(text)
        except ValueError:
            read = calendar_s if is_valid(calendar_s, text) else clock_s
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
