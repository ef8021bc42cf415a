"""Pictures of bright things on dark ground, with their boxes, and a small model to learn them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import torch

from costream.core.records import OBJECT_DETECTION
from costream.models.build import save_model
from costream.models.eventful.vitdet import ViTDet
from costream.models.images import Pixels
from costream.training.objects.image_augment import LabelledImage
from costream.weights_io.card import Card, Timeline

KINDS = ("lamp", "leaf")  # red and green
SIZE = (96, 64)
COLOURS = {"lamp": (230, 60, 50), "leaf": (50, 210, 60)}
NETWORK: dict[str, Any] = {
    "classes": 1,
    "dim": 32,
    "heads": 2,
    "depth": 2,
    "global_blocks": [1],
    "size": [8, 12],
    "window": [4, 4],
    "position_size": [8, 12],
    "patch": 8,
    "mlp_ratio": 2,
    "stem": [8, 16],
    "channels": 16,
    "width": 32,
    "convolutions": 0,
    "proposals": 20,
    "candidates": 50,
}

Corners = tuple[int, int, int, int]
Things = list[tuple[str, Corners]]


def draw(seed: int) -> tuple[npt.NDArray[np.uint8], Things]:
    """Return a picture, uint8 [H, W, 3], and what is in it."""
    rng = np.random.default_rng(seed)
    picture = rng.integers(20, 70, (SIZE[1], SIZE[0], 3), np.uint8)
    things: Things = []
    for k in range(2):  # one in each half
        kind = KINDS[(seed + k) % 2]
        width, height = (int(side) for side in rng.integers(30, 46, 2))
        x = int(rng.integers(0, 48 - width + 1)) + 48 * k
        y = int(rng.integers(0, SIZE[1] - height + 1))
        picture[y : y + height, x : x + width] = COLOURS[kind]
        things.append((kind, (x, y, x + width, y + height)))
    return picture, things


def write_pictures(folder: Path, count: int, seed: int = 0) -> Path:
    """Write PNG pictures; gives the COCO JSON of their boxes, beside the folder."""
    folder.mkdir(parents=True)
    rows = []
    for k in range(count):
        picture, things = draw(1000 * seed + k)
        save_picture(folder / f"{k:03d}.png", picture)
        rows.append(({"file_name": f"{k:03d}.png"}, things))
    return write_boxes(folder.with_suffix(".json"), rows)


def save_picture(path: Path, picture: npt.NDArray[np.uint8]) -> None:
    codec = av.CodecContext.create("png", "w")
    codec.width, codec.height = picture.shape[1], picture.shape[0]
    codec.pix_fmt = "rgb24"
    frame = av.VideoFrame.from_ndarray(picture, "rgb24")
    path.write_bytes(b"".join(bytes(p) for p in [*codec.encode(frame), *codec.encode(None)]))


def write_boxes(path: Path, rows: Sequence[tuple[dict[str, Any], Things]], **more: Any) -> Path:
    """Write COCO JSON of images and what is in each."""
    images, boxes = [], []
    for number, (image, things) in enumerate(rows, 1):
        images.append({"id": number, **image})
        for kind, (x1, y1, x2, y2) in things:
            box = [x1, y1, x2 - x1, y2 - y1]
            boxes.append({"image_id": number, "category_id": KINDS.index(kind), "bbox": box})
    kinds = [{"id": k, "name": kind} for k, kind in enumerate(KINDS)]
    told = {"images": images, "annotations": boxes, "categories": kinds, **more}
    path.write_text(json.dumps(told), "utf-8")
    return path


def tiny_card(labels: tuple[str, ...] = ("thing",), **changes: Any) -> Card:
    settings = {
        "arguments": {**NETWORK, "classes": len(labels)},
        "frontend": "pixels",
        "frontend_arguments": {"box": list(SIZE), "patch": 8},
        "timeline": Timeline(threshold=0.3, min_length_s=0.2, min_gap_s=0.2),
        "trained_on": "things",
        "licence": "public domain",
        "sample": {"file": "room.mp4"},  # of other labels than those that will be learnt
        **changes,
    }
    return Card("tiny", OBJECT_DETECTION, "vitdet", labels=labels, rate_hz=10.0, **settings)


def write_tiny_weights(path: Path, labels: tuple[str, ...] = ("thing",), **changes: Any) -> Path:
    torch.manual_seed(0)
    card = tiny_card(labels, **changes)
    save_model(path, card, ViTDet(**card.arguments), Pixels(SIZE, 8))
    return path


def write_folder(folder: Path, count: int) -> Path:
    """Write pictures of each kind, ``count`` times; the boxes are beside the folder."""
    write_pictures(folder, 2 * count)
    return folder


# A detector for square pictures, and one such picture with a red box.
SQUARE_NETWORK: dict[str, Any] = {**NETWORK, "classes": 4, "patch": 16}
SQUARE_NETWORK |= {"size": [6, 6], "window": [3, 3], "position_size": [6, 6]}


def box_rows(*boxes: tuple[float, ...]) -> torch.Tensor:
    """Return boxes as a tensor [n, 4]."""
    return torch.tensor(boxes, dtype=torch.float32).view(-1, 4)


def red_box_picture() -> LabelledImage:
    """Return a picture of 96 x 96 pixels with one box of class 1."""
    pixels = torch.full((3, 96, 96), 90, dtype=torch.uint8)
    pixels[0, 16:56, 24:72] = 230
    return LabelledImage(pixels, box_rows((24, 16, 72, 56)), torch.tensor([1]))


def rectangle(width: int = 320, height: int = 200, steady: bool = False) -> LabelledImage:
    """Return an image of a red rectangle on black, and its box."""
    pixels = torch.zeros(3, height, width, dtype=torch.uint8)
    pixels[0, 60:140, 100:220] = 255
    box = torch.tensor([[100.0, 60.0, 220.0, 140.0]])
    return LabelledImage(pixels, box, torch.tensor([1]), steady)
