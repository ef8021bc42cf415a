"""Metrics of a detector for its card: on photographs and clips, dense and gated."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from costream.evaluation.metrics.detection import (
    DetectedBoxes,
    Truth,
    detection_scores,
    precision_interval,
)
from costream.models.eventful.vitdet import ViTDet
from costream.training.objects_scenes import CLIPS
from costream.training.objects_threshold import best_threshold
from costream.training.objects_truth import ANNOTATED_CLIPS
from weights.recipes.objects.data import LABELS, read_images
from weights.recipes.objects.judge import (
    BoxSize,
    DetectionTest,
    annotated_clip,
    detect_clip,
    detect_images,
    detect_with_teacher,
    photographs,
    pseudo_labelled_clip,
)
from weights.recipes.objects.teacher import Yolox

SHARES = {"all tokens": 1.0, "half": 0.5, "a quarter": 0.25, "an eighth": 0.125}
PHOTOGRAPHS = "COCO val2017, 64 pictures"
_TEACHER = "YOLOX-nano, the teacher"


def judge(network: ViTDet, packs: Path, teacher: Yolox, box: BoxSize) -> dict[str, Any]:
    """Return the metrics of a card, by test set and by model."""
    metrics = {PHOTOGRAPHS: judge_photographs(network, packs, teacher, box)}
    for name in ANNOTATED_CLIPS:
        test = annotated_clip(packs, name, box)
        rows = _gated(network, test, box)
        rows[_TEACHER] = _score(detect_with_teacher(teacher, packs, test.pictures), test.truth)
        metrics[f"{name}, held out; boxes put down by hand"] = rows
        test = pseudo_labelled_clip(packs, name, teacher, box, None)
        metrics[f"{name}, held out; against the teacher"] = _gated(network, test, box)
    for name, clip in CLIPS.items():
        if clip.parts:
            test = pseudo_labelled_clip(packs, name, teacher, box, "test")
            judged_by = "what moves" if clip.moving else "the teacher"
            title = f"{name}, last fifth; same camera as trained on; against {judged_by}"
            metrics[title] = _gated(network, test, box)
    return metrics


def judge_photographs(
    network: ViTDet, packs: Path, teacher: Yolox, box: BoxSize
) -> dict[str, dict[str, Any]]:
    """Return the metrics on photographs, with intervals: unlike frames, they are independent."""
    test = photographs(read_images(packs, "test"), box)
    rows = {}
    for title, found in (
        ("eventful-vitdet", detect_images(network, test.pictures, box)),
        (_TEACHER, detect_with_teacher(teacher, packs, test.pictures)),
    ):
        rows[title] = _score(found, test.truth)
        limits = precision_interval(found, test.truth, range(len(found)), LABELS)
        if limits is not None:
            rows[title]["AP50_95"] = [round(limit, 4) for limit in limits]
    return rows


def choose_threshold(network: ViTDet, packs: Path, teacher: Yolox, box: BoxSize) -> float:
    """Return the score threshold chosen by F1 on the validation images."""
    tests = [photographs(read_images(packs, "validation"), box)]
    tests += [
        pseudo_labelled_clip(packs, n, teacher, box, "validation")
        for n, c in CLIPS.items()
        if c.parts
    ]
    found = [f for t in tests for f in detect_images(network, t.pictures, box)]
    return best_threshold(found, [true for t in tests for true in t.truth])


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


def _gated(network: ViTDet, test: DetectionTest, box: BoxSize) -> dict[str, Any]:
    rows = {}
    for title, share in SHARES.items():
        found, macs = detect_clip(network, test.pictures, box, share)
        rows[title] = {**_score(found, test.truth), "macs": round(macs)}
    return rows


def rounded_scores(
    found: Sequence[DetectedBoxes], truth: Sequence[Truth], labels: Sequence[str]
) -> dict[str, Any]:
    """Return ``detection_scores`` for a card: rounded, None if undefined."""
    scores: dict[str, Any] = detection_scores(found, truth, labels)
    for part in _parts(scores):
        for name in ("AP50", "AP"):
            part[name] = None if math.isnan(part[name]) else round(part[name], 4)
    return scores


def _score(found: Sequence[DetectedBoxes], truth: Sequence[Truth]) -> dict[str, Any]:
    return rounded_scores(found, truth, LABELS)


def _parts(scores: dict[str, Any]) -> Iterable[dict[str, Any]]:
    return [scores, *scores["classes"].values()]


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
