"""Training targets of anchors and boxes: matching and sampling of Faster R-CNN.

Ren et al., "Faster R-CNN" (NeurIPS 2015), with the parameters of detectron2.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from costream.nn.boxes import pairwise_iou

NOTHING, IGNORED = -1, -2


class BoxSample(NamedTuple):
    """Boxes of an image for training, with their targets."""

    boxes: Tensor  # [n, 4], pixels
    labels: Tensor  # int64 [n]; the number of classes for nothing
    targets: Tensor  # [p, 4], the true boxes of the positive ones


def match(shared: Tensor, positive: float, negative: float, best: bool = False) -> Tensor:
    """Return the true box that each box is matched with, int64 [n], or NOTHING or IGNORED.

    ``shared`` [n, m]: intersection over union of boxes and true boxes. A box is matched with the
    true box it overlaps most, from ``positive`` on; below ``negative`` it is NOTHING. ``best``:
    the boxes that overlap most with a true box are matched with it, however little that is.
    """
    if not shared.shape[1]:
        return torch.full((len(shared),), NOTHING)
    most, matched = shared.max(1)
    matched[most < positive] = IGNORED
    matched[most < negative] = NOTHING
    if best:
        top = shared.amax(0)
        boxes, truths = ((shared == top) & (top > 0)).nonzero().unbind(1)
        matched[boxes] = truths
    return matched


def draw(matched: Tensor, count: int, share: float) -> tuple[Tensor, Tensor]:
    """Return the indices of matched boxes and of NOTHING, ``count`` at most, drawn at random.

    ``share``: maximum share of matched ones. Uses torch's random numbers.
    """
    something = (matched >= 0).nonzero().flatten()
    nothing = (matched == NOTHING).nonzero().flatten()
    something = something[torch.randperm(len(something))[: int(count * share)]]
    nothing = nothing[torch.randperm(len(nothing))[: count - len(something)]]
    return something, nothing


def sample_boxes(
    proposals: Tensor, truth: Tensor, labels: Tensor, classes: int, count: int
) -> BoxSample:
    """Return the proposals [n, 4] and true boxes of an image that train the head.

    At most a third is positive: overlaps a true box by at least a half.
    """
    boxes = torch.cat([proposals, truth])
    matched = match(pairwise_iou(boxes, truth), 0.5, 0.5)
    something, nothing = draw(matched, count, 1 / 3)
    return _sample(boxes, truth, labels, classes, matched, something, nothing)


def assign(boxes: Tensor, truth: Tensor, labels: Tensor, classes: int, overlap: float) -> BoxSample:
    """Return boxes [n, 4] that an earlier stage has moved, with their targets.

    Positive are those that overlap a true box by ``overlap``. Those without area are left out.
    """
    boxes = boxes[((boxes[:, 2:] - boxes[:, :2]) > 0).all(1)]
    matched = match(pairwise_iou(boxes, truth), overlap, overlap)
    something, nothing = ((matched >= 0) == said for said in (True, False))
    return _sample(
        boxes, truth, labels, classes, matched, *(x.nonzero()[:, 0] for x in (something, nothing))
    )


def _sample(
    boxes: Tensor,
    truth: Tensor,
    labels: Tensor,
    classes: int,
    matched: Tensor,
    something: Tensor,
    nothing: Tensor,
) -> BoxSample:
    """Return the boxes at these indices, the positive ones first."""
    said = torch.full((len(something) + len(nothing),), classes)
    said[: len(something)] = labels[matched[something]]
    chosen = torch.cat([something, nothing])
    return BoxSample(boxes[chosen], said, truth[matched[something]])
