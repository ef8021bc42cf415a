"""Losses of a detector computed per batch, so that no step waits for the device.

The losses of ``costream.training.objects.losses``, with as many boxes in every image, of which some
are not there. Ren et al., "Faster R-CNN" (NeurIPS 2015).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from costream.models.eventful.box_heads import BINS, WEIGHTS, levels
from costream.models.eventful.proposals import pyramid_anchors
from costream.models.eventful.vitdet import ViTDet
from costream.nn.boxes import apply_deltas, box_deltas, clip_boxes, pairwise_iou
from costream.training.objects.losses import UNSURE

_ANCHORS, _SAMPLES = 128, 36  # sampled in an image: anchors, and boxes for the head
_SHARES = (0.5, 1 / 3)  # largest shares of positive ones
_ROUNDS = 8  # of non-maximum suppression; longer chains are rare
_SUPPRESSED = 0.7  # overlap of proposals
_SAMPLED = 6  # samples of a bin along an axis, at most


def batch_losses(
    network: ViTDet, tokens: Tensor, size: tuple[int, int], truth: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the losses of proposals and of the head for encoded tokens [B, h, w, D].

    ``size``: height and width in pixels. ``truth`` [B, m, 4] and ``labels`` int64 [B, m]: what is
    in UNSURE boxes counts neither as an object nor as nothing, other negative ones are not there.
    """
    maps = network.pyramid(tokens)
    predicted = network.proposal_generator.predict(maps)
    anchors = pyramid_anchors(maps, network.strides, network.anchor)
    logits, deltas = (torch.cat(parts, 1) for parts in zip(*predicted, strict=True))
    proposing = _proposal_loss(logits, deltas, torch.cat(anchors), truth, labels)
    with torch.no_grad():
        boxes, real = proposals_of(network, predicted, anchors, size)
        boxes, real = torch.cat([boxes, truth], 1), torch.cat([real, labels >= 0], 1)
        matched, something, nothing = _match(boxes, truth, labels, 0.5, 0.5, 0.5)
        chosen, positive, used = _draw(something & real, nothing & real, _SAMPLES, _SHARES[1])
        boxes = boxes.take_along_dim(chosen[..., None], 1)
        matched = matched.take_along_dim(chosen, 1)
        goals = truth.take_along_dim(matched[..., None], 1)
        kinds = labels.take_along_dim(matched, 1)
        kinds = torch.where(positive, kinds, network.classes)
    head, predictor = network.roi_heads.stages()[0]
    features = pool_batch(maps, network.strides, boxes)
    said, moves = predictor(head(features.flatten(0, 1)))
    kinds, positive, used = kinds.flatten(), positive.flatten().float(), used.flatten().float()
    total = used.sum().clamp(min=1)
    telling = (F.cross_entropy(said, kinds, reduction="none") * used).sum() / total
    own = kinds.clamp(max=network.classes - 1)[:, None, None]
    goal = _deltas(boxes.flatten(0, 1), goals.flatten(0, 1), WEIGHTS[0])
    error = (moves.take_along_dim(own, 1)[:, 0] - goal).abs().sum(1)
    return proposing, telling + (error * positive).sum() / total


def proposals_of(
    network: ViTDet,
    predicted: Sequence[tuple[Tensor, Tensor]],
    anchors: Sequence[Tensor],
    size: tuple[int, int],
) -> tuple[Tensor, Tensor]:
    """Return the proposals [B, n, 4], and which of them are real, bool [B, n]."""
    generator = network.proposal_generator
    found, scores = [], []
    for (logits, deltas), own in zip(predicted, anchors, strict=True):
        best, places = logits.topk(min(generator.candidates, logits.shape[1]), dim=1)
        moves = deltas.take_along_dim(places[..., None], 1)
        moved = apply_deltas(own[places].flatten(0, 1), moves.view(-1, 1, 4), (1.0,) * 4)
        boxes = clip_boxes(moved.view(moves.shape), *size)
        real = ((boxes[..., 2:] - boxes[..., :2]) > 0).all(2)
        over = (pairwise_iou(boxes, boxes) > _SUPPRESSED) & real[:, None] & real[..., None]
        better, stays = over.triu(1).mT.float(), torch.ones_like(best)
        for _ in range(_ROUNDS):
            stays = ((better @ stays[..., None])[..., 0] == 0).float()
        found.append(boxes)
        scores.append(best.masked_fill(~real | (stays == 0), -torch.inf))
    every = torch.cat(scores, 1)
    kept, places = every.topk(min(generator.keep, every.shape[1]), dim=1)
    return torch.cat(found, 1).take_along_dim(places[..., None], 1), kept > -torch.inf


def _proposal_loss(
    logits: Tensor, deltas: Tensor, anchors: Tensor, truth: Tensor, labels: Tensor
) -> Tensor:
    """Return the mean loss of the proposals: see ``proposal_loss`` of the package."""
    every = anchors.expand(len(truth), -1, -1)
    matched, something, nothing = _match(every, truth, labels, 0.7, 0.3, 0.3, best=True)
    chosen, positive, used = _draw(something, nothing, _ANCHORS, _SHARES[0])
    said = logits.take_along_dim(chosen, 1)
    moves = deltas.take_along_dim(chosen[..., None], 1)
    matched = matched.take_along_dim(chosen, 1)
    goals = truth.take_along_dim(matched[..., None], 1)
    each = F.binary_cross_entropy_with_logits(said, positive.float(), reduction="none")
    error = (moves - _deltas(anchors[chosen], goals, (1.0,) * 4)).abs().sum(2)
    total = (each * used).sum(1) + (error * positive).sum(1)
    return (total / used.sum(1).clamp(min=1)).mean()


def _match(
    boxes: Tensor,
    truth: Tensor,
    labels: Tensor,
    positive: float,
    negative: float,
    unsure: float,
    best: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the true box of each of the boxes [B, n, 4], and which are something and nothing.

    See ``match`` and ``ignore`` of the package; ``unsure``: the overlap from which on a box may
    hold an object.
    """
    shared = pairwise_iou(boxes, truth)
    objects = shared * (labels >= 0)[:, None]
    most, matched = objects.max(2)
    something, nothing = most >= positive, most < negative
    nothing &= (shared * (labels == UNSURE)[:, None]).amax(2) < unsure
    if best:
        top = objects.amax(1, keepdim=True)
        is_best = (objects == top) & (top > 0)
        any_best = is_best.any(2)
        matched = torch.where(any_best, is_best.to(torch.uint8).argmax(2), matched)
        something, nothing = something | any_best, nothing & ~any_best
    return matched, something, nothing


def _draw(
    something: Tensor, nothing: Tensor, count: int, share: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``count`` places of each row drawn at random, [B, count], and what they are.

    At most ``share`` of them is something, the rest is nothing. The others: which are something,
    and which are used, since there may be too few.
    """
    chance = torch.rand(something.shape, device=something.device)
    most = round(count * share)
    first = (chance + something.float() * 2).topk(most, 1).indices
    is_something = something.take_along_dim(first, 1)
    rest = (chance + nothing.float() * 2).topk(min(count, nothing.shape[1]), 1).indices
    wanted = count - is_something.sum(1, keepdim=True)
    is_nothing = nothing.take_along_dim(rest, 1)
    is_nothing &= torch.arange(rest.shape[1], device=rest.device) < wanted
    positive = torch.cat([is_something, torch.zeros_like(is_nothing)], 1)
    used = torch.cat([is_something, is_nothing], 1)
    return torch.cat([first, rest], 1), positive, used


def _deltas(boxes: Tensor, goals: Tensor, weights: Sequence[float]) -> Tensor:
    """Return the deltas [..., 4] that move boxes to goals; finite for empty ones."""
    sides = [
        torch.cat([x[:, :2], torch.maximum(x[:, 2:], x[:, :2] + 0.1)], 1)
        for x in (boxes.reshape(-1, 4), goals.reshape(-1, 4))
    ]
    return box_deltas(sides[0], sides[1], weights).view(boxes.shape)


def pool_batch(maps: Sequence[Tensor], strides: Sequence[int], boxes: Tensor) -> Tensor:
    """Return the features [B, n, C, 7, 7] of boxes [B, n, 4]: see ``pool`` of the package.

    As products of a map with the weights of its rows and its columns in the bins of a box.
    """
    level = levels(boxes)
    out = boxes.new_zeros(())
    for number, (x, stride) in enumerate(zip(maps[:4], strides[:4], strict=True)):
        corners = boxes / stride - 0.5
        down = _weights(corners[..., 1], corners[..., 3], x.shape[2])
        across = _weights(corners[..., 0], corners[..., 2], x.shape[3])
        down = down * (level == number)[..., None, None]
        bands = torch.einsum("bnih,bchw->bnciw", down, x)
        out = out + torch.einsum("bnciw,bnjw->bncij", bands, across)
    return out


def _weights(low: Tensor, high: Tensor, size: int) -> Tensor:
    """Return the weights [B, n, BINS, size] of the places of a map in bins from low to high."""
    length = (high - low) / BINS
    counts = length.ceil().clamp(1, _SAMPLED)[..., None, None]
    samples = torch.arange(_SAMPLED, device=low.device)
    number = torch.arange(BINS, device=low.device)
    at = number[:, None] + (samples + 0.5) / counts
    at = low[..., None, None] + at * length[..., None, None]
    real = (samples < counts) & (at >= -1) & (at <= size)
    places = torch.arange(size, device=low.device)
    hat = (1 - (at.clamp(0, size - 1)[..., None] - places).abs()).clamp(min=0)
    weights: Tensor = (hat * (real / counts)[..., None]).sum(-2)
    return weights
