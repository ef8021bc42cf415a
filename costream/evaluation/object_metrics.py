"""Metrics and cost of object detection in images and clips."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from costream.core.records import Box, Objects, Picture, Record, VideoFrame
from costream.evaluation.evaluate_settings import (
    EvaluateSettings,
    card_of,
    load,
    readable,
    source_options,
)
from costream.evaluation.metrics.detection import (
    DetectedBoxes,
    Truth,
    boxes_alike,
    detection_scores,
    precision_interval,
)
from costream.evaluation.predictions import ConcatenatedSource, CostCollector
from costream.labels.clips_with_boxes import ClipWithBoxes, fit_boxes, read_boxes
from costream.models.base import GatedModel, Model
from costream.models.gated import least_change
from costream.options.options import Options
from costream.options.values import ALL_TOKENS
from costream.runtime.options import check_model_options
from costream.runtime.pipeline import run
from costream.runtime.stop import StopHandler
from costream.runtime.tracking import corners_of
from costream.sources.base import Source, SourceOptions
from costream.sources.uris import open_source

log = logging.getLogger("costream")

_ANY_SCORE = 1e-6  # average precision needs all detections, not only those shown


class _Collector(CostCollector):
    """A sink that collects the detections of each annotated frame of a clip, and the costs."""

    def __init__(self, clip: ClipWithBoxes, labels: Sequence[str]) -> None:
        super().__init__()
        self.found: list[DetectedBoxes] = []
        self.truth: list[Truth] = []
        self._clip, self._labels = clip, labels
        self._objects: Objects | None = None

    def write(self, record: Record) -> None:
        """Store the detections until their frame is drawn, and the costs."""
        super().write(record)
        if isinstance(record, Objects):
            self._objects = record

    def draw(self, picture: Picture) -> None:
        """Store detections and ground truth of a frame, whose size is known here."""
        objects, item = self._objects, picture.item
        if objects is None or not isinstance(item, VideoFrame):
            return
        marks = self._clip.frames.get(objects.frame)
        if marks is not None:
            height, width = item.rgb.shape[:2]
            self.found.append(detected(objects.boxes, self._labels))
            numbers = np.array([self._labels.index(label) for label in marks.labels], np.int64)
            self.truth.append(Truth(marks.pixels(item.size or (width, height)), numbers))


def object_scores(settings: EvaluateSettings, stop: StopHandler) -> dict[str, Any]:
    """Read images, clips and their boxes, and return the metrics as JSON values; see ``measure``.

    Raises UsageError for unusable boxes, ModelError, SourceError.
    """
    clips = read_boxes(settings.data or Path(), settings.labels or Path(), settings.group)
    clips = fit_boxes(clips, card_of(settings).labels)
    return measure(load(settings), clips, settings, stop)


def measure(
    model: Model, clips: Sequence[ClipWithBoxes], settings: EvaluateSettings, stop: StopHandler
) -> dict[str, Any]:
    """Run the model over all clips, once for each of ``settings.tokens``, as ``detect`` does.

    Each clip, and each single image, is a stream. Unreadable ones are logged, skipped and counted
    ("failed"). "tokens" of a run: as given, None for all of a token-gated network; of a model by
    place "default" without the option. "alike", if one of the runs is complete: ``boxes_alike`` of
    boxes from the model's thresholds on. The result is empty if ``stop`` was requested meanwhile.
    SourceError if none can be read.
    """
    budgets = settings.tokens or (None,)
    if isinstance(model, GatedModel):  # "all" is what they compute without the option
        budgets = tuple(None if tokens == ALL_TOKENS else tokens for tokens in budgets)
    names: dict[int | str | None, str] = {}
    if model.info.by_place:
        names = {None: "default", ALL_TOKENS: "all"}
    for tokens in budgets:
        check_model_options(_run_options(model, settings, tokens), model)
    if len(budgets) > 1 and all(len(clip.frames) < 2 for clip in clips):
        log.warning("single images always use all tokens: --tokens has an effect on clips only")
    options = source_options(settings, model)
    rows, boxes, read = [], list[list[DetectedBoxes]](), clips
    for tokens in budgets:
        read, found, row = _row(model, read, options, settings, tokens, stop)
        if stop.requested:
            return {}
        rows.append({"tokens": names.get(tokens, tokens), **row})
        boxes.append([_from_threshold(one, model) for one in found])
    complete = ALL_TOKENS if model.info.by_place else None
    if complete in budgets:
        full = boxes[budgets.index(complete)]
        rows = [
            row | {"alike": boxes_alike(full, found)}
            for row, found in zip(rows, boxes, strict=True)
        ]
    return {
        "model": model.info.card.name,
        "weights_sha256": model.info.weights_sha256,
        "labels": list(model.info.card.labels),
        "clips": len(read),
        "failed": len(clips) - len(read),
        "budgets": rows,
    }


def _run_options(model: Model, settings: EvaluateSettings, tokens: int | str | None) -> Options:
    """Return the options of a run; the policy is for those that choose a number of tokens."""
    few = tokens is not None and least_change(tokens) is None
    return Options(
        model=model.info.card.name,
        rate_hz=settings.rate_hz,
        threshold=_ANY_SCORE,
        tokens=tokens,
        policy=settings.policy if few else None,
    )


def _row(
    model: Model,
    clips: Sequence[ClipWithBoxes],
    options: SourceOptions,
    settings: EvaluateSettings,
    tokens: int | str | None,
    stop: StopHandler,
) -> tuple[list[ClipWithBoxes], list[DetectedBoxes], dict[str, Any]]:
    """Return the clips that can be read, their boxes, precision and cost with ``tokens``."""
    labels = model.info.card.labels
    run_options = _run_options(model, settings, tokens)

    def watched(clip: ClipWithBoxes) -> _Collector:
        collector = _Collector(clip, labels)
        run(_open(clip, options), model, [collector], options=run_options, stop=stop)
        return collector

    title = "pictures" if tokens is None else f"--tokens {tokens}"
    pairs = list(readable(clips, watched, "input", settings.data, stop, title))
    if stop.requested:
        return [], [], {}
    groups = sorted({clip.apart for clip in clips})
    places = [groups.index(clip.apart) for clip, one in pairs for _ in one.found]
    found = [boxes for _, one in pairs for boxes in one.found]
    truth = [boxes for _, one in pairs for boxes in one.truth]
    scores = {
        **detection_scores(found, truth, labels),
        "AP50_95": precision_interval(found, truth, places, labels),
        "macs": float(np.mean([n for _, one in pairs for n in one.macs])),
        "dense_macs": float(np.mean([n for _, one in pairs for n in one.dense_macs])),
        "ms": float(np.median([ms for _, one in pairs for ms in one.ms])),
    }
    return [clip for clip, _ in pairs], found, scores


def _from_threshold(found: DetectedBoxes, model: Model) -> DetectedBoxes:
    """Return the boxes that are shown: those from the thresholds of their labels on."""
    labels, least = model.info.card.labels, model.info.card.timeline.threshold_of
    shown = found.scores >= np.array([least(labels[k]) for k in found.labels], np.float64)
    return DetectedBoxes(found.boxes[shown], found.scores[shown], found.labels[shown])


def _open(clip: ClipWithBoxes, options: SourceOptions) -> Source:
    parts = [open_source(source, options) for source in clip.sources]
    return parts[0] if len(parts) == 1 else ConcatenatedSource(parts, 1 / (options.rate_hz or 1.0))


def detected(boxes: Sequence[Box], labels: Sequence[str]) -> DetectedBoxes:
    """Return the boxes of an image as arrays; ``labels``: of the model."""
    scores = np.array([box.score for box in boxes], np.float64)
    return DetectedBoxes(
        corners_of(boxes), scores, np.array([labels.index(b.label) for b in boxes], int)
    )
