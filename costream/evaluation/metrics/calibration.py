"""Reliability of probabilities: of predictions with confidence 0.8, 80 % should be right.

Guo et al., "On Calibration of Modern Neural Networks" (ICML 2017), equation 3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

BINS = 15


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

    Frames with a negative label [T] do not count.
    """
    known = np.asarray(labels) >= 0
    scores, labels = np.asarray(scores)[known], np.asarray(labels)[known]
    sure = scores.max(1) if len(scores) else np.zeros(0)
    right = scores.argmax(1) == labels if len(scores) else np.zeros(0, bool)
    # Bins are closed above; 0, and values rounded to slightly above 1, go to the outermost bins.
    places = np.clip(np.ceil(sure * bins).astype(int) - 1, 0, bins - 1)
    out = []
    for k in range(bins):
        own = places == k
        count = int(own.sum())
        confidence = float(sure[own].mean()) if count else None
        accuracy = float(right[own].mean()) if count else None
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


# Bootstrap confidence intervals of metrics.
#
# Efron and Tibshirani, "An Introduction to the Bootstrap" (1993), section 13.3. Recordings (or
# groups of them) are resampled, never frames: those of one recording are correlated.


FEWEST_GROUPS = 6  # least number of groups for an interval
Counts = npt.NDArray[np.int64]  # how often each group was drawn
Interval = tuple[float, float]


def intervals(
    metrics: Callable[[Counts], Sequence[float]], groups: int, seed: int = 0, draws: int = 500
) -> list[Interval | None]:
    """Return the 95 % bootstrap interval over groups of each metric.

    ``metrics`` takes the multiplicity of each group. Draws for which a metric is NaN do not
    count. None if there are too few groups, or no draw has a value.
    """
    if groups < FEWEST_GROUPS:
        return [None] * len(metrics(np.ones(groups, np.int64)))
    rng = np.random.default_rng(seed)
    drawn = (rng.integers(groups, size=groups) for _ in range(draws))
    values = np.array([metrics(np.bincount(each, minlength=groups)) for each in drawn])
    return [_middle(column[~np.isnan(column)]) for column in values.T]


def _middle(values: npt.NDArray[np.float64]) -> Interval | None:
    if not len(values):
        return None
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)
