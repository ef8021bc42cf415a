"""Clock of a feed: maps the media times of successive connections to wall-clock time."""

from __future__ import annotations

import math

from costream.sources.delays import DelayTracker

# Data from the future are impossible: a feed further ahead than this sent a stored burst.
AHEAD_S = 1.0
# Beyond this its stamps run slower than SLEW can correct.
BEHIND_S = 60.0
# Crystals differ by 1e-4; nominal 30 frames a second that are really 29.97 by 1e-3.
SLEW = 0.005
STEP_S = 0.001  # minimum from the last frame of a connection to the first of the next


class FeedClock:
    """Computes the times of frames in seconds since the feed was opened.

    Within a connection time follows the stamps. Data with the minimum delay define "now"; if the
    clock of the feed drifts from this machine's, time is slewed towards the latter. It never runs
    backwards: after a server has sent a burst of stored data, frames are left out until time has
    caught up. Arguments ``now_s`` are on this machine's clock, 0 s when the feed was opened.
    """

    def __init__(self) -> None:
        self._delays = DelayTracker()
        self._zero_s: float | None = None  # feed time of media time 0, without slewing
        self._slewed_s = 0.0
        self._newest_s = -math.inf  # media time
        self._joined = False  # the last placed data followed on without a gap
        self.last_s = 0.0  # end of the last placed data

    @property
    def drift_ppm(self) -> float | None:
        """Drift of the feed's clock in ppm, > 0: faster; None in the first minute."""
        return self._delays.drift_ppm

    @property
    def ahead_s(self) -> float:
        """Lead of the time over this machine's clock for data that arrive without delay."""
        return max(0.0, self._slewed_s - self._delays.usual_s)

    def restart(self) -> None:
        """Handle a change of the zero point of media time."""
        self._zero_s = None

    def place(self, media_s: float, now_s: float, length_s: float = 0.0) -> float | None:
        """Return the time of data that end at ``media_s``; None if they are to be left out.

        ``length_s``: duration of sound. ``now_s``: time of arrival.
        """
        if self._zero_s is None or self._late_s > BEHIND_S:
            self._anchor(media_s, max(now_s, self.last_s + max(length_s, STEP_S)))
        else:
            self._slew(media_s - self._newest_s)
            if self._time(media_s) > now_s + (AHEAD_S if self._joined else 0.0):
                self._anchor(media_s, now_s)
        self._newest_s = media_s
        time_s = self._time(media_s)
        even_s = time_s - self._slewed_s
        self._delays.add(even_s, now_s - even_s)
        if time_s <= self.last_s or (not self._joined and time_s - length_s < self.last_s):
            return None
        self._joined, self.last_s = True, time_s
        return time_s

    @property
    def _late_s(self) -> float:
        return self._delays.usual_s - self._slewed_s

    def _time(self, media_s: float) -> float:
        assert self._zero_s is not None
        return self._zero_s + media_s + self._slewed_s

    def _anchor(self, media_s: float, time_s: float) -> None:
        self._zero_s = time_s - self._slewed_s - media_s
        self._delays.restart(self._slewed_s)
        self._joined = False

    def _slew(self, elapsed_s: float) -> None:
        most_s = SLEW * min(max(elapsed_s, 0.0), 1.0)
        self._slewed_s += min(max(self._late_s, -most_s), most_s)
