"""Records of one stream: predictions, timeline, compute costs and the summary."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from costream.core.clock import SILENT_S, Tick
from costream.core.errors import CostreamError, ExitCode
from costream.core.hysteresis import is_among, match_labels
from costream.core.records import (
    AudioBlock,
    Box,
    Compute,
    Data,
    Fault,
    Gap,
    Level,
    Objects,
    Picture,
    Prediction,
    Record,
    Scored,
    Segment,
    SourceInfo,
    StageTimes,
    Summary,
    TextLine,
    VideoFrame,
)
from costream.core.status import PersonStatus, SeenLabel
from costream.models.base import Model, ModelHead, StepResult
from costream.models.persons import PersonsModel
from costream.options.options import Options
from costream.runtime.alerts.snapshots import Scene
from costream.runtime.head_timelines import (
    HeadTimeline,
    active_label,
    new_timelines,
    smoothed_scores,
)
from costream.runtime.header import make_header
from costream.runtime.levels import LevelMeter
from costream.runtime.persons import MOST, PersonScores, add_costs
from costream.runtime.presence import Event, Presence
from costream.runtime.segments import PresenceSegmenter, Segmenter, best_scores
from costream.runtime.tracking import MAX_BOXES, ObjectTracker
from costream.sinks.base import PictureSink, Sink

log = logging.getLogger("costream")


class StreamRecorder:
    """One stream of a run: turns the results of its steps into records for its sinks."""

    def __init__(
        self,
        model: Model,
        options: Options,
        sinks: Sequence[Sink],
        *,
        follow_persons: bool = False,
        needs: Collection[str] = (),
    ) -> None:
        """``follow_persons``: each by itself, if the model sees one person.

        Those beside a whole stream are followed in any case. ``needs``: of rules: "places"
        (``presence``), "dB" or "dBA" (``meter``).

        Raises UsageError for a label of ``options.only`` that no head of the model has.
        """
        self.model, self.options, self.sinks = model, options, sinks
        self.follows = model.info.follows and (follow_persons or isinstance(model, PersonsModel))
        heads = model.info.heads
        self._own_heads = [h for h in heads if self.follows and h.by_person]  # of each person
        self._whole: list[HeadTimeline] = []  # of the stream as a whole
        self._nobody: list[HeadTimeline] = []  # of a person who is not there
        self._people: dict[int, list[HeadTimeline]] = {}
        events = [label for head in model.info.heads for label in head.card.events]
        self.only = match_labels(options.only, events) if options.only else None
        self.open_sinks: list[Sink] = []
        self.begun = False  # the header has been made
        # Evaluated once: a protocol's isinstance check takes longer than writing a record.
        self._pictures = [sink for sink in sinks if isinstance(sink, PictureSink)]
        self.rate_hz = options.rate_hz or model.info.card.rate_hz
        self.first_step = 0  # number of the first step: above 0 in a resumed watch
        self.steps = self.segments = self.errors = self.gaps = self.macs = self.dense_macs = 0
        # Of the network alone; None where the model does not tell it from its frontend.
        self.network_macs: int | None = 0
        self.network_dense_macs: int | None = 0
        self.unfamiliar: int | None = None  # steps; None where no model can tell
        self.seen: dict[str, SeenLabel] = {}  # labels of segments, in order of appearance
        self.dropped = 0
        self.called = ""
        self.first_s: float | None = None
        self.last_s = 0.0
        self._ends_s: float | None = None  # where the source ends, if that is known
        self.lag_s = 0.0
        self.fatal = ""  # the error after which nothing could be read
        self.top: dict[str | None, tuple[Scored, ...]] = {}  # newest, by head
        self.nobody = False  # of the persons who are followed
        self._told_s: dict[str | None, float] = {}  # newest output, by head
        self._failed = False  # the newest scores were no numbers
        self._tops: dict[int, tuple[Scored, ...]] = {}  # newest, by person
        self.timelines: list[HeadTimeline] = []  # of all heads: those of one of the persons
        self._places = options.places
        placed = "places" in needs or bool(options.zone or options.line)
        self.presence = Presence(self._places) if placed else None  # what is where
        self._tracks = (options.track or placed) and not self.follows  # else who follows does
        self.begin(0)
        self.budget: dict[str, float] = {}  # of the next steps: field of Compute, value
        self._sink_s = 0.0
        self._boxes: tuple[Box, ...] = ()  # of the newest step
        units = {*needs, options.levels}
        self.meter = (
            LevelMeter(options.full_scale_db, weighted="dBA" in units)
            if units & {"dB", "dBA"}
            else None
        )

    def begin(self, newest: int) -> None:
        """Let numbers of persons and objects go on after this one; before the first step."""
        self.newest = newest
        self._tracker = ObjectTracker(newest=newest) if self._tracks else None

    def scene(self, item: Data) -> Scene | None:
        """Return what the newest step, whose input this was, saw; None if that is no picture."""
        if not isinstance(item, VideoFrame):
            return None
        return Scene(item, self._boxes, self._places)

    @property
    def active(self) -> str | None:
        """The best label now at or above its threshold, not background; of the first such head."""
        return active_label(self.timelines, self.only)

    @property
    def heads(self) -> dict[str, str | None]:
        """The same for each of several heads."""
        return {e.name: active_label([e], self.only) for e in self.timelines if e.name is not None}

    @property
    def persons(self) -> tuple[PersonStatus, ...] | None:
        """The persons who are there; None if they have no predictions of their own."""
        if not self.follows or self.nobody:
            return () if self.follows else None
        return tuple(
            PersonStatus(number, active_label(entries, self.only), self._tops.get(number, ()))
            for number, entries in self._people.items()
        )

    def open(self, info: SourceInfo) -> None:
        """Write the header. SourceError when the model does not take this source."""
        notes = self.model.check(info)
        self.called = info.uri
        for line in info.assumed:
            log.warning("%s: %s", self.called, line)
        self._set_clock(info)
        header = make_header(
            self.model,
            self.options,
            info,
            notes,
            [(entry.head, entry.timeline) for entry in self.timelines],
            rate_hz=self.rate_hz,
            only=self.only,
            persons=MOST if self.follows else None,
        )
        self.begun = True
        for sink in self.sinks:
            sink.open(header)
            self.open_sinks.append(sink)

    def _set_clock(self, info: SourceInfo) -> None:
        """Set the step rate and the timelines, once the kind of the source is known."""
        card = self.model.info.card
        self._ends_s = info.duration_s
        if self.options.end_s is not None:
            self._ends_s = min(self.options.end_s, self._ends_s or self.options.end_s)
        # For skeletons, a given rate is that of the recording, whose frames may have no times.
        given = None if info.kind == "skeleton" else self.options.rate_hz
        self.rate_hz = given or card.rate_hz
        whole = [h for h in self.model.info.heads if not (self.follows and h.by_person)]
        self._whole = self._new_timelines(whole)
        self._nobody = self._new_timelines(self._own_heads)
        self._set_timelines(self._nobody)

    def _new_timelines(
        self, heads: Sequence[ModelHead], person: int | None = None
    ) -> list[HeadTimeline]:
        info, rate_hz = self.model.info, self.rate_hz
        return new_timelines(info, self.options, rate_hz, self.only, heads, person)

    def _begin_timelines(self, timelines: Sequence[HeadTimeline]) -> None:
        """Begin timelines with the data of the newest step."""
        for entry in timelines:
            entry.segmenter.begin(self.last_s - self._block_s)

    @property
    def _block_s(self) -> float:
        """Length of a block of sound, whose time is that of its end; 0 for other data."""
        sound = self.model.info.sound
        return 0.0 if sound is None else sound.block / sound.rate_hz

    @property
    def _data_end_s(self) -> float:
        """End of the data of the newest step; of a last block of sound without its padding."""
        block_s, ends_s = self._block_s, self._ends_s
        if not block_s:
            return self.last_s + 1 / self.rate_hz
        return self.last_s if ends_s is None or abs(self.last_s - ends_s) >= block_s else ends_s

    def _set_timelines(self, own: Sequence[HeadTimeline]) -> None:
        """Set the timelines of all heads; ``own``: those of a person."""
        by_head = {id(entry.head): entry for entry in (*self._whole, *own)}
        self.timelines = [by_head[id(head)] for head in self.model.info.heads]

    def step(self, tick: Tick, result: StepResult, decode_s: float) -> PersonScores:
        """Write the records for the model's result of a tick (B = 1, or a row for each person).

        Where persons are followed beside a whole stream, their rows are those of ``people``.

        Return the scores behind the timeline, [C] of all heads concatenated, by number of the
        person (None: of a stream as a whole); empty when the step has no output.
        """
        self.last_s = tick.time_s
        if self.first_s is None:
            self.first_s = tick.time_s
            self._begin_timelines(self._whole)
        if result.persons is not None:
            self.meet(result.persons)
            self.nobody = result.nobody
        self.macs += result.macs
        self.dense_macs += result.dense_macs
        self.network_macs = add_costs(self.network_macs, result.network_macs)
        self.network_dense_macs = add_costs(self.network_dense_macs, result.network_dense_macs)
        step, self.steps = self.first_step + self.steps, self.steps + 1
        self.lag_s = _lag_s(tick.item)
        compute = Compute(
            i=step,
            time_s=tick.time_s,
            macs=result.macs,
            dense_macs=result.dense_macs,
            ms=StageTimes(
                decode=1e3 * decode_s,
                frontend=1e3 * result.frontend_s,
                network=1e3 * result.network_s,
                sink=1e3 * self._sink_s,  # of the previous step: this one's is not known yet
            ),
            lag_s=self.lag_s,
            dropped=self.dropped,
            tokens=None if result.tokens is None else result.tokens[0],
            **self.budget,
        )
        began = time.perf_counter()
        self._measure(tick)
        told = False  # a head has an output
        own = result.people or result
        failed = bool(result.overflowed or own.overflowed)
        if failed and not self._failed:
            self.fault(Fault(tick.time_s, "the network's scores are not numbers: it begins anew"))
        self._failed = failed
        self._judge_familiarity((result, self._whole), (own, next(iter(self._people.values()), [])))
        for row, number, entry in self._entries():
            given = result if entry.person is None else own
            if isinstance(entry.segmenter, PresenceSegmenter):
                found = () if result.objects is None else result.objects[0]
                boxes = [box for box in found if is_among(box.label, self.only)]
                self.write(self._objects(step, tick, boxes, entry))
                self._tell_events(() if self.presence is None else self.presence.events)
                self._emit(entry, entry.segmenter.push_boxes(tick.time_s, boxes))
            elif given.probabilities is not None and not (self.options.wait and given.warmup[row]):
                probabilities = given.probabilities[row, entry.head.columns]
                if np.isnan(probabilities[0]):  # this head has no output
                    self._miss(entry, tick.time_s)
                    continue
                self._told_s[entry.name] = tick.time_s
                self.write(self._prediction(step, tick, given, row, number, entry))
                self._emit(entry, entry.segmenter.push(tick.time_s, probabilities))
                self._count_line(entry, tick.time_s)
            else:
                continue
            told = True
        self.write(compute)
        self._draw(tick, result)
        self._sink_s = time.perf_counter() - began
        return self._scores() if told else {}

    def _scores(self) -> dict[int | None, npt.NDArray[np.float64]]:
        """Return the newest scores of each person, and of the stream; NaN at heads of the other."""
        parties: list[tuple[int | None, list[HeadTimeline]]] = [*self._people.items()]
        out = {}
        for person, timelines in [*parties, *([(None, self._whole)] if self._whole else [])]:
            by_head = {id(entry.head): entry.segmenter.smoother.scores for entry in timelines}
            parts = []
            for head in self.model.info.heads:
                scores = by_head.get(id(head))
                nothing = 0.0 if id(head) in by_head else np.nan
                parts.append(np.full(len(head.card.labels), nothing) if scores is None else scores)
            out[person] = np.concatenate(parts)
        return out

    def _miss(self, entry: HeadTimeline, time_s: float) -> None:
        """Let a head that has had no output for long, such as one of sound, begin anew."""
        told_s = self._told_s.get(entry.name)
        if told_s is not None and time_s - told_s > SILENT_S:
            del self._told_s[entry.name]
            self._emit(entry, entry.segmenter.gap(told_s, time_s))

    def meet(self, persons: Sequence[int]) -> None:
        """Begin timelines of new persons, and end those of persons who have left."""
        known = self._people
        if list(persons) == list(known):
            return
        for number in [number for number in known if number not in persons]:
            self._tops.pop(number, None)
            for entry in known.pop(number):
                self._emit(entry, entry.segmenter.finish(self.last_s))
        new = {n: self._new_timelines(self._own_heads, n) for n in persons if n not in known}
        for timelines in new.values():
            self._begin_timelines(timelines)
        self._people = {number: known.get(number) or new[number] for number in persons}
        self._set_timelines(next(iter(self._people.values()), self._nobody))
        self.newest = max(self.newest, *persons, 0)

    def _entries(self) -> Iterator[tuple[int, int, HeadTimeline]]:
        """Yield row of the result, number of its head and timeline, of the stream and persons."""
        for row, timelines in ((0, self._whole), *enumerate(self._people.values())):
            for number, entry in enumerate(timelines):
                yield row, number, entry

    def _measure(self, tick: Tick) -> None:
        """Measure the sound of a step, and write its level if that is wanted."""
        meter, sound = self.meter, self.model.info.sound or self.model.info.beside
        if meter is None or sound is None:
            return
        meter.update(tick.time_s, tick.item, sound.rate_hz)
        if self.options.levels is not None and meter.db is not None:
            self.write(Level(tick.time_s, meter.db, meter.dba))

    def gap(self, gap: Gap) -> None:
        """Take a gap in the data; the caller resets the model's state of this stream."""
        self.gaps += 1
        if self.meter is not None:
            self.meter.reset()
        if self._tracker is not None:
            self._tracker.reset()
        if self.presence is not None:
            self._tell_events(self.presence.reset())
        for _, _, entry in self._entries():
            self._emit(entry, entry.segmenter.gap(gap.start_s, gap.end_s))
        self.write(gap)

    def smoothed(self) -> tuple[float, ...]:
        """Return the state of the smoothing; empty of persons, who are told apart anew."""
        return () if self.follows else smoothed_scores(self.timelines)

    @property
    def people(self) -> dict[int, list[HeadTimeline]]:
        """The timelines of each person; empty if they are not followed."""
        return self._people

    def fault(self, fault: Fault, warn: Callable[[str], None] = log.warning) -> None:
        """Count, log and record a fault; ``warn`` logs what ends nothing."""
        self.errors += fault.count
        self.fatal = self.fatal or (fault.message if fault.fatal else "")
        (log.error if fault.fatal else warn)(f"{self.called}: {fault.message}")
        self.write(fault)

    def flush(self, *, late: bool = False) -> None:
        """End the timelines, and the visits in zones; ``late``: as for ``Segmenter.finish``."""
        if self.presence is not None:
            self._tell_events(self.presence.reset(whole=not self.gaps))
        if self.first_s is None:
            return
        end_s, length_s = self._data_end_s, math.inf
        if self.options.min_length_s is None and not self.gaps:
            length_s = end_s - self.first_s + self._block_s
        for _, _, entry in self._entries():
            self._emit(entry, entry.segmenter.finish(end_s, length_s, late=late))

    def _tell_events(self, events: Sequence[Event]) -> None:
        for event in events:
            self.write(event)

    def write(self, record: Record) -> None:
        """Write a record to every open sink."""
        for sink in self.open_sinks:
            sink.write(record)

    def close(self, summary: Summary) -> None:
        """Close every opened sink; the first error is raised after all were tried."""
        failure: Exception | None = None
        for sink in self.open_sinks:
            try:
                sink.close(summary)
            except (CostreamError, OSError) as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def summary(
        self, exit_code: ExitCode, wall_s: float, *, complete: bool, drift_ppm: float | None = None
    ) -> Summary:
        """Return the summary of the run so far."""
        media_s = 0.0 if self.first_s is None else self.last_s - self.first_s + 1 / self.rate_hz
        return Summary(
            steps=self.steps,
            segments=self.segments,
            dropped=self.dropped,
            errors=self.errors,
            media_s=media_s,
            wall_s=wall_s,
            x_realtime=media_s / wall_s if wall_s > 0 else None,
            macs=self.macs,
            dense_macs=self.dense_macs,
            complete=complete,
            exit=int(exit_code),
            drift_ppm=drift_ppm,
            network_macs=self.network_macs if self.steps else None,
            network_dense_macs=self.network_dense_macs if self.steps else None,
            unfamiliar_s=None if self.unfamiliar is None else self.unfamiliar / self.rate_hz,
        )

    def _draw(self, tick: Tick, result: StepResult) -> None:
        if self._pictures:
            skeleton = None if result.skeletons is None else result.skeletons[0]
            spectrum = None if result.spectra is None else result.spectra[0]
            updated = None if result.updated is None else result.updated[0]
            pending = tuple(self._pending())
            picture = Picture(tick.time_s, tick.item, skeleton, spectrum, updated, pending)
            for sink in self._pictures:
                sink.draw(picture)

    def _pending(self) -> Iterator[Segment]:
        """Yield the segments of labels that exclude one another which would end a run here."""
        for _, _, entry in self._entries():
            if isinstance(entry.segmenter, Segmenter):
                for segment in entry.segmenter.pending(self._data_end_s):
                    yield replace(segment, model=entry.name, person=entry.person)

    def _objects(self, step: int, tick: Tick, boxes: Sequence[Box], entry: HeadTimeline) -> Objects:
        card, least = entry.head.card, entry.timeline.threshold_of
        scores = best_scores(boxes, card.labels)
        self.top[entry.name] = tuple(top for top in self._top(scores, card.labels) if top[1] > 0)
        sure = tuple(box for box in boxes if box.score >= least(box.label))[:MAX_BOXES]
        if self._tracker is not None:
            sure = self._tracker.update(tick.time_s, sure)
        self.newest = max([self.newest, *(box.id for box in sure if box.id is not None)])
        if self.presence is not None and isinstance(tick.item, VideoFrame):
            size = tick.item.size or tick.item.rgb.shape[1::-1]
            sure = self.presence.update(tick.time_s, sure, size)
        self._boxes = sure
        return Objects(step, tick.time_s, tick.item.i, tick.item.pts, sure)

    def _prediction(
        self,
        step: int,
        tick: Tick,
        result: StepResult,
        row: int,
        number: int,
        entry: HeadTimeline,
    ) -> Prediction:
        """Return the prediction of a row of the result by the head of this number."""
        assert result.probabilities is not None
        probabilities = result.probabilities[row, entry.head.columns]
        labels = entry.head.card.labels
        top = self._top(probabilities, labels)
        if row == 0:
            self.top[entry.name] = top
        if entry.person is not None:
            self._tops[entry.person] = top
        future = None if result.anticipation is None else result.anticipation[row]
        familiarity = None
        if result.familiarity is not None and entry.head.card.familiarity is not None:
            familiarity = float(result.familiarity[row, number])
        return Prediction(
            i=step,
            time_s=tick.time_s,
            frame=tick.item.i,
            pts=tick.item.pts,
            top=top,
            scores=tuple(probabilities.tolist()) if self.options.scores else None,
            anticipation=(
                None if future is None else tuple(self._top(row, labels) for row in future)
            ),
            warmup=result.warmup[row],
            fresh=tick.fresh,
            model=entry.name,
            familiarity=familiarity,
            person=entry.person,
            text=tick.item.text if isinstance(tick.item, TextLine) else None,
        )

    def _judge_familiarity(self, *parts: tuple[StepResult, Sequence[HeadTimeline]]) -> None:
        """Count the step if some event seems best to models that can tell, and none knows it.

        None of those that take the same: what is heard says nothing of what is seen. ``parts``:
        results with the timelines of the heads of their first row.
        """
        told, judged = dict[tuple[int, str | None], list[bool]](), False
        for part, (result, timelines) in enumerate(parts):
            if result.familiarity is None or result.probabilities is None or not timelines:
                continue
            judged = True
            for number, entry in enumerate(timelines):
                card = entry.head.card
                scores = result.probabilities[0, entry.head.columns]
                if card.familiarity is not None and not np.isnan(scores[0]):
                    is_event = card.labels[scores.argmax()] != card.background
                    strange = result.familiarity[0, number] < card.familiarity.limit
                    told.setdefault((part, card.frontend), []).append(is_event and strange)
        if judged:
            self.unfamiliar = (self.unfamiliar or 0) + any(map(all, told.values()))

    def _top(
        self, probabilities: npt.NDArray[np.float32], labels: Sequence[str]
    ) -> tuple[Scored, ...]:
        best = np.argsort(-probabilities, kind="stable")[: self.options.top_k]
        return tuple((labels[k], float(probabilities[k])) for k in best)

    def _count_line(self, entry: HeadTimeline, time_s: float) -> None:
        """Count a line, or word, of text by its label."""
        label = entry.segmenter.label if isinstance(entry.segmenter, Segmenter) else None
        if self.model.info.text and label is not None:
            self._see(label, time_s)

    def _see(self, label: str, time_s: float) -> None:
        known = self.seen.get(label)
        self.seen[label] = SeenLabel(label, 1 if known is None else known.count + 1, time_s)

    def _emit(self, entry: HeadTimeline, segments: Sequence[Segment]) -> None:
        for segment in segments:
            self.segments += 1
            if not self.model.info.text:  # whose lines are counted
                self._see(segment.label, segment.end_s)
            self.write(replace(segment, model=entry.name, person=entry.person))


def _lag_s(item: Data) -> float:
    """Return the age of a live item since its arrival; 0 for items that are not live."""
    arrived_s = item.arrived_s if isinstance(item, (AudioBlock, VideoFrame, TextLine)) else None
    return 0.0 if arrived_s is None else time.monotonic() - arrived_s
