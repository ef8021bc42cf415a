"""Joints of up to six persons in each frame of a stream, all at once: MoveNet MultiPose."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from costream.core.layouts import COCO_17
from costream.models.base import NetworkRun
from costream.models.pose.found import (
    CHANGED,
    SEARCH_S,
    STILL,
    STILL_S,
    SURE,
    DetectedPerson,
    ObjectBox,
)
from costream.models.pose.movenet import PATCH, FoundPersons, MoveNet

SIDE = 320  # longer side of what the network gets, in pixels, without zeros at two borders
_PART = 8  # pixels of it, of a part that changes or not
_NEW = 0.25  # score of somebody who is new, as in Google's library for JavaScript ...
_KNOWN = 0.12  # ... and of somebody near to where a person was
REACH = 0.5  # of the longer side of a person: how far the person goes between two frames at most


class CrowdEstimator:
    """Finds up to ``most`` persons and their joints in the frames of one stream.

    Every frame is computed completely, unless none of its parts, 8 pixels wide, has changed by more
    than ``STILL`` in half a second. While nobody is there, it looks every 0.2 s. Somebody who was
    there in the frame before needs a lower score. Scores of joints are the square roots of the
    network's, so that 0.3, from which on models take a joint, is 0.1 of it: those between 0.1 and
    0.3 are as often right as those of BlazePose above 0.8. ``detects``: if False, it looks only
    while there is somebody, and where the caller's detector has found a person. ``may`` and
    ``ran``: as of ``models.base.PersonFinder``; if the budget does not admit a frame, persons stay
    as they were.
    """

    layout = COCO_17
    reach = REACH

    def __init__(self, network: MoveNet, most: int = 1, *, detects: bool = True) -> None:
        self._network, self._most, self._detects = network, most, detects
        self.computed = self.kept = 0  # frames
        self.may: Callable[[float, float], bool] | None = None
        self.ran: NetworkRun | None = None
        self.reset()

    def reset(self) -> None:
        """Follow nobody any longer."""
        self._persons: list[DetectedPerson] = []
        self._parts: Tensor | None = None  # mean colours, when joints were computed
        self._computed_s = -math.inf

    @torch.inference_mode()
    def find(
        self,
        rgb: npt.NDArray[np.uint8],
        time_s: float,
        boxes: Sequence[ObjectBox] | None = None,
    ) -> list[DetectedPerson]:
        """Return the persons in a picture, uint8 [h, w, 3].

        ``boxes``: of persons, by the caller's detector; None: it has not looked at this picture.
        """
        self.ran = None
        if not self._due(time_s, boxes):
            return []
        picture = padded(rgb)
        parts = F.avg_pool2d(picture.float(), _PART) / 255
        macs = self._network.macs(picture.shape[2], picture.shape[3])
        if self._stays(parts, time_s):
            self.kept += 1
            self.ran = NetworkRun(None, 0, macs) if self._persons else None
            return self._persons
        reason = "motion" if self._persons else "new"
        self._parts, self._computed_s = parts, time_s
        self.computed += 1
        found = self._network.find(picture, _KNOWN)[0]
        height, width = fitted(rgb.shape[:2])
        self._persons = self._known_or_sure(found, (width, height))
        self.ran = NetworkRun(reason, macs, macs)
        return self._persons

    def _due(self, time_s: float, boxes: Sequence[ObjectBox] | None) -> bool:
        """Return whether somebody may be in a frame that is worth looking at."""
        if self._persons:
            return True
        if not self._detects:
            return any(box.score >= SURE for box in boxes or ())
        return not 0 <= time_s - self._computed_s < SEARCH_S - 1e-6

    def _stays(self, parts: Tensor, time_s: float) -> bool:
        """Return whether persons are where they were, or the budget wants it so."""
        before, ago_s = self._parts, time_s - self._computed_s
        if before is None or before.shape != parts.shape or ago_s < 0:
            return False
        change = float((parts - before).abs().max())
        if change < STILL and ago_s < STILL_S:
            return True
        return self.may is not None and not self.may(
            max(1, len(self._persons)) * min(1.0, change / CHANGED), ago_s
        )

    def _known_or_sure(self, found: FoundPersons, size: tuple[int, int]) -> list[DetectedPerson]:
        """Return those who are sure, or near to somebody of the frame before, who come first.

        ``size``: width and height of the picture, in pixels of the network.
        """
        known, new = [], []
        places = (found.joints / found.joints.new_tensor(size)).numpy()
        for row, scores, score in zip(places, found.scores.numpy(), found.score, strict=True):
            person = DetectedPerson(None, np.sqrt(scores), row, COCO_17)
            if any(person.is_near(other, REACH) for other in self._persons):
                known.append(person)
            elif score >= _NEW:
                new.append(person)
        return (known + new)[: self._most]


def padded(rgb: npt.NDArray[np.uint8], side: int = SIDE) -> Tensor:
    """Return a picture, uint8 [h, w, 3], as the network takes it, [1, 3, H, W].

    Its longer side has ``side`` pixels; below and to the right there are zeros.
    """
    frame = torch.from_numpy(np.ascontiguousarray(rgb)).permute(2, 0, 1)[None]
    height, width = fitted(rgb.shape[:2], side)
    if (height, width) != rgb.shape[:2]:
        frame = F.interpolate(frame, (height, width), mode="bilinear", antialias=True)
    return F.pad(frame, (0, -width % PATCH, 0, -height % PATCH))


def fitted(size: tuple[int, ...], side: int = SIDE) -> tuple[int, int]:
    """Return height and width with the same proportions, the longer one ``side``."""
    height, width = (max(1, round(n * side / max(size))) for n in size)
    return height, width
