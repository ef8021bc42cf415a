"""One source through one model into sinks: the only loop that knows all three."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from costream import __version__
from costream.clock import Tick, TickItem, one_by_one, resample
from costream.errors import CostreamError, ExitCode, SourceError
from costream.models.base import Model, ModelHead, StepResult
from costream.models.card import Card, Timeline
from costream.records import (
    AudioBlock,
    Compute,
    Data,
    Fault,
    Gap,
    Head,
    Header,
    Picture,
    Prediction,
    Record,
    Scored,
    Segment,
    StageTimes,
    Summary,
    VideoFrame,
)
from costream.runtime.segments import Segmenter
from costream.runtime.stop import Stop
from costream.sinks.base import PictureSink, Sink
from costream.sources.base import LiveSource, Source, SourceInfo

log = logging.getLogger("costream")


@dataclass(frozen=True)
class RunOptions:
    """How a run differs from what the model card says (None: as the card says)."""

    rate_hz: float | None = None  # steps a second
    threshold: float | None = None  # of the timeline, and so are the next two
    min_length_s: float | None = None
    min_gap_s: float | None = None
    top_k: int = 3
    scores: bool = False  # every class probability in each prediction
    wait: bool = False  # no predictions before the model's window is full
    start_s: float = 0.0
    end_s: float | None = None
    recorded: dict[str, Any] = field(default_factory=dict)  # more options for the header

    def timeline(self, card: Card) -> Timeline:
        """Give how the probabilities of this card's labels become segments."""
        timeline = card.timeline
        if self.threshold is not None:
            # The card's lower bound belongs to the card's threshold.
            timeline = replace(timeline, threshold=self.threshold, low=None)
        if self.min_length_s is not None:
            timeline = replace(timeline, min_length_s=self.min_length_s)
        if self.min_gap_s is not None:
            timeline = replace(timeline, min_gap_s=self.min_gap_s)
        return timeline


def run(
    source: Source,
    model: Model,
    sinks: Sequence[Sink] = (),
    *,
    options: RunOptions | None = None,
    stop: Stop | None = None,
) -> Summary:
    """Step ``model`` over ``source`` until it ends or ``stop`` asks, and give the summary.

    Every sink that was opened is closed with that summary, whatever happens. Raises SourceError
    when the source cannot be opened or holds no data, OutputError when a sink cannot write,
    BrokenPipeError when the reader of a sink's stream has left.
    """
    return _Run(source, model, sinks, options or RunOptions(), stop or Stop()).go()


@dataclass(frozen=True)
class _Voice:
    """A classifier of the model and the timeline of what it says."""

    head: ModelHead
    name: str | None  # what its records are marked with, where there are several
    segmenter: Segmenter


class _Run:
    def __init__(
        self,
        source: Source,
        model: Model,
        sinks: Sequence[Sink],
        options: RunOptions,
        stop: Stop,
    ) -> None:
        self.source, self.model, self.options, self.stop = source, model, options, stop
        self.sinks = sinks
        self.open_sinks: list[Sink] = []
        self.steps = self.segments = self.errors = self.macs = self.dense_macs = 0
        self.uri = ""
        self.first_s: float | None = None
        self.last_s = 0.0
        self.fatal = False
        self.sink_s = 0.0

    def go(self) -> Summary:
        began = time.perf_counter()
        with ExitStack() as stack:
            stack.callback(self.source.close)
            stack.enter_context(self.stop.while_running(self.source.stop))
            info = self.source.open()
            self.uri = info.uri
            self.model.check(info)
            self._set_clock(info)
            header = self._header(info)
            exit_code = ExitCode.BUG
            try:
                for sink in self.sinks:
                    sink.open(header)
                    self.open_sinks.append(sink)
                self._loop(info)
                exit_code = self._exit_code()
            except CostreamError as error:
                exit_code = error.exit_code
                raise
            except BrokenPipeError:
                exit_code = ExitCode.OK
                raise
            except KeyboardInterrupt:
                exit_code = ExitCode.SIGINT
                raise
            finally:
                summary = self._summary(exit_code, time.perf_counter() - began)
                self._close(summary)
        if self.steps == 0 and not self.stop.requested:
            raise SourceError(
                "nothing could be read", where=info.uri, hint="is it damaged, or the range empty?"
            )
        return summary

    def _set_clock(self, info: SourceInfo) -> None:
        """Say how fast the model steps, once the kind of the source is known."""
        card, options = self.model.card, self.options
        # A rate given for skeletons is that of the recording, whose frames may carry no times.
        given = None if info.kind == "skeleton" else options.rate_hz
        self.rate_hz = given or card.rate_hz
        # A network's delay is so many steps, whatever time a step takes.
        self.scale = card.rate_hz / self.rate_hz
        several = len(self.model.heads) > 1
        self.voices = [
            _Voice(
                head,
                head.card.name if several else None,
                Segmenter(
                    head.card.labels,
                    options.timeline(head.card),
                    self.rate_hz / self.model.stride,
                    head.card.delay_s * self.scale,
                    head.card.background,
                ),
            )
            for head in self.model.heads
        ]

    def _loop(self, info: SourceInfo) -> None:
        state = self.model.init_state(1)
        mark = time.perf_counter()
        for events in self._events(info):
            if self.stop.requested:
                break
            ticks = [event for event in events if isinstance(event, Tick)]
            if ticks:
                for tick in ticks:
                    if isinstance(tick.item, VideoFrame):
                        _ = tick.item.rgb  # convert and resize here: it counts as decoding
                decode_s = (time.perf_counter() - mark) / len(ticks)
                results = self.model.steps([tick.item for tick in ticks], state)
                for tick, result in zip(ticks, results, strict=True):
                    self._step(tick, result, decode_s)
            for event in events:
                if isinstance(event, Gap):
                    for voice in self.voices:
                        self._emit(voice, voice.segmenter.gap(event.start_s, event.end_s))
                    self.model.reset(state, [0])
                    self._write(event)
                elif isinstance(event, Fault):
                    self._fault(event)
            mark = time.perf_counter()
        for voice in self.voices:
            self._emit(voice, voice.segmenter.flush())

    def _events(self, info: SourceInfo) -> Iterator[list[TickItem]]:
        """Give what comes: ticks that may be stepped together in one list, all else alone."""
        items = self.source.items()
        if info.kind == "audio":
            events = one_by_one(items)
        else:
            events = resample(items, self.rate_hz, self.model.card.gap_tolerance_s)
        size = 1 if info.live else self.model.chunk
        together: list[TickItem] = []
        for event in events:
            if isinstance(event, Tick):
                together.append(event)
                if len(together) < size:
                    continue
            elif together:
                yield together
                together = [event]
            else:
                together = [event]
            yield together
            together = []
        if together:
            yield together

    def _step(self, tick: Tick, result: StepResult, decode_s: float) -> None:
        self.first_s = tick.time_s if self.first_s is None else self.first_s
        self.last_s = tick.time_s
        self.macs += result.macs
        self.dense_macs += result.dense_macs
        step, self.steps = self.steps, self.steps + 1
        compute = Compute(
            i=step,
            time_s=tick.time_s,
            macs=result.macs,
            dense_macs=result.dense_macs,
            ms=StageTimes(
                decode=1e3 * decode_s,
                frontend=1e3 * result.frontend_s,
                network=1e3 * result.network_s,
                sink=1e3 * self.sink_s,  # of the step before: this one's is not known yet
            ),
            lag_s=_lag_s(tick.item),
            dropped=self._dropped(),
        )
        began = time.perf_counter()
        if result.probabilities is not None and not (self.options.wait and result.warmup[0]):
            for voice in self.voices:
                probabilities = result.probabilities[0, voice.head.columns]
                self._write(self._prediction(step, tick, probabilities, result, voice))
                self._emit(voice, voice.segmenter.push(tick.time_s, probabilities))
        self._write(compute)
        self._draw(tick, result)
        self.sink_s = time.perf_counter() - began

    def _draw(self, tick: Tick, result: StepResult) -> None:
        sinks = [sink for sink in self.open_sinks if isinstance(sink, PictureSink)]
        if sinks:
            skeleton = None if result.skeletons is None else result.skeletons[0]
            spectrum = None if result.spectra is None else result.spectra[0]
            picture = Picture(tick.time_s, tick.item, skeleton, spectrum)
            for sink in sinks:
                sink.draw(picture)

    def _prediction(
        self,
        step: int,
        tick: Tick,
        probabilities: npt.NDArray[np.float32],
        result: StepResult,
        voice: _Voice,
    ) -> Prediction:
        labels = voice.head.card.labels
        future = None if result.anticipation is None else result.anticipation[0]
        return Prediction(
            i=step,
            time_s=tick.time_s,
            frame=tick.item.i,
            pts=tick.item.pts,
            top=self._top(probabilities, labels),
            scores=tuple(probabilities.tolist()) if self.options.scores else None,
            anticipation=(
                None if future is None else tuple(self._top(row, labels) for row in future)
            ),
            warmup=result.warmup[0],
            fresh=tick.fresh,
            model=voice.name,
        )

    def _top(
        self, probabilities: npt.NDArray[np.float32], labels: Sequence[str]
    ) -> tuple[Scored, ...]:
        best = np.argsort(-probabilities, kind="stable")[: self.options.top_k]
        return tuple((labels[k], float(probabilities[k])) for k in best)

    def _fault(self, fault: Fault) -> None:
        self.errors += fault.count
        self.fatal = self.fatal or fault.fatal
        log.log(
            logging.ERROR if fault.fatal else logging.WARNING, "%s: %s", self.uri, fault.message
        )
        self._write(fault)

    def _emit(self, voice: _Voice, segments: Sequence[Segment]) -> None:
        for segment in segments:
            self.segments += 1
            self._write(segment if voice.name is None else replace(segment, model=voice.name))

    def _write(self, record: Record) -> None:
        for sink in self.open_sinks:
            sink.write(record)

    def _exit_code(self) -> ExitCode:
        if self.stop.exit_code is not None:
            return self.stop.exit_code
        if self.steps == 0:
            return ExitCode.INPUT
        return ExitCode.PARTIAL if self.fatal else ExitCode.OK

    def _header(self, info: SourceInfo) -> Header:
        card, options, several = self.model.card, self.options, len(self.voices) > 1
        end = options.end_s if info.duration_s is None else info.duration_s
        if options.end_s is not None and end is not None:
            end = min(end, options.end_s)
        return Header(
            version=__version__,
            model=card.name,
            weights_sha256=self.model.weights_sha256,
            labels=card.labels,
            background=card.background,
            rate_hz=self.rate_hz,
            delay_s=card.delay_s * self.scale,
            source=info.uri,
            kind=info.kind,
            duration_s=None if end is None else max(0.0, end - options.start_s),
            options={
                "start_s": options.start_s,
                "end_s": options.end_s,
                "top_k": options.top_k,
                "wait": options.wait,
                "timeline": options.timeline(card),
                **options.recorded,
                **self.model.notes(info),
            },
            heads=tuple(self._head(voice.head) for voice in self.voices) if several else None,
        )

    def _head(self, head: ModelHead) -> Head:
        card = head.card
        delay_s, threshold = card.delay_s * self.scale, self.options.timeline(card).threshold
        return Head(
            card.name, head.weights_sha256, card.labels, card.background, delay_s, threshold
        )

    def _dropped(self) -> int:
        return self.source.dropped if isinstance(self.source, LiveSource) else 0

    def _summary(self, exit_code: ExitCode, wall_s: float) -> Summary:
        media_s = 0.0 if self.first_s is None else self.last_s - self.first_s + 1 / self.rate_hz
        return Summary(
            steps=self.steps,
            segments=self.segments,
            dropped=self._dropped(),
            errors=self.errors,
            media_s=media_s,
            wall_s=wall_s,
            x_realtime=media_s / wall_s if wall_s > 0 else None,
            macs=self.macs,
            dense_macs=self.dense_macs,
            complete=exit_code is ExitCode.OK and not self.stop.requested,
            exit=int(exit_code),
            drift_ppm=self.source.drift_ppm if isinstance(self.source, LiveSource) else None,
        )

    def _close(self, summary: Summary) -> None:
        """Close every opened sink; the first failure is raised after all were tried."""
        failure: Exception | None = None
        for sink in self.open_sinks:
            try:
                sink.close(summary)
            except (CostreamError, OSError) as error:
                failure = failure or error
        if failure is not None:
            raise failure


def _lag_s(item: Data) -> float:
    """Give how long ago the newest of a live item's data came; 0 where that has no meaning."""
    arrived_s = item.arrived_s if isinstance(item, AudioBlock) else None
    return 0.0 if arrived_s is None else time.monotonic() - arrived_s
