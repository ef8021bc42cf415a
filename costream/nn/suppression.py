"""Non-maximum suppression: of boxes that overlap, only the one with the best score stays."""

from __future__ import annotations

import torch
from torch import Tensor

from costream.nn.boxes import overlaps


def suppress(boxes: Tensor, scores: Tensor, groups: Tensor, threshold: float) -> Tensor:
    """Give the places, int64 [k], of the boxes that stay, the best score first.

    A box goes when one of its group with a better score, which itself stays, overlaps it by more
    than ``threshold``, as intersection over union. Of equal scores the first is better.

    ``boxes`` [n, 4], ``scores`` [n], ``groups`` [n]: classes or levels.
    """
    order = scores.argsort(descending=True, stable=True)
    boxes, groups = boxes[order], groups[order]
    stays = torch.zeros(len(boxes), dtype=torch.bool, device=boxes.device)
    for group in torch.unique(groups):
        members = (groups == group).nonzero().flatten()
        stays[members] = _staying(overlaps(boxes[members], boxes[members]) > threshold)
    return order[stays]


def _staying(over: Tensor) -> Tensor:
    """Say which of n boxes stay, bool [n]; ``over`` [n, n]: which are too close to which.

    Each round takes what the round before says of better boxes. What is right for the first k
    boxes stays right and makes it right for the next, so when nothing changes all is as if boxes
    had been looked at one by one. Boxes that hinge on each other in long chains are rare: it
    takes a few products with a matrix instead of n steps.
    """
    better = over.triu(1).t().float()  # row i: the better boxes that box i is too close to
    stays = torch.ones(len(over), dtype=torch.bool, device=over.device)
    while True:
        after = better @ stays.float() == 0
        if torch.equal(after, stays):
            return stays
        stays = after
