"""Content of a report on one run, collected record by record in constant memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from costream.core.costs import CostTotals
from costream.core.places import Crossing, ZoneEvent
from costream.core.readable import ReadableRows
from costream.core.records import (
    STAGES,
    Alert,
    Compute,
    Fault,
    Gap,
    Header,
    Objects,
    Prediction,
    Segment,
    Summary,
    finds_objects,
)
from costream.report.bins import Bins
from costream.report.heads import Heads
from costream.report.label_stats import LabelStats, PlaceStats
from costream.sinks.result_reader import Content, Totals, UnreadableRecord

MOST_TROUBLES = 200
MACS, DENSE, FIRST_STAGE = 0, 1, 2  # columns of RunSummary.cost
_STEP_S = 1 / 8  # if no header states the rate
_HELD_S = 1.0  # for so long a curve keeps a score where a head has results at fewer steps


@dataclass
class RunSummary:
    """Content of one run. Lists hold the first records only; the counts are complete."""

    most_bins: int = 1200
    most_segments: int = 2000  # kept individually; ``spans`` covers all
    header: Header | None = None
    heads: Heads = field(default_factory=Heads)
    final: Summary | None = None  # the last record of a run that has ended
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
    _person_steps: dict[str | None, int] = field(default_factory=dict)  # newest, by head
    _held: dict[str | None, Prediction] = field(default_factory=dict)  # newest, by head
    _objects_s: float | None = None  # time of the newest step with objects

    @classmethod
    def of(cls, contents: Iterable[Content], most_bins: int = 1200) -> RunSummary:
        """Return the summary of the records of one run, with segments of music joined to pieces."""
        summary, pieces = cls(most_bins), ReadableRows()
        for content in contents:
            if isinstance(content, Header):
                pieces = ReadableRows(content)
            for shown in pieces.add(content) if isinstance(content, Segment) else [content]:
                summary.add(shown)
        for piece in pieces.rest():
            summary.add(piece)
        return summary

    def add(self, content: Content) -> None:
        """Add the next record."""
        take = _TAKE.get(type(content))
        if take is not None:
            take(self, content)

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
        return self.final is not None and self.final.complete and not self.broken_off

    @property
    def finds_objects(self) -> bool:
        """Whether steps have objects instead of predictions."""
        return self.header is not None and finds_objects(self.header)

    @property
    def sampled(self) -> bool:
        """Whether only a part of the steps was written: those around events, and some others."""
        return self.header is not None and self.header.options.get("write") == "events"

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
        costs = self.costs.to_json()
        if self.sampled and self.final is not None and self.final.steps and self.costs.steps:
            final, factor = self.final, self.final.steps / self.costs.steps
            for name in ("macs", "dense_macs"):
                total = getattr(final, name)
                costs |= {name: total, f"{name}_per_step": total / final.steps}
            costs["steps"] = final.steps
            costs["total_s"] = {stage: s and factor * s for stage, s in costs["total_s"].items()}
        return costs

    def _prediction(self, record: Prediction) -> None:
        if record.person is not None:
            if self._person_steps.get(record.model) == record.i:
                return  # the curves show the first person of each step
            self._person_steps[record.model] = record.i
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
        self._held[record.model] = record

    def _objects(self, record: Objects) -> None:
        curves = self._step(record)
        self._hold(curves)
        self._objects_s, self._last_step = record.time_s, record.i
        self.steps += 1
        best: dict[int, float] = {}
        for box in record.boxes:
            if math.isfinite(box.score):
                column = self._column(box.label)
                best[column] = max(best.get(column, 0.0), box.score)
        curves.add(record.time_s, best.items())

    def _hold(self, curves: Bins) -> None:
        """Add the newest scores of heads without a prediction in the step that has ended."""
        for held in self._held.values():
            if self._objects_s is not None and 0 < self._objects_s - held.time_s < _HELD_S:
                values = [(self._column(label), p) for label, p in self.scores(held).items()]
                known = [(column, p) for column, p in values if math.isfinite(p)]
                curves.add(self._objects_s, known, counted=True)

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

    def _header(self, header: Header) -> None:
        self.header, self.heads = header, Heads(header)
        for label in self.heads.all_labels():
            self._column(label)

    def _final(self, final: Summary) -> None:
        self.final = final

    def _totals(self, totals: Totals) -> None:
        self.totals = totals.values

    def _alert(self, alert: Alert) -> None:
        self.alert_count += 1
        self.alerts += [alert][: MOST_TROUBLES - len(self.alerts)]

    def _zone_event(self, event: ZoneEvent) -> None:
        self.visits.setdefault((event.zone, event.label), PlaceStats()).add(event)

    def _crossing(self, event: Crossing) -> None:
        self.visits.setdefault((event.line, event.label), PlaceStats()).add(event)

    def _gap(self, gap: Gap) -> None:
        self._seen(gap.start_s, gap.end_s)
        self.gap_count += 1
        self.gap_s += max(0.0, gap.end_s - gap.start_s)
        self.gaps += [gap][: MOST_TROUBLES - len(self.gaps)]

    def _fault(self, fault: Fault) -> None:
        self.fault_count += fault.count
        self.faults += [fault][: MOST_TROUBLES - len(self.faults)]

    def _damage(self, damage: UnreadableRecord) -> None:
        self.broken_off = self.broken_off or damage.last
        self.damages += [damage][: MOST_TROUBLES - len(self.damages)]

    def _seen(self, start_s: float, end_s: float) -> None:
        self.first_s = min(self.first_s, start_s)
        self.last_s = max(self.last_s, end_s)

    def _column(self, label: str) -> int:
        return self.labels.setdefault(label, len(self.labels))


# Records of other types, such as levels, are not part of a report.
_TAKE: dict[type, Callable[[RunSummary, Any], None]] = {
    Header: RunSummary._header,
    Prediction: RunSummary._prediction,
    Objects: RunSummary._objects,
    Compute: RunSummary._compute,
    Segment: RunSummary._segment,
    Alert: RunSummary._alert,
    ZoneEvent: RunSummary._zone_event,
    Crossing: RunSummary._crossing,
    Gap: RunSummary._gap,
    Fault: RunSummary._fault,
    UnreadableRecord: RunSummary._damage,
    Totals: RunSummary._totals,
    Summary: RunSummary._final,
}
