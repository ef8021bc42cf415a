"""Cost budgets per step, and a controller that chooses the token count to meet them."""

from __future__ import annotations

import logging
import math
import re
import statistics
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from costream.errors import UsageError

log = logging.getLogger("costream")
Unit = Literal["ms", "macs"]
_TIME = re.compile(r"([0-9.]+)\s*(ms|s)", re.IGNORECASE)
_SHARE = re.compile(r"([0-9.]+)\s*x", re.IGNORECASE)
_MACS = re.compile(r"([0-9.]+)\s*([kMGT]?)MACs?", re.IGNORECASE)
_PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_MEMORY = 0.95  # forgetting factor per step of the regression line
_TRUST = 0.05  # relative spread of operations above which the fitted slope is trusted
_LEAST = 0.5  # least slope, relative to that of the line through the origin
_FOLLOW = 0.1  # share of a step's (log) error by which the load factor is corrected
_FAR = 0.12  # relative error above which a step is an outlier or the load has changed
_IN_A_ROW = 3  # consecutive outliers that mean the load has changed
_COUNTED = 5  # steps whose ratio of actual to predicted operations is remembered
NEAR = 0.03  # relative distance to the target within which the token count stays
_CHECK_S = 0.5  # interval at which a file is checked


@dataclass(frozen=True)
class Budget:
    """The maximum cost of a step. ``text``: as the user wrote it."""

    text: str
    amount: float  # milliseconds, MACs, or seconds of work per second
    kind: Literal["ms", "macs", "share"]

    @classmethod
    def parse(cls, text: str) -> Budget:
        """Parse "40ms", "0.1s", "20GMAC" or "0.5x" (a share of real time); else UsageError."""
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
        raise UsageError(f"{text!r} is not a valid budget", where="--budget", hint=hint)

    @classmethod
    def _checked(cls, text: str, amount: float, kind: Literal["ms", "macs", "share"]) -> Budget:
        if not (math.isfinite(amount) and amount > 0):
            raise ValueError
        return cls(text, amount, kind)

    @property
    def unit(self) -> Unit:
        """The unit of ``target``."""
        return "macs" if self.kind == "macs" else "ms"

    def target(self, rate_hz: float) -> float:
        """Return the maximum cost of a step at this step rate, in ``unit``."""
        return 1e3 * self.amount / rate_hz if self.kind == "share" else self.amount


class CostModel:
    """Predicts the milliseconds of a step from its operations, updated by every measured step.

    A line fitted to the measurements, with exponential forgetting: a constant part plus a part
    proportional to the operations. As long as all steps cost about the same, the line goes
    through the origin. It is multiplied by a load factor of the machine, which follows slowly,
    so that noise has little effect, but jumps when several steps in a row are far from it.
    """

    def __init__(self) -> None:
        self._sums = [0.0] * 5  # of weights, x, y, x x and x y; x: operations, y: milliseconds
        self._busy = 1.0
        self._far: list[float] = []  # load factors of the newest consecutive outliers

    @property
    def known(self) -> bool:
        """Whether any step has been measured."""
        return self._sums[0] > 0

    def observe(self, macs: float, ms: float) -> None:
        """Update the model with the measured cost of a step."""
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
        """Return the predicted milliseconds of a step with ``macs`` operations."""
        return self._busy * self._line(macs)

    def _line(self, macs: float) -> float:
        """Return the line's value: least squares, the slope regularised towards the origin's."""
        x, y, xx, xy = (s / self._sums[0] for s in self._sums[1:])
        spread, product = max(0.0, xx - x * x), xy - x * y
        prior = (_TRUST * x) ** 2
        slope = (product + prior * y / x) / (spread + prior)
        # Most of a step is proportional to its operations, and no cost is negative.
        slope = min(max(slope, _LEAST * y / x), y / x)
        return y + slope * (macs - x)


class BudgetController:
    """Chooses the token count of each step so that its cost stays within the budget.

    For each step, call ``tokens`` before it and ``observe`` after it. The count is the largest
    whose predicted cost is within the target; it is not changed while that cost is near the
    target, so that noise has no effect.
    """

    def __init__(self, budget: Budget, rate_hz: float) -> None:
        """``rate_hz``: steps per second, for a budget that is a share of real time."""
        self._rate_hz = rate_hz
        self._times = CostModel()
        self._counted: deque[float] = deque(maxlen=_COUNTED)  # actual / predicted MACs
        self._chosen: int | None = None
        self.set(budget)

    def set(self, budget: Budget) -> None:
        """Change the budget, from the next step on."""
        self.budget, self.target = budget, budget.target(self._rate_hz)
        self.reachable = True  # False: even a single token exceeds the target

    def tokens(self, most: int, macs: Callable[[int], float]) -> int:
        """Return the largest token count up to ``most`` within budget; ``macs``: cost by count."""
        cost = self._cost(macs)
        if cost is None:
            return most
        self.reachable = cost(1) <= self.target
        last = self._chosen
        if last is not None and last <= most and abs(cost(last) / self.target - 1) < NEAR:
            return last
        low, high = 1, most
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if cost(middle) <= self.target else (low, middle - 1)
        self._chosen = low
        return low

    def observe(self, macs: float, ms: float, foreseen: float | None) -> None:
        """Update the cost model with the measured cost of a step.

        ``foreseen``: the predicted operations for its tokens; None where the step was computed
        in full, which tells nothing about them.
        """
        self._times.observe(macs, ms)
        if foreseen is not None:
            self._counted.append(macs / foreseen)

    def cost_ms(self, macs: Callable[[int], float]) -> Callable[[int], float] | None:
        """Return a function from token count to predicted milliseconds of a step.

        None before the first measurement, or when the budget is in operations.
        """
        return None if self.budget.unit == "macs" else self._cost(macs)

    def _cost(self, macs: Callable[[int], float]) -> Callable[[int], float] | None:
        """Return a function from token count to cost in the budget's unit; None: not known yet."""
        share = statistics.median(self._counted) if self._counted else 1.0
        if self.budget.unit == "macs":
            return lambda count: share * macs(count)
        if not self._times.known:
            return None
        return lambda count: self._times.ms(share * macs(count))


def parse_budget(text: str) -> Budget | BudgetFile:
    """Parse a budget, or for @FILE read it from that file. Raises UsageError."""
    return BudgetFile(text[1:]) if text.startswith("@") else Budget.parse(text)


class BudgetFile:
    """The budget in a text file, read again when the file has changed."""

    def __init__(self, path: Path | str) -> None:
        """Read the file. Raises UsageError when it cannot be read or holds no valid budget."""
        self._path = Path(path)
        self.text = f"@{path}"  # as the user wrote it
        self._checked_s = time.monotonic()
        self._stamp = self._changed()
        self.budget = self._read()

    def current(self) -> Budget:
        """Return the current budget; the previous one while the file holds no valid budget."""
        now_s = time.monotonic()
        if now_s - self._checked_s < _CHECK_S:
            return self.budget
        self._checked_s = now_s
        stamp = self._changed()
        if stamp == self._stamp:
            return self.budget
        self._stamp = stamp
        try:
            self.budget = self._read()
            log.info("%s: the budget is now %s", self._path, self.budget.text)
        except UsageError as error:
            log.warning("%s; the budget stays at %s", error, self.budget.text)
        return self.budget

    def _changed(self) -> tuple[int, int] | None:
        try:
            stat = self._path.stat()
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_size

    def _read(self) -> Budget:
        try:
            text = self._path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
            raise UsageError(f"the budget cannot be read ({reason})", where=self._path) from error
        return Budget.parse(text)
