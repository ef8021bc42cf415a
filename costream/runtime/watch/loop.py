"""The main loop of a watch: takes steps from all feeds and runs them through one network."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from threading import Condition
from typing import Any

from costream.core.places import Place
from costream.core.records import Alert, Data, Gap
from costream.models.base import GatedModel, Model, StepResult
from costream.models.persons import PersonsModel
from costream.runtime.alerts.alerts import Alerts
from costream.runtime.budget import TokenController
from costream.runtime.persons import PersonRows
from costream.runtime.stop import StopHandler
from costream.runtime.watch.channel import FeedChannel
from costream.runtime.watch.feed import ReadyStep
from costream.runtime.watch.status import StatusCollector

# Interval at which the loop checks for a signal while no data arrive.
POLL_S = 0.1
# A step waits at most this fraction of a tick for steps of other feeds, to form a batch.
BATCH_WAIT = 0.5


class Loop:
    """Steps ``model`` over all channels until every feed has ended or ``stop`` is set."""

    def __init__(
        self,
        model: Model,
        rows: FeedStates,
        channels: Sequence[FeedChannel],
        share: TimeShare,
        alerts: Alerts,
        overview: StatusCollector,
    ) -> None:
        self.rows = rows
        self._model, self._channels = model, channels
        self._share, self._alerts, self._overview = share, alerts, overview
        self._step_s: dict[int, float] = {}  # duration of the newest step, by row
        self._batch_wait_s = BATCH_WAIT / model.info.card.rate_hz if len(channels) > 1 else 0.0

    def rounds(
        self, stop: StopHandler, arrived: Condition, periodic: Callable[[float], None]
    ) -> Iterator[None]:
        """Run to the end, pausing after each round and at least every POLL_S.

        ``periodic(now_s)`` is called before each pause.
        """
        while not stop.requested and not all(channel.ended for channel in self._channels):
            with arrived:
                if not self._due(time.monotonic()):
                    arrived.wait(self._wait_s(time.monotonic()))
            now_s = time.monotonic()
            if self._due(now_s):
                self._round()
                self._share.busy(time.monotonic() - now_s)
            self._share.turn(now_s, sum(channel.feed.buffer.late for channel in self._channels))
            periodic(now_s)
            yield

    def record_alert(self, channel: FeedChannel, alert: Alert) -> None:
        """Record an alert of a feed."""
        channel.alerts += 1
        channel.recorder.write(alert)
        self._overview.add_alert(channel.spec.name, alert)

    def drain(self) -> None:
        """Handle the remaining events except steps."""
        for channel in self._channels:
            while events := channel.feed.buffer.take():
                for event in events:
                    if not isinstance(event, ReadyStep):
                        channel.handle(event)

    def _due(self, now_s: float) -> bool:
        """Return whether to run a round: steps have waited long enough, or every feed has one."""
        waiting = [channel for channel in self._channels if not channel.feed.buffer.empty]
        if not waiting:
            return False
        since = [channel.feed.buffer.waiting_since_s for channel in waiting]
        live = sum(channel.feed.connection.state == "live" for channel in self._channels)
        return (
            None in since  # an event other than a step
            or len(waiting) >= live
            or now_s >= min(s for s in since if s is not None) + self._batch_wait_s
        )

    def _wait_s(self, now_s: float) -> float:
        since = [channel.feed.buffer.waiting_since_s for channel in self._channels]
        steps = [s + self._batch_wait_s - now_s for s in since if s is not None]
        return max(0.0, min([POLL_S, *steps]))

    def _round(self) -> None:
        """Handle the next events of every feed, and run their steps as one batch."""
        taken_s, tolerance_s = time.monotonic(), self._model.info.card.gap_tolerance_s
        groups: dict[type, list[tuple[FeedChannel, ReadyStep]]] = {}
        for channel in self._channels:
            for event in channel.feed.buffer.take():
                if not isinstance(event, ReadyStep):
                    self._reset(channel, channel.handle(event))
                elif self._share.admit(channel.row):
                    gap = channel.before(event, tolerance_s, self._share.least_part)
                    self._reset(channel, gap)
                    groups.setdefault(type(event.tick.item), []).append((channel, event))
                elif self._share.overloaded:
                    channel.thinned += 1
                else:
                    channel.skipped += 1
        for group in groups.values():
            began_s = time.perf_counter()
            results = self.rows.step(
                [channel.row for channel, _ in group], [ready.tick.item for _, ready in group]
            )
            self._share.spent(time.perf_counter() - began_s, len(group))
            for (channel, ready), result in zip(group, results, strict=True):
                part = {"budget_share": self._share.part} if self._share.limited else {}
                budget = self.rows.step_budget(channel.row) or part
                scores = channel.step(ready, result, budget)
                if scores:
                    recorder = channel.recorder
                    about = (recorder.presence, recorder.scene(ready.tick.item), recorder.meter)
                    name, time_s = channel.spec.name, ready.tick.time_s
                    for alert in self._alerts.push(name, time_s, scores, *about):
                        self.record_alert(channel, alert)
                # The shorter of two: a single slow step must not drop all that wait.
                seconds, known_s = time.monotonic() - taken_s, self._step_s.get(channel.row, 0.0)
                channel.feed.buffer.step_s = min(seconds, known_s or seconds)
                self._step_s[channel.row] = seconds

    def _reset(self, channel: FeedChannel, gap: Gap | None) -> None:
        """Reset the network's state of a feed at a gap."""
        if gap is not None:
            self.rows.reset(channel.row)
            self._alerts.gap(channel.spec.name)


class FeedStates:
    """One network and its state for ``count`` feeds.

    Any subset of feeds can step together; the state of the others is not touched. A model whose
    streams must step in sync has a separate state per feed, and steps them one after the other; a
    model for one person has rows for the persons of each.
    """

    def __init__(
        self,
        model: Model,
        count: int,
        tokens: int | None = None,
        throttles: Sequence[TokenController] | None = None,
        masks: Sequence[frozenset[Place]] = (),
        persons: Sequence[PersonRows] | None = None,
    ) -> None:
        """``tokens``: for a token-gated model, most tokens computed per frame; None: all.

        ``throttles``: the controller of that number, for each row; ``masks``: those of each row;
        ``persons``: those of each row, if they are followed.
        """
        self._model, self._count = model, count
        self._throttles = throttles
        alone = model.info.in_time
        self._persons = persons
        self._states: list[Any] = (
            [model.init_state(1) for _ in range(count)] if alone else [model.init_state(count)]
        )
        if isinstance(model, GatedModel):
            for row, state in enumerate(self._states):
                state.tokens = tokens
                state.masks = masks[row] if masks else frozenset()

    def step(self, rows: Sequence[int], items: Sequence[Data]) -> list[StepResult]:
        """Step these rows, in ascending order, with one item each; return their results."""
        if self._persons is not None or self._model.info.in_time:
            return [self._alone(row, item) for row, item in zip(rows, items, strict=True)]
        state = self._states[0]
        if len(rows) == self._count:
            result = self._model.step(items, state)
        else:
            part = state.take(rows)
            result = self._model.step(items, part)
            state.put(rows, part)
        return [result.row(k) for k in range(len(rows))]

    def step_budget(self, row: int) -> dict[str, float]:
        """Return the maximum cost of the newest step of this row, by field of Compute."""
        return {} if self._throttles is None else self._throttles[row].step_budget

    def begin(self, row: int, newest: int) -> None:
        """Let the numbers of a feed's persons go on after this one."""
        if self._persons is not None:
            self._persons[row].begin(newest)

    def reset(self, row: int) -> None:
        """Reset the state of this feed."""
        if self._persons is not None:
            self._persons[row].reset()
        state, rows = self._at(row)
        state.reset(rows)

    def take(self, row: int) -> Any:
        """Return a copy of the network's state for this feed, as the state of one stream.

        Of a feed of persons it is an initial state: after a restart they are told apart anew.
        """
        state, rows = self._at(row)
        return state.take(rows)

    def put(self, row: int, known: Any) -> None:
        """Set the network's state for a feed to one that ``take`` returned."""
        state, rows = self._at(row)
        state.put(rows, known)

    def _alone(self, row: int, item: Data) -> StepResult:
        persons, throttles = self._persons, self._throttles
        if persons is not None and not isinstance(self._model, PersonsModel):
            return persons[row].step(item)
        state = self._states[row]
        if throttles is not None:
            throttles[row].before(state)
        result = self._model.step([item], state)
        if throttles is not None:
            throttles[row].after(result)
        return result if persons is None else persons[row].step(item, result)

    def _at(self, row: int) -> tuple[Any, list[int]]:
        return (self._states[row], [0]) if self._model.info.in_time else (self._states[0], [row])


WINDOW_S = 2.0


TELL_S = (8.0, 60.0)  # before the first message about an overload, and the others
ALMOST = 0.95  # of all steps, or of the time
ROOM = 0.9  # used of what was possible in an overload, so that what waits is worked off


class TimeShare:
    """Keeps the network's work within a share of real time, and within what the machine can do.

    It controls the step rate: when all steps would cost more than ``share`` seconds per second,
    or were dropped because they were late, as measured in the last window, the same fraction of
    every feed's steps is left out, evenly spread.
    """

    def __init__(self, share: float | None) -> None:
        """``share``: seconds of work per second; None: no limit."""
        self._share = share
        self._since_s: float | None = None
        self._offered = self._taken = 0
        self._spent_s = 0.0
        self._cost_s = 0.0  # per step, in the last window that had any
        self._owed: dict[int, float] = {}
        self._fit = 1.0  # fraction that the machine can run
        self._late = 0  # steps dropped, at the end of the last window
        self._busy_s = 0.0
        self._told_s: float | None = None  # of the last message, or when the first drop was seen
        self._counts = (0, 0)  # taken and left out since then
        self._first = True
        self.part = self.least_part = 1.0  # fraction of the steps to run; the least of two windows
        self.load = 0.0  # seconds of work per second, in the last window

    @property
    def limited(self) -> bool:
        """Whether there is a budget."""
        return self._share is not None

    @property
    def overloaded(self) -> bool:
        """Whether the machine, not the budget, limits the steps."""
        return self._fit <= self.part < 1.0

    def turn(self, now_s: float, late: int = 0) -> None:
        """Update ``part`` when a window has ended; call it often.

        ``late``: steps dropped so far because they were late.
        """
        if self._since_s is None:
            self._since_s = now_s
        elapsed_s = now_s - self._since_s
        if elapsed_s < WINDOW_S:
            return
        self.load = self._spent_s / elapsed_s
        if self._taken:
            self._cost_s = self._spent_s / self._taken
        lost, self._late = late - self._late, late
        offered = self._offered + lost
        busy = min(1.0, self._busy_s / elapsed_s)
        if lost and self._taken and busy:
            self._fit = min(1.0, ROOM * self._taken / busy / offered)
        elif 0 < busy < ALMOST:
            self._fit = min(1.0, self._fit * ALMOST / busy)
        wanted = self._cost_s * offered / elapsed_s
        before, self.part = self.part, self._fit
        if self._share is not None and wanted > 0:
            self.part = min(self._fit, self._share / wanted)
        self.least_part = min(before, self.part)
        self._count(offered, lost)
        self._since_s, self._spent_s, self._offered, self._taken = now_s, 0.0, 0, 0
        self._busy_s = 0.0

    def overload(self, feeds: int, *, paced: bool) -> str:
        """Return what to say about steps left out since it was last said; '' if nothing yet.

        ``paced``: the step rate can be set.
        """
        until_s = self._since_s  # the counts are those of whole windows
        if self._told_s is None or until_s is None:
            return ""
        seconds, (taken, left) = until_s - self._told_s, self._counts
        if seconds < TELL_S[not self._first]:
            return ""
        self._told_s, self._counts = (until_s if left else None), (0, 0)
        self._first = not left
        if not left:
            return ""
        if taken > ALMOST * (taken + left):
            return f"{left} of {taken + left} steps dropped: this machine was too slow for a moment"
        rate_hz, fps = (taken + left) / seconds, ROOM * taken / seconds / feeds
        use = f"--fps {fps:.2g}, a smaller model" if paced else "a smaller model"
        use += " or fewer feeds" if feeds > 1 else ""
        return (
            f"{taken / seconds:.1f} of {rate_hz:.1f} steps a second: this machine is too slow for "
            f"the others; use {use}"
        )

    def _count(self, offered: int, lost: int) -> None:
        """Count the steps of a window for the next message."""
        left = offered - self._taken if self.overloaded else lost
        if left and self._told_s is None:
            self._told_s = self._since_s
        if self._told_s is not None:
            self._counts = self._counts[0] + self._taken, self._counts[1] + left

    def admit(self, feed: int) -> bool:
        """Return whether to run this feed's next step."""
        self._offered += 1
        owed = self._owed.get(feed, 1.0 - self.part) + self.part
        admitted = owed >= 1.0 - 1e-9
        self._owed[feed] = owed - 1.0 if admitted else owed
        return admitted

    def busy(self, seconds: float) -> None:
        """Add the time that a round took."""
        self._busy_s += seconds

    def spent(self, seconds: float, steps: int) -> None:
        """Add the time that ``steps`` steps took together."""
        self._spent_s += seconds
        self._taken += steps
