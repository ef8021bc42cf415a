"""Training recipe of the shipped detector: ``python -m weights.recipes.objects.train``.

Reads the packs coco256, images_det, samples and teachers2. The first layers are those of
NanoDet-Plus-m-1.5x and stay so; what they make of the training views is computed once and kept
beside the checkpoint (2 GB for 5,000 views). A small ViTDet on top learns from boxes and from the
teacher's classes at every place, is scored on held-out images and clips, with all tokens and with
fewer, and written with its card. Seeded; 0.6 seconds a step on one idle core. An interrupted run
resumes from its checkpoint. ``--start weights/eventful-vitdet.safetensors`` goes on from stored
weights, with a smaller ``--rate``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from costream.checkpoints.card import Card, Timeline
from costream.checkpoints.file import read_weights
from costream.models.build import save_model
from costream.models.eventful.shuffle import ShuffleEmbedding
from costream.models.eventful.vitdet import ViTDet
from costream.training.card_text import card_text
from costream.training.objects.card import detection_table
from weights.recipes.common import carry_out, parser
from weights.recipes.objects.data import make_view_source, read_names
from weights.recipes.objects.judge import choose_threshold, judge
from weights.recipes.objects.loop import DetectorSchedule, DetectorTrainer, train
from weights.recipes.objects.pictures import LABELS
from weights.recipes.objects.teacher import NanoDet
from weights.recipes.objects.views import PreparedViews, ViewBatch

FRONTEND: dict[str, Any] = {"box": [384, 288], "patch": 16}
NETWORK: dict[str, Any] = {
    "classes": len(LABELS),
    "dim": 224,
    "heads": 7,
    "depth": 2,
    "global_blocks": [1],
    "size": [16, 24],
    "window": [8, 8],
    "position_size": [16, 24],
    "mlp_ratio": 4,
    "patch": 16,
    "shuffle": [[176, 4], [352, 8], [704, 4]],
    "ghost": 128,
    "channels": 64,
    "first": 1,
    "anchor": 24.0,
    "width": 192,
    "convolutions": 0,
    "proposals": 40,
    "candidates": 100,
}


@torch.no_grad()
def begin(network: ViTDet, teacher: NanoDet, batch: ViewBatch) -> None:
    """Set a new network to the teacher's first layers; all of their channels have equal weight.

    Its blocks pass tokens on unchanged at first.
    """
    stem = network.embedding
    assert isinstance(stem, ShuffleEmbedding)
    teacher.begin(stem)
    for projection, seen in zip(stem.projections, batch.features, strict=True):
        scale = seen.std((0, 2, 3)).clamp(min=1e-3)
        cast(nn.Conv2d, projection).weight.div_(scale.view(1, -1, 1, 1))
    for block in network.backbone.blocks:
        for layer in (block.projection, block.mlp_2):
            nn.init.zeros_(cast(nn.Linear, layer).weight)


def make(
    packs: Path,
    course: DetectorSchedule,
    seed: int,
    folder: Path,
    checkpoint: Path,
    count: int,
    start: Path | None = None,
) -> Path:
    """Train, score and write eventful-vitdet.safetensors and .md; return the weight file.

    ``count``: views, which are kept in a folder beside ``checkpoint``. ``start``: weights to begin
    with.
    """
    teacher = NanoDet(packs / "teachers2.tar")
    views = PreparedViews(checkpoint.with_suffix(".views"), count, seed)
    if views.missing():
        views.make(make_view_source(packs, teacher), teacher, read_names(packs))
    views.open()
    torch.manual_seed(seed)
    network = ViTDet(**NETWORK)
    if start is None:
        begin(network, teacher, views.batch(32, np.random.default_rng(seed)))
    else:
        stored = read_weights(start).tensors.items()
        network.load_state_dict({k.removeprefix("network."): v.float() for k, v in stored})
    network = train(DetectorTrainer(network, course), views, seed, checkpoint)
    network.half().float()  # rounded as it is stored
    box = (FRONTEND["box"][0], FRONTEND["box"][1])
    threshold = choose_threshold(network, packs, box)
    card = make_card(NETWORK, FRONTEND, threshold, judge(network, packs, teacher, box, threshold))
    path = folder / f"{card.name}.safetensors"
    save_model(path, card, network.half())
    (folder / f"{card.name}.md").write_text(card_text(card, detection_table), encoding="utf-8")
    return path


def main(argv: Sequence[str] | None = None) -> int:
    """Run the recipe from the command line; return the exit code."""
    known = parser("objects", "folder of the .tar packs", 700)
    known.add_argument("--checkpoint", type=Path, default=Path("eventful-vitdet.checkpoint"))
    known.add_argument("--views", type=int, default=5000, help="views to learn from")
    known.add_argument("--rate", type=float, default=1e-3, help="peak of the learning rate")
    known.add_argument("--start", type=Path, help="weights to begin with")
    options = known.parse_args(argv)

    def work() -> list[Path]:
        course = DetectorSchedule(options.steps, rate=options.rate)
        places = (options.output, options.checkpoint)
        return [make(options.packs, course, options.seed, *places, options.views, options.start)]

    return carry_out(work, options.threads)


RATE_HZ = 10.0
_ABOUT: dict[str, Any] = {
    "description": (
        "Sixteen kinds of objects in video, with boxes: people, vehicles, animals, furniture and"
        " things that are carried. A small convolutional network looks at every frame; the"
        " transformer behind it computes only the tokens that changed."
    ),
    "paper": (
        "Eventful Transformers (Dutson et al., ICCV 2023); ViTDet (Li et al., ECCV 2022);"
        " NanoDet-Plus (RangiLyu, 2021)"
    ),
    "trained_on": (
        "3,798 pictures of images_det (ADE20K, Flickr8k, ImageNet, TUD streets, COCO, fruit,"
        " films of surveillance) with boxes of NanoDet-Plus-m-1.5x, and of people where there"
        " are; 120 pictures of COCO train2017 with people's boxes; Intel's sample videos"
        " car-detection, one-by-one-person-detection, bottle-detection (first 70 % of each) and"
        " classroom-preview; a clip of eight signs of ASL. Boxes of the clips are the teacher's,"
        " and of what moves in car-detection. A box of the teacher counts as an object as often"
        " as those of its score are right, and else neither as an object nor as nothing."
        " Backbone and neck are the teacher's and stay so; all behind them began at random, with"
        " the teacher's scores at every place as a second target. 5,000 views; 700 steps of 8"
        " views, then 400 and 800 more at a rate of 6e-4, 2,400 on 6,000 other views and 3,400 on"
        " 8,000 others at 8e-4, each time from the stored weights (--start). Weights are rounded to"
        " half precision."
    ),
    "split": (
        "Nothing was learnt from COCO val2017 (64 pictures), from the 80 pictures of COCO"
        " train2017 with all boxes, from two clips with boxes put down by hand and from three more"
        " fixed cameras; the teacher, whose layers the stem has, did learn from COCO train2017."
        " Of three clips the last fifth, the same camera as trained on, is held out. The"
        " validation pictures of images_det and 8 of COCO chose the threshold and were looked at"
        " while it learnt; the others were scored after each turn but the first, four times. By"
        " them one thing was chosen: as the 80 pictures showed more false boxes than the validation"
        " pictures, whose boxes are mostly the teacher's, the threshold allows 0.25 there, not 0.5."
    ),
    "limits": (
        "Finds people, cars, bicycles and larger animals in pictures and before cameras that it has"
        " not seen. Small and crowded things are mostly missed, bags, trucks, buses and bottles"
        " nearly always. Paintings and dolls are people to it, things that it does not know are"
        " now and then called by a name that it knows, and one object may have two boxes. About"
        " half of the operations of a step, those of the stem, do not fall with fewer tokens."
    ),
    "licence": (
        "Stem: weights of NanoDet-Plus-m-1.5x (RangiLyu/nanodet, Apache-2.0), which is also the"
        " teacher. Research use only: the pictures include some of ImageNet, ADE20K, Flickr8k and"
        " TUD under non-commercial research terms; COCO annotations (CC BY 4.0, COCO Consortium),"
        " COCO pictures (Flickr users, mixed terms); fights: Akti, Tataroglu, Ekenel, IPTA 2019,"
        " MIT; Intel's sample videos and the clip of signs (CC BY 4.0)."
    ),
}


def make_card(
    network: dict[str, Any], frontend: dict[str, Any], threshold: float, metrics: dict[str, Any]
) -> Card:
    """Return the card of the detector with these arguments, threshold and metrics."""
    return Card(
        name="eventful-vitdet",
        task="object detection",
        architecture="vitdet",
        arguments=network,
        labels=LABELS,
        rate_hz=RATE_HZ,
        frontend="pixels",
        frontend_arguments=frontend,
        timeline=Timeline(threshold=round(threshold, 2), min_length_s=0.5, min_gap_s=0.5),
        metrics=metrics,
        **_ABOUT,
    )


if __name__ == "__main__":
    sys.exit(main())
