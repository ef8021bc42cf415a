"""Statistics of the segments of a label, and of its visits to a place."""

from __future__ import annotations

import math
from dataclasses import dataclass

from costream.core.places import Crossing, ZoneEvent
from costream.core.records import Segment


@dataclass
class LabelStats:
    """Statistics of the segments of one label."""

    count: int = 0
    total_s: float = 0.0
    weighted: float = 0.0  # scores times seconds
    scored_s: float = 0.0
    longest: Segment | None = None

    def add(self, segment: Segment) -> None:
        """Count a segment."""
        length_s = max(0.0, segment.end_s - segment.start_s)
        scored_s = length_s if math.isfinite(segment.score) else 0.0
        weighted = segment.score * length_s if scored_s else 0.0
        self.merge(LabelStats(1, length_s, weighted, scored_s, segment))

    def merge(self, other: LabelStats) -> None:
        """Add the statistics of ``other``."""
        self.count += other.count
        self.total_s += other.total_s
        self.weighted += other.weighted
        self.scored_s += other.scored_s
        if self.longest_s < other.longest_s or self.longest is None:
            self.longest = other.longest

    @property
    def longest_s(self) -> float:
        """Length of the longest segment, seconds."""
        return 0.0 if self.longest is None else self.longest.end_s - self.longest.start_s

    @property
    def score(self) -> float:
        """Mean score over the time of the segments; NaN when there is none."""
        return self.weighted / self.scored_s if self.scored_s else math.nan


@dataclass
class PlaceStats:
    """Statistics of one label in one zone, or at one line."""

    ins: int = 0
    outs: int = 0
    dwell_s: float = 0.0  # of all that have left
    longest_s: float = 0.0
    most: int | None = None  # at once, in a zone

    def add(self, event: ZoneEvent | Crossing) -> None:
        """Count an event."""
        if isinstance(event, Crossing):
            self.ins += event.direction == "in"
            self.outs += event.direction == "out"
            return
        self.ins += event.event == "enter"
        self.outs += event.event == "leave"
        self.dwell_s += event.dwell_s if event.event == "leave" else 0.0
        self.longest_s = max(self.longest_s, event.dwell_s)
        self.most = max(self.most or 0, event.now)
