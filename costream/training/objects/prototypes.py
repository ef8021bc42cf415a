"""Detections by the class means of boxes: a baseline."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from costream.evaluation.metrics.detection import DetectedBoxes
from costream.models.eventful.box_heads import Detections, pool
from costream.models.eventful.vitdet import ViTDet
from costream.nn.boxes import pairwise_iou
from costream.nn.suppression import suppress
from costream.training.baselines import nearest_centroid
from costream.training.objects.detector_training import to_found
from costream.training.objects.image_views import Encoded
from costream.training.optim import device_of

_BACKGROUND_BOXES = 8  # proposals per image
_MAX_OVERLAP = 0.3  # of such a proposal with true boxes


class Proposed(NamedTuple):
    """The boxes that a network proposes in an image, and the ground truth."""

    boxes: Tensor  # [n, 4], pixels
    objectness: Tensor  # [n], 0 to 1
    features: Callable[[Tensor], Tensor]  # of boxes [n, 4]: [n, D]
    truth: Tensor  # [m, 4]
    labels: Tensor  # int64 [m]
    size: Tensor  # int64 [2], height and width of the image in pixels


def prototypes(
    trained: Iterable[Proposed], checked: Iterable[Proposed], classes: int, overlap: float
) -> list[DetectedBoxes]:
    """Return detections in images by the class means of the boxes in training images.

    ``overlap``: of non-maximum suppression within a class.
    """
    rows, targets = [], []
    for image in trained:
        shared = pairwise_iou(image.boxes, image.truth).sum(1)
        nothing = image.boxes[shared < _MAX_OVERLAP][:_BACKGROUND_BOXES]
        rows.append(image.features(torch.cat([image.truth, nothing])))
        targets += [*image.labels.tolist(), *[classes] * len(nothing)]
    features = torch.cat(rows).cpu().numpy()
    found = []
    for image in checked:
        checks = image.features(image.boxes).cpu().numpy()
        probabilities = nearest_centroid(features, targets, checks, classes + 1)
        shares = torch.from_numpy(np.concatenate(probabilities))[:, :classes]
        scores, labels = (shares.to(image.boxes.device) * image.objectness[:, None]).max(1)
        best = suppress(image.boxes, scores, labels, overlap)
        kept = Detections(image.boxes[best], scores[best], labels[best])
        found.append(to_found(kept, image.size))
    return found


@torch.no_grad()
def proposed(network: ViTDet, picture: Encoded) -> Proposed:
    """Return the proposals of a network; features are those of its first box head."""
    picture = picture.to(device_of(network))
    view = network.view(picture.tokens[None])
    height, width = (side * network.patch for side in picture.tokens.shape[:2])
    (found,) = network.propose(view, (height, width))
    head, _ = network.roi_heads.stages()[0]

    @torch.no_grad()
    def features(boxes: Tensor) -> Tensor:
        vectors: Tensor = head(pool(view.maps, network.strides, [boxes]))
        return vectors

    truth = picture.boxes, picture.labels, picture.size
    return Proposed(found.boxes, found.objectness.sigmoid(), features, *truth)
