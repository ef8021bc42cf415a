"""Training recipe of the shipped detector: ``python -m weights.recipes.objects.train``.

Reads the packs coco256, samples and teachers, trains a small ViTDet on boxes and on the outputs of
YOLOX-nano, scores it on held-out images and clips, with all tokens and with fewer, and writes the
weights with their card. Seeded; about an hour on one core. An interrupted training resumes from
its checkpoint.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from costream.models.build import save_model
from costream.models.eventful.vitdet import ViTDet
from costream.training.card_text import card_text
from costream.training.objects_card import make_card
from costream.training.objects_report import choose_threshold, detection_table, judge
from costream.training.objects_scenes import make_view_source
from weights.recipes.common import carry_out, parser
from weights.recipes.objects.data import LABELS
from weights.recipes.objects.judge import BoxSize
from weights.recipes.objects.loop import DetectorSchedule, DetectorTrainer, train
from weights.recipes.objects.teacher import Yolox

FRONTEND: dict[str, Any] = {"box": [320, 192], "patch": 16}
NETWORK: dict[str, Any] = {
    "classes": len(LABELS),
    "dim": 160,
    "heads": 5,
    "depth": 6,
    "global_blocks": [2, 5],
    "size": [16, 24],
    "window": [8, 8],
    "position_size": [16, 24],
    "mlp_ratio": 4,
    "patch": 16,
    "stem": [24, 48, 96],
    "channels": 32,
    "width": 256,
    "convolutions": 0,
    "proposals": 40,
    "candidates": 100,
}


def make(packs: Path, course: DetectorSchedule, seed: int, folder: Path, checkpoint: Path) -> Path:
    """Train, score and write eventful-vitdet.safetensors and .md; return the weight file."""
    teacher = Yolox(packs / "teachers.tar")
    torch.manual_seed(seed)
    learner = DetectorTrainer(ViTDet(**NETWORK), course)
    network = train(learner, make_view_source(packs, teacher), teacher.maps, seed, checkpoint)
    network.half().float()  # rounded as it is stored
    box: BoxSize = (FRONTEND["box"][0], FRONTEND["box"][1])
    threshold = choose_threshold(network, packs, teacher, box)
    card = make_card(NETWORK, FRONTEND, threshold, judge(network, packs, teacher, box))
    path = folder / f"{card.name}.safetensors"
    save_model(path, card, network.half())
    (folder / f"{card.name}.md").write_text(card_text(card, detection_table), encoding="utf-8")
    return path


def main(argv: Sequence[str] | None = None) -> int:
    """Run the recipe from the command line; return the exit code."""
    known = parser("objects", "folder of the .tar packs", 2000)
    known.add_argument("--checkpoint", type=Path, default=Path("eventful-vitdet.checkpoint"))
    options = known.parse_args(argv)

    def work() -> list[Path]:
        course = DetectorSchedule(options.steps)
        return [make(options.packs, course, options.seed, options.output, options.checkpoint)]

    return carry_out(work, options.threads)


if __name__ == "__main__":
    sys.exit(main())
