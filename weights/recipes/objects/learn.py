"""Learning of the shipped detector from a bank: ``python -m weights.recipes.objects.learn BANK``.

The second part of train.py, for a machine with a GPU: it needs no packs, no PyAV and no ONNX
Runtime. There, ``--batch 64 --seconds 360`` fits the schedule to a time, reading included. On one
CPU core a step of 8 views takes 1.3 seconds, 2.1 with ``--stem``.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from costream.evaluation.metrics.detection import detection_scores
from costream.models.eventful.shuffle import ShuffleEmbedding
from costream.models.eventful.vitdet import ViTDet
from weights.recipes.common import carry_out
from weights.recipes.objects.bank import Bank, decode, truth_of
from weights.recipes.objects.detections import detect_images
from weights.recipes.objects.labels import LABELS
from weights.recipes.objects.loop import DetectorSchedule, DetectorTrainer, train
from weights.recipes.objects.teacher import STAGES, WIDTH, TeacherMaps
from weights.recipes.objects.views import SHAPES, ViewMaker

BOX, STEPS = (384, 288), 7000
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
    "shuffle": [list(stage) for stage in STAGES],
    "ghost": WIDTH,
    "channels": 64,
    "first": 1,
    "anchor": 24.0,
    "width": 192,
    "convolutions": 0,
    "proposals": 40,
    "candidates": 100,
}


@torch.no_grad()
def begin(network: ViTDet, teacher: TeacherMaps, views: ViewMaker) -> None:
    """Set a new network to the teacher's first layers; all of their channels have equal weight.

    Its blocks pass tokens on unchanged at first.
    """
    stem = network.embedding
    assert isinstance(stem, ShuffleEmbedding)
    for own, other in zip(stem.pretrained(), teacher.stem.pretrained(), strict=True):
        own.load_state_dict(other.state_dict())
    stem.to(views.device)
    seen = stem.maps(views.batch(32, next(iter(SHAPES))).normalised())
    for projection, maps in zip(stem.projections, seen, strict=True):
        scale = maps.std((0, 2, 3)).clamp(min=1e-3)
        cast(nn.Conv2d, projection).weight.div_(scale.view(1, -1, 1, 1))
    for block in network.backbone.blocks:
        for layer in (block.projection, block.mlp_2):
            nn.init.zeros_(cast(nn.Linear, layer).weight)


def learn(
    bank: Bank,
    course: DetectorSchedule,
    seed: int,
    checkpoint: Path,
    start: Path | None,
    device: torch.device,
) -> ViTDet:
    """Return a network trained on a bank, on the CPU. ``start``: weights to begin with."""
    started = time.monotonic()
    views, teacher = ViewMaker(bank, device), TeacherMaps()
    teacher.load_state_dict(bank.teacher)
    torch.manual_seed(seed)
    network = ViTDet(**NETWORK)
    if start is None:
        begin(network, teacher, views)
    else:
        stored = load_file(start).items()
        network.load_state_dict({k.removeprefix("network."): v.float() for k, v in stored})
    pictures = [picture.permute(2, 0, 1) for picture in decode(bank.judged)]
    truth = [truth_of(scene) for scene in bank.judged]

    def judge(trained: ViTDet) -> str:
        if not pictures:
            return "no pictures to be scored on"
        found = detect_images(trained, pictures, BOX)
        scores: dict[str, Any] = detection_scores(found, truth, LABELS)
        kinds = ", ".join(
            f"{name} {scores['classes'][name]['AP50']:.3f}"
            for name in ("person", "car")
            if name in scores["classes"]
        )
        return f"AP50 of {len(pictures)} validation pictures {scores['AP50']:.3f}, {kinds}"

    if course.seconds is not None:
        course = replace(course, seconds=max(1.0, course.seconds - (time.monotonic() - started)))
    learner = DetectorTrainer(network, teacher, bank.groups(), course, device)
    _report(f"{len(bank.scenes)} pictures on {device}")
    return train(learner, views, seed, checkpoint, judge, _report).cpu()


def _report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def add_options(known: argparse.ArgumentParser) -> None:
    """Add the options of a training."""
    known.add_argument("--checkpoint", type=Path, default=Path("eventful-vitdet.checkpoint"))
    known.add_argument("--seconds", type=float, help="length of the training in place of steps")
    known.add_argument("--batch", type=int, default=8, help="views of a step")
    known.add_argument("--rate", type=float, default=1e-3, help="peak of the learning rate")
    known.add_argument("--stem", type=float, default=0.0, help="its part for the teacher's layers")
    known.add_argument("--start", type=Path, help="weights to begin with")
    known.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")


def learn_with(options: argparse.Namespace, bank: Bank) -> ViTDet:
    """Return a network trained as options say, rounded to the half precision it is stored in."""
    name = options.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")  # TF32 on a GPU; nothing else on a CPU
    course = DetectorSchedule(
        options.steps, options.seconds, options.batch, options.rate, stem=options.stem
    )
    device = torch.device(name)
    network = learn(bank, course, options.seed, options.checkpoint, options.start, device)
    return network.half().float()


def main(argv: Sequence[str] | None = None) -> int:
    """Learn from a bank from the command line; return the exit code."""
    known = argparse.ArgumentParser(prog="python -m weights.recipes.objects.learn")
    known.add_argument("bank", type=Path, help="written by train.py")
    known.add_argument("-o", "--output", type=Path, required=True, help="trained weights")
    known.add_argument("--seed", type=int, default=0)
    known.add_argument("--threads", type=int, default=1)
    known.add_argument("--steps", type=int, default=STEPS)
    add_options(known)
    options = known.parse_args(argv)

    def work() -> list[Path]:
        trained = learn_with(options, Bank.load(options.bank)).half().state_dict()
        save_file({k: v.contiguous() for k, v in trained.items()}, options.output)
        return [options.output]

    return carry_out(work, options.threads)


if __name__ == "__main__":
    sys.exit(main())
