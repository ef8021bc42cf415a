"""Training recipe of ``costgcn-pairs``: ``python -m weights.recipes.skeleton.pairs``.

What two people do to each other, from their joints in pictures: SBU Kinect Interaction (Yun et al.,
CVPR workshops 2012), read as pixels. It starts from ``--start
weights/research/costgcn-2d.safetensors``. The background is people of the other sets, each alone.
Nothing is learnt from motions in which two of the six actors are seen: those that they begin are
the test. Those of one more are for the choice of the background's weight and of the timeline, and
are learnt from in the last steps.
Seeded, and resumed from OUTPUT/*.partial.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from costream.core.layouts import BODY_15
from costream.labels.recording import BACKGROUND
from costream.models.build import save_model
from costream.models.skeleton.joints import JointStreams
from costream.models.skeleton.network import SkeletonNet
from costream.training.card_text import card_text, sequence_table
from costream.training.checkpoint import TrainingCheckpoint
from costream.training.optim import Schedule
from costream.training.skeleton.motion_augment import Augmenter, Variety
from costream.training.skeleton.motion_streams import StreamMaker
from costream.training.skeleton.motions import Joints, Motion
from costream.training.skeleton.skeleton_training import SkeletonSupply, train_network
from costream.training.training_loop import TrainingRun
from costream.weights_io.card import Card
from weights.recipes.common import TREES, carry_out, parser
from weights.recipes.skeleton.calibration import calibrate
from weights.recipes.skeleton.learning import start_from
from weights.recipes.skeleton.scoring import SkeletonWeights, majority, score, trees
from weights.recipes.skeleton.sets import RATE_HZ, SETS, between_hips, read_pack, read_set, scaled
from weights.recipes.skeleton.train import FLAT_FRONTEND, FLAT_NETWORK

NAME = "costgcn-pairs"
TEST, CHOOSING = (5, 6), (4,)  # actors
LABELS = {
    "approaching": "approach",
    "departing": "depart",
    "exchanging": "exchange",
    "hugging": "hug",
    "kicking": "kick",
    "punching": "punch",
    "pushing": "push",
    "shaking_hands": "shake hands",
}
FRONTEND: dict[str, Any] = {**FLAT_FRONTEND, "persons": 2}
NETWORK: dict[str, Any] = {**FLAT_NETWORK, "persons": 2}
STREAM_STEPS, STREAMS = 64, 12
_ASPECT = 640 / 480  # of its pictures, whose coordinates are shares of width and height
_ORDER = (2, 1, 0, *range(3, 15))  # its joints begin with head, neck and torso
# What somebody does alone that looks like something done to another.
_TO_OTHERS = ("walk", "run", "carry", "push", "pull", "punch", "kick", "throw", "catch")
ALONE = 0.4  # share of the background in which one person is alone
APART = (2.5, 9.0)  # of two people, in mean bones (about 0.28 m)


@dataclass(frozen=True)
class PairsRecipeSize:
    """Size of a training; smaller for a quick test of the recipe itself."""

    steps: int = 600
    last: int = 200  # steps after the choices
    background: int = 300  # motions
    trees: int = TREES


def make(packs: Path, size: PairsRecipeSize, seed: int, folder: Path, start: Path) -> Path:
    """Train, score and write costgcn-pairs.safetensors and .md; return the path of the weights."""
    pairs = read_pairs(packs)
    labels = [BACKGROUND, *sorted(LABELS.values())]
    train = [m for who, m in pairs if not {*who} & {*TEST, *CHOOSING}]
    choosing = [m for who, m in pairs if {*who} & {*CHOOSING} and not {*who} & {*TEST}]
    test = [m for who, m in pairs if who[0] in TEST]
    taught = [*train, *choosing]
    rng = np.random.default_rng(seed)
    known, unknown = (background(packs, size.background, rng, test=t) for t in (False, True))
    torch.manual_seed(seed)
    frontend, network = JointStreams(**FRONTEND), SkeletonNet(len(labels), **NETWORK)
    start_from(network, labels, start)

    def learn(motions: Sequence[Motion], title: str, steps: int, rate: float) -> None:
        both = [*motions, *map(swapped, motions), *known]
        augmenter = Augmenter(BODY_15, 2, Variety(mirror=0.5), {})
        maker = StreamMaker(both, labels, augmenter, BACKGROUND)
        partial = TrainingCheckpoint(folder / f"{title}.partial", identity, False)
        schedule = Schedule(steps, STREAMS, rate=rate, smoothing=0.1)
        supplies = [SkeletonSupply(maker, STREAMS)]
        run = TrainingRun(seed, partial, title=title)
        train_network(network, frontend, supplies, schedule, STREAM_STEPS, run)

    identity = {"recipe": NAME, "seed": seed, "start": start.name, **asdict(size)}
    learn(train, NAME, size.steps, 1e-2)
    shift, timeline = calibrate(network, frontend, {"sbu": choosing}, labels, RATE_HZ, seed)
    learn(taught, f"{NAME}-last", size.last, 3e-3)
    with torch.no_grad():
        network.fc.bias[0] += shift
    network.half().float()  # rounded as it is stored
    weights = SkeletonWeights(network, frontend, timeline, RATE_HZ)
    events = labels[1:]
    rows: dict[str, Any] = {NAME: score(weights, test, labels, events, seed)}
    rows["tree ensemble"] = trees(taught, test, events, frontend, size.trees, seed)
    rows["majority"] = majority(taught, test, events)
    shown = [bool(weights.segments(p, labels)) for p in weights.predict(unknown)]
    card = _card(labels, {f"SBU, actors 5 and 6, {len(events)} classes": rows}, weights, shown)
    path = folder / f"{NAME}.safetensors"
    save_model(path, card, network.half(), frontend)
    path.with_suffix(".md").write_text(card_text(card, sequence_table), encoding="utf-8")
    return path


Pairs = list[tuple[tuple[int, int], Motion]]


def read_pairs(folder: Path) -> Pairs:
    """Return the motions [T, 2, V, 3] of pairs with the actor and the other, who acts first.

    UsageError if the pack is missing.
    """
    pack = read_pack(folder, "sbu", "the motions of pairs")
    x = pack["x"].astype(np.float32).reshape(-1, 2, 15, 3)
    x = between_hips(x[:, :, _ORDER])
    joints = np.stack((x[..., 0] * _ASPECT, -x[..., 1], np.ones_like(x[..., 0])), -1)
    out: Pairs = []
    for k, (begin, length) in enumerate(zip(pack["start"], pack["length"], strict=True)):
        who = int(pack["subject"][k]), int(pack["second"][k])
        label = LABELS[str(pack["classes"][pack["y"][k]])]
        own = scaled(joints[begin : begin + length])
        out.append((who, Motion(f"sbu {k}", label, f"actor {who[0]}", own)))
    return out


def swapped(motion: Motion) -> Motion:
    """Return a motion with the two people in the other order."""
    return Motion(motion.name, motion.label, motion.group, motion.joints[:, ::-1].copy())


def background(packs: Path, count: int, rng: np.random.Generator, *, test: bool) -> list[Motion]:
    """Return motions of one person alone, or of two next to each other, as seen by a camera.

    The people are from the training parts of the other sets, or with ``test`` from their tests.
    """
    alone = [
        m for name, own in SETS.items() for m in read_set(packs, name)
        if (m.group in own.test) == test and (test or m.group not in own.validation)
    ]  # fmt: skip
    beside = [m for m in alone if not m.label.startswith(_TO_OTHERS)]
    out = []
    for k in range(count):
        if rng.random() < ALONE:
            joints = _seen(alone, rng)
            joints = np.concatenate((joints, np.zeros_like(joints)), 1)
        else:
            one, two = _seen(beside, rng), _seen(beside, rng)
            steps = min(len(one), len(two))
            apart = rng.uniform(*APART) * rng.choice((-1, 1))
            two[..., 0] += apart * two[..., -1]
            joints = np.concatenate((one[:steps], two[:steps]), 1)
        out.append(Motion(f"background {k}", BACKGROUND, "background", joints))
    return out


def _seen(motions: Sequence[Motion], rng: np.random.Generator) -> Joints:
    """Return a random motion [T, 1, V, 3], turned at random, as a far camera sees it."""
    joints = motions[int(rng.integers(len(motions)))].joints
    angle = rng.uniform(-np.pi, np.pi)
    x = joints[..., 0] * np.cos(angle) + joints[..., 2] * np.sin(angle)
    out = np.stack((x, joints[..., 1], joints[..., 3]), -1).astype(np.float32)
    first = out[0, 0, BODY_15.centre, :2].copy()
    out[..., :2] = (out[..., :2] - first) * (out[..., 2:] > 0)
    return out


def _card(
    labels: Sequence[str], metrics: dict[str, Any], weights: SkeletonWeights, shown: Sequence[bool]
) -> Card:
    """Return the card; ``shown``: whether anything is, for each motion of the background."""
    return Card(
        name=NAME,
        task="online action detection",
        architecture="costgcn",
        arguments={"num_classes": len(labels), **NETWORK},
        labels=tuple(labels),
        rate_hz=RATE_HZ,
        background=BACKGROUND,
        frontend="joints",
        frontend_arguments=FRONTEND,
        timeline=weights.timeline,
        description=(
            "What two people do to each other, from joints in pictures: approach, depart, push,"
            " punch, kick, hug, shake hands, exchange things."
        ),
        paper="Continual Spatio-Temporal Graph Convolutional Networks (Hedegaard et al., 2023)",
        trained_on=(
            "SBU Kinect Interaction, 110 motions of 1 to 3 s of the actors 1 to 4 with each other,"
            " their joints in pictures, in either order and mirrored. It began with"
            " costgcn-2d. The background is rests and ways between motions, and motions of the"
            " people of the other sets, seen from all sides, alone or two beside each other who"
            " have nothing to do with each other."
        ),
        split=(
            "By person: actors 5 and 6 are in the test only, with those whom they act upon there,"
            " some of whom were learnt from. The background's weight and the timeline were chosen"
            " on motions with actor 4, which the last steps learnt from too. Four trainings were"
            " scored on this test part before: three without a background, to see if it works, and"
            " one that took the torso for the hips. Of"
            f" {len(shown)} motions of one or two people of the other sets' tests who do nothing to"
            f" each other, something is shown in {np.mean(shown):.2f}."
        ),
        metrics=metrics,
        limits=(
            "Trained on six actors in one room, completely visible, seen from the side by one"
            " camera that does not move. Expects two people; if there are more, it uses the"
            " first two. One person alone, or two people who do not interact, are the"
            " background. Not for safety, and not evidence of violence or of its absence."
        ),
        licence_class="research",
        licence=(
            "Research use only: SBU Kinect Interaction (free for research, to be cited), and the"
            " terms of costgcn-2d, with which it began: MSR-Action3D (Microsoft Research, research"
            " use), GTU3D (no licence given, research use), UTD-MHAD, NW-UCLA, UTKinect-Action3D,"
            " Florence 3D Actions (free for research, to be cited),"
            " Bandai-Namco-Research-Motiondataset (CC BY-NC 4.0), UI-PRMD (public domain by its"
            " authors), CMU motion capture (free use; mocap.cs.cmu.edu, NSF EIA-0196217)."
        ),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the recipe from the command line; return the exit code."""
    arguments = parser("skeleton", "folder of skel_*.npz", PairsRecipeSize().steps)
    arguments.prog = "python -m weights.recipes.skeleton.pairs"
    arguments.add_argument("--last", type=int, default=PairsRecipeSize().last)
    arguments.add_argument("--start", type=Path, required=True, help="weights to begin with")
    options = arguments.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    size = PairsRecipeSize(options.steps, options.last)

    def work() -> list[Path]:
        return [make(options.packs, size, options.seed, options.output, options.start)]

    return carry_out(work, options.threads)


if __name__ == "__main__":
    sys.exit(main())
