"""How the feeds of a watch are doing: what its views, its status file and its endpoint show."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from costream.records import Alert, Scored

# "connecting": not there yet; "live": data come; "stalled": open, but no data for a while;
# "waiting": lost, to be tried again; "lost": given up; "ended": over, or stopped
FeedState = Literal["connecting", "live", "stalled", "waiting", "lost", "ended"]


@dataclass(frozen=True)
class FeedStatus:
    """One feed at one moment. Totals count from the start of the watch."""

    name: str  # what its files are named after
    source: str  # redacted
    state: FeedState
    message: str = ""  # why it is not live; one line, redacted
    age_s: float | None = None  # since its newest frame or block came; None: none ever did
    time_s: float | None = None  # media time of its newest step
    frames_hz: float = 0.0  # frames or blocks that came lately, a second
    steps_hz: float = 0.0  # steps taken lately, a second
    steps: int = 0
    lag_s: float = 0.0  # of its newest step: now minus frame time
    dropped: int = 0  # steps left out to keep up
    reconnects: int = 0
    gaps: int = 0
    errors: int = 0
    alerts: int = 0
    top: tuple[Scored, ...] = ()  # newest prediction, best first
    active: str | None = None  # label that is at least at the threshold now, no background
    network_ms: float = 0.0  # of its share of the newest steps, frontend included
    macs: int = 0
    dense_macs: int = 0


@dataclass(frozen=True)
class WatchStatus:
    """All feeds at one moment."""

    version: str
    model: str
    began: str  # ISO 8601, UTC: when the watch began
    now: str
    uptime_s: float
    feeds: tuple[FeedStatus, ...]
    alerts: tuple[tuple[str, Alert], ...] = ()  # the newest ones, oldest first: feed and alert
    load: float = 0.0  # share of the time that the network was at work lately
    memory_mb: float = 0.0  # resident
    failed_actions: int = 0  # of alerts
    strips: dict[str, tuple[str | None, ...]] = field(default_factory=dict)  # see below
    # feed -> active label of each of the newest seconds, oldest first (None: nothing)
