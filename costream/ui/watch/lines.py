"""Status of a watch as plain lines, for logs and terminals without a dashboard."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

from rich.console import Console

from costream.core.records import Alert, FeedState
from costream.core.status import FeedStatus, WatchStatus
from costream.ui.console import PLAIN_S, print_line
from costream.ui.watch.rows import age, alert_line, display_text, status_line
from costream.ui.watch.totals import print_totals


class WatchLines:
    """Printer of changes as they occur, and of a line for all feeds every ``every_s`` seconds.

    ``up 01:02:03  feeds 3/4 live, 1 waiting  lag 0.12 s  dropped 0  alerts 2``. The totals of
    each feed follow at the end. Lines are never wrapped.
    """

    def __init__(self, console: Console, *, every_s: float = PLAIN_S) -> None:
        self._console = console
        self._every_s = every_s
        self._printed_s = time.monotonic()
        self._changes = StateChanges()
        self._alerts = NewAlerts()
        self._status: WatchStatus | None = None

    def show(self, status: WatchStatus) -> None:
        """Add a status; print changes, new alerts and, if due, the line for all feeds."""
        self._status = status
        for line in self._changes.take(status):
            print_line(self._console, line)
        for feed, alert in self._alerts.take(status):
            print_line(self._console, f"{display_text(feed)}: alert: {alert_line(alert)}")
        if time.monotonic() - self._printed_s >= self._every_s:
            self._printed_s = time.monotonic()
            print_line(self._console, status_line(status))

    def close(self) -> None:
        """Print the totals of each feed. May be called again."""
        status, self._status = self._status, None
        if status is not None:
            print_totals(self._console, status)


class NewAlerts:
    """Filter of the alerts in each status that were not in the previous one."""

    def __init__(self) -> None:
        self._known: set[tuple[object, ...]] = set()

    def take(self, status: WatchStatus) -> list[tuple[str, Alert]]:
        """Return the new ones with their feeds, oldest first."""
        # Without the clip, which may become known later.
        keys = [(feed, a.time_s, a.rule, a.label) for feed, a in status.alerts]
        pairs = zip(keys, status.alerts, strict=True)
        new = [pair for key, pair in pairs if key not in self._known]
        self._known = set(keys)
        return new


MOST = 6  # lines about the changes of one feed ...
SPAN_S = 60.0  # ... in this time


@dataclass
class _Feed:
    """The last report on a feed."""

    state: FeedState  # as last reported
    reconnects: int
    was_live: bool
    away_s: float = 0.0  # uptime at which it ceased to be live
    lines_s: deque[float] = field(default_factory=lambda: deque(maxlen=MOST))  # uptimes of lines


class StateChanges:
    """Messages about the state changes of feeds, except losses, which are logged.

    There are at most MOST messages about a feed in SPAN_S; a change after them is reported later,
    if it still holds then.
    """

    def __init__(self) -> None:
        self._feeds: dict[str, _Feed] = {}

    def take(self, status: WatchStatus) -> list[str]:
        """Return a line for each feed that has changed: ``door: back after 12 s``."""
        before, self._feeds = self._feeds, {}
        lines = []
        for feed in status.feeds:
            known = before.get(feed.name) or _Feed("connecting", feed.reconnects, False)
            self._feeds[feed.name] = known
            if line := _change(known, feed, status.uptime_s):
                lines.append(f"{display_text(feed.name)}: {line}")
        return lines


def _change(known: _Feed, feed: FeedStatus, now_s: float) -> str:
    """Return the change as text, '' if there is none, and record it. ``now_s``: uptime.

    A feed that is reconnecting is still away, as reported, and keeps its state here.
    """
    if len(known.lines_s) == MOST and now_s - known.lines_s[0] < SPAN_S:
        return ""
    line = _news(known, feed, now_s)
    if line:
        known.lines_s.append(now_s)
    return line


def _news(known: _Feed, feed: FeedStatus, now_s: float) -> str:
    times, known.reconnects = feed.reconnects - known.reconnects, feed.reconnects
    if times > 1:
        known.state, known.was_live = feed.state, True
        since = f"lost and back {times} times"
        return since if feed.state == "live" else f"{since}, away now"
    if feed.state == "connecting" or feed.state == known.state:
        return "back after a moment" if times and feed.state == "live" else ""
    before, known.state = known.state, feed.state
    if before == "live":
        known.away_s = now_s - (feed.age_s or 0.0)
    if feed.state == "live":
        line = f"back after {age(now_s - known.away_s)}" if known.was_live else "live"
        known.was_live = True
        return line
    if feed.state == "stalled":
        return "no data" if feed.age_s is None else f"no data for {age(feed.age_s)}"
    return {"ended": "ended", "off": "switched off"}.get(feed.state, "")
