"""Clock of a feed: maps the media times of successive connections to wall-clock time."""

from __future__ import annotations

import math
from fractions import Fraction

from costream.sources.live.recorder import AudioChunk
from costream.sources.media.audio_decoder import Discontinuity

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

    def __init__(self, begins_s: float = 0.0) -> None:
        """``begins_s``: time before which there are no data."""
        self._delays = DelayTracker()
        self._zero_s: float | None = None  # feed time of media time 0, without slewing
        self._slewed_s = 0.0
        self._newest_s = -math.inf  # media time
        self._joined = False  # the last placed data followed on without a gap
        self.last_s = begins_s  # end of the last placed data

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


# Delay and clock drift estimation for live data.

# The usual delay is the minimum over the current and the previous bucket of this length.
BUCKET_S = 5.0
KNOWN_S = 60.0  # shorter spans say little about drift: arrivals jitter by milliseconds


class DelayTracker:
    """Tracks the minimum delay of the last seconds and the drift over all of them.

    A delay is arrival time minus media time, so only differences between delays are meaningful.
    Single ones are late for many reasons, but never early.
    """

    def __init__(self) -> None:
        self._begin_s = -math.inf  # of the current bucket
        self._least = self._before = (0.0, math.inf)  # time and delay, in this bucket and the last
        self._line = _Line()

    @property
    def usual_s(self) -> float:
        """Usual delay; infinite if there is none yet."""
        return min(self._least[1], self._before[1])

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

    def restart(self, usual_s: float | None = None) -> None:
        """Handle a discontinuity: later delays may differ for reasons other than drift.

        ``usual_s``: the new usual delay; None: unchanged.
        """
        self._before = (0.0, self.usual_s if usual_s is None else usual_s)
        self._begin_s, self._least = -math.inf, (0.0, math.inf)
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
