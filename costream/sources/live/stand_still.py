"""Detection of time stamps that do not advance."""

from __future__ import annotations

import math

# Stamps stand still if they advance by less than STILL_RATE for this many frames and seconds.
STILL_FRAMES = 6
STILL_S = 0.5
STILL_RATE = 0.05


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
