"""The recorder of one stream: turns the results of its steps into records."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from costream.core.clock import SILENT_S, Tick
from costream.core.energy import EnergyMeter
from costream.core.errors import CostreamError, ExitCode
from costream.core.hysteresis import is_among
from costream.core.records import (
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
)
from costream.core.status import PersonStatus
from costream.models.base import Model, StepResult
from costream.models.persons import PersonsModel
from costream.options.options import Options
from costream.runtime.alerts.snapshots import Scene
from costream.runtime.counters import StreamCounters, is_unfamiliar
from costream.runtime.header import length_of, make_header
from costream.runtime.joints import MOST
from costream.runtime.levels import LevelMeter
from costream.runtime.persons import PersonScores
from costream.runtime.presence import Presence
from costream.runtime.scene_objects import SceneObjects, numbers_of
from costream.runtime.segments import PresenceSegmenter, Segmenter, best_scores
from costream.runtime.timelines import (
    HeadTimeline,
    StreamTimelines,
    TimelineRow,
    active_label,
    smoothed_scores,
)
from costream.sinks.base import PictureSink, Sink

log = logging.getLogger("costream")


class StreamRecorder:
    """Decides which records a stream writes and when, and writes them to its sinks.

    Call ``open`` first, ``step`` for each result, ``gap`` and ``fault`` where the data have one,
    ``flush`` after the last step and ``close`` at the end. The parts count (``counters``), draw the
    timelines (``timelines``), follow objects and measure sound (``meter``).
    """

    def __init__(
        self,
        model: Model,
        options: Options,
        sinks: Sequence[Sink],
        *,
        follow_persons: bool = False,
        needs: Collection[str] = (),
    ) -> None:
        """``follow_persons``: follow persons one by one if the model is for one person.

        A ``PersonsModel`` follows them in any case. ``needs``: what alert rules ask for: "places"
        (``presence``), "dB" or "dBA" (``meter``).

        Raises UsageError for a label of ``options.only`` that no head of the model has.
        """
        self.model, self.options, self.sinks = model, options, sinks
        self.follows = model.info.follows and (follow_persons or isinstance(model, PersonsModel))
        self.counters = StreamCounters()
        self.timelines = StreamTimelines(model.info, options, follows=self.follows)
        self.rate_hz = options.rate_hz or model.info.card.rate_hz
        self.name = ""  # of the source, in messages
        self.opened = False  # the header has been made
        self.top: dict[str | None, tuple[Scored, ...]] = {}  # newest, by head
        self._person_tops: dict[int | None, tuple[Scored, ...]] = {}  # newest, by person
        self._nobody = False  # none of the persons who are followed is there
        self._objects = SceneObjects(options, needs_places="places" in needs, numbered=self.follows)
        levels = {*needs, options.levels} & {"dB", "dBA"}
        self.meter = LevelMeter(options.full_scale_db, weighted="dBA" in levels) if levels else None
        self._open_sinks: list[Sink] = []
        # Evaluated once: a protocol's isinstance check takes longer than writing a record.
        self._picture_sinks = [sink for sink in sinks if isinstance(sink, PictureSink)]
        self._ends_s: float | None = None  # end of the source, if it is known
        self._last_output_s: dict[str | None, float] = {}  # by head
        self._failed = False  # the newest scores were NaN
        self._sink_s = 0.0  # time that the newest step took in here
        self._energy = EnergyMeter()

    def resume(
        self,
        next_step: int,
        *,
        newest_number: int = 0,
        first_s: float | None = None,
        last_s: float = 0.0,
        persons: Sequence[int] = (),
    ) -> None:
        """Continue an earlier stream; call it before the first step.

        ``next_step``: number of the next step. ``newest_number``: highest number of a person or an
        object. ``first_s``, ``last_s``: times of the first and newest step. ``persons``: who is
        there.
        """
        self.counters.resume(next_step, newest_number, first_s, last_s)
        self._objects.begin(newest_number)
        if persons:
            self._update_persons(persons, last_s)

    def open(self, info: SourceInfo, name: str | None = None) -> None:
        """Write the header. ``name``: of the source, in messages; None: its URI.

        Raises SourceError when the model does not take this source.
        """
        notes = self.model.check(info)
        self.name = info.uri if name is None else name
        for line in info.assumed:
            log.warning("%s: %s", self.name, line)
        self._ends_s = info.duration_s
        if self.options.end_s is not None:
            self._ends_s = min(self.options.end_s, self._ends_s or self.options.end_s)
        # For skeletons, the rate of the options is that of the recording, whose frames may have no
        # times.
        rate_hz = None if info.kind == "skeleton" else self.options.rate_hz
        self.rate_hz = rate_hz or self.model.info.card.rate_hz
        self.timelines.open(self.rate_hz, length_of(info, self.options))
        header = make_header(
            self.model,
            self.options,
            info,
            notes,
            [(entry.head, entry.timeline) for entry in self.timelines.current],
            rate_hz=self.rate_hz,
            only=self.timelines.only,
            persons=MOST if self.follows else None,
        )
        self.opened = True
        for sink in self.sinks:
            sink.open(header)
            self._open_sinks.append(sink)

    def step(
        self,
        tick: Tick,
        result: StepResult,
        decode_s: float,
        *,
        dropped: int = 0,
        budget: Mapping[str, float] | None = None,
    ) -> PersonScores:
        """Write the records for the model's result of a tick (B = 1, or a row for each person).

        For a ``PersonsModel`` the rows of the persons are in ``result.people``.
        ``decode_s``: time spent on reading the data. ``dropped``: steps left out so far.
        ``budget``: of the step, by field of Compute.

        Return the scores behind the timeline, [C] of all heads concatenated, by number of the
        person (None: of the stream); empty when the step has no output.
        """
        is_first = self.counters.first_s is None
        step = self.counters.add_step(tick, result, dropped)
        start_s = tick.time_s - self._block_s
        if is_first:
            self.timelines.begin(start_s)
        if result.persons is not None:
            self._update_persons(result.persons, tick.time_s)
            self._nobody = result.nobody
            if self.follows:
                self.counters.add_persons(() if result.nobody else result.persons)
        compute = self._compute(step, tick, result, decode_s, budget or {})
        began = time.perf_counter()
        self._write_level(tick)
        people = result.people or result
        self._check_scores(tick, bool(result.overflowed or people.overflowed))
        self.counters.add_familiarity(
            is_unfamiliar((result, self.timelines.stream), (people, self.timelines.first_person))
        )
        has_output = False
        for row in self.timelines.rows:
            if isinstance(row.timeline.segmenter, PresenceSegmenter):
                self._record_objects(step, tick, result, row.timeline)
                has_output = True
            else:
                part = result if row.timeline.person is None else people
                has_output |= self._record_prediction(step, tick, part, row)
        self.write(compute)
        self._draw(tick, result)
        self._sink_s = time.perf_counter() - began
        return self.timelines.scores() if has_output else {}

    def _compute(
        self,
        step: int,
        tick: Tick,
        result: StepResult,
        decode_s: float,
        budget: Mapping[str, float],
    ) -> Compute:
        """Return the cost of a step. The time in the sinks is that of the step before."""
        return Compute(
            i=step,
            time_s=tick.time_s,
            macs=result.macs,
            dense_macs=result.dense_macs,
            ms=StageTimes(
                decode=1e3 * decode_s,
                frontend=1e3 * result.frontend_s,
                network=1e3 * result.network_s,
                sink=1e3 * self._sink_s,
            ),
            lag_s=self.counters.lag_s,
            dropped=self.counters.dropped,
            tokens=None if result.tokens is None else result.tokens[0],
            ran=None if result.ran is None else dict(result.ran[0]),
            joules=self.counters.add_energy(self._energy.read()),
            area=None if result.area is None else result.area[0],
            policy=result.policy,
            parts=_parts(result),
            **budget,
        )

    def gap(self, gap: Gap) -> None:
        """Take a gap in the data; the caller resets the model's state of this stream."""
        self.counters.add_gap()
        if self.meter is not None:
            self.meter.reset()
        self._write_all(self._objects.gap())
        for _, _, entry in self.timelines.rows:
            self._emit(entry, entry.segmenter.gap(gap.start_s, gap.end_s))
        self.write(gap)

    def fault(self, fault: Fault, warn: Callable[[str], None] = log.warning) -> None:
        """Count, log and record a fault; ``warn`` logs one that does not end the stream."""
        self.counters.add_fault(fault)
        (log.error if fault.fatal else warn)(f"{self.name}: {fault.message}")
        self.write(fault)

    def flush(self, *, late: bool = False, last_s: float | None = None) -> None:
        """End the timelines, and the visits in zones.

        ``late``: as for ``Segmenter.finish``. ``last_s``: time of the newest data, if steps were
        taken after them.
        """
        counters = self.counters
        counters.end_data(last_s)
        self._write_all(self._objects.finish(complete=not counters.gaps))
        if counters.first_s is None:
            return
        end_s, length_s = self._data_end_s, math.inf
        if self.options.min_length_s is None and not counters.gaps:
            length_s = end_s - counters.first_s + self._block_s
        for _, _, entry in self.timelines.rows:
            self._emit(entry, entry.segmenter.finish(end_s, length_s, late=late))

    def write(self, record: Record) -> None:
        """Write a record to every open sink."""
        for sink in self._open_sinks:
            sink.write(record)

    def close(self, summary: Summary) -> None:
        """Close every opened sink; the first error is raised after all were tried."""
        failure: Exception | None = None
        for sink in self._open_sinks:
            try:
                sink.close(summary)
            except (CostreamError, OSError) as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def summary(
        self,
        exit_code: ExitCode,
        wall_s: float,
        *,
        complete: bool,
        dropped: int = 0,
        drift_ppm: float | None = None,
    ) -> Summary:
        """Return the summary of the stream so far; ``dropped``: steps left out so far."""
        return self.counters.summary(
            exit_code,
            self.rate_hz,
            wall_s,
            complete=complete,
            dropped=dropped,
            drift_ppm=drift_ppm,
        )

    @property
    def active(self) -> str | None:
        """The best label that is at or above its threshold now, of the first such head."""
        return active_label(self.timelines.current, self.timelines.only)

    @property
    def active_by_head(self) -> dict[str, str | None]:
        """The same for each of several heads."""
        only = self.timelines.only
        entries = self.timelines.current
        return {e.name: active_label([e], only) for e in entries if e.name is not None}

    @property
    def persons(self) -> tuple[PersonStatus, ...] | None:
        """The persons who are there; None if no head has predictions for each person."""
        if not self.follows:
            return None
        people = {} if self._nobody else self.timelines.people
        only, tops = self.timelines.only, self._person_tops
        return tuple(
            PersonStatus(number, active_label(entries, only), tops.get(number, ()))
            for number, entries in people.items()
        )

    @property
    def presence(self) -> Presence | None:
        """The objects in zones and on lines; None if the stream has no such places."""
        return self._objects.presence

    def scene(self, item: Data) -> Scene | None:
        """Return the picture ``item`` of the newest step with its objects; None for other data."""
        return self._objects.scene(item)

    def smoothed(self) -> tuple[float, ...]:
        """Return the state of the smoothing; empty where persons are followed."""
        return () if self.follows else smoothed_scores(self.timelines.current)

    @property
    def _block_s(self) -> float:
        """Length of a block of sound, whose time is that of its end; 0 for other data."""
        sound = self.model.info.sound
        return 0.0 if sound is None else sound.block / sound.rate_hz

    @property
    def _data_end_s(self) -> float:
        """End of the data of the newest step; of a last block of sound without its padding."""
        block_s, ends_s, last_s = self._block_s, self._ends_s, self.counters.last_s
        if not block_s:
            return last_s + 1 / self.rate_hz
        return last_s if ends_s is None or abs(last_s - ends_s) >= block_s else ends_s

    def _update_persons(self, numbers: Sequence[int], time_s: float) -> None:
        """Begin timelines of new persons, and end the timelines of persons who have left."""
        for entry in self.timelines.update_persons(numbers, time_s - self._block_s):
            self._emit(entry, entry.segmenter.finish(time_s))
            self._person_tops.pop(entry.person, None)
        self.counters.add_numbers(numbers)

    def _write_level(self, tick: Tick) -> None:
        """Measure the sound of a step, and write its level if the options ask for it."""
        meter, sound = self.meter, self.model.info.sound or self.model.info.beside
        if meter is None or sound is None:
            return
        meter.update(tick.time_s, tick.item, sound.rate_hz)
        if self.options.levels is not None and meter.db is not None:
            self.write(Level(tick.time_s, meter.db, meter.dba))

    def _check_scores(self, tick: Tick, failed: bool) -> None:
        """Record a fault at the first of several steps with scores that are NaN."""
        if failed and not self._failed:
            what = "the network's scores are NaN; the state of the stream was reset"
            self.fault(Fault(tick.time_s, what))
        self._failed = failed

    def _record_objects(
        self, step: int, tick: Tick, result: StepResult, entry: HeadTimeline
    ) -> None:
        """Write the objects of a step, and what follows from them."""
        card, least = entry.head.card, entry.timeline.threshold_of
        only = self.timelines.only
        found = () if result.objects is None else result.objects[0]
        boxes = [box for box in found if is_among(box.label, only)]
        top = self._top(best_scores(boxes, card.labels), card.labels)
        self.top[entry.name] = tuple(scored for scored in top if scored[1] > 0)
        sure = self._objects.update(
            tick,
            [box for box in boxes if box.score >= least(box.label)],
            looked=result.has_run(card.name),
        )
        self.counters.add_numbers(numbers_of(sure))
        self.write(Objects(step, tick.time_s, tick.item.i, tick.item.pts, sure))
        self._write_all(self._objects.events())
        assert isinstance(entry.segmenter, PresenceSegmenter)
        self._emit(entry, entry.segmenter.push_boxes(tick.time_s, boxes))

    def _record_prediction(
        self, step: int, tick: Tick, result: StepResult, row: TimelineRow
    ) -> bool:
        """Write the prediction of a head and what follows from it; return whether it has one."""
        entry = row.timeline
        if result.probabilities is None or (self.options.wait and result.warmup[row.row]):
            return False
        probabilities = result.probabilities[row.row, entry.head.columns]
        if np.isnan(probabilities[0]):
            self._end_if_silent(entry, tick.time_s)
            return False
        self._last_output_s[entry.name] = tick.time_s
        self.write(self._prediction(step, tick, result, row, probabilities))
        self._emit(entry, entry.segmenter.push(tick.time_s, probabilities))
        if self.model.info.text and isinstance(entry.segmenter, Segmenter):
            self.counters.add_label(entry.segmenter.label, tick.time_s)
        return True

    def _prediction(
        self,
        step: int,
        tick: Tick,
        result: StepResult,
        row: TimelineRow,
        probabilities: npt.NDArray[np.float32],
    ) -> Prediction:
        """Return the prediction of a head for a row of the result; ``probabilities``: [C]."""
        entry, card = row.timeline, row.timeline.head.card
        top = self._top(probabilities, card.labels)
        if row.row == 0:
            self.top[entry.name] = top
        if entry.person is not None:
            self._person_tops[entry.person] = top
        future = None if result.anticipation is None else result.anticipation[row.row]
        familiarity = None
        if result.familiarity is not None and card.familiarity is not None:
            familiarity = float(result.familiarity[row.row, row.number])
        return Prediction(
            i=step,
            time_s=tick.time_s,
            frame=tick.item.i,
            pts=tick.item.pts,
            top=top,
            scores=tuple(probabilities.tolist()) if self.options.scores else None,
            anticipation=(
                None
                if future is None
                else tuple(self._top(scores, card.labels) for scores in future)
            ),
            warmup=result.warmup[row.row],
            fresh=tick.fresh,
            model=entry.name,
            familiarity=familiarity,
            person=entry.person,
            text=tick.item.text if isinstance(tick.item, TextLine) else None,
        )

    def _end_if_silent(self, entry: HeadTimeline, time_s: float) -> None:
        """End the segments of a head without output for SILENT_S, such as one of sound."""
        last_s = self._last_output_s.get(entry.name)
        if last_s is not None and time_s - last_s > SILENT_S:
            del self._last_output_s[entry.name]
            self._emit(entry, entry.segmenter.gap(last_s, time_s))

    def _draw(self, tick: Tick, result: StepResult) -> None:
        """Show the picture of a step to the sinks that draw."""
        if not self._picture_sinks:
            return
        picture = Picture(
            tick.time_s,
            tick.item,
            None if result.skeletons is None else result.skeletons[0],
            None if result.spectra is None else result.spectra[0],
            None if result.updated is None else result.updated[0],
            tuple(self.timelines.pending(self._data_end_s)),
        )
        for sink in self._picture_sinks:
            sink.draw(picture)

    def _top(
        self, probabilities: npt.NDArray[np.float32], labels: Sequence[str]
    ) -> tuple[Scored, ...]:
        """Return the best labels with their scores, best first."""
        best = np.argsort(-probabilities, kind="stable")[: self.options.top_k]
        return tuple((labels[k], float(probabilities[k])) for k in best)

    def _emit(self, entry: HeadTimeline, segments: Sequence[Segment]) -> None:
        """Count and write segments of a timeline."""
        for segment in segments:
            # Of text, the labels of lines are counted.
            named = entry.named(segment)
            self.counters.add_segment(None if self.model.info.text else named)
            self.write(named)

    def _write_all(self, records: Sequence[Record]) -> None:
        for record in records:
            self.write(record)


def _parts(result: StepResult) -> dict[str, int] | None:
    """Return the operations of each of several networks that share a budget."""
    if result.costs is None or len(result.costs) < 2:
        return None
    return {name: cost.macs for name, cost in result.costs.items()}
