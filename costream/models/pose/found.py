"""Persons whom pose estimators find, and when these look."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from costream.core.layouts import COCO_17, MEDIAPIPE_33, Layout

SEARCH_S = 0.2  # between two looks while nobody is there
SURE = 0.4  # score of a box of a person from which on it is looked at
STILL_S = 0.5  # for which joints are kept of who does not move ...
STILL = 0.04  # ... which is a picture of which no part changes by more, of the range of a channel
CHANGED = 0.2  # change of a part from which on new joints of a person gain most
_TORSO = {MEDIAPIPE_33: [11, 12, 23, 24], COCO_17: [5, 6, 11, 12]}  # shoulders and hips

Numbers = npt.NDArray[np.float32]


@dataclass(frozen=True)
class DetectedPerson:
    """A person detected in a frame, with J joints."""

    joints: Numbers | None  # float32 [J, 3], metres around the hips, y up; None: they are not known
    scores: Numbers  # float32 [J], 0 to 1
    places: Numbers  # float32 [J, 2], 0 to 1 in the image, y down
    layout: Layout = MEDIAPIPE_33

    @property
    def middle(self) -> Numbers:
        """Middle of the torso in the image."""
        middle: Numbers = self.places[_TORSO[self.layout]].mean(0)
        return middle

    @property
    def extent(self) -> float:
        """Longer side of the box around the joints, 0 to 1 in the image."""
        return float(np.ptp(self.places, 0).max())

    def is_near(self, other: DetectedPerson, reach: float) -> bool:
        """Return whether the middle of another person is within ``reach`` of the extent."""
        return math.dist(self.middle, other.middle) <= reach * self.extent


class ObjectBox(NamedTuple):
    """A box of a detector, in pixels, and its score."""

    x: float  # of its middle
    y: float
    width: float
    height: float
    score: float
