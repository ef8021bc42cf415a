"""Greedy one-to-one matching of predictions with the ground truth, and ranked precision."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating]
Mask = npt.NDArray[np.bool_]


def take_best(likeness: Floats, least: float) -> Mask:
    """Return which of n predictions, by falling score, are right, bool [n]; see ``taken``."""
    right: Mask = taken(likeness, least) >= 0
    return right


def taken(likeness: Floats, least: float) -> npt.NDArray[np.int64]:
    """Return the true item matched to each of n predictions, by falling score, int64 [n].

    Each takes the most similar item that none before it took, if the similarity is ``least`` or
    more; -1: none. ``likeness`` [n, m]: similarity of predictions and true items.
    """
    free = np.array(likeness, np.float64)
    out = np.full(len(free), -1)
    for number in np.flatnonzero((free >= least).any(1)):
        best = int(free[number].argmax())
        if free[number, best] >= least:
            out[number] = best
            free[:, best] = -np.inf
    return out


def ranked_precision(right: Mask, total: int) -> float:
    """Return the mean over true items of the precision at their rank; 0 for items not found.

    ``right`` [n]: of predictions, by falling score. ``total``: true items; NaN if 0.
    """
    if not total:
        return float("nan")
    return float(_precision(right)[right].sum() / total)


def best_precision_beyond(right: Mask, total: int) -> float:
    """Return ``ranked_precision`` with the precision at a rank being the best from there on.

    This is interpolation at every recall, as in PASCAL VOC since 2010, and ActivityNet.
    """
    if not total:
        return float("nan")
    falling = np.maximum.accumulate(_precision(right)[::-1])[::-1]
    return float(falling[right].sum() / total)


def _precision(right: Mask) -> npt.NDArray[np.float64]:
    return np.cumsum(right) / np.arange(1, len(right) + 1)
