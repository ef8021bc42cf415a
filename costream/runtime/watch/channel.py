"""One channel of a watch: a feed with its thread, its row of the network, its records."""

from __future__ import annotations

import logging
import time
from collections import deque
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from costream.errors import CostreamError, ExitCode, SourceError
from costream.models.base import StepResult
from costream.records import Fault, FeedState, FeedStatus, Gap
from costream.runtime.watch.feed import Feed, FeedEvent, Rate, ReadyStep, SourceEnded, SourceOpened
from costream.runtime.watch.feed_list import FeedSpec
from costream.runtime.watch.state_dir import SavedState, Snapshot
from costream.runtime.writer import StreamRecorder
from costream.sources.base import Connection

log = logging.getLogger("costream")

LOG_DROPS_S = 10.0
STRIP_S = 180  # seconds of history in the strip of a feed
STALLED_S = 2.0  # an open feed without data for this long is reported as stalled


class FeedChannel:
    """Handles the events of one feed and the network's results for its steps.

    ``row``: its row of the network's state.
    """

    def __init__(self, spec: FeedSpec, row: int, feed: Feed, recorder: StreamRecorder) -> None:
        self.spec, self.row, self.feed, self.recorder = spec, row, feed, recorder
        self.ended = False
        self._complete = False  # the source ended by itself
        self.lost = False  # given up, or unreadable
        self._why = ""  # it was
        self.skipped = 0  # steps left out because of the budget
        self.alerts = 0
        self.strip: deque[str | None] = deque(maxlen=STRIP_S)
        self.began_s = time.time()
        self._resumed = False  # resumed from an earlier watch, before the first step
        self._smoothed: tuple[float, ...] = ()  # smoothing state of the earlier watch
        self._opened_s = time.monotonic()
        self._rate = Rate()
        self._logged_s, self._logged = 0.0, 0  # time and count of the last message about drops
        self._jumped = 0  # drops at the newest step
        self._network_ms = 0.0
        self._last_s: float | None = None  # media time of the newest step

    @property
    def dropped(self) -> int:
        """Steps dropped to keep up: in the buffer, by the budget, or by the source itself."""
        return self.feed.buffer.dropped + self.skipped + self.feed.dropped

    @property
    def now_s(self) -> float:
        """The current time on the feed's clock."""
        return time.monotonic() - self._opened_s + self.feed.offset_s

    def resume(self, saved: SavedState) -> None:
        """Resume where an earlier watch stopped; call it before the thread starts."""
        self._resumed, self._last_s, self._smoothed = True, saved.time_s, saved.smoothed
        self.recorder.first_step = saved.next_step
        self.feed.offset_s = self.began_s - saved.began_s
        self.began_s = saved.began_s

    def snapshot(self) -> Snapshot | None:
        """Return the position of the feed; None before its first step."""
        if self._last_s is None or not self.recorder.steps:
            return None
        next_step = self.recorder.first_step + self.recorder.steps
        return Snapshot(next_step, self.began_s, self._last_s, self.recorder.smoothed())

    def stop(self) -> None:
        """Ask the feed's thread to end soon."""
        self._complete = self.ended and not self.lost
        self.feed.stop()

    def handle(self, event: FeedEvent) -> Gap | None:
        """Handle an event other than a step. A returned Gap resets the network's state."""
        if isinstance(event, SourceOpened):
            self._open(event)
        elif isinstance(event, Gap):
            self.recorder.gap(event)
            self._smoothed = ()
            return event
        elif isinstance(event, Fault):
            self.recorder.fault(event)
            if event.fatal:
                self.lost, self._why = True, event.message
        elif isinstance(event, SourceEnded):
            self.ended = True
            if event.error is not None:
                self._fail(event.error)
        return None

    def before(self, ready: ReadyStep, tolerance_s: float) -> Gap | None:
        """Prepare for a step; return the gap before it, if there is one."""
        time_s, last_s, dropped = ready.tick.time_s, self._last_s, self.dropped
        self._last_s = time_s
        lost, self._jumped = dropped - self._jumped, dropped
        if last_s is None:
            return None
        if self._resumed:  # the restored state of the network stays valid
            self._resumed = False
            self.recorder.gap(Gap(last_s, time_s, "not running"))
            if self._smoothed:
                self.recorder.go_on(self._smoothed)
            return None
        if not lost or time_s - last_s <= tolerance_s:
            return None
        gap = Gap(last_s, time_s, f"{lost} steps dropped to keep up")
        self.recorder.gap(gap)
        return gap

    def step(self, ready: ReadyStep, result: StepResult) -> npt.NDArray[np.float64] | None:
        """Record the network's result; return the scores of ``StreamRecorder.step``."""
        self.recorder.dropped = self.dropped
        scores = self.recorder.step(ready.tick, result, ready.decode_s)
        spent_ms = 1e3 * (result.network_s + result.frontend_s)
        self._network_ms += (spent_ms - self._network_ms) * (0.05 if self._network_ms else 1.0)
        self._rate.add(time.monotonic())
        return scores

    def log_drops(self, now_s: float) -> None:
        """Log the number of dropped steps: at the first one, then every ten seconds."""
        dropped = self.dropped
        if dropped > self._logged and now_s - self._logged_s >= LOG_DROPS_S:
            log.warning("%s: %d steps dropped so far to keep up", self.spec.name, dropped)
            self._logged_s, self._logged = now_s, dropped

    def close(self, exit_code: ExitCode) -> None:
        """Finish the files. A connection that is down at the end is recorded as a gap."""
        if not self.recorder.open_sinks:
            return
        if not self.ended:
            connection = self.feed.connection
            if connection.state != "live":
                last_s = 0.0 if self._last_s is None else self._last_s
                reason = connection.message or "not connected yet"
                self.recorder.gap(Gap(last_s, max(self.now_s, last_s), reason))
        self.recorder.flush()
        self.recorder.dropped = self.dropped
        code = ExitCode.INPUT if self.lost else ExitCode.OK if self._complete else exit_code
        wall_s, drift_ppm = time.monotonic() - self._opened_s, self.feed.drift_ppm
        summary = self.recorder.summary(code, wall_s, complete=self._complete, drift_ppm=drift_ppm)
        self.recorder.close(summary)

    def status(self, now_s: float) -> FeedStatus:
        """Return the status of the feed."""
        recorder, connection = self.recorder, self.feed.connection
        age_s = None if self.feed.newest_s is None else now_s - self.feed.newest_s
        top = next(iter(recorder.top.values()), ())
        return FeedStatus(
            name=self.spec.name,
            source=self.spec.shown,
            state=self._state(connection, age_s),
            message=connection.message or self._why,
            age_s=age_s,
            time_s=self._last_s,
            frames_hz=self.feed.rate.at(now_s),
            steps_hz=self._rate.at(now_s),
            steps=recorder.steps,
            lag_s=recorder.lag_s,
            dropped=self.dropped,
            reconnects=connection.reconnects,
            gaps=recorder.gaps,
            errors=recorder.errors,
            alerts=self.alerts,
            top=top,
            active=recorder.active if connection.state == "live" else None,
            network_ms=self._network_ms,
            macs=recorder.macs,
            dense_macs=recorder.dense_macs,
            seen=tuple(recorder.seen.values()),
        )

    def _state(self, connection: Connection, age_s: float | None) -> FeedState:
        if self.lost:
            return "lost"
        if self.ended:
            return "ended"
        if connection.state == "live" and age_s is not None and age_s > STALLED_S:
            return "stalled"
        return connection.state

    def _open(self, event: SourceOpened) -> None:
        began_s = None if event.info.began_s is None else self.began_s
        try:
            self.recorder.open(replace(event.info, began_s=began_s))
        except SourceError as error:
            self.feed.stop()
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        if not self.lost:
            kind = "" if isinstance(error, CostreamError) else f"{type(error).__name__}: "
            log.error("%s: %s%s", self.spec.name, kind, error)
            self._why = f"{kind}{error}"
        self.lost = True
