"""How late live data come: as a rule, and more or less so as the clocks drift apart."""

from __future__ import annotations

import math

# The least delay of so long, and of as long before, is the usual one.
BUCKET_S = 5.0
KNOWN_S = 60.0  # less than this says little of drift: arrivals jitter by milliseconds


class Delays:
    """Keeps the least delay of the last seconds, and the drift from all of them.

    A delay is a time of arrival less a media time, so only differences between them mean
    something. Single ones are late for many reasons, but never early.
    """

    def __init__(self) -> None:
        self._begin_s = -math.inf  # of the present bucket
        self._least = self._before = (0.0, math.inf)  # time and delay, in this bucket and the last
        self._line = _Line()

    @property
    def usual_s(self) -> float:
        """The usual delay; infinite when there is none yet."""
        return min(self._least[1], self._before[1])

    @property
    def drift_ppm(self) -> float | None:
        """How much faster the clock of the data runs, in 1e-6; None before KNOWN_S are known."""
        if self._line.span_s < KNOWN_S:
            return None
        slope = self._line.slope
        return -1e6 * slope / (1 + slope)

    def add(self, time_s: float, delay_s: float) -> None:
        """Take the delay of what was due at this media time."""
        if time_s >= self._begin_s + BUCKET_S:
            if math.isfinite(self._begin_s):
                self._line.add(*self._least)
                self._before = self._least
            self._begin_s, self._least = time_s, (time_s, delay_s)
        elif delay_s < self._least[1]:
            self._least = (time_s, delay_s)

    def restart(self, usual_s: float | None = None) -> None:
        """Say that later delays may differ for another reason than drift.

        ``usual_s``: the usual delay by now; None: still what it was.
        """
        self._before = (0.0, self.usual_s if usual_s is None else usual_s)
        self._begin_s, self._least = -math.inf, (0.0, math.inf)
        self._line.restart()


class _Line:
    """The slope of a straight line through points, by least squares.

    After ``restart`` it goes on at another height, with the same slope.
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
        # Sums about means that move (Welford 1962).
        off = x - self._mean_x
        self._mean_x += off / self._count
        self._mean_y += (y - self._mean_y) / self._count
        self._xx += off * (x - self._mean_x)
        self._xy += off * (y - self._mean_y)

    def restart(self) -> None:
        self._count, self._mean_x, self._mean_y = 0, 0.0, 0.0
