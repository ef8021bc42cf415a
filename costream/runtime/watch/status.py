"""Collection of the status of all feeds of a watch."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from costream import __version__
from costream.clock import utc
from costream.records import Alert
from costream.runtime.watch.channel import FeedChannel
from costream.status import WatchStatus

_ALERTS = 20


class StatusCollector:
    """Collects the status of a watch; adds one strip cell per second to each channel."""

    def __init__(self, model: str, lanes: Sequence[FeedChannel]) -> None:
        self._model, self._lanes = model, lanes
        self._began_s, self._start_s = time.time(), time.monotonic()
        self._strip_s = self._start_s
        self._alerts: deque[tuple[str, Alert]] = deque(maxlen=_ALERTS)

    def tell(self, feed: str, alert: Alert) -> None:
        """Add an alert to the newest ones."""
        self._alerts.append((feed, alert))

    def status(self, load: float, failed_actions: int) -> WatchStatus:
        """Return the current status."""
        now_s = time.monotonic()
        feeds = tuple(lane.status(now_s) for lane in self._lanes)
        while self._strip_s + 1.0 <= now_s:
            self._strip_s += 1.0
            for lane, feed in zip(self._lanes, feeds, strict=True):
                lane.strip.append(feed.active)
        return WatchStatus(
            version=__version__,
            model=self._model,
            began=utc(self._began_s),
            now=utc(time.time()),
            uptime_s=now_s - self._start_s,
            feeds=feeds,
            alerts=tuple(self._alerts),
            load=load,
            memory_mb=_resident_mb(),
            failed_actions=failed_actions,
            strips={lane.spec.name: tuple(lane.strip) for lane in self._lanes},
        )


def _resident_mb() -> float:
    """Return the resident memory of this process; its peak where only that is available."""
    try:
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    except (OSError, IndexError, ValueError):
        if sys.platform == "win32":
            return 0.0
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / (1e6 if sys.platform == "darwin" else 1e3)
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
