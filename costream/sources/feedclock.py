"""The clock of a feed: the media times of one connection after the other, on the wall clock."""

from __future__ import annotations

import math

from costream.sources.delays import Delays

# What has not happened yet cannot come: a feed that is further ahead sent what it had stored.
AHEAD_S = 1.0
# Its stamps run slower than time, more than SLEW makes up for.
BEHIND_S = 60.0
# Crystals differ by 1e-4; 30 frames a second that are really 29.97 by 1e-3.
SLEW = 0.005
STEP_S = 0.001  # from the last frame of a connection to the first of the next, at the least


class FeedClock:
    """Gives the times of frames in seconds since the feed was opened.

    Within a connection time goes by the stamps. What comes with the least delay is "now"; where
    the clock of the feed drifts away from this machine's, time is slewed towards it. It never runs
    backwards: after a server has sent in a burst what it had stored, frames are left out until
    time has caught up. In the arguments ``now_s`` is by this machine's clock, 0 s when the feed
    was opened.
    """

    def __init__(self) -> None:
        self._delays = Delays()
        self._zero_s: float | None = None  # the time of media time 0, without slewing
        self._slewed_s = 0.0
        self._newest_s = -math.inf  # media time
        self._joined = False  # what was placed last follows on what was before it
        self.last_s = 0.0  # end of what was placed last

    @property
    def drift_ppm(self) -> float | None:
        """How much faster the clock of the feed runs, in 1e-6; None in the first minute."""
        return self._delays.drift_ppm

    @property
    def ahead_s(self) -> float:
        """By how much time is ahead of this machine's clock when data come without any delay."""
        return max(0.0, self._slewed_s - self._delays.usual_s)

    def restart(self) -> None:
        """Say that the media time that follows has another zero."""
        self._zero_s = None

    def place(self, media_s: float, now_s: float, length_s: float = 0.0) -> float | None:
        """Give the time of what ends at ``media_s``; None when it is to be left out.

        ``length_s``: of a stretch of sound. ``now_s``: when it came.
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
