"""Crops of the persons in a picture: one stream of frames for each person."""

from __future__ import annotations

import math
from collections.abc import Callable, Container
from dataclasses import dataclass, replace

import av
import numpy as np
from av.video.reformatter import VideoReformatter

from costream.core.clock import SLACK_S
from costream.core.records import Box, Data, PixelSize, VideoFrame
from costream.models.base import StepResult
from costream.models.persons import PERSON
from costream.runtime.tracking import MAX_BOXES, PATIENCE_S, ObjectTracker
from costream.sources.media.lazy_image import LazyImage

MARGIN = 1.5  # height of a crop, relative to what its person needs
SMOOTH_S = 0.3  # time constant of the movement of a crop


@dataclass
class _Crop:
    """The place of a person's crop, in pixels of the source."""

    x: float  # of its middle
    y: float
    height: float
    seen_s: float

    def follow(self, x: float, y: float, height: float, time_s: float) -> None:
        """Move towards the current place of the person."""
        part = 1 - math.exp((self.seen_s - time_s) / SMOOTH_S)
        self.x += part * (x - self.x)
        self.y += part * (y - self.y)
        self.height += part * (height - self.height)
        self.seen_s = time_s


class CropFinder:
    """Tracks the boxes of a detector's results, and cuts the persons out of the frames.

    A crop has the aspect ratio of the model's input and is ``MARGIN`` times as large as the person
    needs, within the frame if that is large enough. It follows the person smoothly, and stays where
    they were last seen. Implements ``persons.RowFinder``.
    """

    keeps_row, skeletons, ran = False, None, None
    followed, lost = (), False

    def __init__(self, box: PixelSize, detector: str, threshold_of: Callable[[str], float]) -> None:
        """``box``: input size of the model. ``detector``: name of that of the stream.

        ``threshold_of``: least score of boxes by label.
        """
        self._box, self._detector, self._threshold_of = box, detector, threshold_of
        self._tracker = ObjectTracker()
        self._crops: dict[int, _Crop] = {}
        self._scaler = VideoReformatter()
        self._frame: VideoFrame
        self.present: list[int] = []

    @property
    def known(self) -> Container[int]:
        """Numbers of all persons who may still be there."""
        return self._crops.keys()

    def begin(self, newest: int) -> None:
        """Continue numbering after ``newest``."""
        self._tracker = ObjectTracker(newest=newest)

    def govern(self, may: Callable[[float, float], bool]) -> None:
        """Do nothing: a detector that shares its budget has no crops."""

    def find(self, item: Data, scene: StepResult | None) -> StepResult:
        """Return the result of the detector with numbers of the boxes."""
        assert isinstance(item, VideoFrame)
        assert scene is not None
        assert scene.objects is not None
        self._frame, boxes = item, list(scene.objects[0])
        sure = [k for k, box in enumerate(boxes) if box.score >= self._threshold_of(box.label)]
        sure = sure[:MAX_BOXES]
        looked = scene.has_run(self._detector)
        tracked = self._tracker.update(item.time_s, [boxes[k] for k in sure], looked=looked)
        for k, box in zip(sure, tracked, strict=True):
            boxes[k] = box
        persons = [box for box in tracked if box.label == PERSON]
        for box in persons:
            self._follow(box, item.time_s)
        limit_s = item.time_s - PATIENCE_S - SLACK_S
        self._crops = {n: crop for n, crop in self._crops.items() if crop.seen_s >= limit_s}
        persons.sort(key=lambda box: (box.y1 - box.y2) * (box.x2 - box.x1))
        self.present = [box.id for box in persons if box.id is not None]
        return replace(scene, objects=(tuple(boxes),))

    def item(self, number: int) -> VideoFrame:
        """Return the crop of a person in the newest frame, and in the earlier ones of its step."""
        return self._cut(self._frame, self._crops[number])

    def close(self) -> None:
        """Forget all persons, but not which numbers were used."""
        self._tracker.reset()
        self._crops = {}

    def _follow(self, box: Box, time_s: float) -> None:
        assert box.id is not None
        x, y = (box.x1 + box.x2) / 2, (box.y1 + box.y2) / 2
        width, height = self._box
        needed = MARGIN * max(box.y2 - box.y1, (box.x2 - box.x1) * height / width)
        if box.id in self._crops:
            self._crops[box.id].follow(x, y, needed, time_s)
        else:
            self._crops[box.id] = _Crop(x, y, needed, time_s)

    def _cut(self, frame: VideoFrame, crop: _Crop) -> VideoFrame:
        rgb = frame.rgb if frame.drawing is None else frame.drawing()
        height, width = rgb.shape[:2]
        scale = width / (width if frame.size is None else frame.size[0])
        tall = scale * crop.height
        left, right = _span(scale * crop.x, tall * self._box[0] / self._box[1], width)
        top, bottom = _span(scale * crop.y, tall, height)
        part = np.ascontiguousarray(rgb[top:bottom, left:right])
        picture = av.VideoFrame.from_ndarray(part, format="rgb24")
        return VideoFrame(
            frame.i,
            frame.time_s,
            frame.pts,
            LazyImage(picture, self._scaler, self._box, None),
            earlier=tuple(self._cut(each, crop) for each in frame.earlier),
        )


def _span(middle: float, length: float, limit: int) -> tuple[int, int]:
    """Return begin and end of a side of a crop, both from 0 to ``limit``."""
    length_px = min(limit, max(1, round(length)))
    begin = min(max(0, round(middle - length_px / 2)), limit - length_px)
    return begin, begin + length_px
