"""Media time: presentation time stamps to seconds that never run backwards."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

# A time stamp that is further back than this may start a new epoch (recordings joined, a clock
# that was reset); less is a picture out of order.
EPOCH_JUMP_S = 1.0
# A pause of more than this many frames is a jump too, to be believed only if the next agrees.
JUMP_FRAMES = 4
# After a jump of more than an hour the next frame must also follow within this time.
FAR_JUMP_S = 3600.0
FOLLOWS_S = 10.0


class MediaClock:
    """Turns the time stamps of one stream into seconds, monotonic whatever the stream says.

    Time is pts x time_base - origin, computed with integers. A missing stamp continues with the
    last good distance between two frames. A stamp that jumps is believed if the one after it is
    nearer to it than to the one before; else it is damaged (one wrong bit can mean a day) and
    counts as missing. After a jump backwards a new epoch goes on where the old one ended.
    """

    def __init__(self, time_base: Fraction, origin_s: Fraction, delta_s: float) -> None:
        """``origin_s``: what counts as 0 s. ``delta_s``: nominal distance of two frames."""
        self._time_base = time_base
        self._origin_s = origin_s
        self._delta_s = delta_s
        self._offset_s = 0.0  # what earlier epochs add
        self._last_good: float | None = None  # of the newest frame, when its stamp was good
        self._anchor_s = 0.0  # estimates are counted from here, so that they do not drift
        self._estimates = 0
        self.last_s: float | None = None
        self.epoch = 0

    @property
    def next_s(self) -> float:
        """When the next frame is due."""
        if self.last_s is None:
            return self._anchor_s
        return self._anchor_s + (self._estimates + 1) * self._delta_s

    def seconds(self, pts: int) -> float:
        """Give the time of a stamp in the present epoch, without moving the clock."""
        at = pts * self._time_base - self._origin_s
        return at.numerator / at.denominator + self._offset_s

    def ticks(self, time_s: float) -> int:
        """Give the stamp at or before a time of the first epoch (for seeking)."""
        return int((Fraction(time_s) + self._origin_s) / self._time_base // 1)

    def advance(self, pts: int | None, peek: Callable[[], int | None]) -> tuple[float, bool]:
        """Take the next frame; give its time and whether that is an estimate.

        ``peek`` gives the stamp of the frame after it; called only when that is needed.
        """
        if pts is not None and self._believed(self.seconds(pts), peek):
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

    def _believed(self, time_s: float, peek: Callable[[], int | None]) -> bool:
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
        elif self._last_good is not None and 0 < time_s - self._last_good <= EPOCH_JUMP_S:
            self._delta_s = time_s - self._last_good
        self.last_s = self._last_good = self._anchor_s = time_s
        self._estimates = 0
        return time_s, False
