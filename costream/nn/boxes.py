"""Boxes as corners x1, y1, x2, y2, in pixels; x to the right, y down."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

_LARGEST_GROWTH = math.log(1000 / 16)


def areas(boxes: Tensor) -> Tensor:
    """Return the areas [...] of boxes [..., 4], 0 for inverted ones."""
    x1, y1, x2, y2 = boxes.unbind(-1)
    return (x2 - x1).clamp_(min=0) * (y2 - y1).clamp_(min=0)


def pairwise_iou(boxes: Tensor, others: Tensor) -> Tensor:
    """Return intersection over union [..., n, m] of boxes [..., n, 4] and [..., m, 4].

    It is 0 where both are empty.
    """
    x1, y1, x2, y2 = (side[..., None] for side in boxes.unbind(-1))
    left, top, right, bottom = (side[..., None, :] for side in others.unbind(-1))
    shared = torch.minimum(x2, right).sub_(torch.maximum(x1, left)).clamp_(min=0)
    shared *= torch.minimum(y2, bottom).sub_(torch.maximum(y1, top)).clamp_(min=0)
    union = areas(boxes)[..., None] + areas(others)[..., None, :] - shared
    return torch.where(shared > 0, shared / union, 0.0)


def clip_boxes(boxes: Tensor, height: float, width: float) -> Tensor:
    """Return boxes [..., 4] clipped to the edges of an image."""
    limits = boxes.new_tensor([width, height, width, height])
    return torch.minimum(boxes.clamp(min=0), limits)


def corners_of(boxes: Tensor, height: float, width: float) -> Tensor:
    """Return boxes [..., 4] in pixels from centre x, y, width and height as parts of an image."""
    centre, half = boxes[..., :2], boxes[..., 2:] / 2
    sides = boxes.new_tensor([width, height, width, height])
    return torch.cat([centre - half, centre + half], -1) * sides


def apply_deltas(boxes: Tensor, deltas: Tensor, weights: Sequence[float]) -> Tensor:
    """Return boxes [n, 4] moved by deltas [n, k, 4], as [n, k, 4].

    Deltas are shifts of the centre relative to width and height, and logarithms of the growth of
    width and height, each multiplied by a weight (Girshick et al., "Rich feature hierarchies",
    2014); the logarithms are capped at ln(1000 / 16).
    """
    sides = boxes[:, None, 2:] - boxes[:, None, :2]
    centres = boxes[:, None, :2] + 0.5 * sides
    deltas = deltas / deltas.new_tensor(weights)
    centres = centres + deltas[..., :2] * sides
    half = 0.5 * sides * deltas[..., 2:].clamp(max=_LARGEST_GROWTH).exp()
    return torch.cat([centres - half, centres + half], -1)


def box_deltas(boxes: Tensor, targets: Tensor, weights: Sequence[float]) -> Tensor:
    """Return the deltas [n, 4] by which ``apply_deltas`` moves boxes [n, 4] to targets."""
    sides, target_sides = (b[:, 2:] - b[:, :2] for b in (boxes, targets))
    centres, target_centres = (b[:, :2] + b[:, 2:] for b in (boxes, targets))
    shifts = 0.5 * (target_centres - centres) / sides
    return torch.cat([shifts, (target_sides / sides).log()], 1) * boxes.new_tensor(weights)
