"""Evaluation of a rule on one feed; a pure function of the feed's data so far."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from costream.records import Alert
from costream.runtime.alerts.rules import Rule, RuleLabels, RuleTarget, targets
from costream.status import FeedState

# Step times are sums of 1/rate in floating point, as in runtime/segments.py.
_SLACK_S = 1e-6
_AWAY: tuple[FeedState, ...] = ("waiting", "lost")


@dataclass
class _Watched:
    """A condition: the time since which it holds, and whether it may fire."""

    since_s: float | None = None  # None: it does not hold
    armed: bool = True


class RuleEvaluator:
    """One rule on one feed (rules.py defines the meaning of rules).

    Times are those of the feed and never decrease.
    """

    def __init__(self, rule: Rule, classes: RuleLabels) -> None:
        """UsageError when the rule does not fit the labels."""
        self.rule = rule
        self._targets = targets(rule, classes) if rule.kind == "label" else ()
        self._watched = tuple(_Watched() for _ in self._targets)
        self._away = _Watched()
        self._fired_s = -math.inf

    def push(self, time_s: float, probabilities: npt.NDArray[np.floating]) -> list[Alert]:
        """Take one step (``probabilities``: [C]) and return the alerts that fire.

        Of several labels that could fire in one step only the best does, as ``every`` applies to
        the whole rule; with ``every 0`` all do.
        """
        due: list[tuple[float, RuleTarget, _Watched]] = []
        for target, watched in zip(self._targets, self._watched, strict=True):
            score = float(probabilities[target.index])
            score = score if math.isfinite(score) else 0.0
            if score < target.until:
                watched.armed = True
            if not (score > target.above or (score == target.above and not self.rule.strict)):
                watched.since_s = None
            elif watched.since_s is None:
                watched.since_s = time_s
            if self._holds(watched, time_s):
                due.append((score, target, watched))
        due.sort(key=lambda one: -one[0])
        alerts: list[Alert] = []
        for score, target, watched in due:
            alerts += self._fire(watched, time_s, target.label, score)
        return alerts

    def gap(self) -> None:
        """Take a gap in the data: conditions start over and may fire again."""
        for watched in self._watched:
            watched.since_s, watched.armed = None, True

    def state(self, now_s: float, state: FeedState, age_s: float | None) -> list[Alert]:
        """Take the state of the feed and return the alerts that fire.

        ``age_s``: time since its newest data; None: never any data. Call it regularly, also
        while no data arrive.
        """
        away, rule = self._away, self.rule
        if rule.kind == "label" or state == "ended":
            return []
        if rule.kind == "gap":
            away.since_s = 0.0 if age_s is None else now_s - age_s
            away.armed = away.armed or now_s - away.since_s < rule.for_s - _SLACK_S
        elif state == "live":
            away.since_s, away.armed = None, True
        elif state in _AWAY and away.since_s is None:  # it stays lost during retries
            away.since_s = now_s
        if not self._holds(away, now_s):
            return []
        return self._fire(away, now_s, rule.kind, 1.0)

    def _holds(self, watched: _Watched, time_s: float) -> bool:
        since_s = watched.since_s
        return (
            watched.armed and since_s is not None and time_s - since_s >= self.rule.for_s - _SLACK_S
        )

    def _fire(self, watched: _Watched, time_s: float, label: str, score: float) -> list[Alert]:
        if time_s - self._fired_s < self.rule.every_s - _SLACK_S or watched.since_s is None:
            return []
        self._fired_s = time_s
        watched.armed = False
        return [Alert(time_s, self.rule.text, label, score, watched.since_s)]
