"""Reading of skeletons from CSV tables in various dialects."""

from __future__ import annotations

import csv
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from costream.core.errors import SourceError
from costream.core.layouts import Layout
from costream.sources.file import first_of, require_rate
from costream.sources.skeletons.axes_option import axes_option
from costream.sources.skeletons.columns import TIMES, Column, Columns
from costream.sources.skeletons.headings import Heading, interpret_headings, is_counted, is_header
from costream.sources.skeletons.order import (
    Row,
    RowKeys,
    by_time,
    in_blocks,
    is_grouped,
    times_of,
)
from costream.sources.skeletons.skeleton_format import SkeletonInput, skeleton_format
from costream.sources.skeletons.skeleton_recording import SkeletonRecording, TruncatedRecording
from costream.sources.skeletons.table_clock import SLOW_S, TableClock
from costream.sources.skeletons.table_rows import CUT_OFF, RowReader
from costream.sources.skeletons.table_schema import (
    IMAGE_LAYOUTS,
    TableSchema,
    is_long,
    joint_column,
    make_schema,
    ordered_headings,
)
from costream.sources.skeletons.text_lines import (
    DELIMITERS,
    Lines,
    decimal,
    delimiter_of,
    is_comment,
    is_valid,
    last_line,
)

_LOOKED_AT = 20  # lines of a text that may be a table
_TRIED = 100  # rows from which the spacing of frames is computed


@dataclass(frozen=True)
class _Table:
    """The rows of a table, and what has been found out about them."""

    headings: Sequence[Heading]
    keys: RowKeys
    rows: Iterator[Row]
    from_file: bool = False  # not from a pipe: all rows can be read in advance
    joints: tuple[str, ...] = ()  # of a long table from a file: names in the joint column
    last: Row = field(default_factory=list)  # last row of a file
    cut_off: bool = False  # its last line is not complete
    spacing: float | None = None  # least difference between the first times or frame numbers


def is_table(source: SkeletonInput) -> bool:
    """Return whether this is a table by its suffix."""
    return source.has_suffix(".csv", ".tsv")


def looks_like_table(source: SkeletonInput) -> bool:
    """Return whether the first line of a text has several delimiters, and a later one numbers."""
    if not source.is_text or max(map(source.first_line.count, DELIMITERS)) <= 2:
        return False
    text = source.head.decode("utf-8-sig", "replace")
    cells = (re.split(f"[{DELIMITERS}]", line) for line in text.splitlines()[:_LOOKED_AT])
    return source.path is None or any(
        sum(is_valid(decimal, cell) for cell in row) > 1 for row in cells
    )


@skeleton_format("csv", sniff=is_table, order=3)
@skeleton_format("table", sniff=looks_like_table, order=9)
def read_table(source: SkeletonInput) -> SkeletonRecording:
    """Open a table of a file or a pipe.

    Raises SourceError or UsageError with the option that resolves an ambiguity.
    """
    layout, columns, where = source.layout, source.columns, source.where
    lines = source.lines()
    text = itertools.filterfalse(is_comment, lines)
    delimiter, head = _first_row(text, where)
    headed = is_header(head)
    rows: Iterator[Row] = (_cells(line, delimiter) for line in text)
    begin = list(itertools.islice(rows, 1)) if headed else [head]
    if not begin:
        raise SourceError("the table has headings but no rows", where=where)
    headings = _headings(head, headed, layout, columns, where)
    table = _Table(headings, _row_keys(headings), itertools.chain(begin, rows))
    if source.path is not None:
        table = _of_file(table, source.path, delimiter, headed, where)
    table, first = _with_joints(table, where)
    plan = make_schema(headings, columns, layout, table.joints, head, where)
    assumed = _check_times(table, plan, source.rate_hz, head, where)

    def clock() -> TableClock:
        heading = head[plan.time] if headed and plan.time >= 0 else "time"
        return TableClock(plan, source.rate_hz, heading, where, table.spacing)

    events = RowReader(plan, clock(), table.rows, lines, from_file=table.from_file).events()
    if table.cut_off:
        events = itertools.chain(events, [TruncatedRecording(CUT_OFF)])
    return SkeletonRecording(
        plan.layout,
        len(plan.signs),
        source.rate_hz if plan.time < 0 else None,
        clock().length_s(first, table.last),
        events,
        assumed=assumed,
        option=axes_option(plan, head, columns) if headed else None,
    )


def _first_row(text: Iterator[str], where: str) -> tuple[str, Row]:
    """Return the delimiter of a table, and the cells of its first row."""
    first = next(text, None)
    if first is None:
        raise SourceError("this table is empty", where=where)
    if "\0" in first or "\ufffd" in first[:2]:
        raise SourceError("this is not UTF-8 text", where=where, hint="save it as UTF-8")
    delimiter = delimiter_of(first)
    return delimiter, _cells(first, delimiter)


def _with_joints(table: _Table, where: str) -> tuple[_Table, Row]:
    """Return a table with the joints that its first rows name, and the first of its rows."""
    first = next(table.rows)
    rows = itertools.chain([first], table.rows)
    if table.keys.joint < 0:
        return replace(table, rows=rows), first
    begin, joints = _first_moment(rows, table.keys, where)
    joints = list(table.joints) or joints
    if not table.from_file and len(joints) == 1:
        raise SourceError(
            f"its first frame has only one joint ({joints[0]})",
            where=where,
            hint="the rows of a frame must follow each other in a pipe, but not in a file",
        )
    return replace(table, joints=tuple(joints), rows=itertools.chain(begin, rows)), first


def _check_times(
    table: _Table, plan: TableSchema, rate_hz: float | None, head: Row, where: str
) -> tuple[str, ...]:
    """Return assumptions about the times; raise UsageError if a required rate is missing."""
    if plan.time >= 0:
        return ()
    rate = require_rate(rate_hz, where, "its frames" if plan.frame >= 0 else "its rows")
    if table.spacing is None or table.spacing / rate <= SLOW_S:
        return ()
    return (
        f"frames are {table.spacing / rate:.3g} s apart, as {head[plan.frame].strip()!r} "
        f"counts by {table.spacing:g} and --fps is {rate:g}",
    )


def _row_keys(headings: Sequence[Heading]) -> RowKeys:
    """Return the columns that identify frame, person and joint of a row."""
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
    """Return a table with what all rows of the file show; rows are sorted by time if necessary."""

    def again(file: Lines) -> Iterator[Row]:
        text = itertools.filterfalse(is_comment, file)
        return (_cells(line, delimiter) for line in itertools.islice(text, int(headed), None))

    keys = table.keys
    table = replace(table, from_file=True, last=_cells(last_line(path), delimiter))
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
                what = "its rows are ordered by person or joint and have no frame numbers"
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


def _cells(line: str, delimiter: str) -> list[str]:
    if '"' in line:
        return next(csv.reader([line], delimiter=delimiter), [])
    return line.split(delimiter)


def _guess(head: list[str], layout: Layout | None, where: str) -> Columns:
    """Return the columns of a table without headings; SourceError if they are ambiguous."""
    count = len(head)
    hint = "describe them: --layout NAME --columns x,y,z (or frame,x,y,z; x,y,score; ...)"
    numbers, left = divmod(count, len(layout.joints)) if layout is not None else (0, 0)
    ambiguous = left or (numbers == 3 and layout in IMAGE_LAYOUTS)
    roles = {2: ("x", "y"), 3: ("x", "y", "z"), 4: ("x", "y", "z", "score")}.get(numbers)
    if roles is None or ambiguous:
        raise SourceError(
            f"the {count} columns have no headings (the first row is {first_of(head, 4)})",
            where=where,
            hint=hint,
        )
    return Columns(tuple(Column(role) for role in roles))


def _first_moment(rows: Iterator[Row], keys: RowKeys, where: str) -> tuple[list[Row], list[str]]:
    """Read the rows of the first frame and one more; return them and the frame's joints.

    Raises SourceError if it has several rows per joint and no person column.
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
        what = "a frame has several rows for a joint, but there is no person column"
        raise SourceError(what, where=where, hint="add a column person")
    return begin, list(dict.fromkeys(who[-1] for who in owners))
