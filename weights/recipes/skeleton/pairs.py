"""Training recipe of ``costgcn-pairs``: ``python -m weights.recipes.skeleton.pairs``.

What two people do to each other, from their joints in pictures: SBU Kinect Interaction (Yun et al.,
CVPR workshops 2012), read as pixels, and UT-Interaction (Ryoo and Aggarwal, 2010), as the pose
estimator finds people in its films (``--tracks``, see ``weights.recipes.skeleton.tracks``). It
starts from ``--start``, the weights of version 0.1. The background is people of the other sets,
each alone, and what people of UT-Interaction do between its acts.

It learns once with each of UT-Interaction's two places, and once with both. What the two say of the
other place chooses the background's weight and the timeline, and is the score from pixels. Of SBU
nothing is learnt from motions in which two of the six actors are seen: those that they begin are
its test. Seeded, and resumed from OUTPUT/*.partial.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
from costream.training.skeleton.skeleton_trainer import predict
from costream.training.training_loop import TrainingRun
from costream.weights_io.card import Card, Timeline
from weights.recipes.common import TREES, carry_out, parser
from weights.recipes.skeleton.calibration import BIASES, CLOSING, THRESHOLDS, WRONG, shifted
from weights.recipes.skeleton.films import read_couples
from weights.recipes.skeleton.learning import learn, start_from
from weights.recipes.skeleton.scoring import (
    Rows,
    SkeletonWeights,
    majority,
    score,
    timeline_of,
    trees,
)
from weights.recipes.skeleton.sets import (
    RATE_HZ,
    SETS,
    between_hips,
    labels_of,
    read_pack,
    read_set,
    scaled,
)
from weights.recipes.skeleton.streams import StreamBatch
from weights.recipes.skeleton.train import FLAT_FRONTEND, FLAT_NETWORK

NAME = "costgcn-pairs"
TEST = (5, 6)  # actors
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
ACTS = {  # of UT-Interaction
    "handshake": "shake hands",
    "hug": "hug",
    "kick": "kick",
    "no_interaction": BACKGROUND,
    "point": "point",
    "punch": "punch",
    "push": "push",
}
RATE = 3e-3  # of learning, at its highest
LENGTHS_S = (0.4, 0.7, 1.0)  # of the shortest segment
RAISED = 0.05  # added to the threshold that is chosen: clips without an act count little there
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

    steps: int = 900
    half: int = 600  # steps with one of the two places
    background: int = 300  # motions
    trees: int = TREES


class _PairStreams:
    """Draws batches of streams of two people, as the frontend takes them."""

    def __init__(self, maker: StreamMaker) -> None:
        self._maker = maker

    def draw(self, count: int, steps: int, generator: torch.Generator) -> StreamBatch:
        """Return streams; joints [B, T, 2, V, 3] with scores."""
        rng = np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))
        streams = [self._maker.draw(steps, rng) for _ in range(count)]
        joints = torch.from_numpy(np.stack([s.joints for s in streams]))
        labels, weights = (
            torch.from_numpy(np.stack([getattr(s, name) for s in streams]))
            for name in ("labels", "weights")
        )
        return StreamBatch(joints, joints[..., -1] > 0, labels, weights)


def make(
    packs: Path, tracks: Path, size: PairsRecipeSize, seed: int, folder: Path, start: Path
) -> Path:
    """Train, score and write costgcn-pairs.safetensors and .md; return the path of the weights."""
    pairs, films = read_pairs(packs), read_acts(packs, tracks)
    labels = [BACKGROUND, *sorted({*LABELS.values(), *ACTS.values()} - {BACKGROUND})]
    train = [m for who, m in pairs if not {*who} & {*TEST}]
    test = [m for who, m in pairs if who[0] in TEST]
    rng = np.random.default_rng(seed)
    known, unknown = (background(packs, size.background, rng, test=t) for t in (False, True))
    frontend = JointStreams(**FRONTEND)
    augmenter = Augmenter(BODY_15, 2, Variety(mirror=0.5, speed=0.3), {})

    def learnt(motions: Sequence[Motion], title: str, steps: int) -> SkeletonNet:
        torch.manual_seed(seed)
        network = SkeletonNet(len(labels), **NETWORK)
        start_from(network, labels, start)
        both = [*motions, *map(swapped, motions), *known]
        streams = _PairStreams(StreamMaker(both, labels, augmenter, BACKGROUND))
        partial = TrainingCheckpoint(
            folder / f"{NAME}-{title}.partial", {**identity, "steps": steps}, False
        )
        schedule = Schedule(steps, STREAMS, rate=RATE, smoothing=0.1)
        run = TrainingRun(seed, partial, title=f"{NAME} {title}")
        learn(network, streams, lambda x, _: frontend(x.joints), schedule, STREAM_STEPS, run)
        return network

    places = sorted({m.group for m in films})
    identity = {"recipe": NAME, "seed": seed, "start": start.name, "every": size.background}
    halves = {
        place: learnt([*train, *(m for m in films if m.group != place)], f"without {k}", size.half)
        for k, place in enumerate(places, 1)
    }
    told = {p: predict(halves[p], frontend, [m for m in films if m.group == p]) for p in places}
    truth = {p: [m for m in films if m.group == p] for p in places}
    shift, timeline = choose_pairs(told, truth, labels, RATE_HZ)
    timeline = _raised(timeline)
    network = learnt([*train, *films], "all", size.steps)
    with torch.no_grad():
        network.fc.bias[0] += shift
    network.half().float()  # rounded as it is stored
    weights = SkeletonWeights(network, frontend, timeline, RATE_HZ)
    metrics: dict[str, Any] = {}
    for place in places:
        with torch.no_grad():
            halves[place].fc.bias[0] += shift
        other = SkeletonWeights(halves[place], frontend, timeline, RATE_HZ)
        known = [m for m in films if m.group != place]
        metrics |= _place_scores(other, truth[place], known, labels, size, seed)
    events = sorted(LABELS.values())
    rows = {NAME: score(weights, test, labels, events, seed)}
    rows["tree ensemble"] = trees(train, test, events, frontend, size.trees, seed)
    rows["majority"] = majority(train, test, events)
    metrics[f"SBU, actors 5 and 6, {len(events)} classes"] = rows
    shown = [bool(weights.segments(p, labels)) for p in weights.predict(unknown)]
    card = _card(labels, metrics, weights, shown)
    path = folder / f"{NAME}.safetensors"
    save_model(path, card, network.half(), frontend)
    path.with_suffix(".md").write_text(card_text(card, sequence_table), encoding="utf-8")
    return path


def _place_scores(
    weights: SkeletonWeights,
    motions: Sequence[Motion],
    known: Sequence[Motion],
    labels: Sequence[str],
    size: PairsRecipeSize,
    seed: int,
) -> dict[str, Any]:
    """Return the scores on the acts of a place, of weights that learnt from others (``known``)."""
    held_out = [m for m in motions if m.label != BACKGROUND]
    acts, nothing = labels_of(held_out), [m for m in motions if m.label == BACKGROUND]
    rows: dict[str, Any] = {NAME: score(weights, held_out, labels, acts, seed)}
    known = [m for m in known if m.label in acts]
    rows["tree ensemble"] = trees(known, held_out, acts, weights.frontend, size.trees, seed)
    rows["majority"] = majority(known, held_out, acts)
    title = f"{motions[0].group}, from pixels, learnt without this place, {len(acts)} classes"
    if nothing:
        share = np.mean([shown_share(weights, m, labels) for m in nothing])
        title += f"; of {len(nothing)} clips without an act {share:.2f} show one"
    return {title: rows}


def shown_share(weights: SkeletonWeights, motion: Motion, labels: Sequence[str]) -> float:
    """Return 1.0 if the timeline of a motion shows anything, else 0.0."""
    return float(bool(weights.segments(weights.predict([motion])[0], labels)))


def choose_pairs(
    told: Mapping[str, Sequence[Rows]],
    truth: Mapping[str, Sequence[Motion]],
    labels: Sequence[str],
    rate_hz: float,
) -> tuple[float, Timeline]:
    """Return what to add to the background's logit, and the timeline, for acts of other places.

    They minimise the shares of clips that show nothing, and three times those that show a wrong
    label, with clips without an act as one more label; a mean over labels.
    """
    best, least = (0.0, Timeline()), float("inf")
    for bias in BIASES:
        for threshold in THRESHOLDS:
            for length_s in LENGTHS_S:
                timeline = Timeline(threshold, round(CLOSING * threshold, 3), length_s, 0.6)
                costs: dict[str, list[float]] = {}
                for place, motions in truth.items():
                    for motion, rows in zip(motions, told[place], strict=True):
                        found = timeline_of(shifted(rows, bias), labels, timeline, rate_hz / 2)
                        shown = {s.label for s in found}
                        missed = motion.label != BACKGROUND and motion.label not in shown
                        cost = missed + WRONG * bool(shown - {motion.label})
                        costs.setdefault(motion.label, []).append(cost)
                cost = float(np.mean([np.mean(some) for some in costs.values()]))
                if cost < least:
                    best, least = (bias, timeline), cost
    return best


def _raised(timeline: Timeline) -> Timeline:
    threshold = round(timeline.threshold + RAISED, 3)
    return replace(timeline, threshold=threshold, low=round(CLOSING * threshold, 3))


def read_acts(packs: Path, tracks: Path) -> list[Motion]:
    """Return the acts of UT-Interaction, and what people do between them, as motions of pairs.

    UsageError if packs or tracks are missing.
    """
    return [
        Motion(m.name, ACTS[m.label], m.group, scaled(m.joints))
        for m in read_couples(packs, tracks)
        if len(m.joints) > 4
    ]


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
            "What two people do to each other, from joints in pictures or from video: approach,"
            " depart, push, punch, kick, point, hug, shake hands, exchange things."
        ),
        paper="Continual Spatio-Temporal Graph Convolutional Networks (Hedegaard et al., 2023)",
        trained_on=(
            "SBU Kinect Interaction, motions of 1 to 3 s of the actors 1 to 4 with each other,"
            " their joints in pictures; 96 acts of UT-Interaction and 91 clips of what people do"
            " between them, two places (sequences 1 to 8 and 11 to 18), as nanodet and pose find"
            " the two people in the films. In either order and mirrored. It began with the weights"
            " of version 0.1. The background is rests and ways between motions, and motions of the"
            " people of other sets, seen from all sides, alone or two beside each other who have"
            " nothing to do with each other."
        ),
        split=(
            "From pixels by place: a network that learnt from one place of UT-Interaction is scored"
            " on the other; what both say of the other place also chose the background's weight and"
            " the timeline, whose threshold was then raised by 0.05, for clips without an act. The"
            " shipped weights learnt from both. SBU by person: actors 5 and 6 are"
            " in the test only, with those whom they act upon there, some of whom were learnt from."
            f" Of {len(shown)} motions of one or two people of the other sets' tests who do nothing"
            f" to each other, something is shown in {np.mean(shown):.2f}."
        ),
        metrics=metrics,
        limits=(
            "Three places, people completely visible, seen from the side by a camera that does not"
            " move. Expects two people; if there are more, it uses the first two. One person alone,"
            " or two people who do not interact, are the"
            " background. Not for safety, and not evidence of violence or of its absence."
        ),
        licence_class="research",
        licence=(
            "Research use only: SBU Kinect Interaction (free for research, to be cited),"
            " UT-Interaction (research use), and the terms of the costgcn-2d of version 0.1,"
            " with which it began: MSR-Action3D (Microsoft Research, research use), GTU3D (no"
            " licence given, research use), UTD-MHAD, NW-UCLA, UTKinect-Action3D,"
            " Florence 3D Actions (free for research, to be cited),"
            " Bandai-Namco-Research-Motiondataset (CC BY-NC 4.0), UI-PRMD (public domain by its"
            " authors), CMU motion capture (free use; mocap.cs.cmu.edu, NSF EIA-0196217)."
        ),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the recipe from the command line; return the exit code."""
    known = PairsRecipeSize()
    arguments = parser("skeleton", "folder of skel_*.npz and films", known.steps)
    arguments.prog = "python -m weights.recipes.skeleton.pairs"
    arguments.add_argument("--half", type=int, default=known.half, help="steps with one place")
    arguments.add_argument("--tracks", type=Path, required=True, help="folder of joints of films")
    arguments.add_argument("--start", type=Path, required=True, help="weights to begin with")
    options = arguments.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    size = PairsRecipeSize(options.steps, options.half)

    def work() -> list[Path]:
        where = options.output, options.start
        return [make(options.packs, options.tracks, size, options.seed, *where)]

    return carry_out(work, options.threads)


if __name__ == "__main__":
    sys.exit(main())
