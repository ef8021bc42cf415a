"""Frame metrics of online action detection. NumPy only.

Labels are int [T]; scores are [T, K], one column per class. Frames with a negative label are
not scored.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from costream.evaluation.metrics import Floats, Integers, Mask
from costream.evaluation.metrics.bootstrap import Multiplicities, intervals
from costream.evaluation.metrics.reliability import calibration_error, reliability
from costream.evaluation.truth import EvaluatedRecording


def frame_scores(
    recordings: Sequence[EvaluatedRecording],
    names: Sequence[str],
    background: str | None,
    tolerance_s: float,
) -> dict[str, Any]:
    """Return the frame metrics of recordings with scores for every output.

    Means over classes leave out the background and classes without a frame. A frame is right
    if its best label is among the true ones. With a tolerance above 0, a label is also right if
    it is true within the tolerance in the same recording, and average precision leaves out
    frames that close to a change. 95 % intervals resample groups; they are None for too few.
    """
    frames = _Frames(recordings, names, background)
    out: dict[str, Any] = {"recordings": len(recordings), "frames": len(frames.labels)}
    out |= frames.means("")
    if tolerance_s > 0:
        tolerated = [
            _near(recording, round(tolerance_s / recording.predictions.step_s))
            for recording in recordings
        ]
        unchanged = [
            _unchanged(recording, round(tolerance_s / recording.predictions.step_s))
            for recording in recordings
        ]
        out["tolerance_s"] = tolerance_s
        out |= _Frames(recordings, names, background, right=tolerated, scored=unchanged).means(
            "_tolerant"
        )
    bins = reliability(frames.scores, frames.labels)
    counts = confusion(frames.best, frames.labels, len(names))
    return {
        **out,
        "calibration_error": calibration_error(bins),
        "reliability": [dataclasses.asdict(recording) for recording in bins],
        "classes": frames.classes(counts),
        "confusion": counts.tolist(),
    }


class _Frames:
    """The frames of all recordings, concatenated: N scored frames, K labels, G groups."""

    def __init__(
        self,
        judged: Sequence[EvaluatedRecording],
        names: Sequence[str],
        background: str | None,
        right: Sequence[Mask] | None = None,
        scored: Sequence[Mask] | None = None,
    ) -> None:
        """``right`` [T, K]: accepted labels; default: the true ones.

        ``scored`` [T]: frames ranked for average precision; default: all.
        """
        numbers = {group: k for k, group in enumerate(dict.fromkeys(j.group for j in judged))}
        known = [j.labels >= 0 for j in judged]

        def joined(parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
            return np.concatenate([part[mask] for part, mask in zip(parts, known, strict=True)])

        self.names, self.background = names, background
        self.groups = len(numbers)
        self.group = joined([np.full(len(j.labels), numbers[j.group]) for j in judged])
        self.scores = joined([j.predictions.probabilities for j in judged])
        self.labels = joined([j.labels for j in judged])
        self.best = self.scores.argmax(1)
        self._positive = joined([j.positive for j in judged])
        fitting = self._positive if right is None else joined(right)
        self._right = fitting[np.arange(len(self.best)), self.best]
        ranked = np.ones(len(self.best), bool) if scored is None else joined(scored)
        self._rows = np.flatnonzero(ranked)
        self.rankings = [
            Ranking(self.scores[self._rows, k], self._positive[self._rows, k])
            for k in range(len(names))
        ]
        self._actions = [k for k, name in enumerate(names) if name != background]

    def means(self, ending: str) -> dict[str, Any]:
        """Return the scalar metrics and their intervals."""
        hits = np.bincount(self.group, self._right, self.groups)
        every = np.bincount(self.group, minlength=self.groups)

        def metrics(drawn: Multiplicities) -> tuple[float, float, float]:
            total = (drawn * every).sum()
            accuracy = float((drawn * hits).sum() / total) if total else float("nan")
            return *self._precisions(drawn), accuracy

        names = ("mAP", "calibrated_mAP", "accuracy")
        values = metrics(np.ones(self.groups, np.int64))
        limits = intervals(metrics, self.groups)
        return {
            **{f"{name}{ending}": value for name, value in zip(names, values, strict=True)},
            **{f"{name}{ending}_95": limit for name, limit in zip(names, limits, strict=True)},
            f"balanced_accuracy{ending}": self._balanced(),
        }

    def _precisions(self, drawn: Multiplicities) -> tuple[float, float]:
        """Return plain and calibrated mAP with each group counted ``drawn`` times."""
        often = drawn[self.group[self._rows]]
        each = np.array([self.rankings[k].precisions(often) for k in self._actions])
        found = each[~np.isnan(each).any(1)] if len(each) else each
        plain, calibrated = found.mean(0).tolist() if len(found) else (float("nan"),) * 2
        return plain, calibrated

    def classes(self, counts: npt.NDArray[np.int64]) -> dict[str, dict[str, Any]]:
        """Return the metrics of each label that is true or predicted in some frame."""
        out: dict[str, dict[str, Any]] = {}
        for k, (name, ranking) in enumerate(zip(self.names, self.rankings, strict=True)):
            true, predicted = int(self._positive[:, k].sum()), int(counts[:, k].sum())
            hits = int((self._positive[:, k] & (self.best == k)).sum())
            if true or predicted:
                out[name] = {
                    "frames": true,
                    "average_precision": ranking.precision(1.0),
                    "calibrated_average_precision": ranking.precision(),
                    "recall": hits / true if true else None,
                    "precision": hits / predicted if predicted else None,
                }
        return out

    def _balanced(self) -> float:
        shares = [self._right[self.labels == k].mean() for k in np.unique(self.labels)]
        return float(np.mean(shares)) if shares else float("nan")


def _near(judged: EvaluatedRecording, steps: int) -> Mask:
    """Return which labels [T, K] are true within ``steps`` steps."""
    positive = judged.positive
    out: Mask = positive.copy()
    for shift in range(1, min(steps, len(positive) - 1) + 1):
        out[shift:] |= positive[:-shift]
        out[:-shift] |= positive[shift:]
    return out


def _unchanged(judged: EvaluatedRecording, steps: int) -> Mask:
    """Return which frames [T] are more than ``steps`` steps from a change of the true labels."""
    state = np.column_stack([judged.labels >= 0, judged.positive])
    _, kinds = np.unique(state, axis=0, return_inverse=True)
    unchanged: Mask = outside_boundaries(kinds.reshape(-1), steps) >= 0
    return unchanged


def average_precisions(
    scores: Floats, labels: Integers, classes: Sequence[int] | None = None
) -> npt.NDArray[np.float64]:
    """Return the average precision of every class (or of ``classes``), [K]; NaN without a frame.

    Frames are sorted by falling score; each positive, the tp-th one at rank k, adds tp / k; the
    sum is divided by the number of positives. For equal scores see ``Ranking``.
    """
    is_scored = np.asarray(labels) >= 0
    scores, labels = np.asarray(scores)[is_scored], np.asarray(labels)[is_scored]
    columns = range(scores.shape[1]) if classes is None else classes
    return np.array([Ranking(scores[:, k], labels == k).precision(1.0) for k in columns])


def mean_average_precision(
    scores: Floats, labels: Integers, classes: Sequence[int] | None = None
) -> float:
    """Return the mean average precision over classes with a frame; NaN if there are none.

    ``classes``: to average over; default: all.
    """
    values = average_precisions(scores, labels, classes)
    values = values[~np.isnan(values)]
    return float(values.mean()) if len(values) else float("nan")


def frame_accuracy(predicted: Integers, labels: Integers) -> float:
    """Return the share of frames whose label was predicted, NaN without scored frames."""
    is_scored = np.asarray(labels) >= 0
    if not is_scored.any():
        return float("nan")
    return float((np.asarray(predicted) == labels)[is_scored].mean())


def confusion(predicted: Integers, labels: Integers, classes: int) -> npt.NDArray[np.int64]:
    """Return the number of times label i was predicted as j, int64 [K, K]."""
    is_scored = np.asarray(labels) >= 0
    pairs = np.asarray(labels)[is_scored] * classes + np.asarray(predicted)[is_scored]
    return np.bincount(pairs, minlength=classes * classes).reshape(classes, classes)


def outside_boundaries(labels: Integers, tolerance: int) -> Integers:
    """Return the labels with -1 at frames closer than ``tolerance`` to a change of label.

    The usual way to score ranked lists (average precision) when boundaries are uncertain.
    """
    out = np.array(labels)
    for change in np.flatnonzero(np.diff(out)) + 1:
        out[max(0, change - tolerance) : change + tolerance] = -1
    return out


class Ranking:
    """A ranked list that is sorted once and can be scored many times.

    Frames of equal score are one step of the list, as in scikit-learn: each positive among them
    counts with the precision at their end, so the order of frames or recordings does not
    matter. If no two scores are equal this is the published rule of one frame after another.
    NaN scores come last.
    """

    def __init__(self, scores: npt.NDArray[np.floating], positive: npt.NDArray[np.bool_]) -> None:
        """``scores``, ``positive``: [T]."""
        known = np.where(np.isnan(scores), -np.inf, scores)
        self._order = np.argsort(-known, kind="stable")
        ranked = known[self._order]
        self._positive = np.asarray(positive, bool)[self._order]
        self._ends = np.flatnonzero(np.append(ranked[1:] != ranked[:-1], True)[: len(ranked)])

    def precision(self, weight: float | None = None) -> float:
        """Return the mean over the positives of w tp / (w tp + fp), NaN without positives.

        ``weight``: w; 1 gives the average precision; None: negatives / positives, the calibrated
        one, with which rare classes compare with frequent ones (De Geest et al., "Online Action
        Detection", ECCV 2016).
        """
        return self._precision(*self._counted(None), weight)

    def precisions(self, counts: npt.NDArray[np.integer] | None) -> tuple[float, float]:
        """Return ``precision`` with w = 1 and with w = negatives / positives.

        ``counts`` [T]: multiplicity of each frame; None: 1.
        """
        counted = self._counted(counts)
        return self._precision(*counted, 1.0), self._precision(*counted, None)

    def _counted(self, counts: npt.NDArray[np.integer] | None) -> tuple[Integers, Integers]:
        """Return the cumulative numbers of frames and of positives at the end of each score."""
        if counts is None:
            rows, hits = np.arange(1, len(self._positive) + 1), np.cumsum(self._positive)
        else:
            often = np.asarray(counts)[self._order]
            rows, hits = np.cumsum(often), np.cumsum(often * self._positive)
        return rows[self._ends], hits[self._ends]

    @staticmethod
    def _precision(rows: Integers, true: Integers, weight: float | None) -> float:
        if not len(true) or not true[-1]:
            return float("nan")
        false = rows - true
        w = false[-1] / true[-1] if weight is None else weight
        if w == 0:  # no negatives: precision is perfect
            return 1.0
        gained = np.diff(true, prepend=0)
        true, false, gained = true[gained > 0], false[gained > 0], gained[gained > 0]
        return float((gained * w * true / (w * true + false)).sum() / gained.sum())
