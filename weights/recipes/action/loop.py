"""Training loops of frontend and temporal models on clips, and the optimizer."""

from __future__ import annotations

import copy
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm

from costream.evaluation.metrics import Integers, Mask
from costream.evaluation.metrics.bootstrap import bootstrap
from costream.evaluation.metrics.frames import (
    average_precisions,
    confusion,
    mean_average_precision,
    outside_boundaries,
)
from costream.models.oad.tdn import TemporalDifferenceNet
from costream.training.checkpoint import RandomState
from costream.training.optim import Optimizer, Schedule, fastest_autocast, freeze_batchnorm
from costream.training.training_loop import TrainingRun
from weights.recipes.action.data import Drawn
from weights.recipes.action.rendering.scenes import LabelledClip
from weights.recipes.common import forest, soft_cross_entropy

Probabilities = npt.NDArray[np.float32]  # [T, K]
SETTLED = 0.85  # share of the steps after which BatchNorm statistics are fixed
KEEPING = 2.0  # weight of the change of tokens that are to stay
GRID = (12, 16)  # rows, columns
LAGS = (1, 4, 16)  # frames
_LEAF = 5  # frames per leaf at least: neighbouring frames are alike
_EVERY = 4  # training uses every 4th frame: two per second


def train_frontend(
    frontend: TemporalDifferenceNet,
    head: nn.Module,
    samplers: Sequence[Drawn],
    schedule: Schedule,
    run: TrainingRun,
    settled: float = SETTLED,
    kept: int = 0,
) -> None:
    """Train a frontend with a linear layer on single moments: their label and person mask.

    Moments of many clips are more informative than one clip, whose frames are alike. Rendered
    video and pictures provide the masks. ``settled``: share of the steps after which BatchNorm
    statistics are fixed. ``kept``: number of
    samplers, from the first, for whose moments the tokens, without glimpses, are to stay as they
    are before the training (learning without forgetting: Li and Hoiem, ECCV 2016).
    """
    teacher = copy.deepcopy(frontend).eval() if kept else None
    held = frontend.token_width - frontend.glimpse_width
    if frontend.glimpse is not None:  # its weights from other pictures stay
        frontend.glimpse.requires_grad_(False).project.requires_grad_(True)
    rng, products = np.random.default_rng(run.seed), fastest_autocast()
    parts = {"random": RandomState(rng)}
    bar = Optimizer([frontend, head], schedule, run.title, run.checkpoint, parts)
    for step in bar:
        if step >= int(settled * schedule.steps):
            freeze_batchnorm(frontend)
        frames, targets, masks, known = moments(samplers, schedule.batch, frontend.lags, rng)
        with products:
            tokens, focus = frontend.forward_moments(frames)
        loss = soft_cross_entropy(head(tokens.float()), targets, schedule.smoothing)
        places = F.adaptive_avg_pool2d(masks[:, None], (focus.shape[1], focus.shape[2]))[:, 0]
        pixels = F.binary_cross_entropy_with_logits(focus[known].float(), places[known])
        loss = loss + 2 * pixels
        if teacher is not None:
            rows = slice(kept * schedule.batch)
            with torch.no_grad(), products:
                before, _ = teacher.forward_moments(frames[rows])
            loss = loss + KEEPING * drift(tokens[rows, :held].float(), before[:, :held].float())
        bar.step(loss)


def drift(tokens: Tensor, before: Tensor) -> Tensor:
    """Return the mean squared change of tokens [N, D], relative to their variance before it."""
    return (tokens - before).square().mean() / before.var(0).mean()


def train(
    frontend: TemporalDifferenceNet,
    heads: Sequence[nn.Module],
    samplers: Sequence[Drawn],
    schedule: Schedule,
    seed: int,
    title: str,
) -> None:
    """Train a frontend and the temporal models on it jointly, on clips.

    Random starts in the table of positions and in the clips teach that any row can come first
    and that a window may be partly filled. BatchNorm statistics stay fixed.
    """
    rng, products = np.random.default_rng(seed), fastest_autocast()
    bar = Optimizer([frontend, *heads], schedule, title)
    freeze_batchnorm(frontend)
    for _ in bar:
        frames, targets = batch(samplers, schedule.batch, rng)
        with products:
            tokens = frontend(frames)
        losses = [
            soft_cross_entropy(logits(head, tokens.float(), rng), targets, schedule.smoothing)
            for head in heads
        ]
        bar.step(torch.stack(losses).sum())


def moments(
    samplers: Sequence[Drawn], count: int, lags: Sequence[int], rng: np.random.Generator
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return ``count`` moments of each sampler.

    Frames [N, 1 + lags, 3, H, W], targets [N, K], masks [N, H, W] and which masks are known [N].
    """
    frames, targets, masks, known = [], [], [], []
    for sampler in samplers:
        for _ in range(count):
            pixels, target, mask = sampler.moment(rng, lags)
            frames.append(pixels)
            targets.append(target)
            known.append(mask is not None)
            masks.append(pixels.new_zeros(pixels.shape[2:]) if mask is None else mask)
    return torch.stack(frames), torch.stack(targets), torch.stack(masks), torch.tensor(known)


def batch(samplers: Sequence[Drawn], clips: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Return frames float32 [B, T, 3, H, W], 0..255, and targets [B, T, K]."""
    frames, targets = [], []
    for sampler in samplers:
        for _ in range(clips):
            pixels, target = sampler.draw(rng)
            frames.append(pixels)
            targets.append(target)
    return torch.stack(frames), torch.stack(targets)


def logits(head: nn.Module, tokens: Tensor, rng: np.random.Generator | None = None) -> Tensor:
    """Return the logits [B, T, K] of tokens [B, T, D]; ``rng``: positions start at random."""
    if isinstance(head, nn.Linear):
        return head(tokens)  # type: ignore[no-any-return]
    offset: int | Tensor = 0
    if rng is not None:
        offset = torch.from_numpy(rng.integers(0, 1 << 16, size=len(tokens)))
    return head(tokens, offset).logits  # type: ignore[no-any-return]


@torch.no_grad()
def reminded(heads: Sequence[nn.Module], bank: tuple[Tensor, Tensor], known: Tensor) -> Tensor:
    """Return the targets [N, T, K] of a bank, in known clips half of what models say already.

    ``known``: bool [N]. Steps that are ignored stay so. The mean of the models counts.
    """
    tokens, targets = bank[0], bank[1].clone()
    for row in known.nonzero()[:, 0]:
        each = [logits(head, tokens[row][None])[0].softmax(-1) for head in heads]
        said = torch.stack(each).mean(0)
        targets[row] = (targets[row] + said * targets[row].sum(-1, keepdim=True)) / 2
    return targets


@torch.inference_mode()
def predict(
    frontend: nn.Module, heads: Sequence[nn.Module], clips: Sequence[LabelledClip]
) -> list[list[Probabilities]]:
    """Return, for every head, the probabilities of every clip, as in a stream."""
    out: list[list[Probabilities]] = [[] for _ in heads]
    for clip in clips:
        tokens = frontend(torch.from_numpy(clip.frames)[None])
        for rows, head in zip(out, heads, strict=True):
            rows.append(logits(head, tokens)[0].softmax(-1).numpy())
    return out


def frame_accuracy(predicted: Integers, labels: Integers, tolerance: int = 0) -> float:
    """Return the share of frames whose label was predicted, NaN without scored frames.

    ``tolerance``: a prediction is also right if its label occurs at most this many frames away.
    """
    known = np.asarray(labels) >= 0
    if not known.any():
        return float("nan")
    return float(_right(predicted, labels, tolerance)[known].mean())


def balanced_accuracy(predicted: Integers, labels: Integers, tolerance: int = 0) -> float:
    """Return the mean over the classes present of their frame accuracy."""
    labels = np.asarray(labels)
    right = _right(predicted, labels, tolerance)
    shares = [right[labels == k].mean() for k in np.unique(labels[labels >= 0])]
    return float(np.mean(shares)) if shares else float("nan")


def _right(predicted: Integers, labels: Integers, tolerance: int) -> Mask:
    predicted, labels = np.asarray(predicted), np.asarray(labels)
    right: Mask = predicted == labels
    for shift in range(1, min(tolerance, len(labels) - 1) + 1):
        right[shift:] |= predicted[shift:] == labels[:-shift]
        right[:-shift] |= predicted[:-shift] == labels[shift:]
    return right


def score(
    probabilities: Sequence[Probabilities],
    clips: Sequence[LabelledClip],
    labels: Sequence[str],
    rate_hz: float,
) -> dict[str, Any]:
    """Return the metrics of one model on some videos.

    ``..._1s`` tolerate label errors of a second: accuracies accept a label that occurs within a
    second; average precision leaves out the second before and after each change. mAP is over
    the actions, without the background (label 0), as usual.
    """
    actions = range(1, len(labels))
    second = round(rate_hz)
    truth = np.concatenate([clip.labels for clip in clips])
    # Pad between videos, so that the tolerance does not reach into another video.
    pad = np.full(second, -1)
    apart = np.concatenate([np.append(clip.labels, pad) for clip in clips])
    rows = np.concatenate(list(probabilities))
    guess = np.concatenate([np.append(p.argmax(1), pad - 1) for p in probabilities])
    calm = np.concatenate([outside_boundaries(clip.labels, second) for clip in clips])
    known = truth >= 0

    def redraw(videos: Sequence[int]) -> float:
        return mean_average_precision(
            np.concatenate([probabilities[k] for k in videos]),
            np.concatenate([clips[k].labels for k in videos]),
            actions,
        )

    precision = average_precisions(rows, truth)
    return {
        "videos": len(clips),
        "frames": int(known.sum()),
        "frames_per_class": _named(labels, np.bincount(truth[known], minlength=len(labels))),
        "average_precision": _named(labels, precision),
        "mAP": _round(mean_average_precision(rows, truth, actions)),
        "mAP_95": [_round(v) for v in bootstrap(redraw, len(clips))],
        "mAP_1s": _round(mean_average_precision(rows, calm, actions)),
        "accuracy": _round(frame_accuracy(guess, apart)),
        "accuracy_1s": _round(frame_accuracy(guess, apart, second)),
        "balanced_accuracy": _round(balanced_accuracy(guess, apart)),
        "balanced_accuracy_1s": _round(balanced_accuracy(guess, apart, second)),
        "confusion": confusion(rows.argmax(1), truth, len(labels)).tolist(),
    }


def majority(
    train: Sequence[LabelledClip], clips: Sequence[LabelledClip], classes: int
) -> list[Probabilities]:
    """Return the label frequencies of the training clips as a constant prediction."""
    known = np.concatenate([clip.labels for clip in train])
    share = np.bincount(known[known >= 0], minlength=classes) / (known >= 0).sum()
    return [np.tile(share.astype(np.float32), (len(clip.labels), 1)) for clip in clips]


def frame_table(models: dict[str, dict[str, Any]], labels: Sequence[str]) -> list[str]:
    """Return one row per model, and its average precision by class, as Markdown."""
    names = (
        "mAP",
        "mAP_1s",
        "accuracy",
        "accuracy_1s",
        "balanced_accuracy",
        "balanced_accuracy_1s",
    )
    first = next(iter(models.values()))
    lines = [
        f"{first['videos']} videos, {first['frames']} frames.",
        "",
        f"| model | {' | '.join(n.replace('_', ' ') for n in names)} |",
        "|---" * (len(names) + 1) + "|",
    ]
    lines += [_row(model, [result[n] for n in names]) for model, result in models.items()]
    low, high = first["mAP_95"]
    lines += [
        "",
        f"mAP of {next(iter(models))}: 95 % interval over videos {low:.3f} to {high:.3f}.",
        "",
        f"| average precision | {' | '.join(labels)} |",
        "|---" * (len(labels) + 1) + "|",
    ]
    for model, result in models.items():
        lines.append(_row(model, [result["average_precision"][label] for label in labels]))
    return [*lines, _row("frames", [first["frames_per_class"][label] for label in labels])]


def _row(name: str, values: Sequence[float | None]) -> str:
    cells = ("-" if v is None else str(v) if isinstance(v, int) else f"{v:.3f}" for v in values)
    return f"| {name} | {' | '.join(cells)} |"


def _named(labels: Sequence[str], values: npt.NDArray[np.generic]) -> dict[str, Any]:
    return {name: _round(v) for name, v in zip(labels, values.tolist(), strict=True)}


def _round(value: Any) -> float | None:
    if isinstance(value, int):
        return value  # a count
    return None if np.isnan(value) else round(float(value), 4)


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
    frontend: nn.Module, samplers: Sequence[Drawn], batches: int, clips: int, seed: int
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

    The loss covers the complete clip, or only the ``last`` steps of a random piece of it, for
    networks in which each step has a separate window; either way windows are partly filled at
    times. A model with anticipation also learns the labels of the coming steps, with half the
    weight (OadTR, Wang et al., ICCV 2021).
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
