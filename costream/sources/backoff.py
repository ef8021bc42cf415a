"""Exponential backoff with jitter for reconnection attempts."""

from __future__ import annotations

import random

FIRST_S = 0.5
LONGEST_S = 30.0


class Backoff:
    """Waits that double from FIRST_S to LONGEST_S, each randomly reduced by up to half.

    The randomness keeps the feeds of one recorder from all reconnecting at the same moment.
    """

    def __init__(self) -> None:
        self._next_s = FIRST_S

    def next_s(self) -> float:
        """Return the seconds to wait now."""
        wait_s = self._next_s * random.uniform(0.5, 1.0)
        self._next_s = min(2 * self._next_s, LONGEST_S)
        return wait_s

    def reset(self) -> None:
        """Start with FIRST_S again."""
        self._next_s = FIRST_S
