"""The card of a custom detector, and the thresholds chosen on validation images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from costream.checkpoints.card import Card, Timeline
from costream.checkpoints.file import Weights
from costream.evaluation.metrics.detection import DetectedBoxes, Truth, precision_interval
from costream.training.base import EARLY_STOPPING_NOTE, TrainSettings
from costream.training.objects.examples import AnnotatedImage, count_boxes
from costream.training.objects_report import rounded_scores
from costream.training.objects_threshold import best_threshold

ENOUGH = 10  # least number of validation objects to choose a threshold by


@dataclass(frozen=True)
class DetectorResults:
    """Detections on the validation images by model name, and the ground truth.

    ``history``: figures during training, see ``Watch``.
    """

    found: dict[str, list[DetectedBoxes]]  # the trained network first
    truth: list[Truth]
    groups: list[int]  # group number of each image
    history: list[dict[str, float]]


def describe(
    card: Card,
    told: DetectorResults,
    divided: Sequence[Sequence[AnnotatedImage]],
    base: Weights,
    settings: TrainSettings,
) -> Card:
    """Return the card with its training data and validation metrics."""
    training, checks = divided
    counts = count_boxes(training)
    listed = ", ".join(f"{label} {counts[label]}" for label in card.labels)
    origin = None if settings.scratch else f"{base.card.name} ({base.card.licence})"
    start = f"started from {origin}" if origin else "trained from scratch"
    start += ", backbone frozen" if origin and not settings.fine_tune else ""
    timeline = chosen(card, told) if checks else card.timeline
    how = [EARLY_STOPPING_NOTE] if checks else []
    how += ["The thresholds were chosen on them too."] if timeline != card.timeline else []
    return replace(
        card,
        timeline=timeline,
        description=f"Custom objects: {', '.join(card.labels)}.",
        trained_on=f"{len(training)} user images with {counts.total()} boxes ({listed}), {start};"
        f" seed {settings.seed}.",
        split=f"{len(training)} images to train, {len(checks)} to validate, by file or group."
        + "".join(f" {sentence}" for sentence in how),
        limits="Fitted to the places and cameras of its images; validated on few of them.",
        licence="Licence of the images" + (f" and of {origin}" if origin else ""),
        metrics={"validation": _metrics(card, told)} if checks else {},
    )


def chosen(card: Card, told: DetectorResults) -> Timeline:
    """Return the timeline with the thresholds of best F1 on the validation images.

    The common threshold needs ``ENOUGH`` objects, that of a label as many of its own.
    """
    own = told.found[card.name]
    objects = sum(len(one.labels) for one in told.truth)
    if objects < ENOUGH or not any(len(one.scores) for one in own):
        return card.timeline
    thresholds = {}
    for number, label in enumerate(card.labels):
        found = [DetectedBoxes(*(part[one.labels == number] for part in one)) for one in own]
        truth = [Truth(*(part[one.labels == number] for part in one)) for one in told.truth]
        enough = sum(len(one.labels) for one in truth) >= ENOUGH
        if enough and any(len(one.scores) for one in found):
            thresholds[label] = round(best_threshold(found, truth), 2)
    threshold = round(best_threshold(own, told.truth), 2)
    return replace(card.timeline, threshold=threshold, low=None, thresholds=thresholds)


def _metrics(card: Card, told: DetectorResults) -> dict[str, Any]:
    rows = {}
    for name, found in told.found.items():
        rows[name] = rounded_scores(found, told.truth, card.labels)
        limits = precision_interval(found, told.truth, told.groups, card.labels)
        if limits is not None:
            rows[name]["AP50_95"] = [round(limit, 4) for limit in limits]
    return rows
