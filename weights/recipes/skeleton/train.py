"""Training recipe of the shipped skeleton models: ``python -m weights.recipes.skeleton.train``.

Reads the packs of nine sets, trains a causal CoST-GCN on streams of their motions, chooses the
background's weight and the timeline on people that it has not learnt from, learns from those too,
scores it on further people, styles and files beside baselines, and writes the weights with their
card. ``--model costgcn-2d`` learns from projections of the same streams. Seeded, and resumed from
OUTPUT/MODEL.partial.

``--start weights/costgcn.safetensors`` goes on from stored weights, with a smaller ``--rate``.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from costream.frontends.joints import JointStreams
from costream.labels.recording import BACKGROUND
from costream.layouts import BODY_15
from costream.models.build import save_model
from costream.models.skeleton.network import SkeletonNet
from costream.training.card_text import card_text, sequence_table
from costream.training.optim import Schedule, TrainingCheckpoint
from costream.training.skeleton.motions import Motion
from weights.recipes.common import TREES, carry_out, parser
from weights.recipes.skeleton.calibration import calibrate
from weights.recipes.skeleton.card import card_of
from weights.recipes.skeleton.figures import figures
from weights.recipes.skeleton.learning import learn, start_from
from weights.recipes.skeleton.pictures import flat, picture_tokens, read_films
from weights.recipes.skeleton.scoring import SkeletonWeights, majority, score, trees
from weights.recipes.skeleton.sets import MIRRORED, RATE_HZ, SETS, labels_of, read_set
from weights.recipes.skeleton.streams import Changes, StreamBatches
from weights.recipes.skeleton.tokens import body_tokens

MODELS = ("costgcn", "costgcn-2d")
FRONTEND: dict[str, Any] = {
    "layout": "body-15",
    "axes": 3,
    "persons": 1,
    "streams": ["joint", "bone", "joint_motion"],
    "normalise": "body",
    "origin": 30,
    "heading": 30,
}
NETWORK: dict[str, Any] = {
    "joints": len(BODY_15.joints),
    "bones": [list(bone) for bone in BODY_15.bones],
    "centre": BODY_15.centre,
    "channels": 9,
    "persons": 1,
    "widths": [48, 96, 144, 192],
    "strides": [1, 2, 1, 1],
    "kernel": 7,
    "padding": "causal",
    "pool": 12,
    "statistics": True,
}
# In pictures: the same without depth, in which nobody can be turned to face the camera.
FLAT_FRONTEND: dict[str, Any] = {**FRONTEND, "axes": 2, "heading": 0}
FLAT_NETWORK: dict[str, Any] = {**NETWORK, "channels": 6, "widths": [32, 64, 96, 128]}
FLAT_TURN = 1.8  # radians to both sides of facing the camera that people are turned
STREAM_STEPS = 64


@dataclass(frozen=True)
class SkeletonRecipeSize:
    """Size of a training; smaller for a quick test of the recipe itself."""

    steps: int = 6000
    last: int = 600  # steps after the choices, in which it learns of those people too
    rate: float = 3e-3  # of learning, at its highest; a third of it in the last steps
    streams: int = 16  # in each batch
    every: int = 1  # use every n-th motion
    trees: int = TREES


def make(
    packs: Path,
    size: SkeletonRecipeSize,
    seed: int,
    folder: Path,
    start: Path | None = None,
    without: Sequence[str] = (),
    name: str = "costgcn",
) -> Path:
    """Train, score and write ``name``.safetensors and .md; return the path of the weights.

    ``start``: weights to begin with. ``without``: sets that nothing is learnt from; all of their
    motions are scored whose labels other sets have. ``name``: one of ``MODELS``.
    """
    pictures = name == "costgcn-2d"
    arguments, options = (FLAT_NETWORK, FLAT_FRONTEND) if pictures else (NETWORK, FRONTEND)
    data = {name: read_set(packs, name)[:: size.every] for name in SETS}
    seen = {name: motions for name, motions in data.items() if name not in without}
    labels = [BACKGROUND, *labels_of([m for motions in seen.values() for m in motions])]
    train, choosing, test = _parts(data, labels, without)
    frontend = JointStreams(**options)
    torch.manual_seed(seed)
    network = SkeletonNet(len(labels), **arguments)
    if start is not None:
        start_from(network, labels, start)
    changes = Changes(turn=FLAT_TURN) if pictures else Changes()
    made_up = [m for m in figures(seed) if m.label in labels]
    identity = _identity(name, size, seed, without)

    def go_on(parts: Sequence[Parts], title: str, steps: int, rate: float) -> None:
        learnt = [m for part in parts for some in part.values() for m in some]
        learn(
            network,
            StreamBatches([*learnt, *made_up], labels, MIRRORED, changes),
            picture_tokens if pictures else lambda batch, _: body_tokens(batch.joints, batch.seen),
            Schedule(steps, size.streams, rate=rate, decay=0.05, smoothing=0.05),
            STREAM_STEPS,
            seed,
            title,
            TrainingCheckpoint(folder / f"{title}.partial", identity, False),
        )

    everyone = [train, choosing]
    go_on([train], name, size.steps, size.rate)
    taught = {k: [m for part in everyone for m in part.get(k, ())] for k in data}
    if pictures:
        taught, choosing, test = (
            {k: flat(v) for k, v in p.items()} for p in (taught, choosing, test)
        )
    shift, timeline = calibrate(network, frontend, choosing, labels, RATE_HZ, seed)
    go_on(everyone, f"{name}-last", size.last, size.rate / 3)
    with torch.no_grad():
        network.fc.bias[0] += shift
    weights = SkeletonWeights(network, frontend, timeline, RATE_HZ)
    metrics: dict[str, Any] = {}
    for place, motions in test.items():
        own = labels_of(motions if place in without else data[place])
        rows: dict[str, Any] = {name: score(weights, motions, labels, own, seed)}
        if taught[place]:
            own_taught = [m for m in taught[place] if m.label in own]
            rows["tree ensemble"] = trees(own_taught, motions, own, frontend, size.trees, seed)
            rows["majority"] = majority(own_taught, motions, own)
        metrics[f"{SETS[place].title}, {len(own)} classes"] = rows
    if pictures:
        films = read_films(packs)[:: size.every]
        own = labels_of(films)
        title = f"JHMDB, never seen, test part, {len(own)} classes"
        metrics[title] = {name: score(weights, films, labels, own, seed)}
    card = card_of(
        name, labels, {"num_classes": len(labels), **arguments}, options, timeline, metrics
    )
    path = folder / f"{name}.safetensors"
    save_model(path, card, network, frontend)
    path.with_suffix(".md").write_text(card_text(card, sequence_table), encoding="utf-8")
    return path


Parts = dict[str, list[Motion]]


def _parts(
    data: Parts, labels: Sequence[str], without: Sequence[str]
) -> tuple[Parts, Parts, Parts]:
    """Return the motions to learn from, to choose on and to score, by set."""
    train: Parts = {}
    choosing: Parts = {}
    test: Parts = {}
    for name, motions in data.items():
        own = SETS[name]
        if name in without:
            train[name], test[name] = [], [m for m in motions if m.label in labels]
            continue
        held_out = (*own.validation, *own.test)
        train[name] = [m for m in motions if m.group not in held_out]
        test[name] = [m for m in motions if m.group in own.test]
        chosen = [m for m in motions if m.group in own.validation]
        if chosen:
            choosing[name] = chosen
    return train, choosing, test


def _identity(
    name: str, size: SkeletonRecipeSize, seed: int, without: Sequence[str]
) -> dict[str, Any]:
    identity: dict[str, Any] = {"recipe": name, "steps": size.steps, "seed": seed}
    identity |= {"rate": size.rate, "last": size.last}
    return identity | ({"without": list(without)} if without else {})


def main(argv: Sequence[str] | None = None) -> int:
    """Run the recipe from the command line; return the exit code."""
    arguments = parser("skeleton", "folder of skel_*.npz", SkeletonRecipeSize().steps)
    arguments.add_argument("--model", choices=MODELS, default=MODELS[0])
    arguments.add_argument("--last", type=int, default=SkeletonRecipeSize().last)
    arguments.add_argument("--rate", type=float, default=SkeletonRecipeSize().rate)
    arguments.add_argument("--start", type=Path, help="weights to begin with")
    arguments.add_argument(
        "--without", action="append", default=[], choices=list(SETS), help="a set not to learn from"
    )
    options = arguments.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")

    def work() -> list[Path]:
        size = SkeletonRecipeSize(options.steps, options.last, options.rate)
        path = make(
            *(options.packs, size, options.seed, options.output),
            *(options.start, options.without, options.model),
        )
        return [path]

    return carry_out(work, options.threads)


if __name__ == "__main__":
    sys.exit(main())
