"""Manual annotations of the held-out clips.

The teacher misses the car of one clip in half of its frames, so it cannot be the reference there.
Boxes are given for some frames, in pixels of 480 x 270, and linearly interpolated between them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from weights.recipes.objects.data import LABELS

SIZE = (480, 270)  # width and height of both clips

Corners = tuple[int, int, int, int]


class AnnotatedTrack(NamedTuple):
    """One object: its label, and its box in some frames, including its first and last."""

    label: str
    boxes: Mapping[int, Corners]


class AnnotatedClip(NamedTuple):
    """The objects in the first frames of a clip."""

    frames: int
    tracks: tuple[AnnotatedTrack, ...]


ANNOTATED_CLIPS = {
    "person-bicycle-car-detection-preview": AnnotatedClip(
        41,
        (
            AnnotatedTrack(
                "vehicle",
                {
                    0: (50, 153, 171, 270),
                    8: (74, 114, 178, 248),
                    16: (96, 76, 171, 192),
                    24: (75, 49, 160, 142),
                    32: (25, 36, 134, 111),
                    40: (0, 33, 90, 97),
                },
            ),
            AnnotatedTrack(
                "bicycle",
                {
                    0: (319, 0, 330, 19),
                    8: (323, 0, 338, 30),
                    16: (331, 5, 357, 43),
                    24: (346, 20, 386, 55),
                    32: (372, 31, 420, 62),
                    40: (404, 38, 453, 65),
                },
            ),
            AnnotatedTrack(
                "person",
                {
                    0: (325, 0, 333, 14),
                    8: (331, 0, 342, 14),
                    16: (345, 0, 359, 35),
                    24: (365, 1, 383, 42),
                    32: (394, 8, 413, 46),
                    40: (423, 14, 440, 50),
                },
            ),
            AnnotatedTrack(
                "person", {0: (160, 0, 176, 38), 8: (174, 0, 188, 21), 16: (187, 0, 198, 8)}
            ),
        ),
    ),
    "people-detection-preview": AnnotatedClip(
        15,  # later only a foot is visible
        (
            AnnotatedTrack(
                "person",
                {
                    0: (17, 54, 72, 153),
                    2: (10, 53, 59, 150),
                    4: (3, 54, 47, 150),
                    6: (0, 56, 47, 148),
                    8: (0, 55, 46, 148),
                    10: (0, 71, 37, 148),
                    12: (0, 93, 24, 148),
                    14: (0, 99, 18, 148),
                },
            ),
            AnnotatedTrack("person", {0: (0, 80, 32, 175), 2: (0, 100, 31, 174)}),
        ),
    ),
}


def boxes_at(watched: AnnotatedClip, frame: int) -> tuple[Tensor, Tensor]:
    """Return the boxes [n, 4], in pixels of SIZE, and labels [n] of a frame."""
    boxes, labels = [], []
    for track in watched.tracks:
        known = sorted(track.boxes)
        if known[0] <= frame <= known[-1]:
            corners = np.array([track.boxes[k] for k in known], float)
            boxes.append([np.interp(frame, known, column) for column in corners.T])
            labels.append(LABELS.index(track.label))
    return torch.tensor(boxes).float().view(-1, 4), torch.tensor(labels).long()
