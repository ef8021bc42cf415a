"""The main loop of a watch: takes steps from all feeds and runs them through one network."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from threading import Condition

from costream.models.base import Model
from costream.records import Alert, Gap
from costream.runtime.alerts.alerts import Alerts
from costream.runtime.stop import StopHandler
from costream.runtime.watch.buffer import ReadyStep
from costream.runtime.watch.channel import FeedChannel
from costream.runtime.watch.rows import FeedStates
from costream.runtime.watch.share import TimeShare
from costream.runtime.watch.status import StatusCollector

# Interval at which the loop checks for a signal while no data arrive.
POLL_S = 0.1
# A step waits at most this fraction of a tick for steps of other feeds, to form a batch.
TOGETHER = 0.5


class Loop:
    """Steps ``model`` over all channels until every feed has ended or ``stop`` is set."""

    def __init__(
        self,
        model: Model,
        rows: FeedStates,
        lanes: Sequence[FeedChannel],
        share: TimeShare,
        alerts: Alerts,
        overview: StatusCollector,
    ) -> None:
        self.rows = rows
        self._model, self._lanes = model, lanes
        self._share, self._alerts, self._overview = share, alerts, overview
        self._together_s = TOGETHER / model.card.rate_hz if len(lanes) > 1 else 0.0

    def run(self, stop: StopHandler, arrived: Condition, turn: Callable[[float], None]) -> None:
        """Run until the end. ``turn(now_s)`` is called between rounds, at least every POLL_S."""
        while not stop.requested and not all(lane.ended for lane in self._lanes):
            with arrived:
                if not self._due(time.monotonic()):
                    arrived.wait(self._patience_s(time.monotonic()))
            now_s = time.monotonic()
            if self._due(now_s):
                self._round()
            self._share.turn(now_s)
            turn(now_s)

    def tell(self, lane: FeedChannel, alert: Alert) -> None:
        """Record an alert of a feed."""
        lane.alerts += 1
        lane.track.write(alert)
        self._overview.tell(lane.spec.name, alert)

    def drain(self) -> None:
        """Handle the remaining events except steps."""
        for lane in self._lanes:
            while events := lane.feed.buffer.take():
                for event in events:
                    if not isinstance(event, ReadyStep):
                        lane.handle(event)

    def _due(self, now_s: float) -> bool:
        """Return whether to run a round: steps have waited long enough, or every feed has one."""
        waiting = [lane for lane in self._lanes if not lane.feed.buffer.empty]
        if not waiting:
            return False
        since = [lane.feed.buffer.waiting_since_s for lane in waiting]
        live = sum(lane.feed.connection.state == "live" for lane in self._lanes)
        return (
            None in since  # an event other than a step
            or len(waiting) >= live
            or now_s >= min(s for s in since if s is not None) + self._together_s
        )

    def _patience_s(self, now_s: float) -> float:
        since = [lane.feed.buffer.waiting_since_s for lane in self._lanes]
        steps = [s + self._together_s - now_s for s in since if s is not None]
        return max(0.0, min([POLL_S, *steps]))

    def _round(self) -> None:
        """Handle the next events of every feed, and run their steps as one batch."""
        taken_s = time.monotonic()
        groups: dict[type, list[tuple[FeedChannel, ReadyStep]]] = {}
        for lane in self._lanes:
            for event in lane.feed.buffer.take():
                if isinstance(event, ReadyStep):
                    if self._admit(lane, event):
                        groups.setdefault(type(event.tick.item), []).append((lane, event))
                else:
                    self._forget(lane, lane.handle(event))
        for group in groups.values():
            began_s = time.perf_counter()
            results = self.rows.step(
                [lane.row for lane, _ in group], [ready.tick.item for _, ready in group]
            )
            self._share.spent(time.perf_counter() - began_s, len(group))
            for (lane, ready), result in zip(group, results, strict=True):
                part = self._share.part if self._share.limited else None
                lane.track.budget = self.rows.target(lane.row) or part
                scores = lane.step(ready, result)
                if scores is not None:
                    for alert in self._alerts.push(lane.spec.name, ready.tick.time_s, scores):
                        self.tell(lane, alert)
                lane.feed.buffer.step_s = time.monotonic() - taken_s

    def _admit(self, lane: FeedChannel, ready: ReadyStep) -> bool:
        if not self._share.admit(lane.row):
            lane.skipped += 1
            return False
        self._forget(lane, lane.before(ready, self._model.card.gap_tolerance_s))
        return True

    def _forget(self, lane: FeedChannel, gap: Gap | None) -> None:
        """Reset the network's state of a feed at a gap."""
        if gap is not None:
            self.rows.reset(lane.row)
            self._alerts.gap(lane.spec.name)
