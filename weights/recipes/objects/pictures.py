"""Reader of images_det.tar: pictures with boxes of a teacher, some with those of people."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import av
import numpy as np
import torch
from torch import Tensor

from costream.nn.boxes import pairwise_iou
from costream.training.objects.augment import LabelledImage, channels_first
from costream.training.objects.losses import UNSURE
from weights.recipes.common import read_member

LABELS = (
    *("person", "bicycle", "car", "motorcycle", "bus", "truck", "dog", "cat", "bird", "horse"),
    *("chair", "couch", "tv", "bottle", "cup", "bag"),
)
_NAMES = {"motorbike": "motorcycle", "sofa": "couch", "tvmonitor": "tv"}
_BAGS = ("backpack", "handbag", "suitcase")
SURE = 0.4  # least score of the teacher's boxes that something is judged by
_LEAST, _CERTAIN = 0.35, 0.6  # scores from which on a box may be right, and is


@dataclass(frozen=True)
class ScoredImage(LabelledImage):
    """An image with boxes that are more or less certain."""

    scores: Tensor = field(kw_only=True)  # [n], 0 to 1; 1: put down by people

    def drawn(self, rng: np.random.Generator) -> LabelledImage:
        """Return the image; boxes are UNSURE as often as those with their score are wrong.

        About half of the teacher's boxes with a score of 0.35 are right, nearly all from 0.6 on.
        """
        right = 0.5 + 0.5 * (self.scores - _LEAST) / (_CERTAIN - _LEAST)
        chance = torch.from_numpy(rng.random(len(self.scores), np.float32))
        sure = (self.scores >= _LEAST) & (chance < right)
        labels = torch.where(sure, self.labels, UNSURE)
        return LabelledImage(self.pixels, self.boxes, labels, self.steady)

    def sure(self) -> LabelledImage:
        """Return the image with the boxes that have at least SURE as their score."""
        sure = self.scores >= SURE
        return LabelledImage(self.pixels, self.boxes[sure], self.labels[sure], self.steady)


def label_number(name: str) -> int | None:
    """Return the label of a name of COCO, as spelt in the packs; None if it has none."""
    name = "bag" if name in _BAGS else _NAMES.get(name, name)
    return LABELS.index(name) if name in LABELS else None


def read_scored(archive: tarfile.TarFile, part: str) -> list[ScoredImage]:
    """Return pictures: "train", "val", or "complete": those of COCO with all boxes of people.

    The complete ones are in no other part.
    """
    names = read_member(archive, "images_det/classes.txt").decode().split("\n")
    pictures = []
    for line in read_member(archive, "images_det/boxes.jsonl").decode().splitlines():
        row = json.loads(line)
        own = "complete" if row["people_classes"] == "all" else row["split"]
        if own == part:
            pixels = decode_picture(read_member(archive, f"images_det/{row['file']}"))
            pictures.append(_scored(pixels, row, names))
    return pictures


def decode_picture(data: bytes) -> Tensor:
    """Return an encoded picture as uint8 [3, H, W]."""
    with av.open(io.BytesIO(data), "r") as container:
        return channels_first(next(container.decode(video=0)).to_ndarray(format="rgb24"))


def _scored(pixels: Tensor, row: dict[str, Any], names: Sequence[str]) -> ScoredImage:
    """Return a picture with people's boxes, and the teacher's where those are not complete."""
    drawn = [(*box, 1.0) for box in row["people"] or ()]
    boxes, labels, scores = rows_of(drawn, names)
    if row["people_classes"] != "all":
        more = rows_of(row["teacher"], names)
        same = (pairwise_iou(more[0], boxes) > 0.5) & (more[1][:, None] == labels)
        boxes, labels, scores = (
            torch.cat([a, b[~same.any(1)]])
            for a, b in zip((boxes, labels, scores), more, strict=True)
        )
    return ScoredImage(pixels, boxes, labels, scores=scores)


def rows_of(rows: Sequence[Any], names: Sequence[str]) -> tuple[Tensor, Tensor, Tensor]:
    """Return boxes [n, 4], labels [n] and scores [n] of rows (class, x, y, w, h, score)."""
    known = [(label_number(names[int(row[0])]), *row[1:]) for row in rows]
    table = torch.tensor([row for row in known if row[0] is not None]).view(-1, 6)
    corners = torch.cat([table[:, 1:3], table[:, 1:3] + table[:, 3:5]], 1)
    return corners.float(), table[:, 0].long(), table[:, 5].float()
