"""Persons of a stream of frames as skeletons, each with a number and in a slot of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from costream.core.records import Box, SkeletonFrame, VideoFrame
from costream.models.base import NetworkRun
from costream.models.pose.crowd import CrowdEstimator
from costream.models.pose.estimator import PoseEstimator
from costream.models.pose.found import DetectedPerson, Numbers, ObjectBox
from costream.models.pose.movenet import MoveNet
from costream.models.pose.weights import ESTIMATOR, pose_network

BOX = (640, 480)  # frames are fitted into this; a person of a third of it is still detected well
KEEP_S = 1.0  # a person who was not detected for this long has left the slot


class PoseTracker:
    """Detects up to ``persons`` persons in the frames of one stream, each in a slot of its own.

    ``places``: None for joints in metres, or the unit of their places in the picture: "unit", 0 to
    1 along both sides, or "height", that of the picture. ``weights``: name of those that find
    joints. ``detects``: as for ``PoseEstimator``.
    """

    def __init__(
        self,
        persons: int = 1,
        places: str | None = None,
        weights: str = ESTIMATOR,
        *,
        detects: bool = True,
    ) -> None:
        self._persons, self._places, self._weights = persons, places, weights
        self._detects = detects
        self.may: Callable[[float, float], bool] | None = None
        self._estimator: PoseEstimator | CrowdEstimator | None = None  # before the first frame
        self._last: list[tuple[float, Numbers] | None] = [None] * persons  # time and place
        self._numbers = [0] * persons  # of the persons in the slots
        self._newest = 0

    def find(self, frame: VideoFrame, boxes: Sequence[Box] | None = None) -> SkeletonFrame:
        """Return the persons in a frame as a SkeletonFrame of layout mediapipe-33, or coco-17.

        ``boxes``: of persons, in pixels of the source, by the caller's detector; None: it has not
        looked at this frame.

        Joints have three axes, in metres, the hips at the origin; or are places, x and y from the
        upper left corner on, y negative. Scores are how likely a joint is visible. Persons are
        numbered from 1 on, in order of appearance. ModelError if the estimator's weights are
        missing.
        """
        persons = self._detect(frame, boxes)
        layout = self._made().layout
        shape = (self._persons, len(layout.joints))
        joints, places = np.zeros((*shape, 3), np.float32), np.zeros((*shape, 2), np.float32)
        scores = np.zeros(shape, np.float32)
        for slot, person in self._assign(persons, frame.time_s):
            scores[slot], places[slot] = person.scores, person.places
            if person.joints is not None:
                joints[slot] = person.joints
            self._last[slot] = (frame.time_s, person.middle)
        if self._places is not None:
            height, width, _ = frame.rgb.shape
            wide = width / height if self._places == "height" else 1.0
            joints = places * np.array((wide, -1), np.float32)
        about = (frame.i, frame.time_s, joints, scores, layout)
        return SkeletonFrame(*about, places=places, persons=tuple(self._numbers))

    @property
    def ran(self) -> NetworkRun | None:
        """Why joints were computed in the newest frame, and their cost; None: nobody is there."""
        return None if self._estimator is None else self._estimator.ran

    def close(self) -> None:
        """Forget everybody; the next frame starts afresh, but for the numbers of persons."""
        self._last, self._numbers = [None] * self._persons, [0] * self._persons
        if self._estimator is not None:
            self._estimator.reset()

    def _detect(self, frame: VideoFrame, boxes: Sequence[Box] | None) -> list[DetectedPerson]:
        estimator = self._made()
        estimator.may = self.may
        found = None if boxes is None else in_pixels(boxes, frame)
        return estimator.find(frame.rgb, frame.time_s, found)

    def _made(self) -> PoseEstimator | CrowdEstimator:
        if self._estimator is None:
            network = pose_network(self._weights)
            if isinstance(network, MoveNet):
                self._estimator = CrowdEstimator(network, self._persons, detects=self._detects)
            else:
                self._estimator = PoseEstimator(network, self._persons, detects=self._detects)
        return self._estimator

    def _assign(
        self, persons: Sequence[DetectedPerson], time_s: float
    ) -> Iterator[tuple[int, DetectedPerson]]:
        """Yield a slot for each person: that of the nearest known person, else a free one.

        Somebody who is not followed is not known if nobody was near.
        """
        reach = self._made().reach
        slots = dict(enumerate(self._last))
        known = {
            slot: last[1] for slot, last in slots.items() if last and time_s - last[0] <= KEEP_S
        }
        left = list(range(len(persons)))
        away = {
            (k, slot): float(np.linalg.norm(persons[k].middle - middle))
            for k in left
            for slot, middle in known.items()
        }
        for k, slot in sorted(away, key=away.__getitem__):
            if k not in left or slot not in known or away[k, slot] > reach * persons[k].extent:
                continue
            yield slot, persons[k]
            left.remove(k)
            del known[slot], slots[slot]
        free = [slot for slot in slots if slot not in known]
        for slot, k in zip(free, left, strict=False):
            self._newest += 1
            self._numbers[slot] = self._newest
            yield slot, persons[k]


def in_pixels(boxes: Sequence[Box], frame: VideoFrame) -> list[ObjectBox]:
    """Return boxes in pixels of ``frame.rgb``, for those in pixels of the source."""
    width = frame.rgb.shape[1]
    scale = 1.0 if frame.size is None else width / frame.size[0]
    return [
        ObjectBox(
            scale * (box.x1 + box.x2) / 2,
            scale * (box.y1 + box.y2) / 2,
            scale * (box.x2 - box.x1),
            scale * (box.y2 - box.y1),
            box.score,
        )
        for box in boxes
    ]


class PoseTrackers:
    """The trackers of a batch of streams, created at the first frame."""

    def __init__(
        self,
        batch_size: int,
        persons: int,
        places: str | None = None,
        weights: str = ESTIMATOR,
    ) -> None:
        self._trackers = [PoseTracker(persons, places, weights) for _ in range(batch_size)]

    def find(self, frames: Sequence[VideoFrame]) -> list[SkeletonFrame]:
        """Return the persons in one frame of every stream."""
        pairs = zip(self._trackers, frames, strict=True)
        return [tracker.find(frame) for tracker, frame in pairs]

    def reset(self, rows: Sequence[int]) -> None:
        """Reset the trackers of these streams."""
        for row in rows:
            self._trackers[row].close()
