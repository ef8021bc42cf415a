"""Row times of a table: time stamps, frame numbers or a frame rate."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime, timezone

from costream.clock import parse_time
from costream.errors import SourceError, UsageError
from costream.sources.skeletons.headings import TableSchema

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
            return _finite(_decimal(cells[plan.frame])) / (self._rate_hz or math.nan)
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
            first = _decimal(text)
        except ValueError:
            read = _calendar if _is_calendar(text) else _clock_time
            self._sure = True
        else:
            if unit_s is None and first >= CALENDAR_S:
                # Today is about 1.8e9 s, 1.8e12 ms, 1.8e15 us, 1.8e18 ns after 1970.
                unit_s = 1e-3 ** max(0, round(math.log10(first / 1.8e9) / 3))
                self._sure = True
            scale = unit_s or 1.0

            def read(cell: str) -> float:
                return _decimal(cell) * scale

        first_s = _finite(read(text))
        self._read = read
        if first_s >= CALENDAR_S:
            self._origin_s = first_s
        return read


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError("not a finite number")
    return value


def _decimal(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float(text.replace(",", "."))


def _is_calendar(text: str) -> bool:
    try:
        _calendar(text)
    except ValueError:
        return False
    return True


def _calendar(text: str) -> float:
    """Read "2026-01-31T12:00:00.040Z"; without a zone it is UTC."""
    when = datetime.fromisoformat(text.replace("Z", "+00:00"))
    return (when if when.tzinfo else when.replace(tzinfo=timezone.utc)).timestamp()


def _clock_time(text: str) -> float:
    try:
        return parse_time(text)
    except UsageError as error:
        raise ValueError("no time") from error
