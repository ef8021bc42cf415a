"""Order of the rows of a table.

Programs write tables ordered by frame, but also by person or joint. A file can be read twice and
sorted; a pipe cannot.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass

from costream.core.clock import parse_time, parse_utc
from costream.core.errors import UsageError
from costream.sources.skeletons.text_lines import decimal, is_valid

Row = list[str]


@dataclass(frozen=True)
class RowKeys:
    """The columns that identify what a row describes, -1 for none."""

    cells: int  # per row
    when: int  # time, or else frame number
    person: int
    joint: int

    def who(self, row: Row) -> tuple[str, ...]:
        """Return person and joint of a row, as far as there are columns for them."""
        return tuple(row[k].strip() for k in (self.person, self.joint) if k >= 0)


def is_grouped(times: Iterable[tuple[float, Hashable]]) -> bool:
    """Return whether rows are ordered by person or joint: times go back only between them.

    ``times``: time (NaN for none) and owner of each row or entry.
    """
    newest, forward = -math.inf, True
    last: dict[Hashable, float] = {}
    for time, who in times:
        if time < last.get(who, -math.inf):
            return False
        if not math.isnan(time):
            forward = forward and time >= newest
            newest, last[who] = max(newest, time), time
    return not forward


def times_of(rows: Iterable[Row], keys: RowKeys) -> Iterator[tuple[float, Hashable]]:
    """Yield time and owner of the rows with the right number of cells."""
    for row in rows:
        if len(row) == keys.cells:
            yield moment(row[keys.when]), keys.who(row)


def in_blocks(rows: Iterable[Row], keys: RowKeys) -> bool:
    """Return whether the rows of each person, or of each joint, are consecutive and several."""
    runs: dict[int, list[str]] = {k: [] for k in (keys.person, keys.joint) if k >= 0}
    count, distinct = 0, set[tuple[str, ...]]()
    for row in rows:
        if len(row) != keys.cells:
            continue
        count += 1
        distinct.add(keys.who(row))
        for k, run in runs.items():
            if not run or run[-1] != row[k].strip():
                run.append(row[k].strip())
    return count > len(distinct) and any(1 < len(r) == len(set(r)) for r in runs.values())


def by_time(rows: Iterable[Row], keys: RowKeys) -> list[Row]:
    """Return the rows sorted by time; rows without a time stay after the row before them."""
    timed: list[tuple[float, Row]] = []
    for row in rows:
        time = moment(row[keys.when]) if len(row) == keys.cells else math.nan
        if math.isnan(time):
            time = timed[-1][0] if timed else -math.inf
        timed.append((time, row))
    return [row for _, row in sorted(timed, key=lambda pair: pair[0])]


def moment(cell: str) -> float:
    """Return a time, a frame number or a date as a number; NaN for other text."""
    text = cell.strip()
    read = next((read for read in (decimal, parse_utc, clock_s) if is_valid(read, text)), None)
    return math.nan if read is None else read(text)


def clock_s(text: str) -> float:
    """Read "1:02:03.5"."""
    try:
        return parse_time(text)
    except UsageError as error:
        raise ValueError("no time") from error
