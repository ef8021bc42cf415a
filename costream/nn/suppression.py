"""Non-maximum suppression: of overlapping boxes only the one with the best score is retained."""

from __future__ import annotations

import sys

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from costream.nn import fast
from costream.nn.boxes import areas, pairwise_iou

PAIRS_AT_ONCE = 1 << 19  # of boxes at once, to stay in the cache


def suppress(boxes: Tensor, scores: Tensor, groups: Tensor, threshold: float) -> Tensor:
    """Return the indices, int64 [k], of the retained boxes, best score first.

    A box is suppressed when a retained box of its group with a better score overlaps it by more
    than ``threshold``, as intersection over union. Of equal scores the first is better.

    ``boxes`` [n, 4], ``scores`` [n], ``groups`` [n]: classes or levels.
    """
    order = scores.argsort(descending=True, stable=True)
    boxes = boxes[order]
    if fast.runs_chains(boxes) and not groups.is_floating_point() and _is_loaded():
        return order[_decided(boxes, groups[order], threshold)]
    _, number, counts = torch.unique(groups[order], return_inverse=True, return_counts=True)
    members = torch.split(number.argsort(stable=True), counts.tolist())
    left = sorted(members, key=len, reverse=True)
    stays = torch.zeros(len(boxes), dtype=torch.bool, device=boxes.device)
    while left:  # groups of about the same size at once
        count = max(1, PAIRS_AT_ONCE // len(left[0]) ** 2)
        # Padding comes last in a group and so suppresses nothing.
        places = pad_sequence(left[:count], batch_first=True, padding_value=-1)
        real, own = places >= 0, boxes[places]
        stays[places[real]] = _staying(pairwise_iou(own, own) > threshold)[real]
        left = left[count:]
    return order[stays]


def _is_loaded() -> bool:
    return hasattr(sys.modules.get("costream.nn.suppression_kernels"), "decide")


def _decided(boxes: Tensor, groups: Tensor, threshold: float) -> Tensor:
    """Return which boxes, the best first, stay, bool [n], by the compiled loop."""
    from costream.nn import suppression_kernels

    stays = torch.empty(len(boxes), dtype=torch.bool)
    arrays = (x.contiguous().numpy() for x in (boxes, areas(boxes), groups.long()))
    suppression_kernels.decide(*arrays, threshold, stays.numpy())
    return stays


def _staying(over: Tensor) -> Tensor:
    """Return which of n boxes stay, bool [..., n]; ``over`` [..., n, n]: pairs too close.

    Each round uses the decisions of the previous round on better boxes. Once the first k boxes are
    right they stay right and make the next one right, so when nothing changes the result is that
    of deciding box by box. Long chains of boxes that depend on each other are rare: it takes a few
    matrix products instead of n steps.
    """
    better = over.triu(1).mT.float()  # row i: the better boxes that overlap box i too much
    stays = torch.ones(over.shape[:-1], dtype=torch.bool, device=over.device)
    while True:
        after = (better @ stays[..., None].float())[..., 0] == 0
        if torch.equal(after, stays):
            return stays
        stays = after
