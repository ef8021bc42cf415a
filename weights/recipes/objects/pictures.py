"""Reader of images_det.tar: pictures with boxes of a teacher, some with those of people."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import av
import torch
from torch import Tensor

from costream.nn.boxes import pairwise_iou
from costream.training.objects.image_augment import LabelledImage, channels_first
from weights.recipes.common import read_member
from weights.recipes.objects.labels import SURE, label_number


@dataclass(frozen=True)
class ScoredImage(LabelledImage):
    """An image with boxes that are more or less certain."""

    scores: Tensor = field(kw_only=True)  # [n], 0 to 1; 1: put down by people

    def sure(self) -> LabelledImage:
        """Return the image with the boxes that have at least SURE as their score."""
        sure = self.scores >= SURE
        return LabelledImage(self.pixels, self.boxes[sure], self.labels[sure], self.steady)


def read_scored(archive: tarfile.TarFile, part: str) -> list[ScoredImage]:
    """Return pictures with what ``read_rows`` yields."""
    return [
        ScoredImage(decode_picture(data), boxes, labels, scores=scores)
        for data, boxes, labels, scores in read_rows(archive, part)
    ]


def read_rows(
    archive: tarfile.TarFile, part: str
) -> Iterator[tuple[bytes, Tensor, Tensor, Tensor]]:
    """Yield encoded pictures, their boxes [n, 4], labels [n] and scores [n].

    ``part``: "train", "val", or "complete": those of COCO with all boxes of people, which are in
    no other part.
    """
    names = read_member(archive, "images_det/classes.txt").decode().split("\n")
    for line in read_member(archive, "images_det/boxes.jsonl").decode().splitlines():
        row = json.loads(line)
        own = "complete" if row["people_classes"] == "all" else row["split"]
        if own == part:
            yield read_member(archive, f"images_det/{row['file']}"), *_scored(row, names)


def decode_picture(data: bytes) -> Tensor:
    """Return an encoded picture as uint8 [3, H, W]."""
    with av.open(io.BytesIO(data), "r") as container:
        return channels_first(next(container.decode(video=0)).to_ndarray(format="rgb24"))


def _scored(row: dict[str, Any], names: Sequence[str]) -> tuple[Tensor, Tensor, Tensor]:
    """Return people's boxes, and the teacher's where those are not complete; labels; scores."""
    drawn = [(*box, 1.0) for box in row["people"] or ()]
    boxes, labels, scores = rows_of(drawn, names)
    if row["people_classes"] != "all":
        more = rows_of(row["teacher"], names)
        same = (pairwise_iou(more[0], boxes) > 0.5) & (more[1][:, None] == labels)
        boxes, labels, scores = (
            torch.cat([a, b[~same.any(1)]])
            for a, b in zip((boxes, labels, scores), more, strict=True)
        )
    return boxes, labels, scores


def rows_of(rows: Sequence[Any], names: Sequence[str]) -> tuple[Tensor, Tensor, Tensor]:
    """Return boxes [n, 4], labels [n] and scores [n] of rows (class, x, y, w, h, score)."""
    known = [(label_number(names[int(row[0])]), *row[1:]) for row in rows]
    table = torch.tensor([row for row in known if row[0] is not None]).view(-1, 6)
    corners = torch.cat([table[:, 1:3], table[:, 1:3] + table[:, 3:5]], 1)
    return corners.float(), table[:, 0].long(), table[:, 5].float()
