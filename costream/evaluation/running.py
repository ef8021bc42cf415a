"""Runs a model over labelled examples, exactly as ``detect`` would, and keeps its scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from costream.errors import SourceError
from costream.labels.examples import Example, located
from costream.models.base import Model
from costream.records import Data, Fault, Gap, Header, Item, Prediction, Record, Summary
from costream.runtime.options import RunOptions
from costream.runtime.pipeline import run
from costream.runtime.stop import Stop
from costream.sources.base import Source, SourceInfo, SourceOptions
from costream.sources.registry import open_source


@dataclass(frozen=True)
class Told:
    """What a model said, T times."""

    times: npt.NDArray[np.float64]  # [T], seconds
    probabilities: npt.NDArray[np.float64]  # [T, K]


def run_alone(
    model: Model, example: Example, options: SourceOptions, rate_hz: float | None, stop: Stop
) -> Told:
    """Give what the model says of one example that begins a stream.

    SourceError, which names the example, when it cannot be read or ends before a first output.
    """
    return _run(model, _open(example, options), rate_hz, stop, example)


def run_joined(
    model: Model,
    examples: Sequence[Example],
    options: SourceOptions,
    rate_hz: float | None,
    stop: Stop,
) -> tuple[Told, list[str]]:
    """Give what the model says of examples one after another, and the label of each row."""
    parts = [_open(example, options) for example in examples]
    joined = Joined(parts, 1 / (rate_hz or model.card.rate_hz))
    told = _run(model, joined, rate_hz, stop, examples[0])
    places = np.searchsorted(joined.starts, told.times + 1e-9, side="right") - 1
    return told, [examples[k].label for k in places]


class Joined:
    """Sources as one: each begins a step after the last item of the one before.

    ``starts``: when the parts that were read so far began, seconds.
    """

    def __init__(self, parts: Sequence[Source], step_s: float) -> None:
        self._parts, self._step_s = list(parts), step_s
        self.starts: list[float] = []

    def open(self) -> SourceInfo:
        """Open the first; it speaks for all."""
        return replace(self._parts[0].open(), name="joined", uri="joined", duration_s=None)

    def items(self) -> Iterator[Item]:
        """Give the items of all parts on one clock."""
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
        """End soon."""
        for part in self._parts:
            part.stop()

    def close(self) -> None:
        """Close all."""
        for part in self._parts:
            part.close()


class _Collector:
    """A sink that keeps the scores."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.rows: list[tuple[float, ...]] = []

    def open(self, header: Header) -> None:
        """Nothing to prepare."""

    def write(self, record: Record) -> None:
        """Keep predictions."""
        if isinstance(record, Prediction) and record.scores is not None:
            self.times.append(record.time_s)
            self.rows.append(record.scores)

    def close(self, summary: Summary) -> None:
        """Nothing to finish."""


def _open(example: Example, options: SourceOptions) -> Source:
    own = replace(options, start_s=example.start_s, end_s=example.end_s)
    return open_source(example.source, own)


def _run(model: Model, source: Source, rate_hz: float | None, stop: Stop, example: Example) -> Told:
    collector = _Collector()
    options = RunOptions(rate_hz=rate_hz, scores=True)
    try:
        run(source, model, [collector], options=options, stop=stop)
    except SourceError as error:
        raise located(error, example) from error
    if not collector.rows and not stop.requested:
        raise SourceError("over before the model says anything", where=example.where)
    width = len(model.card.labels)
    rows = np.asarray(collector.rows, np.float64).reshape(-1, width)
    return Told(np.asarray(collector.times, np.float64), rows)


def _moved(item: Data | Gap, shift: float, number: int) -> Data | Gap:
    if isinstance(item, Gap):
        return replace(item, start_s=item.start_s + shift, end_s=item.end_s + shift)
    return replace(item, time_s=item.time_s + shift, i=number)
