"""Timelines of labelled streams: segments from probabilities, and counts of correct ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from costream.checkpoints.card import Timeline
from costream.evaluation.metrics.segments import Counts, count
from costream.records import Segment
from costream.runtime.segments import Segmenter
from weights.recipes.action.rendering.scenes import UNSCORED

Labels = npt.NDArray[np.int64]


@dataclass(frozen=True)
class StreamPredictions:
    """Predictions for a stream, at temperature 1, with the ground truth."""

    probabilities: npt.NDArray[np.floating]  # [T, K]
    labels: Labels  # [T], index of the label, UNSCORED where unknown; 0 is the background


def true_segments(steps: Labels, labels: Sequence[str], rate_hz: float) -> list[Segment]:
    """Return the runs of one label in steps [T], without background and unknown time."""
    edges = np.flatnonzero(np.diff(steps, prepend=-2, append=-2))
    return [
        Segment(a / rate_hz, b / rate_hz, labels[steps[a]], 1.0)
        for a, b in pairwise(edges)
        if steps[a] > 0
    ]


def segments(
    scores: npt.NDArray[np.floating], timeline: Timeline, labels: Sequence[str], rate_hz: float
) -> list[Segment]:
    """Return the segments of probabilities [T, K], one row every 1 / rate_hz seconds."""
    segmenter = Segmenter(labels, timeline, rate_hz, background=labels[0])
    out: list[Segment] = []
    for i, row in enumerate(scores):
        out += segmenter.push(i / rate_hz, row)
    return out + segmenter.flush()


def count_segments(
    streams: Sequence[StreamPredictions],
    timeline: Timeline,
    labels: Sequence[str],
    rate_hz: float,
    overlap: float,
) -> Counts:
    """Return the counts of found, false and missed segments over these streams.

    ``overlap``: the least intersection over union. Segments mostly in time with unknown labels
    are ignored.
    """
    total = Counts()
    for stream in streams:
        known = stream.labels != UNSCORED
        given = [
            s
            for s in segments(stream.probabilities, timeline, labels, rate_hz)
            if known[round(s.start_s * rate_hz) : round(s.end_s * rate_hz)].mean() >= 0.5
        ]
        total += count(given, true_segments(stream.labels, labels, rate_hz), overlap)
    return total
