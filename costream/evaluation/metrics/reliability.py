"""Reliability of probabilities: of predictions with confidence 0.8, 80 % should be right.

Guo et al., "On Calibration of Modern Neural Networks" (ICML 2017), equation 3.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

BINS = 15
_ROUNDED = 1e-3  # by so much a probability may be beyond 0 or 1


@dataclass(frozen=True)
class Bin:
    """The predictions whose confidence is above ``low`` and at most ``high``."""

    low: float
    high: float
    count: int
    confidence: float | None  # mean; None for an empty bin
    accuracy: float | None  # share of right predictions


def reliability(
    scores: npt.NDArray[np.floating], labels: npt.NDArray[np.integer], bins: int = BINS
) -> list[Bin]:
    """Return equal-width bins of the largest probability of each frame of scores [T, K].

    Frames with a negative label [T] do not count; none counts if scores are not probabilities.
    """
    is_scored = np.asarray(labels) >= 0
    if not ((np.asarray(scores) >= -_ROUNDED) & (np.asarray(scores) <= 1 + _ROUNDED)).all():
        is_scored[:] = False
    scores, labels = np.asarray(scores)[is_scored], np.asarray(labels)[is_scored]
    confidences = scores.max(1) if len(scores) else np.zeros(0)
    right = scores.argmax(1) == labels if len(scores) else np.zeros(0, bool)
    # Bins are closed above; 0, and values rounded to slightly above 1, go to the outermost bins.
    places = np.clip(np.ceil(confidences * bins).astype(int) - 1, 0, bins - 1)
    out = []
    for k in range(bins):
        inside = places == k
        count = int(inside.sum())
        confidence = float(confidences[inside].mean()) if count else None
        accuracy = float(right[inside].mean()) if count else None
        out.append(Bin(k / bins, (k + 1) / bins, count, confidence, accuracy))
    return out


def calibration_error(bins: list[Bin]) -> float:
    """Return the expected calibration error: the mean gap of the bins, weighted by count.

    NaN without predictions.
    """
    total = sum(b.count for b in bins)
    gaps = (
        b.count * abs(b.confidence - b.accuracy)
        for b in bins
        if b.confidence is not None and b.accuracy is not None
    )
    return sum(gaps) / total if total else float("nan")
