"""Which of the things that were told are right: each true one is found once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating]
Mask = npt.NDArray[np.bool_]


def take_best(likeness: Floats, least: float) -> Mask:
    """Say which of n told things, the surest first, are right, bool [n]; see ``taken``."""
    right: Mask = taken(likeness, least) >= 0
    return right


def taken(likeness: Floats, least: float) -> npt.NDArray[np.int64]:
    """Give which true thing each of n told ones, the surest first, takes, int64 [n]; -1: none.

    Each takes the true one that it is most like, if it is by ``least`` and none before took it.
    ``likeness`` [n, m]: of told and true ones.
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
    """Give the mean over true things of the precision when each was found; not found: 0.

    ``right`` [n]: of what was told, the surest first. ``total``: true things; NaN when 0.
    """
    if not total:
        return float("nan")
    return float(_precision(right)[right].sum() / total)


def best_precision_beyond(right: Mask, total: int) -> float:
    """Give what ``ranked_precision`` does, the precision at a rank being the best from there on.

    Interpolation at every recall, as PASCAL VOC has had it since 2010, and ActivityNet.
    """
    if not total:
        return float("nan")
    falling = np.maximum.accumulate(_precision(right)[::-1])[::-1]
    return float(falling[right].sum() / total)


def _precision(right: Mask) -> npt.NDArray[np.float64]:
    return np.cumsum(right) / np.arange(1, len(right) + 1)
