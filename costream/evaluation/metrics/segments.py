"""Segment metrics of timelines: F1 and average precision.

``tIoU`` is the intersection over union of two time intervals. F1 scores the timeline as a whole
(as Lea et al., "Temporal Convolutional Networks", CVPR 2017, but with the best pairs first);
average precision scores the ranking of its segments (as THUMOS14 and ActivityNet).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from costream.evaluation.matching import best_precision_beyond, take_best
from costream.records import Segment


@dataclass(frozen=True)
class Counts:
    """Numbers of segments found, falsely predicted and missed; counts of videos add up."""

    found: int = 0
    false: int = 0
    missed: int = 0

    def __add__(self, other: Counts) -> Counts:
        """Return the sum over two videos."""
        return Counts(
            self.found + other.found, self.false + other.false, self.missed + other.missed
        )

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall; 1 without true and predicted segments."""
        total = 2 * self.found + self.false + self.missed
        return 2 * self.found / total if total else 1.0


def overlap(one: Segment, other: Segment) -> float:
    """Return the intersection over union of two segments, 0..1."""
    shared = min(one.end_s, other.end_s) - max(one.start_s, other.start_s)
    union = max(one.end_s, other.end_s) - min(one.start_s, other.start_s)
    return max(0.0, shared) / union if union > 0 else 0.0


def match(
    predicted: Sequence[Segment], truth: Sequence[Segment], least: float
) -> list[Segment | None]:
    """Return, for every true segment, the predicted one of its label that overlaps it most.

    None if no tIoU is at least ``least``. Best pairs first; each segment is used once.
    """
    pairs = sorted(
        (
            (-overlap(p, t), i, j)
            for i, t in enumerate(truth)
            for j, p in enumerate(predicted)
            if p.label == t.label and overlap(p, t) >= least and overlap(p, t) > 0
        ),
    )
    out: list[Segment | None] = [None] * len(truth)
    used: set[int] = set()
    for _, i, j in pairs:
        if out[i] is None and j not in used:
            out[i] = predicted[j]
            used.add(j)
    return out


def count(predicted: Sequence[Segment], truth: Sequence[Segment], least: float) -> Counts:
    """Return the counts of a timeline against the true one; see ``match``."""
    found = sum(m is not None for m in match(predicted, truth, least))
    return Counts(found, len(predicted) - found, len(truth) - found)


def segment_precision(
    told: Sequence[Sequence[Segment]], truth: Sequence[Sequence[Segment]], label: str, least: float
) -> float:
    """Return the average precision of a label's segments over recordings; NaN without true ones.

    By falling score, each takes the true one of its recording that it overlaps most, if the tIoU
    is ``least`` or more and none before took it. Interpolated at every recall, as in
    ActivityNet's own evaluation.
    """
    scores, right = [np.zeros(0)], [np.zeros(0, bool)]
    total = 0
    for said, true in zip(told, truth, strict=True):
        own = sorted((s for s in said if s.label == label), key=lambda s: -s.score)
        there = [t for t in true if t.label == label]
        total += len(there)
        shared = np.array([[overlap(s, t) for t in there] for s in own])
        scores.append(np.array([s.score for s in own]))
        right.append(take_best(shared.reshape(len(own), len(there)), least))
    order = np.argsort(-np.concatenate(scores), kind="stable")
    return best_precision_beyond(np.concatenate(right)[order], total)
