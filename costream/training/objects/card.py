"""The card of a custom detector, and the thresholds chosen on validation images."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from costream.checkpoints.card import Card, Timeline
from costream.checkpoints.file import Weights
from costream.evaluation.metrics.detection import (
    DetectedBoxes,
    Truth,
    detection_scores,
    match,
    precision_interval,
)
from costream.training.base import EARLY_STOPPING_NOTE, TrainSettings
from costream.training.objects.examples import AnnotatedImage, count_boxes

ENOUGH = 10  # least number of validation objects to choose a threshold by


@dataclass(frozen=True)
class DetectorResults:
    """Detections on the validation images by model name, and the ground truth.

    ``history``: figures during training, see ``EarlyStopping``.
    """

    found: dict[str, list[DetectedBoxes]]  # the trained network first
    truth: list[Truth]
    groups: list[int]  # group number of each image
    history: list[dict[str, float]]


def describe(
    card: Card,
    results: DetectorResults,
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
    timeline = chosen(card, results) if checks else card.timeline
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
        metrics={"validation": _metrics(card, results)} if checks else {},
    )


def chosen(card: Card, results: DetectorResults) -> Timeline:
    """Return the timeline with the thresholds of best F1 on the validation images.

    The common threshold needs ``ENOUGH`` objects, that of a label as many of its own.
    """
    own = results.found[card.name]
    objects = sum(len(one.labels) for one in results.truth)
    if objects < ENOUGH or not any(len(one.scores) for one in own):
        return card.timeline
    thresholds = {}
    for number, label in enumerate(card.labels):
        found = [DetectedBoxes(*(part[one.labels == number] for part in one)) for one in own]
        truth = [Truth(*(part[one.labels == number] for part in one)) for one in results.truth]
        enough = sum(len(one.labels) for one in truth) >= ENOUGH
        if enough and any(len(one.scores) for one in found):
            thresholds[label] = round(best_threshold(found, truth), 2)
    threshold = round(best_threshold(own, results.truth), 2)
    return replace(card.timeline, threshold=threshold, low=None, thresholds=thresholds)


def _metrics(card: Card, results: DetectorResults) -> dict[str, Any]:
    rows = {}
    for name, found in results.found.items():
        rows[name] = rounded_scores(found, results.truth, card.labels)
        limits = precision_interval(found, results.truth, results.groups, card.labels)
        if limits is not None:
            rows[name]["AP50_95"] = [round(limit, 4) for limit in limits]
    return rows


_NEAR = 0.01  # difference of F1


def best_threshold(found: Sequence[DetectedBoxes], truth: Sequence[Truth]) -> float:
    """Return the lowest score threshold whose F1 is within ``_NEAR`` of the best.

    Boxes are correct from an overlap of a half on. Where F1 hardly depends on the threshold, a low
    one loses fewest objects that differ from those in the images here.
    """
    scores, right = [], []
    for detected, true in zip(found, truth, strict=True):
        for number in np.unique(detected.labels):
            own = detected.labels == number
            scores.append(detected.scores[own])
            right.append(match(detected.boxes[own], true.boxes[true.labels == number], 0.5))
    ranked = np.argsort(-np.concatenate(scores))
    hits = np.concatenate(right)[ranked].cumsum()
    total = sum(len(t.labels) for t in truth)
    f1 = 2 * hits / (np.arange(1, len(hits) + 1) + total)
    return float(np.concatenate(scores)[ranked][f1 >= f1.max() - _NEAR][-1])


def detection_table(models: dict[str, dict[str, Any]], labels: Sequence[str]) -> list[str]:
    """Return a table with one row per model, with the AP50 of every class present."""
    first = next(iter(models.values()))
    names = [name for name in labels if name in first["classes"]]
    heads = ["AP50", *(f"AP50 {n} ({first['classes'][n]['objects']})" for n in names), "AP"]
    lines = [
        f"{first['pictures']} images; number of objects in brackets.",
        "",
        f"| | {' | '.join(heads)} | GMAC per image |",
        "|---" * (len(heads) + 2) + "|",
    ]
    for model, scores in models.items():
        values = [scores["AP50"], *(scores["classes"][n]["AP50"] for n in names), scores["AP"]]
        cost = f"{scores['macs'] / 1e9:.3f}" if "macs" in scores else "-"
        lines.append(f"| {model} | {' | '.join(map(_cell, values))} | {cost} |")
    for model, scores in models.items():
        if "AP50_95" in scores:
            low, high = scores["AP50_95"]
            text = f"AP50 of {model}: 95 % interval over images {low:.3f} to {high:.3f}."
            lines += ["", text]
    return lines


def rounded_scores(
    found: Sequence[DetectedBoxes], truth: Sequence[Truth], labels: Sequence[str]
) -> dict[str, Any]:
    """Return ``detection_scores`` for a card: rounded, None if undefined."""
    scores: dict[str, Any] = detection_scores(found, truth, labels)
    for part in _parts(scores):
        for name in ("AP50", "AP"):
            part[name] = None if math.isnan(part[name]) else round(part[name], 4)
    return scores


def _parts(scores: dict[str, Any]) -> Iterable[dict[str, Any]]:
    return [scores, *scores["classes"].values()]


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
