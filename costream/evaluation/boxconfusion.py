"""Confusion matrix of a detector, with false detections and missed objects."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from costream.evaluation.matching import taken
from costream.evaluation.metrics.detection import DetectedBoxes, Truth
from costream.runtime.tracking import pairwise_iou

_SHARED = 0.5  # least intersection over union of a match


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
    for said, true in zip(found, truth, strict=True):
        sure = np.flatnonzero(said.scores >= least[said.labels])
        sure = sure[np.argsort(-said.scores[sure], kind="stable")]
        takes = taken(pairwise_iou(said.boxes[sure], true.boxes), _SHARED)
        told = np.full(len(true.labels), classes)
        told[takes[takes >= 0]] = said.labels[sure[takes >= 0]]
        np.add.at(counts, (true.labels, told), 1)
        np.add.at(counts[classes], said.labels[sure[takes < 0]], 1)
    return counts
