"""Times of day, days of the week and dates at which a rule may fire."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date, datetime, timedelta

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_RANGE = re.compile(r"(\d{1,2})(?::(\d\d))?[-–](\d{1,2})(?::(\d\d))?")
_DAY = f"(?:{'|'.join(DAYS)})[a-z]*"
_DAYS = re.compile(rf"{_DAY}(?:[-–]{_DAY})?(?:,{_DAY}(?:[-–]{_DAY})?)*", re.IGNORECASE)
_DAY_MIN = 24 * 60
Dates = tuple[date, date]  # the first and the last day


@dataclass(frozen=True)
class DayTimes:
    """A time from ``begin`` up to ``end`` on some days, by the clock on the wall.

    Both are minutes since midnight. If the end is not after the beginning, it is on the next day,
    and the days are those of the beginning, also of ``without``. At a change to or from summer time
    the wall clock counts: an hour that it skips does not occur, one that it repeats occurs twice.
    """

    begin: int = 0
    end: int = _DAY_MIN
    days: frozenset[int] = frozenset(range(7))  # 0: Monday
    without: tuple[Dates, ...] = ()  # days on which it does not fire

    def contains(self, at: datetime) -> bool:
        """Return whether a moment, with the clock of the place, is in this time."""
        minute, day = 60 * at.hour + at.minute, at.date()
        if self.begin < self.end:
            is_inside = self.begin <= minute < self.end
        else:
            is_inside = minute >= self.begin or minute < self.end
            day -= timedelta(days=minute < self.end)
        is_left_out = any(first <= day <= last for first, last in self.without)
        return is_inside and day.weekday() in self.days and not is_left_out


def parse_range(text: str) -> tuple[int, int] | None:
    """Return the minutes of ``22:00-06:00`` or ``22-6``; None for other text."""
    match = _RANGE.fullmatch(text)
    if match is None:
        return None
    hours = int(match[1]), int(match[3])
    minutes = int(match[2] or 0), int(match[4] or 0)
    begin, end = (60 * h + m for h, m in zip(hours, minutes, strict=True))
    if max(minutes) > 59 or begin >= _DAY_MIN or end > _DAY_MIN or begin == end:
        return None
    return begin, end


def parse_days(text: str) -> frozenset[int] | None:
    """Return the days of ``Mon-Fri`` or ``Sat,Sun``, 0 for Monday; None for other text."""
    if not _DAYS.fullmatch(text):
        return None
    days: set[int] = set()
    for part in text.lower().split(","):
        first, *last = (DAYS.index(name[:3]) for name in re.split("[-–]", part))
        length = (last[0] - first) % 7 if last else 0
        days |= {(first + k) % 7 for k in range(length + 1)}
    return frozenset(days)


def parse_dates(text: str) -> tuple[Dates, ...] | None:
    """Return the days of ``2026-12-24..2027-01-01,2027-05-01``; None for other text."""
    found: list[Dates] = []
    for part in text.split(","):
        first, dots, last = part.partition("..")
        try:
            begin = date.fromisoformat(first)
            end = date.fromisoformat(last) if dots else begin
        except ValueError:
            return None
        if end < begin:
            return None
        found.append((begin, end))
    return tuple(found)
