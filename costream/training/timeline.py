"""Chooses how probabilities become segments, on what the network was not trained on."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, product
from typing import Protocol

import numpy as np
import numpy.typing as npt

from costream.evaluation.segments import Counts, count
from costream.models.card import Timeline
from costream.records import Segment
from costream.runtime.segments import Segmenter
from costream.training.clips import UNSCORED

# Labels are off by up to a second; much stricter would score the labels, not the timeline.
OVERLAP = 0.3


class Labelled(Protocol):
    """A clip or a stream whose steps have labels."""

    @property
    def labels(self) -> npt.NDArray[np.int64]:
        """Index of the label of each step [T], UNSCORED where unknown; 0 is the background."""


def true_segments(clip: Labelled, labels: Sequence[str], rate_hz: float) -> list[Segment]:
    """Give the stretches of one label, background (label 0) and unknown time left out."""
    edges = np.flatnonzero(np.diff(clip.labels, prepend=-2, append=-2))
    return [
        Segment(a / rate_hz, b / rate_hz, labels[clip.labels[a]], 1.0)
        for a, b in pairwise(edges)
        if clip.labels[a] > 0
    ]


def segments(
    scores: npt.NDArray[np.floating], timeline: Timeline, labels: Sequence[str], rate_hz: float
) -> list[Segment]:
    """Give the timeline of probabilities [T, K], one row every 1 / rate_hz seconds."""
    segmenter = Segmenter(labels, timeline, rate_hz, background=labels[0])
    out: list[Segment] = []
    for i, row in enumerate(scores):
        out += segmenter.push(i / rate_hz, row)
    return out + segmenter.flush()


def found(
    scores: Sequence[npt.NDArray[np.floating]],
    clips: Sequence[Labelled],
    timeline: Timeline,
    labels: Sequence[str],
    rate_hz: float,
) -> Counts:
    """Give how many segments of these clips the timeline finds.

    What lies mostly in time whose label is unknown is neither right nor wrong.
    """
    total = Counts()
    for rows, clip in zip(scores, clips, strict=True):
        known = clip.labels != UNSCORED
        told = [
            s
            for s in segments(rows, timeline, labels, rate_hz)
            if known[int(s.start_s * rate_hz) : max(1, int(s.end_s * rate_hz))].mean() >= 0.5
        ]
        total += count(told, true_segments(clip, labels, rate_hz), OVERLAP)
    return total


def choose(
    groups: Sequence[tuple[Sequence[npt.NDArray[np.floating]], Sequence[Labelled]]],
    labels: Sequence[str],
    rate_hz: float,
    thresholds: Sequence[float] = (0.3, 0.4, 0.5),
) -> Timeline:
    """Give the settings with the best mean F1 of segments over groups of (scores, clips).

    Of equally good ones those with the first of the ``thresholds``.
    """

    def quality(timeline: Timeline) -> float:
        return float(np.mean([found(s, c, timeline, labels, rate_hz).f1 for s, c in groups]))

    grid = [
        Timeline(threshold, round(low * threshold, 3), length, gap)
        for threshold, low, length, gap in product(
            thresholds, (0.6, 0.8, 1.0), (0.5, 0.75, 1.0), (0.5, 1.0)
        )
    ]
    return max(grid, key=quality)
