"""Online detection of action starts (ODAS): point-level average precision.

Shou et al., "Online Detection of Action Start in Untrimmed, Streaming Videos" (ECCV 2018), with
the starts of a frame classifier as in StartNet (Gao et al., ICCV 2019): where the best label
changes to an action.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from costream.evaluation.matching import ranked_precision, take_best
from costream.records import Segment

TOLERANCES_S = tuple(range(1, 11))


class Start(NamedTuple):
    """The start of an action."""

    time_s: float
    label: str
    score: float = 1.0


def starts_of_steps(
    times: npt.NDArray[np.float64],
    scores: npt.NDArray[np.floating],
    labels: Sequence[str],
    background: str | None,
) -> list[Start]:
    """Return a start at each change of the best label of scores [T, K] to an action."""
    best = scores.argmax(1)
    changed = np.append(True, best[1:] != best[:-1])[: len(best)]
    return [
        Start(float(times[k]), labels[best[k]], float(scores[k, best[k]]))
        for k in np.flatnonzero(changed)
        if labels[best[k]] != background
    ]


def starts_of_segments(segments: Sequence[Segment]) -> list[Start]:
    """Return the starts of the segments of a timeline."""
    return [Start(s.start_s, s.label, s.score) for s in segments]


def start_precision(
    told: Sequence[Sequence[Start]],
    truth: Sequence[Sequence[Start]],
    label: str,
    tolerance_s: float,
) -> float:
    """Return the point-level average precision of the starts of a label, NaN without true ones.

    By falling score, each takes the nearest true start of its recording that is at most
    ``tolerance_s`` away and that none before took. At full recall, not interpolated.
    """
    scores, right = [np.zeros(0)], [np.zeros(0, bool)]
    total = 0
    for said, true in zip(told, truth, strict=True):
        own = sorted((s for s in said if s.label == label), key=lambda s: -s.score)
        there = np.array([t.time_s for t in true if t.label == label])
        total += len(there)
        scores.append(np.array([s.score for s in own]))
        nearness = -np.abs(np.array([s.time_s for s in own])[:, None] - there)
        # Times are sums of 1/rate in floating point.
        right.append(take_best(nearness, -tolerance_s - 1e-9))
    order = np.argsort(-np.concatenate(scores), kind="stable")
    return ranked_precision(np.concatenate(right)[order], total)
