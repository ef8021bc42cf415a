"""Nearest-class-mean baseline for custom objects, on box features."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from costream.evaluation.metrics.detection import DetectedBoxes
from costream.models.eventful.rcnn import Proposals
from costream.models.eventful.vitdet import ViTDet
from costream.models.vitdet_heads import Detections, pool
from costream.nn.boxes import pairwise_iou
from costream.nn.suppression import suppress
from costream.training.baselines import nearest_centroid
from costream.training.objects.detector import to_found
from costream.training.own_encoded import Encoded

PROTOTYPES = "nearest centroid of boxes"
_NOTHING, _APART = 8, 0.3  # background proposals per image; maximum overlap with boxes


@torch.no_grad()
def prototypes(
    network: ViTDet,
    trained: Sequence[Encoded],
    checked: Sequence[Encoded],
    classes: int,
) -> list[DetectedBoxes]:
    """Return detections in images by the class means of the boxes in training images.

    Proposals are those of the network; box features are those of its first box head.
    """
    rows, said = [], []
    for picture in trained:
        maps, proposed = _propose(network, picture)
        shared = pairwise_iou(proposed.boxes, picture.boxes).sum(1)
        nothing = proposed.boxes[shared < _APART][:_NOTHING]
        rows.append(_features(network, maps, torch.cat([picture.boxes, nothing])))
        said += [*picture.labels.tolist(), *[classes] * len(nothing)]
    known = torch.cat(rows).numpy()
    found = []
    for picture in checked:
        maps, proposed = _propose(network, picture)
        asked = _features(network, maps, proposed.boxes).numpy()
        told = nearest_centroid(known, said, asked, classes + 1)
        shares = torch.from_numpy(np.concatenate(told))[:, :classes]
        scores, labels = (shares * proposed.objectness.sigmoid()[:, None]).max(1)
        best = suppress(proposed.boxes, scores, labels, network.roi_heads.overlap)
        said_of = Detections(proposed.boxes[best], scores[best], labels[best])
        found.append(to_found(said_of, picture.size))
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
