"""Metrics of video or audio clips of one class each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from costream.errors import UsageError
from costream.evaluation.metrics.calibration import FEWEST_GROUPS
from costream.evaluation.metrics.frames import (
    average_precision,
    bootstrap,
    confusion,
    frame_accuracy,
    mean_average_precision,
    per_class,
)
from costream.evaluation.metrics.sequences import class_table, confused, fuse, pool, top_k
from costream.evaluation.predictions import run_alone, run_joined
from costream.evaluation.settings import EvaluateSettings, card_of, load, progress, source_options
from costream.labels.examples import Example, fit_labels, to_examples
from costream.labels.reading import read_recordings
from costream.runtime.stop import StopHandler
from costream.sources.base import SourceOptions

if TYPE_CHECKING:
    from costream.models.base import Model


def clip_scores(settings: EvaluateSettings, stop: StopHandler) -> dict[str, Any]:
    """Run the model over the clips and return the metrics as JSON values; see ``measure``.

    Raises UsageError for unusable data, ModelError, SourceError.
    """
    recordings = read_recordings(settings.data, None, settings.group)
    examples = fit_labels(to_examples(recordings, None), card_of(settings).labels)
    if not examples:
        raise UsageError("no usable examples", where=settings.data)
    return measure(load(settings), examples, settings, stop)


def measure(
    model: Model, examples: Sequence[Example], settings: EvaluateSettings, stop: StopHandler
) -> dict[str, Any]:
    """Return the metrics as JSON values; empty if ``stop`` was requested meanwhile.

    The background label can be predicted only if examples have it. UsageError for a rate if the
    model takes audio.
    """
    names = model.card.labels
    options = source_options(settings, model)
    told = []
    for example in progress(examples, "examples"):
        told.append(run_alone(model, example, options, settings.rate_hz, stop).probabilities)
        if stop.requested:
            return {}
    labels = np.array([names.index(e.label) for e in examples])
    present = {e.label for e in examples}
    if model.card.background is not None and model.card.background not in present:
        # No example is of the background: classify among the actions only.
        told = [without(rows, names.index(model.card.background)) for rows in told]
    result = {
        "model": model.card.name,
        "weights_sha256": model.weights_sha256,
        "labels": list(names),
        "examples": len(examples),
        "sequences": sequence_scores(told, labels, [e.group for e in examples], names),
    }
    groups = group_scores(told, labels, [e.group for e in examples])
    if groups is not None:
        result["groups"] = groups
    if settings.joined:
        result["streams"] = _streams(model, examples, options, settings, stop)
    return result


def sequence_scores(
    told: Sequence[Any], labels: Any, groups: Sequence[str], names: Sequence[str]
) -> dict[str, Any]:
    """Return the metrics of sequences [T, K] with these labels [N].

    The interval resamples groups, or sequences if there are too few groups: it then does not
    cover differences between people.
    """
    mean, vote, last = fuse(told, "mean"), fuse(told, "vote"), fuse(told, "last")
    over = "groups" if len(set(groups)) >= FEWEST_GROUPS else "sequences"
    units = list(groups) if over == "groups" else list(range(len(groups)))
    members = [[k for k, u in enumerate(units) if u == unit] for unit in dict.fromkeys(units)]

    def redraw(drawn: Sequence[int]) -> float:
        rows = [k for g in drawn for k in members[g]]
        return top_k(mean[rows], labels[rows])

    counts = confusion(mean.argmax(1), labels, len(names))
    return {
        "top1": top_k(mean, labels),
        "top1_95": list(bootstrap(redraw, len(members))),
        "top1_95_over": over,
        "top5": top_k(mean, labels, 5),
        "top1_vote": top_k(vote, labels),
        "top1_last": top_k(last, labels),
        "top5_last": top_k(last, labels, 5),
        "sequence_mAP": mean_average_precision(mean, labels),
        "classes": class_table(mean, labels, names),
        "confused": [list(pair) for pair in confused(mean, labels, names)],
        "confusion": counts.tolist(),
    }


def group_scores(told: Sequence[Any], labels: Any, groups: Sequence[str]) -> dict[str, Any] | None:
    """Return the accuracy over groups with one label each, such as the clips of a song.

    The steps of all sequences of a group are fused as one sequence. None if some group has
    several labels, as with people, or every group is a single sequence.
    """
    pooled = pool(told, groups)
    members: dict[str, set[int]] = {group: set() for group in pooled}
    for group, label in zip(groups, labels, strict=True):
        members[group].add(int(label))
    if len(pooled) == len(told) or any(len(found) > 1 for found in members.values()):
        return None
    steps, truth = list(pooled.values()), np.array([found.pop() for found in members.values()])
    mean = fuse(steps, "mean")
    return {
        "groups": len(steps),
        "top1": top_k(mean, truth),
        "top5": top_k(mean, truth, 5),
        "top1_vote": top_k(fuse(steps, "vote"), truth),
    }


def stream_scores(told: Any, labels: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return the frame metrics of scores [T, K] and labels [T]."""
    precision = per_class(average_precision, told, labels)
    return {
        "frames": len(labels),
        "mAP": mean_average_precision(told, labels),
        "accuracy": frame_accuracy(told.argmax(1), labels),
        "average_precision": {
            name: float(value)
            for name, value in zip(names, precision, strict=True)
            if not np.isnan(value)
        },
    }


def without(rows: Any, column: int) -> Any:
    """Return probabilities [T, K] with a class set to 0 and the others renormalised to sum 1."""
    out = np.array(rows, np.float64)
    out[:, column] = 0.0
    return out / np.maximum(out.sum(1, keepdims=True), 1e-12)


def _streams(
    model: Model,
    examples: Sequence[Example],
    options: SourceOptions,
    settings: EvaluateSettings,
    stop: StopHandler,
) -> dict[str, Any]:
    order = np.random.default_rng(settings.seed).permutation(len(examples))
    groups = [order[k : k + settings.joined] for k in range(0, len(order), settings.joined)]
    rows, truth = [], []
    for group in progress(groups, "streams"):
        chosen = [examples[k] for k in group]
        told, labels = run_joined(model, chosen, options, settings.rate_hz, stop)
        if stop.requested:
            return {}
        rows.append(told.probabilities)
        truth += [model.card.labels.index(label) for label in labels]
    scores = stream_scores(np.concatenate(rows), np.array(truth), model.card.labels)
    return {"streams": len(groups), **scores}


# Labelled motions: skeleton sequences of one action each, as frontend input.


Joints = npt.NDArray[np.float32]  # [T, S, V, A + 1]: coordinates of S persons, then the score


@dataclass(frozen=True)
class Motion:
    """One action, with frames from ``frontends.joints.JointStreams.prepare``.

    ``group``: never on both sides of a split (a subject, a style, a file).
    """

    name: str
    label: str
    group: str
    joints: Joints


def single(positions: npt.NDArray[np.floating]) -> Joints:
    """Return the motion [T, 1, V, A + 1] of one person's joints [T, V, A]; all zeros: unseen."""
    x = np.asarray(positions, np.float32)
    seen = np.any(x != 0, axis=(1, 2), keepdims=True)
    scores = np.broadcast_to(seen, (*x.shape[:2], 1)).astype(np.float32)
    return np.concatenate([x, scores], 2)[:, None]


def resample_joints(joints: Joints, times: npt.NDArray[np.floating]) -> Joints:
    """Return a motion resampled at ``times`` [N], in units of its own frames.

    Joints seen in both neighbouring frames are interpolated; others are those of the nearer one.
    """
    last = len(joints) - 1
    low = np.clip(np.floor(times).astype(int), 0, last)
    high = np.minimum(low + 1, last)
    share = np.clip(times - low, 0, 1).astype(np.float32)[:, None, None, None]
    a, b = joints[low], joints[high]
    both = (a[..., -1:] > 0) & (b[..., -1:] > 0)
    out: Joints = np.where(both, a + (b - a) * share, np.where(share < 0.5, a, b))
    return out


def batch(clips: Sequence[Joints]) -> Tensor:
    """Return clips as one tensor [B, T, S, V, A + 1], padded with zeros (nobody seen)."""
    length, persons = (max(clip.shape[k] for clip in clips) for k in (0, 1))
    out = np.zeros((len(clips), length, persons, *clips[0].shape[2:]), np.float32)
    for row, clip in zip(out, clips, strict=True):
        row[: len(clip), : clip.shape[1]] = clip
    return torch.from_numpy(out)
