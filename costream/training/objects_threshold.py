"""Score threshold of a detector, chosen on labelled images."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from costream.evaluation.metrics.detection import DetectedBoxes, Truth, match

_NEAR = 0.01  # difference of F1


def best_threshold(found: Sequence[DetectedBoxes], truth: Sequence[Truth]) -> float:
    """Return the lowest score threshold whose F1 is within ``_NEAR`` of the best.

    Boxes are correct from an overlap of a half on. Where F1 hardly depends on the threshold, a low
    one loses fewest objects that differ from those in the images here.
    """
    scores, right = [], []
    for said, true in zip(found, truth, strict=True):
        for number in np.unique(said.labels):
            own = said.labels == number
            scores.append(said.scores[own])
            right.append(match(said.boxes[own], true.boxes[true.labels == number], 0.5))
    ranked = np.argsort(-np.concatenate(scores))
    hits = np.concatenate(right)[ranked].cumsum()
    total = sum(len(t.labels) for t in truth)
    f1 = 2 * hits / (np.arange(1, len(hits) + 1) + total)
    return float(np.concatenate(scores)[ranked][f1 >= f1.max() - _NEAR][-1])
