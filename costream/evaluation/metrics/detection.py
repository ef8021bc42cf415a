"""Average precision of object detection, as defined by COCO.

Lin et al., "Microsoft COCO" (ECCV 2014), and its evaluation code: the detections of a class in
all images are sorted by falling score, and each is matched with the unmatched true box of its
image that it overlaps most; precision is made monotonically falling and sampled at 101
recalls. Crowds and object sizes are not distinguished.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from costream.evaluation.metrics import Floats, Integers, Mask
from costream.evaluation.metrics.bootstrap import Interval, Multiplicities, intervals
from costream.runtime.tracking import pairwise_iou

THRESHOLDS = tuple(round(0.5 + 0.05 * k, 2) for k in range(10))
_RECALLS = np.linspace(0, 1, 101)
_MOST = 100  # most detections of a class in an image
_SHARED = 0.5  # least intersection over union in the confusion matrix


def take_best(likeness: Floats, least: float) -> Mask:
    """Return which of n predictions, by falling score, are right, bool [n]; see ``taken``."""
    right: Mask = taken(likeness, least) >= 0
    return right


def taken(likeness: Floats, least: float) -> npt.NDArray[np.int64]:
    """Return the true item matched to each of n predictions, by falling score, int64 [n].

    Each takes the most similar item that none before it took, if the similarity is ``least`` or
    more; -1: none. ``likeness`` [n, m]: similarity of predictions and true items.
    """
    free = np.array(likeness, np.float64)
    out = np.full(len(free), -1)
    for number in np.flatnonzero((free >= least).any(1)):
        best = int(free[number].argmax())
        if free[number, best] >= least:
            out[number] = best
            free[:, best] = -np.inf
    return out


def ranked_precision(right: Mask, total: int) -> float:
    """Return the mean over true items of the precision at their rank; 0 for items not found.

    ``right`` [n]: of predictions, by falling score. ``total``: true items; NaN if 0.
    """
    if not total:
        return float("nan")
    return float(_precision(right)[right].sum() / total)


def best_precision_beyond(right: Mask, total: int) -> float:
    """Return ``ranked_precision`` with the precision at a rank being the best from there on.

    This is interpolation at every recall, as in PASCAL VOC since 2010, and ActivityNet.
    """
    if not total:
        return float("nan")
    falling = np.maximum.accumulate(_precision(right)[::-1])[::-1]
    return float(falling[right].sum() / total)


def _precision(right: Mask) -> npt.NDArray[np.float64]:
    return np.cumsum(right) / np.arange(1, len(right) + 1)


class Truth(NamedTuple):
    """The ground-truth objects of an image."""

    boxes: Floats  # [n, 4], x1, y1, x2, y2
    labels: Integers  # [n]


class DetectedBoxes(NamedTuple):
    """The detections in an image."""

    boxes: Floats  # [n, 4], x1, y1, x2, y2
    scores: Floats  # [n]
    labels: Integers  # [n]


def match(boxes: Floats, truth: Floats, threshold: float) -> Mask:
    """Return which boxes [n, 4], by falling score, are right, bool [n]; a true box matches once.

    ``threshold``: the least intersection over union.
    """
    return take_best(pairwise_iou(boxes, truth), threshold)


def box_pairs(first: DetectedBoxes, second: DetectedBoxes, threshold: float = 0.5) -> int:
    """Return how many boxes of an image have a partner of their label in ``second``.

    ``threshold``: the least intersection over union. No box has two partners.
    """
    pairs = 0
    for label in np.intersect1d(first.labels, second.labels):
        one, other = (
            found.boxes[chosen[np.argsort(-found.scores[chosen], kind="stable")]]
            for found in (first, second)
            for chosen in [np.flatnonzero(found.labels == label)]
        )
        pairs += int(match(one, other, threshold).sum())
    return pairs


def boxes_alike(
    full: Sequence[DetectedBoxes], found: Sequence[DetectedBoxes], threshold: float = 0.5
) -> float:
    """Return twice the pairs of boxes of the same images, divided by all boxes; NaN without any.

    ``threshold``: the least intersection over union.
    """
    total = sum(len(one.boxes) for boxes in (full, found) for one in boxes)
    pairs = sum(box_pairs(one, other, threshold) for one, other in zip(found, full, strict=True))
    return 2 * pairs / total if total else float("nan")


def interpolated_precision(right: Mask, total: int, often: Integers | None = None) -> float:
    """Return the mean precision at 101 recalls, using the best precision at or beyond each recall.

    ``right`` [n]: of detections, by falling score. ``total``: true objects; NaN if 0.
    ``often`` [n]: multiplicity of each detection; None: 1.
    """
    if not total:
        return float("nan")
    counts = np.ones(len(right), np.int64) if often is None else np.asarray(often, np.int64)
    right, counts = right[counts > 0], counts[counts > 0]
    hits = np.cumsum(right * counts)
    precision = hits / np.cumsum(counts)
    falling = np.maximum.accumulate(precision[::-1])[::-1]
    places = np.searchsorted(hits / total, _RECALLS, side="left")
    return float(np.append(falling, 0.0)[places.clip(max=len(right))].mean())


def box_precision(
    found: Sequence[DetectedBoxes], truth: Sequence[Truth], label: int, threshold: float = 0.5
) -> float:
    """Return the average precision of a class over images; NaN if it is in none of them."""
    right, _, totals = _ranked(found, truth, label, threshold)
    return interpolated_precision(right, int(totals.sum()))


def precision_interval(
    found: Sequence[DetectedBoxes],
    truth: Sequence[Truth],
    clips: Sequence[int],
    labels: Sequence[str],
) -> Interval | None:
    """Return the 95 % bootstrap interval of AP50 over clips; None for too few.

    ``clips``: the clip number, from 0, of each image.
    """
    numbers = [k for k in range(len(labels)) if any((t.labels == k).any() for t in truth)]
    ranked = [_ranked(found, truth, number, 0.5) for number in numbers]
    clip = np.array(clips, np.int64)

    def mean(drawn: Multiplicities) -> list[float]:
        often = drawn[clip]
        each = [
            interpolated_precision(right, int((often * totals).sum()), often[pictures])
            for right, pictures, totals in ranked
        ]
        defined = [value for value in each if not np.isnan(value)]
        return [float(np.mean(defined)) if defined else float("nan")]

    return intervals(mean, int(clip.max(initial=-1)) + 1)[0]


def _ranked(
    found: Sequence[DetectedBoxes], truth: Sequence[Truth], label: int, threshold: float
) -> tuple[Mask, Integers, Integers]:
    """Return which detections [n] of a class are right, by falling score, and their image numbers.

    Also return the number of true objects in each image.
    """
    scores: list[Floats] = [np.zeros(0)]
    right = [np.zeros(0, dtype=bool)]
    pictures = [np.zeros(0, np.int64)]
    totals = []
    for number, (detected, true) in enumerate(zip(found, truth, strict=True)):
        rows = np.flatnonzero(detected.labels == label)
        rows = rows[np.argsort(-detected.scores[rows], kind="stable")][:_MOST]
        boxes = true.boxes[true.labels == label]
        totals.append(len(boxes))
        scores.append(detected.scores[rows])
        right.append(match(detected.boxes[rows], boxes, threshold))
        pictures.append(np.full(len(rows), number))
    order = np.argsort(-np.concatenate(scores), kind="stable")
    return np.concatenate(right)[order], np.concatenate(pictures)[order], np.array(totals, int)


def detection_scores(
    found: Sequence[DetectedBoxes], truth: Sequence[Truth], labels: Sequence[str]
) -> dict[str, object]:
    """Return the average precision of every class present, and the means over them.

    ``AP50`` at an overlap of 0.5, ``AP`` the mean over 0.5, 0.55 ... 0.95; in ``classes`` by
    name, with the number of true ``objects``. Means are NaN if no class is present.
    """
    classes: dict[str, dict[str, float]] = {}
    for number, name in enumerate(labels):
        count = sum(int((t.labels == number).sum()) for t in truth)
        if count:
            each = [box_precision(found, truth, number, t) for t in THRESHOLDS]
            classes[name] = {"objects": count, "AP50": each[0], "AP": float(np.mean(each))}
    means = {
        name: float(np.mean([c[name] for c in classes.values()])) if classes else float("nan")
        for name in ("AP50", "AP")
    }
    return {"pictures": len(truth), **means, "classes": classes}


def box_confusion(
    found: Sequence[DetectedBoxes], truth: Sequence[Truth], thresholds: Sequence[float]
) -> npt.NDArray[np.int64]:
    """Return the counts of objects by true and predicted class, int64 [K + 1, K + 1].

    The last row counts false boxes, the last column missed objects. In order of falling score,
    each box of any class takes the object it overlaps most, if their IoU is at least 0.5 and no
    box before took it. ``thresholds`` [K]: least score of the boxes of each class.
    """
    classes = len(thresholds)
    counts = np.zeros((classes + 1, classes + 1), np.int64)
    least = np.asarray(thresholds)
    for detected, true in zip(found, truth, strict=True):
        rows = np.flatnonzero(detected.scores >= least[detected.labels])
        rows = rows[np.argsort(-detected.scores[rows], kind="stable")]
        matches = taken(pairwise_iou(detected.boxes[rows], true.boxes), _SHARED)
        labels = np.full(len(true.labels), classes)
        labels[matches[matches >= 0]] = detected.labels[rows[matches >= 0]]
        np.add.at(counts, (true.labels, labels), 1)
        np.add.at(counts[classes], detected.labels[rows[matches < 0]], 1)
    return counts
