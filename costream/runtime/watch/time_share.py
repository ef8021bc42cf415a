"""The share of real time that a watch spends in the network, and the steps it leaves out."""

from __future__ import annotations

WINDOW_S = 2.0  # interval between updates of the share
FIRST_REPORT_S = 8.0  # between the first dropped step and the first message about it
REPORT_S = 60.0  # between further messages
ALMOST = 0.95  # of all steps, or of the time
ROOM = 0.9  # used of what was possible in an overload, so that the backlog is worked off


class TimeShare:
    """Keeps the network's work within a share of real time, and within what the machine can do.

    It controls the step rate: when all steps would cost more than ``share`` seconds per second,
    or were dropped because they were late, as measured in the last window, the same fraction of
    the steps of every feed is left out, evenly spread.
    """

    def __init__(self, share: float | None) -> None:
        """``share``: seconds of work per second; None: no limit."""
        self._share = share
        self._since_s: float | None = None
        self._offered = self._taken = 0
        self._spent_s = 0.0
        self._cost_s = 0.0  # per step, in the last window that had any
        self._owed: dict[int, float] = {}
        self._fit = 1.0  # fraction that the machine can run
        self._late = 0  # steps dropped, at the end of the last window
        self._busy_s = 0.0
        # Of the steps of the next message: since when they are counted (the last message, or the
        # first dropped step; None: nothing was dropped), and their numbers.
        self._counted_from_s: float | None = None
        self._counted_taken = self._counted_left_out = 0
        self._has_reported = False
        self.part = self.least_part = 1.0  # fraction of the steps to run; the least of two windows
        self.load = 0.0  # seconds of work per second, in the last window

    @property
    def limited(self) -> bool:
        """Whether there is a budget."""
        return self._share is not None

    @property
    def overloaded(self) -> bool:
        """Whether the machine, not the budget, limits the steps."""
        return self._fit <= self.part < 1.0

    def turn(self, now_s: float, late: int = 0) -> None:
        """Update ``part`` when a window has ended; call it often.

        ``late``: steps dropped so far because they were late.
        """
        if self._since_s is None:
            self._since_s = now_s
        elapsed_s = now_s - self._since_s
        if elapsed_s < WINDOW_S:
            return
        self.load = self._spent_s / elapsed_s
        if self._taken:
            self._cost_s = self._spent_s / self._taken
        lost, self._late = late - self._late, late
        offered = self._offered + lost
        busy = min(1.0, self._busy_s / elapsed_s)
        if lost and self._taken and busy:
            self._fit = min(1.0, ROOM * self._taken / busy / offered)
        elif 0 < busy < ALMOST:
            self._fit = min(1.0, self._fit * ALMOST / busy)
        wanted = self._cost_s * offered / elapsed_s
        before, self.part = self.part, self._fit
        if self._share is not None and wanted > 0:
            self.part = min(self._fit, self._share / wanted)
        self.least_part = min(before, self.part)
        self._count(offered, lost)
        self._since_s, self._spent_s, self._offered, self._taken = now_s, 0.0, 0, 0
        self._busy_s = 0.0

    def overload(self, feeds: int, *, paced: bool) -> str:
        """Return a message about steps left out since the last one; "" if there is none yet.

        ``feeds``: their number. ``paced``: the step rate can be set.
        """
        until_s = self._since_s  # end of the last window that was counted
        if self._counted_from_s is None or until_s is None:
            return ""
        seconds = until_s - self._counted_from_s
        if seconds < (REPORT_S if self._has_reported else FIRST_REPORT_S):
            return ""
        taken, left_out = self._counted_taken, self._counted_left_out
        self._counted_taken = self._counted_left_out = 0
        self._counted_from_s = until_s if left_out else None
        self._has_reported = left_out > 0
        if not left_out:
            return ""
        steps = taken + left_out
        if taken > ALMOST * steps:
            return f"{left_out} of {steps} steps dropped: this machine was too slow for a moment"
        rate_hz, fps = steps / seconds, ROOM * taken / seconds / feeds
        use = f"--fps {fps:.2g}, a smaller model" if paced else "a smaller model"
        use += " or fewer feeds" if feeds > 1 else ""
        return (
            f"{taken / seconds:.1f} of {rate_hz:.1f} steps a second: this machine is too slow for "
            f"the others; use {use}"
        )

    def _count(self, offered: int, lost: int) -> None:
        """Count the steps of a window for the next message."""
        left_out = offered - self._taken if self.overloaded else lost
        if left_out and self._counted_from_s is None:
            self._counted_from_s = self._since_s
        if self._counted_from_s is not None:
            self._counted_taken += self._taken
            self._counted_left_out += left_out

    def admit(self, feed: int) -> bool:
        """Return whether to run this feed's next step."""
        self._offered += 1
        owed = self._owed.get(feed, 1.0 - self.part) + self.part
        admitted = owed >= 1.0 - 1e-9
        self._owed[feed] = owed - 1.0 if admitted else owed
        return admitted

    def busy(self, seconds: float) -> None:
        """Add the time that a round took."""
        self._busy_s += seconds

    def spent(self, seconds: float, steps: int) -> None:
        """Add the time that ``steps`` steps took together."""
        self._spent_s += seconds
        self._taken += steps
