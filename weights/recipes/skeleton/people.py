"""Training recipe of ``costgcn-2d``: ``python -m weights.recipes.skeleton.people``.

What each person does, from joints in pictures, of pose estimators above all. It starts from
``--start``, the weights of version 0.1, and learns from motions of nine sets, JHMDB's films, a
made-up figure that falls, lies, sits and exercises, and persons in films, as
``weights.recipes.skeleton.tracks`` finds them (``--tracks``). Motions get the estimator's errors,
measured in those films.

First it learns without exercises in films; from there, twice without each of five parts of the
sources and twice with all of them: the mean of the weights of both is taken. What a network says
of the sources that it has not learnt from chooses temperature, thresholds and the shortest
segment, and is the score of films. Seeded, and resumed from OUTPUT/*.partial.
"""

from __future__ import annotations

import copy
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from costream.labels.recording import BACKGROUND
from costream.models.build import save_model
from costream.models.skeleton.joints import JointStreams
from costream.models.skeleton.network import SkeletonNet
from costream.training.card_text import card_text, sequence_table
from costream.training.checkpoint import TrainingCheckpoint
from costream.training.optim import Schedule
from costream.training.skeleton.motions import Motion
from costream.training.training_loop import TrainingRun
from weights.recipes.common import TREES, carry_out, parser
from weights.recipes.skeleton.composed import composed
from weights.recipes.skeleton.exercises import exercises
from weights.recipes.skeleton.figures import figures
from weights.recipes.skeleton.films import EXERCISES, FOLDS, FilmPerson, read_films
from weights.recipes.skeleton.learning import learn, start_from
from weights.recipes.skeleton.people_card import card_of
from weights.recipes.skeleton.people_choices import Choices, choose, rows_of, with_temperature
from weights.recipes.skeleton.people_scores import film_scores, set_scores
from weights.recipes.skeleton.pictures import flat, upright
from weights.recipes.skeleton.pictures import read_films as read_jhmdb
from weights.recipes.skeleton.seen import EstimatorErrors, FilmStreams, SeenStreams, seen_tokens
from weights.recipes.skeleton.sets import MIRRORED, RATE_HZ, SETS, labels_of, read_set
from weights.recipes.skeleton.streams import Changes, MixedStreams, StreamBatches
from weights.recipes.skeleton.train import FLAT_FRONTEND, FLAT_NETWORK, STREAM_STEPS, parts_of

NAME = "costgcn-2d"
STREAMS = 16  # in each batch
MARKED = 0.15  # share of the motions that are joints marked in films
RESTING = {"sit down": "sit", "< stand up": "sit", "fall": "lie", "lie": "lie", "< lie": "lie"}
ERRORS_FROM = ("UT-Interaction", "CCTV", "GMDCSA24")  # sources without exercises; at first one
CHOOSING = "GMDCSA24 gmdcsa24_subject2"  # nothing is learnt from this home
Parts = dict[str, list[Motion]]


@dataclass(frozen=True)
class PeopleRecipeSize:
    """Size of a training; smaller for a quick test of the recipe itself."""

    base: int = 2400  # steps before there are films
    films: int = 1000  # steps with films of all sources but a part
    last: int = 1400  # steps with all of them
    rate: float = 2e-3  # at its highest
    every: int = 1  # use every n-th motion
    trees: int = TREES


class PeopleRecipe:
    """Data, network and training."""

    def __init__(
        self,
        packs: Path,
        tracks: Path,
        size: PeopleRecipeSize,
        seed: int,
        folder: Path,
        start: Path,
    ) -> None:
        self._packs, self._tracks, self._size, self._seed = packs, tracks, size, seed
        self._folder, self._start = folder, start
        data = {name: read_set(packs, name)[:: size.every] for name in SETS}
        made = [*figures(seed), *exercises(seed)]
        known = [m for motions in data.values() for m in motions] + made
        shown = {*labels_of(known), *EXERCISES.values(), "fight"} - {BACKGROUND}
        self.labels = [BACKGROUND, *sorted(shown)]
        self._train, self._choosing, self._test = parts_of(data, self.labels, ())
        self._made = made[:: size.every]
        self.films = read_films(packs, tracks, self.labels)
        self.errors = self._errors(ERRORS_FROM)
        self._marked = [m for m in read_jhmdb(packs, test=False) if m.label in shown]
        self.frontend = JointStreams(**FLAT_FRONTEND)

    def _errors(self, sources: tuple[str, ...]) -> EstimatorErrors:
        known = [p for p in self.films if p.fold >= 0 and p.source.startswith(sources)]
        return EstimatorErrors(known)

    def base(self) -> SkeletonNet:
        """Return a network that has learnt from motions without films."""
        torch.manual_seed(self._seed)
        network = SkeletonNet(len(self.labels), **FLAT_NETWORK)
        start_from(network, self.labels, self._start)
        return self._learnt(network, "base", self._size.base, [self._train])

    def without(self, base: SkeletonNet, fold: int) -> SkeletonNet:
        """Return a network that has also learnt from films, but for those of a part of them."""
        network = copy.deepcopy(base)
        films = [p for p in self.films if p.fold not in (fold, -1)]
        return self._mean(network, f"without-{fold}", self._size.films, [self._train], films)

    def all(self, base: SkeletonNet) -> SkeletonNet:
        """Return a network that has learnt from all but the tests."""
        network, films = copy.deepcopy(base), [p for p in self.films if p.fold >= 0]
        parts = [self._train, self._choosing]
        return self._mean(network, "all", self._size.last, parts, films)

    def make(self) -> Path:
        """Train, choose, score and write the weights and the card; return the path."""
        base = self.base()
        others = [self.without(base, fold) for fold in range(FOLDS)]
        films = [p for p in self.films if p.fold >= 0 or p.source.startswith(CHOOSING)]
        rows = [rows_of(others[max(p.fold, 0)], p.joints) for p in films]
        motions = [m for some in self._choosing.values() for m in flat(some)]
        moved = [rows_of(others[0], m.joints) for m in motions]
        choices = choose(films, rows, motions, moved, self.labels, RATE_HZ / base.stride)
        network = with_temperature(self.all(base), choices)
        network.half().float()  # rounded as it is stored
        metrics = self._metrics(network, others, choices)
        card = card_of(
            self.labels, FLAT_NETWORK, FLAT_FRONTEND, choices, metrics, self.errors.rates
        )
        path = self._folder / f"{NAME}.safetensors"
        save_model(path, card, network.half(), self.frontend)
        path.with_suffix(".md").write_text(card_text(card, sequence_table), encoding="utf-8")
        return path

    def _metrics(
        self, network: SkeletonNet, others: Sequence[SkeletonNet], choices: Choices
    ) -> dict[str, Any]:
        taught = {
            name: [*flat(self._train.get(name, [])), *flat(self._choosing.get(name, []))]
            for name in SETS
        }
        others = [with_temperature(copy.deepcopy(other), choices) for other in others]
        size = self._size
        return {
            **film_scores(others, self.films, self.labels, choices, size.trees, self._seed),
            **set_scores(
                network,
                {name: flat(some) for name, some in self._test.items()},
                taught,
                (read_jhmdb(self._packs, test=True), self._marked),
                self.labels,
                choices,
                size.trees,
                self._seed,
            ),
        }

    def _mean(
        self,
        network: SkeletonNet,
        title: str,
        steps: int,
        parts: Sequence[Parts],
        films: Sequence[FilmPerson],
    ) -> SkeletonNet:
        """Return the mean of two trainings, which differ in their order (Wortsman et al., 2022)."""
        pair = []
        for seed in (self._seed, self._seed + 1):
            name = title if seed == self._seed else f"{title}-again"
            learnt = self._learnt(copy.deepcopy(network), name, steps, parts, films, seed)
            pair.append(learnt.state_dict())
        first, second = pair
        network.load_state_dict(
            {k: (v + second[k]) / 2 if v.is_floating_point() else v for k, v in first.items()}
        )
        return network

    def _learnt(
        self,
        network: SkeletonNet,
        title: str,
        steps: int,
        parts: Sequence[Parts],
        films: Sequence[FilmPerson] = (),
        seed: int | None = None,
    ) -> SkeletonNet:
        seed = self._seed if seed is None else seed
        labels = self.labels
        motions = [m for part in parts for of_set in part.values() for m in of_set]
        motions = [*motions, *self._made, *composed(motions, self._seed)]
        changes = Changes(guessed=0.0)
        streams = MixedStreams(
            StreamBatches(motions, labels, MIRRORED, changes, resting=RESTING),
            StreamBatches(upright(self._marked), labels, MIRRORED, Changes(guessed=0.0, turn=0.0)),
            MARKED,
        )
        errors = self.errors if films else self._errors(ERRORS_FROM[:1])
        persons = FilmStreams(films, labels, MIRRORED, errors) if films else None
        seen = SeenStreams(streams, persons, errors, len(labels))
        rate = self._size.rate * (0.5 if films else 1.0)
        schedule = Schedule(steps, STREAMS, rate, decay=0.05, smoothing=0.05)
        identity = {"recipe": NAME, "start": self._start.name, "every": self._size.every}
        identity |= {"seed": seed, "rate": rate, "steps": steps}
        partial = TrainingCheckpoint(self._folder / f"{NAME}-{title}.partial", identity, False)
        run = TrainingRun(seed, partial, title=f"{NAME} {title}")
        learn(network, seen, seen_tokens, schedule, STREAM_STEPS, run)
        return network


def make(
    packs: Path, tracks: Path, size: PeopleRecipeSize, seed: int, folder: Path, start: Path
) -> Path:
    """Train, score and write costgcn-2d; return the path of its weights."""
    folder.mkdir(parents=True, exist_ok=True)
    return PeopleRecipe(packs, tracks, size, seed, folder, start).make()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the recipe from the command line; return the exit code."""
    known = PeopleRecipeSize()
    arguments = parser("skeleton", "folder of skel_*.npz and films", known.base)
    arguments.prog = "python -m weights.recipes.skeleton.people"
    arguments.add_argument(
        "--films", type=int, default=known.films, help="steps without each part of the films"
    )
    arguments.add_argument("--last", type=int, default=known.last, help="steps with all films")
    arguments.add_argument("--rate", type=float, default=known.rate)
    arguments.add_argument("--tracks", type=Path, required=True, help="folder of joints of films")
    arguments.add_argument("--start", type=Path, required=True, help="weights to begin with")
    options = arguments.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    size = PeopleRecipeSize(options.steps, options.films, options.last, options.rate)

    def work() -> list[Path]:
        where = options.output, options.start
        return [make(options.packs, options.tracks, size, options.seed, *where)]

    return carry_out(work, options.threads)


if __name__ == "__main__":
    sys.exit(main())
