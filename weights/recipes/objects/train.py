"""Training recipe of the shipped detector: ``python -m weights.recipes.objects.train``.

Reads the packs coco256, images_det, samples and teachers2, and writes the training data into one
file, the bank, next to the checkpoint. The first layers begin with the weights of
NanoDet-Plus-m-1.5x. A small ViTDet on top learns from boxes and from the teacher's classes at every
place (learn.py), is scored on held-out images and clips, with all tokens and with fewer, and
written with its card.
Seeded. An interrupted run resumes from its checkpoint. ``--start FILE`` continues from stored
weights.

``--only bank`` stops once the bank is written, which learn.py can learn from on another machine;
``--trained FILE`` takes the weights that it wrote there, and goes on with thresholds, scores and
card.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from costream.models.build import save_model
from costream.models.eventful.vitdet import ViTDet
from costream.training.card_text import card_text
from costream.training.objects.detector_card import detection_table
from costream.weights_io.card import Card, Timeline
from weights.recipes.common import carry_out, parser
from weights.recipes.objects.bank import Bank, Scene, encode
from weights.recipes.objects.data import make_bank, read_pictures
from weights.recipes.objects.judge import choose_threshold, judge, photographs
from weights.recipes.objects.labels import LABELS
from weights.recipes.objects.learn import BOX, NETWORK, STEPS, add_options, learn_with
from weights.recipes.objects.teacher import NanoDet

FRAME = (416, 312)  # largest frame of a source; more is found there than in the size of the views
FRONTEND: dict[str, Any] = {"box": list(FRAME), "patch": 16}
_JUDGED = 2  # one in so many validation pictures is scored while it learns


def bank_of(packs: Path, teacher: NanoDet, path: Path) -> Bank:
    """Return the bank at a path, which is written if it is not there."""
    if not path.is_file():
        chosen = [p.sure() for p in read_pictures(packs, "val")][::_JUDGED]
        test = photographs(chosen, BOX)
        judged = []
        for pixels, truth in zip(test.pictures, test.truth, strict=True):
            boxes, labels = torch.from_numpy(truth.boxes), torch.from_numpy(truth.labels)
            judged.append(Scene(encode(pixels), boxes, labels, torch.ones(len(labels))))
        make_bank(packs, teacher, judged).save(path)
    return Bank.load(path)


def make(options: argparse.Namespace) -> list[Path]:
    """Train, score and write eventful-vitdet.safetensors and .md; return the written files."""
    packs: Path = options.packs
    teacher = NanoDet(packs / "teachers2.tar")
    if options.trained is None:
        path = options.checkpoint.with_suffix(".bank")
        bank = bank_of(packs, teacher, path)
        if options.only == "bank":
            return [path]
        network = learn_with(options, bank)
    else:
        network = ViTDet(**NETWORK)
        network.load_state_dict({k: v.float() for k, v in load_file(options.trained).items()})
        network.eval()
    threshold = choose_threshold(network, packs, FRAME)
    metrics = judge(network, packs, teacher, FRAME, threshold)
    card = make_card(NETWORK, FRONTEND, threshold, metrics)
    path = options.output / f"{card.name}.safetensors"
    save_model(path, card, network.half())
    text = card_text(card, detection_table)
    path.with_suffix(".md").write_text(text, encoding="utf-8")
    return [path]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the recipe from the command line; return the exit code."""
    known = parser("objects", "folder of the .tar packs", STEPS)
    add_options(known)
    known.add_argument("--only", choices=("bank",), help="stop once the bank is written")
    known.add_argument("--trained", type=Path, help="weights that learn.py wrote")
    options = known.parse_args(argv)
    return carry_out(lambda: make(options), options.threads)


RATE_HZ = 10.0
_ABOUT: dict[str, Any] = {
    "description": (
        "Sixteen kinds of objects in video, with boxes: people, vehicles, animals, furniture"
        " and things that people carry. A small convolutional network processes every frame;"
        " the transformer after it computes only the tokens that changed."
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
        " 8,000 others at 8e-4, each time from the stored weights (--start); at last 1,246 steps of"
        " 64 views on an H100 (--seconds), a rate of 1e-3 and averaged weights. Views have 384 x"
        " 288 pixels or fewer. Weights are rounded to half precision."
    ),
    "split": (
        "Nothing was learnt from COCO val2017 (64 pictures), from the 80 pictures of COCO"
        " train2017 with all boxes, from two clips with boxes put down by hand and from three more"
        " fixed cameras; the teacher, whose layers the stem has, did learn from COCO train2017."
        " Of three clips the last fifth, the same camera as trained on, is held out. The"
        " validation pictures of images_det and 8 of COCO chose the threshold and were looked at"
        " while it learnt; the others were scored after each turn but the first, and once more for"
        " larger frames, six times. By them one thing was chosen: as the 80 pictures showed more"
        " false boxes than the validation pictures, whose boxes are mostly the teacher's, the"
        " threshold allows 0.25 there, not 0.5. Sizes of frames were compared on all pictures. On"
        " the validation pictures AP50 is 0.570 in 384 x 288 pixels, 0.609 in 416 x 312, 0.612 in"
        " 416 x 320 and 0.609 in 448 x 336, which take too long. Between the second and the third"
        " the 33 cars of the 80 pictures decided (0.316 and 0.269; 0.284 and 0.279 in the first and"
        " the last), so that what these cars have here is no independent measure."
    ),
    "limits": (
        "Detects people, cars, bicycles and larger animals in pictures and from cameras that"
        " it has not seen. Small and crowded objects are mostly missed, bags, trucks, buses and"
        " bottles nearly always. Paintings and dolls are detected as people, other things are"
        " sometimes detected as one of its kinds, and one object may have two boxes. About half"
        " of the operations of a step, those of the convolutional network, decrease only where the"
        " camera stands still."
    ),
    "licence_class": "research",
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
