"""Metrics of whole sequences, each of one class. NumPy only.

Probabilities are [T, K], one row a step; a sequence's scores are the mean of its rows, their
votes or the last one. Scores of N sequences are [N, K], labels int [N].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from costream.evaluation.metrics import Labels, Scores, average_precision, confusion, per_class

Fusion = Literal["mean", "vote", "last"]


def fuse(probabilities: Sequence[Scores], how: Fusion = "mean") -> npt.NDArray[np.float64]:
    """Give the scores [N, K] of sequences [T, K].

    "mean": over all steps; "vote": the share of steps of which a class is the best, where the
    mean has half a vote, which decides between equals; "last": what a stream says at the end.
    """
    rows = [np.asarray(p, np.float64) for p in probabilities]
    if how == "last":
        return np.stack([r[-1] for r in rows])
    means = np.stack([r.mean(0) for r in rows])
    if how == "mean":
        return means
    votes = np.stack([np.bincount(r.argmax(1), minlength=r.shape[1]) for r in rows])
    steps = votes.sum(1, keepdims=True)
    return np.asarray((votes + 0.5 * means) / (steps + 0.5), np.float64)


def pool(probabilities: Sequence[Scores], groups: Sequence[str]) -> dict[str, Scores]:
    """Give the steps [T, K] of all sequences of each group, groups in the order they come."""
    parts: dict[str, list[Scores]] = {}
    for rows, group in zip(probabilities, groups, strict=True):
        parts.setdefault(group, []).append(rows)
    return {group: np.concatenate(rows) for group, rows in parts.items()}


def top_k(scores: Scores, labels: Labels, k: int = 1) -> float:
    """Give the share of sequences whose label is among the k best, NaN without sequences.

    Of equal scores those of the first classes count as better.
    """
    if not len(labels):
        return float("nan")
    best = np.argsort(-np.asarray(scores), axis=1, kind="stable")[:, :k]
    return float((best == np.asarray(labels)[:, None]).any(1).mean())


def class_table(scores: Scores, labels: Labels, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Give sequences, recall, precision and AP of each class that occurs or is predicted.

    A share of nothing is None. The average precision ranks all sequences by the class's score.
    """
    counts = confusion(np.asarray(scores).argmax(1), labels, len(names))
    ranked = per_class(average_precision, scores, labels)
    out: dict[str, dict[str, Any]] = {}
    for k, name in enumerate(names):
        true, said, right = int(counts[k].sum()), int(counts[:, k].sum()), int(counts[k, k])
        if true or said:
            out[name] = {
                "sequences": true,
                "recall": _share(right, true),
                "precision": _share(right, said),
                "average_precision": round(float(ranked[k]), 4) if true else None,
            }
    return out


def confused(scores: Scores, labels: Labels, names: Sequence[str]) -> list[tuple[str, str, int]]:
    """Give (label, said instead, how often) of all errors, the most frequent first."""
    counts = confusion(np.asarray(scores).argmax(1), labels, len(names))
    np.fill_diagonal(counts, 0)
    order = np.argsort(-counts, axis=None, kind="stable")
    pairs = [divmod(int(k), len(names)) for k in order if counts.flat[k]]
    return [(names[i], names[j], int(counts[i, j])) for i, j in pairs]


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None
