"""How the data of a feed arrive: how many per second, and how late."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque

SPAN_S = 15.0  # of the delays: more than the longest segments of HLS in use
_RATE_S = 10.0  # over which a rate is measured: more than the pauses between segments of HLS
_MOST_EVENTS = 512


class ArrivalDelays:
    """How late the data of a feed arrive, over the last SPAN_S to 2 SPAN_S.

    A delay is the time at which a step became ready minus that of its data. Those in a burst, of
    which HLS is a series, and on a slow network arrive late.
    """

    def __init__(self) -> None:
        self._begin_s = -math.inf
        self._now = self._before = (math.inf, 0.0)  # least and greatest

    @property
    def most_s(self) -> float:
        """The greatest delay."""
        return max(self._now[1], self._before[1])

    @property
    def least_s(self) -> float:
        """The least delay; infinite before there are some of two spans: the first may be held."""
        known = max(self._now[0], self._before[0]) < math.inf
        return min(self._now[0], self._before[0]) if known else math.inf

    def add(self, now_s: float, delay_s: float) -> None:
        """Add the delay of a step that became ready now."""
        if now_s - self._begin_s >= SPAN_S:
            recent = now_s - self._begin_s < 2 * SPAN_S
            self._before = self._now if recent else (math.inf, 0.0)
            self._begin_s, self._now = now_s, (math.inf, 0.0)
        self._now = min(self._now[0], delay_s), max(self._now[1], delay_s)


class Rate:
    """Events per second, over the last seconds. One thread adds, others may read."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=_MOST_EVENTS)

    def add(self, now_s: float) -> None:
        """Add an event at this time."""
        self._times.append(now_s)

    def at(self, now_s: float) -> float:
        """Return the events per second up to this time; 0 after _RATE_S without any."""
        times = tuple(self._times)
        first = bisect_right(times, now_s - _RATE_S)
        span_s = now_s - times[first] if first < len(times) else 0.0
        return (len(times) - first) / max(span_s, 1.0)
