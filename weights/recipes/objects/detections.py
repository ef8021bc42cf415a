"""Detections of a network in images, as scores take them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from costream.core.records import PixelSize
from costream.evaluation.metrics.detection import DetectedBoxes
from costream.models.eventful.box_heads import Detections
from costream.models.eventful.vitdet import ViTDet
from costream.models.images import Pixels
from costream.nn.boxes import clip_boxes


@torch.no_grad()
def detect_images(
    network: ViTDet, pictures: Sequence[Tensor], box: PixelSize
) -> list[DetectedBoxes]:
    """Return the detections of a network in each image, independently."""
    pixels, device = Pixels(box, network.patch), next(network.parameters()).device
    return [boxes_in(network(pixels(p[None]).to(device))[0], p) for p in pictures]


def boxes_in(detections: Detections, picture: Tensor) -> DetectedBoxes:
    """Return detections in an image [3, H, W], clipped to it."""
    boxes = clip_boxes(detections.boxes.cpu(), picture.shape[1], picture.shape[2])
    return DetectedBoxes(
        boxes.numpy(), detections.scores.cpu().numpy(), detections.labels.cpu().numpy()
    )
