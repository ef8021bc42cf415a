"""Waits between attempts to reconnect."""

from __future__ import annotations

import random

FIRST_S = 0.5
LONGEST_S = 30.0
# After a refusal (a login, a path), which seldom ends soon.
REFUSED_FIRST_S = 5.0
REFUSED_LONGEST_S = 60.0


class Backoff:
    """Waits that double from FIRST_S to LONGEST_S, each randomly reduced by up to half.

    After refusals they lie between REFUSED_FIRST_S and REFUSED_LONGEST_S. The randomness keeps the
    feeds of one recorder from all reconnecting at the same moment.
    """

    def __init__(self) -> None:
        self._next_s = FIRST_S

    def next_s(self, *, refused: bool = False) -> float:
        """Return the seconds to wait now."""
        least_s = REFUSED_FIRST_S if refused else FIRST_S
        most_s = REFUSED_LONGEST_S if refused else LONGEST_S
        wait_s = min(max(self._next_s, least_s), most_s)
        self._next_s = 2 * wait_s
        return wait_s * random.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Start with FIRST_S again."""
        self._next_s = FIRST_S
