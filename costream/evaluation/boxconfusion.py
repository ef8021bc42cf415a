"""What a detector takes objects for, and what of them it misses."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from costream.evaluation.detection import Found, Truth
from costream.evaluation.matching import taken
from costream.runtime.tracking import overlaps

_SHARED = 0.5  # intersection over union from which on a box is of an object


def box_confusion(
    found: Sequence[Found], truth: Sequence[Truth], thresholds: Sequence[float]
) -> npt.NDArray[np.int64]:
    """Count objects by what they are and what they were taken for, int64 [K + 1, K + 1].

    The last row is of boxes where nothing is, the last column of objects without a box. Each
    object is taken by the surest box, of whatever class, that shares at least half with it and no
    surer box took. ``thresholds`` [K]: scores from which on boxes of each class count.
    """
    classes = len(thresholds)
    counts = np.zeros((classes + 1, classes + 1), np.int64)
    least = np.asarray(thresholds)
    for said, true in zip(found, truth, strict=True):
        sure = np.flatnonzero(said.scores >= least[said.labels])
        sure = sure[np.argsort(-said.scores[sure], kind="stable")]
        takes = taken(overlaps(said.boxes[sure], true.boxes), _SHARED)
        told = np.full(len(true.labels), classes)
        told[takes[takes >= 0]] = said.labels[sure[takes >= 0]]
        np.add.at(counts, (true.labels, told), 1)
        np.add.at(counts[classes], said.labels[sure[takes < 0]], 1)
    return counts
