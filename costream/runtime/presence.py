"""The timeline of an object detector: one segment per label while it is visible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from costream.checkpoints.card import Timeline
from costream.records import Box, Segment
from costream.runtime.segments import Segmenter
from costream.runtime.smoothing import Smoother


class PresenceSegmenter:
    """Turns detected objects into segments: one lasts while an object of its label is seen.

    Labels are independent, so their segments may overlap. Those of a label are computed by
    ``Segmenter`` from the score of its most confident object; their ``count`` is the largest
    number of objects at or above the threshold in one step. Arguments as in ``Segmenter``.
    """

    def __init__(
        self, labels: Sequence[str], timeline: Timeline, rate_hz: float, delay_s: float = 0.0
    ) -> None:
        self._labels, self._timeline = tuple(labels), timeline
        self.smoother = Smoother(timeline.smooth_s)
        alone = replace(timeline, smooth_s=0.0)
        self._segmenters = [Segmenter((name,), alone, rate_hz, delay_s) for name in labels]

    def push(self, time_s: float, boxes: Sequence[Box]) -> list[Segment]:
        """Take the objects of a step and return the segments that became final."""
        scores = self.smoother.push(time_s, best_scores(boxes, self._labels).astype(np.float64))
        counts = dict.fromkeys(self._labels, 0)
        for box in boxes:
            counts[box.label] += box.score >= self._timeline.threshold_of(box.label)
        out: list[Segment] = []
        for label, segmenter, score in zip(
            self._labels, self._segmenters, scores[:, None], strict=True
        ):
            out += segmenter.push(time_s, score, counts[label])
        return _in_order(out)

    def gap(self, start_s: float, end_s: float) -> list[Segment]:
        """Take a gap in the data, see ``Segmenter.gap``."""
        self.smoother.reset()
        return _in_order([s for each in self._segmenters for s in each.gap(start_s, end_s)])

    def flush(self) -> list[Segment]:
        """End open segments and return all that were not returned yet."""
        return _in_order([s for each in self._segmenters for s in each.flush()])


def best_scores(boxes: Sequence[Box], labels: Sequence[str]) -> npt.NDArray[np.float32]:
    """Return the highest object score of each label, [C]; 0 where there is none."""
    best = dict.fromkeys(labels, 0.0)
    for box in boxes:
        best[box.label] = max(best[box.label], box.score)
    return np.array(list(best.values()), np.float32)


def _in_order(segments: list[Segment]) -> list[Segment]:
    return sorted(segments, key=lambda segment: segment.start_s)
