"""Multi-object tracking: ids for boxes across the frames of a stream.

SORT (Bewley et al., "Simple online and realtime tracking", 2016) in its simplest form: an object
moves at the constant velocity of its centre and keeps its size, and boxes are matched to objects
of the same label by intersection over union. The matching is greedy, the best overlap first: after
non-maximum suppression few boxes compete for an object, so an optimal one hardly ever differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from costream.clock import SLACK_S
from costream.records import Box

# Boxes of a detector jitter, so half of an object's velocity is the previous estimate.
_INERTIA = 0.5
PATIENCE_S = 1.0  # how long an object may be out of sight and keep its id

Corners = npt.NDArray[np.floating]  # x1, y1, x2, y2


@dataclass
class _Object:
    """An object: its last box, and the velocity of its centre in pixels per second."""

    id: int
    label: str
    corners: Corners  # [4]
    seen_s: float
    speed: npt.NDArray[np.float64] | None = None  # [2]; None: seen once

    def at(self, time_s: float) -> Corners:
        """Return its predicted box at ``time_s``."""
        if self.speed is None:
            return self.corners
        return self.corners + np.tile(self.speed * (time_s - self.seen_s), 2)

    def update(self, time_s: float, corners: Corners) -> None:
        """Update it with the box observed at ``time_s``."""
        if time_s > self.seen_s:
            shift = (corners - self.corners).reshape(2, 2).mean(0) / (time_s - self.seen_s)
            if self.speed is not None:
                shift = _INERTIA * self.speed + (1 - _INERTIA) * shift
            self.speed = shift
        self.corners, self.seen_s = corners, time_s


class ObjectTracker:
    """Assigns ids to the boxes of one stream, from 1 on; none is used twice.

    ``overlap``: the least intersection over union of a box with its object's predicted box.
    ``patience_s``: how long an object may be out of sight and keep its id.

    The ids do not depend on the order of the boxes; new boxes get ids by descending score.
    """

    def __init__(self, overlap: float = 0.3, patience_s: float = PATIENCE_S) -> None:
        self._overlap = overlap
        self._patience_s = patience_s
        self._objects: list[_Object] = []  # by id
        self._ids = 0  # assigned so far

    def reset(self) -> None:
        """Forget the objects, as after a gap; later boxes get new ids."""
        self._objects = []

    def update(self, time_s: float, boxes: Sequence[Box]) -> tuple[Box, ...]:
        """Return the boxes with ids, in the same order; ``time_s`` must increase between calls."""
        limit_s = time_s - self._patience_s - SLACK_S
        self._objects = [known for known in self._objects if known.seen_s >= limit_s]
        order = sorted(range(len(boxes)), key=lambda k: _rank(boxes[k]))
        ranked = [boxes[k] for k in order]
        corners = corners_of(ranked)
        matches = self._assign(time_s, ranked, corners)
        ids: dict[int, int] = {}
        for k, (place, box) in enumerate(zip(order, ranked, strict=True)):
            if k in matches:
                matches[k].update(time_s, corners[k])
            else:
                self._ids += 1
                matches[k] = _Object(self._ids, box.label, corners[k], time_s)
                self._objects.append(matches[k])
            ids[place] = matches[k].id
        return tuple(replace(box, id=ids[place]) for place, box in enumerate(boxes))

    def _assign(self, time_s: float, boxes: Sequence[Box], corners: Corners) -> dict[int, _Object]:
        """Match boxes to known objects, by index of the box; ``corners``: [n, 4]."""
        if not self._objects:
            return {}
        shared = pairwise_iou(np.stack([known.at(time_s) for known in self._objects]), corners)
        labels = np.array([known.label for known in self._objects])
        shared[labels[:, None] != np.array([box.label for box in boxes])] = -1
        which, of = np.nonzero(shared >= self._overlap)
        free = set(which.tolist())
        matches: dict[int, _Object] = {}
        for pair in np.argsort(-shared[which, of], kind="stable"):
            known, box = int(which[pair]), int(of[pair])
            if known in free and box not in matches:
                free.remove(known)
                matches[box] = self._objects[known]
        return matches


def corners_of(boxes: Sequence[Box]) -> Corners:
    """Return the corners of boxes, float64 [n, 4]."""
    return np.array([(b.x1, b.y1, b.x2, b.y2) for b in boxes], np.float64).reshape(-1, 4)


def pairwise_iou(boxes: Corners, others: Corners) -> Corners:
    """Return intersection over union [n, m] of boxes [n, 4] and [m, 4]; 0 where both are empty."""
    low = np.maximum(boxes[:, None, :2], others[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], others[None, :, 2:])
    shared = (high - low).clip(min=0).prod(2)
    union = _areas(boxes)[:, None] + _areas(others) - shared
    out: Corners = shared / np.where(shared > 0, union, 1)
    return out


def _areas(boxes: Corners) -> Corners:
    out: Corners = (boxes[:, 2:] - boxes[:, :2]).clip(min=0).prod(1)
    return out


def _rank(box: Box) -> tuple[float, str, float, float, float, float]:
    """Return the sort key of a box: highest score first, and no ties between different boxes."""
    return (-box.score, box.label, box.x1, box.y1, box.x2, box.y2)
