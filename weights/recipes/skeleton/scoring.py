"""Scores of skeleton weights on the motions of a set, and simpler methods on the same motions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from costream.core.records import Segment
from costream.evaluation.clips import sequence_scores, stream_scores
from costream.evaluation.metrics.sequence_metrics import (
    fuse,
    timeline_shares,
    top1_by_rivals,
    top_k,
)
from costream.labels.recording import BACKGROUND
from costream.models.skeleton.joints import JointStreams
from costream.models.skeleton.network import SkeletonNet
from costream.runtime.segments import Segmenter
from costream.training.skeleton.motions import Motion, batch
from costream.training.skeleton.skeleton_trainer import predict
from costream.weights_io.card import Timeline
from weights.recipes.common import forest

Rows = npt.NDArray[np.floating]
JOINED = 10  # motions of a stream for frame metrics
MOMENTS = 16  # sampled steps of a sequence in the trees' features


@dataclass(frozen=True)
class SkeletonWeights:
    """A trained network and how its timeline is made."""

    network: SkeletonNet
    frontend: JointStreams
    timeline: Timeline
    rate_hz: float

    def predict(self, motions: Sequence[Motion]) -> list[Rows]:
        """Return probabilities [T, K] of the labels at the steps of each motion."""
        return predict(self.network, self.frontend, motions)

    def segments(self, rows: Rows, labels: Sequence[str]) -> list[Segment]:
        """Return the timeline of probabilities [T, K]."""
        rate_hz = self.rate_hz / self.network.stride
        return timeline_of(rows, labels, self.timeline, rate_hz)


def timeline_of(
    rows: Rows, labels: Sequence[str], timeline: Timeline, rate_hz: float
) -> list[Segment]:
    """Return the segments of probabilities [T, K] at a rate."""
    segmenter = Segmenter(labels, timeline, rate_hz, background=BACKGROUND)
    found = [s for i, row in enumerate(rows) for s in segmenter.push(i / rate_hz, row)]
    return [*found, *segmenter.flush()]


def score(
    weights: SkeletonWeights,
    motions: Sequence[Motion],
    labels: Sequence[str],
    own: Sequence[str],
    seed: int,
) -> dict[str, Any]:
    """Return the metrics on motions of a set, with predictions among its ``own`` labels.

    ``top1_all``: among all labels but the background, ``top1_background``: with it. Frame metrics
    are on streams of ten directly consecutive motions.
    """
    columns = [labels.index(label) for label in own]
    predictions = weights.predict(motions)
    names = np.array([m.label for m in motions])
    groups = np.array([m.group for m in motions])
    truth = np.array([own.index(name) for name in names])
    result = sequence_scores([p[:, columns] for p in predictions], truth, list(groups), own)
    indices = np.array([labels.index(name) for name in names])
    rivals = top1_by_rivals(fuse(predictions), indices, labels.index(BACKGROUND))
    told = [weights.segments(p, labels) for p in predictions]
    best = np.array([own[p[:, columns].mean(0).argmax()] for p in predictions])
    streams = _streams(weights, motions, columns, own, seed)
    return {
        "sequences": len(motions),
        **result,
        "top1_all": rivals["top1_all"],
        "top1_background": rivals["top1_background"],
        "timeline": timeline_shares(told, names.tolist()),
        "groups": {
            name: {
                "sequences": int((groups == name).sum()),
                "top1": float((best == names)[groups == name].mean()),
            }
            for name in sorted(set(groups.tolist()))
        },
        "mAP": streams["mAP"],
        "average_precision": streams["average_precision"],
    }


def _streams(
    weights: SkeletonWeights,
    motions: Sequence[Motion],
    columns: Sequence[int],
    own: Sequence[str],
    seed: int,
) -> dict[str, Any]:
    order = np.random.default_rng(seed).permutation(len(motions))
    rows, frames = [], []
    for begin in range(0, len(order), JOINED):
        some = [motions[k] for k in order[begin : begin + JOINED]]
        joined = Motion("", "", "", np.concatenate([m.joints for m in some]))
        rows.append(weights.predict([joined])[0][:, list(columns)])
        steps = np.concatenate([np.full(len(m.joints), own.index(m.label)) for m in some])
        frames.append(steps[:: weights.network.stride])
    return stream_scores(np.concatenate(rows), np.concatenate(frames), own)


def majority(
    train: Sequence[Motion], test: Sequence[Motion], labels: Sequence[str]
) -> dict[str, Any]:
    """Return the accuracy of always predicting the most frequent training labels."""
    counts = Counter(m.label for m in train)
    scores = np.tile([float(counts[label]) for label in labels], (len(test), 1))
    return _accuracy(scores, test, labels)


def trees(
    train: Sequence[Motion],
    test: Sequence[Motion],
    labels: Sequence[str],
    frontend: JointStreams,
    count: int,
    seed: int,
) -> dict[str, Any]:
    """Return the accuracy of extremely randomised trees on the network's input.

    Features: each channel of each joint at 16 moments, and its mean, standard deviation, minimum
    and maximum.
    """
    known = np.array([labels.index(m.label) for m in train])
    rows, held_out = features(train, frontend), features(test, frontend)
    scores = forest(rows, known, held_out, len(labels), count, seed, features=0.02)
    return _accuracy(scores, test, labels)


@torch.inference_mode()
def features(motions: Sequence[Motion], frontend: JointStreams) -> npt.NDArray[np.float32]:
    """Return one feature row per motion."""
    out = []
    for begin in range(0, len(motions), 64):
        some = motions[begin : begin + 64]
        for tokens, motion in zip(frontend(batch([m.joints for m in some])), some, strict=True):
            rows = tokens[: len(motion.joints)].flatten(1).numpy()
            places = np.linspace(0, len(rows) - 1, MOMENTS).round().astype(int)
            parts = (rows[places].ravel(), rows.mean(0), rows.std(0), rows.min(0), rows.max(0))
            out.append(np.concatenate(parts))
    return np.stack(out)


def _accuracy(scores: Rows, test: Sequence[Motion], labels: Sequence[str]) -> dict[str, Any]:
    truth = np.array([labels.index(m.label) for m in test])
    return {
        "sequences": len(test),
        "top1": top_k(scores, truth),
        "top5": top_k(scores, truth, 5),
    }
