"""Clock of a feed: maps the media times of successive connections to wall-clock time."""

from __future__ import annotations

import math

from costream.sources.live.delays import DelayTracker
from costream.sources.live.stamp_rate import StampRate, StandStill

# Data from the future are impossible: a feed further ahead than this sent a stored burst, or its
# stamps jumped or run too fast.
AHEAD_S = 1.0
# Crystals differ by 1e-4, nominal 30 and real 29.97 frames per second by 1e-3.
SLEW = 0.005
BEHIND_S = 0.5  # a larger deviation is corrected with FAST_SLEW
FAST_SLEW = 0.03
FASTEST_SLEW = 0.5  # if the stamps are wrong: deviations are corrected within SOON_S
SOON_S = 4.0
STEP_S = 0.001  # minimum from the last frame of a connection to the first of the next
# Frames that arrive in less than STORED of their duration were stored, if MOST of about MEAN did.
STORED = 0.2
MEAN = 16
MOST = 0.7
# In a connection younger than YOUNG_S data may be late by LONG_S, as long as segments of HLS.
YOUNG_S = 20.0
LONG_S = 12.0
KEPT_S = 60.0  # pauses between arrivals are remembered for this long
RIGHT = 0.02  # a smaller error of the stamps' rate is no error
LASTING_S = 10.0  # before a wrong rate is reported: it may have been a slow network
STANDING = "its time stamps do not advance: arrival times are used"
WRONG_RATE = (
    "its time stamps advance {:.2f} s per second, as if it stated a wrong frame rate: arrival "
    "times are used"
)


class FeedClock:
    """Computes the times of frames in seconds since the feed was opened.

    Within a connection time follows the stamps. Data with the minimum delay define "now"; if the
    clock of the feed drifts from this machine's, time is slewed towards the latter. Stamps with a
    wrong rate are scaled, stamps that do not advance are ignored; ``news`` reports it. Time never
    runs backwards: after a server has sent a burst of stored data, frames are left out until time
    has caught up. Arguments ``now_s`` are on this machine's clock, 0 s when the feed was opened.
    """

    def __init__(self, begins_s: float = 0.0) -> None:
        """``begins_s``: time of the beginning."""
        self._delays = DelayTracker()
        self._rate = StampRate()
        self._scale = 1.0  # seconds per second of the stamps
        self._stand_still = StandStill()
        self._zero_s: float | None = None  # feed time of media time 0, without slewing
        self._slewed_s = 0.0
        self._newest_s = -math.inf  # media time
        self._begun_s = self._arrived_s = -math.inf  # arrival of the first data and the newest
        self._apart_s = 0.0  # between the newest two
        self._pause_s = 0.0  # the longest between arrivals lately
        self._stored = 1.0  # part of the newest frames that arrived too early
        self._scaled_s = math.inf  # arrival of the data from which on stamps are scaled
        self._joined = False  # the last placed data followed on without a gap
        self._joins = False  # the stamps restart with the next data
        self._reported: set[str] = set()
        self._news: list[str] = []
        self.last_s = begins_s  # end of the last placed data

    @property
    def drift_ppm(self) -> float | None:
        """Drift of the feed's clock in ppm, > 0: faster; None in the first minute."""
        return self._delays.drift_ppm if self._scale == 1.0 else 1e6 * (1 / self._scale - 1)

    @property
    def ahead_s(self) -> float:
        """Lead of the time over this machine's clock for data that arrive without delay."""
        return max(0.0, self._slewed_s - self._delays.usual_s)

    def news(self) -> list[str]:
        """Return messages about the stamps since the last call, each kind once."""
        news, self._news = self._news, []
        return news

    def restart(self) -> None:
        """Handle a new connection: the next data are placed at their arrival."""
        self._zero_s, self._stored = None, 1.0
        self._stand_still.restart()
        self._rate.restart()

    def join(self) -> None:
        """Handle a restart of the stamps: the next data follow the last ones unless they are late.

        Late: later than recent data, which come in bursts with HLS.
        """
        self._joins = True

    def place(
        self,
        media_s: float,
        now_s: float,
        length_s: float = 0.0,
        *,
        waited_s: float | None = None,
        sent_s: float | None = None,
    ) -> float | None:
        """Return the time of data that end at ``media_s``; None if they must be left out.

        ``length_s``: duration of sound. ``now_s``: time of arrival. The others: as for StampRate.
        """
        media_s, passed_s, step_s = self._advance(media_s, now_s)
        if self._zero_s is None:
            self._begun_s, self._pause_s = now_s, 0.0
            self._anchor(media_s, max(now_s, self.last_s + max(length_s, STEP_S)))
        elif self._joins:
            self._join(media_s, now_s, length_s)
        else:
            self._slew(step_s)
            if self._time(media_s) > now_s + self._most_ahead_s(now_s):
                self._hold(media_s, now_s, min(passed_s, step_s), length_s)
        self._newest_s, self._joins = media_s, False
        rate = self._rate.add(media_s, now_s, self._scale, waited_s, sent_s)
        time_s = self._time(media_s)
        even_s = time_s - self._slewed_s
        self._delays.add(even_s, now_s - even_s)
        if rate is not None and (rate > 1.0 or not length_s):
            self._rescale(rate)
        if time_s <= self.last_s or (not self._joined and time_s - length_s < self.last_s):
            return None
        self._apart_s = time_s - self.last_s if self._joined else self._apart_s
        self._joined, self.last_s = True, time_s
        return time_s

    @property
    def _late_s(self) -> float:
        return self._delays.usual_s - self._slewed_s

    def _most_ahead_s(self, now_s: float) -> float:
        """Return how far time may be ahead; more in bursts, as two segments may arrive at once."""
        if not self._joined:
            return 0.0
        bursts = self._stored > MOST and now_s > self._begun_s + AHEAD_S
        return 1.5 * AHEAD_S + self._pause_s if bursts else AHEAD_S

    def _time(self, media_s: float) -> float:
        assert self._zero_s is not None
        return self._zero_s + self._scale * media_s + self._slewed_s

    def _advance(self, media_s: float, now_s: float) -> tuple[float, float, float]:
        """Return media time, and the arrival and media times since the previous data.

        Media time is the time of arrival if the stamps do not advance.
        """
        passed_s, self._arrived_s = now_s - self._arrived_s, now_s
        was_found = self._stand_still.found
        if self._stand_still.add(media_s, passed_s) != was_found:
            self._rate.restart()
            self._scale, self._zero_s = 1.0, None
            self._say(STANDING)
        media_s = now_s if self._stand_still.found else media_s
        step_s = self._scale * (media_s - self._newest_s)
        if self._zero_s is not None:
            self._pause_s *= max(0.0, 1.0 - passed_s / KEPT_S)
            self._pause_s = min(max(self._pause_s, passed_s), LONG_S)
        self._stored += ((passed_s < STORED * step_s) - self._stored) / MEAN
        if now_s > self._scaled_s + (0.0 if self._rate.refuted else LASTING_S):
            self._scaled_s = math.inf
            self._say(WRONG_RATE, 1 / self._scale)
        return media_s, passed_s, step_s

    def _anchor(self, media_s: float, time_s: float) -> None:
        self._zero_s = time_s - self._slewed_s - self._scale * media_s
        self._delays.restart(self._slewed_s)
        self._joined = False

    def _join(self, media_s: float, now_s: float, length_s: float) -> None:
        """Place data directly after the last ones, or as late as recent data."""
        before_s = self.last_s if self._joined else self._time(self._newest_s)
        follows_s = before_s + (length_s or self._apart_s)
        young = now_s < self._begun_s + YOUNG_S
        usual_s = now_s - max(self._delays.most_s - self._slewed_s, LONG_S if young else 0.0)
        time_s = min(max(follows_s, usual_s), max(now_s, self.last_s + max(length_s, STEP_S)))
        self._zero_s = time_s - self._slewed_s - self._scale * media_s
        self._rate.restart()

    def _hold(self, media_s: float, now_s: float, passed_s: float, length_s: float) -> None:
        """Place data whose stamp is ahead of their arrival ``passed_s`` after the previous data."""
        step_s = self._scale * (media_s - self._newest_s)
        if step_s - length_s > AHEAD_S and self._time(self._newest_s) <= now_s + 1.5 * AHEAD_S:
            self._join(media_s, now_s, length_s)
        elif self._joined and not length_s and self._stored < MOST:
            by_s = self.last_s + passed_s / 2 - self._time(media_s)
            assert self._zero_s is not None
            self._zero_s += by_s
            self._delays.shift(-by_s)
        else:
            self._anchor(media_s, now_s)

    def _rescale(self, rate: float) -> None:
        """Change the rate of the stamps from the newest data on."""
        time_s = self._time(self._newest_s)
        self._scale = 1.0 if abs(rate - 1.0) < RIGHT else rate
        self._zero_s = time_s - self._slewed_s - self._scale * self._newest_s
        usual_s = self._rate.delay_s(self._scale) - self._zero_s
        self._delays.restart(usual_s)
        self._scaled_s = math.inf if self._scale == 1.0 else self._arrived_s

    def _say(self, what: str, *values: float) -> None:
        """Report a message, once per kind."""
        if what not in self._reported:
            self._reported.add(what)
            self._news.append(what.format(*values))

    def _slew(self, elapsed_s: float) -> None:
        late_s, elapsed_s = self._late_s, min(max(elapsed_s, 0.0), 1.0)
        most = SLEW
        if self._scale != 1.0:
            most = min(max(abs(late_s) / SOON_S, SLEW), FASTEST_SLEW)
        elif abs(late_s) > BEHIND_S and not self._rate.confirmed:
            most = FAST_SLEW
        most_s = most * elapsed_s
        self._slewed_s += min(max(late_s, -most_s), most_s)
