"""Delay and clock drift of live data."""

from __future__ import annotations

import math

# The usual delay is the minimum over the current and the previous bucket of this length.
BUCKET_S = 5.0
LONG_BUCKET_S = 15.0  # more than the longest segments of HLS in use
DRIFT_S = 60.0  # minimum span to measure drift: arrivals jitter by milliseconds


class DelayTracker:
    """Tracks the minimum delay of the last seconds and the drift over all of them.

    A delay is arrival time minus media time, so only differences between delays are meaningful.
    Data may be late for many reasons but are never early.
    """

    def __init__(self) -> None:
        self._begin_s = -math.inf  # of the current bucket
        self._least = self._before = (0.0, math.inf)  # time and delay, in this bucket and the last
        # Greatest delays, in the last bucket of LONG_BUCKET_S and in this one.
        self._most, self._most_begin_s = (-math.inf, -math.inf), -math.inf
        self._line = _Line()

    @property
    def usual_s(self) -> float:
        """Usual delay; infinite if there is none yet."""
        return min(self._least[1], self._before[1])

    @property
    def most_s(self) -> float:
        """Greatest delay in the last 15 to 30 s; -infinite if there is none yet."""
        return max(self._most)

    @property
    def drift_ppm(self) -> float | None:
        """Drift of the data's clock in ppm, > 0: faster; None before DRIFT_S of data."""
        if self._line.span_s < DRIFT_S:
            return None
        slope = self._line.slope
        return -1e6 * slope / (1 + slope)

    def add(self, time_s: float, delay_s: float) -> None:
        """Add the delay of data with this media time."""
        if time_s >= self._begin_s + BUCKET_S:
            if math.isfinite(self._begin_s):
                self._line.add(*self._least)
                self._before = self._least
            self._begin_s, self._least = time_s, (time_s, delay_s)
        elif delay_s < self._least[1]:
            self._least = (time_s, delay_s)
        if time_s >= self._most_begin_s + LONG_BUCKET_S:
            self._most_begin_s, self._most = time_s, (self._most[1], delay_s)
        self._most = (self._most[0], max(self._most[1], delay_s))

    def restart(self, usual_s: float | None = None) -> None:
        """Handle a discontinuity: later delays may differ for reasons other than drift.

        ``usual_s``: the new usual delay; None: unchanged.
        """
        self._before = (0.0, self.usual_s if usual_s is None else usual_s)
        self._begin_s, self._least = -math.inf, (0.0, math.inf)
        self._most, self._most_begin_s = (self._before[1], self._before[1]), -math.inf
        self._line.restart()

    def shift(self, by_s: float) -> None:
        """Handle media times that change: all delays grow by this."""
        self._least = (self._least[0], self._least[1] + by_s)
        self._before = (self._before[0], self._before[1] + by_s)
        self._most = (self._most[0] + by_s, self._most[1] + by_s)
        self._line.restart()


class _Line:
    """Slope of a least-squares line through points.

    After ``restart`` the line continues with another offset and the same slope.
    """

    def __init__(self) -> None:
        self.span_s = 0.0
        self._xx = self._xy = 0.0  # about the means
        self._count, self._mean_x, self._mean_y, self._last_x = 0, 0.0, 0.0, 0.0

    @property
    def slope(self) -> float:
        return self._xy / self._xx

    def add(self, x: float, y: float) -> None:
        if self._count:
            self.span_s += x - self._last_x
        self._last_x = x
        self._count += 1
        # Sums about running means (Welford 1962).
        off = x - self._mean_x
        self._mean_x += off / self._count
        self._mean_y += (y - self._mean_y) / self._count
        self._xx += off * (x - self._mean_x)
        self._xy += off * (y - self._mean_y)

    def restart(self) -> None:
        self._count, self._mean_x, self._mean_y = 0, 0.0, 0.0
