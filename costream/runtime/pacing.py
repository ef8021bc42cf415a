"""Adjustment of the token count within a step, from the time elapsed so far."""

from __future__ import annotations

import time
from collections.abc import Callable

_FOLLOW = 0.1  # smoothing factor for the gates' shares of the step time
_TRUST = 0.15  # share of a step at the expected speed that serves as prior for the speed
_NEAR = 0.03  # relative distance to the target within which the token count stays


class GateController:
    """Recomputes the token count of a step at each of its gates, from the time elapsed.

    A step whose first blocks took longer than planned computes fewer tokens in the others, and
    vice versa. The gates' positions in a step are learnt from the previous steps.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        """``clock`` returns seconds."""
        self._clock = clock
        self._stamps: list[float] = []  # milliseconds to each gate of the newest step
        self._counts: list[int] = []  # tokens passed by each of them
        self._shares: list[float] = []  # of a step's time elapsed at each gate

    def begin(
        self, count: int, most: int, target_ms: float, cost_ms: Callable[[int], float]
    ) -> Callable[[int], int]:
        """Start a step and return the function that each gate calls for its token count.

        ``count``: planned tokens, of ``most``. ``cost_ms``: predicted time of a step by its
        token count.
        """
        self._stamps, self._counts = [], []
        least, planned = cost_ms(1), cost_ms(count)
        slope = (cost_ms(most) - least) / max(1, most - 1)  # milliseconds per token, all gates
        began = self._clock()
        now = count

        def pace(gate: int) -> int:
            nonlocal now
            gone = 1e3 * (self._clock() - began)
            self._stamps.append(gone)
            if gate < len(self._shares):
                share, left = self._shares[gate], 1 - gate / len(self._shares)
                speed = (gone + _TRUST * planned) / ((share + _TRUST) * planned)
                fixed = (1 - share) * planned - left * slope * count
                over = gone + speed * (fixed + left * slope * now) - target_ms
                if abs(over) > _NEAR * target_ms:
                    now = min(most, max(1, round(now - over / (speed * left * slope))))
            self._counts.append(now)
            return now

        return pace

    def end(self, ms: float) -> int | None:
        """Take the duration of the step and return its token count, averaged over the gates.

        None when no gate was reached.
        """
        counts, self._counts = self._counts, []
        if not counts:
            return None
        shares = [stamp / ms for stamp in self._stamps]
        if len(shares) == len(self._shares):
            pairs = zip(self._shares, shares, strict=True)
            shares = [old + _FOLLOW * (new - old) for old, new in pairs]
        self._shares = shares
        return round(sum(counts) / len(counts))
