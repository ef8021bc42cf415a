"""Losses of a detector, and their targets: matched and sampled boxes.

Ren et al., "Faster R-CNN" (NeurIPS 2015), with the parameters of detectron2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from costream.models.eventful.box_heads import WEIGHTS, pool
from costream.models.eventful.proposals import pyramid_anchors
from costream.models.eventful.vitdet import ViTDet
from costream.nn.boxes import apply_deltas, box_deltas, clip_boxes, pairwise_iou

_ANCHORS = 128  # sampled per image
_SAMPLES = 24  # boxes sampled per image for the heads
_STAGES = (0.5, 0.6, 0.7)  # least overlap of positive boxes in each stage of a cascade
NOTHING = -1  # match of a box without an object
IGNORED = -2  # match of a box that is not trained on
UNSURE = -1  # label of boxes that may hold an object


def detector_losses(
    network: ViTDet,
    tokens: Tensor,
    size: tuple[int, int],
    truth: Sequence[Tensor],
    labels: Sequence[Tensor],
) -> tuple[Tensor, Tensor]:
    """Return the losses of proposals and of the heads for encoded tokens [B, h, w, D].

    ``size``: height and width of the images in pixels. ``truth`` [m, 4] and ``labels`` int64 [m]
    of each image; boxes labelled UNSURE count neither as objects nor as background. In
    a cascade each stage learns from the boxes of the one before, and the feature
    maps from the mean of the stages (Cai, Vasconcelos, "Cascade R-CNN", CVPR 2018).
    """
    maps = network.pyramid(tokens)
    predicted = network.proposal_generator.predict(maps)
    anchors = pyramid_anchors(maps, network.strides, network.anchor)
    unsure = [boxes[classes == UNSURE] for boxes, classes in zip(truth, labels, strict=True)]
    truth = [boxes[classes != UNSURE] for boxes, classes in zip(truth, labels, strict=True)]
    labels = [classes[classes != UNSURE] for classes in labels]
    proposing = proposal_loss(predicted, anchors, truth, unsure)
    heads = network.roi_heads
    with torch.no_grad():
        detached = [(a.detach(), b.detach()) for a, b in predicted]
        proposals = network.proposal_generator.choose(detached, anchors, size)
        samples = [
            sample_boxes(p.boxes, boxes, classes, heads.classes, _SAMPLES, other)
            for p, boxes, classes, other in zip(proposals, truth, labels, unsure, strict=True)
        ]
    telling, stages = tokens.new_zeros(()), heads.stages()
    for stage, (head, predictor) in enumerate(stages):
        features = pool(maps, network.strides, [s.boxes for s in samples])
        if len(stages) > 1:  # the maps get the mean gradient of the stages
            features = features.detach() + (features - features.detach()) / len(stages)
        logits, deltas = predictor(head(features))
        telling = telling + head_loss(logits, deltas, samples, stage)
        if stage + 1 < len(stages):
            with torch.no_grad():
                boxes = torch.cat([s.boxes for s in samples])
                moved = clip_boxes(apply_deltas(boxes, deltas, WEIGHTS[stage])[:, 0], *size)
                parts = torch.split(moved, [len(s.boxes) for s in samples])
                samples = [
                    assign(*row, heads.classes, _STAGES[stage + 1])
                    for row in zip(parts, truth, labels, strict=True)
                ]
    return proposing, telling


def proposal_loss(
    predicted: Sequence[tuple[Tensor, Tensor]],
    anchors: Sequence[Tensor],
    truth: Sequence[Tensor],
    unsure: Sequence[Tensor],
) -> Tensor:
    """Return the mean loss of the proposal network over a batch.

    Binary cross entropy of sampled anchors, and the absolute error of the deltas of matched
    ones; both divided by the number of sampled anchors. ``predicted``: logits [B, n] and deltas
    [B, n, 4] of each map; ``anchors`` [n, 4] of each map; ``truth`` [m, 4] of each image and
    ``unsure`` [u, 4], boxes in which nothing is negative.
    """
    logits, deltas = (torch.cat(parts, 1) for parts in zip(*predicted, strict=True))
    every = torch.cat(list(anchors))
    losses = []
    for own_logits, own_deltas, boxes, other in zip(logits, deltas, truth, unsure, strict=True):
        matched = match(pairwise_iou(every, boxes), 0.7, 0.3, best=True)
        ignore(matched, every, other, 0.3)
        something, nothing = draw(matched, _ANCHORS, 0.5)
        chosen = torch.cat([something, nothing])
        targets = own_logits.new_zeros(len(chosen))
        targets[: len(something)] = 1
        loss = F.binary_cross_entropy_with_logits(own_logits[chosen], targets, reduction="sum")
        goal = box_deltas(every[something], boxes[matched[something]], (1.0, 1.0, 1.0, 1.0))
        loss = loss + F.l1_loss(own_deltas[something], goal, reduction="sum")
        losses.append(loss / max(1, len(chosen)))
    return torch.stack(losses).mean()


def head_loss(
    logits: Tensor, deltas: Tensor, samples: Sequence[BoxSample], stage: int = 0
) -> Tensor:
    """Return the loss of the head for the sampled boxes of a batch, one image after another.

    Cross entropy, and the absolute error of the deltas (of the true class, if deltas are per
    class); both divided by the number of boxes. ``logits`` [n, K + 1], ``deltas`` [n, K or 1, 4];
    ``stage``: of a cascade; each has different delta weights.
    """
    labels = torch.cat([s.labels for s in samples])
    something = (labels < logits.shape[1] - 1).nonzero().flatten()
    boxes = torch.cat([s.boxes for s in samples])[something]
    goal = box_deltas(boxes, torch.cat([s.targets for s in samples]), WEIGHTS[stage])
    columns = labels[something] if deltas.shape[1] > 1 else torch.zeros_like(something)
    error = F.l1_loss(deltas[something, columns], goal, reduction="sum") / max(1, len(labels))
    return F.cross_entropy(logits, labels) + error


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
        return torch.full((len(shared),), NOTHING, device=shared.device)
    most, matched = shared.max(1)
    matched[most < positive] = IGNORED
    matched[most < negative] = NOTHING
    if best:
        top = shared.amax(0)
        boxes, truths = ((shared == top) & (top > 0)).nonzero().unbind(1)
        matched[boxes] = truths
    return matched


def ignore(matched: Tensor, boxes: Tensor, unsure: Tensor, overlap: float) -> None:
    """Set the boxes [n, 4] matched with NOTHING to IGNORED where they overlap ``unsure`` ones."""
    if len(unsure):
        is_unsure = pairwise_iou(boxes, unsure).amax(1) >= overlap
        matched[is_unsure & (matched == NOTHING)] = IGNORED


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
    proposals: Tensor,
    truth: Tensor,
    labels: Tensor,
    classes: int,
    count: int,
    unsure: Tensor,
) -> BoxSample:
    """Return the proposals [n, 4] and true boxes of an image that train the head.

    At most a third is positive: overlaps a true box by at least a half. Others that overlap an
    ``unsure`` box [u, 4] as much are left out.
    """
    boxes = torch.cat([proposals, truth])
    matched = match(pairwise_iou(boxes, truth), 0.5, 0.5)
    ignore(matched, boxes, unsure, 0.5)
    something, nothing = draw(matched, count, 1 / 3)
    return _sample(boxes, truth, labels, classes, matched, something, nothing)


def assign(boxes: Tensor, truth: Tensor, labels: Tensor, classes: int, overlap: float) -> BoxSample:
    """Return boxes [n, 4] that an earlier stage has moved, with their targets.

    Positive are those that overlap a true box by ``overlap``. Those without area are left out.
    """
    boxes = boxes[((boxes[:, 2:] - boxes[:, :2]) > 0).all(1)]
    matched = match(pairwise_iou(boxes, truth), overlap, overlap)
    something, nothing = ((matched >= 0) == is_object for is_object in (True, False))
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
    targets = labels.new_full((len(something) + len(nothing),), classes)
    targets[: len(something)] = labels[matched[something]]
    chosen = torch.cat([something, nothing])
    return BoxSample(boxes[chosen], targets, truth[matched[something]])
