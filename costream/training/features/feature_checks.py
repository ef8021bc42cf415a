"""Validation recordings of features, scored as ``costream evaluate`` does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from costream.core.records import plain
from costream.evaluation.evaluate_settings import EvaluateSettings
from costream.evaluation.metrics.frames import frame_scores
from costream.evaluation.predictions import ModelPredictions
from costream.evaluation.protocols import PROTOCOLS
from costream.evaluation.recordings import RecordingEvaluator
from costream.evaluation.truth import EvaluatedRecording
from costream.labels.recording import UNSCORED
from costream.training.early_stopping import LOSS
from costream.training.features.feature_reader import FeatureRecording
from costream.training.stream_calibration import StreamPredictions
from costream.training.tokens.token_training import predict
from costream.weights_io.card import Card


class FeatureChecks:
    """The validation recordings; labels of a protocol are scored by it."""

    def __init__(self, card: Card, recordings: Sequence[FeatureRecording]) -> None:
        self._recordings, self._labels = recordings, card.labels
        settings = EvaluateSettings(None, None, None, protocol=protocol_of(card.labels))
        self._evaluator = RecordingEvaluator(settings, card.labels, card.labels[0], card.name)

    def predict(self, network: nn.Module) -> list[npt.NDArray[Any]]:
        """Return the probabilities [T, K] of each recording, step by step."""
        return predict(network, [r.content.rows for r in self._recordings])

    def figures(self, network: nn.Module) -> dict[str, float]:
        """Return loss and mAP; nothing without recordings."""
        if not self._recordings:
            return {}
        network.eval()
        evaluated = self._evaluated(self.predict(network))
        network.train()
        rows = [r.predictions.probabilities[r.labels >= 0] for r in evaluated]
        labels = np.concatenate([r.labels[r.labels >= 0] for r in evaluated])
        if not len(labels):
            return {}
        chosen = np.concatenate(rows)[np.arange(len(labels)), labels]
        scores = frame_scores(evaluated, *self._evaluator.names, 0.0)
        return {LOSS: float(-np.log(chosen + 1e-9).mean()), "validation_mAP": scores["mAP"]}

    def scores(self, probabilities: Sequence[npt.NDArray[Any]]) -> dict[str, Any]:
        """Return the frame metrics of predictions."""
        scores = frame_scores(self._evaluated(probabilities), *self._evaluator.names, 0.0)
        kept = {k: v for k, v in scores.items() if k not in ("reliability", "confusion")}
        return cast("dict[str, Any]", plain(kept))

    def chance(self, scores: dict[str, Any]) -> float | None:
        """Return the mean share of the frames of the classes, the mAP of constant scores."""
        background = self._evaluator.names[1]
        shares = [
            row["frames"] / scores["frames"]
            for name, row in scores["classes"].items()
            if name != background and row["frames"]
        ]
        return float(np.mean(shares)) if shares else None

    def streams(self, probabilities: Sequence[npt.NDArray[Any]]) -> list[StreamPredictions]:
        """Return predictions with the first label of each row."""
        return [
            StreamPredictions(rows, first_labels(r.content.targets))
            for r, rows in zip(self._recordings, probabilities, strict=True)
        ]

    def _evaluated(self, probabilities: Sequence[npt.NDArray[Any]]) -> list[EvaluatedRecording]:
        return [
            self._evaluator.evaluate(
                r.recording,
                ModelPredictions(
                    r.times,
                    rows.astype(np.float64),
                    np.arange(len(rows)),
                    (),
                    1 / r.rate_hz,
                    0.0,
                    len(rows),
                ),
            )
            for r, rows in zip(self._recordings, probabilities, strict=True)
        ]


def first_labels(targets: Tensor) -> npt.NDArray[np.int64]:
    """Return the first true class of each row of [T, K], UNSCORED where none is known."""
    none = targets.sum(-1) == 0
    labels: npt.NDArray[np.int64] = targets.argmax(-1).masked_fill(none, UNSCORED).numpy()
    return labels


def protocol_of(labels: Sequence[str]) -> str | None:
    """Return the key of the protocol that has exactly these labels."""
    for key, protocol in PROTOCOLS.items():
        if (*protocol.labels, *protocol.ignored) == tuple(labels):
            return key
    return None


def ignored_class(labels: Sequence[str]) -> int | None:
    """Return the class whose frames do not count; None if there is none."""
    key = protocol_of(labels)
    ignored = PROTOCOLS[key].ignored if key else ()
    return list(labels).index(ignored[0]) if ignored else None
