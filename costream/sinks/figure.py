"""Skeletons as stick figures on a flat page, for whoever draws them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from costream.records import SkeletonFrame

SEEN = 0.3  # joints with a lower score are guesses and not drawn
_SHRINK = 0.995  # share of the page's extent that is kept from one picture to the next

Points = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Figure:
    """The persons of one moment: points on a page, 0 to 1, x to the right and y down."""

    points: Points  # float32 [M, V, 2]
    seen: npt.NDArray[np.bool_]  # [M, V]
    bones: tuple[tuple[int, int], ...]
    sides: tuple[int, ...]  # [V], -1 left, 1 right, 0 the middle of the body
    square: bool  # the page is one, not a picture


class View:
    """Looks at skeletons where their picture is not shown: from the front, all in sight.

    It follows their middle, and shrinks slowly when they need less room.
    """

    def __init__(self) -> None:
        self._extent = 0.0

    def figure(self, skeleton: SkeletonFrame) -> Figure:
        """Give the figure of ``skeleton``, its middle in the middle of a square page."""
        places, signs = _flat(skeleton)
        known: npt.NDArray[np.bool_] = np.logical_and.reduce(np.isfinite(places), axis=2)
        seen = (skeleton.scores > SEEN) & known
        flat = np.where(known[..., None], places, 0).astype(np.float64) * signs
        if seen.any():
            low, high = flat[seen].min(0), flat[seen].max(0)
            self._extent = max(self._extent * _SHRINK, float((high - low).max()))
            flat = (flat - (low + high) / 2) / (1.1 * max(self._extent, 1e-6)) + 0.5
        return Figure(flat.astype(np.float32), seen, skeleton.layout.bones, _sides(skeleton), True)


def figure_in_picture(skeleton: SkeletonFrame) -> Figure | None:
    """Give the figure on the page that is its picture; None without places in one."""
    if skeleton.places is None:
        return None
    seen = skeleton.scores > SEEN
    return Figure(skeleton.places, seen, skeleton.layout.bones, _sides(skeleton), False)


def _flat(skeleton: SkeletonFrame) -> tuple[Points, tuple[float, float]]:
    """Give two coordinates of each joint, and what turns them right and down."""
    if skeleton.places is not None:
        # In space MediaPipe puts the hips of all persons at the same place. What shape their
        # picture has is not known here; 4:3 is near enough.
        return skeleton.places, (4 / 3, 1.0)
    # A camera's x in space is to its left (Kinect), that of a picture to the right.
    signs = (-1.0, -1.0) if skeleton.joints.shape[2] == 3 else (1.0, -1.0)
    return skeleton.joints[..., :2], signs


def _sides(skeleton: SkeletonFrame) -> tuple[int, ...]:
    names = skeleton.layout.joints
    return tuple(-name.startswith("left ") + name.startswith("right ") for name in names)
