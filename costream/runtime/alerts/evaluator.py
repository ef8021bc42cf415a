"""Evaluation of an alert rule on the data of one feed, step by step."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from costream.core.clock import SLACK_S
from costream.core.errors import UsageError
from costream.core.hysteresis import LastingPresence, finite
from costream.core.records import Alert, FeedState
from costream.runtime.alerts.rules import (
    ANY,
    HEARD,
    LOUD_DB,
    PLACED,
    Rule,
    RuleLabels,
    RuleTarget,
    targets,
)
from costream.runtime.levels import LevelMeter
from costream.runtime.persons import PersonScores
from costream.runtime.presence import Presence

PULSE_S = 2.0  # after a crossing, the condition of its rule holds for this long
_AWAY: tuple[FeedState, ...] = ("waiting", "lost")


@dataclass
class _Watched:
    """A condition: the time since which it holds, and whether it may fire."""

    since_s: float | None = None  # None: it does not hold
    armed: bool = True
    counts: bool = True  # presence has lasted long enough at one step since then
    fired_s: float = math.inf  # of the last alert
    held_s: float | None = None  # since_s of the alert that the pause of the rule holds back


@dataclass
class _Person:
    """The state of a rule for one person, or for the stream."""

    watched: tuple[_Watched, ...]  # of each target
    presence: tuple[LastingPresence, ...]  # of each head whose labels wait for it
    fired_s: float = -math.inf


class RuleEvaluator:
    """Evaluates one rule on one feed; a pure function of the feed's data so far.

    Times are on the clock of the feed and never decrease.
    """

    def __init__(
        self,
        rule: Rule,
        classes: RuleLabels,
        places: Mapping[str, str] | None = None,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        """``places``: kinds of the feed's zones and lines by name; None: there can be none.

        ``now`` returns the time of day and the date, on the clock of the place; it may jump.

        UsageError when the rule does not fit the labels or the places.
        """
        self.rule, self._now = rule, now
        named = targets(rule, classes) if rule.kind in ("label", *PLACED) else ()
        if rule.kind in PLACED:
            _check_place(rule, places)
        self._targets = named if rule.kind == "label" else ()
        self._lasting = classes.lasting
        self._label = None if rule.label == ANY or not named else named[0].label
        self._fired_for: dict[int, float] = {}  # objects in the zone for which it has fired: when
        self._waiting: dict[int, float] = {}  # objects held back: start of their visits
        self.holding = False  # whether its condition holds now; of crossings: for PULSE_S
        self._persons: dict[int | None, _Person] = {}
        self._away = _Watched()
        self._there = _Watched()  # of "not in", "count" and levels
        self._fired_s = self._crossed_s = -math.inf
        self._enabled = True
        self._newest_s = deque[float](maxlen=rule.most)  # times of the last alerts
        self.held = 0  # alerts that the pause of the rule has held back
        self._before = 0  # of these, those before the last alert

    def push(
        self,
        time_s: float,
        scores: PersonScores,
        presence: Presence | None = None,
        meter: LevelMeter | None = None,
    ) -> list[Alert]:
        """Take one step and return the alerts that fire.

        ``presence``: the objects in zones, for rules about places. ``meter``: the level of sound,
        for rules about it.

        If several labels of one person could fire in one step, only the best one does, as
        ``every`` applies to the rule; with ``every 0`` all do.
        """
        if presence is not None and self.rule.kind in PLACED:
            return self._in_places(time_s, presence)
        if self.rule.kind in HEARD:
            return [] if meter is None else self._heard(time_s, meter)
        if not self._targets or not scores:
            return []
        before = self._persons
        self._persons = {number: before.get(number) or self._person() for number in scores}
        alerts: list[Alert] = []
        for number, probabilities in scores.items():
            alerts += self._seen(time_s, number, probabilities)
        watched = [each for person in self._persons.values() for each in person.watched]
        self.holding = any(self._lasts(each, time_s) for each in watched)
        return alerts

    def _person(self) -> _Person:
        watched = tuple(_Watched() for _ in self._targets)
        return _Person(watched, tuple(head.presence() for head in self._lasting))

    def _seen(
        self, time_s: float, number: int | None, probabilities: npt.NDArray[np.floating]
    ) -> list[Alert]:
        """Return the alerts of a rule about labels, of one person."""
        person = self._persons[number]
        scores = finite(probabilities)
        parts = zip(self._lasting, person.presence, strict=True)
        here = [(head, each.push(time_s, scores[head.columns])) for head, each in parts]
        due: list[tuple[float, RuleTarget, _Watched]] = []
        for target, watched in zip(self._targets, person.watched, strict=True):
            score = float(scores[target.index])
            present = all(is_here for head, is_here in here if head.waits(target.index))
            if score < target.until:
                watched.armed = True
            if not (score > target.above or (score == target.above and not self.rule.strict)):
                watched.since_s = None
            elif watched.since_s is None:
                watched.since_s, watched.counts = time_s, present
            watched.counts = watched.counts or present
            if self._holds(watched, time_s):
                due.append((score, target, watched))
        due.sort(key=lambda one: -one[0])
        alerts: list[Alert] = []
        for score, target, watched in due:
            if self._admits(time_s, person.fired_s):
                person.fired_s = time_s
                alerts.append(self._alert(watched, time_s, target.label, score, person=number))
            elif time_s > person.fired_s:
                self._hold(watched)
        return alerts

    def gap(self) -> None:
        """Take a gap in the data: conditions start over and may fire again."""
        persons = [each for person in self._persons.values() for each in person.watched]
        for watched in (*persons, self._there):
            watched.since_s, watched.armed = None, True
        for presence in (each for person in self._persons.values() for each in person.presence):
            presence.reset()
        self._fired_for.clear()
        if self.rule.kind not in ("gap", "lost"):
            self.holding = False

    def state(self, now_s: float, state: FeedState, age_s: float) -> list[Alert]:
        """Take the state of the feed and return the alerts that fire.

        ``age_s``: time since its newest data, or since the start, until some arrive. Call it
        regularly, also while no data arrive.
        """
        away, rule = self._away, self.rule
        if rule.kind not in ("gap", "lost") or state == "ended":
            return []
        if state == "off":
            self._away, self.holding = _Watched(), False
            return []
        if rule.kind == "gap":
            away.since_s = now_s - age_s
            away.armed = away.armed or now_s - away.since_s < rule.for_s - SLACK_S
        elif state == "live":
            away.since_s, away.armed = None, True
        elif state in _AWAY and away.since_s is None:  # it stays lost during retries
            away.since_s = now_s
        self.holding = self._lasts(away, now_s)
        if not self._holds(away, now_s):
            return []
        return self._fire(away, now_s, rule.kind, 1.0)

    def _heard(self, time_s: float, meter: LevelMeter) -> list[Alert]:
        """Return the alerts of a rule about the level."""
        rule, there = self.rule, self._there
        level, least = (meter.dba if rule.unit == "dBA" else meter.db), rule.level
        if rule.kind == "sound":
            level, least = meter.above_db, LOUD_DB
        if level is None or level < least:
            there.since_s, there.armed = None, True
        elif there.since_s is None:
            there.since_s = time_s
        self.holding = self._lasts(there, time_s)
        if not self._holds(there, time_s):
            return []
        return self._fire(there, time_s, rule.label, 1.0, level_db=meter.db)

    def _in_places(self, time_s: float, presence: Presence) -> list[Alert]:
        """Return the alerts of a rule about places."""
        rule = self.rule
        if rule.kind == "crosses":
            crossed = [
                event
                for event in presence.crossed
                if event.line == rule.place
                and self._label in (None, event.label)
                and rule.direction in (None, event.direction)
            ]
            self._crossed_s = time_s if crossed else self._crossed_s
            self.holding = time_s - self._crossed_s < PULSE_S
            return [
                alert
                for event in crossed
                for alert in self._fire(_Watched(time_s), time_s, event.label, 1.0, id=event.id)
            ]
        if rule.kind == "count" or rule.absent:
            count = presence.count(self._label, rule.place or None)
            holds = count >= rule.number if rule.kind == "count" else count == 0
            there = self._there
            if not holds:
                there.since_s, there.armed = None, True
            elif there.since_s is None:
                there.since_s = time_s
            self.holding = self._lasts(there, time_s)
            return (
                self._fire(there, time_s, self._label or rule.label, 1.0)
                if self._holds(there, time_s)
                else []
            )
        visits = presence.visits(rule.place, self._label)
        self._fired_for = {n: at_s for n, at_s in self._fired_for.items() if n in visits}
        self._waiting = {n: held_s for n, held_s in self._waiting.items() if n in visits}
        alerts, self.holding = [], False
        for number, visit in visits.items():
            watched = _Watched(visit.since_s, number not in self._fired_for and visit.out_s is None)
            if visit.out_s is None:
                watched.fired_s = self._fired_for.get(number, math.inf)
            watched.held_s = self._waiting.get(number)
            self.holding = self.holding or self._lasts(watched, time_s)
            if self._holds(watched, time_s):
                alerts += self._fire(watched, time_s, visit.label, visit.score, id=number)
                if watched.fired_s == time_s:
                    self._fired_for[number] = time_s
                if watched.held_s is not None:
                    self._waiting[number] = watched.held_s
        return alerts

    def _holds(self, watched: _Watched, time_s: float) -> bool:
        again_s = self.rule.again_s
        again = again_s is not None and time_s - watched.fired_s >= again_s - SLACK_S
        return (watched.armed or again) and self._lasts(watched, time_s)

    def _lasts(self, watched: _Watched, time_s: float) -> bool:
        """Return whether a condition has held for long enough, whether or not it may fire again."""
        since_s = watched.since_s
        lasts = since_s is not None and time_s - since_s >= self.rule.for_s - SLACK_S
        return lasts and watched.counts and self._is_on_time

    def enable(self, enabled: bool) -> None:
        """Let the rule fire, or not; while it may not, its condition does not hold."""
        self._enabled = enabled

    @property
    def _is_on_time(self) -> bool:
        times = self.rule.times
        return self._enabled and (times is None or times.contains(self._now()))

    def _admits(self, time_s: float, fired_s: float) -> bool:
        """Return whether the pause after ``fired_s``, and the most alerts in a time, admit one."""
        rule, newest_s = self.rule, self._newest_s
        is_full = rule.most is not None and len(newest_s) == rule.most
        if is_full and time_s - newest_s[0] < rule.most_s - SLACK_S:
            return False
        return time_s - fired_s >= rule.every_s - SLACK_S

    def _fire(
        self, watched: _Watched, time_s: float, label: str, score: float, **more: Any
    ) -> list[Alert]:
        if watched.since_s is None:
            return []
        if not self._is_on_time:
            return []
        if not self._admits(time_s, self._fired_s):
            self._hold(watched)
            return []
        self._fired_s = time_s
        return [self._alert(watched, time_s, label, score, **more)]

    def _hold(self, watched: _Watched) -> None:
        """Count an alert that the pause holds back, once."""
        self.held += watched.held_s != watched.since_s
        watched.held_s = watched.since_s

    def _alert(
        self, watched: _Watched, time_s: float, label: str, score: float, **more: Any
    ) -> Alert:
        assert watched.since_s is not None
        watched.armed, watched.fired_s = False, time_s
        if self.rule.most is not None:
            self._newest_s.append(time_s)
        self.held -= watched.held_s == watched.since_s  # late, but not lost
        held, self._before = self.held - self._before, self.held
        about = {"place": self.rule.place or None, "held": held or None, **more}
        return Alert(time_s, self.rule.text, label, score, watched.since_s, **about)


def _check_place(rule: Rule, places: Mapping[str, str] | None) -> None:
    """Raise UsageError if the zone or line of a rule does not exist."""
    where, wanted = f"{rule.where} {rule.text!r}", "line" if rule.kind == "crosses" else "zone"
    if places is None:
        raise UsageError("the model does not detect objects, which have places", where=where)
    known = [name for name, kind in places.items() if kind == wanted]
    if rule.place and rule.place not in known:
        hint = f"there are {', '.join(known)}" if known else f"give it with --{wanted} NAME=X,Y ..."
        raise UsageError(f"there is no {wanted} {rule.place!r}", where=where, hint=hint)
