"""Baselines on skeleton motions: majority class and tree ensemble."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from costream.evaluation.metrics.sequences import top_k
from costream.evaluation.motions import Motion, batch
from costream.frontends.joints import JointStreams
from costream.training.trees import forest

MOMENTS = 16  # sampled steps of a sequence in the trees' features


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
    """Return the accuracy of extremely randomised trees on the network's own input.

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


def _accuracy(
    scores: npt.NDArray[np.floating], test: Sequence[Motion], labels: Sequence[str]
) -> dict[str, Any]:
    truth = np.array([labels.index(m.label) for m in test])
    return {
        "sequences": len(test),
        "top1": top_k(scores, truth),
        "top5": top_k(scores, truth, 5),
    }
