"""A budget for what a step may cost, and the number of tokens that keeps it."""

from __future__ import annotations

import math
import re
import statistics
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from costream.errors import UsageError

Unit = Literal["ms", "macs"]

_TIME = re.compile(r"([0-9.]+)\s*(ms|s)", re.IGNORECASE)
_SHARE = re.compile(r"([0-9.]+)\s*x", re.IGNORECASE)
_MACS = re.compile(r"([0-9.]+)\s*([kMGT]?)MACs?", re.IGNORECASE)
_PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}

_MEMORY = 0.95  # of a step's weight in the line is left after the next one
_TRUST = 0.05  # spread of operations, relative, from which the line goes by its own slope
_LEAST = 0.5  # of the slope, over that through the origin
_FOLLOW = 0.1  # of how far a step was off goes into what is expected of the next
_FAR = 0.12  # off, relative: noise, or another state of affairs
_IN_A_ROW = 3  # steps that are far off make it that
_COUNTED = 5  # steps whose operations say how many those of the next will be
_NEAR = 0.03  # to the target, relative: the number of tokens is left alone


@dataclass(frozen=True)
class Budget:
    """What a step may cost. ``text``: as it was written."""

    text: str
    amount: float  # milliseconds, MACs, or seconds of work a second
    kind: Literal["ms", "macs", "share"]

    @classmethod
    def parse(cls, text: str) -> Budget:
        """Read "40ms", "0.1s", "20GMAC" or "0.5x" (a share of real time). UsageError otherwise."""
        word = text.strip()
        try:
            if match := _TIME.fullmatch(word):
                ms = float(match[1]) * (1.0 if match[2].lower() == "ms" else 1e3)
                return cls._checked(word, ms, "ms")
            if match := _MACS.fullmatch(word):
                return cls._checked(word, float(match[1]) * _PREFIXES[match[2].lower()], "macs")
            if match := _SHARE.fullmatch(word):
                return cls._checked(word, float(match[1]), "share")
        except ValueError:
            pass
        hint = "write a time (40ms), operations (20GMAC) or a share of real time (0.5x)"
        raise UsageError(f"{text!r} is no budget", where="--budget", hint=hint)

    @classmethod
    def _checked(cls, text: str, amount: float, kind: Literal["ms", "macs", "share"]) -> Budget:
        if not (math.isfinite(amount) and amount > 0):
            raise ValueError
        return cls(text, amount, kind)

    @property
    def unit(self) -> Unit:
        """What ``target`` is in."""
        return "macs" if self.kind == "macs" else "ms"

    def target(self, rate_hz: float) -> float:
        """Give what a step may cost at this step rate, in ``unit``."""
        return 1e3 * self.amount / rate_hz if self.kind == "share" else self.amount


class CostModel:
    """Milliseconds of a step from its operations, corrected by every step that is measured.

    A line through what was measured, older steps counting less: a part that a step costs in any
    case, and one in proportion to its operations. As long as all steps cost about the same, the
    line goes through the origin. On it stands how busy the machine is: a factor that follows
    slowly, so that noise moves little, but at once when some steps in a row are far from it.
    """

    def __init__(self) -> None:
        self._sums = [0.0] * 5  # of weights, x, y, x x and x y; x: operations, y: milliseconds
        self._busy = 1.0
        self._far: list[float] = []  # what the newest steps in a row say, that all were far off

    @property
    def known(self) -> bool:
        """Whether anything was measured."""
        return self._sums[0] > 0

    def observe(self, macs: float, ms: float) -> None:
        """Take what a step cost."""
        if self.known:
            ratio = ms / self._line(macs)
            off = math.log(ratio / self._busy)
            if abs(off) > _FAR:
                same = self._far and (self._far[-1] > self._busy) == (off > 0)
                self._far = [*(self._far if same else []), ratio]
                if len(self._far) < _IN_A_ROW:
                    return
                self._busy = statistics.median(self._far)
            else:
                self._busy *= math.exp(_FOLLOW * off)
            self._far = []
        calm = ms / self._busy
        new = (1.0, macs, calm, macs * macs, macs * calm)
        self._sums = [_MEMORY * s + v for s, v in zip(self._sums, new, strict=True)]

    def ms(self, macs: float) -> float:
        """Give about what a step of so many operations takes."""
        return self._busy * self._line(macs)

    def _line(self, macs: float) -> float:
        """Give the line: least squares, with a slope that is drawn to that through the origin."""
        x, y, xx, xy = (s / self._sums[0] for s in self._sums[1:])
        spread, product = max(0.0, xx - x * x), xy - x * y
        prior = (_TRUST * x) ** 2
        slope = (product + prior * y / x) / (spread + prior)
        # Work is most of a step, and none costs less than nothing.
        slope = min(max(slope, _LEAST * y / x), y / x)
        return y + slope * (macs - x)


class Controller:
    """Chooses the tokens of each step so that it costs what the budget allows.

    For each step: ``tokens`` before it, ``observe`` after it. The number is the largest whose
    cost, by what was measured so far, is within the target; it is left as it is while that cost
    is near the target, so that noise moves nothing.
    """

    def __init__(self, budget: Budget, rate_hz: float) -> None:
        """``rate_hz``: steps a second, for a budget that is a share of real time."""
        self._rate_hz = rate_hz
        self._times = CostModel()
        self._counted: deque[float] = deque(maxlen=_COUNTED)  # really spent, over foreseen
        self._chosen: int | None = None
        self.set(budget)

    def set(self, budget: Budget) -> None:
        """Change the budget; the next step is chosen by it."""
        self.budget, self.target = budget, budget.target(self._rate_hz)
        self.reachable = True  # False: not even the fewest tokens cost so little

    def tokens(self, most: int, macs: Callable[[int], float]) -> int:
        """Give how many of ``most`` tokens to update; ``macs``: what a step costs with so many."""
        cost = self._cost(macs)
        if cost is None:
            return most
        self.reachable = cost(1) <= self.target
        last = self._chosen
        if last is not None and last <= most and abs(cost(last) / self.target - 1) < _NEAR:
            return last
        low, high = 1, most
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if cost(middle) <= self.target else (low, middle - 1)
        self._chosen = low
        return low

    def observe(self, macs: float, ms: float, foreseen: float | None) -> None:
        """Take what a step cost.

        ``foreseen``: the operations that its tokens should have cost; None where it was computed
        in full, which says nothing about that.
        """
        self._times.observe(macs, ms)
        if foreseen is not None:
            self._counted.append(macs / foreseen)

    def cost_ms(self, macs: Callable[[int], float]) -> Callable[[int], float] | None:
        """Give how many milliseconds a step with so many tokens takes.

        None where that is not known, or the budget is one of operations.
        """
        return None if self.budget.unit == "macs" else self._cost(macs)

    def _cost(self, macs: Callable[[int], float]) -> Callable[[int], float] | None:
        """Give what a step with so many tokens costs, in the budget's unit; None: not known."""
        share = statistics.median(self._counted) if self._counted else 1.0
        if self.budget.unit == "macs":
            return lambda count: share * macs(count)
        if not self._times.known:
            return None
        return lambda count: self._times.ms(share * macs(count))
