"""YOLOX-nano as teacher: targets for every place of every image, which few boxes do not provide.

YOLOX-nano (Ge et al., "YOLOX", 2021; Apache-2.0) was trained on COCO. Teacher and student get the
very same views, cropped and coloured (Beyer et al., "Knowledge distillation: A good teacher is
patient and consistent", CVPR 2022). The teacher's weights are not in the shipped weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from costream.errors import UsageError
from costream.models.eventful.rcnn import Detections
from costream.nn.boxes import suppress
from weights.recipes.common import teacher_file

SIDE = 416
STRIDES = (8, 16, 32)
_EMPTY = 114  # value of the padding


class Yolox:
    """The teacher: maps images to objectness, classes and boxes.

    Raises UsageError if the pack ``teachers.tar`` or OpenCV, which runs ONNX networks, is missing.
    """

    def __init__(self, path: Path) -> None:
        with teacher_file(path, "yolox_nano.onnx") as file:
            try:
                import cv2
            except ImportError as error:
                raise UsageError(
                    "the recipe needs OpenCV to run the teacher",
                    hint="pip install opencv-python-headless",
                ) from error
            cv2.setNumThreads(torch.get_num_threads())
            self._network = cv2.dnn.readNetFromONNX(str(file))

    def maps(self, views: Tensor) -> list[Tensor]:
        """Return objectness and 80 classes, [B, h, w, 81] at strides 8, 16, 32, 0 to 1.

        ``views`` uint8 [B, 3, H, W], sides multiples of 32 and SIDE at most.
        """
        height, width = views.shape[2:]
        out: list[list[Tensor]] = [[] for _ in STRIDES]
        places = [
            (y, x)
            for y in range(0, SIDE - height + 1, height)
            for x in range(0, SIDE - width + 1, width)
        ]
        for begin in range(0, len(views), len(places)):
            some = views[begin : begin + len(places)]
            seen = self._look(some, places)[:, 4:]
            parts = torch.split(seen, [(SIDE // s) ** 2 for s in STRIDES])
            for rows, part, s in zip(out, parts, STRIDES, strict=True):
                grid = part.view(SIDE // s, SIDE // s, -1)
                for y, x in places[: len(some)]:
                    rows.append(grid[y // s : (y + height) // s, x // s : (x + width) // s])
        return [torch.stack(rows) for rows in out]

    def detect(self, picture: Tensor, score: float) -> Detections:
        """Return the detections, labels into the 80 classes, in an image uint8 [3, H, W]."""
        scale = SIDE / max(picture.shape[1:])
        size = [max(1, round(side * scale)) for side in picture.shape[1:]]
        fitted = F.interpolate(picture[None], size, mode="bilinear", antialias=True)
        seen = self._look(fitted, [(0, 0)])
        corners, strides = _grid()
        centres = (seen[:, :2] + corners) * strides
        half = seen[:, 2:4].exp() * strides / 2
        scores, labels = (seen[:, 4:5] * seen[:, 5:]).max(1)
        sure = scores > score
        boxes = torch.cat([centres - half, centres + half], 1)[sure] / scale
        boxes, scores, labels = boxes, scores[sure], labels[sure]
        best = suppress(boxes, scores, labels, 0.5)
        return Detections(boxes[best], scores[best], labels[best])

    def _look(self, views: Tensor, places: Sequence[tuple[int, int]]) -> Tensor:
        """Return the network's outputs [3549, 85] for views placed side by side."""
        canvas = np.full((1, 3, SIDE, SIDE), _EMPTY, np.float32)
        height, width = views.shape[2:]
        for view, (y, x) in zip(views.numpy(), places, strict=False):
            canvas[0, :, y : y + height, x : x + width] = view[::-1]  # BGR
        self._network.setInput(canvas)
        return torch.from_numpy(self._network.forward()[0].copy())


def _grid() -> tuple[Tensor, Tensor]:
    """Return the corner (in cells) and the stride of every cell: [3549, 2] and [3549, 1]."""
    corners, strides = [], []
    for stride in STRIDES:
        side = torch.arange(SIDE // stride)
        y, x = torch.meshgrid(side, side, indexing="ij")
        corners.append(torch.stack([x, y], -1).view(-1, 2))
        strides.append(torch.full((len(side) ** 2, 1), stride))
    return torch.cat(corners), torch.cat(strides)
