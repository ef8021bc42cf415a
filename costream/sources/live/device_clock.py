"""Sample clock of a microphone; gaps are detected from arrival times."""

from __future__ import annotations

import math
from fractions import Fraction

from costream.sources.live.delays import DelayTracker
from costream.sources.live.device_recording import AudioChunk
from costream.sources.media.sound_clock import Discontinuity

# A chunk that is later than this may be late because samples are missing. Sound servers delay each
# piece by up to its length.
LATE_S = 0.25
TOO_SLOW = "dropped: not read in time"
SILENT = "no sound received"
REOPENED = "the microphone was lost"


class DeviceClock:
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
