"""Controllers of a stream: keep its steps within a budget, by their tokens or by their looks."""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from costream.core.errors import UsageError
from costream.core.units import si
from costream.models.base import CountedModel, GatedModel, Looks, Model, StepResult
from costream.options.budget import Budget, BudgetFile

log = logging.getLogger("costream")
_SMOOTHING = 0.1  # weight of the newest step in the gates' shares of the step time
_PRIOR = 0.15  # share of a step at the expected speed that serves as prior for the speed
_MEMORY = 0.95  # forgetting factor per step of the regression line
_TRUST = 0.05  # relative spread of operations above which the fitted slope is trusted
_LEAST = 0.5  # least slope, relative to that of the line through the origin
_FOLLOW = 0.1  # share of a step's (log) error by which the load factor is corrected
_FAR = 0.12  # relative error above which a step is an outlier or the load has changed
_IN_A_ROW = 3  # consecutive outliers that mean the load has changed
_COUNTED = 5  # steps whose ratio of actual to predicted operations is remembered
_SAVED_S = 1.0  # seconds of budget that a stream in which nothing changes saves for later
_DUE_S = 2.0  # since its newest run, after which a network goes before the others
_STARVED_S = 4.0  # since its newest run, after which it runs in any case
_DEBT_S = 16.0  # of budget, by which the account is overdrawn where a budget cannot be kept
_PRICE = 2.0  # gain for cost, to its mean, that a run needs with an empty account
NEAR = 0.03  # relative distance to the target within which the token count stays


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
    def has_measured(self) -> bool:
        """Whether any step has been measured."""
        return self._sums[0] > 0

    def observe(self, macs: float, ms: float) -> None:
        """Update the model with the measured cost of a step."""
        if self.has_measured:
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
        unloaded_ms = ms / self._busy
        new = (1.0, macs, unloaded_ms, macs * macs, macs * unloaded_ms)
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
        self.budget, self.target = budget, budget.target(self._rate_hz)  # of a part: see tokens
        self.reachable = True  # False: even a single token exceeds the target

    def tokens(self, most: int, macs: Callable[[int], float]) -> int:
        """Return the largest token count up to ``most`` within budget; ``macs``: cost by count."""
        cost = self._cost(macs)
        if cost is None:
            return most
        if self.budget.kind == "part":
            self.target = self.budget.target(self._rate_hz, cost(most))
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
        in full.
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
        """Return a function from token count to cost in the budget's unit; None before a step."""
        share = statistics.median(self._counted) if self._counted else 1.0
        if self.budget.unit == "macs":
            return lambda count: share * macs(count)
        if not self._times.has_measured:
            return None
        return lambda count: self._times.ms(share * macs(count))


class TokenController:
    """Controls one stream of a model: call ``before`` and ``after`` each step."""

    decides = True  # on each step

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
        self._warned, self._exceeded = False, 0  # steps in a row

    @property
    def step_budget(self) -> dict[str, float]:
        """The maximum cost of the next step, by its field of Compute; empty if not known yet."""
        return _limit(self._controller.budget, self._controller.target)

    def before(self, state: Any) -> None:
        """Set the token count for the next step of the stream with this state."""
        controller, model, self._state = self._controller, self._model, state
        if self._file is not None and self._file.current() is not controller.budget:
            controller.set(self._file.budget)
            self._warned, self._exceeded = False, 0
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
        ms = 1e3 * (result.frontend_s + result.network_s)
        passed = self._gates.end(ms)
        count = passed or self._count
        in_full = result.tokens[0] == self._model.token_count(self._state)
        if self._state.pace is not None:  # a stream that starts has no gates, masked or not
            in_full = in_full or passed is None
        else:
            in_full = in_full or result.tokens[0] > count
        foreseen = None if in_full or self._macs is None else self._macs(count)
        self._controller.observe(result.macs, ms, foreseen)
        self._exceeded = 0 if self._controller.reachable else self._exceeded + 1
        if self._exceeded == _IN_A_ROW and not self._warned:  # fewer may be complete on purpose
            self._warned = True
            text = self._controller.budget.text
            log.warning("a step exceeds the budget of %s even with a single token", text)


@dataclass
class _Head:
    """A network that shares a budget."""

    cost: float | None = None  # mean of its runs, in the unit of the budget; None: not known
    refused: int | None = None  # the step in which it was refused although it was due


class LookController:
    """Shares the budget of one stream among its networks: the steps keep it on average.

    Each step adds the budget and takes its cost from an account. A network runs while the account
    is not overdrawn, if what it gains for its cost is worth it: the emptier the account, the more
    compared to the mean of all requests. What was saved is kept for up to ``_SAVED_S``. A network
    that has not run for ``_DUE_S`` is due, and the others wait until it has run; after
    ``_STARVED_S`` it runs although the account is overdrawn. If that, or what every step takes, is
    more than the budget, this is reported once.
    """

    def __init__(
        self, budget: Budget | BudgetFile, rate_hz: float, *, decides: bool = True
    ) -> None:
        """``budget``: one in a file may change. ``rate_hz``: steps per second.

        ``decides``: whether there are networks that ask; if not, it watches over the budget only.
        """
        self.decides = decides
        self._file = budget if isinstance(budget, BudgetFile) else None
        self._budget = budget.budget if isinstance(budget, BudgetFile) else budget
        self._rate_hz = rate_hz
        self._begin()

    def _begin(self) -> None:
        self._account = 0.0
        self._heads: dict[str, _Head] = {}
        self._worth: float | None = None  # mean of gain for cost
        self._dense_macs = math.inf  # mean of the steps; infinite before the first
        self._share = 1.0  # of the steps that can have a look
        self._steps = 0
        self._warned = False

    @property
    def target(self) -> float:
        """The maximum mean cost of a step, in the unit of the budget."""
        return self._budget.target(self._rate_hz, self._dense_macs)

    @property
    def step_budget(self) -> dict[str, float]:
        """The maximum mean cost of a step, by its field of Compute; empty if not known yet."""
        return _limit(self._budget, self.target)

    @property
    def _most(self) -> float:
        """What is saved, at most."""
        return self.target * self._rate_hz * _SAVED_S

    def before(self, state: Any) -> None:
        """Let the networks of the stream with this state ask before they run."""
        if self._file is not None and self._file.current() != self._budget:
            self._budget = self._file.budget
            self._begin()
        if not self.decides:
            return
        if state.looks is None:
            state.looks = Looks()
        state.looks.may = self.may
        self._share = state.looks.share

    def may(self, name: str, gain: float, age_s: float) -> bool:
        """Return whether a network may run now; see ``models.base.MayRun``."""
        head = self._heads.setdefault(name, _Head())
        due = not 0 <= age_s < _DUE_S
        starved = not 0 <= age_s < _STARVED_S
        if self._account < 0 and not starved:
            head.refused = self._steps if due else None
            return False
        if due or head.cost is None:
            head.refused = None
            return True
        worth = gain / max(head.cost, 1e-9)
        mean = worth if self._worth is None else self._worth
        self._worth = mean + _SMOOTHING * (worth - mean)
        if any(self._waits(other) for other in self._heads.values()):
            return False
        return worth >= self._price * mean

    @property
    def _price(self) -> float:
        """Gain for cost, to its mean, that a run needs: the more, the emptier the account.

        Nothing if there is one network, or if the account pays for two runs of the dearest.
        """
        costs = [head.cost for head in self._heads.values() if head.cost is not None]
        full = min(self._most, 2 * max(costs, default=0.0))
        if len(self._heads) < 2 or self._account >= full:
            return 0.0
        return _PRICE * (1 - self._account / full)

    def _waits(self, head: _Head) -> bool:
        """Return whether a network is due, and has asked within the last second."""
        return head.refused is not None and self._steps - head.refused <= self._rate_hz

    def after(self, result: StepResult) -> None:
        """Take the result of the step and its cost (B = 1)."""
        in_macs = self._budget.unit == "macs"
        ms = 1e3 * (result.frontend_s + result.network_s)
        cost = result.macs if in_macs else ms
        looks = sum(took.look_macs for took in (result.costs or {}).values())
        dense_macs = result.dense_macs - (1 - self._share) * looks
        self._steps += 1
        if self._steps == 1:
            self._dense_macs = dense_macs
            if not in_macs:  # the first look has to be, and its time is that of warming up
                return
        self._dense_macs += _SMOOTHING * (dense_macs - self._dense_macs)
        more = self._budget.target(self._rate_hz, dense_macs)
        self._account = min(self._most, self._account + more - cost)
        if self._account < -more * self._rate_hz * _DEBT_S and not self._warned:
            self._warned = True
            how = "with the fewest runs" if self.decides else "and all of them take the same"
            log.warning("the steps exceed the budget of %s %s", self._budget.text, how)
        for name in result.ran[0] if result.ran else ():
            took = None if result.costs is None else result.costs.get(name)
            head = self._heads.setdefault(name, _Head())
            if took is not None:
                spent = took.macs if in_macs else 1e3 * took.s
                mean = spent if head.cost is None else head.cost
                head.cost = mean + _SMOOTHING * (spent - mean)


def _limit(budget: Budget, target: float) -> dict[str, float]:
    """Return the maximum cost of a step by its field of Compute; empty if it is not known yet."""
    return {f"budget_{budget.unit}": target} if math.isfinite(target) else {}


Controller: TypeAlias = TokenController | LookController


def controller(
    model: Model, budget: Budget | BudgetFile | None, rate_hz: float
) -> Controller | None:
    """Return a controller of one stream; None without a budget."""
    if budget is None:
        return None
    if isinstance(model, GatedModel):
        return TokenController(model, budget, rate_hz)
    return LookController(budget, rate_hz, decides=chooses(model))


def chooses(model: Model) -> bool:
    """Return whether a model computes less where a budget wants it; others' steps are all alike."""
    return isinstance(model, GatedModel) or model.info.looks or model.info.holds


def check_budget(model: Model, budget: Budget | BudgetFile) -> None:
    """Raise UsageError if all steps of a model take the same, and more operations than a budget."""
    now = budget.budget if isinstance(budget, BudgetFile) else budget
    if chooses(model) or now.unit != "macs" or not isinstance(model, CountedModel):
        return
    most = now.target(model.info.card.rate_hz, model.dense_macs)
    if model.macs > most:
        name, takes = model.info.card.name, si(model.macs, "MAC")
        what = f"each step of {name} takes {takes}, the budget is {now.text}"
        what += f" ({si(most, 'MAC')})" if now.kind == "part" else ""
        less = "; nanodet, cooadtr and eventful-vitdet compute less within a budget"
        hint = "give it more" + (less if model.info.box else "")
        raise UsageError(what, where="--budget", hint=hint)


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
