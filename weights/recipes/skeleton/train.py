"""Training recipe of the shipped skeleton models: ``python -m weights.recipes.skeleton.train``.

Reads the packs of nine sets, trains a causal CoST-GCN on streams of their motions, chooses the
background's weight and the timeline on people that it has not learnt from, learns from those too,
scores it and baselines on further people, styles and files, and writes the weights with their
card. ``--model costgcn-2d`` learns from projections of the same streams, and also from the
outputs of ``--teacher weights/research/costgcn.safetensors`` or, without it, from joints in films.
Seeded, and resumed from OUTPUT/MODEL.partial.

``--start weights/research/costgcn.safetensors`` continues from stored weights, with a smaller
``--rate``; ``--share 0.5`` keeps weights halfway between those and the trained ones.

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
from torch import Tensor

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
from costream.training.training_loop import TrainingRun
from weights.recipes.common import TREES, carry_out, parser
from weights.recipes.skeleton.calibration import calibrate
from weights.recipes.skeleton.card import card_of
from weights.recipes.skeleton.composed import composed
from weights.recipes.skeleton.figures import figures
from weights.recipes.skeleton.learning import learn, read_teacher, start_from
from weights.recipes.skeleton.pictures import flat, picture_tokens, read_films, upright
from weights.recipes.skeleton.scoring import SkeletonWeights, majority, score, trees
from weights.recipes.skeleton.sets import MIRRORED, RATE_HZ, SETS, labels_of, read_set
from weights.recipes.skeleton.streams import Changes, MixedStreams, StreamBatch, StreamBatches
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


@dataclass(frozen=True)
class SkeletonOptions:
    """Further options of a training.

    Args:
        start: weights to begin with.
        without: sets that are not trained on; all of their motions whose labels other sets have
            are scored.
        name: one of ``MODELS``.
        teacher: weights for joints in space, whose outputs are learnt too.
        device: to train on.
        learn_only: stop after the training.
        share: position of the kept weights from ``start`` (0) to the trained ones (1) (Wortsman et
            al., "Robust fine-tuning of zero-shot models", CVPR 2022).
    """

    start: Path | None = None
    without: Sequence[str] = ()
    name: str = MODELS[0]
    teacher: Path | None = None
    device: str = "cpu"
    learn_only: bool = False
    share: float = 1.0


Parts = dict[str, list[Motion]]


class SkeletonRecipe:
    """Data, network and training of a skeleton model."""

    def __init__(
        self,
        packs: Path,
        size: SkeletonRecipeSize,
        seed: int,
        folder: Path,
        options: SkeletonOptions,
    ) -> None:
        self._size, self._seed, self._folder, self._options = size, seed, folder, options
        self._name, without, teacher = options.name, options.without, options.teacher
        self._pictures = self._name == "costgcn-2d"
        kind = (FLAT_NETWORK, FLAT_FRONTEND) if self._pictures else (NETWORK, FRONTEND)
        self._arguments, self._frontend_arguments = kind
        self._packs = packs
        self._data = {name: read_set(packs, name)[:: size.every] for name in SETS}
        used = [m for name, motions in self._data.items() if name not in without for m in motions]
        labels = self._labels = [BACKGROUND, *labels_of(used)]
        self._train, self._choosing, self._test = parts_of(self._data, labels, without)
        self._frontend = JointStreams(**self._frontend_arguments)
        torch.manual_seed(seed)
        self._network = self._new_network()
        if options.start is not None:
            start_from(self._network, labels, options.start)
        self._first = copy.deepcopy(self._network.state_dict())
        self._device = find_device(options.device)
        self._tutor = None if teacher is None else read_teacher(teacher, labels).to(self._device)
        self._figures = [m for m in figures(seed) if m.label in labels]
        self._changes = Changes(guessed=0.0) if self._pictures else Changes()
        films = read_films(packs, test=False)[:: size.every] if self._pictures else []
        self._films = [m for m in films if m.label in labels]

    def make(self) -> Path:
        """Train, score and write NAME.safetensors and .md; return the path of the weights.

        With ``learn_only`` return the path of the checkpoint after the training.
        """
        size, seed, name = self._size, self._seed, self._name
        everyone = [self._train, self._choosing]
        self._learn([self._train], name, size.steps, size.rate)
        last = (everyone, f"{name}-last", size.last, size.rate / 3)
        if self._options.learn_only:
            return self._learn(*last)
        taught = {k: [m for part in everyone for m in part.get(k, ())] for k in self._data}
        choosing, test = self._choosing, self._test
        if self._pictures:
            taught, choosing, test = (
                {k: flat(v) for k, v in p.items()} for p in (taught, choosing, test)
            )
        shift, timeline = calibrate(
            self._kept(), self._frontend, choosing, self._labels, RATE_HZ, seed
        )
        self._learn(*last)
        network = self._kept()
        with torch.no_grad():
            network.fc.bias[0] += shift
        network.half().float()  # rounded as it is stored
        weights = SkeletonWeights(network, self._frontend, timeline, RATE_HZ)
        metrics = self._metrics(weights, test, taught)
        arguments = {"num_classes": len(self._labels), **self._arguments}
        teacher = self._options.teacher
        taught_by = None if teacher is None else teacher.stem
        card = card_of(
            *(name, self._labels, arguments, self._frontend_arguments, timeline, metrics),
            *(taught_by, self._options.share),
        )
        path = self._folder / f"{name}.safetensors"
        save_model(path, card, network.half(), self._frontend)
        path.with_suffix(".md").write_text(card_text(card, sequence_table), encoding="utf-8")
        return path

    def _new_network(self) -> SkeletonNet:
        return SkeletonNet(len(self._labels), **self._arguments)

    def _learn(self, parts: Sequence[Parts], title: str, steps: int, rate: float) -> Path:
        """Train on the motions of these parts; return the path of the checkpoint."""
        size, labels, device = self._size, self._labels, self._device
        motions = [m for part in parts for of_set in part.values() for m in of_set]
        seconds = size.seconds * steps / (size.steps + size.last)
        partial = TrainingCheckpoint(self._folder / f"{title}.partial", self._identity(), False)
        motions = [*motions, *self._figures, *composed(motions, self._seed)]
        streams: StreamBatches | MixedStreams
        streams = StreamBatches(motions, labels, MIRRORED, self._changes, device)
        if self._films and self._tutor is None:  # a teacher for space cannot score films
            facing = replace(self._changes, turn=0.0)
            flat_ones = StreamBatches(upright(self._films), labels, MIRRORED, facing, device)
            streams = MixedStreams(streams, flat_ones, FILMS)
        tokens = picture_tokens if self._pictures else _tokens_in_space
        schedule = Schedule(steps, size.streams, rate, decay=0.05, smoothing=0.05, seconds=seconds)
        run = TrainingRun(self._seed, partial, title=title)
        network = self._network.to(device)
        learn(network, streams, tokens, schedule, STREAM_STEPS, run, self._tutor)
        network.cpu()
        return partial.path

    def _identity(self) -> dict[str, Any]:
        options = self._options
        return {
            "recipe": self._name,
            "seed": self._seed,
            "without": list(options.without),
            **asdict(self._size),
            "seconds": None,
            "teacher": None if options.teacher is None else options.teacher.name,
        }

    def _kept(self) -> SkeletonNet:
        """Return a network with the weights to keep, see ``share``."""
        weights = copy.deepcopy(self._first)
        update_average(weights, self._network, self._options.share)
        network = self._new_network()
        network.load_state_dict(weights)
        return network.eval()

    def _metrics(self, weights: SkeletonWeights, test: Parts, taught: Parts) -> dict[str, Any]:
        """Return the metrics of the network and the baselines, by test part."""
        metrics = {}
        for part, motions in test.items():
            labels = labels_of(motions if part in self._options.without else self._data[part])
            title = f"{SETS[part].title}, {len(labels)} classes"
            metrics[title] = self._compared(weights, motions, taught[part], labels)
        if self._pictures:
            films = read_films(self._packs, test=True)[:: self._size.every]
            held_out = [m for m in films if m.label in self._labels]
            labels = labels_of(held_out)
            title = f"JHMDB, test part, {len(labels)} classes"
            metrics[title] = self._compared(weights, held_out, self._films, labels)
        return metrics

    def _compared(
        self,
        weights: SkeletonWeights,
        motions: Sequence[Motion],
        taught: Sequence[Motion],
        labels: list[str],
    ) -> dict[str, Any]:
        """Return the scores of the network and of baselines that learn from ``taught``."""
        rows = {self._name: score(weights, motions, self._labels, labels, self._seed)}
        taught = [m for m in taught if m.label in labels]
        if taught:
            rows["tree ensemble"] = trees(
                taught, motions, labels, self._frontend, self._size.trees, self._seed
            )
            rows["majority"] = majority(taught, motions, labels)
        return rows


def _tokens_in_space(batch: StreamBatch, _: torch.Generator) -> Tensor:
    return body_tokens(batch.joints, batch.seen)


def make(
    packs: Path,
    size: SkeletonRecipeSize,
    seed: int,
    folder: Path,
    options: SkeletonOptions = SkeletonOptions(),
) -> Path:
    """Train, score and write a model; return the path of its weights, see ``SkeletonRecipe``."""
    return SkeletonRecipe(packs, size, seed, folder, options).make()


def parts_of(
    data: Parts, labels: Sequence[str], without: Sequence[str]
) -> tuple[Parts, Parts, Parts]:
    """Return the motions to learn from, to choose on and to score, by set."""
    train: Parts = {}
    choosing: Parts = {}
    test: Parts = {}
    for name, motions in data.items():
        skeleton_set = SETS[name]
        if name in without:
            train[name], test[name] = [], [m for m in motions if m.label in labels]
            continue
        held_out = (*skeleton_set.validation, *skeleton_set.test)
        train[name] = [m for m in motions if m.group not in held_out]
        test[name] = [m for m in motions if m.group in skeleton_set.test]
        chosen = [m for m in motions if m.group in skeleton_set.validation]
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
        further = SkeletonOptions(
            *(options.start, options.without, options.model, options.teacher, options.device),
            *(options.learn, options.share),
        )
        return [make(options.packs, size, options.seed, options.output, further)]

    return carry_out(work, options.threads)


if __name__ == "__main__":
    sys.exit(main())
