"""The timelines of one stream: of the heads of its model, and of each of its persons."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from costream.core.hysteresis import is_among, match_labels
from costream.core.records import Segment
from costream.models.base import ModelHead, ModelInfo
from costream.options.options import Options
from costream.runtime.segments import IndependentSegmenter, PresenceSegmenter, Segmenter
from costream.weights_io.card import Timeline


@dataclass(frozen=True)
class HeadTimeline:
    """A classifier head of the model and the timeline of its predictions."""

    head: ModelHead
    name: str | None  # marks its records; None where there is only one head
    timeline: Timeline
    segmenter: Segmenter | IndependentSegmenter
    person: int | None = None  # number of the person it is about

    def named(self, segment: Segment) -> Segment:
        """Return the segment with the names of its model and person."""
        return replace(segment, model=self.name, person=self.person)


class TimelineRow(NamedTuple):
    """A timeline and where its scores are in the result of a step."""

    row: int
    number: int  # of the head
    timeline: HeadTimeline


class StreamTimelines:
    """The timelines of one stream, of which persons join and leave.

    Heads of the stream have one timeline each; heads by person, where persons are followed, have
    one for each person. ``stream``: the timelines of the stream. ``people``: lists of timelines by
    number of the person, in the order of the rows of the results. ``rows``: all timelines.

    ``only``: the labels that may open a segment; None: all.
    """

    def __init__(self, info: ModelInfo, options: Options, *, follows: bool) -> None:
        """``follows``: whether persons are followed.

        Raises UsageError for a label of ``options.only`` that no head of the model has.
        """
        self._info, self._options = info, options
        events = [label for head in info.heads for label in head.card.events]
        self.only = match_labels(options.only, events) if options.only else None
        self._person_heads = [head for head in info.heads if follows and head.by_person]
        self._stream_heads = [head for head in info.heads if not (follows and head.by_person)]
        self.stream: list[HeadTimeline] = []
        self.people: dict[int, list[HeadTimeline]] = {}
        self.rows: list[TimelineRow] = []
        self._nobody: list[HeadTimeline] = []  # shown while no person is there

    def open(self, rate_hz: float, length_s: float | None = None) -> None:
        """Make the timelines, which are empty.

        ``rate_hz``: steps per second. ``length_s``: of the data to be processed; None: unknown.
        Raises UsageError for settings that contradict each other.
        """
        self._rate_hz, self._length_s = rate_hz, length_s
        self.stream = self._new(self._stream_heads)
        self._nobody = self._new(self._person_heads)
        self._list_rows()

    @property
    def current(self) -> list[HeadTimeline]:
        """One timeline for each head, in their order, by person that of the first; [] at first."""
        person = next(iter(self.people.values()), self._nobody)
        by_head = {id(entry.head): entry for entry in (*self.stream, *person)}
        return [by_head[id(head)] for head in self._info.heads if id(head) in by_head]

    @property
    def first_person(self) -> list[HeadTimeline]:
        """The timelines of the first row of persons; empty if there is none."""
        return next(iter(self.people.values()), [])

    def begin(self, start_s: float) -> None:
        """Begin the timelines of the stream with data from ``start_s`` on."""
        for entry in self.stream:
            entry.segmenter.begin(start_s)

    def update_persons(self, numbers: Sequence[int], start_s: float) -> list[HeadTimeline]:
        """Set who is there; return the timelines of those who have left, to be finished.

        ``start_s``: start of the data of new persons.
        """
        before = self.people
        if list(numbers) == list(before):
            return []
        new = {n: self._new(self._person_heads, n) for n in numbers if n not in before}
        for timelines in new.values():
            for entry in timelines:
                entry.segmenter.begin(start_s)
        self.people = {n: before.get(n) or new[n] for n in numbers}
        self._list_rows()
        return [entry for n, left in before.items() if n not in numbers for entry in left]

    def scores(self) -> dict[int | None, npt.NDArray[np.float64]]:
        """Return the smoothed scores of each person and (None) of the stream, [C] of all heads.

        They are NaN where a head has none for a person, or for the stream.
        """
        parties: list[tuple[int | None, list[HeadTimeline]]] = [*self.people.items()]
        if self.stream:
            parties.append((None, self.stream))
        out = {}
        for person, timelines in parties:
            by_head = {id(entry.head): entry.segmenter.smoother.scores for entry in timelines}
            parts = []
            for head in self._info.heads:
                scores = by_head.get(id(head))
                missing = 0.0 if id(head) in by_head else np.nan
                parts.append(np.full(len(head.card.labels), missing) if scores is None else scores)
            out[person] = np.concatenate(parts)
        return out

    def pending(self, end_s: float) -> Iterator[Segment]:
        """Yield the segments of labels that exclude one another that would end at ``end_s``."""
        for _, _, entry in self.rows:
            if isinstance(entry.segmenter, Segmenter):
                for segment in entry.segmenter.pending(end_s):
                    yield entry.named(segment)

    def _list_rows(self) -> None:
        parts = ((0, self.stream), *enumerate(self.people.values()))
        self.rows = [
            TimelineRow(row, number, entry)
            for row, timelines in parts
            for number, entry in enumerate(timelines)
        ]

    def _new(self, heads: Sequence[ModelHead], person: int | None = None) -> list[HeadTimeline]:
        several, out = len(self._info.heads) > 1, []
        for head in heads:
            name = head.card.name if several else None
            timeline = self._options.timeline(head.card, self._length_s)
            segmenter = _segmenter(self._info, head, timeline, self._rate_hz, self.only)
            out.append(HeadTimeline(head, name, timeline, segmenter, person))
        return out


def _segmenter(
    info: ModelInfo,
    head: ModelHead,
    timeline: Timeline,
    rate_hz: float,
    only: tuple[str, ...] | None,
) -> Segmenter | IndependentSegmenter:
    card = head.card
    if head.rate_hz is None:
        # A network's delay is a number of steps, whatever the duration of a step.
        delay_s, outputs_hz = card.delay_s * info.card.rate_hz / rate_hz, rate_hz / info.stride
    else:
        delay_s, outputs_hz = card.delay_s, min(rate_hz, head.rate_hz)
    about = (card.labels, timeline, outputs_hz, delay_s)
    if card.finds_objects:
        return PresenceSegmenter(*about)
    ahead = info.sound is not None
    if card.multilabel:
        return IndependentSegmenter(*about, only, ahead=ahead)
    return Segmenter(*about, card.background, only, ahead=ahead, each=info.text)


def active_label(timelines: Sequence[HeadTimeline], only: tuple[str, ...] | None) -> str | None:
    """Return the best label that is at or above its threshold now, except the background.

    It is the label of the first head that has one which counts, see ``presence_s``.
    """
    for entry in timelines:
        card, scores = entry.head.card, entry.segmenter.smoother.scores
        if scores is None or not entry.segmenter.counts:
            continue
        sure = [
            (score, label)
            for label, score in zip(card.labels, scores.tolist(), strict=True)
            if label != card.background
            and is_among(label, only)
            and score >= entry.timeline.threshold_of(label)
        ]
        if sure:
            return max(sure)[1]
    return None


def smoothed_scores(timelines: Sequence[HeadTimeline]) -> tuple[float, ...]:
    """Return the state of the smoothing: the newest time, then the scores of all heads.

    Empty when no scores are smoothed, or before the first ones.
    """
    smoothers = [entry.segmenter.smoother for entry in timelines]
    scores = [s.scores for s in smoothers if s.scores is not None]
    if not scores or not any(s.smooth_s for s in smoothers):
        return ()
    return tuple(np.concatenate([[smoothers[0].time_s], *scores]).tolist())


def resume_smoothing(timelines: Sequence[HeadTimeline], smoothed: Sequence[float]) -> None:
    """Resume the smoothing from the state that ``smoothed_scores`` returned."""
    if not smoothed:
        return
    time_s, scores = smoothed[0], np.array(smoothed[1:])
    for entry in timelines:
        smoother, count = entry.segmenter.smoother, len(entry.head.card.labels)
        smoother.time_s, smoother.scores = time_s, scores[:count]
        scores = scores[count:]
