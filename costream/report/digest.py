"""Content of a report on one run, collected record by record in constant memory."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from costream.core.costs import CostTotals
from costream.core.music import MusicPieces
from costream.core.places import Crossing, ZoneEvent
from costream.core.records import (
    STAGES,
    Alert,
    Compute,
    Fault,
    Gap,
    Head,
    Header,
    Level,
    Objects,
    Prediction,
    Segment,
    Summary,
    finds_objects,
    has_overlaps,
)
from costream.sinks.result_reader import Content, Totals, UnreadableRecord


class Heads:
    """The heads of a run, and display names of labels: with the head's name if two share one.

    Persons who have predictions of their own are heads, too, if there are several.
    Segments of objects overlap, so there each label with segments is treated as a head.
    """

    def __init__(self, header: Header | None = None) -> None:
        self._header = header
        heads = () if header is None else header.heads or ()
        self._heads: dict[str, Head] = {head.model: head for head in heads}
        counts = Counter(label for head in heads for label in set(head.labels))
        self._shared = {label for label, count in counts.items() if count > 1}
        self._by_label = header is not None and has_overlaps(header)
        self._seen: set[str] = set()  # labels that have segments
        self._persons: set[int] = set()  # with segments
        self._owners = {
            self.shown(label, head.model): (head, label) for head in heads for label in head.labels
        }

    @property
    def names(self) -> tuple[str | None, ...]:
        """One entry per timeline; a single None if there is only one."""
        if self._by_label:
            return tuple(label for label in self.labels(None) if label in self._seen) or (None,)
        if len(self._persons) > 1:
            return tuple(f"person {number}" for number in sorted(self._persons))
        return tuple(self._heads) or (None,)

    def shown(self, label: str, model: str | None) -> str:
        """Return the display name of a label of a head."""
        return f"{label} ({model})" if label in self._shared and model in self._heads else label

    def labels(self, model: str | None) -> tuple[str, ...]:
        """Return the display names of a head's labels, in the order of its scores."""
        head = self._heads.get(model or "")
        if head is not None:
            return tuple(self.shown(label, model) for label in head.labels)
        return () if self._header is None else self._header.labels

    def all_labels(self) -> tuple[str, ...]:
        """Return the display names of the labels of all heads."""
        return tuple(label for name in self._heads or (None,) for label in self.labels(name))

    def owns(self, model: str | None, label: str) -> bool:
        """Return whether a label, given by display name, is on the timeline of a head."""
        if self._by_label:
            return model is None or label == model
        if self._persons and not self._heads:
            return True
        owner = self._owners.get(label)
        return model is None or (owner is not None and owner[0].model == model)

    def backgrounds(self) -> frozenset[str]:
        """Return the display names of the background labels."""
        if self._heads:
            pairs = ((head.background, head.model) for head in self._heads.values())
            return frozenset(self.shown(label, model) for label, model in pairs if label)
        background = None if self._header is None else self._header.background
        return frozenset() if background is None else frozenset([background])

    def threshold(self, label: str) -> float | None:
        """Return the probability that opens a segment of a label; None if that is unknown."""
        value: object = None
        timeline = None if self._header is None else self._header.options.get("timeline")
        if label in self._owners:
            head, own = self._owners[label]
            value = head.threshold_of(own)
        elif isinstance(timeline, dict):
            thresholds = timeline.get("thresholds")
            own_value = thresholds.get(label) if isinstance(thresholds, dict) else None
            value = timeline.get("threshold") if own_value is None else own_value
        return float(value) if isinstance(value, (int, float)) and 0 <= value <= 1 else None

    def own(self, segment: Segment) -> Segment:
        """Return a segment with the display names of its label and its head."""
        if self._by_label:
            self._seen.add(segment.label)
            return replace(segment, model=segment.label)
        if segment.person is not None:
            self._persons.add(segment.person)
            return replace(segment, model=f"person {segment.person}")
        label = self.shown(segment.label, segment.model)
        return segment if label == segment.label else replace(segment, label=label)


MOST_TROUBLES = 200
MACS, DENSE, FIRST_STAGE = 0, 1, 2  # columns of Digest.cost
_STEP_S = 1 / 8  # if no header states the rate


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


@dataclass
class Digest:
    """Content of one run. Lists hold the first records only; the counts are complete."""

    most_bins: int = 1200
    most_segments: int = 2000  # kept individually; ``spans`` covers all
    header: Header | None = None
    heads: Heads = field(default_factory=Heads)
    summary: Summary | None = None
    segments: list[Segment] = field(default_factory=list)
    segment_count: int = 0
    stats: dict[str, LabelStats] = field(default_factory=dict)
    gaps: list[Gap] = field(default_factory=list)
    gap_count: int = 0
    gap_s: float = 0.0
    faults: list[Fault] = field(default_factory=list)
    fault_count: int = 0
    alerts: list[Alert] = field(default_factory=list)
    alert_count: int = 0
    visits: dict[tuple[str, str], PlaceStats] = field(default_factory=dict)  # by place, label
    damages: list[UnreadableRecord] = field(default_factory=list)
    damage_count: int = 0
    broken_off: bool = False  # the results are truncated, as after a crash
    steps: int = 0  # with predictions or objects
    warmup_steps: int = 0
    labels: dict[str, int] = field(default_factory=dict)  # label -> column of curves
    curves: Bins | None = None
    cost: Bins | None = None
    spans: Bins | None = None  # seconds of segments, columns as in curves
    costs: CostTotals = field(default_factory=CostTotals)
    totals: dict[str, Any] | None = None  # of a JSON document
    all_scores: bool = False
    dropped: int = 0
    first_s: float = math.inf
    last_s: float = -math.inf
    _last_step: int | None = None

    @classmethod
    def of(cls, contents: Iterable[Content], most_bins: int = 1200) -> Digest:
        """Return the digest of ``contents``, those of one run: music by pieces."""
        digest, pieces = cls(most_bins), MusicPieces()
        for content in contents:
            if isinstance(content, Header):
                pieces = MusicPieces(content)
            for shown in pieces.add(content) if isinstance(content, Segment) else [content]:
                digest.add(shown)
        for piece in pieces.rest():
            digest.add(piece)
        return digest

    def add(self, content: Content) -> None:
        """Add the next record."""
        if isinstance(content, Prediction):
            self._prediction(content)
        elif isinstance(content, Compute):
            self._compute(content)
        elif isinstance(content, Segment):
            self._segment(content)
        elif isinstance(content, Header):
            self.header, self.heads = content, Heads(content)
            for label in self.heads.all_labels():
                self._column(label)
        elif isinstance(content, Summary):
            self.summary = content
        elif isinstance(content, Totals):
            self.totals = content.values
        elif isinstance(content, Alert):
            self.alert_count += 1
            self.alerts += [content][: MOST_TROUBLES - len(self.alerts)]
        elif isinstance(content, Objects):
            self._objects(content)
        elif isinstance(content, (ZoneEvent, Crossing)):
            place = content.zone if isinstance(content, ZoneEvent) else content.line
            self.visits.setdefault((place, content.label), PlaceStats()).add(content)
        elif not isinstance(content, Level):
            self._trouble(content)

    @property
    def step_s(self) -> float:
        """Seconds per step, according to the header."""
        rate = self.header.rate_hz if self.header is not None else math.nan
        return 1 / rate if math.isfinite(rate) and rate > 0 else _STEP_S

    def timeline(self, head: str | None) -> Iterator[tuple[int, Segment]]:
        """Yield the kept segments of a head (None: all) and their indices in ``segments``."""
        for k, segment in enumerate(self.segments):
            if head is None or segment.model == head:
                yield k, segment

    def columns(self, head: str | None) -> list[int]:
        """Return the columns of a head's labels."""
        return [column for label, column in self.labels.items() if self.heads.owns(head, label)]

    @property
    def complete(self) -> bool:
        """Whether the run reached the end of its source, and the results are not truncated."""
        return self.summary is not None and self.summary.complete and not self.broken_off

    @property
    def finds_objects(self) -> bool:
        """Whether steps have objects instead of predictions."""
        return self.header is not None and finds_objects(self.header)

    @property
    def live(self) -> bool:
        """Whether this is a watch, whose results may continue in other files."""
        return self.header is not None and self.header.began is not None

    @property
    def span_s(self) -> tuple[float, float]:
        """Start and end of the time shown; the end is always after the start."""
        if self.first_s > self.last_s:
            return 0.0, 1.0
        return self.first_s, max(self.last_s, self.first_s + self.step_s)

    def cost_json(self) -> dict[str, Any]:
        """Return the cost as ``CostTotals.to_json`` does."""
        if self.totals is not None and not self.costs.steps:
            return self.totals
        return self.costs.to_json()

    def _prediction(self, record: Prediction) -> None:
        if record.person is not None and record.i == self._last_step:
            return  # the curves are those of the first person
        more = record.model is not None and record.i == self._last_step  # of another head
        self._last_step = record.i
        self.steps += not more
        self.warmup_steps += record.warmup and not more
        curves = self._step(record)
        if record.scores is not None and self.header is not None:
            self.all_scores = True
        scored = self.scores(record).items()
        values = [(self._column(label), p) for label, p in scored if math.isfinite(p)]
        curves.add(record.time_s, values, counted=more)

    def _objects(self, record: Objects) -> None:
        self.steps += 1
        curves = self._step(record)
        best: dict[int, float] = {}
        for box in record.boxes:
            if math.isfinite(box.score):
                column = self._column(box.label)
                best[column] = max(best.get(column, 0.0), box.score)
        curves.add(record.time_s, best.items())

    def _step(self, record: Prediction | Objects) -> Bins:
        """Return the curves, which a step is about to be added to."""
        self._seen(record.time_s, record.time_s + self.step_s)
        if self.curves is None:
            self.curves = Bins(self.most_bins, self.step_s)
        return self.curves

    def scores(self, record: Prediction) -> dict[str, float]:
        """Return the score of each label in a prediction."""
        if record.scores is not None and self.header is not None:
            return dict(zip(self.heads.labels(record.model), record.scores, strict=False))
        return {self.heads.shown(label, record.model): p for label, p in record.top}

    def _compute(self, record: Compute) -> None:
        self._seen(record.time_s, record.time_s + self.step_s)
        self.costs.add(record)
        self.dropped = record.dropped
        if self.cost is None:
            self.cost = Bins(self.most_bins, self.step_s)
        ms = [getattr(record.ms, stage) for stage in STAGES]
        self.cost.add(record.time_s, enumerate((record.macs, record.dense_macs, *ms)))

    def _segment(self, record: Segment) -> None:
        record = self.heads.own(record)
        self._seen(record.start_s, record.end_s)
        self.segment_count += 1
        if len(self.segments) < self.most_segments:
            self.segments.append(record)
        if self.spans is None:
            self.spans = Bins(self.most_bins, self.step_s)
        self.spans.add_span(record.start_s, record.end_s, self._column(record.label))
        self.stats.setdefault(record.label, LabelStats()).add(record)

    def _trouble(self, content: Gap | Fault | UnreadableRecord) -> None:
        if isinstance(content, Gap):
            self._seen(content.start_s, content.end_s)
            self.gap_count += 1
            self.gap_s += max(0.0, content.end_s - content.start_s)
            self.gaps += [content][: MOST_TROUBLES - len(self.gaps)]
        elif isinstance(content, Fault):
            self.fault_count += content.count
            self.faults += [content][: MOST_TROUBLES - len(self.faults)]
        else:
            self.damage_count += 1
            self.broken_off = self.broken_off or content.last
            self.damages += [content][: MOST_TROUBLES - len(self.damages)]

    def _seen(self, start_s: float, end_s: float) -> None:
        self.first_s = min(self.first_s, start_s)
        self.last_s = max(self.last_s, end_s)

    def _column(self, label: str) -> int:
        return self.labels.setdefault(label, len(self.labels))


Array = npt.NDArray[np.float64]


class Bins:
    """Sums and maxima of columns of numbers over bins of equal length.

    The bins begin at the first time; whenever time exceeds them, they double in length. A column
    that is missing in a step counts as zero.
    """

    def __init__(self, most: int, step_s: float) -> None:
        """``most``: even number of bins; ``step_s``: their initial length."""
        self.start_s = 0.0
        self.bin_s = step_s
        self.steps = np.zeros(most)  # [N] number of steps in each bin
        self._sums = np.zeros((most, 4))  # [N, columns]
        self._tops = np.zeros((most, 4))
        self._used = 0

    def add(
        self, time_s: float, values: Iterable[tuple[int, float]], *, counted: bool = False
    ) -> None:
        """Add a step: pairs of column and number. Times must not precede the first.

        ``counted``: these are more columns of the last step.
        """
        if self._used == 0:
            self.start_s = time_s
        k = max(0, int((time_s - self.start_s) / self.bin_s + 1e-6))
        while k >= len(self.steps):
            self._double()
            k //= 2
        self._used = max(self._used, k + 1)
        self.steps[k] += not counted
        for column, value in values:
            if column >= self._sums.shape[1]:
                self._widen(column + 1)
            self._sums[k, column] += value
            if value > self._tops[k, column]:
                self._tops[k, column] = value

    def add_span(self, start_s: float, end_s: float, column: int) -> None:
        """Add the seconds from start to end to a column of the bins that they overlap."""
        self.add(start_s, [(column, 0.0)])
        self.add(max(start_s, end_s - 1e-9), [(column, 0.0)])
        first = max(0, int((start_s - self.start_s) / self.bin_s + 1e-6))
        last = min(max(first, int((end_s - self.start_s) / self.bin_s)), len(self.steps) - 1)
        edges = self.start_s + np.arange(first, last + 2) * self.bin_s
        inside = np.minimum(edges[1:], end_s) - np.maximum(edges[:-1], start_s)
        self._sums[first : last + 1, column] += np.maximum(inside, 0.0)

    def fullest(self, columns: Sequence[int]) -> npt.NDArray[np.intp]:
        """Return for each bin the column with the largest sum, -1 where all are zero: [N]."""
        used = np.array([c for c in columns if c < self._sums.shape[1]], np.intp)
        if not len(used):
            return np.full(len(self._sums), -1, np.intp)
        sums = self._sums[:, used]
        return np.where(sums.max(axis=1) > 0, used[sums.argmax(axis=1)], -1)

    def times(self) -> Array:
        """Return the middle of every bin that contains a step: float64 [n]."""
        places = np.flatnonzero(self.steps).astype(np.float64)
        return self.start_s + (places + 0.5) * self.bin_s

    def means(self, column: int) -> Array:
        """Return the mean of a column in those bins: float64 [n]."""
        held = self.steps > 0
        means: Array = self._column(self._sums, column)[held] / self.steps[held]
        return means

    def maxima(self, column: int) -> Array:
        """Return the maximum of a column in those bins: float64 [n], not below zero."""
        return self._column(self._tops, column)[self.steps > 0]

    def total(self, column: int) -> float:
        """Return the sum of a column over all bins."""
        return float(self._column(self._sums, column).sum())

    def peak(self, column: int) -> float:
        """Return the maximum of a column over all bins, at least 0."""
        return float(self._column(self._tops, column).max())

    def most_in_a_bin(self) -> int:
        """Return the maximum number of steps in a bin."""
        return int(self.steps.max())

    def _column(self, of: Array, column: int) -> Array:
        values: Array = of[:, column] if column < of.shape[1] else np.zeros(len(of))
        return values

    def _double(self) -> None:
        half = len(self.steps) // 2
        for name, join in (("steps", np.add), ("_sums", np.add), ("_tops", np.maximum)):
            old: Array = getattr(self, name)
            new = np.zeros_like(old)
            new[:half] = join(old[0::2], old[1::2])
            setattr(self, name, new)
        self.bin_s *= 2
        self._used = half

    def _widen(self, columns: int) -> None:
        columns = max(columns, 2 * self._sums.shape[1])
        for name in ("_sums", "_tops"):
            old: Array = getattr(self, name)
            new = np.zeros((len(old), columns))
            new[:, : old.shape[1]] = old
            setattr(self, name, new)
