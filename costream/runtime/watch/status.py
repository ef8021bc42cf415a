"""Collection of the status of all feeds of a watch."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from costream.core.clock import utc
from costream.core.commit import code_version
from costream.core.records import Alert
from costream.core.status import WatchStatus
from costream.models.base import ModelInfo
from costream.runtime.alerts.alerts import Alerts
from costream.runtime.watch.channel import FeedChannel
from costream.runtime.watch.strips import LabelStrips

NEWEST_ALERTS = 20


class StatusCollector:
    """Collects the status of a watch, and keeps the history of labels and alerts for it."""

    def __init__(self, model: ModelInfo, channels: Sequence[FeedChannel], rules: Alerts) -> None:
        self._model, self._channels, self._rules = model.card.name, channels, rules
        events = (x for h in model.heads for x in h.card.labels if x != h.card.background)
        self._labels = tuple(events)
        self._began_s, self._start_s = time.time(), time.monotonic()
        self._strips = [LabelStrips() for _ in channels]
        self._strip_s = self._start_s  # time up to which the strips have cells
        self._alerts: deque[tuple[str, Alert]] = deque(maxlen=NEWEST_ALERTS)

    def add_alert(self, feed: str, alert: Alert) -> None:
        """Add an alert to the newest ones."""
        self._alerts.append((feed, alert))

    def status(self, load: float, failed_actions: int) -> WatchStatus:
        """Return the current status."""
        now_s = time.monotonic()
        feeds = tuple(
            replace(
                strips.of_persons(channel.status(now_s)),
                rules=self._rules.holding(channel.spec.name),
                held=self._rules.held(channel.spec.name),
            )
            for channel, strips in zip(self._channels, self._strips, strict=True)
        )
        while self._strip_s + 1.0 <= now_s:
            self._strip_s += 1.0
            for strips, feed in zip(self._strips, feeds, strict=True):
                strips.add_second(feed)
        return WatchStatus(
            version=code_version(),
            model=self._model,
            began=utc(self._began_s),
            now=utc(time.time()),
            uptime_s=now_s - self._start_s,
            feeds=feeds,
            alerts=tuple(self._alerts),
            load=load,
            memory_mb=resident_mb(),
            cpu_s=time.process_time(),
            failed_actions=failed_actions,
            strips={
                feed.name: strips.labels for feed, strips in zip(feeds, self._strips, strict=True)
            },
            labels=self._labels,
        )


def resident_mb() -> float:
    """Return the resident memory of this process; its peak where only that is available."""
    if sys.platform == "win32":
        return 0.0
    try:
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    except (OSError, IndexError, ValueError):
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / (1e6 if sys.platform == "darwin" else 1e3)
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
