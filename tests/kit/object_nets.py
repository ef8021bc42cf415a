"""Small models that find objects: with random weights, and one that finds what is bright."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from costream.core.records import OBJECT_DETECTION
from costream.models.build import save_model
from costream.models.eventful.box_heads import Detections
from costream.models.eventful.detector import ObjectModel
from costream.models.eventful.feature_maps import View
from costream.models.eventful.vitdet import ViTDet
from costream.models.images import Pixels
from costream.nn.eventful.counts import Operations
from costream.weights_io.card import Card, Timeline
from kit.eventful_nets import randomise

LABELS = ("person", "car")
BOX = (112, 80)  # 7 x 5 tokens
ARGUMENTS: dict[str, Any] = {
    "classes": len(LABELS),
    "dim": 16,
    "heads": 2,
    "depth": 2,
    "global_blocks": [1],
    "size": [5, 7],
    "window": [3, 3],
    "position_size": [4, 4],
    "mlp_ratio": 2,
    "channels": 8,
    "width": 12,
    "convolutions": 1,
    "proposals": 12,
}


def object_card(**changes: Any) -> Card:
    pixels = {"box": list(BOX), "patch": 16}
    settings = {
        "arguments": ARGUMENTS,
        "frontend_arguments": pixels,
        "timeline": Timeline(threshold=0.3, min_length_s=0.2, min_gap_s=0.2),
        "rate_hz": 10.0,
        **changes,
    }
    fixed = ("tiny-objects", OBJECT_DETECTION, "vitdet")
    return Card(*fixed, labels=LABELS, frontend="pixels", **settings)


def random_network(**options: Any) -> ViTDet:
    torch.manual_seed(0)
    return randomise(ViTDet(**{**ARGUMENTS, **options}))  # type: ignore[return-value]


def random_model(**options: Any) -> ObjectModel:
    return ObjectModel(object_card(), random_network(), Pixels(BOX), **options)


def write_model(path: Path) -> Path:
    """Write a weight file of the random model."""
    save_model(path, object_card(), random_network(), Pixels(BOX))
    return path


class BrightFinder(ViTDet):
    """Finds one object: all that is bright, a "car". The backbone runs and is not looked at."""

    def __init__(self) -> None:
        super().__init__(**ARGUMENTS)
        self.seen = torch.zeros(0)

    def embed(self, pictures: Tensor, operations: Operations | None = None) -> Tensor:
        self.seen = pictures
        return super().embed(pictures, operations)

    def detect(
        self, view: View, size: tuple[int, int], operations: Operations | None = None
    ) -> list[Detections]:
        y, x = (self.seen[0].mean(0) > 1).nonzero(as_tuple=True)
        if not len(x):
            return [Detections(torch.zeros(0, 4), torch.zeros(0), torch.zeros(0).long())]
        corners = torch.stack([x.min(), y.min(), x.max() + 1, y.max() + 1]).float()
        return [Detections(corners[None], torch.tensor([0.9]), torch.tensor([1]))]


def bright_model(box: tuple[int, int] = BOX) -> ObjectModel:
    return ObjectModel(object_card(), BrightFinder(), Pixels(box))
