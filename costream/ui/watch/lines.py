"""Status of a watch as plain lines, for logs and terminals without a dashboard."""

from __future__ import annotations

import time

from rich.console import Console
from rich.text import Text

from costream.status import WatchStatus
from costream.ui.changes import NewAlerts, StateChanges
from costream.ui.feedtext import alert_line, display_text, status_line
from costream.ui.feedtotals import print_totals


class WatchLines:
    """Printer of changes as they occur, and of a line for all feeds every ``every_s`` seconds.

    ``up 01:02:03  feeds 3/4 live, 1 waiting  lag 0.12 s  dropped 0  alerts 2``. The totals of
    each feed follow at the end. Lines are never wrapped.
    """

    def __init__(self, console: Console, *, every_s: float = 5.0) -> None:
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
            self._print(line)
        for feed, alert in self._alerts.take(status):
            self._print(f"{display_text(feed)}: alert: {alert_line(alert)}")
        if time.monotonic() - self._printed_s >= self._every_s:
            self._printed_s = time.monotonic()
            self._print(status_line(status))

    def close(self) -> None:
        """Print the totals of each feed. May be called again."""
        status, self._status = self._status, None
        if status is not None:
            print_totals(self._console, status)

    def _print(self, line: str) -> None:
        self._console.print(Text(line), soft_wrap=True)
