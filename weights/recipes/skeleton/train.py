"""Training recipe of the shipped skeleton models: ``python -m weights.recipes.skeleton.train``.

Reads the packs of nine sets, trains a causal CoST-GCN on streams of their motions, chooses the
background's weight and the timeline on people that it has not learnt from, learns from those too,
scores it on further people, styles and files beside baselines, and writes the weights with their
card. ``--model costgcn-2d`` learns from projections of the same streams, and either from what
``--teacher weights/costgcn.safetensors`` says of them or, without it, from joints in films too.
Seeded, and resumed from OUTPUT/MODEL.partial.

``--start weights/costgcn.safetensors`` goes on from stored weights, with a smaller ``--rate``;
``--share 0.5`` keeps weights halfway between those and what was learnt from there.

It learns on a GPU too: after ``--device cuda --streams 256 --seconds 360 --learn`` there, the same
command without ``--device`` and ``--learn`` makes choices and scores elsewhere from that folder.
"""

from __future__ import annotations

import copy
import logging
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from costream.core.layouts import BODY_15
from costream.labels.recording import BACKGROUND
from costream.models.build import save_model
from costream.models.devices import find_device
from costream.models.skeleton.joints import JointStreams
from costream.models.skeleton.network import SkeletonNet
from costream.training.card_text import card_text, sequence_table
from costream.training.checkpoint import TrainingCheckpoint
from costream.training.optim import Schedule, update_average
from costream.training.skeleton.motions import Motion
from weights.recipes.common import TREES, carry_out, parser
from weights.recipes.skeleton.calibration import calibrate
from weights.recipes.skeleton.card import card_of
from weights.recipes.skeleton.composed import composed
from weights.recipes.skeleton.figures import figures
from weights.recipes.skeleton.learning import learn, read_teacher, start_from
from weights.recipes.skeleton.pictures import flat, picture_tokens, read_films, upright
from weights.recipes.skeleton.scoring import SkeletonWeights, majority, score, trees
from weights.recipes.skeleton.sets import MIRRORED, RATE_HZ, SETS, labels_of, read_set
from weights.recipes.skeleton.streams import Changes, MixedStreams, StreamBatches
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
    "min_score": 0.3,  # of pose estimators, which guess what they do not see
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
FLAT_NETWORK: dict[str, Any] = {**NETWORK, "channels": 6, "widths": [48, 80, 128, 176]}
STREAM_STEPS = 96
FILMS = 0.2  # share of the streams in pictures that are of films


@dataclass(frozen=True)
class SkeletonRecipeSize:
    """Size of a training; smaller for a quick test of the recipe itself."""

    steps: int = 6000
    last: int = 600  # steps after the choices, in which it learns of those people too
    rate: float = 3e-3  # of learning, at its highest; a third of it in the last steps
    streams: int = 16  # in each batch
    seconds: float = 0.0  # of wall time that all steps are spread over; 0: as long as they take
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
    teacher: Path | None = None,
    device: str = "cpu",
    learn_only: bool = False,
    share: float = 1.0,
) -> Path:
    """Train, score and write ``name``.safetensors and .md; return the path of the weights.

    ``start``: weights to begin with. ``without``: sets that nothing is learnt from; all of their
    motions are scored whose labels other sets have. ``name``: one of ``MODELS``. ``teacher``:
    weights for space that are learnt from too. ``device``: where it learns. ``learn_only``: stop
    when everything is learnt, and return the path of the checkpoint from which it goes on.
    ``share``: how far from the weights of ``start`` to those learnt the ones kept are (Wortsman et
    al., "Robust fine-tuning of zero-shot models", CVPR 2022).
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
    first = copy.deepcopy(network.state_dict())
    place = find_device(device)
    tutor = None if teacher is None else read_teacher(teacher, labels).to(place)
    made_up = [m for m in figures(seed) if m.label in labels]
    changes = Changes(guessed=0.0) if pictures else Changes()
    films = read_films(packs, test=False)[:: size.every] if pictures else []
    films = [m for m in films if m.label in labels]
    identity = {"recipe": name, "seed": seed, "without": list(without), **asdict(size)}
    identity |= {"seconds": None, "teacher": None if teacher is None else teacher.name}

    def go_on(parts: Sequence[Parts], title: str, steps: int, rate: float) -> Path:
        learnt = [m for part in parts for some in part.values() for m in some]
        seconds = size.seconds * steps / (size.steps + size.last)
        partial = TrainingCheckpoint(folder / f"{title}.partial", identity, False)
        every = [*learnt, *made_up, *composed(learnt, seed)]
        streams: StreamBatches | MixedStreams
        streams = StreamBatches(every, labels, MIRRORED, changes, place)
        if films and tutor is None:  # who knows nothing of flat figures
            facing = replace(changes, turn=0.0)
            flat_ones = StreamBatches(upright(films), labels, MIRRORED, facing, place)
            streams = MixedStreams(streams, flat_ones, FILMS)
        learn(
            network.to(place),
            streams,
            picture_tokens if pictures else lambda batch, _: body_tokens(batch.joints, batch.seen),
            Schedule(steps, size.streams, rate, decay=0.05, smoothing=0.05, seconds=seconds),
            STREAM_STEPS,
            seed,
            title,
            partial,
            tutor,
        )
        network.cpu()
        return partial.path

    def kept() -> SkeletonNet:
        weights = copy.deepcopy(first)
        update_average(weights, network, share)
        out = SkeletonNet(len(labels), **arguments)
        out.load_state_dict(weights)
        return out.eval()

    everyone = [train, choosing]
    go_on([train], name, size.steps, size.rate)
    if learn_only:
        return go_on(everyone, f"{name}-last", size.last, size.rate / 3)
    taught = {k: [m for part in everyone for m in part.get(k, ())] for k in data}
    if pictures:
        taught, choosing, test = (
            {k: flat(v) for k, v in p.items()} for p in (taught, choosing, test)
        )
    shift, timeline = calibrate(kept(), frontend, choosing, labels, RATE_HZ, seed)
    go_on(everyone, f"{name}-last", size.last, size.rate / 3)
    network = kept()
    with torch.no_grad():
        network.fc.bias[0] += shift
    network.half().float()  # rounded as it is stored
    weights = SkeletonWeights(network, frontend, timeline, RATE_HZ)

    def compared(motions: Sequence[Motion], learnt: Sequence[Motion], own: list[str]) -> Any:
        rows = {name: score(weights, motions, labels, own, seed)}
        learnt = [m for m in learnt if m.label in own]
        if learnt:
            rows["tree ensemble"] = trees(learnt, motions, own, frontend, size.trees, seed)
            rows["majority"] = majority(learnt, motions, own)
        return rows

    metrics = {}
    for part, motions in test.items():
        own = labels_of(motions if part in without else data[part])
        title = f"{SETS[part].title}, {len(own)} classes"
        metrics[title] = compared(motions, taught[part], own)
    if pictures:
        held_out = [m for m in read_films(packs, test=True)[:: size.every] if m.label in labels]
        own = labels_of(held_out)
        metrics[f"JHMDB, test part, {len(own)} classes"] = compared(held_out, films, own)
    arguments = {"num_classes": len(labels), **arguments}
    taught_by = None if teacher is None else teacher.stem
    card = card_of(name, labels, arguments, options, timeline, metrics, taught_by, share)
    path = folder / f"{name}.safetensors"
    save_model(path, card, network.half(), frontend)
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


def main(argv: Sequence[str] | None = None) -> int:
    """Run the recipe from the command line; return the exit code."""
    arguments = parser("skeleton", "folder of skel_*.npz", SkeletonRecipeSize().steps)
    arguments.add_argument("--model", choices=MODELS, default=MODELS[0])
    arguments.add_argument("--last", type=int, default=SkeletonRecipeSize().last)
    arguments.add_argument("--rate", type=float, default=SkeletonRecipeSize().rate)
    arguments.add_argument("--streams", type=int, default=SkeletonRecipeSize().streams)
    arguments.add_argument("--seconds", type=float, default=0.0, help="of learning; 0: any")
    arguments.add_argument("--start", type=Path, help="weights to begin with")
    arguments.add_argument("--share", type=float, default=1.0, help="of what is learnt from there")
    arguments.add_argument("--teacher", type=Path, help="weights for space to learn from")
    arguments.add_argument("--device", default="cpu", help="where it learns: auto, cpu or cuda")
    arguments.add_argument("--learn", action="store_true", help="stop before choices and scores")
    arguments.add_argument(
        "--without", action="append", default=[], choices=list(SETS), help="a set not to learn from"
    )
    options = arguments.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")

    def work() -> list[Path]:
        if find_device(options.device).type == "cuda":
            torch.set_float32_matmul_precision("high")
        size = SkeletonRecipeSize(
            *(options.steps, options.last, options.rate, options.streams, options.seconds)
        )
        path = make(
            *(options.packs, size, options.seed, options.output, options.start, options.without),
            *(options.model, options.teacher, options.device, options.learn, options.share),
        )
        return [path]

    return carry_out(work, options.threads)


if __name__ == "__main__":
    sys.exit(main())
