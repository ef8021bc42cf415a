"""Axis of media time, and round numbers for axes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from costream.core.formatting import short_time
from costream.report.markup import Html, join, percent, tag

_STEPS_S = (
    *(0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30),
    *(60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400),
)
_TICKS = 7


@dataclass(frozen=True)
class TimeAxis:
    """Axis of media time from left to right."""

    start_s: float
    end_s: float

    def share(self, time_s: float) -> float:
        """Return the position of a time: 0 at the left end, 1 at the right."""
        place = (time_s - self.start_s) / (self.end_s - self.start_s)
        return min(1.0, max(0.0, place))

    def x(self, time_s: float) -> str:
        """Return the position of a time in per cent."""
        return percent(self.share(time_s))

    def width(self, start_s: float, end_s: float) -> str:
        """Return the width of an interval in per cent."""
        return percent(max(0.0, self.share(end_s) - self.share(start_s)))

    def ticks(self) -> list[float]:
        """Return round times, eight at most."""
        length_s = self.end_s - self.start_s
        step_s = next((s for s in _STEPS_S if length_s / s <= _TICKS), None)
        if step_s is None:
            step_s = 86400.0 * math.ceil(length_s / 86400 / _TICKS)
        first = math.ceil(self.start_s / step_s - 1e-9)
        last = math.floor(self.end_s / step_s + 1e-9)
        return [k * step_s for k in range(first, last + 1)]

    def label(self, time_s: float) -> str:
        """Return a time with as many digits as the ticks need."""
        length_s = self.end_s - self.start_s
        return short_time(time_s, 0 if length_s >= _TICKS else 2)

    def grid(self) -> Html:
        """Return thin vertical lines at the ticks, over the full height."""
        lines = (
            tag("line", x1=self.x(t), x2=self.x(t), y1="0", y2="100%", class_="grid")
            for t in self.ticks()
        )
        return join(lines)

    def scale(self) -> Html:
        """Return the line of tick labels."""
        marks = []
        for time_s in self.ticks():
            share = self.share(time_s)
            anchor = "start" if share < 0.03 else "end" if share > 0.97 else "middle"
            marks.append(
                tag("text", self.label(time_s), x=percent(share), y="13", text_anchor=anchor)
            )
        return tag(
            "svg", join(marks), class_="scale", width="100%", height="18", aria_hidden="true"
        )


def round_up(value: float) -> float:
    """Return the smallest of 1, 2, 5, 10, 20, 50, ... that is not below ``value``."""
    if value <= 0 or not math.isfinite(value):
        return 1.0
    unit = 10.0 ** math.floor(math.log10(value))
    return next(k * unit for k in (1, 2, 5, 10) if k * unit >= value * (1 - 1e-9))
