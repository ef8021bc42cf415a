"""Detections by the class means of boxes: a baseline."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from costream.evaluation.metrics.detection import DetectedBoxes
from costream.models.eventful.box_heads import Detections, pool
from costream.models.eventful.proposals import Proposals
from costream.models.eventful.vitdet import ViTDet
from costream.nn.boxes import pairwise_iou
from costream.nn.suppression import suppress
from costream.training.baselines import nearest_centroid
from costream.training.objects.detector_training import to_found
from costream.training.objects.image_views import Encoded
from costream.training.optim import device_of

_BACKGROUND_BOXES = 8  # proposals per image
_MAX_OVERLAP = 0.3  # of such a proposal with true boxes


@torch.no_grad()
def prototypes(
    network: ViTDet,
    trained: Sequence[Encoded],
    checked: Sequence[Encoded],
    classes: int,
) -> list[DetectedBoxes]:
    """Return detections in images by the class means of the boxes in training images.

    Proposals come from the network, box features from its first box head.
    """
    rows, targets, device = [], [], device_of(network)
    for picture in (encoded.to(device) for encoded in trained):
        maps, proposed = _propose(network, picture)
        shared = pairwise_iou(proposed.boxes, picture.boxes).sum(1)
        nothing = proposed.boxes[shared < _MAX_OVERLAP][:_BACKGROUND_BOXES]
        rows.append(_features(network, maps, torch.cat([picture.boxes, nothing])))
        targets += [*picture.labels.tolist(), *[classes] * len(nothing)]
    features = torch.cat(rows).cpu().numpy()
    found = []
    for picture in (encoded.to(device) for encoded in checked):
        maps, proposed = _propose(network, picture)
        proposal_features = _features(network, maps, proposed.boxes).cpu().numpy()
        probabilities = nearest_centroid(features, targets, proposal_features, classes + 1)
        shares = torch.from_numpy(np.concatenate(probabilities))[:, :classes].to(device)
        scores, labels = (shares * proposed.objectness.sigmoid()[:, None]).max(1)
        best = suppress(proposed.boxes, scores, labels, network.roi_heads.overlap)
        kept = Detections(proposed.boxes[best], scores[best], labels[best])
        found.append(to_found(kept, picture.size))
    return found


def _propose(network: ViTDet, picture: Encoded) -> tuple[Sequence[Tensor], Proposals]:
    view = network.view(picture.tokens[None])
    height, width = (side * network.patch for side in picture.tokens.shape[:2])
    (proposed,) = network.propose(view, (height, width))
    return view.maps, proposed


def _features(network: ViTDet, maps: Sequence[Tensor], boxes: Tensor) -> Tensor:
    head, _ = network.roi_heads.stages()[0]
    vectors: Tensor = head(pool(maps, network.strides, [boxes]))
    return vectors
