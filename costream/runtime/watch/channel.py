"""One channel of a watch: a feed with its thread, its row of the network, its records."""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Mapping
from dataclasses import replace

from costream.core.errors import CostreamError, ExitCode, SourceError
from costream.core.records import Alert, Fault, FeedState, Gap, Summary
from costream.core.status import FeedStatus
from costream.models.base import StepResult
from costream.runtime.alerts.snapshots import Scene
from costream.runtime.alerts.worker import LogLimiter
from costream.runtime.persons import PersonScores
from costream.runtime.recorder import StreamRecorder
from costream.runtime.timelines import resume_smoothing
from costream.runtime.watch.arrivals import Rate
from costream.runtime.watch.buffer import FeedEvent, ReadyStep, SourceEnded, SourceOpened
from costream.runtime.watch.feed import Feed
from costream.runtime.watch.feed_list import FeedSpec
from costream.runtime.watch.state_dir import SavedState, Snapshot
from costream.sources.base import Connection

log = logging.getLogger("costream")

SWITCHED_OFF = "switched off"  # reason of gaps
LOG_S = 60.0  # interval between messages about one thing
# An open feed without data for this long, in addition to its usual pauses, is stalled.
STALLED_S = 2.0
JITTER = 1.25  # pauses may be longer than usual by this factor
AHEAD = 100  # most numbers of persons and objects that are left out after a crash
_NUMBERS = re.compile(r"[0-9.:]+")
SPACED = 4.0  # steps further apart than this many usual intervals are separated by a gap


class FeedChannel:
    """Handles the events of one feed and the network's results for its steps.

    ``row``: its row of the network's state.
    """

    def __init__(self, spec: FeedSpec, row: int, feed: Feed, recorder: StreamRecorder) -> None:
        self.spec, self.row, self.feed, self.recorder = spec, row, feed, recorder
        self.ended = False
        self._complete = False  # the source ended by itself
        self._is_off = False  # as switched by any thread ...
        self._is_silent = False  # ... and since a step that was not taken
        self.lost = False  # it was given up, or cannot be read
        self._why = ""  # it was lost
        self._left_out_for_budget = 0  # steps
        self._left_out_for_speed = 0  # steps, as the machine is too slow
        self._alerts = 0
        self.began_s, self._zero_s = time.time(), time.monotonic()  # at 0 s
        self._resumed = False  # resumed from an earlier watch, before the first step
        self._smoothed: tuple[float, ...] = ()  # smoothing state of the earlier watch
        self._opened_s = time.monotonic()
        self._rate = Rate()
        self._logged_s = dict.fromkeys(("crowded", "slow"), -math.inf)  # last messages
        self._logged = 0  # crowded out, at the last message
        self._warnings: dict[str, LogLimiter] = {}
        self._jumped = dict.fromkeys(self._drops, 0)  # at the newest step
        self._gap_end_s = -math.inf  # of the newest gap
        self._network_ms = 0.0
        self._last_s: float | None = None  # media time of the newest step
        self.scene: Scene | None = None  # of the newest step

    @property
    def dropped(self) -> int:
        """Steps dropped to keep up: in the buffer, by the budget, or by the source itself."""
        return sum(self._drops.values())

    @property
    def _drops(self) -> dict[str, int]:
        """Dropped steps by reason."""
        buffer = self.feed.buffer
        return {
            "this machine is too slow": buffer.late + self.feed.dropped + self._left_out_for_speed,
            "too many came at once": buffer.crowded,
            "left out to stay within the share of real time": self._left_out_for_budget,
        }

    @property
    def now_s(self) -> float:
        """The current time on the feed's clock."""
        return time.monotonic() - self._zero_s

    def resume(self, saved: SavedState, began_s: float, zero_s: float) -> None:
        """Resume where an earlier watch stopped; call it before the thread starts.

        ``began_s``, ``zero_s``: ``time.time()`` and ``time.monotonic()`` at 0 s of the source.
        """
        self._resumed, self._last_s, self._smoothed = True, saved.time_s, saved.smoothed
        self.recorder.resume(saved.next_step, newest_number=saved.newest)
        self.began_s, self._zero_s = began_s, zero_s

    def snapshot(self, ahead: int = 0) -> Snapshot | None:
        """Return the position of the feed; None before its first step.

        ``ahead``: numbers to leave out, as steps may be taken after this.
        """
        counters = self.recorder.counters
        if self._last_s is None or not counters.steps:
            return None
        next_step = counters.next_step + ahead
        newest = counters.newest_number + min(ahead, AHEAD)
        times = (self.began_s, self.now_s, self._last_s)
        return Snapshot(next_step, *times, self.recorder.smoothed(), newest)

    def switch(self, is_on: bool) -> None:
        """Take the steps of the feed, or not; by any thread. Its connection stays."""
        self._is_off = not is_on

    @property
    def is_off(self) -> bool:
        """Whether steps are not taken."""
        return self._is_off

    def leave_silent(self, time_s: float) -> Gap | None:
        """Leave out a step while the feed is switched off; return a gap at the first one."""
        last_s, self._last_s, self.scene = self._last_s, time_s, None
        self._jumped, self._resumed = self._drops, False
        if self._is_silent:
            return None
        self._is_silent = True
        return self._gap(Gap(time_s if last_s is None else last_s, time_s, SWITCHED_OFF))

    def stop(self) -> None:
        """Ask the feed's thread to end soon."""
        self._complete = self.ended and not self.lost
        self.feed.stop()

    def handle(self, event: FeedEvent) -> Gap | None:
        """Handle an event other than a step; return a gap at which the network must be reset."""
        if isinstance(event, SourceOpened):
            self._open(event)
        elif isinstance(event, Gap):
            self._smoothed = ()
            if self._is_silent:
                return None
            if self._resumed and self._last_s is not None:  # no connection when the watch began
                begin_s, self._resumed = min(self._last_s, event.start_s), False
                event = replace(event, start_s=begin_s, reason=f"not running, {event.reason}")
            return self._gap(event)
        elif isinstance(event, Fault):
            self.recorder.fault(event, self._limiter(event.message).warn)
            if event.fatal:
                self.lost, self._why = True, event.message
        elif isinstance(event, SourceEnded):
            self.ended = True
            if event.error is not None:
                self._fail(event.error)
        return None

    def before(self, ready: ReadyStep, tolerance_s: float, part: float = 1.0) -> Gap | None:
        """Prepare for a step; return the gap before it, if there is one.

        ``part``: fraction of the steps that are taken, evenly spread.
        """
        time_s, last_s, drops = ready.tick.time_s, self._last_s, self._drops
        self._last_s = time_s
        lost = {reason: drops[reason] - self._jumped[reason] for reason in drops}
        self._jumped = drops
        if self._is_silent:
            self._is_silent = False
            return self._gap(Gap(self._gap_end_s, time_s, SWITCHED_OFF))
        if last_s is None:
            return None
        if self._resumed:  # the restored state of the network stays valid
            self._resumed = False
            self._gap(Gap(last_s, time_s, "not running"))
            if self._smoothed:
                resume_smoothing(self.recorder.timelines.current, self._smoothed)
            return None
        spaced_s = SPACED * max(ready.apart_s, 1 / self.recorder.rate_hz) / part
        begins_s = max(last_s, self._gap_end_s)
        if not any(lost.values()) or time_s - begins_s <= max(tolerance_s, spaced_s):
            return None
        reason = max(lost, key=lost.__getitem__)
        return self._gap(Gap(begins_s, time_s, f"{sum(lost.values())} steps dropped: {reason}"))

    def leave_out(self, *, overloaded: bool) -> None:
        """Count a step that is not run; ``overloaded``: as the machine, not the budget, demands."""
        if overloaded:
            self._left_out_for_speed += 1
        else:
            self._left_out_for_budget += 1

    def record_alert(self, alert: Alert) -> None:
        """Count and record an alert."""
        self._alerts += 1
        self.recorder.write(alert)

    def _limiter(self, message: str) -> LogLimiter:
        """Return the limiter of all warnings that differ from this one in numbers only."""
        return self._warnings.setdefault(_NUMBERS.sub("", message), LogLimiter(LOG_S))

    def _gap(self, gap: Gap) -> Gap:
        """Record a gap, without what the gap before covers; return it."""
        gap = replace(gap, start_s=max(gap.start_s, min(self._gap_end_s, gap.end_s)))
        self._gap_end_s = max(self._gap_end_s, gap.end_s)
        if gap.end_s > gap.start_s:
            self.recorder.gap(gap)
        return gap

    def step(
        self, ready: ReadyStep, result: StepResult, budget: Mapping[str, float]
    ) -> PersonScores:
        """Record the network's result; return the scores of ``StreamRecorder.step``."""
        scores = self.recorder.step(
            ready.tick, result, ready.decode_s, dropped=self.dropped, budget=budget
        )
        spent_ms = 1e3 * (result.network_s + result.frontend_s)
        self._network_ms += (spent_ms - self._network_ms) * (0.05 if self._network_ms else 1.0)
        self._rate.add(time.monotonic())
        return scores

    def log_delays(self, now_s: float, most_s: float) -> None:
        """Log steps that were dropped because too many came at once, and data that come late.

        ``most_s``: the longest delay that is not logged.
        """
        crowded, late_s = self.feed.buffer.crowded, self.feed.delays.least_s
        if crowded > self._logged and now_s - self._logged_s["crowded"] >= LOG_S:
            what = "steps dropped, because more came at once than are kept"
            log.warning("%s: %d %s", self.spec.name, crowded - self._logged, what)
            self._logged_s["crowded"], self._logged = now_s, crowded
        if most_s < late_s < math.inf and now_s - self._logged_s["slow"] >= LOG_S:
            what = "its network is too slow, or this machine to decode it"
            log.warning("%s: data come %.1f s late: %s", self.spec.name, late_s, what)
            self._logged_s["slow"] = now_s

    def close(self, exit_code: ExitCode) -> None:
        """Finish the files. A connection that is down at the end is recorded as a gap."""
        if not self.recorder.opened:
            return
        if self._is_silent:
            self._gap(Gap(self._gap_end_s, max(self.now_s, self._gap_end_s), SWITCHED_OFF))
        elif not self.ended:
            connection = self.feed.connection
            if connection.state != "live":
                last_s = 0.0 if self._last_s is None else self._last_s
                reason = connection.message or "not connected yet"
                self._gap(Gap(last_s, max(self.now_s, last_s), reason))
        self.recorder.flush()
        self.recorder.close(self.summary(exit_code))

    def summary(self, exit_code: ExitCode) -> Summary:
        """Return the summary so far; ``exit_code``: of the watch, unless the feed has ended."""
        return self.recorder.summary(
            ExitCode.INPUT if self.lost else ExitCode.OK if self._complete else exit_code,
            time.monotonic() - self._opened_s,
            complete=self._complete,
            dropped=self.dropped,
            drift_ppm=self.feed.drift_ppm,
        )

    def status(self, now_s: float) -> FeedStatus:
        """Return the status of the feed."""
        recorder, connection = self.recorder, self.feed.connection
        counters = recorder.counters
        age_s = None if self.feed.newest_s is None else now_s - self.feed.newest_s
        is_live = connection.state == "live" and not self._is_off
        top, active = next(iter(recorder.top.values()), ()), recorder.active
        persons = recorder.persons
        if persons is not None and not is_live:
            persons = ()
        if persons:  # the feed shows the label with the highest score of any person
            best = max(persons, key=lambda person: dict(person.top).get(person.active or "", 0.0))
            top, active = best.top, best.active
        return FeedStatus(
            name=self.spec.name,
            source=self.spec.shown,
            state=self._state(connection, age_s, now_s),
            message=connection.message or self._why,
            age_s=age_s,
            away_s=now_s - self._opened_s if age_s is None else None,
            time_s=self._last_s,
            frames_hz=self.feed.rate.at(now_s),
            steps_hz=self._rate.at(now_s),
            steps=counters.steps,
            lag_s=counters.lag_s,
            dropped=self.dropped,
            reconnects=connection.reconnects,
            gaps=counters.gaps,
            errors=counters.errors,
            alerts=self._alerts,
            top=top,
            active=active if is_live else None,
            heads=recorder.active_by_head if is_live else {},
            network_ms=self._network_ms,
            macs=counters.macs,
            dense_macs=counters.dense_macs,
            seen=tuple(counters.seen.values()),
            persons=persons,
            level_db=None if recorder.meter is None else recorder.meter.db,
            places=() if recorder.presence is None else recorder.presence.counts(),
        )

    def _state(self, connection: Connection, age_s: float | None, now_s: float) -> FeedState:
        if self.lost:
            return "lost"
        if self.ended:
            return "ended"
        if self._is_off:
            return "off"
        if connection.state == "live" and age_s is not None:
            usual_s = STALLED_S + JITTER * self.feed.pause_s(now_s)
            return "live" if age_s <= usual_s else "stalled"
        return connection.state

    def _open(self, event: SourceOpened) -> None:
        info = event.info
        if info.began_s is not None and self._resumed:
            info = replace(info, began_s=self.began_s)
        elif info.began_s is not None:  # its clock is that of all that follows
            self.began_s = info.began_s
            self._zero_s = time.monotonic() - (time.time() - info.began_s)
        try:
            self.recorder.open(info, self.spec.name)
            if self.recorder.model.info.beside is not None and info.silent is not None:
                log.warning("%s: no sound: %s", self.spec.name, info.silent)
        except SourceError as error:
            self.feed.stop()
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        if not self.lost:
            kind = "" if isinstance(error, CostreamError) else f"{type(error).__name__}: "
            log.error("%s: %s%s", self.spec.name, kind, error)
            self._why = f"{kind}{error}"
        self.lost = True
