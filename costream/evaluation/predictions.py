"""Predictions of a model for a recording, from a run or from stored results."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from costream.core.errors import SourceError
from costream.core.records import (
    Compute,
    Data,
    Fault,
    Gap,
    Header,
    Item,
    Prediction,
    Record,
    Segment,
    SourceInfo,
    Summary,
)
from costream.labels.examples import Example, located
from costream.models.base import Model
from costream.options.options import Options
from costream.runtime.instances import Instance, instances_of
from costream.runtime.pipeline import run
from costream.runtime.stop import StopHandler
from costream.sources.base import Source, SourceOptions
from costream.sources.memory_source import MemorySource
from costream.sources.uris import open_source


@dataclass(frozen=True)
class ModelPredictions:
    """T outputs of a model and the resulting timeline.

    An output covers ``step_s`` from its time on, shifted back by ``delay_s``, as in the
    timeline.
    """

    times: npt.NDArray[np.float64]  # [T], seconds
    probabilities: npt.NDArray[np.float64]  # [T, K]; NaN and infinity replaced by 0
    steps: npt.NDArray[np.int64]  # [T], number of the step, from 0; for feature files the row
    segments: tuple[Segment, ...]
    step_s: float  # from one output to the next
    delay_s: float
    rows: int  # steps of the complete recording, including steps without output
    part: tuple[float, float] = (0.0, math.inf)  # start and end of what was processed, seconds
    instances: tuple[Instance, ...] = ()  # reports, of models of which one label is true at a time

    @property
    def end_s(self) -> float:
        """End of the last output or segment."""
        ends = [s.end_s for s in self.segments]
        if len(self.times):
            ends.append(float(self.times[-1]) + self.step_s)
        return max(ends, default=0.0)

    def middles(self) -> npt.NDArray[np.float64]:
        """Return the middle of the time each output covers, [T], seconds."""
        return self.times + (self.step_s / 2 - self.delay_s)


class CostCollector:
    """A sink that collects the costs of each step."""

    def __init__(self) -> None:
        self.macs: list[int] = []
        self.dense_macs: list[int] = []
        self.ms: list[float] = []  # frontend and network

    def open(self, header: Header) -> None:
        """Nothing to prepare."""

    def write(self, record: Record) -> None:
        """Store costs."""
        if isinstance(record, Compute):
            self.macs.append(record.macs)
            self.dense_macs.append(record.dense_macs)
            self.ms.append(record.ms.frontend + record.ms.network)

    def close(self, summary: Summary) -> None:
        """Nothing to finish."""


class PredictionCollector(CostCollector):
    """A sink that collects the records of a run or of stored results.

    Predictions without all scores are ignored. Of several persons, the one who is present longest
    counts.
    """

    def __init__(self) -> None:
        super().__init__()
        self.header: Header | None = None
        self._predictions: list[Prediction] = []
        self._segments: list[Segment] = []
        self._rows = 0

    @property
    def silent(self) -> bool:
        """Whether no scores have been received."""
        return not self._predictions

    def open(self, header: Header) -> None:
        """Store the header with the labels and the rate."""
        self.header = header

    def write(self, record: Record) -> None:
        """Store predictions, segments and costs."""
        if isinstance(record, Prediction) and record.scores is not None:
            if self.header is None or len(record.scores) == len(self.header.labels):
                self._predictions.append(record)
        elif isinstance(record, Segment):
            self._segments.append(record)
        else:
            super().write(record)

    def close(self, summary: Summary) -> None:
        """Store the number of steps."""
        self._rows = summary.steps

    def predictions(self, person: int | None = None) -> ModelPredictions:
        """Return the collected predictions. ValueError before a header was received.

        ``person``: number of the person; None: the person who is present longest.
        """
        if self.header is None:
            raise ValueError("no header")
        main = self._main_person() if person is None else person
        width = len(self.header.labels)
        found = [p for p in self._predictions if p.person == main]
        scores = np.array([p.scores for p in found], np.float64).reshape(-1, width)
        steps = np.array([p.i for p in found], np.int64)
        stride = int(np.diff(steps).min()) if len(steps) > 1 else 1
        predictions = ModelPredictions(
            np.array([p.time_s for p in found], np.float64),
            np.where(np.isfinite(scores), scores, 0.0),
            steps,
            tuple(s for s in self._segments if s.person == main),
            stride / self.header.rate_hz,
            self.header.delay_s,
            max(self._rows, int(steps[-1]) + 1 if len(steps) else 0),
            _part(self.header),
        )
        return replace(predictions, instances=tuple(instances_of(self.header, found)))

    def _main_person(self) -> int | None:
        """Return the person with the most predictions, or without any the longest timeline."""
        shares: dict[int | None, float] = defaultdict(float)
        for prediction in self._predictions:
            shares[prediction.person] += 1
        if not shares:
            for segment in self._segments:
                shares[segment.person] += segment.end_s - segment.start_s
        return max(shares, key=lambda person: shares[person], default=None)


def _part(header: Header) -> tuple[float, float]:
    """Return start and end of the part of the recording that was to be processed, seconds."""
    start_s, end_s = header.options.get("start_s"), header.options.get("end_s")
    return (
        float(start_s) if isinstance(start_s, (int, float)) else 0.0,
        float(end_s) if isinstance(end_s, (int, float)) else math.inf,
    )


class ConcatenatedSource:
    """Concatenated sources: each begins a step after the last item of the previous one.

    ``starts``: start times of the parts read so far, seconds.
    """

    def __init__(self, parts: Sequence[Source], step_s: float) -> None:
        self._parts, self._step_s = list(parts), step_s
        self.starts: list[float] = []

    def open(self) -> SourceInfo:
        """Open the first source, whose properties apply to all."""
        return replace(self._parts[0].open(), name="joined", uri="joined", duration_s=None)

    def items(self) -> Iterator[Item]:
        """Yield the items of all parts on one clock."""
        now, number = 0.0, 0
        for k, part in enumerate(self._parts):
            if k:
                part.open()
            shift: float | None = None
            for item in part.items():
                if isinstance(item, Fault):
                    yield item
                    continue
                begin = item.start_s if isinstance(item, Gap) else item.time_s
                if shift is None:
                    shift = now - begin
                    self.starts.append(now)
                moved = _moved(item, shift, number)
                yield moved
                last = moved.end_s if isinstance(moved, Gap) else moved.time_s
                number, now = number + 1, last + self._step_s
            part.close()

    def stop(self) -> None:
        """Request all sources to end."""
        for part in self._parts:
            part.stop()

    def close(self) -> None:
        """Close all sources."""
        for part in self._parts:
            part.close()


def _moved(item: Data | Gap, shift: float, number: int) -> Data | Gap:
    if isinstance(item, Gap):
        return replace(item, start_s=item.start_s + shift, end_s=item.end_s + shift)
    return replace(item, time_s=item.time_s + shift, i=number)


def run_alone(
    model: Model, example: Example, options: SourceOptions, rate_hz: float | None, stop: StopHandler
) -> ModelPredictions:
    """Return the predictions for one example as a separate stream.

    SourceError, naming the example, if it cannot be read or ends before the first output.
    """
    collector = PredictionCollector()
    try:
        run_into(collector, model, _open(example, options), rate_hz, stop)
    except SourceError as error:
        raise located(error, example) from error
    return collector.predictions()


def run_into(
    collector: PredictionCollector,
    model: Model,
    source: Source,
    rate_hz: float | None,
    stop: StopHandler,
    *,
    follow_persons: bool = False,
) -> None:
    """Run the model over a source as ``detect`` does.

    ``follow_persons``: process each person separately. SourceError if the source cannot be read
    or ends before the first output.
    """
    options = Options(rate_hz=rate_hz, scores=True)
    run(source, model, [collector], options=options, stop=stop, follow_persons=follow_persons)
    if collector.silent and not stop.requested:
        uri = None if collector.header is None else collector.header.source
        raise SourceError("ends before the first output of the model", where=uri)


def run_concatenated(
    model: Model,
    examples: Sequence[Example],
    options: SourceOptions,
    rate_hz: float | None,
    stop: StopHandler,
) -> tuple[ModelPredictions, list[str]]:
    """Return the predictions for consecutive examples as one stream, and the label of each row."""
    parts = [_open(example, options) for example in examples]
    concatenated = ConcatenatedSource(parts, 1 / (rate_hz or model.info.card.rate_hz))
    collector = PredictionCollector()
    try:
        run_into(collector, model, concatenated, rate_hz, stop)
    except SourceError as error:
        raise located(error, examples[0]) from error
    found = collector.predictions()
    places = np.searchsorted(concatenated.starts, found.times + 1e-9, side="right") - 1
    return found, [examples[k].label for k in places]


def _open(example: Example, options: SourceOptions) -> Source:
    part = replace(options, start_s=example.start_s, end_s=example.end_s)
    if options.text is not None:  # the line itself
        return MemorySource([example.source], part, name=example.where)
    return open_source(example.source, part)
