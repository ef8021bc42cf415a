"""The card of a custom detector, and the thresholds chosen on validation images."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from costream.evaluation.metrics.detection import (
    DetectedBoxes,
    Truth,
    detection_scores,
    match,
    precision_interval,
)
from costream.training.adaptation import Adaptation
from costream.training.card_text import cell
from costream.weights_io.card import Card, Timeline

ENOUGH = 10  # least number of validation objects to choose a threshold by
_NEAR = 0.01  # difference of F1


@dataclass(frozen=True)
class DetectorResults:
    """Detections on the validation images by model name, and the ground truth.

    ``history``: figures during training, see ``EarlyStopping``. ``adaptation``: finished.
    """

    found: dict[str, list[DetectedBoxes]]  # the trained network first
    truth: list[Truth]
    groups: list[int]  # group number of each image
    history: list[dict[str, float]]
    adaptation: Adaptation
    frozen: bool = False  # the backbone was not trained


def chosen(card: Card, results: DetectorResults) -> Timeline:
    """Return the timeline with the thresholds of best F1 on the validation images.

    The common threshold needs ``ENOUGH`` objects, that of a label as many with this label.
    """
    detected = results.found[card.name]
    objects = sum(len(one.labels) for one in results.truth)
    if objects < ENOUGH or not any(len(one.scores) for one in detected):
        return card.timeline
    thresholds = {}
    for number, label in enumerate(card.labels):
        found = [DetectedBoxes(*(part[one.labels == number] for part in one)) for one in detected]
        truth = [Truth(*(part[one.labels == number] for part in one)) for one in results.truth]
        is_frequent = sum(len(one.labels) for one in truth) >= ENOUGH
        if is_frequent and any(len(one.scores) for one in found):
            thresholds[label] = round(best_threshold(found, truth), 2)
    threshold = round(best_threshold(detected, results.truth), 2)
    return replace(card.timeline, threshold=threshold, low=None, thresholds=thresholds)


def validation_scores(card: Card, results: DetectorResults) -> dict[str, Any]:
    """Return the validation metrics of the network and of the baselines, by name."""
    rows = {}
    for name, found in results.found.items():
        rows[name] = rounded_scores(found, results.truth, card.labels)
        limits = precision_interval(found, results.truth, results.groups, card.labels)
        if limits is not None:
            rows[name]["AP50_95"] = [round(limit, 4) for limit in limits]
    found = results.found[card.name]
    rows[card.name]["shown"] = shown_boxes(found, results.truth, card.timeline, card.labels)
    return rows


def shown_boxes(
    found: Sequence[DetectedBoxes],
    truth: Sequence[Truth],
    timeline: Timeline,
    labels: Sequence[str] = (),
) -> dict[str, float]:
    """Return precision, recall, and false boxes per image of the boxes from the thresholds on.

    ``labels``: by number, for thresholds of labels. Boxes are right from an overlap of a half on.
    """
    hits = shown = 0
    for detected, true in zip(found, truth, strict=True):
        for number in np.unique(detected.labels):
            least = timeline.threshold_of(labels[number] if labels else "")
            seen = (detected.labels == number) & (detected.scores >= least)
            hits += int(match(detected.boxes[seen], true.boxes[true.labels == number], 0.5).sum())
            shown += int(seen.sum())
    total = sum(len(true.labels) for true in truth)
    return {
        "threshold": round(timeline.threshold, 2),
        "precision": round(hits / max(1, shown), 4),
        "recall": round(hits / max(1, total), 4),
        "false": round((shown - hits) / max(1, len(truth)), 4),
    }


def best_threshold(found: Sequence[DetectedBoxes], truth: Sequence[Truth]) -> float:
    """Return the lowest score threshold whose F1 is within ``_NEAR`` of the best.

    Boxes are correct from an overlap of a half on. Where F1 hardly depends on the threshold, a low
    one misses the fewest objects that look different from those in these images.
    """
    scores, right = [], []
    for detected, true in zip(found, truth, strict=True):
        for number in np.unique(detected.labels):
            of_label = detected.labels == number
            scores.append(detected.scores[of_label])
            right.append(match(detected.boxes[of_label], true.boxes[true.labels == number], 0.5))
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
        lines.append(f"| {model} | {' | '.join(map(cell, values))} | {cost} |")
    for model, scores in models.items():
        if "AP50_95" in scores:
            low, high = scores["AP50_95"]
            text = f"AP50 of {model}: 95 % interval over images {low:.3f} to {high:.3f}."
            lines += ["", text]
        if "shown" in scores:
            shown = scores["shown"]
            text = (
                f"Boxes of {model} from {shown['threshold']} on:"
                f" precision {shown['precision']:.3f},"
                f" recall {shown['recall']:.3f}, {shown['false']:.3f} false boxes an image."
            )
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
