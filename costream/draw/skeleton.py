"""Skeletons as two-dimensional stick figures, ready to be drawn."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from costream.core.records import SkeletonFrame

MIN_JOINT_SCORE = 0.3  # joints with a lower score are guesses and not drawn
_SHRINK = 0.995  # factor by which the extent may shrink per frame

Points = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Figure:
    """The persons of one frame: points on a page, 0 to 1, x to the right and y down."""

    points: Points  # float32 [M, V, 2]
    seen: npt.NDArray[np.bool_]  # [M, V]
    bones: tuple[tuple[int, int], ...]
    sides: tuple[int, ...]  # [V], -1 left, 1 right, 0 the middle of the body
    square: bool  # the page is a square, not the source image


class SkeletonView:
    """Front view of skeletons without their source image, scaled so that all are visible.

    It is centred on them, and zooms in slowly when they need less room.
    """

    def __init__(self) -> None:
        self._extent = 0.0

    def figure(self, skeleton: SkeletonFrame) -> Figure:
        """Return the figure of ``skeleton``, centred on a square page."""
        places, signs = _flat(skeleton)
        known: npt.NDArray[np.bool_] = np.logical_and.reduce(np.isfinite(places), axis=2)
        seen = (skeleton.scores > MIN_JOINT_SCORE) & known
        flat = np.where(known[..., None], places, 0).astype(np.float64) * signs
        if seen.any():
            low, high = flat[seen].min(0), flat[seen].max(0)
            self._extent = max(self._extent * _SHRINK, float((high - low).max()))
            flat = (flat - (low + high) / 2) / (1.1 * max(self._extent, 1e-6)) + 0.5
        return Figure(flat.astype(np.float32), seen, skeleton.layout.bones, _sides(skeleton), True)


def figure_in_picture(skeleton: SkeletonFrame) -> Figure | None:
    """Return the figure in coordinates of the source image; None if they are missing."""
    if skeleton.places is None:
        return None
    seen = skeleton.scores > MIN_JOINT_SCORE
    return Figure(skeleton.places, seen, skeleton.layout.bones, _sides(skeleton), False)


def _flat(skeleton: SkeletonFrame) -> tuple[Points, tuple[float, float]]:
    """Return two coordinates of each joint, and the signs that turn them right and down."""
    if skeleton.places is not None:
        # In 3D, the hips of all persons in a video are at the same place. The aspect ratio of
        # the image is unknown here; 4:3 is close enough.
        return skeleton.places, (4 / 3, 1.0)
    # In 3D, x points to the camera's left (Kinect), in an image to the right.
    signs = (-1.0, -1.0) if skeleton.joints.shape[2] == 3 else (1.0, -1.0)
    return skeleton.joints[..., :2], signs


def _sides(skeleton: SkeletonFrame) -> tuple[int, ...]:
    names = skeleton.layout.joints
    return tuple(-name.startswith("left ") + name.startswith("right ") for name in names)
