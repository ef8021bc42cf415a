"""Horizontal time axis of drawings."""

from __future__ import annotations

import math

_SCROLL_S = 60.0  # shown if the length is unknown


class PixelAxis:
    """Time from left to right: the complete run, or the last minute if its length is unknown.

    ``length_s``: length of the run; None: unknown.
    """

    def __init__(self, length_s: float | None) -> None:
        self._length_s = length_s or _SCROLL_S
        self._scrolls = not length_s
        self._width = 0
        self._left_s: float | None = None  # the time at the left edge

    @property
    def began(self) -> bool:
        """Whether the axis has a start time."""
        return self._left_s is not None

    def begin(self, time_s: float, width: int) -> None:
        """Start the axis at ``time_s``, ``width`` pixels wide."""
        self._left_s, self._width = time_s, width

    def x(self, time_s: float) -> float:
        """Return the position of a time in pixels from the left edge."""
        return (time_s - (self._left_s or 0.0)) / self._length_s * self._width

    def scroll(self, end_s: float) -> int:
        """Scroll until ``end_s`` is visible; return the number of pixels, at most the width."""
        over = math.ceil(self.x(end_s)) - self._width
        if not self._scrolls or over <= 0 or self._left_s is None:
            return 0
        self._left_s += over * self._length_s / self._width
        return min(over, self._width)

    def clock(self, time_s: float) -> str:
        """Return ``M:SS.s`` since the start, or since time zero if the length is unknown."""
        seconds = time_s if self._scrolls else time_s - (self._left_s or 0.0)
        tenths = round(10 * max(0.0, seconds))
        return f"{tenths // 600}:{tenths // 10 % 60:02d}.{tenths % 10}"
