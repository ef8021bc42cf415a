"""Predictions of a model for a recording, from a run or from stored results."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from costream.records import Compute, Header, Prediction, Record, Segment, Summary


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
    rows: int  # steps of the whole recording, including those without output

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


class PredictionCollector:
    """A sink that collects the records of a run or of stored results.

    Predictions without all scores are ignored.
    """

    def __init__(self) -> None:
        self.header: Header | None = None
        self.macs: list[int] = []  # of each step
        self.ms: list[float] = []  # of each step: frontend and network
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
            self._predictions.append(record)
        elif isinstance(record, Segment):
            self._segments.append(record)
        elif isinstance(record, Compute):
            self.macs.append(record.macs)
            self.ms.append(record.ms.frontend + record.ms.network)

    def close(self, summary: Summary) -> None:
        """Store the number of steps."""
        self._rows = summary.steps

    def told(self) -> ModelPredictions:
        """Return the collected predictions. ValueError before a header was received."""
        if self.header is None:
            raise ValueError("no header")
        width, found = len(self.header.labels), self._predictions
        scores = np.array([p.scores for p in found], np.float64).reshape(-1, width)
        steps = np.array([p.i for p in found], np.int64)
        stride = int(np.diff(steps).min()) if len(steps) > 1 else 1
        return ModelPredictions(
            np.array([p.time_s for p in found], np.float64),
            np.where(np.isfinite(scores), scores, 0.0),
            steps,
            tuple(self._segments),
            stride / self.header.rate_hz,
            self.header.delay_s,
            max(self._rows, int(steps[-1]) + 1 if len(steps) else 0),
        )
