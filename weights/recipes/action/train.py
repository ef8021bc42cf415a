"""Training recipe of the shipped action models: ``python -m weights.recipes.action.train``.

Reads the packs fir_action, actions_video, images_det and teachers2, renders synthetic rooms and
people before pictures, trains frontend and CoOadTR jointly, then the frontend on video and pictures
of all other places too, then the baselines and the temporal models, chooses temperatures, timelines
and familiarities on validation video, and writes weights with their cards. Seeded; three to four
hours on one core of 2023.

The frontend also learns to classify random movements, which are not among the classes of the
weights: this improves later training on custom classes.

``--keep start`` trains the stored frontend and temporal models further, on all places,
``--keep frontend`` only the temporal models, and ``--keep weights`` nothing; in any case
temperatures, timelines and metrics are recomputed. The training on all places resumes after an
interruption.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from costream.models.build import build, save_model
from costream.models.oad.cooadtr import CoOadTR
from costream.models.oad.image_context import ImageContext
from costream.models.oad.oadtr import OadTR
from costream.models.oad.tdn import TemporalDifferenceNet
from costream.training.card_text import card_text
from costream.training.checkpoint import TrainingCheckpoint
from costream.training.optim import Schedule
from costream.training.training_loop import TrainingRun
from costream.weights_io.file import read_weights
from weights.recipes.action.cards import (
    FRONTEND,
    HOME,
    RATE_HZ,
    calibrated,
    described,
    falls,
    make_card,
    scored,
    tell,
)
from weights.recipes.action.data import Drawn, Sampler, read_pack, split_of
from weights.recipes.action.loop import (
    frame_table,
    majority,
    predict,
    reminded,
    score,
    token_bank,
    train,
    train_frontend,
    train_head,
    trees,
)
from weights.recipes.action.places import Films, Places, read_places
from weights.recipes.action.rendering.figure import LABELS, random_movement
from weights.recipes.action.rendering.scenes import LabelledClip, rendered_clips
from weights.recipes.common import TREES, carry_out, parser
from weights.recipes.objects.teacher import NanoDet

CLIP_STEPS = 96
ROUNDS = 2
# How often moments, and clips for the temporal models, are drawn from the rooms, rendered rooms,
# people before pictures, homes, passers-by and films. Rendered labels are exact, and more of them
# gain most on all validation streams.
MOMENTS = (6, 2, 2, 3, 3, 5)
CLIPS = (7, 9, 1, 2, 2, 3)
COMMON: dict[str, Any] = {
    "input_width": 288,
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
# Added to the seed: the best of three trainings on an earlier frontend, by mAP on the validation
# streams.
SEEDS = {"cooadtr": 2, "cooadtr-b2": 0, "oadtr": 0}
BUILD: dict[str, type[nn.Module]] = {"cooadtr": CoOadTR, "oadtr": OadTR}


@dataclass(frozen=True)
class ActionRecipeSize:
    """Amounts of data and training; smaller ones serve quick tests of the recipe."""

    steps: int = 1400  # of the frontend alone and of the per-frame classifier, in each round
    place_steps: int = 1600  # of the frontend on all places
    joint_steps: int = 50
    head_steps: int = 800
    bank: int = 100  # batches of augmented clips for the temporal model in each round
    last_bank: int = 150  # of clips of all places, for the final temporal models
    last_steps: int = 2600  # of those; of the two with a window for each step 5 / 8 as many
    scenes: int = 100
    before: int = 16  # scenes before pictures
    movements: int = 60
    moving: int = 120  # scenes with movements
    check_scenes: int = 8
    trees: int = TREES
    only: tuple[str, ...] | None = None  # prefixes of the names of videos
    every: int = 1  # of the pictures, and of the clips of other places


@dataclass(frozen=True)
class VideoSplits:
    """The clips of each part of the experiment."""

    train: list[LabelledClip]
    rendered: list[LabelledClip]
    moving: list[LabelledClip]  # random movements, whose classes follow LABELS
    validation: list[LabelledClip]
    test: list[LabelledClip]
    rendered_check: list[LabelledClip]  # other rooms and people
    places: Places

    @property
    def held_out(self) -> dict[str, list[LabelledClip]]:
        """Clips with labels that are not trained on, by their title in the cards."""
        return {
            "test": self.test,
            "validation": self.validation,
            "rendered rooms": self.rendered_check,
            HOME: self.places.home,
        }


def load(packs: Path, size: ActionRecipeSize, seed: int) -> VideoSplits:
    """Read the packs and render the scenes. Raises UsageError if a pack is missing."""
    box = (FRONTEND["box"][0], FRONTEND["box"][1])
    real = list(read_pack(packs / "fir_action.tar", box, size.only))
    places = read_places(packs, box, RATE_HZ, size.before, size.every, 4000 + seed)
    parts = {
        name: [c for c in real if split_of(c.name) == name]
        for name in ("train", "validation", "test")
    }
    rendered = rendered_clips(size.scenes, 1000 + seed, RATE_HZ, box)
    check = rendered_clips(size.check_scenes, 5 + seed, RATE_HZ, box)
    chance = np.random.default_rng(2000 + seed)
    movements = [random_movement(chance, f"movement {k}") for k in range(size.movements)]
    moving = rendered_clips(size.moving, 3000 + seed, RATE_HZ, box, movements)
    return VideoSplits(
        parts["train"], rendered, moving, parts["validation"], parts["test"], check, places
    )


def make(
    video: VideoSplits, size: ActionRecipeSize, seed: int, folder: Path, teacher: NanoDet
) -> list[Path]:
    """Train everything and write NAME.safetensors and NAME.md; return the weight files.

    ``teacher``: the network whose first layers process complete pictures.
    """
    frontend = train_joint_frontend(video, size, seed, teacher)
    plain, linear = train_plain(_samplers([video.train, video.rendered]), size, seed)
    every = [clip for clips in video.held_out.values() for clip in clips]
    learnt = [*video.train, *video.rendered]
    guesses = iter(trees(learnt, every, len(LABELS), size.trees, seed))
    others: dict[str, dict[str, Any]] = {}
    for title, clips in video.held_out.items():
        rows = {
            "per-frame classifier": predict(plain, [linear], clips)[0],
            "tree ensemble": [next(guesses) for _ in clips],
            "majority": majority(video.train, clips, len(LABELS)),
        }
        others[title] = {k: score(v, clips, LABELS, RATE_HZ) for k, v in rows.items()}
    partial = train_places(frontend, video, size, seed, folder)
    networks = new_temporal(seed)
    bank = token_bank(frontend, mixture(video, CLIPS), size.last_bank, 1, seed + ROUNDS)
    train_temporal(networks, bank, size, seed)
    written = write(video, frontend, networks, others, folder)
    partial.remove()
    return written


def remake(
    video: VideoSplits, size: ActionRecipeSize, seed: int, folder: Path, keep: str
) -> list[Path]:
    """Train the weights in a folder further, as ``--keep`` says; return the files.

    The metrics of their baselines are retained.
    """
    networks: dict[str, nn.Module] = {}
    kept: dict[str, dict[str, Any]] = {}
    for name in NETWORKS:
        weights = read_weights(folder / f"{name}.safetensors")
        if keep == "weights":
            texts = "description", "trained_on", "limits", "licence"
            kept[name] = {text: getattr(weights.card, text) for text in texts}
        networks[name], frontend = build(weights.card, weights.tensors)
        networks[name].eval()
    others = {
        title: {k: v for k, v in scores.items() if k not in NETWORKS}
        for title, scores in weights.card.metrics.items()
    }
    assert isinstance(frontend, TemporalDifferenceNet)
    partial = None
    if keep == "start":
        partial = train_places(frontend, video, size, seed, folder)
    if keep != "weights":
        drawn = mixture(video, CLIPS)
        bank = token_bank(frontend.eval(), drawn, size.last_bank, 1, seed + ROUNDS)
        train_temporal(networks, bank, size, seed, len(drawn))
    written = write(video, frontend.eval(), networks, others, folder, kept)
    if partial is not None:
        partial.remove()
    return written


def write(
    video: VideoSplits,
    frontend: nn.Module,
    networks: dict[str, nn.Module],
    others: dict[str, dict[str, Any]],
    folder: Path,
    kept: Mapping[str, dict[str, Any]] | None = None,
) -> list[Path]:
    """Calibrate each network, score and write all; return the files.

    ``others``: metrics of the baselines, by part of the video and name. ``kept``: texts of the
    cards that stay, by name of the network.
    """
    places = video.places
    parts = {**video.held_out, **places.elsewhere, **places.test}
    rooms = {
        "validation": [*video.validation, *places.home],
        "rendered rooms": video.rendered_check,
    }
    told = tell(frontend, networks, parts)
    cards, results = {}, {}
    for name, logits in told.items():
        chosen_on = {**logits, "validation": [*logits["validation"], *logits[HOME]]}
        card = replace(make_card(name, *NETWORKS[name]), **(kept or {}).get(name, {}))
        card = calibrated(card, chosen_on, rooms, places.elsewhere)
        results[name] = scored(card, logits, video.held_out)
        notes = falls(card, logits[HOME], places.home), described(card, logits, video.test, places)
        cards[name] = replace(card, split=" ".join((card.split, *notes)))
    written = []
    for name, card in cards.items():
        order = [name, *(other for other in networks if other != name)]
        metrics = {
            title: {**{n: results[n][title] for n in order}, **others.get(title, {})}
            for title in video.held_out
        }
        card = replace(card, metrics=metrics)
        written.append(folder / f"{name}.safetensors")
        save_model(written[-1], card, networks[name], frontend)
        (folder / f"{name}.md").write_text(card_text(card, frame_table), encoding="utf-8")
    return written


def mixture(video: VideoSplits, shares: Sequence[int]) -> list[Drawn]:
    """Return the samplers of all places, each as often as ``shares`` say.

    The first two are of the rooms that the stored frontend knows.
    """
    places = video.places
    rooms, rendered, before, homes, passers = _samplers(
        [video.train, video.rendered, places.before, places.homes, places.passers]
    )
    films = Films(places.stills, len(LABELS), CLIP_STEPS, (FRONTEND["box"][0], FRONTEND["box"][1]))
    sources: list[Drawn] = [rooms, rendered, before, homes, passers, films]
    return [s for s, share in zip(sources, shares, strict=True) for _ in range(share)]


def train_places(
    frontend: TemporalDifferenceNet,
    video: VideoSplits,
    size: ActionRecipeSize,
    seed: int,
    folder: Path,
) -> TrainingCheckpoint:
    """Train a frontend on all places. Its outputs for the rooms of earlier trainings are to stay.

    Its BatchNorm statistics stay fixed. Returns the checkpoint, which serves until the weights
    are written.
    """
    torch.manual_seed(seed)
    linear = nn.Linear(frontend.token_width, len(LABELS))
    schedule = Schedule(size.place_steps, batch=3, rate=1e-3)
    about = {"seed": seed, "size": str(size)}
    partial = TrainingCheckpoint(folder / "frontend.partial", about, overwrite=True)
    drawn, kept = mixture(video, MOMENTS), sum(MOMENTS[:2])
    run = TrainingRun(seed, partial, title="all places")
    train_frontend(frontend, linear, drawn, schedule, run, 0.0, kept)
    return partial


def train_joint_frontend(
    video: VideoSplits, size: ActionRecipeSize, seed: int, teacher: NanoDet
) -> TemporalDifferenceNet:
    """Return the trained frontend.

    Each round trains it alone, then a temporal model on its tokens, then both jointly: the frontend
    learns most from single moments, and what only time shows from complete clips.
    """
    classes = len(LABELS) + size.movements
    samplers = _samplers([video.train, video.rendered, video.moving], classes)
    torch.manual_seed(seed)
    frontend = TemporalDifferenceNet(**FRONTEND)
    teacher.begin(cast(ImageContext, frontend.glimpse))
    linear = nn.Linear(frontend.token_width, classes)
    guide = _temporal("cooadtr", classes)
    together = Schedule(size.joint_steps, batch=3, rate=3e-4)
    for turn in range(ROUNDS):
        run = TrainingRun(seed + turn, title="frontend")
        train_frontend(frontend, linear, samplers, _moments(size), run)
        bank = token_bank(frontend, samplers, size.bank, 3, seed + turn)
        train_head(guide, bank, _heads(size), seed + turn, "temporal model")
        train(frontend, [guide], samplers, together, seed + turn, "together")
    return frontend


def train_plain(
    samplers: Sequence[Sampler], size: ActionRecipeSize, seed: int
) -> tuple[nn.Module, nn.Module]:
    """Return the trained per-frame classifier: a network without memory and a linear layer."""
    torch.manual_seed(seed)
    plain = TemporalDifferenceNet(**{**FRONTEND, "lags": [], "glimpse_width": 0})
    linear = nn.Linear(plain.token_width, len(LABELS))
    for turn in range(ROUNDS):
        run = TrainingRun(seed + turn, title="per-frame")
        train_frontend(plain, linear, samplers, _moments(size), run)
    return plain, linear


def new_temporal(seed: int) -> dict[str, nn.Module]:
    """Return the temporal models with random weights."""
    networks = {}
    for name in NETWORKS:
        torch.manual_seed(seed + SEEDS[name])
        networks[name] = _temporal(name)
    return networks


def train_temporal(
    networks: Mapping[str, nn.Module],
    bank: tuple[Tensor, Tensor],
    size: ActionRecipeSize,
    seed: int,
    shares: int = 0,
) -> None:
    """Train the temporal models on the tokens [N, T, D] of a finished frontend and their targets.

    "cooadtr" is trained on all steps of a clip; the others, with a window per step, on some.
    ``shares``: clips in each batch of the bank, of models that know the rooms of the first of them;
    half of the targets there, whose labels are late or early, is what the models say together.
    """
    all_steps = replace(_heads(size), steps=size.last_steps)
    some = replace(all_steps, steps=-(-5 * size.last_steps // 8))
    if shares:
        known = torch.arange(len(bank[0])) % shares < CLIPS[0]
        bank = bank[0], reminded(list(networks.values()), bank, known)
    for name, network in networks.items():
        own = seed + SEEDS[name]
        torch.manual_seed(own)
        schedule, last = (all_steps, None) if name == "cooadtr" else (some, 8)
        train_head(network, bank, schedule, own + ROUNDS, name, last)


def _samplers(parts: Sequence[list[LabelledClip]], classes: int = len(LABELS)) -> list[Sampler]:
    return [Sampler(clips, classes, CLIP_STEPS, RATE_HZ) for clips in parts]


def _moments(size: ActionRecipeSize) -> Schedule:
    return Schedule(size.steps, batch=32, rate=2e-3)


def _heads(size: ActionRecipeSize) -> Schedule:
    return Schedule(size.head_steps, batch=12, rate=1e-3)


def _temporal(name: str, classes: int = len(LABELS)) -> nn.Module:
    kind, arguments = NETWORKS[name]
    return BUILD[kind](**{**arguments, "num_classes": classes})


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the recipe; return the exit code."""
    known = parser("action")
    packs = Path(__file__).resolve().parents[3].parent / "shared" / "packs"
    known.add_argument("--packs", type=Path, default=packs, help="folder of the packs")
    known.add_argument("--keep", choices=("start", "frontend", "weights"), help="reuse stored ones")
    options = known.parse_args(arguments)

    def work() -> list[Path]:
        size = ActionRecipeSize()
        if options.keep:  # nothing learns movements
            size = replace(size, moving=0, scenes=174)
        if options.keep == "weights":
            size = replace(size, scenes=0, before=0)
        video = load(options.packs, size, options.seed)
        if options.keep:
            return remake(video, size, options.seed, options.output, options.keep)
        teacher = NanoDet(options.packs / "teachers2.tar")
        return make(video, size, options.seed, options.output, teacher)

    return carry_out(work, options.threads)


if __name__ == "__main__":
    raise SystemExit(main())
