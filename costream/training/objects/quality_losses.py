"""Losses of NanoDet-Plus, and which places learn which object.

Scores learn the overlap with the object (quality focal loss), and distances to its sides are
distributions (distribution focal loss): Li et al., "Generalized focal loss" (NeurIPS 2020).
Places are assigned by the current predictions, as in NanoDet-Plus (RangiLyu, 2021) and Ge et al.,
"YOLOX" (2021). There is no auxiliary head: a trained network predicts well enough for that.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from costream.models.objects.nanodet import BINS, boxes_at, places
from costream.nn.boxes import areas, pairwise_iou

_BOX_COST = 3.0  # weight of the overlap in the cost of a place
_CANDIDATES = 13  # places whose overlaps, added up, are the number of places of an object
_BOX_WEIGHT, _BINS_WEIGHT = 2.0, 0.25  # of the losses
_FARTHEST = BINS - 1.1  # strides to a side, at most
_TINY = 1e-7


def quality_loss(
    rows: Tensor, size: tuple[int, int], truth: Sequence[Tensor], labels: Sequence[Tensor]
) -> Tensor:
    """Return the loss for logits and bins [B, P, K + 32] of a NanoDet.

    ``size``: height and width of the images in pixels. ``truth`` [m, 4] and ``labels`` int64 [m] of
    each image.
    """
    classes = rows.shape[2] - 4 * BINS
    logits, every = rows[..., :classes], torch.arange(rows.shape[1], device=rows.device)
    targets = torch.zeros_like(logits)
    box_losses, weights = [], []
    for image, (row, true, numbers) in enumerate(zip(rows, truth, labels, strict=True)):
        bins, scores = row[:, classes:], row[:, :classes].detach()
        found = boxes_at(bins, every, size)
        at, matched = assign(found.detach(), scores, size, true, numbers)
        overlap, generalised = _overlaps(found[at], true[matched])
        targets[image, at, numbers[matched]] = overlap.detach()
        distribution = _distribution_loss(bins[at], _distances(at, true[matched], size))
        box_losses.append(_BOX_WEIGHT * (1 - generalised) + _BINS_WEIGHT * distribution)
        weights.append(scores[at].sigmoid().amax(1))
    focus = (targets - logits.detach().sigmoid()).square()
    crossed = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
    losses, weight = torch.cat(box_losses), torch.cat(weights)
    loss = (crossed * focus).sum() / max(1, len(losses))
    return loss + (losses * weight).sum() / weight.sum().clamp(min=_TINY)


def assign(
    boxes: Tensor, logits: Tensor, size: tuple[int, int], truth: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the places that learn an object, int64 [n], and the number of its object, int64 [n].

    An object gets as many places inside it as the best overlaps add up to, and those of least cost:
    that of its class, and of the overlap of the box. ``boxes`` [P, 4] and ``logits`` [P, K] are
    predictions.
    """
    if not len(truth):
        nothing = labels.new_zeros(0)
        return nothing, nothing
    shared = pairwise_iou(boxes, truth)
    centres, _ = places(size, boxes.device)
    sides = torch.cat([centres[:, None] - truth[:, :2], truth[:, 2:] - centres[:, None]], 2)
    inside = sides.amin(2) > 0
    scores = logits[:, labels]
    focus = (shared - scores.sigmoid()).square()
    cost = F.binary_cross_entropy_with_logits(scores, shared, reduction="none") * focus
    cost = (cost - _BOX_COST * (shared + _TINY).log()).masked_fill(~inside, torch.inf)
    counts = shared.topk(min(_CANDIDATES, len(boxes)), 0).values.sum(0).int().clamp(min=1)
    taken = torch.zeros_like(shared, dtype=torch.bool)
    for number, count in enumerate(counts.tolist()):
        best = cost[:, number].topk(count, largest=False).indices
        taken[best, number] = inside[best, number]
    at = taken.any(1).nonzero().flatten()
    matched = torch.where(taken[at], cost[at], torch.inf).argmin(1)
    return at, matched


def _distances(at: Tensor, boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """Return the distances [n, 4] of places to the sides of boxes, in strides."""
    centres, strides = (x[at] for x in places(size, boxes.device))
    reach = torch.cat([centres - boxes[:, :2], boxes[:, 2:] - centres], 1)
    return (reach / strides).clamp(0, _FARTHEST)


def _distribution_loss(bins: Tensor, distances: Tensor) -> Tensor:
    """Return the mean loss [n] over the sides for bins [n, 32] and distances [n, 4]."""
    logs = torch.unflatten(bins, 1, (4, BINS)).log_softmax(-1)
    lower = distances.long()
    share = distances - lower
    pairs = torch.stack([lower, lower + 1], 2)
    near, far = logs.gather(2, pairs).unbind(2)
    return -((1 - share) * near + share * far).mean(1)


def _overlaps(boxes: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    """Return intersection over union [n] of pairs of boxes, and the generalised one.

    Rezatofighi et al., "Generalized intersection over union" (CVPR 2019).
    """
    lower, upper = torch.minimum(boxes, others), torch.maximum(boxes, others)
    shared = areas(torch.cat([upper[:, :2], lower[:, 2:]], 1))
    hull = areas(torch.cat([lower[:, :2], upper[:, 2:]], 1)) + _TINY
    union = areas(boxes) + areas(others) - shared
    overlap = shared / (union + _TINY)
    return overlap, overlap - (hull - union) / hull
