"""How well objects are found: average precision of boxes, as COCO counts it.

Lin et al., "Microsoft COCO" (ECCV 2014), and its evaluation code: the detections of a class in
all pictures together, the surest first, each matched with the true box of its picture that it
shares most with and that none before it took; precision made falling and read off at 101
recalls. There are no crowds and no sizes here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from costream.runtime.tracking import overlaps

Floats = npt.NDArray[np.floating]
Integers = npt.NDArray[np.integer]

THRESHOLDS = tuple(round(0.5 + 0.05 * k, 2) for k in range(10))
_RECALLS = np.linspace(0, 1, 101)
_MOST = 100  # detections of a class in a picture


class Truth(NamedTuple):
    """The objects of a picture."""

    boxes: Floats  # [n, 4], x1, y1, x2, y2
    labels: Integers  # [n]


class Found(NamedTuple):
    """What a detector says of a picture."""

    boxes: Floats  # [n, 4], x1, y1, x2, y2
    scores: Floats  # [n]
    labels: Integers  # [n]


def match(boxes: Floats, truth: Floats, threshold: float) -> npt.NDArray[np.bool_]:
    """Say which boxes [n, 4], the surest first, are right, bool [n]: each true box is found once.

    ``threshold``: the least intersection over union.
    """
    right = np.zeros(len(boxes), dtype=bool)
    shared = overlaps(boxes, truth)
    for number, row in enumerate(shared):
        best = int(row.argmax()) if len(row) else -1
        if best >= 0 and row[best] >= threshold:
            right[number] = True
            shared[:, best] = -1.0  # taken
    return right


def interpolated_precision(right: npt.NDArray[np.bool_], total: int) -> float:
    """Give the mean of precision at 101 recalls, precision at a recall being the best beyond it.

    ``right`` [n]: of detections, the surest first. ``total``: true objects; NaN when 0.
    """
    if not total:
        return float("nan")
    hits = np.cumsum(right)
    precision = hits / np.arange(1, len(right) + 1)
    falling = np.maximum.accumulate(precision[::-1])[::-1]
    places = np.searchsorted(hits / total, _RECALLS, side="left")
    return float(np.append(falling, 0.0)[places.clip(max=len(right))].mean())


def box_precision(
    found: Sequence[Found], truth: Sequence[Truth], label: int, threshold: float = 0.5
) -> float:
    """Give the average precision of a class over pictures; NaN when it is in none of them."""
    scores: list[Floats] = [np.zeros(0)]
    right = [np.zeros(0, dtype=bool)]
    total = 0
    for said, true in zip(found, truth, strict=True):
        own = np.flatnonzero(said.labels == label)
        own = own[np.argsort(-said.scores[own], kind="stable")][:_MOST]
        boxes = true.boxes[true.labels == label]
        total += len(boxes)
        scores.append(said.scores[own])
        right.append(match(said.boxes[own], boxes, threshold))
    order = np.argsort(-np.concatenate(scores), kind="stable")
    return interpolated_precision(np.concatenate(right)[order], total)


def detection_scores(
    found: Sequence[Found], truth: Sequence[Truth], labels: Sequence[str]
) -> dict[str, object]:
    """Give the average precision of every class that is there, and the means over them.

    ``AP50`` at an overlap of 0.5, ``AP`` the mean over 0.5, 0.55 ... 0.95; in ``classes`` by
    name, with the number of true ``objects``. Means are NaN when no class is there.
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
