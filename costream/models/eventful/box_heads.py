"""Box heads: classification and refinement of proposals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.models.eventful.proposals import Proposals
from costream.nn.boxes import apply_deltas, areas, clip_boxes
from costream.nn.eventful.counts import Operations
from costream.nn.maps import NormedConv2d, flatten_maps
from costream.nn.roi_align import roi_align
from costream.nn.suppression import suppress

BINS = 7


# of deltas, in the first stage and in the later ones of a cascade
WEIGHTS = ((10.0, 10.0, 5.0, 5.0), (20.0, 20.0, 10.0, 10.0), (30.0, 30.0, 15.0, 15.0))


_CANONICAL, _CANONICAL_LEVEL = 224.0, 2  # size of a box in pixels, its level


_LEVELS = 4


class Detections(NamedTuple):
    """Objects in an image, by descending score."""

    boxes: Tensor  # [n, 4], pixels of the input
    scores: Tensor  # [n], 0 to 1
    labels: Tensor  # int64 [n]


class BoxHead(nn.Module):
    """Convolutions over the features of a box, then a fully connected layer.

    Args:
        channels: of the feature maps. ``width``: of the output. ``convolutions``: their number.
    """

    def __init__(self, channels: int, width: int, convolutions: int = 4) -> None:
        super().__init__()
        for number in range(1, convolutions + 1):
            self.add_module(f"conv{number}", NormedConv2d(channels, channels))
        self.fc1 = nn.Linear(channels * BINS**2, width)

    def forward(self, x: Tensor, operations: Operations | None = None) -> Tensor:
        """Return vectors [n, width] for features [n, C, 7, 7]."""
        for layer in self.children():
            x = F.relu(self.fc1(x.flatten(1))) if layer is self.fc1 else layer(x)
        if operations is not None:
            for layer in self.modules():
                if isinstance(layer, nn.Conv2d):
                    operations.count_linear(len(x) * BINS**2, layer)
            operations.count_linear(len(x), self.fc1)
        return x


class BoxPredictor(nn.Module):
    """Logits of the classes, the background last, and deltas per class or shared by all.

    Args:
        width: of the vectors. ``classes``: K. ``boxes``: deltas per vector, K or 1.
    """

    def __init__(self, width: int, classes: int, boxes: int) -> None:
        super().__init__()
        self.cls_score = nn.Linear(width, classes + 1)
        self.bbox_pred = nn.Linear(width, 4 * boxes)

    def forward(self, x: Tensor, operations: Operations | None = None) -> tuple[Tensor, Tensor]:
        """Return logits [n, K + 1] and deltas [n, boxes, 4]."""
        if operations is not None:
            operations.count_linear(len(x), self.cls_score)
            operations.count_linear(len(x), self.bbox_pred)
        return self.cls_score(x), torch.unflatten(self.bbox_pred(x), 1, (-1, 4))


class BoxHeads(nn.Module):
    """One head, as in Faster R-CNN, or a cascade of three.

    Cai, Vasconcelos, "Cascade R-CNN" (CVPR 2018): each stage takes the boxes of the previous
    one; deltas do not depend on the class; scores are the mean over the stages.

    Args:
        channels: of the feature maps. ``classes``: K. ``width``, ``convolutions``: see ``BoxHead``.
        cascade: whether there are three stages.
        score: detections below are dropped. ``overlap``: IoU threshold of non-maximum
            suppression within a class. ``keep``: detections per image at most.
    """

    def __init__(
        self,
        channels: int,
        classes: int,
        width: int = 1024,
        convolutions: int = 4,
        cascade: bool = False,
        score: float = 0.05,
        overlap: float = 0.5,
        keep: int = 100,
    ) -> None:
        super().__init__()
        self.classes, self.cascade = classes, cascade
        self.score, self.overlap, self.keep = score, overlap, keep
        heads = [BoxHead(channels, width, convolutions) for _ in WEIGHTS[: 3 if cascade else 1]]
        predictors = [BoxPredictor(width, classes, 1 if cascade else classes) for _ in heads]
        self.box_head = nn.ModuleList(heads) if cascade else heads[0]
        self.box_predictor = nn.ModuleList(predictors) if cascade else predictors[0]

    def forward(
        self,
        maps: Sequence[Tensor],
        strides: Sequence[int],
        proposals: Sequence[Proposals],
        size: tuple[int, int],
        operations: Operations | None = None,
    ) -> list[Detections]:
        """Return the detections of each image of a batch, clipped to ``size`` (height, width)."""
        boxes = [p.boxes for p in proposals]
        counts = [len(b) for b in boxes]
        probabilities = []
        for stage, (head, predictor) in enumerate(self.stages()):
            features = pool(maps, strides, boxes, operations)
            logits, deltas = predictor(head(features, operations), operations)
            probabilities.append(logits.softmax(-1)[:, :-1])
            moved = clip_boxes(apply_deltas(torch.cat(boxes), deltas, WEIGHTS[stage]), *size)
            if self.cascade:
                boxes = list(torch.split(moved[:, 0], counts))
        scores = torch.stack(probabilities).mean(0)
        parts = zip(torch.split(moved, counts), torch.split(scores, counts), strict=True)
        return [self._select(*part) for part in parts]

    def stages(self) -> list[tuple[BoxHead, BoxPredictor]]:
        """Return head and predictor of each stage."""
        heads: object = self.box_head if self.cascade else [self.box_head]
        predictors: object = self.box_predictor if self.cascade else [self.box_predictor]
        pairs = zip(
            cast(Sequence[BoxHead], heads), cast(Sequence[BoxPredictor], predictors), strict=True
        )
        return list(pairs)

    def _select(self, boxes: Tensor, scores: Tensor) -> Detections:
        """Return the best of the boxes [n, K or 1, 4] with scores [n, K]."""
        places, labels = (scores > self.score).nonzero().unbind(1)
        scores = scores[places, labels]
        boxes = boxes.expand(-1, self.classes, -1)[places, labels]
        best = suppress(boxes, scores, labels, self.overlap)[: self.keep]
        return Detections(boxes[best], scores[best], labels[best])


def pool(
    maps: Sequence[Tensor],
    strides: Sequence[int],
    boxes: Sequence[Tensor],
    operations: Operations | None = None,
) -> Tensor:
    """Return the features [n, C, 7, 7] of all boxes of a batch, from the level for their size.

    The four largest levels are used; Lin et al., "Feature pyramid networks" (CVPR 2017), eq. 1.
    """
    layout, rows = flatten_maps(maps[:_LEVELS])
    scales = [1 / stride for stride in strides[:_LEVELS]]
    features = [
        roi_align(picture, layout, part, levels(part), scales, BINS, operations)
        for picture, part in zip(rows, boxes, strict=True)
    ]
    return torch.cat(features).permute(0, 3, 1, 2)


def levels(boxes: Tensor) -> Tensor:
    """Return the pyramid level of each box [n, 4], int64 [n]."""
    sizes = areas(boxes).sqrt() / _CANONICAL
    return (_CANONICAL_LEVEL + torch.log2(sizes + 1e-8)).floor().clamp(0, _LEVELS - 1).long()
