"""A time budget shared by all feeds: runs the same fraction of each feed's steps."""

from __future__ import annotations

WINDOW_S = 2.0


class TimeShare:
    """Keeps the network's work within a share of real time.

    It controls the step rate: when all steps would cost more than ``share`` seconds per second,
    as measured in the last window, the same fraction of every feed's steps is left out, evenly
    spread.
    """

    def __init__(self, share: float | None) -> None:
        """``share``: seconds of work per second; None: no limit."""
        self._share = share
        self._since_s: float | None = None
        self._offered = self._taken = 0
        self._spent_s = 0.0
        self._cost_s = 0.0  # per step, in the last window that had any
        self._owed: dict[int, float] = {}
        self.part = 1.0  # fraction of the steps to run
        self.load = 0.0  # seconds of work per second, in the last window

    @property
    def limited(self) -> bool:
        """Whether there is a budget."""
        return self._share is not None

    def turn(self, now_s: float) -> None:
        """Update ``part`` when a window has ended; call it often."""
        if self._since_s is None:
            self._since_s = now_s
        elapsed_s = now_s - self._since_s
        if elapsed_s < WINDOW_S:
            return
        self.load = self._spent_s / elapsed_s
        if self._taken:
            self._cost_s = self._spent_s / self._taken
        wanted = self._cost_s * self._offered / elapsed_s
        if self._share is not None:
            self.part = min(1.0, self._share / wanted) if wanted > 0 else 1.0
        self._since_s, self._spent_s, self._offered, self._taken = now_s, 0.0, 0, 0

    def admit(self, feed: int) -> bool:
        """Return whether to run this feed's next step."""
        self._offered += 1
        owed = self._owed.get(feed, 1.0 - self.part) + self.part
        admitted = owed >= 1.0 - 1e-9
        self._owed[feed] = owed - 1.0 if admitted else owed
        return admitted

    def spent(self, seconds: float, steps: int) -> None:
        """Add the time that ``steps`` steps took together."""
        self._spent_s += seconds
        self._taken += steps
