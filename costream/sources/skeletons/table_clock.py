"""Times of the rows of a table: time stamps, frame numbers or a frame rate."""

from __future__ import annotations

import math
from collections.abc import Callable

from costream.core.clock import parse_utc
from costream.core.errors import SourceError
from costream.sources.skeletons.order import clock_s
from costream.sources.skeletons.table_schema import TableSchema
from costream.sources.skeletons.text_lines import decimal, is_valid

# Time stamps above three years are calendar times (seconds since 1970), which count from the first
# row.
CALENDAR_S = 1e8
# Time stamps without a unit are seconds, unless frames would be further apart than this.
SLOW_S = 0.5
_LATEST = 1e15  # in any unit


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

        ``spacing``: minimum difference between the first times of a file; None for a pipe, where
        the first two frames are used.
        """
        self._plan, self._rate_hz, self._heading, self._where = plan, rate_hz, heading, where
        self._spacing = spacing
        self._read: Callable[[str], float] | None = None
        self._origin_s = 0.0
        self._rows = -1
        self._first_s: float | None = None
        self._unit_is_certain = plan.time_unit_s is not None

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
            self._unit_is_certain = True
            end_s = self.read(last, same=False)
        except ValueError:
            return None
        return end_s if self._plan.time >= 0 else end_s + 1 / (self._rate_hz or math.nan)

    def _stamp(self, text: str) -> float:
        read = self._read or self._begin(text)
        time_s = _finite(read(text) - self._origin_s)
        if self._first_s is None:
            self._first_s = time_s
        elif not self._unit_is_certain and time_s > self._first_s:
            self._unit_is_certain = True
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
            read = parse_utc if is_valid(parse_utc, text) else clock_s
            self._unit_is_certain = True
        else:
            if unit_s is None and first >= CALENDAR_S:
                # Today is about 1.8e9 s, 1.8e12 ms, 1.8e15 us, 1.8e18 ns after 1970.
                unit_s = 1e-3 ** max(0, round(math.log10(first / 1.8e9) / 3))
                self._unit_is_certain = True
            scale = unit_s or 1.0

            def read(cell: str) -> float:
                return decimal(cell) * scale

        first_s = _finite(read(text))
        self._read = read
        if first_s >= CALENDAR_S:
            self._origin_s = first_s
        return read


def _finite(value: float) -> float:
    if not abs(value) <= _LATEST:
        raise ValueError("not a time")
    return value
