"""Training recipe of the shipped action models: ``python -m weights.recipes.action.train``.

Reads the fir_action pack, renders synthetic rooms, trains frontend and CoOadTR jointly, then the
baselines and the two other temporal models, chooses temperatures and timelines on validation
video, and writes weights with their cards. Seeded; two to three hours on one core of 2023.

The frontend also learns to classify random movements, which are not among the classes of the
weights: this improves later training on custom classes.

``--keep frontend`` retrains only the temporal models and ``--keep weights`` none; either way
temperatures, timelines and metrics are recomputed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from tqdm import tqdm

from costream.checkpoints.card import Card, Timeline
from costream.checkpoints.file import read_weights
from costream.errors import UsageError
from costream.frontends.tdn import TemporalDifferenceNet
from costream.models.build import build, save_model
from costream.models.oad.cooadtr import CoOadTR
from costream.models.oad.oadtr import OadTR
from costream.training.calibration import StreamPredictions, at_temperature, calibrate, segment_f1
from costream.training.card_text import card_text
from costream.training.optim import Optimizer, Schedule, fastest_autocast
from weights.recipes.action.data import Sampler, read_pack, split_of
from weights.recipes.action.loop import (
    batch,
    frame_table,
    majority,
    predict,
    score,
    train,
    train_frontend,
)
from weights.recipes.action.rendering.figure import LABELS, random_movement
from weights.recipes.action.rendering.scenes import LabelledClip, rendered_clips
from weights.recipes.common import TREES, carry_out, forest, parser, soft_cross_entropy

RATE_HZ = 8.0
CLIP_STEPS = 96
ROUNDS = 2
# Labels are off by up to a second; a much stricter overlap would score them, not the timeline.
LEAST_OVERLAP = 0.3
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
# Added to the seed: the best of three trainings on an earlier frontend, by mAP on the validation
# streams.
SEEDS = {"cooadtr": 2, "cooadtr-b2": 0, "oadtr": 0}
BUILD: dict[str, type[nn.Module]] = {"cooadtr": CoOadTR, "oadtr": OadTR}


@dataclass(frozen=True)
class ActionRecipeSize:
    """Amounts of data and training; smaller ones serve quick tests of the recipe."""

    steps: int = 1400  # of the frontend alone and of the per-frame classifier, in each round
    joint_steps: int = 50
    head_steps: int = 800
    bank: int = 100  # batches of augmented clips for the temporal model in each round
    last_bank: int = 400  # for the final temporal models
    scenes: int = 100
    movements: int = 60
    moving: int = 120  # scenes with movements
    check_scenes: int = 8
    trees: int = TREES
    only: tuple[str, ...] | None = None  # prefixes of the names of videos


@dataclass(frozen=True)
class VideoSplits:
    """The clips of each part of the experiment."""

    train: list[LabelledClip]
    rendered: list[LabelledClip]
    moving: list[LabelledClip]  # random movements, whose classes follow LABELS
    validation: list[LabelledClip]
    test: list[LabelledClip]
    rendered_check: list[LabelledClip]  # other rooms and people

    @property
    def held_out(self) -> dict[str, list[LabelledClip]]:
        """Clips not trained on, by their title in the cards."""
        return {
            "test": self.test,
            "validation": self.validation,
            "rendered rooms": self.rendered_check,
        }


def load(pack: Path, size: ActionRecipeSize, seed: int) -> VideoSplits:
    """Read the pack and render the scenes. Raises UsageError if the pack is missing."""
    if not pack.exists():
        raise UsageError(
            "training video not found",
            where=pack,
            hint="give the path of fir_action.tar with --pack",
        )
    box = (FRONTEND["box"][0], FRONTEND["box"][1])
    real = list(read_pack(pack, box, size.only))
    parts = {
        name: [c for c in real if split_of(c.name) == name]
        for name in ("train", "validation", "test")
    }
    rendered = rendered_clips(size.scenes, 1000 + seed, RATE_HZ, box)
    check = rendered_clips(size.check_scenes, 5 + seed, RATE_HZ, box)
    chance = np.random.default_rng(2000 + seed)
    movements = [random_movement(chance, f"movement {k}") for k in range(size.movements)]
    moving = rendered_clips(size.moving, 3000 + seed, RATE_HZ, box, movements)
    return VideoSplits(parts["train"], rendered, moving, parts["validation"], parts["test"], check)


def make(video: VideoSplits, size: ActionRecipeSize, seed: int, folder: Path) -> list[Path]:
    """Train everything and write NAME.safetensors and NAME.md; return the weight files."""
    samplers = _samplers([video.train, video.rendered])
    frontend = train_joint_frontend(video, size, seed)
    plain, linear = train_plain(samplers, size, seed)
    networks = train_temporal(frontend, samplers, size, seed)
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
    return write(video, frontend, networks, others, folder)


def recalibrate(
    video: VideoSplits, size: ActionRecipeSize, seed: int, folder: Path, heads: bool
) -> list[Path]:
    """Recalibrate the weights in a folder (temperature and timeline); return the files.

    With ``heads``, their temporal models are retrained first. Their frontend and the metrics of
    their baselines are retained.
    """
    networks: dict[str, nn.Module] = {}
    for name in NETWORKS:
        weights = read_weights(folder / f"{name}.safetensors")
        networks[name], frontend = build(weights.card, weights.tensors)
        networks[name].eval()
    others = {
        title: {k: v for k, v in scores.items() if k not in NETWORKS}
        for title, scores in weights.card.metrics.items()
    }
    assert frontend is not None
    if heads:
        samplers = _samplers([video.train, video.rendered])
        networks = train_temporal(frontend, samplers, size, seed)
    return write(video, frontend.eval(), networks, others, folder)


def write(
    video: VideoSplits,
    frontend: nn.Module,
    networks: dict[str, nn.Module],
    others: dict[str, dict[str, Any]],
    folder: Path,
) -> list[Path]:
    """Choose temperature and timeline of each network, score and write all; return the files.

    ``others``: metrics of the baselines, by part of the video and name.
    """
    predictions: dict[str, dict[str, list[StreamPredictions]]] = {}  # by part and network
    for title, clips in video.held_out.items():
        by_network = predict(frontend, [*networks.values()], clips)
        predictions[title] = {
            name: [StreamPredictions(p, clip.labels) for p, clip in zip(rows, clips, strict=True)]
            for name, rows in zip(networks, by_network, strict=True)
        }
    chosen = {
        name: calibrate(
            [predictions["validation"][name], predictions["rendered rooms"][name]],
            LABELS,
            RATE_HZ,
            Timeline(),
            overlap=LEAST_OVERLAP,
        )
        for name in networks
    }
    results: dict[str, dict[str, Any]] = {}
    for title, clips in video.held_out.items():
        results[title] = {}
        for name, by in chosen.items():
            rows = [
                at_temperature(t.probabilities, by.temperature) for t in predictions[title][name]
            ]
            streams = [
                replace(t, probabilities=p)
                for t, p in zip(predictions[title][name], rows, strict=True)
            ]
            f1 = segment_f1([streams], by.timeline, LABELS, RATE_HZ, LEAST_OVERLAP)
            scores = score(rows, clips, LABELS, RATE_HZ)
            results[title][name] = {**scores, "segment_f1": round(f1, 4)}
        results[title] |= others[title]
    written = []
    for name, by in chosen.items():
        order = [name, *(m for m in results["test"] if m != name)]
        card = _card(name, *NETWORKS[name])
        card = replace(
            card,
            split=f"{card.split} {by.how}",
            timeline=by.timeline,
            temperature=by.temperature,
            metrics={part: {m: scores[m] for m in order} for part, scores in results.items()},
        )
        written.append(folder / f"{name}.safetensors")
        save_model(written[-1], card, networks[name], frontend)
        (folder / f"{name}.md").write_text(card_text(card, frame_table), encoding="utf-8")
    return written


def train_joint_frontend(
    video: VideoSplits, size: ActionRecipeSize, seed: int
) -> TemporalDifferenceNet:
    """Return the trained frontend.

    Each round trains it alone, then a temporal model on its tokens, then both jointly: the frontend
    learns most from single moments, and what only time shows from whole clips.
    """
    classes = len(LABELS) + size.movements
    samplers = _samplers([video.train, video.rendered, video.moving], classes)
    torch.manual_seed(seed)
    frontend = TemporalDifferenceNet(**FRONTEND)
    linear = nn.Linear(frontend.token_width, classes)
    guide = _temporal("cooadtr", classes)
    together = Schedule(size.joint_steps, batch=3, rate=3e-4)
    for turn in range(ROUNDS):
        train_frontend(frontend, linear, samplers, _moments(size), seed + turn, "frontend")
        bank = token_bank(frontend, samplers, size.bank, 3, seed + turn)
        train_head(guide, bank, _heads(size), seed + turn, "temporal model")
        train(frontend, [guide], samplers, together, seed + turn, "together")
    return frontend


def train_plain(
    samplers: Sequence[Sampler], size: ActionRecipeSize, seed: int
) -> tuple[nn.Module, nn.Module]:
    """Return the trained per-frame classifier: a network without memory and a linear layer."""
    torch.manual_seed(seed)
    plain = TemporalDifferenceNet(**{**FRONTEND, "lags": []})
    linear = nn.Linear(plain.token_width, len(LABELS))
    for turn in range(ROUNDS):
        train_frontend(plain, linear, samplers, _moments(size), seed + turn, "per-frame")
    return plain, linear


def train_temporal(
    frontend: nn.Module, samplers: Sequence[Sampler], size: ActionRecipeSize, seed: int
) -> dict[str, nn.Module]:
    """Return the temporal models, trained on the tokens of a finished frontend."""
    bank = token_bank(frontend, samplers, size.last_bank, 3, seed + ROUNDS)
    # "cooadtr" learns from all steps of a clip; the others, with a window per step, from some.
    all_steps, some = _heads(size), replace(_heads(size), steps=-(-size.head_steps // 2), batch=6)
    networks = {}
    for name in NETWORKS:
        own = seed + SEEDS[name]
        torch.manual_seed(own)
        networks[name] = _temporal(name)
        schedule, last = (all_steps, None) if name == "cooadtr" else (some, 8)
        train_head(networks[name], bank, schedule, own + ROUNDS, name, last)
    return networks


def _samplers(parts: Sequence[list[LabelledClip]], classes: int = len(LABELS)) -> list[Sampler]:
    return [Sampler(clips, classes, CLIP_STEPS, RATE_HZ) for clips in parts]


def _moments(size: ActionRecipeSize) -> Schedule:
    return Schedule(size.steps, batch=32, rate=2e-3)


def _heads(size: ActionRecipeSize) -> Schedule:
    return Schedule(size.head_steps, batch=12, rate=1e-3)


def _temporal(name: str, classes: int = len(LABELS)) -> nn.Module:
    kind, arguments = NETWORKS[name]
    return BUILD[kind](**{**arguments, "num_classes": classes})


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
        " corner cameras; the frontend also on 120 (108 minutes) of 60 movements made up at random."
        " Labels were merged to what they can carry: walk is being on one's feet (also standing),"
        " fall is the fall and lying there after it, lie is lying down and lying, background is an"
        " empty picture. 'active' and unlabelled time between actions were left out of training"
        " and scoring.",
        split="By video, fixed before training: 9 train, 3 validation, 5 test, both rooms in each;"
        " the people may be the same. Labels are off by up to a second, so scores with a tolerance"
        " are given. Validation streams are the validation and rendered video; from how many clips"
        " the temporal models learn was chosen on them, with an earlier frontend. Earlier weights"
        " were scored on the test videos too, and nothing was chosen by that.",
        limits="Not a fall detector and not for safety or medical use: trained on 17 short"
        " videos of two or three people acting in two rooms, and on rendered figures. Expects one"
        " person and a camera that does not move. Falls and lying down look alike to it when the"
        " movement was not seen, and lying may be called sitting. On video of other places"
        " (streets, offices, shops) its labels mean nothing, and it gives them with confidence.",
        licence="Research use only: the fir_action data state no licence (their authors ask for"
        " citation). Code and rendered data: Apache-2.0.",
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the recipe; return the exit code."""
    known = parser("action")
    root = Path(__file__).resolve().parents[3]
    pack = root.parent / "shared" / "packs" / "fir_action.tar"
    known.add_argument("--pack", type=Path, default=pack, help="path of fir_action.tar")
    known.add_argument("--keep", choices=("frontend", "weights"), help="reuse the stored ones")
    options = known.parse_args(arguments)

    def work() -> list[Path]:
        size = ActionRecipeSize()
        if options.keep:  # the frontend is not trained
            size = replace(size, moving=0, scenes=0 if options.keep == "weights" else size.scenes)
        video = load(options.pack, size, options.seed)
        if options.keep:
            heads = options.keep == "frontend"
            return recalibrate(video, size, options.seed, options.output, heads)
        return make(video, size, options.seed, options.output)

    return carry_out(work, options.threads)


if __name__ == "__main__":
    raise SystemExit(main())


GRID = (12, 16)  # rows, columns
LAGS = (1, 4, 16)  # frames
_LEAF = 5  # frames per leaf at least: neighbouring frames are alike
_EVERY = 4  # training uses every 4th frame: two per second


def trees(
    training: Sequence[LabelledClip],
    clips: Sequence[LabelledClip],
    classes: int,
    count: int,
    seed: int,
) -> list[npt.NDArray[np.float32]]:
    """Return the probabilities [T, K] of each clip by trees trained on single frames."""
    parts = [(features(c.frames)[::_EVERY], c.labels[::_EVERY]) for c in training]
    labels = np.concatenate([known for _, known in parts])
    rows = np.concatenate([some for some, _ in parts])[labels >= 0]
    held_out = [features(c.frames) for c in clips]
    predictions = forest(
        rows, labels[labels >= 0], np.concatenate(held_out), classes, count, seed, leaf=_LEAF
    )
    return np.split(predictions, np.cumsum([len(some) for some in held_out])[:-1])


def features(frames: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Return the brightness of 12 x 16 cells and its change since 1, 4 and 16 frames before.

    ``frames``: [T, 3, H, W]; the result is [T, 768].
    """
    grey = frames.mean(1, dtype=np.float32)
    for axis, cells in zip((1, 2), GRID, strict=True):
        size = grey.shape[axis]
        begins = np.arange(cells) * size // cells
        widths = np.diff([*begins, size]).astype(np.float32)
        shape = (1, cells, 1) if axis == 1 else (1, 1, cells)
        grey = np.add.reduceat(grey, begins, axis=axis) / widths.reshape(shape)
    flat = grey.reshape(len(grey), -1)
    earlier = [flat[np.maximum(np.arange(len(flat)) - lag, 0)] for lag in LAGS]
    return np.concatenate([flat, *(flat - then for then in earlier)], 1)


@torch.no_grad()
def token_bank(
    frontend: nn.Module, samplers: Sequence[Sampler], batches: int, clips: int, seed: int
) -> tuple[Tensor, Tensor]:
    """Return augmented clips as tokens [N, T, D] with their targets [N, T, K]."""
    rng, products = np.random.default_rng(seed), fastest_autocast()
    tokens, targets = [], []
    frontend.eval()
    for _ in tqdm(range(batches), desc="tokens", file=sys.stderr, disable=None, leave=False):
        frames, target = batch(samplers, clips, rng)
        with products:
            tokens.append(frontend(frames).float())
        targets.append(target)
    return torch.cat(tokens), torch.cat(targets)


def train_head(
    head: nn.Module,
    bank: tuple[Tensor, Tensor],
    schedule: Schedule,
    seed: int,
    title: str,
    last: int | None = None,
) -> None:
    """Train a temporal model on tokens.

    The loss covers the whole clip, or only the ``last`` steps of a random piece of it, for networks
    in which each step has its own window; either way windows are partly filled at times. A model
    with anticipation also learns the labels of the coming steps, with half the weight (OadTR, Wang
    et al., ICCV 2021).
    """
    rng = np.random.default_rng(seed)
    steps = bank[0].shape[1]
    bar = Optimizer([head], schedule, title)
    for _ in bar:
        rows = torch.from_numpy(rng.choice(len(bank[0]), schedule.batch, replace=False))
        length = steps if last is None else int(rng.integers(last, steps + 1))
        begin = int(rng.integers(steps - length + 1))
        tokens, targets = (x[rows, begin : begin + length] for x in bank)
        offset = torch.from_numpy(rng.integers(0, 1 << 16, size=len(rows)))
        counted = last or length
        out = head(tokens, offset, counted)
        loss = soft_cross_entropy(out.logits, targets[:, -counted:], schedule.smoothing)
        if out.anticipation is not None:
            ahead = future(targets, counted, out.anticipation.shape[2])
            loss = loss + 0.5 * soft_cross_entropy(out.anticipation, ahead, schedule.smoothing)
        bar.step(loss)


def future(targets: Tensor, last: int, queries: int) -> Tensor:
    """Return the targets [B, last, A, K] of the A steps after each of the last ones of [B, T, K].

    Zeros, which are ignored, after the end of the clip.
    """
    steps = targets.shape[1]
    padded = nn.functional.pad(targets, (0, 0, 0, queries))
    times = torch.arange(steps - last, steps)[:, None] + torch.arange(1, queries + 1)
    return padded[:, times]
