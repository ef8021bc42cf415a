"""Comparison of a feed's time stamps with the arrival of its data."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from itertools import islice

# Stamps stand still if they advance by less than STILL_RATE for this many frames and seconds.
STILL_FRAMES = 6
STILL_S = 0.5
STILL_RATE = 0.05
BIN_S = 0.5
# Spans of measurement: a clear error is found after the first, others after the second. Bursts
# (segments of HLS) need longer ones.
SPANS_S = (5.0, 10.0, 20.0, 40.0, 80.0, 160.0)
CLEAR = 0.25
# Smaller differences between clocks are corrected by the slewing of FeedClock.
LEAST = 0.025
LATE_S = 0.2  # minimum error in addition to the longest pause between arrivals
EVEN = 0.3  # maximum deviation from a line, as part of the error: a step is a new network path
# Minimum part of the time that a reader waits if it keeps up; else arrival times are unknown.
IDLE = 0.1
MOST = 20.0  # stamps with a higher rate stand still
SAME_S = 2e-6  # maximum difference of equal times of sender clock and stamps
SAME_RATE = 0.01  # maximum relative difference of equal rates of both


@dataclass
class _Bin:
    """Data that arrived within BIN_S: the values with the least delay, and common values."""

    begin_s: float
    waited_s: float | None  # total time the reader has waited until then
    pause_s: float  # the longest before any of them
    media_s: float
    arrived_s: float
    sent_s: float | None

    def delay_s(self, scale: float) -> float:
        return self.arrived_s - scale * self.media_s


class StampRate:
    """Measures how many seconds pass while the stamps of a connection advance by one.

    Only the minimum delays are used: data are late for many reasons. On a slow network they grow
    too, so if the sender reports its clock (RTCP) and the stamps follow it, they are right.
    """

    def __init__(self) -> None:
        self._bins: deque[_Bin] = deque()
        self._arrived_s = 0.0
        self._count = 0  # of bins
        self._found: list[_Bin] = []  # what has been measured
        self.confirmed = False  # the stamps follow the clock of the sender
        self.refuted = False  # they do not

    def restart(self) -> None:
        """Handle a jump of the stamps, or a new connection."""
        self._bins.clear()
        self.confirmed = False

    def add(
        self,
        media_s: float,
        arrived_s: float,
        scale: float,
        waited_s: float | None = None,
        sent_s: float | None = None,
    ) -> float | None:
        """Add data; return the rate of their stamps if it is found to differ from ``scale``.

        ``waited_s``: time that the reader has waited for data in all; None: it keeps up.
        ``sent_s``: time of the data on the clock of the sender.
        """
        bins = self._bins
        pause_s = arrived_s - self._arrived_s if bins else 0.0
        self._arrived_s = arrived_s
        if not bins or arrived_s >= bins[-1].begin_s + BIN_S:
            while bins and bins[0].begin_s < arrived_s - SPANS_S[-1] - BIN_S:
                bins.popleft()
            bins.append(_Bin(arrived_s, waited_s, pause_s, media_s, arrived_s, sent_s))
            return self._measure(arrived_s, scale)
        newest = bins[-1]
        newest.pause_s = max(newest.pause_s, pause_s)
        if arrived_s - scale * media_s < newest.delay_s(scale):
            newest.media_s, newest.arrived_s, newest.sent_s = media_s, arrived_s, sent_s
        return None

    def delay_s(self, scale: float) -> float:
        """Return the least delay of what was measured, for stamps that are multiplied by this."""
        return min(bin_.delay_s(scale) for bin_ in self._found)

    def _measure(self, now_s: float, scale: float) -> float | None:
        self.confirmed = False
        self._count += 1
        for k, span_s in enumerate(SPANS_S):
            if self._count % 2**k or self._bins[0].begin_s > now_s - span_s + BIN_S:
                return None
            thirds = self._thirds(now_s - span_s, span_s / 3)
            if all(thirds) and all(map(_kept_up, thirds)):
                rate = self._over(thirds, scale, span_s)
                if rate is not None:  # earlier data had another rate
                    while self._bins[0].begin_s < now_s - span_s:
                        self._bins.popleft()
                if rate is not None or self.confirmed:
                    return rate
        return None

    def _thirds(self, begin_s: float, length_s: float) -> list[list[_Bin]]:
        """Return the bins of three consecutive spans, without the newest bin."""
        thirds: list[list[_Bin]] = [[], [], []]
        for bin_ in islice(reversed(self._bins), 1, None):
            if bin_.begin_s < begin_s:
                break
            thirds[min(2, int((bin_.begin_s - begin_s) / length_s))].insert(0, bin_)
        return thirds

    def _over(self, thirds: list[list[_Bin]], scale: float, span_s: float) -> float | None:
        first, middle, last = (min(third, key=lambda b: b.delay_s(scale)) for third in thirds)
        pause_s = max(bin_.pause_s for third in thirds for bin_ in third)
        agrees = _follow_sender(first, last, span_s)
        elapsed_s, media_s = last.arrived_s - first.arrived_s, last.media_s - first.media_s
        self.confirmed = agrees is True
        self.refuted = agrees is False and last.sent_s is not None
        if agrees is not False or media_s <= 0:
            return None
        error_s = last.delay_s(scale) - first.delay_s(scale)
        part = error_s / elapsed_s
        if abs(error_s) < LATE_S + pause_s or abs(part) < LEAST:
            return None
        if span_s < SPANS_S[1] and part < CLEAR:
            return None
        self._found = [first, middle, last]
        through = (middle.delay_s(scale) - first.delay_s(scale)) / error_s
        if abs(through - (middle.arrived_s - first.arrived_s) / elapsed_s) > EVEN:
            return None
        return min(max(elapsed_s / media_s, 1 / MOST), MOST)


def _kept_up(bins: list[_Bin]) -> bool:
    """Return whether the reader waited for data, so that they were read when they arrived."""
    first, last = bins[0], bins[-1]
    if first.waited_s is None or last.waited_s is None:
        return True
    return last.waited_s - first.waited_s >= IDLE * (last.begin_s - first.begin_s)


def _follow_sender(first: _Bin, last: _Bin, span_s: float) -> bool | None:
    """Return whether the stamps follow the clock of the sender; None: unknown yet."""
    if first.sent_s is None or last.sent_s is None:
        return False
    media_s = last.media_s - first.media_s
    off_s = abs(last.sent_s - first.sent_s - media_s)
    if off_s < SAME_S:  # the sender has not reported its time in between
        return None if span_s < SPANS_S[2] else False
    return off_s < SAME_RATE * media_s


class StandStill:
    """Detects that the stamps of frames hardly advance while time passes."""

    def __init__(self) -> None:
        self._newest_s = -math.inf  # stamp
        self.restart()

    def restart(self, *, found: bool = False) -> None:
        """Start again with this result."""
        self.found = found
        self._count, self._passed_s = 0, 0.0  # of frames that contradict ``found``

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
