"""Metrics of a model on complete recordings, processed as streams."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any, TypeVar

import numpy as np

from costream.evaluation.evaluate_settings import (
    EvaluateSettings,
    card_of,
    load,
    readable,
    source_options,
)
from costream.evaluation.metrics.frames import frame_scores
from costream.evaluation.metrics.portions import portion_scores
from costream.evaluation.metrics.segment_metrics import (
    detection_latency,
    instance_scores,
    segment_scores,
    start_scores,
)
from costream.evaluation.predictions import ModelPredictions, PredictionCollector, run_into
from costream.evaluation.protocols import PROTOCOLS, Protocol, kept
from costream.evaluation.truth import EvaluatedRecording, align_truth, fit_truth
from costream.labels.reading import read_recordings
from costream.labels.recording import Recording
from costream.runtime.stop import StopHandler
from costream.sources.uris import open_source

log = logging.getLogger("costream")
T = TypeVar("T")
Pair = tuple[Recording, ModelPredictions]
OfPerson = Callable[[int | None], ModelPredictions]  # of a person by number, or of whoever there is


def by_person(recording: Recording, of: OfPerson, *, told_apart: bool) -> Iterator[Pair]:
    """Yield a recording with its predictions, or once for each person number in its labels.

    Labels without a number apply to everybody. ``told_apart``: the predictions have numbers.
    """
    numbers = sorted({one.person for one in recording.labels if one.person is not None})
    if not numbers or not told_apart:
        yield recording, of(None)
        return
    for number in numbers:
        labels = tuple(one for one in recording.labels if one.person in (None, number))
        yield replace(recording, source=f"{recording.source} ({number})", labels=labels), of(number)


def watch_scores(settings: EvaluateSettings, stop: StopHandler) -> dict[str, Any]:
    """Run the model over the recordings as ``detect`` does and return the metrics as JSON values.

    Unreadable recordings are logged, skipped and counted ("failed"). The result is empty if
    ``stop`` was requested meanwhile. Raises UsageError for unusable labels, ModelError, and
    SourceError if no recording can be read.
    """
    card = card_of(settings)
    evaluator = RecordingEvaluator(settings, card.labels, card.background, card.name)
    recordings = evaluator.fit(
        read_recordings(settings.data, settings.labels, settings.group, settings.columns)
    )
    model = load(settings)
    options = source_options(settings, model)
    pairs, macs, ms, read = list[Pair](), list[int](), list[float](), 0

    def several(recording: Recording) -> bool:
        return any(one.person is not None for one in recording.labels) and model.info.follows

    def watched(recording: Recording) -> PredictionCollector:
        collector, source = PredictionCollector(), open_source(recording.source, options)
        arguments = model, source, settings.rate_hz, stop
        run_into(collector, *arguments, follow_persons=several(recording))
        return collector

    for recording, collector in readable(recordings, watched, "recording", settings.data, stop):
        pairs += by_person(recording, collector.predictions, told_apart=several(recording))
        macs += collector.macs
        ms += collector.ms
        read += 1
    if stop.requested:
        return {}
    cost = {"macs_per_step": float(np.mean(macs)), "ms_per_step": float(np.median(ms))}
    return {
        "model": card.name,
        "weights_sha256": model.info.weights_sha256,
        "failed": len(recordings) - read,
        **evaluator.scores(pairs),
        "cost": cost,
    }


class RecordingEvaluator:
    """Compares predictions with the ground truth, by a protocol if requested."""

    def __init__(
        self,
        settings: EvaluateSettings,
        labels: Sequence[str],
        background: str | None,
        model: str,
    ) -> None:
        """``labels``: of the scores. UsageError if they differ from the labels of the protocol."""
        self._tolerance_s = settings.tolerance_s
        self._protocol: Protocol | None = None
        self._columns = list(range(len(labels)))
        self._names, self._background = tuple(labels), background
        self._ignored: tuple[str, ...] = ()
        if settings.protocol is not None:
            protocol = self._protocol = PROTOCOLS[settings.protocol]
            self._columns = protocol.columns(labels, model)
            self._names = tuple(labels[k] for k in self._columns)
            self._background, self._ignored = self._names[0], protocol.ignored

    def fit(self, recordings: Sequence[Recording]) -> list[Recording]:
        """Return the recordings with labels in the model's spelling; see ``fit_truth``."""
        return fit_truth(recordings, self._names, self._ignored, self._background)

    def scores(self, pairs: Sequence[Pair]) -> dict[str, Any]:
        """Return the metrics of fitted recordings and their predictions.

        Frame metrics, and start metrics if possible, are over the recordings with scores for
        every output; without any, frame metrics are None.
        """
        evaluated = [self.evaluate(recording, predictions) for recording, predictions in pairs]
        names, background = self.names
        actions = [name for name in names if name != background]
        stepwise = [recording for recording in evaluated if len(recording.predictions.times)]
        return {
            "labels": list(names),
            "background": background,
            "protocol": None if self._protocol is None else self._protocol.name,
            "recordings": len(evaluated),
            "groups": len({recording.group for recording in evaluated}),
            "frames": (
                frame_scores(stepwise, names, background, self._tolerance_s) if stepwise else None
            ),
            "segments": segment_scores(evaluated, actions),
            "instances": instance_scores(stepwise, actions),
            "starts": start_scores(stepwise or evaluated, names, background),
            "latency": detection_latency(evaluated, actions),
            **self._of_protocol(stepwise),
        }

    def _of_protocol(self, stepwise: Sequence[EvaluatedRecording]) -> dict[str, Any]:
        if self._protocol is None or not stepwise:
            return {}
        published = [asdict(one) for one in self._protocol.published]
        return {
            "portions": portion_scores(stepwise, *self.names),
            "published": {"measure": self._protocol.measure, "figures": published},
        }

    @property
    def names(self) -> tuple[tuple[str, ...], str | None]:
        """The scored labels, and the background."""
        return self._names, self._background

    def evaluate(self, recording: Recording, predictions: ModelPredictions) -> EvaluatedRecording:
        """Return the ground truth of a fitted recording at its predictions."""
        predictions = replace(
            predictions,
            probabilities=kept(predictions.probabilities, self._columns),
            segments=tuple(s for s in predictions.segments if s.label in self._names),
            instances=tuple(i for i in predictions.instances if i.label in self._names),
        )
        evaluated = align_truth(
            recording, predictions, self._names, self._background, self._ignored
        )
        if self._protocol is not None:
            out = ~self._protocol.rows(predictions.steps, predictions.rows)
            evaluated.labels[out] = -1
            evaluated.positive[out] = False
        return evaluated
