"""The status of a watch and of each of its feeds, as the dashboard, files and brokers show it."""

from __future__ import annotations

from dataclasses import dataclass, field

from costream.core.places import PlaceCount
from costream.core.records import Alert, FeedState, Scored


@dataclass(frozen=True)
class SeenLabel:
    """How often one feed has shown a label, and when it last did."""

    label: str
    count: int  # finished segments; of text: lines
    last_s: float  # media time of the end of the last one; of text: of the line


@dataclass(frozen=True)
class PersonStatus:
    """What one person does now."""

    number: int  # from 1, in order of appearance
    active: str | None  # label at or above the threshold, not the background
    top: tuple[Scored, ...]  # newest prediction, best first
    strip: tuple[str | None, ...] = ()  # labels by second


@dataclass(frozen=True)
class FeedStatus:
    """Status of one feed at one time. Totals count from the start of the watch."""

    name: str  # base of its file names
    source: str  # redacted
    state: FeedState  # see the dashboard
    message: str = ""  # why it is not live; one line, redacted
    age_s: float | None = None  # since its newest frame or block arrived
    away_s: float | None = None  # since the start, if none has arrived yet
    time_s: float | None = None  # media time of its newest step
    frames_hz: float = 0.0  # recent frames or blocks per second
    steps_hz: float = 0.0  # recent steps per second
    steps: int = 0  # steps of the model
    lag_s: float = 0.0  # of its newest step: now minus frame time
    dropped: int = 0  # steps skipped to keep up
    reconnects: int = 0  # reconnections after a lost connection
    gaps: int = 0  # periods without data
    errors: int = 0  # errors of the source
    alerts: int = 0  # alerts that fired
    top: tuple[Scored, ...] = ()  # newest prediction, best first
    active: str | None = None  # label at or above the threshold now, not the background
    heads: dict[str, str | None] = field(default_factory=dict)  # of several models: each's label
    network_ms: float = 0.0  # per step, its share of the newest steps, frontend included
    macs: int = 0  # multiply-accumulates
    dense_macs: int = 0  # without continual inference
    seen: tuple[SeenLabel, ...] = ()  # in order of appearance
    places: tuple[PlaceCount, ...] = ()  # objects in zones and over lines
    persons: tuple[PersonStatus, ...] | None = None  # in the picture, if they have numbers
    level_db: float | None = None  # of its sound, if it is measured
    rules: dict[str, bool] = field(default_factory=dict)  # whether the condition of each holds
    held: int = 0  # alerts that were held back by the pause of their rule (`every`)


@dataclass(frozen=True)
class WatchStatus:
    """Status of all feeds at one time."""

    version: str  # of costream
    model: str  # name of the model card
    began: str  # ISO 8601, UTC: start of the watch
    now: str  # time of this status
    uptime_s: float  # time since then
    feeds: tuple[FeedStatus, ...]  # one a feed, see below
    alerts: tuple[tuple[str, Alert], ...] = ()  # the newest ones, oldest first: feed and alert
    load: float = 0.0  # recent share of the time in which the network was busy
    memory_mb: float = 0.0  # resident
    cpu_s: float = 0.0  # processor time since the start, of all threads
    failed_actions: int = 0  # of alerts
    strips: dict[str, tuple[str | None, ...]] = field(default_factory=dict)  # labels by second
    labels: tuple[str, ...] = ()  # of the model, without the background
