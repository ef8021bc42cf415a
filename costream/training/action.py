"""The recipe of the shipped action models: ``python -m costream.training.action``.

Reads the fir_action pack, renders synthetic rooms, trains frontend and CoOadTR together, chooses
the timeline on validation video, trains the baselines and the two further temporal models, and
writes weights with their cards. Seeded; about 40 minutes on one core of 2023.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from costream.errors import CostreamError, UsageError
from costream.frontends.images import TemporalDifferenceNet
from costream.models.build import save_model
from costream.models.card import Card
from costream.models.oad import CoOadTR
from costream.models.oadtr import OadTR
from costream.training.action_baselines import trees
from costream.training.augment import Sampler
from costream.training.clips import Clip, rendered_clips
from costream.training.figure import LABELS
from costream.training.fir_action import part, read_pack
from costream.training.heads import token_bank, train_head
from costream.training.loop import Schedule, train, train_frontend
from costream.training.report import card_text, majority, predict, score
from costream.training.timeline import choose, found
from costream.training.trees import TREES

RATE_HZ = 8.0
CLIP_STEPS = 96
ROUNDS = 2
FRONTEND: dict[str, Any] = {
    "box": [128, 96],
    "widths": [16, 24, 64, 128],
    "motion_width": 12,
    "lags": [1, 4, 16],
    "blocks": 2,
}
COMMON: dict[str, Any] = {
    "input_width": 256,
    "num_classes": len(LABELS),
    "num_heads": 8,
    "window": 64,
    "dropout": 0.2,
}
NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "cooadtr": ("cooadtr", {**COMMON, "embed_dim": 192, "depth": 1, "feedforward": 384}),
    "cooadtr-b2": ("cooadtr", {**COMMON, "embed_dim": 192, "depth": 2, "feedforward": 384}),
    "oadtr": (
        "oadtr",
        {
            **COMMON,
            "embed_dim": 128,
            "depth": 3,
            "feedforward": 256,
            "decoder_depth": 1,
            "decoder_feedforward": 256,
        },
    ),
}
BUILD = {"cooadtr": CoOadTR, "oadtr": OadTR}


@dataclass(frozen=True)
class Size:
    """How much of everything; smaller for a quick test of the recipe itself."""

    steps: int = 800  # of the frontend by itself, in each round
    joint_steps: int = 50
    head_steps: int = 800
    bank: int = 100
    scenes: int = 100
    check_scenes: int = 8
    trees: int = TREES
    only: tuple[str, ...] | None = None  # beginnings of names of videos


@dataclass(frozen=True)
class Video:
    """All video by its part in the experiment."""

    train: list[Clip]
    rendered: list[Clip]
    validation: list[Clip]
    test: list[Clip]
    rendered_check: list[Clip]  # rooms and people of their own


def load(pack: Path, size: Size, seed: int) -> Video:
    """Read and render everything. UsageError when the pack is not there."""
    if not pack.exists():
        raise UsageError(
            "the training video is not there",
            where=pack,
            hint="give the path of fir_action.tar with --pack",
        )
    box = (FRONTEND["box"][0], FRONTEND["box"][1])
    real = list(read_pack(pack, box, size.only))
    parts = {
        name: [c for c in real if part(c.name) == name] for name in ("train", "validation", "test")
    }
    rendered = rendered_clips(size.scenes, 1000 + seed, RATE_HZ, box)
    check = rendered_clips(size.check_scenes, 5 + seed, RATE_HZ, box)
    return Video(parts["train"], rendered, parts["validation"], parts["test"], check)


def make(video: Video, size: Size, seed: int, folder: Path) -> list[Path]:
    """Train everything and write NAME.safetensors and NAME.md; gives the weight files."""
    samplers = [
        Sampler(clips, len(LABELS), CLIP_STEPS, RATE_HZ) for clips in (video.train, video.rendered)
    ]
    torch.manual_seed(seed)
    frontend, picture_net, networks = train_networks(samplers, size, seed)
    plain, linear = picture_net
    heads = [*networks.values()]
    held_out = {
        "test": video.test,
        "validation": video.validation,
        "rendered rooms": video.rendered_check,
    }
    results: dict[str, dict[str, Any]] = {}
    told: dict[str, list[Any]] = {}
    for name, clips in held_out.items():
        told[name] = predict(frontend, heads, clips)
        rows = dict(zip(networks, told[name], strict=True))
        rows["per-frame classifier"] = predict(plain, [linear], clips)[0]
        learnt = [*video.train, *video.rendered]
        rows["tree ensemble"] = trees(learnt, clips, len(LABELS), size.trees, seed)
        rows["majority"] = majority(video.train, clips, len(LABELS))
        results[name] = {k: score(v, clips, LABELS, RATE_HZ) for k, v in rows.items()}
    written = []
    for k, (name, (architecture, arguments)) in enumerate(NETWORKS.items()):
        checks = [(told[part][k], held_out[part]) for part in ("validation", "rendered rooms")]
        timeline = choose(checks, LABELS, RATE_HZ)
        order = [name, *(m for m in results["test"] if m != name)]
        metrics = {part: {m: scores[m] for m in order} for part, scores in results.items()}
        for part_name, clips in held_out.items():
            segment_f1 = found(told[part_name][k], clips, timeline, LABELS, RATE_HZ).f1
            metrics[part_name][name] = {
                **metrics[part_name][name],
                "segment_f1": round(segment_f1, 4),
            }
        card = replace(_card(name, architecture, arguments), timeline=timeline, metrics=metrics)
        written.append(folder / f"{name}.safetensors")
        save_model(written[-1], card, networks[name], frontend)
        (folder / f"{name}.md").write_text(card_text(card), encoding="utf-8")
    return written


def train_networks(
    samplers: Sequence[Sampler], size: Size, seed: int
) -> tuple[nn.Module, tuple[nn.Module, nn.Module], dict[str, nn.Module]]:
    """Give the frontend, the per-frame classifier (network, linear layer) and the networks.

    Frontend by itself, temporal model on it, both together, and all of that once more: the
    frontend learns most from single moments, and what only time tells from the whole.
    """
    frontend = TemporalDifferenceNet(**FRONTEND)
    plain = TemporalDifferenceNet(**{**FRONTEND, "lags": []})
    linear = [nn.Linear(net.token_width, len(LABELS)) for net in (frontend, plain)]
    networks = {name: BUILD[kind](**arguments) for name, (kind, arguments) in NETWORKS.items()}
    alone = Schedule(size.steps, batch=32, rate=2e-3)
    heads = Schedule(size.head_steps, batch=12, rate=1e-3)
    together = Schedule(size.joint_steps, batch=3, rate=3e-4)
    for turn in range(ROUNDS):
        train_frontend(frontend, linear[0], samplers, alone, seed + turn, "frontend")
        train_frontend(plain, linear[1], samplers, alone, seed + turn, "per-frame classifier")
        bank = token_bank(frontend, samplers, size.bank, 3, seed + turn)
        train_head(networks["cooadtr"], bank, heads, seed + turn, "cooadtr")
        train(frontend, [networks["cooadtr"]], samplers, together, seed + turn, "together")
    bank = token_bank(frontend, samplers, size.bank, 3, seed + ROUNDS)
    train_head(networks["cooadtr"], bank, heads, seed + ROUNDS, "cooadtr")
    fewer = replace(heads, steps=-(-size.head_steps // 2), batch=6)
    for name in ("cooadtr-b2", "oadtr"):
        train_head(networks[name], bank, fewer, seed + ROUNDS, name, last=8)
    return frontend, (plain, linear[1]), networks


def _card(name: str, architecture: str, arguments: dict[str, Any]) -> Card:
    others = "" if name == "cooadtr" else " Trained on the finished frontend of cooadtr."
    return Card(
        name=name,
        task="online action detection",
        architecture=architecture,
        arguments=arguments,
        labels=LABELS,
        rate_hz=RATE_HZ,
        background=LABELS[0],
        frontend="tdn",
        frontend_arguments=FRONTEND,
        gap_tolerance_s=1.0,
        description="What one person does in a room seen by a fixed camera: walk, sit down, sit,"
        " stand up, fall, lie." + others,
        paper="OadTR (Wang et al., ICCV 2021)"
        if architecture == "oadtr"
        else "Continual Transformers (Hedegaard et al., ICLR 2023), section 4.1",
        trained_on="Nine videos (21 minutes) of the fir_action data, one person under a ceiling"
        " camera in two rooms, and 100 rendered clips (100 minutes) of random rooms, ceiling and"
        " corner cameras. Labels were merged to what they can carry: walk is being on one's feet"
        " (also standing), fall is the fall and lying there after it, lie is lying down and lying,"
        " background is an empty picture. 'active' and unlabelled time between actions were left"
        " out of training and scoring.",
        split="By video, fixed before training: 9 train, 3 validation, 5 test, both rooms in each;"
        " the people may be the same. The timeline's settings were chosen on validation and"
        " rendered video. Labels are off by up to a second, so scores with a tolerance are given.",
        limits="Not a fall detector and not for safety or medical use: trained on 17 short"
        " videos of two or three people acting in two rooms, and on rendered figures. Expects one"
        " person and a camera that does not move. Falls and lying down look alike to it when the"
        " movement was not seen, and lying may be called sitting. On video of other places"
        " (streets, offices, shops) its labels mean nothing, and it gives them with confidence.",
        licence="Research use only: the fir_action data state no licence (their authors ask for"
        " citation). Code and rendered data: Apache-2.0.",
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the recipe; gives the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m costream.training.action", description="Train the shipped action models."
    )
    root = Path(__file__).resolve().parents[2]
    pack = root.parent / "shared" / "packs" / "fir_action.tar"
    parser.add_argument("--pack", type=Path, default=pack, help="fir_action.tar")
    parser.add_argument("-o", "--output", type=Path, default=root / "weights", help="folder")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    try:
        size = Size()
        for path in make(
            load(options.pack, size, options.seed), size, options.seed, options.output
        ):
            print(path)
    except CostreamError as error:
        print(error, file=sys.stderr)
        return int(error.exit_code)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
