"""NanoDet-Plus-m-1.5x as a weight file: ``python -m weights.recipes.objects.nanodet``.

Reads the network of the pack teachers2, whose int8 weights and scales stay as they are, scores it
on the pictures of COCO val2017 in the pack coco256, and writes nanodet.safetensors and .md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from costream.core.label_sets import COCO
from costream.core.records import OBJECT_DETECTION, PixelSize
from costream.evaluation.metrics.detection import precision_interval
from costream.models.build import build
from costream.models.images import Pixels
from costream.models.int8 import SCALE
from costream.models.objects.nanodet import NanoDetPlus
from costream.training.card_text import card_text
from costream.training.objects.detector_card import detection_table, rounded_scores, shown_boxes
from costream.weights_io.card import Card, Timeline
from costream.weights_io.file import write_weights
from weights.recipes.common import FREE, carry_out, parser, teacher_file
from weights.recipes.objects.data import read_images
from weights.recipes.objects.detections import boxes_in
from weights.recipes.objects.judge import DetectionTest, photographs
from weights.recipes.objects.teacher import NAME

BOX = (416, 416)
_SIZES = (320, 416, 512, 640)  # longer sides that are compared
_THRESHOLD = 0.45


def stored_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a weight file with the weights of an ONNX file of NanoDet.

    ``path``: a file whose convolutions have int8 weights, symmetric, with a scale for each row.
    """
    import onnx
    from onnx.numpy_helper import to_array

    graph = onnx.load(path).graph
    stored = {one.name: torch.tensor(to_array(one)) for one in graph.initializer}
    inputs = {n.output[0]: n.input for n in graph.node if n.op_type == "DequantizeLinear"}
    found = [(inputs[n.input[1]], n.input[2]) for n in graph.node if n.op_type == "Conv"]
    network = NanoDetPlus(len(COCO.names))
    names = {layer: name for name, layer in network.named_modules()}
    tensors: dict[str, Tensor] = {}
    for layer, ((values, scale, zero), bias) in zip(network.in_order(), found, strict=True):
        if stored[zero].any():
            raise ValueError(f"{zero} is not zero: the weights are not symmetric")
        weight = stored[values]
        if layer is network.backbone.first:
            weight = weight.flip(1)  # it takes BGR
        name = f"network.{names[layer]}"
        tensors |= {f"{name}.weight": weight, f"{name}.weight{SCALE}": stored[scale]}
        tensors[f"{name}.bias"] = stored[bias]
    return tensors


def make(options: argparse.Namespace) -> list[Path]:
    """Convert, score and write nanodet.safetensors and .md; return the written files."""
    with teacher_file(options.packs / "teachers2.tar", NAME) as file:
        tensors = stored_tensors(file)
    card = Card(
        name="nanodet",
        task=OBJECT_DETECTION,
        architecture="nanodet",
        arguments={"classes": len(COCO.names)},
        labels=COCO.names,
        rate_hz=10.0,
        frontend="pixels",
        frontend_arguments={"box": list(BOX), "patch": NanoDetPlus.patch},
        timeline=Timeline(threshold=_THRESHOLD),
        compression={"int8": {}},
        **_ABOUT,
    )
    network: Any = build(card, tensors)[0].eval()
    card.metrics["COCO val2017, 64 pictures"] = scores(network, options.packs)
    path = options.output / f"{card.name}.safetensors"
    write_weights(path, card, tensors)
    path.with_suffix(".md").write_text(card_text(card, detection_table), encoding="utf-8")
    return [path]


def scores(network: NanoDetPlus, packs: Path) -> dict[str, dict[str, Any]]:
    """Return the metrics of a card by the longer side of the pictures, the usual one first."""
    scenes, rows = read_images(packs, "test", every=True), {}
    for side in sorted(_SIZES, key=lambda side: side != BOX[0]):
        test = photographs(scenes, (side, side))
        rows[f"longer side {side}"] = _row(network, test, (side, side))
    return rows


@torch.no_grad()
def _row(network: NanoDetPlus, test: DetectionTest, box: PixelSize) -> dict[str, Any]:
    pixels = Pixels(box, network.patch)
    found = [boxes_in(network.detect(pixels(p[None]))[0], p) for p in test.pictures]
    row = rounded_scores(found, test.truth, COCO.names)
    limits = precision_interval(found, test.truth, range(len(found)), COCO.names)
    if limits is not None:
        row["AP50_95"] = [round(limit, 4) for limit in limits]
    row["shown"] = shown_boxes(found, test.truth, Timeline(_THRESHOLD))
    return row


_ABOUT: dict[str, Any] = {
    "description": (
        "The 80 kinds of objects of COCO in video, with boxes: people, vehicles, animals,"
        " furniture, food and everyday things. A small convolutional network that processes"
        " each frame separately."
    ),
    "paper": "https://github.com/RangiLyu/nanodet (NanoDet-Plus, RangiLyu, 2021)",
    "trained_on": (
        "COCO train2017, by its authors: NanoDet-Plus-m-1.5x, as converted to int8 weights for"
        " ncnn. The weights are unchanged: int8 with a scale for each channel of an output."
    ),
    "split": (
        "The 64 pictures are of COCO val2017, which it did not learn from; its authors state AP"
        " 34.1 on all 5,000."
    ),
    "limits": (
        "Small and crowded objects are missed: at its threshold, about a third of all objects"
        " in pictures of COCO are found. Scores are low: a box with a score of 0.45 is correct"
        " four times out of five. It has 80 kinds and sometimes labels other things as one of"
        " them."
    ),
    "licence_class": "free",
    "licence": (
        "Apache-2.0: NanoDet-Plus-m-1.5x, Copyright 2020-2021 RangiLyu (RangiLyu/nanodet),"
        " weights unchanged, layout of the file changed. Learnt from COCO (annotations CC BY 4.0,"
        " COCO Consortium; pictures of Flickr users, mixed terms)."
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the recipe from the command line; return the exit code."""
    known = parser("objects", "folder of the .tar packs", folder=FREE)
    known.prog = "python -m weights.recipes.objects.nanodet"
    options = known.parse_args(argv)
    return carry_out(lambda: make(options), options.threads)


if __name__ == "__main__":
    sys.exit(main())
