"""Non-maximum suppression: of boxes that overlap, only the one with the best score stays."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from costream.nn.boxes import overlaps

_PAIRS = 1 << 19  # of boxes at once, which then stay in the cache


def suppress(boxes: Tensor, scores: Tensor, groups: Tensor, threshold: float) -> Tensor:
    """Give the places, int64 [k], of the boxes that stay, the best score first.

    A box goes when one of its group with a better score, which itself stays, overlaps it by more
    than ``threshold``, as intersection over union. Of equal scores the first is better.

    ``boxes`` [n, 4], ``scores`` [n], ``groups`` [n]: classes or levels.
    """
    order = scores.argsort(descending=True, stable=True)
    boxes = boxes[order]
    _, number, counts = torch.unique(groups[order], return_inverse=True, return_counts=True)
    members = torch.split(number.argsort(stable=True), counts.tolist())
    left = sorted(members, key=len, reverse=True)
    stays = torch.zeros(len(boxes), dtype=torch.bool, device=boxes.device)
    while left:  # groups of about the same size at once
        count = max(1, _PAIRS // len(left[0]) ** 2)
        # What fills a group up comes last in it and so drives nothing out.
        places = pad_sequence(left[:count], batch_first=True, padding_value=-1)
        real, own = places >= 0, boxes[places]
        stays[places[real]] = _staying(overlaps(own, own) > threshold)[real]
        left = left[count:]
    return order[stays]


def _staying(over: Tensor) -> Tensor:
    """Say which of n boxes stay, bool [..., n]; ``over`` [..., n, n]: which are too close to which.

    Each round takes what the round before says of better boxes. What is right for the first k
    boxes stays right and makes it right for the next, so when nothing changes all is as if boxes
    had been looked at one by one. Boxes that hinge on each other in long chains are rare: it
    takes a few products with a matrix instead of n steps.
    """
    better = over.triu(1).mT.float()  # row i: the better boxes that box i is too close to
    stays = torch.ones(over.shape[:-1], dtype=torch.bool, device=over.device)
    while True:
        after = (better @ stays[..., None].float())[..., 0] == 0
        if torch.equal(after, stays):
            return stays
        stays = after
