"""One feed of a watch: its thread, its row of the network, its records."""

from __future__ import annotations

import logging
import time
from collections import deque
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from costream.errors import CostreamError, ExitCode, SourceError
from costream.models.base import StepResult
from costream.records import Fault, Gap
from costream.runtime.track import Track
from costream.runtime.watch.buffer import Ended, Event, Opened, Ready
from costream.runtime.watch.feed import Feed
from costream.runtime.watch.feedlist import FeedSpec
from costream.runtime.watch.keeping import Saved, Snapshot
from costream.runtime.watch.rate import Rate
from costream.sources.base import Connection
from costream.status import FeedState, FeedStatus

log = logging.getLogger("costream")

TELL_DROPS_S = 10.0
STRIP_S = 180  # seconds that the strip of a feed goes back
STALLED_S = 2.0  # without data for so long, a feed that is open is said to be stalled


class Lane:
    """Takes the events of one feed, and what the network gave for its steps.

    ``row``: its row of the network.
    """

    def __init__(self, spec: FeedSpec, row: int, feed: Feed, track: Track) -> None:
        self.spec, self.row, self.feed, self.track = spec, row, feed, track
        self.ended = False
        self._complete = False  # it ended by itself
        self.lost = False  # given up, or never to be read
        self.skipped = 0  # steps that the budget had no room for
        self.alerts = 0
        self.strip: deque[str | None] = deque(maxlen=STRIP_S)
        self.began_s = time.time()
        self._goes_on = False  # after an earlier watch, and no step was taken yet
        self._smoothed: tuple[float, ...] = ()  # by then
        self._opened_s = time.monotonic()
        self._rate = Rate()
        self._told_s, self._told = 0.0, 0  # drops
        self._jumped = 0  # drops when the newest step was taken
        self._network_ms = 0.0
        self._last_s: float | None = None  # media time of the newest step

    @property
    def dropped(self) -> int:
        """Steps left out to keep up, in the buffer, by the budget, or by the source itself."""
        return self.feed.buffer.dropped + self.skipped + self.feed.dropped

    @property
    def now_s(self) -> float:
        """What time it is for the feed."""
        return time.monotonic() - self._opened_s + self.feed.offset_s

    def go_on(self, saved: Saved) -> None:
        """Go on where an earlier watch was; before the thread starts."""
        self._goes_on, self._last_s, self._smoothed = True, saved.time_s, saved.smoothed
        self.track.first_step = saved.next_step
        self.feed.offset_s = self.began_s - saved.began_s
        self.began_s = saved.began_s

    def snapshot(self) -> Snapshot | None:
        """Say where the feed is; None before its first step."""
        if self._last_s is None or not self.track.steps:
            return None
        next_step, smoothed = self.track.first_step + self.track.steps, self.track.smoothed()
        return Snapshot(next_step, self.began_s, self._last_s, smoothed)

    def stop(self) -> None:
        """End the thread of the feed soon."""
        self._complete = self.ended and not self.lost
        self.feed.stop()

    def handle(self, event: Event) -> Gap | None:
        """Take an event that is no step. A Gap that it gives back ends what the network knows."""
        if isinstance(event, Opened):
            self._open(event)
        elif isinstance(event, Gap):
            self.track.gap(event)
            self._smoothed = ()
            return event
        elif isinstance(event, Fault):
            self.track.fault(event)
            self.lost = self.lost or event.fatal
        elif isinstance(event, Ended):
            self._end(event.error)
        return None

    def before(self, ready: Ready, tolerance_s: float) -> Gap | None:
        """Look at a step that is to be taken; give the gap that lies before it, if one does."""
        time_s, last_s, dropped = ready.tick.time_s, self._last_s, self.dropped
        self._last_s = time_s
        lost, self._jumped = dropped - self._jumped, dropped
        if last_s is None:
            return None
        if self._goes_on:  # what the network knows is as old as it should be
            self._goes_on = False
            self.track.gap(Gap(last_s, time_s, "not running"))
            if self._smoothed:
                self.track.go_on(self._smoothed)
            return None
        if not lost or time_s - last_s <= tolerance_s:
            return None
        gap = Gap(last_s, time_s, f"{lost} steps dropped to keep up")
        self.track.gap(gap)
        return gap

    def step(self, ready: Ready, result: StepResult) -> npt.NDArray[np.float64] | None:
        """Write down what the network gave; give the scores of ``Track.step``."""
        self.track.dropped = self.dropped
        scores = self.track.step(ready.tick, result, ready.decode_s)
        spent_ms = 1e3 * (result.network_s + result.frontend_s)
        self._network_ms += (spent_ms - self._network_ms) * (0.05 if self._network_ms else 1.0)
        self._rate.add(time.monotonic())
        return scores

    def tell_drops(self, now_s: float) -> None:
        """Say how many steps were dropped: the first time, then every ten seconds."""
        dropped = self.dropped
        if dropped > self._told and now_s - self._told_s >= TELL_DROPS_S:
            log.warning("%s: %d steps dropped so far to keep up", self.spec.name, dropped)
            self._told_s, self._told = now_s, dropped

    def close(self, exit_code: ExitCode) -> None:
        """Finish the files. What the feed was waiting for is told as a gap."""
        if not self.track.open_sinks:
            return
        if not self.ended:
            connection = self.feed.connection
            if connection.state != "live":
                last_s = 0.0 if self._last_s is None else self._last_s
                reason = connection.message or "not connected yet"
                self.track.gap(Gap(last_s, max(self.now_s, last_s), reason))
        self.track.flush()
        self.track.dropped = self.dropped
        code = ExitCode.INPUT if self.lost else ExitCode.OK if self._complete else exit_code
        wall_s = time.monotonic() - self._opened_s
        complete, drift_ppm = self._complete, self.feed.drift_ppm
        self.track.close(self.track.summary(code, wall_s, complete=complete, drift_ppm=drift_ppm))

    def status(self, now_s: float) -> FeedStatus:
        """Give how the feed is doing."""
        track, connection = self.track, self.feed.connection
        age_s = None if self.feed.newest_s is None else now_s - self.feed.newest_s
        top = next(iter(track.top.values()), ())
        return FeedStatus(
            name=self.spec.name,
            source=self.spec.shown,
            state=self._state(connection, age_s),
            message=connection.message,
            age_s=age_s,
            time_s=self._last_s,
            frames_hz=self.feed.rate.at(now_s),
            steps_hz=self._rate.at(now_s),
            steps=track.steps,
            lag_s=track.lag_s,
            dropped=self.dropped,
            reconnects=connection.reconnects,
            gaps=track.gaps,
            errors=track.errors,
            alerts=self.alerts,
            top=top,
            active=track.active if connection.state == "live" else None,
            network_ms=self._network_ms,
            macs=track.macs,
            dense_macs=track.dense_macs,
        )

    def _state(self, connection: Connection, age_s: float | None) -> FeedState:
        if self.lost:
            return "lost"
        if self.ended:
            return "ended"
        if connection.state == "live" and age_s is not None and age_s > STALLED_S:
            return "stalled"
        return connection.state

    def _open(self, event: Opened) -> None:
        began_s = None if event.info.began_s is None else self.began_s
        try:
            self.track.open(replace(event.info, began_s=began_s))
        except SourceError as error:
            self.feed.stop()
            self._fail(error)

    def _end(self, error: Exception | None) -> None:
        self.ended = True
        if error is not None:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        if not self.lost:
            kind = "" if isinstance(error, CostreamError) else f"{type(error).__name__}: "
            log.error("%s: %s%s", self.spec.name, kind, error)
        self.lost = True
