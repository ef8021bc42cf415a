"""How far persons whose joints are known in pictures are the same: object keypoint similarity."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating]
Mask = npt.NDArray[np.bool_]

# How far from each joint of COCO-17 people mark it: a standard deviation, to the square root of
# the person's area (https://cocodataset.org/#keypoints-eval, and pycocotools).
_MILLI = [26, 25, 25, 35, 35, 79, 79, 72, 72, 62, 62, 107, 107, 87, 87, 89, 89]
SIGMAS = np.array(_MILLI) / 1000
BODY = 0.53  # area of a person, to that of the box around the joints, where only these are known


def joint_similarity(places: Floats, seen: Mask, others: Floats) -> float:
    """Return the object keypoint similarity (OKS) of a person's joints with a reference, 0 to 1.

    ``places`` and ``others`` [17, 2]: joints of the reference and of the person, as in COCO-17, in
    one unit along both sides of the picture. ``seen`` [17]: joints of the reference that
    count; all, if none is. COCO takes the area of a segmented person; here it is ``BODY`` of the
    box around the reference's joints.
    """
    area = BODY * np.ptp(places, 0).prod() + np.spacing(1)
    squares = ((places - others) ** 2).sum(1)
    near = np.exp(-squares / (2 * area * (2 * SIGMAS) ** 2))
    return float((near[seen] if seen.any() else near).mean())
