"""Average precision of one class from frames ranked by score. NumPy only."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_Integers = npt.NDArray[np.integer]


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

        ``weight``: w; None: negatives / positives.
        """
        return self._precision(*self._counted(None), weight)

    def precisions(self, counts: npt.NDArray[np.integer] | None) -> tuple[float, float]:
        """Return ``precision`` with w = 1 and with w = negatives / positives.

        ``counts`` [T]: multiplicity of each frame; None: 1.
        """
        counted = self._counted(counts)
        return self._precision(*counted, 1.0), self._precision(*counted, None)

    def _counted(self, counts: npt.NDArray[np.integer] | None) -> tuple[_Integers, _Integers]:
        """Return the cumulative numbers of frames and of positives at the end of each score."""
        if counts is None:
            rows, hits = np.arange(1, len(self._positive) + 1), np.cumsum(self._positive)
        else:
            often = np.asarray(counts)[self._order]
            rows, hits = np.cumsum(often), np.cumsum(often * self._positive)
        return rows[self._ends], hits[self._ends]

    @staticmethod
    def _precision(rows: _Integers, true: _Integers, weight: float | None) -> float:
        if not len(true) or not true[-1]:
            return float("nan")
        false = rows - true
        w = false[-1] / true[-1] if weight is None else weight
        if w == 0:  # no negatives: precision is perfect
            return 1.0
        gained = np.diff(true, prepend=0)
        true, false, gained = true[gained > 0], false[gained > 0], gained[gained > 0]
        return float((gained * w * true / (w * true + false)).sum() / gained.sum())
