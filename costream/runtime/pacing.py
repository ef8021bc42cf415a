"""Keeps a step to its time while it runs: the machine may not be as fast as it was."""

from __future__ import annotations

import time
from collections.abc import Callable

_FOLLOW = 0.1  # of what a step says goes into where its gates are expected
_TRUST = 0.15  # of a step: so much time at the expected speed is taken to have gone before it
_NEAR = 0.03  # to the target, relative: the number of tokens is left alone


class Pacer:
    """Gives the tokens of a step anew at each of its gates, by the time that has gone.

    A step whose first blocks took longer than they should computes fewer tokens in the others,
    and the other way round. Where gates lie in a step is learnt from the steps before.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        """``clock`` gives seconds."""
        self._clock = clock
        self._stamps: list[float] = []  # milliseconds to each gate of the newest step
        self._counts: list[int] = []  # what each of them passed
        self._shares: list[float] = []  # of a step's time that have gone at each gate

    def begin(
        self, count: int, most: int, target_ms: float, cost_ms: Callable[[int], float]
    ) -> Callable[[int], int]:
        """Give what to ask at each gate of the step that begins now.

        ``count``: tokens that it should compute, of ``most``. ``cost_ms``: what a step with so
        many takes, by what is known before it.
        """
        self._stamps, self._counts = [], []
        least, planned = cost_ms(1), cost_ms(count)
        slope = (cost_ms(most) - least) / max(1, most - 1)  # milliseconds a token, all gates
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
        """Take how long the step took; gives the tokens that it computed, on average.

        None where no gate was asked.
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
