"""Metrics of a model on whole recordings, processed as streams."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from costream.errors import SourceError
from costream.evaluation.frames import frame_scores
from costream.evaluation.predictions import ModelPredictions, PredictionCollector
from costream.evaluation.protocols import PROTOCOLS, Protocol, kept
from costream.evaluation.running import run_into
from costream.evaluation.settings import EvaluateSettings, card_of, load, progress, source_options
from costream.evaluation.timelines import detection_latency, segment_scores, start_scores
from costream.evaluation.truth import EvaluatedRecording, align_truth, fit_truth
from costream.labels.reading import read_recordings
from costream.labels.recording import Recording
from costream.runtime.stop import StopHandler
from costream.sources.registry import open_source

log = logging.getLogger("costream")

Pair = tuple[Recording, ModelPredictions]


def watch_scores(settings: EvaluateSettings, stop: StopHandler) -> dict[str, Any]:
    """Run the model over the recordings as ``detect`` does and return the metrics as JSON values.

    Unreadable recordings are logged, skipped and counted ("failed"). The result is empty if
    ``stop`` was requested meanwhile. Raises UsageError for unusable labels, ModelError, and
    SourceError if no recording can be read.
    """
    card = card_of(settings)
    judging = RecordingEvaluator(settings, card.labels, card.background, card.name)
    recordings = judging.fit(read_recordings(settings.data, settings.labels, settings.group))
    model = load(settings)
    options = source_options(settings, model)
    pairs: list[Pair] = []
    failed: list[SourceError] = []
    macs: list[int] = []
    ms: list[float] = []
    for recording in progress(recordings, "recordings"):
        listener = PredictionCollector()
        try:
            source = open_source(recording.source, options)
            run_into(listener, model, source, settings.rate_hz, stop)
        except SourceError as error:
            log.error("%s", error)
            failed.append(error)
            continue
        if stop.requested:
            return {}
        pairs.append((recording, listener.told()))
        macs += listener.macs
        ms += listener.ms
    if not pairs:
        raise failed[0]
    cost = {"macs_per_step": float(np.mean(macs)), "ms_per_step": float(np.median(ms))}
    return {
        "model": card.name,
        "weights_sha256": model.weights_sha256,
        "failed": len(failed),
        **judging.scores(pairs),
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
        """``labels``: of the scores. UsageError if they differ from those of the protocol."""
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
        return fit_truth(recordings, self._names, self._ignored)

    def scores(self, pairs: Sequence[Pair]) -> dict[str, Any]:
        """Return the metrics of fitted recordings and their predictions.

        Frame metrics, and start metrics if possible, are over the recordings with scores for
        every output; without any, frame metrics are None.
        """
        judged = [self._judge(recording, told) for recording, told in pairs]
        names, background = self._names, self._background
        actions = [name for name in names if name != background]
        stepwise = [one for one in judged if len(one.told.times)]
        return {
            "labels": list(names),
            "protocol": None if self._protocol is None else self._protocol.name,
            "recordings": len(judged),
            "groups": len({one.group for one in judged}),
            "frames": (
                frame_scores(stepwise, names, background, self._tolerance_s) if stepwise else None
            ),
            "segments": segment_scores(judged, actions),
            "starts": start_scores(stepwise or judged, names, background),
            "latency": detection_latency(judged, actions),
        }

    def _judge(self, recording: Recording, told: ModelPredictions) -> EvaluatedRecording:
        told = replace(
            told,
            probabilities=kept(told.probabilities, self._columns),
            segments=tuple(s for s in told.segments if s.label in self._names),
        )
        judged = align_truth(recording, told, self._names, self._background, self._ignored)
        if self._protocol is not None:
            out = ~self._protocol.rows(told.steps, told.rows)
            judged.labels[out] = -1
            judged.positive[out] = False
        return judged
