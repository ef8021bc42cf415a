"""Controller of a stream's token count: keeps its steps within a budget."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from costream.models.base import GatedModel, StepResult
from costream.runtime.budget.budget import Budget, BudgetController
from costream.runtime.budgetfile import BudgetFile
from costream.runtime.pacing import GateController

log = logging.getLogger("costream")


class TokenController:
    """Controls one stream of a model: call ``before`` and ``after`` each step."""

    def __init__(self, model: GatedModel, budget: Budget | BudgetFile, rate_hz: float) -> None:
        """``budget``: one in a file may change. ``rate_hz``: steps per second.

        The budget is for steps with an output: those between outputs cost next to nothing.
        """
        self._model = model
        self._file = budget if isinstance(budget, BudgetFile) else None
        first = budget.budget if isinstance(budget, BudgetFile) else budget
        self._controller = BudgetController(first, rate_hz / model.stride)
        self._state: Any = None
        self._pacer = GateController()
        self._macs: Callable[[int], float] | None = None  # by token count; None: first frame
        self._count = 0  # planned tokens of the step
        self._told = False

    @property
    def target(self) -> float:
        """The maximum cost of the next step: milliseconds, or MACs for a budget in MACs."""
        return self._controller.target

    def before(self, state: Any) -> None:
        """Set the token count for the next step of the stream with this state."""
        controller, model, self._state = self._controller, self._model, state
        if self._file is not None and self._file.look() is not controller.budget:
            controller.set(self._file.budget)
            self._told = False
        most = model.token_count(state)
        if most is None:  # the first frame, computed in full
            self._macs = None
            return
        self._macs = macs = partial(model.step_macs, state)
        self._count = count = controller.tokens(most, macs)
        cost_ms = controller.cost_ms(macs)
        pace = self._pacer.begin(count, most, self.target, cost_ms) if cost_ms else None
        model.set_tokens(state, count, pace)

    def after(self, result: StepResult) -> None:
        """Take the result of the step and its cost (B = 1)."""
        if result.tokens is None:  # no output
            return
        in_full = result.tokens[0] == self._model.token_count(self._state)
        ms = 1e3 * (result.frontend_s + result.network_s)
        count = self._pacer.end(ms) or self._count
        foreseen = None if in_full or self._macs is None else self._macs(count)
        self._controller.observe(result.macs, ms, foreseen)
        if not self._controller.reachable and not self._told:
            self._told = True
            text = self._controller.budget.text
            log.warning("a step exceeds the budget of %s even with a single token", text)
