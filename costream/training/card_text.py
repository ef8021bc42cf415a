"""Scores of trained models on held-out video, and model cards as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from costream.checkpoints.card import Card
from costream.evaluation.metrics.frames import (
    average_precision,
    balanced_accuracy,
    bootstrap,
    confusion,
    frame_accuracy,
    mean_average_precision,
    outside_boundaries,
    per_class,
)
from weights.recipes.action.loop import logits
from weights.recipes.action.rendering.scenes import LabelledClip

Probabilities = npt.NDArray[np.float32]  # [T, K]
Table = Callable[[dict[str, dict[str, Any]], Sequence[str]], list[str]]  # models, labels: lines


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

    precision = per_class(average_precision, rows, truth)
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


def card_text(card: Card, table: Table | None = None) -> str:
    """Return a model card as Markdown. ``table`` formats each part of its metrics."""
    arguments = ", ".join(
        f"{k} {v}" for k, v in {**card.arguments, **card.frontend_arguments}.items()
    )
    lines = [
        f"# {card.name}",
        "",
        card.description,
        "",
        f"- Task: {card.task}; labels: {', '.join(card.labels)}",
        f"- Architecture: {card.architecture} on frontend {card.frontend} ({arguments})",
        f"- {card.rate_hz:g} steps a second; paper: {card.paper}",
        *_costs(card),
        f"- Trained on: {card.trained_on}",
        f"- Split: {card.split}",
        f"- Limits: {card.limits}",
        f"- Licence: {card.licence}",
        *_sample(card),
    ]
    for part, models in card.metrics.items():
        lines += ["", f"## {part}", "", *(table or _table)(models, card.labels)]
    return "\n".join(lines) + "\n"


def _costs(card: Card) -> list[str]:
    costs = card.costs
    if not costs:
        return []
    macs, dense = costs["macs"] / 1e6, costs["dense_macs"] / 1e6
    computed = f"{macs:.1f} MMAC"
    if macs < 0.95 * dense:
        computed += f" of the {dense:.1f} that computing everything anew takes"
    return [f"- A step: {computed}; about {costs['ms']:.2g} ms ({costs['machine']})"]


def _sample(card: Card) -> list[str]:
    sample = card.sample
    if not sample:
        return []
    part = "" if sample["end_s"] is None else f", first {sample['end_s']:g} s"
    scores = ", ".join(f"{k.replace('_', ' ')} {v:.3f}" for k, v in sample["metrics"].items())
    return [f"- On samples/{sample['file']}{part}, step by step: {scores} (models verify)"]


def _table(models: dict[str, dict[str, Any]], labels: Sequence[str]) -> list[str]:
    """Return one row per model, and the rows of its average precision by class."""
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
