"""BlazePose as weight files: ``python -m weights.recipes.pose``.

Reads the TFLite files of the pack teachers_pose, whose float16 weights stay as they are, and
writes pose.safetensors and its card.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from costream.models.build import build
from costream.models.importing import import_files
from costream.models.pose.blazepose import SIDE
from costream.training.card_text import card_text
from costream.weights_io.card import Card
from costream.weights_io.file import write_weights
from weights.recipes.common import FREE, carry_out, parser, teacher_file, timed_costs
from weights.recipes.release import table_of

FILE = "pose_landmark_lite.tflite"


def make(options: argparse.Namespace) -> list[Path]:
    """Convert and write the weight file and its card; return the written file."""
    with teacher_file(options.packs / "teachers_pose.tar", FILE) as path:
        card, tensors = import_files([path], "pose", {})
    card = replace(card, **_ABOUT, costs=costs(card, tensors))
    written = options.output / "pose.safetensors"
    write_weights(written, card, tensors)
    text = card_text(card, table_of(card))
    written.with_suffix(".md").write_text(text, encoding="utf-8")
    return [written]


@torch.inference_mode()
def costs(card: Card, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the costs of a crop for a card."""
    network: Any = build(card, tensors)[0].eval()
    for weight in network.parameters():
        if weight.ndim == 4:
            weight.data = weight.data.contiguous(memory_format=torch.channels_last)
    crop = torch.rand(1, 3, SIDE, SIDE)
    with FlopCounterMode(display=False) as counted:
        network(crop)
    return timed_costs(counted.get_total_flops() // 2, lambda: network(crop))


_ABOUT: dict[str, Any] = {
    "description": (
        "33 joints of a person in a square crop: in the picture, with how likely each is visible,"
        " and in metres around the hips. What models of skeletons take of a video."
    ),
    "paper": "BlazePose GHUM Holistic (Grishchenko et al., 2022), https://arxiv.org/abs/2206.11678",
    "trained_on": (
        "Pictures of people that Google has not published. The weights are those of"
        " @mediapipe/pose 0.5.1675469404 (npm), unchanged in half precision, without those of the"
        " heat maps and the segmentation."
    ),
    "split": (
        "In seven crops, of a film and of noise, places are those of the original in TFLite's"
        " interpreter within 2e-4 of the crop's side, joints in space within 0.2 mm."
    ),
    "limits": (
        "One person a crop. Joints that are hidden are guessed; metres lean with the camera;"
        " people who lie, are far away or are seen from above are often lost."
    ),
    "licence_class": "free",
    "licence": (
        "Apache-2.0: BlazePose GHUM landmarks, Copyright Google LLC (MediaPipe), weights"
        " unchanged, layout of the file changed."
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the recipe from the command line; return the exit code."""
    known = parser("pose", "folder of the .tar packs", folder=FREE)
    known.prog = "python -m weights.recipes.pose"
    options = known.parse_args(argv)
    return carry_out(lambda: make(options), options.threads)


if __name__ == "__main__":
    sys.exit(main())
