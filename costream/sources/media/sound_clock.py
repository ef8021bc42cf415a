"""Sample clock of an audio stream; gaps are detected from time stamps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from costream.sources.media.media_clock import EPOCH_JUMP_S, FAR_JUMP_S, FOLLOWS_S
from costream.sources.media.timing import HEADERLESS

# Stamps are rounded and jitter, Vorbis by 10 ms, recorded feeds by more: deviations up to this are
# ignored.
JITTER_S = Fraction(1, 20)
# Missing sound up to this long becomes silence: Opus omits 0.4 s of silence at a time (DTX).
SILENCE_S = Fraction(1, 2)
# Formats whose stamps are numbers of samples: FFmpeg assumes the first sample rate for all.
COUNTED = {*HEADERLESS, "flac", "mp3", "ogg"}


@dataclass(frozen=True)
class Discontinuity:
    """Discontinuity before a frame: the consequence of a stamp that differs from the count."""

    damage: str | None = None  # error to be counted
    silence: int = 0  # samples of silence to insert
    begins_s: Fraction | None = None  # too many for silence: a gap ends here
    reason: str | None = None  # of the gap; None: unknown
    shift_s: Fraction = Fraction(0)  # drift between the count and the stamps


class SoundClock:
    """Counts samples from the first stamp on and compares the count with later stamps.

    A stamp that deviates by more than JITTER_S is accepted if the next one is nearer to it than to
    the count; else it is damaged. If the deviation grew slowly, the clocks have drifted apart and
    the count is set to the stamp. A sudden forward step means missing sound; after a backward step
    (concatenated recordings, a clock reset) a new epoch continues where the old one ended, so that
    no sound is left out.
    """

    def __init__(self, time_base: Fraction, origin_s: Fraction, *, counts: bool = False) -> None:
        """``origin_s``: time of 0 s on the clock of the stamps.

        ``counts``: stamps are numbers of samples, useless once the sample rate has changed.
        """
        self._counts, self._stamped = counts, True
        self._time_base = time_base
        self._zero = round(origin_s / time_base)  # the stamp of sample 0, in this epoch
        self._start_s = self._zero * time_base - origin_s  # its time
        self._set_rate(1)
        self._count = 0
        self._ahead = 0  # samples by which the newest stamp is ahead of the count

    @property
    def next_s(self) -> float:
        """Time at which the next sample is due."""
        return float(self.next_time)

    @property
    def next_time(self) -> Fraction:
        """Exact time at which the next sample is due."""
        return self._start_s + Fraction(self._count, self._rate_hz)

    def seconds(self, pts: int) -> float:
        """Return the time of a stamp in the current epoch."""
        return float(self._time(pts))

    def ticks(self, time_s: float) -> int:
        """Return the stamp at or before a time of the current epoch (for seeking)."""
        return self._zero + int((Fraction(time_s) - self._start_s) / self._time_base // 1)

    def start(self, pts: int | None, samples: int, rate_hz: int, after: int | None) -> Fraction:
        """Take the first frame and return its time. ``after``: the stamp of the second, if any."""
        if after is not None:
            before = after - round(Fraction(samples, rate_hz) / self._time_base)
            if pts is None or (pts - before) * self._time_base > EPOCH_JUMP_S:
                pts = before
        self._anchor(self._zero if pts is None else pts)
        self._set_rate(rate_hz)
        self._count = samples
        return self._start_s

    def advance(
        self, pts: int | None, samples: int, rate_hz: int, peek: Callable[[], int | None]
    ) -> Discontinuity | None:
        """Take the next frame; return its discontinuity, or None if it is contiguous.

        ``peek`` returns the stamp of the frame after it; called only if needed.
        """
        if rate_hz != self._rate_hz:
            time_s = self.next_time
            self._zero += round((time_s - self._start_s) / self._time_base)
            self._start_s, self._count = time_s, 0
            self._set_rate(rate_hz)
            self._stamped = self._stamped and not self._counts
        jump = None
        if pts is not None and self._stamped:
            ahead = self._samples(pts)
            if abs(ahead) > self._jitter:
                jump = self._discontinuity(pts, ahead, samples, peek())
            else:
                self._ahead = ahead
        self._count += samples
        return jump

    def _discontinuity(
        self, pts: int, ahead: int, samples: int, after: int | None
    ) -> Discontinuity:
        if 2 * abs(ahead - self._ahead) < self._jitter:
            drift_s = self._time(pts) - self.next_time
            self._anchor(pts)
            return Discontinuity(shift_s=drift_s)
        if not self._is_plausible(ahead, None if after is None else self._samples(after) - samples):
            return Discontinuity("impossible time stamp(s)")
        if ahead < 0:
            time_s = self.next_time
            self._anchor(pts)
            self._start_s = time_s
            return Discontinuity("backward clock jump(s)")
        if ahead <= SILENCE_S * self._rate_hz:
            self._count += ahead
            self._ahead = 0
            return Discontinuity("gap(s) filled with silence", silence=ahead)
        self._anchor(pts)
        return Discontinuity(begins_s=self._start_s)

    def _is_plausible(self, ahead: int, after: int | None) -> bool:
        """Return whether a stamp is valid; ``after``: lead of the next one, less this frame."""
        far = abs(ahead) > FAR_JUMP_S * self._rate_hz
        if after is None:
            return not far
        if far and abs(after - ahead) > FOLLOWS_S * self._rate_hz:
            return False
        return abs(after - ahead) < abs(after)

    def _time(self, pts: int) -> Fraction:
        return self._start_s + (pts - self._zero) * self._time_base

    def _samples(self, pts: int) -> int:
        """Return the number of samples by which a stamp is ahead of the count."""
        return (pts - self._zero) * self._scale[0] // self._scale[1] - self._count

    def _anchor(self, pts: int) -> None:
        """Restart the count at this stamp."""
        self._start_s, self._zero = self._time(pts), pts
        self._count = self._ahead = 0

    def _set_rate(self, rate_hz: int) -> None:
        self._rate_hz = rate_hz
        self._jitter = int(JITTER_S * rate_hz)
        scale = self._time_base * rate_hz
        self._scale = (scale.numerator, scale.denominator)
