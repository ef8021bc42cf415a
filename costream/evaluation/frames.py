"""Frame metrics of online action detection over many recordings."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from costream.evaluation.intervals import Counts, intervals
from costream.evaluation.metrics.calibration import calibration_error, reliability
from costream.evaluation.metrics.frames import confusion, outside_boundaries
from costream.evaluation.ranking import Ranking
from costream.evaluation.truth import EvaluatedRecording

Mask = npt.NDArray[np.bool_]


def frame_scores(
    judged: Sequence[EvaluatedRecording],
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
    frames = _Frames(judged, names, background)
    out: dict[str, Any] = {"recordings": len(judged), "frames": len(frames.labels)}
    out |= frames.means("")
    if tolerance_s > 0:
        near = [_near(one, round(tolerance_s / one.told.step_s)) for one in judged]
        calm = [_calm(one, round(tolerance_s / one.told.step_s)) for one in judged]
        out["tolerance_s"] = tolerance_s
        out |= _Frames(judged, names, background, right=near, scored=calm).means("_tolerant")
    bins = reliability(frames.scores, frames.labels)
    counts = confusion(frames.best, frames.labels, len(names))
    return {
        **out,
        "calibration_error": calibration_error(bins),
        "reliability": [dataclasses.asdict(one) for one in bins],
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
        self.scores = joined([j.told.probabilities for j in judged])
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

        def metrics(drawn: Counts) -> tuple[float, float, float]:
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

    def _precisions(self, drawn: Counts) -> tuple[float, float]:
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
            true, said = int(self._positive[:, k].sum()), int(counts[:, k].sum())
            hits = int((self._positive[:, k] & (self.best == k)).sum())
            if true or said:
                out[name] = {
                    "frames": true,
                    "average_precision": ranking.precision(1.0),
                    "calibrated_average_precision": ranking.precision(),
                    "recall": hits / true if true else None,
                    "precision": hits / said if said else None,
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


def _calm(judged: EvaluatedRecording, steps: int) -> Mask:
    """Return which frames [T] are more than ``steps`` steps from a change of the true labels."""
    told = np.column_stack([judged.labels >= 0, judged.positive])
    _, kinds = np.unique(told, axis=0, return_inverse=True)
    calm: Mask = outside_boundaries(kinds.reshape(-1), steps) >= 0
    return calm
