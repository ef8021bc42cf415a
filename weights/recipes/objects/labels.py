"""Labels of the shipped detector, and how far a box of the teacher is to be believed."""

from __future__ import annotations

import torch
from torch import Tensor

LABELS = (
    *("person", "bicycle", "car", "motorcycle", "bus", "truck", "dog", "cat", "bird", "horse"),
    *("chair", "couch", "tv", "bottle", "cup", "bag"),
)
_NAMES = {"motorbike": "motorcycle", "sofa": "couch", "tvmonitor": "tv"}
_BAGS = ("backpack", "handbag", "suitcase")
SURE = 0.4  # least score of the teacher's boxes that something is judged by
_LEAST, _CERTAIN = 0.35, 0.6  # scores from which on a box may be right, and is


def label_number(name: str) -> int | None:
    """Return the label of a name of COCO, as spelt in the packs; None if it has none."""
    name = "bag" if name in _BAGS else _NAMES.get(name, name)
    return LABELS.index(name) if name in LABELS else None


def chance_of_right(scores: Tensor) -> Tensor:
    """Return how often boxes with these scores, 0 to 1, are right.

    About half of the teacher's boxes with a score of 0.35 are, nearly all from 0.6 on, and fewer
    below; those are not to be learnt.
    """
    right = 0.5 + 0.5 * (scores - _LEAST) / (_CERTAIN - _LEAST)
    return torch.where(scores >= _LEAST, right.clamp(max=1), 0.0)
