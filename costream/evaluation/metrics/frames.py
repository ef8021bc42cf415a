"""Frame metrics of online action detection. NumPy only.

Labels are int [T]; scores are [T, K], one column per class. Frames with a negative label are
not scored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from costream.evaluation.ranking import Ranking

Scores = npt.NDArray[np.floating]
Labels = npt.NDArray[np.integer]
Mask = npt.NDArray[np.bool_]


def average_precision(scores: Scores, positive: Mask) -> float:
    """Return the average precision of one class, NaN without positives.

    Frames are sorted by falling score; each positive, the tp-th one at rank k, adds tp / k; the
    sum is divided by the number of positives. For equal scores see ``Ranking``. ``scores``,
    ``positive``: [T].
    """
    return Ranking(scores, positive).precision(1.0)


def calibrated_average_precision(
    scores: Scores, positive: Mask, weight: float | None = None
) -> float:
    """Return the calibrated average precision of one class, NaN without positives.

    As ``average_precision``, but each positive adds w tp / (w tp + fp), with w = negatives /
    positives, so that rare classes compare with frequent ones (De Geest et al., "Online Action
    Detection", ECCV 2016). ``weight``: another w; 1 gives the plain average precision.
    """
    return Ranking(scores, positive).precision(weight)


def per_class(
    metric: Callable[[Scores, Mask], float],
    scores: Scores,
    labels: Labels,
    classes: Sequence[int] | None = None,
) -> npt.NDArray[np.float64]:
    """Return ``metric`` of every class (or of ``classes``), float64 [K]; NaN without a frame."""
    known = np.asarray(labels) >= 0
    scores, labels = np.asarray(scores)[known], np.asarray(labels)[known]
    wanted = range(scores.shape[1]) if classes is None else classes
    return np.array([metric(scores[:, k], labels == k) for k in wanted])


def mean_average_precision(
    scores: Scores, labels: Labels, classes: Sequence[int] | None = None
) -> float:
    """Return the mean average precision over classes with a frame; NaN if there are none.

    ``classes``: to average over; default: all.
    """
    values = per_class(average_precision, scores, labels, classes)
    values = values[~np.isnan(values)]
    return float(values.mean()) if len(values) else float("nan")


def frame_accuracy(predicted: Labels, labels: Labels, tolerance: int = 0) -> float:
    """Return the share of frames whose label was predicted, NaN without scored frames.

    ``tolerance``: a prediction is also right if its label occurs at most this many frames away.
    """
    known = np.asarray(labels) >= 0
    if not known.any():
        return float("nan")
    return float(_right(predicted, labels, tolerance)[known].mean())


def balanced_accuracy(predicted: Labels, labels: Labels, tolerance: int = 0) -> float:
    """Return the mean over the classes present of their frame accuracy."""
    labels = np.asarray(labels)
    right = _right(predicted, labels, tolerance)
    shares = [right[labels == k].mean() for k in np.unique(labels[labels >= 0])]
    return float(np.mean(shares)) if shares else float("nan")


def confusion(predicted: Labels, labels: Labels, classes: int) -> npt.NDArray[np.int64]:
    """Return the number of times label i was predicted as j, int64 [K, K]."""
    known = np.asarray(labels) >= 0
    pairs = np.asarray(labels)[known] * classes + np.asarray(predicted)[known]
    return np.bincount(pairs, minlength=classes * classes).reshape(classes, classes)


def outside_boundaries(labels: Labels, tolerance: int) -> Labels:
    """Return the labels with -1 at frames closer than ``tolerance`` to a change of label.

    The usual way to score ranked lists (average precision) when boundaries are uncertain.
    """
    out = np.array(labels)
    for change in np.flatnonzero(np.diff(out)) + 1:
        out[max(0, change - tolerance) : change + tolerance] = -1
    return out


def bootstrap(
    metric: Callable[[Sequence[int]], float], groups: int, seed: int = 0, draws: int = 500
) -> tuple[float, float]:
    """Return the 2.5 and 97.5 percentiles of a metric over resampled groups (videos).

    ``metric`` takes the indices of the groups drawn. Draws for which it is NaN do not count.
    """
    rng = np.random.default_rng(seed)
    values = [metric(rng.integers(groups, size=groups).tolist()) for _ in range(draws)]
    low, high = np.nanpercentile(values, [2.5, 97.5])
    return float(low), float(high)


def _right(predicted: Labels, labels: Labels, tolerance: int) -> Mask:
    predicted, labels = np.asarray(predicted), np.asarray(labels)
    right: Mask = predicted == labels
    for shift in range(1, min(tolerance, len(labels) - 1) + 1):
        right[shift:] |= predicted[shift:] == labels[:-shift]
        right[:-shift] |= predicted[:-shift] == labels[shift:]
    return right
