"""Status of a watch and its feeds, for its views, its status file and its metrics endpoint."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from costream.records import Alert, Scored

# "connecting": not open yet; "live": receiving data; "stalled": open, but no data for a while;
# "waiting": lost, will be retried; "lost": given up; "ended": finished, or stopped
FeedState = Literal["connecting", "live", "stalled", "waiting", "lost", "ended"]


@dataclass(frozen=True)
class FeedStatus:
    """Status of one feed at one time. Totals count from the start of the watch."""

    name: str  # base of its file names
    source: str  # redacted
    state: FeedState
    message: str = ""  # why it is not live; one line, redacted
    age_s: float | None = None  # since its newest frame or block arrived; None: none yet
    time_s: float | None = None  # media time of its newest step
    frames_hz: float = 0.0  # recent frames or blocks per second
    steps_hz: float = 0.0  # recent steps per second
    steps: int = 0
    lag_s: float = 0.0  # of its newest step: now minus frame time
    dropped: int = 0  # steps skipped to keep up
    reconnects: int = 0
    gaps: int = 0
    errors: int = 0
    alerts: int = 0
    top: tuple[Scored, ...] = ()  # newest prediction, best first
    active: str | None = None  # label at or above the threshold now, not the background
    network_ms: float = 0.0  # per step, its share of the newest steps, frontend included
    macs: int = 0
    dense_macs: int = 0


@dataclass(frozen=True)
class WatchStatus:
    """Status of all feeds at one time."""

    version: str
    model: str
    began: str  # ISO 8601, UTC: start of the watch
    now: str
    uptime_s: float
    feeds: tuple[FeedStatus, ...]
    alerts: tuple[tuple[str, Alert], ...] = ()  # the newest ones, oldest first: feed and alert
    load: float = 0.0  # recent share of the time in which the network was busy
    memory_mb: float = 0.0  # resident
    failed_actions: int = 0  # of alerts
    strips: dict[str, tuple[str | None, ...]] = field(default_factory=dict)  # see below
    # feed -> active label of each of the newest seconds, oldest first (None: nothing)
