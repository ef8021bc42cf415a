"""What is known of a run while it runs, from its records: the numbers behind both views."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from costream.records import (
    Compute,
    Fault,
    Gap,
    Header,
    Picture,
    Prediction,
    Record,
    Scored,
    Segment,
)
from costream.sinks.figure import Figure, View
from costream.ui.strip import Strip

STAGES = ("decode", "frontend", "network", "sink")

# Weight of the newest step in the shown times: they settle within a second or two, and a single
# slow step does not make the figures jump.
_NEWEST = 0.05

# A label counts as going on while it keeps this share of the threshold it opened with; the same
# hysteresis as the timeline's default, so that what is shown is close to what will be written.
_LOW = 0.6


@dataclass
class Current:
    """The label that goes on now."""

    label: str
    since_s: float
    score: float


class RunState:
    """Follows one run. ``now_s`` arguments are seconds of a monotonic clock."""

    def __init__(self, header: Header, now_s: float) -> None:
        timeline = header.options.get("timeline")
        self.header = header
        self.threshold: float = getattr(timeline, "threshold", 0.5)
        self.began_s = now_s
        self.start_s: float | None = None  # time of the first step
        self.time_s: float | None = None  # time of the newest step
        self.steps = 0
        self.top: tuple[Scored, ...] = ()
        self.current: Current | None = None
        self.segments: deque[Segment] = deque(maxlen=8)
        self.ms = dict.fromkeys(STAGES, 0.0)
        self.macs = 0
        self.dense_macs = 0
        self.dropped = 0
        self.errors = 0
        self.lag_s = 0.0
        self.seen: dict[str, None] = {}  # labels of the strip, in order of appearance
        self.strip: Strip | None = None
        self._marked_s: float | None = None  # the strip is marked up to here
        self.figure: Figure | None = None  # the persons of the newest step
        self._view = View()

    def add(self, record: Record) -> None:
        """Take one record."""
        if isinstance(record, Prediction):
            self._predict(record)
        elif isinstance(record, Compute):
            self._spend(record)
        elif isinstance(record, Segment):
            self.segments.append(record)
        elif isinstance(record, Fault):
            self.errors += record.count
        elif isinstance(record, Gap):
            self.current = None

    def look(self, picture: Picture) -> None:
        """Take what the newest step saw, if it was persons."""
        if picture.skeleton is not None:
            self.figure = self._view.figure(picture.skeleton)

    @property
    def media_s(self) -> float:
        """Media time processed, seconds."""
        if self.start_s is None or self.time_s is None:
            return 0.0
        return self.time_s - self.start_s + 1 / self.header.rate_hz

    def x_realtime(self, now_s: float) -> float:
        """Give media time over time passed since the run began."""
        return self.media_s / max(now_s - self.began_s, 1e-9)

    def eta_s(self, now_s: float) -> float | None:
        """Give the seconds the run will still take, None while that is unknown."""
        if self.header.duration_s is None or not self.steps:
            return None
        left_s = max(0.0, self.header.duration_s - self.media_s)
        return left_s / max(self.x_realtime(now_s), 1e-9)

    def _predict(self, record: Prediction) -> None:
        self._tick(record.time_s)
        self.top = record.top
        self._follow(record)
        if self.current is not None:
            self.seen.setdefault(self.current.label)
        self._mark(record.time_s)

    def _mark(self, time_s: float) -> None:
        """Put the current label on the strip."""
        if self.strip is None:
            length_s, step_s = self.header.duration_s, 1 / self.header.rate_hz
            self.strip = Strip(time_s, length_s, step_s)
        self.strip.add(time_s, self.current.label if self.current else None)
        self._marked_s = time_s

    def _follow(self, record: Prediction) -> None:
        """Keep, change or drop the current label."""
        events = [pair for pair in record.top if pair[0] != self.header.background]
        best, score = events[0] if events else ("", 0.0)
        current = self.current
        if score >= self.threshold and (current is None or best != current.label):
            since_s = max(record.time_s - self.header.delay_s, self.start_s or 0.0)
            self.current = Current(best, since_s, score)
        elif current is not None:
            current.score = dict(events).get(current.label, 0.0)
            if current.score < _LOW * self.threshold:
                self.current = None

    def _spend(self, record: Compute) -> None:
        self._tick(record.time_s)
        if self.top and record.time_s != self._marked_s:
            self._mark(record.time_s)  # a step without output: what was goes on
        weight = _NEWEST if self.steps else 1.0
        for name in STAGES:
            self.ms[name] += weight * (getattr(record.ms, name) - self.ms[name])
        self.steps += 1
        self.macs += record.macs
        self.dense_macs += record.dense_macs
        self.dropped = record.dropped
        self.lag_s = record.lag_s

    def _tick(self, time_s: float) -> None:
        self.start_s = time_s if self.start_s is None else self.start_s
        self.time_s = time_s
