"""The main loop of a watch: takes steps from all feeds and runs them through one network."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from threading import Condition

from costream.core.records import Alert, Gap
from costream.models.base import Model, StepResult
from costream.runtime.alerts.alerts import Alerts
from costream.runtime.stop import StopHandler
from costream.runtime.watch.buffer import ReadyStep
from costream.runtime.watch.channel import FeedChannel
from costream.runtime.watch.feed_states import FeedStates
from costream.runtime.watch.status import StatusCollector
from costream.runtime.watch.time_share import TimeShare

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
        channel.record_alert(alert)
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
        taken_s = time.monotonic()
        groups: dict[type, list[tuple[FeedChannel, ReadyStep]]] = {}
        for channel in self._channels:
            for event in channel.feed.buffer.take():
                if not isinstance(event, ReadyStep):
                    self._reset(channel, channel.handle(event))
                elif self._admit(channel, event):
                    groups.setdefault(type(event.tick.item), []).append((channel, event))
        for group in groups.values():
            began_s = time.perf_counter()
            results = self.rows.step(
                [channel.row for channel, _ in group], [ready.tick.item for _, ready in group]
            )
            self._share.spent(time.perf_counter() - began_s, len(group))
            for (channel, ready), result in zip(group, results, strict=True):
                self._record(channel, ready, result)
                channel.feed.buffer.add_duration(time.monotonic() - taken_s)

    def _admit(self, channel: FeedChannel, ready: ReadyStep) -> bool:
        """Return whether a step is run; if so, prepare for it."""
        if channel.is_off:
            self._reset(channel, channel.leave_silent(ready.tick.time_s))
            return False
        if not self._share.admit(channel.row):
            channel.leave_out(overloaded=self._share.overloaded)
            return False
        tolerance_s = self._model.info.card.gap_tolerance_s
        self._reset(channel, channel.before(ready, tolerance_s, self._share.least_part))
        return True

    def _record(self, channel: FeedChannel, ready: ReadyStep, result: StepResult) -> None:
        """Record the result of a step, and the alerts that it causes."""
        part = {"budget_share": self._share.part} if self._share.limited else {}
        scores = channel.step(ready, result, self.rows.step_budget(channel.row) or part)
        recorder = channel.recorder
        channel.scene = recorder.scene(ready.tick.item)
        if scores:
            about = (recorder.presence, channel.scene, recorder.meter)
            name, time_s = channel.spec.name, ready.tick.time_s
            for alert in self._alerts.push(name, time_s, scores, *about):
                self.record_alert(channel, alert)

    def _reset(self, channel: FeedChannel, gap: Gap | None) -> None:
        """Reset the network's state of a feed at a gap."""
        if gap is not None:
            self.rows.reset(channel.row)
            self._alerts.gap(channel.spec.name)
