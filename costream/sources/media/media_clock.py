"""Media clock: converts presentation time stamps to monotonic seconds."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

# A time stamp that is further back than this may start a new epoch (concatenated recordings, a
# clock reset); less is a frame out of order.
EPOCH_JUMP_S = 1.0
# A pause of more than this many frames is a jump too, accepted only if the next one agrees.
JUMP_FRAMES = 4
# After a jump of more than an hour the next frame must also follow within this time.
FAR_JUMP_S = 3600.0
FOLLOWS_S = 10.0


class MediaClock:
    """Converts the time stamps of one stream to seconds that never decrease.

    Time is pts x time_base - origin, computed with integers. A missing stamp is extrapolated by
    the last good distance between two frames. A stamp that jumps is accepted if the one after it
    is nearer to it than to the one before; else it is damaged (one wrong bit can mean a day) and
    counts as missing. After a backward jump a new epoch continues where the old one ended.
    """

    def __init__(self, time_base: Fraction, origin_s: Fraction, delta_s: float) -> None:
        """``origin_s``: container time of 0 s. ``delta_s``: nominal frame interval."""
        self._time_base = time_base
        self._origin_s = origin_s
        # The time of a stamp is (pts * scale - start) / parts.
        self._scale = time_base.numerator * origin_s.denominator
        self._start = origin_s.numerator * time_base.denominator
        self._parts = time_base.denominator * origin_s.denominator
        self._delta_s = delta_s
        self._offset_s = 0.0  # added by earlier epochs
        self._last_good: float | None = None  # of the newest frame, if its stamp was good
        self._anchor_s = 0.0  # estimates are counted from here, so that they do not drift
        self._estimates = 0
        self._apart_s = 0.0  # between the newest two good stamps
        self.last_s: float | None = None
        self.epoch = 0

    @property
    def next_s(self) -> float:
        """Time at which the next frame is due."""
        if self.last_s is None:
            return self._anchor_s
        return self._anchor_s + (self._estimates + 1) * self._delta_s

    def seconds(self, pts: int) -> float:
        """Return the time of a stamp in the current epoch, without advancing the clock."""
        return (pts * self._scale - self._start) / self._parts + self._offset_s

    def ticks(self, time_s: float) -> int:
        """Return the stamp at or before a time of the first epoch (for seeking)."""
        return int((Fraction(time_s) + self._origin_s) / self._time_base // 1)

    def advance(self, pts: int | None, peek: Callable[[], int | None]) -> tuple[float, bool]:
        """Take the next frame; return its time and whether that is an estimate.

        ``peek`` returns the stamp of the frame after it; called only if needed.
        """
        if pts is not None and self._is_plausible(self.seconds(pts), peek):
            return self._good(self.seconds(pts))
        if self.last_s is not None:
            self._estimates += 1
            self.last_s = self._anchor_s + self._estimates * self._delta_s
        else:
            after = peek()
            self._anchor_s = 0.0 if after is None else self.seconds(after) - self._delta_s
            self.last_s = self._anchor_s
        self._last_good = None
        return self.last_s, True

    def _is_plausible(self, time_s: float, peek: Callable[[], int | None]) -> bool:
        last = self.last_s
        if last is not None:
            late = time_s > last + JUMP_FRAMES * self._delta_s
            if not late and time_s >= last - EPOCH_JUMP_S:
                return True
        after = peek()
        far = last is not None and abs(time_s - last) > FAR_JUMP_S
        if after is None:
            return not far
        after_s = self.seconds(after)
        if last is None:
            return after_s >= time_s - EPOCH_JUMP_S
        if far and abs(after_s - time_s) > FOLLOWS_S:
            return False
        return abs(after_s - time_s) < abs(after_s - last)

    def _good(self, time_s: float) -> tuple[float, bool]:
        last = self.last_s
        if last is not None and time_s < last:
            if last - time_s <= EPOCH_JUMP_S:
                self._last_good = None
                return last, True
            self._offset_s += self.next_s - time_s
            time_s = self.next_s
            self.epoch += 1
        elif self._last_good is not None and time_s > self._last_good:
            before_s, self._apart_s = self._apart_s, time_s - self._last_good
            # A single long distance is a pause; two are the rate of a slow source.
            if self._apart_s <= EPOCH_JUMP_S or 0.5 <= before_s / self._apart_s <= 2.0:
                self._delta_s = self._apart_s
        self.last_s = self._last_good = self._anchor_s = time_s
        self._estimates = 0
        return time_s, False
