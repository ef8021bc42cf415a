"""Where times stand across a picture."""

from __future__ import annotations

import math

_SCROLL_S = 60.0  # what is shown when the length is not known


class Axis:
    """Time from left to right: a whole run, or where its length is not known the last minute.

    ``length_s``: of the run, None when it is not known.
    """

    def __init__(self, length_s: float | None) -> None:
        self._length_s = length_s or _SCROLL_S
        self._scrolls = not length_s
        self._width = 0
        self._left_s: float | None = None  # the time at the left edge

    @property
    def began(self) -> bool:
        """Whether there is a first time."""
        return self._left_s is not None

    def begin(self, time_s: float, width: int) -> None:
        """Begin at a time, ``width`` pixels wide."""
        self._left_s, self._width = time_s, width

    def x(self, time_s: float) -> float:
        """Give where a time stands, pixels from the left edge."""
        return (time_s - (self._left_s or 0.0)) / self._length_s * self._width

    def scroll(self, end_s: float) -> int:
        """Move on so far that ``end_s`` is in sight; give by how many pixels, at most the width."""
        over = math.ceil(self.x(end_s)) - self._width
        if not self._scrolls or over <= 0 or self._left_s is None:
            return 0
        self._left_s += over * self._length_s / self._width
        return min(over, self._width)

    def clock(self, time_s: float) -> str:
        """Give ``M:SS.s`` since the begin, of a run without a length since its own zero."""
        return short_clock(time_s if self._scrolls else time_s - (self._left_s or 0.0))


def short_clock(seconds: float) -> str:
    """Give ``M:SS.s``."""
    tenths = round(10 * max(0.0, seconds))
    return f"{tenths // 600}:{tenths // 10 % 60:02d}.{tenths % 10}"
