"""What every body has: its head above its hips, and its hips between its hip joints."""

from __future__ import annotations

import itertools

import numpy as np

from costream.core.layouts import BODY_15, Layout

# Where the joints of somebody who stands are, x to the side and y up, in metres.
STANDING = {
    "hips": (0, 0.95),
    "lower spine": (0, 1.05),
    "mid spine": (0, 1.15),
    "chest": (0, 1.3),
    "neck": (0, 1.45),
    "upper neck": (0, 1.52),
    "head": (0, 1.65),
    "head top": (0, 1.78),
    "nose": (0, 1.63),
    "eye": (0.03, 1.66),
    "inner eye": (0.02, 1.66),
    "mouth": (0.02, 1.58),
    "outer eye": (0.04, 1.66),
    "ear": (0.07, 1.65),
    "front head": (0.06, 1.72),
    "back head": (0.06, 1.7),
    "head side": (0.08, 1.7),
    "clavicle": (0.1, 1.44),
    "upper back": (0, 1.46),
    "middle back": (0, 1.25),
    "breastbone": (0, 1.4),
    "lower breastbone": (0, 1.25),
    "shoulder": (0.18, 1.42),
    "upper arm": (0.2, 1.28),
    "elbow": (0.21, 1.14),
    "inner elbow": (0.19, 1.14),
    "outer elbow": (0.23, 1.14),
    "forearm": (0.22, 1),
    "wrist": (0.22, 0.88),
    "inner wrist": (0.2, 0.88),
    "outer wrist": (0.24, 0.88),
    "hand": (0.22, 0.8),
    "knuckles": (0.22, 0.78),
    "hand tip": (0.22, 0.7),
    "thumb": (0.2, 0.78),
    "index": (0.21, 0.74),
    "pinky": (0.24, 0.76),
    "front pelvis": (0.12, 1),
    "back pelvis": (0.05, 1),
    "hip": (0.09, 0.92),
    "thigh": (0.1, 0.7),
    "knee": (0.1, 0.5),
    "inner knee": (0.06, 0.5),
    "outer knee": (0.14, 0.5),
    "shank": (0.1, 0.3),
    "ankle": (0.1, 0.08),
    "inner ankle": (0.07, 0.08),
    "outer ankle": (0.13, 0.08),
    "heel": (0.1, 0.03),
    "foot": (0.1, 0.03),
    "toes": (0.1, 0.02),
    "small toe": (0.14, 0.02),
    **{f"face {k}": (0, 1.7) for k in range(1, 69)},
    **{f"hand {k}": (0.22, 0.8) for k in range(1, 22)},
}


def standing_body(layout: Layout) -> np.ndarray:
    """Return somebody who stands, [V, 2]; KeyError for a joint that ``STANDING`` lacks."""
    out = []
    for name in layout.joints:
        side, _, part = name.partition(" ")
        x, y = STANDING[part if side in ("left", "right") else name]
        out.append((-x if side == "right" else x, y))
    return np.array(out)


def check_bodies(joints: np.ndarray, share: float = 1.0) -> None:
    """Check that so many of the bodies [N, 15, 2 or 3] of body-15 are built like people, y up."""

    def place(*names: str) -> np.ndarray:
        return joints[:, [BODY_15.joints.index(name) for name in names]].mean(1)

    def both(part: str) -> np.ndarray:
        return place(f"left {part}", f"right {part}")

    column = place("head"), place("neck"), both("hip"), both("knee"), both("ankle")
    for above, below in itertools.pairwise(column):
        assert (above[:, 1] > below[:, 1]).mean() >= share
    assert (both("shoulder")[:, 1] > place("hips")[:, 1]).mean() >= share
    # Along the trunk, from the middle of the hip joints to the neck, the hips are at its lower end.
    trunk = place("neck") - both("hip")
    length = np.linalg.norm(trunk, axis=1)
    along = ((place("hips") - both("hip")) * trunk).sum(1) / length**2
    assert abs(np.median(along)) < 0.3
    assert np.median(np.linalg.norm(place("neck") - both("shoulder"), axis=1) / length) < 0.35
    assert np.median(np.linalg.norm(place("hips") - both("hip"), axis=1) / length) < 0.35
    # Left and right of shoulders and hips are the same, as are those of knees.
    across = place("left hip") - place("right hip")
    for part in ("shoulder", "knee"):
        other = place(f"left {part}") - place(f"right {part}")
        assert ((across * other).sum(1) > 0).mean() >= min(share, 0.9)
