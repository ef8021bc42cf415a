"""Multi-object tracking: ids for boxes across the frames of a stream.

As SORT (Bewley et al., "Simple online and realtime tracking", 2016), without its Kalman filter: an
object moves on along the line that fits where its centre was lately (as OC-SORT, Cao et al., 2023,
trusts observations more than a filter), and keeps its size. Boxes are matched to objects of the
same label by intersection over union, both made larger by as much as one may have moved unseen
(C-BIoU, Yang et al., 2023). Those that are left are matched where they were seen last, as they may
have turned (the recovery of OC-SORT). The matching is greedy, the best overlap first: after
non-maximum suppression few boxes compete for an object, so an optimal one hardly ever differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from costream.core.clock import SLACK_S
from costream.core.records import Box

_HISTORY_S = 0.6  # of the centres that a line is fitted to
_PRIOR = 0.01  # squared seconds: weight of the assumption that a new object stands still
_SPREAD = 0.35  # how far an unseen object may move per second, relative to the root of its area
_STEP_S = 0.1  # objects may move more between steps that are further apart
MAX_BOXES = 100  # per step
PATIENCE_S = 1.5  # how long an object may be out of sight and keep its id

Corners = npt.NDArray[np.floating]  # x1, y1, x2, y2


@dataclass
class _Object:
    """An object: its last box, the recent places of its centre, and its velocity."""

    id: int
    label: str
    corners: Corners  # [4], at seen_s
    seen_s: float
    history: list[tuple[float, float, float]]  # time, x and y of its centre, up to seen_s
    speed: tuple[float, float] = (0.0, 0.0)  # pixels per second

    @classmethod
    def new(cls, number: int, label: str, corners: Corners, time_s: float) -> _Object:
        """Return an object that is seen for the first time."""
        return cls(number, label, corners, time_s, [(time_s, *_centre(corners))])

    def shift(self, time_s: float) -> tuple[float, float, float, float]:
        """Return by how much its corners are predicted to have moved at ``time_s``."""
        x, y = (part * (time_s - self.seen_s) for part in self.speed)
        return x, y, x, y

    def spread(self, time_s: float, before_s: float) -> float:
        """Return how many pixels it may have moved unseen; ``before_s``: time of the last step."""
        unseen_s = (time_s if len(self.history) == 1 else before_s) - self.seen_s
        if unseen_s <= 0:
            return 0.0
        return _SPREAD * float(np.sqrt(_areas(self.corners[None])[0])) * unseen_s

    def update(self, time_s: float, corners: Corners) -> None:
        """Update it with the box observed at ``time_s``."""
        since_s = time_s - _HISTORY_S - SLACK_S
        self.history = [entry for entry in self.history if entry[0] >= since_s]
        self.history.append((time_s, *_centre(corners)))
        mean_s = sum(entry[0] for entry in self.history) / len(self.history)
        around = [entry[0] - mean_s for entry in self.history]
        scale = sum(a * a for a in around) + _PRIOR
        x = sum(a * entry[1] for a, entry in zip(around, self.history, strict=True))
        y = sum(a * entry[2] for a, entry in zip(around, self.history, strict=True))
        self.speed = x / scale, y / scale
        self.corners, self.seen_s = corners, time_s


class ObjectTracker:
    """Assigns ids to the boxes of one stream, from 1 on; none is used twice.

    ``overlap``: the least intersection over union of a box with its object's predicted box.
    ``patience_s``: how long an object may be out of sight and keep its id; steps that are further
    apart forget none of those that the step before has shown. ``newest``: the last id
    of an earlier stream, after which numbering continues.

    The ids do not depend on the order of the boxes; new boxes get ids by descending score.
    """

    def __init__(
        self, overlap: float = 0.3, patience_s: float = PATIENCE_S, newest: int = 0
    ) -> None:
        self._overlap = overlap
        self._patience_s = patience_s
        self._objects: list[_Object] = []  # by id
        self._ids = newest  # the last one that was assigned
        self._before_s = -np.inf  # time of the step before
        self._newest: tuple[tuple[Box, ...], tuple[Box, ...]] = (), ()  # without ids, and with

    @property
    def known(self) -> frozenset[int]:
        """Ids of the objects that are followed."""
        return frozenset(each.id for each in self._objects)

    def new_id(self) -> int:
        """Return an id that no box will get."""
        self._ids += 1
        return self._ids

    def reset(self) -> None:
        """Forget the objects, as after a gap; later boxes get new ids."""
        self._objects, self._newest = [], ((), ())

    def update(
        self, time_s: float, boxes: Sequence[Box], *, looked: bool = True
    ) -> tuple[Box, ...]:
        """Return the boxes with ids, in the same order; ``time_s`` must increase between calls.

        ``looked``: False if the boxes of the call before are repeated, because the detector has
        not looked: they keep their ids and are not an observation of where the objects are.
        """
        if not looked and tuple(boxes) == self._newest[0]:
            return self._newest[1]
        limit_s = min(time_s - self._patience_s, self._before_s) - SLACK_S
        self._objects = [obj for obj in self._objects if obj.seen_s >= limit_s]
        order = sorted(range(len(boxes)), key=lambda k: _rank(boxes[k]))
        ranked = [boxes[k] for k in order]
        corners = corners_of(ranked)
        matches = self._assign(time_s, ranked, corners)
        self._before_s = time_s
        ids: dict[int, int] = {}
        for k, (place, box) in enumerate(zip(order, ranked, strict=True)):
            if k in matches:
                matches[k].update(time_s, corners[k])
            else:
                self._ids += 1
                matches[k] = _Object.new(self._ids, box.label, corners[k], time_s)
                self._objects.append(matches[k])
            ids[place] = matches[k].id
        numbered = tuple(replace(box, id=ids[place]) for place, box in enumerate(boxes))
        self._newest = tuple(boxes), numbered
        return numbered

    def _assign(self, time_s: float, boxes: Sequence[Box], corners: Corners) -> dict[int, _Object]:
        """Match boxes to known objects, by index of the box; ``corners``: [n, 4]."""
        if not self._objects:
            return {}
        seen = np.stack([obj.corners for obj in self._objects])
        moved = np.array([obj.shift(time_s) for obj in self._objects])
        spreads = [obj.spread(time_s, self._before_s) for obj in self._objects]
        labels = np.array([obj.label for obj in self._objects])
        differ = labels[:, None] != np.array([box.label for box in boxes])
        shared = _overlaps(seen + moved, corners, spreads)
        matches = self._matched(np.where(differ, -1, shared), {})
        # Those that did not go on along their line have turned or stopped: OC-SORT's recovery.
        longest = [
            obj.spread(time_s, max(self._before_s, time_s - _STEP_S)) for obj in self._objects
        ]
        shared = _overlaps(seen, corners, longest)
        return self._matched(np.where(differ, -1, shared), matches)

    def _matched(self, shared: Corners, matches: dict[int, _Object]) -> dict[int, _Object]:
        """Return the matches, and those of the others by their overlap [objects, boxes]."""
        taken = {obj.id for obj in matches.values()}
        matches = dict(matches)
        which, of = np.nonzero(shared >= self._overlap)
        for pair in np.argsort(-shared[which, of], kind="stable"):
            obj, box = self._objects[int(which[pair])], int(of[pair])
            if obj.id not in taken and box not in matches:
                taken.add(obj.id)
                matches[box] = obj
        return matches


def _overlaps(objects: Corners, boxes: Corners, spreads: Sequence[float]) -> Corners:
    """Return intersection over union [m, n], both enlarged by the spread of the object."""
    shared = pairwise_iou(objects, boxes)
    for row, spread in enumerate(spreads):
        if spread:
            larger = spread * np.array([-1, -1, 1, 1])
            shared[row] = pairwise_iou(objects[row, None] + larger, boxes + larger)[0]
    return shared


def corners_of(boxes: Sequence[Box]) -> Corners:
    """Return the corners of boxes, float64 [n, 4]."""
    return np.array([(b.x1, b.y1, b.x2, b.y2) for b in boxes], np.float64).reshape(-1, 4)


def _centre(corners: Corners) -> tuple[float, float]:
    x1, y1, x2, y2 = corners.tolist()
    return (x1 + x2) / 2, (y1 + y2) / 2


def pairwise_iou(boxes: Corners, others: Corners) -> Corners:
    """Return intersection over union [n, m] of boxes [n, 4] and [m, 4]; 0 where both are empty."""
    shared = shared_areas(boxes, others)
    union = _areas(boxes)[:, None] + _areas(others) - shared
    out: Corners = shared / np.where(shared > 0, union, 1)
    return out


def shared_areas(boxes: Corners, others: Corners) -> Corners:
    """Return the areas [n, m] of the intersections of boxes [n, 4] and [m, 4]."""
    low = np.maximum(boxes[:, None, :2], others[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], others[None, :, 2:])
    out: Corners = (high - low).clip(min=0).prod(2)
    return out


def _areas(boxes: Corners) -> Corners:
    out: Corners = (boxes[:, 2:] - boxes[:, :2]).clip(min=0).prod(1)
    return out


def _rank(box: Box) -> tuple[float, str, float, float, float, float]:
    """Return the sort key of a box: highest score first, and no ties between different boxes."""
    return (-box.score, box.label, box.x1, box.y1, box.x2, box.y2)
