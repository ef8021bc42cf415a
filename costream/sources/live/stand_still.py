"""Detection of time stamps that do not advance."""

from __future__ import annotations

import math

# Frames, and seconds, for which the stamps hardly advance: they stand still.
STILL_FRAMES, STILL_S, STILL_RATE = 6, 0.5, 0.05


class StandStill:
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
