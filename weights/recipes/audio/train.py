"""Training recipe of the shipped audio models: ``python -m weights.recipes.audio.train``.

Reads the packs env_sound, music_genre and teachers, trains the continual backbone on labels and
on YAMNet's outputs, then on top of it a temporal model for genres and one for sounds, scores
both on held-out folds and songs and writes their weights with their cards. Seeded; about two
hours on one core.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from costream.checkpoints.card import Card, Timeline
from costream.frontends.audio import ContinualAudioNet, without_norms
from costream.models.audio import CoTrans
from costream.models.build import save_model
from costream.training.card_text import card_text
from costream.training.sequence_report import sequence_table
from costream.training.sound_augment import (
    NO_MUSIC,
    SILENCE,
    PieceSampler,
    genre_label,
    sound_label,
)
from costream.training.sound_cards import ABOUT, TITLES
from costream.training.sound_heads import token_bank, train_head
from costream.training.sound_report import clip_tokens, majority, predict, score
from costream.training.sound_teacher import Yamnet
from costream.training.sound_trees import trees
from costream.training.trees import TREES
from weights.recipes.action.loop import Schedule
from weights.recipes.audio.backbone import StepCallback, Teacher, join, prepare, train_backbone
from weights.recipes.audio.data import SoundClip, read_clips
from weights.recipes.common import carry_out, parser

# Parts of the data for training the backbone, and then, with it frozen, the temporal models.
_LEARNT = ("train",), ("train", "validation")
RATE_HZ = 4.0
# A change is detected when the new sound fills half of the second that a token covers.
DELAY_S = 0.75
_LINEAR = "linear classifier of tokens, same backbone"
# The genre of music changes more slowly than environmental sounds.
TIMELINES = {
    "cotrans": Timeline(threshold=0.45, low=0.25, min_length_s=2.0, min_gap_s=2.0),
    "cosounds": Timeline(threshold=0.5, low=0.3, min_length_s=0.5, min_gap_s=0.75),
}
NETWORK: dict[str, Any] = {
    "input_width": 128,
    "embed_dim": 192,
    "depth": 1,
    "num_heads": 16,
    "feedforward": 192,
    "window": 120,
    "positions": "learned",
    "num_positions": 192,
    "dropout": 0.2,
}


@dataclass(frozen=True)
class SoundRecipeSize:
    """Size of a training; smaller for a quick test of the recipe itself."""

    pieces: int = 24_000  # number of clips passed to the teacher
    steps: int = 3600  # of the backbone
    more: int = 4000  # of the backbone in a second cycle
    batch: int = 48
    streams: int = 800
    head_steps: int = 1500
    every: int = 1  # use every n-th clip
    trees: int = TREES


def make(
    packs: Path,
    teacher: Teacher,
    size: SoundRecipeSize,
    seed: int,
    folder: Path,
    watch: StepCallback | None = None,
) -> list[Path]:
    """Train, score and write cotrans and cosounds, .safetensors and .md; return the weight files.

    ``watch`` is called during the training of the backbone, see ``train_backbone``.
    """
    clips = read_clips(packs, size.every)
    train, known = ([c for c in clips if c.part in parts] for parts in _LEARNT)
    sounds = sorted({sound_label(c) for c in clips} | {SILENCE})
    genres = [*sorted({c.label for c in clips if c.set == "GTZAN"}), NO_MUSIC]
    supply = PieceSampler(train, sounds, genres)
    # In two halves with seeds of their own, so that they can be computed in parallel.
    lessons = join([prepare(supply, teacher, size.pieces // 2, seed + k) for k in (1, 2)])
    cycles = [
        Schedule(steps, size.batch, rate=rate, decay=0.05, smoothing=0.1)
        for steps, rate in ((size.steps, 3e-3), (size.more, 2e-3))
    ]
    student = train_backbone(lessons, cycles, seed, watch)
    backbone = rounded(without_norms(student.backbone).eval())
    bank = token_bank(backbone, PieceSampler(known, sounds, genres), size.streams, seed + 1)
    tests = {
        title: [c for c in clips if c.part == "test" and chosen(c)]
        for title, chosen in TITLES.items()
    }
    tokens = {title: clip_tokens(backbone, some) for title, some in tests.items()}
    paths = []
    for name, labels, targets, label_of in (
        ("cotrans", genres, bank.genres, _genre),
        ("cosounds", sounds, bank.sounds, sound_label),
    ):
        arguments = {"num_classes": len(labels), **NETWORK}
        own = {t: c for t, c in tests.items() if c and ("GTZAN" in t) == (name == "cotrans")}
        linear = partial(nn.Linear, backbone.token_width, len(labels))
        heads = {
            title: _trained(build, bank.tokens, targets, size, seed)
            for title, build in ((name, partial(CoTrans, **arguments)), (_LINEAR, linear))
        }
        metrics = {}
        for title, some in own.items():
            metrics[title] = {
                head: score(predict(module, tokens[title]), some, labels, label_of)
                for head, module in heads.items()
            }
            told = trees(known, some, labels, label_of, size.trees, seed)
            metrics[title]["tree ensemble"] = score(told, some, labels, label_of)
            metrics[title]["majority"] = majority(known, some, label_of)
        card = _card(name, labels, arguments, backbone, metrics)
        path = folder / f"{name}.safetensors"
        save_model(path, card, heads[name].half(), backbone.half())
        backbone.float()
        (folder / f"{name}.md").write_text(card_text(card, sequence_table), encoding="utf-8")
        paths.append(path)
    return paths


def rounded(module: Any) -> Any:
    """Return a module with its weights rounded to half precision, as stored."""
    return module.half().float()


def _genre(clip: SoundClip) -> str:
    return genre_label(clip) or NO_MUSIC


def _trained(
    build: Callable[[], nn.Module],
    tokens: Tensor,
    targets: Tensor,
    size: SoundRecipeSize,
    seed: int,
) -> nn.Module:
    torch.manual_seed(seed)
    head = build()
    schedule = Schedule(size.head_steps, 16, rate=1e-3, decay=0.05, smoothing=0.1)
    train_head(head, tokens, targets, schedule, seed, type(head).__name__)
    trained: nn.Module = rounded(head.eval())
    return trained


def _card(
    name: str,
    labels: Sequence[str],
    arguments: dict[str, Any],
    backbone: ContinualAudioNet,
    metrics: dict[str, Any],
) -> Card:
    widths = [layer.convolution.out_width for layer in backbone.layers]  # type: ignore[union-attr]
    return Card(
        name=name,
        task="sound classification",
        architecture="cotrans",
        arguments=arguments,
        labels=tuple(labels),
        rate_hz=RATE_HZ,
        delay_s=DELAY_S,
        background=NO_MUSIC if name == "cotrans" else SILENCE,
        frontend="audio",
        frontend_arguments={
            "token_width": backbone.token_width,
            "widths": widths[:-1],
            "feature_width": widths[-1],
            "pool": backbone.pool,
        },
        timeline=TIMELINES[name],
        paper="Continual Transformers (Hedegaard et al., ICLR 2023), for the temporal model",
        metrics=metrics,
        **ABOUT[name],
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the recipe from the command line; return the exit code."""
    options = parser("sound", "folder of the .tar packs", SoundRecipeSize().steps).parse_args(argv)
    np.seterr(all="raise", under="ignore")

    def work() -> list[Path]:
        teacher, size = Yamnet(options.packs / "teachers.tar"), SoundRecipeSize(steps=options.steps)
        return make(options.packs, teacher, size, options.seed, options.output)

    return carry_out(work, options.threads)


if __name__ == "__main__":
    sys.exit(main())
