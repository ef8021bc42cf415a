"""Event rate over the last seconds."""

from __future__ import annotations

from collections import deque

_SPAN_S = 5.0
_MOST = 512


class Rate:
    """Events per second, over the last seconds. One thread adds, others may read."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=_MOST)

    def add(self, now_s: float) -> None:
        """Add an event at this time."""
        self._times.append(now_s)

    def at(self, now_s: float) -> float:
        """Return the events per second up to this time; 0 after _SPAN_S without any."""
        times = [t for t in tuple(self._times) if t > now_s - _SPAN_S]
        span_s = now_s - times[0] if times else 0.0
        return len(times) / max(span_s, 1.0)
