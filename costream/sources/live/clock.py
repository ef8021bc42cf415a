"""Clock of a feed: maps the media times of successive connections to wall-clock time."""

from __future__ import annotations

import math
from fractions import Fraction

from costream.sources.live.recorder import AudioChunk
from costream.sources.live.stamp_rate import StampRate
from costream.sources.media.audio_decoder import Discontinuity

# Data from the future are impossible: a feed further ahead than this sent a stored burst, or its
# stamps jumped or run too fast.
AHEAD_S = 1.0
# Crystals differ by 1e-4; nominal 30 frames a second that are really 29.97 by 1e-3.
SLEW = 0.005
# What is this late or early is corrected faster; most if the stamps are known to be wrong, then in
# proportion, within SOON_S.
BEHIND_S, FAST_SLEW, FASTEST_SLEW, SOON_S = 0.5, 0.03, 0.5, 4.0
STEP_S = 0.001  # minimum from the last frame of a connection to the first of the next
# Frames that come in less than this part of their time were stored, if most of about MEAN did.
STORED, MEAN, MOST = 0.2, 16, 0.7
# How late data may be in a connection that is younger than this: segments of HLS last so long.
YOUNG_S, LONG_S = 20.0, 12.0
KEPT_S = 60.0  # for so long pauses between arrivals are known
# Frames, and seconds, for which the stamps hardly advance: they stand still.
STILL_FRAMES, STILL_S, STILL_RATE = 6, 0.5, 0.05
RIGHT = 0.02  # stamps whose rate is off by less than this are right
LASTING_S = 10.0  # a wrong rate is told then: a slow network may have been taken for it
STANDING = "its time stamps stand still: times are those of arrival"
WRONG_RATE = (
    "its time stamps advance {:.2f} s in a second, as if a wrong frame rate were stated: times are "
    "those of arrival"
)


class FeedClock:
    """Computes the times of frames in seconds since the feed was opened.

    Within a connection time follows the stamps. Data with the minimum delay define "now"; if the
    clock of the feed drifts from this machine's, time is slewed towards the latter. Stamps that run
    at another rate are scaled, those that stand still are not used; ``news`` says so. Time never
    runs backwards: after a server has sent a burst of stored data, frames are left out until time
    has caught up. Arguments ``now_s`` are on this machine's clock, 0 s when the feed was opened.
    """

    def __init__(self, begins_s: float = 0.0) -> None:
        """``begins_s``: time before which there are no data."""
        self._delays = DelayTracker()
        self._rate = StampRate()
        self._scale = 1.0  # seconds per second of the stamps
        self._still = _StandStill()
        self._zero_s: float | None = None  # feed time of media time 0, without slewing
        self._slewed_s = 0.0
        self._newest_s = -math.inf  # media time
        self._begun_s = self._arrived_s = -math.inf  # arrival of the first data and the newest
        self._apart_s = 0.0  # between the newest two
        self._pause_s = 0.0  # the longest between arrivals lately
        self._stored = 1.0  # part of the newest frames that came too soon
        self._scaled_s = math.inf  # arrival of the data from which on stamps are scaled
        self._joined = False  # the last placed data followed on without a gap
        self._joins = False  # the next stamp begins anew
        self._told: set[str] = set()
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
        """Return what has been found out about the stamps since the last call, each thing once."""
        news, self._news = self._news, []
        return news

    def restart(self) -> None:
        """Handle a new connection: the next data are placed at their arrival."""
        self._zero_s, self._stored = None, 1.0
        self._still.restart()
        self._rate.restart()

    def join(self) -> None:
        """Handle stamps that begin anew: the next data follow the last ones, unless they are late.

        Late: later than data have been lately, as in the bursts of HLS.
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
        """Return the time of data that end at ``media_s``; None if they are to be left out.

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
        """Return how far time may be ahead: in bursts more, as two segments may come at once."""
        if not self._joined:
            return 0.0
        bursts = self._stored > MOST and now_s > self._begun_s + AHEAD_S
        return 1.5 * AHEAD_S + self._pause_s if bursts else AHEAD_S

    def _time(self, media_s: float) -> float:
        assert self._zero_s is not None
        return self._zero_s + self._scale * media_s + self._slewed_s

    def _advance(self, media_s: float, now_s: float) -> tuple[float, float, float]:
        """Return the media time, and the times since the data before, of arrival and of media.

        Media time is that of arrival if the stamps stand still.
        """
        passed_s, self._arrived_s = now_s - self._arrived_s, now_s
        was_still = self._still.found
        if self._still.add(media_s, passed_s) != was_still:
            self._rate.restart()
            self._scale, self._zero_s = 1.0, None
            self._say(STANDING)
        media_s = now_s if self._still.found else media_s
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
        """Let data follow the last ones, or be as late as data have been lately."""
        before_s = self.last_s if self._joined else self._time(self._newest_s)
        follows_s = before_s + (length_s or self._apart_s)
        young = now_s < self._begun_s + YOUNG_S
        usual_s = now_s - max(self._delays.most_s - self._slewed_s, LONG_S if young else 0.0)
        time_s = min(max(follows_s, usual_s), max(now_s, self.last_s + max(length_s, STEP_S)))
        self._zero_s = time_s - self._slewed_s - self._scale * media_s
        self._rate.restart()

    def _hold(self, media_s: float, now_s: float, passed_s: float, length_s: float) -> None:
        """Place data whose stamp is ahead of their arrival; ``passed_s``: since those before."""
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
        """Let the stamps run at another rate from the newest on."""
        time_s = self._time(self._newest_s)
        self._scale = 1.0 if abs(rate - 1.0) < RIGHT else rate
        self._zero_s = time_s - self._slewed_s - self._scale * self._newest_s
        usual_s = self._rate.delay_s(self._scale) - self._zero_s
        self._delays.restart(usual_s)
        self._scaled_s = math.inf if self._scale == 1.0 else self._arrived_s

    def _say(self, what: str, *values: float) -> None:
        """Tell something, once of its kind."""
        if what not in self._told:
            self._told.add(what)
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


class _StandStill:
    """Whether the stamps of frames stand still, or hardly advance, while time passes."""

    def __init__(self) -> None:
        self._newest_s = -math.inf  # stamp
        self.restart()

    def restart(self, *, found: bool = False) -> None:
        """Begin anew."""
        self.found = found
        self._count, self._passed_s = 0, 0.0  # of frames that say otherwise

    def add(self, media_s: float, passed_s: float) -> bool:
        """Take the next stamp, ``passed_s`` after the one before; return ``found``."""
        step_s, self._newest_s = media_s - self._newest_s, media_s
        if (0.0 <= step_s < STILL_RATE * passed_s) == self.found:
            self._count -= 2
            if self._count <= 0:
                self.restart(found=self.found)
            return self.found
        self._count += 1
        self._passed_s += min(passed_s, STILL_S / 3)  # not a burst after a pause
        if self._count >= STILL_FRAMES and self._passed_s >= STILL_S:
            self.restart(found=not self.found)
        return self.found


# Delay and clock drift estimation for live data.

# The usual delay is the minimum over the current and the previous bucket of this length.
BUCKET_S = 5.0
LONG_BUCKET_S = 15.0  # more than the longest segments of HLS in use
KNOWN_S = 60.0  # shorter spans say little about drift: arrivals jitter by milliseconds


class DelayTracker:
    """Tracks the minimum delay of the last seconds and the drift over all of them.

    A delay is arrival time minus media time, so only differences between delays are meaningful.
    Single ones are late for many reasons, but never early.
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
        """Drift of the data's clock in ppm, > 0: faster; None before KNOWN_S of data."""
        if self._line.span_s < KNOWN_S:
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


# Sample clock of a live device; gaps are detected from arrival times.

# A chunk later than this may be late because samples are missing. Through a sound server each
# piece of one may be late by its own length.
LATE_S = 0.25
TOO_SLOW = "dropped: not read in time"
SILENT = "no sound received"
REOPENED = "the microphone was lost"


class LiveClock:
    """Counts the samples of a device, from 0 s at the first, and detects missing ones.

    The usual delay predicts when a sample is due by ``time.monotonic()``. Chunks later than LATE_S
    are held back until they no longer are (the missing ones arrived after all, in a burst) or
    until one had to be waited for: then no more are in transit, and the time missing by the wall
    clock is a gap. Otherwise the count is never corrected; ``delays.drift_ppm`` is its drift.
    """

    def __init__(self, begins_s: Fraction = Fraction(0)) -> None:
        """``begins_s``: time of the first sample."""
        self.delays = DelayTracker()
        self.begins_s = begins_s
        self._start_s, self._frames, self._rate_hz = begins_s, 0, 1  # of released chunks
        self._recording = self._first = 0  # expected next chunk
        self._held: list[AudioChunk] = []
        self._broken = ""  # why the next chunk is not contiguous

    @property
    def next_s(self) -> float:
        """Media time at which the next sample is due."""
        return float(self._time(0))

    def follows(self, chunk: AudioChunk) -> bool:
        """Return whether nothing was dropped before this chunk."""
        return chunk.recording != self._recording or chunk.first == self._first

    def take(self, chunk: AudioChunk) -> list[tuple[AudioChunk, Discontinuity | None]]:
        """Take a chunk; return the chunks that can be placed now with their discontinuities."""
        if math.isinf(self.delays.usual_s):
            self._rate_hz = chunk.rate_hz
        elif chunk.recording != self._recording:
            self._go_on(self._time(0), chunk.rate_hz)
            self._held.clear()
            self._broken = REOPENED
        elif not self.follows(chunk):
            # Held chunks are older than the dropped ones.
            dropped = chunk.first - self._first + sum(held.frames for held in self._held)
            self._go_on(self._time(dropped), chunk.rate_hz)
            self._held.clear()
            self._broken = self._broken or TOO_SLOW
        self._recording, self._first = chunk.recording, chunk.end
        self._held.append(chunk)
        return self._place()

    def _place(self) -> list[tuple[AudioChunk, Discontinuity | None]]:
        late_s, broken = self._late_s(), self._broken
        if late_s < LATE_S and broken != REOPENED:
            return self._placed(
                Discontinuity(begins_s=self._time(0), reason=broken) if broken else None
            )
        if not self._waited():
            return []
        begins_s = self._time(0) + Fraction(round(max(0.0, late_s) * self._rate_hz), self._rate_hz)
        self._go_on(begins_s, self._rate_hz)
        self.delays.restart()
        return self._placed(Discontinuity(begins_s=begins_s, reason=broken or SILENT))

    def _late_s(self) -> float:
        """Return the minimum lateness of the held chunks compared with the usual delay."""
        usual_s = self.delays.usual_s
        if math.isinf(usual_s):
            return 0.0
        time_s, least_s = self.next_s, math.inf
        for chunk in self._held:
            time_s += chunk.frames / self._rate_hz
            least_s = min(least_s, chunk.arrived_s - time_s)
        return least_s - usual_s

    def _waited(self) -> bool:
        """Return whether the newest chunk arrived in real time, not in a burst."""
        if len(self._held) < 2:
            return False
        before, last = self._held[-2:]
        return 2 * (last.arrived_s - before.arrived_s) * self._rate_hz >= last.frames

    def _placed(self, jump: Discontinuity | None) -> list[tuple[AudioChunk, Discontinuity | None]]:
        placed = self._held
        self._held, self._broken = [], ""
        for chunk in placed:
            self._frames += chunk.frames
            time_s = self.next_s
            self.delays.add(time_s, chunk.arrived_s - time_s)
        return [(chunk, None if k else jump) for k, chunk in enumerate(placed)]

    def _go_on(self, time_s: Fraction, rate_hz: int) -> None:
        self._start_s, self._frames, self._rate_hz = time_s, 0, rate_hz

    def _time(self, frames: int) -> Fraction:
        return self._start_s + Fraction(self._frames + frames, self._rate_hz)
