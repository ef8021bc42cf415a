"""Controller of a stream's token count: keeps its steps within a budget."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from costream.models.base import GatedModel, StepResult
from costream.runtime.budget.budget import NEAR, Budget, BudgetController, BudgetFile

log = logging.getLogger("costream")
_SMOOTHING = 0.1  # weight of the newest step in the gates' shares of the step time
_PRIOR = 0.15  # share of a step at the expected speed that serves as prior for the speed


class TokenController:
    """Controls one stream of a model: call ``before`` and ``after`` each step."""

    def __init__(self, model: GatedModel, budget: Budget | BudgetFile, rate_hz: float) -> None:
        """``budget``: one in a file may change. ``rate_hz``: steps per second.

        The budget is for steps with an output: those between outputs cost next to nothing.
        """
        self._model = model
        self._file = budget if isinstance(budget, BudgetFile) else None
        first = budget.budget if isinstance(budget, BudgetFile) else budget
        self._controller = BudgetController(first, rate_hz / model.info.stride)
        self._state: Any = None
        self._gates = GateController()
        self._macs: Callable[[int], float] | None = None  # by token count; None: first frame
        self._count = 0  # planned tokens of the step
        self._warned = False

    @property
    def step_budget(self) -> dict[str, float]:
        """The maximum cost of the next step, by its field of Compute."""
        return {f"budget_{self._controller.budget.unit}": self._controller.target}

    def before(self, state: Any) -> None:
        """Set the token count for the next step of the stream with this state."""
        controller, model, self._state = self._controller, self._model, state
        if self._file is not None and self._file.current() is not controller.budget:
            controller.set(self._file.budget)
            self._warned = False
        most = model.token_count(state)
        if most is None:  # the first frame, computed in full
            self._macs = None
            return
        self._macs = macs = partial(model.step_macs, state)
        self._count = count = controller.tokens(most, macs)
        cost_ms = controller.cost_ms(macs)
        state.tokens = count
        state.pace = self._gates.begin(count, most, controller.target, cost_ms) if cost_ms else None

    def after(self, result: StepResult) -> None:
        """Take the result of the step and its cost (B = 1)."""
        if result.tokens is None:  # no output
            return
        in_full = result.tokens[0] == self._model.token_count(self._state)
        ms = 1e3 * (result.frontend_s + result.network_s)
        count = self._gates.end(ms) or self._count
        foreseen = None if in_full or self._macs is None else self._macs(count)
        self._controller.observe(result.macs, ms, foreseen)
        if not self._controller.reachable and not self._warned:
            self._warned = True
            text = self._controller.budget.text
            log.warning("a step exceeds the budget of %s even with a single token", text)


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
            elapsed = 1e3 * (self._clock() - began)
            self._stamps.append(elapsed)
            if gate < len(self._shares):
                share, left = self._shares[gate], 1 - gate / len(self._shares)
                speed = (elapsed + _PRIOR * planned) / ((share + _PRIOR) * planned)
                fixed = (1 - share) * planned - left * slope * count
                over = elapsed + speed * (fixed + left * slope * now) - target_ms
                if abs(over) > NEAR * target_ms:
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
            shares = [old + _SMOOTHING * (new - old) for old, new in pairs]
        self._shares = shares
        return round(sum(counts) / len(counts))
