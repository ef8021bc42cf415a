"""Metrics of whole sequences, each of one action. NumPy only.

Probabilities are [T, K], one row a step; a sequence's scores are the mean of its rows or the
last one. Scores of N sequences are [N, K], labels int [N].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from costream.evaluation.metrics import Labels, Scores, confusion

Fusion = Literal["mean", "last"]


def fuse(probabilities: Sequence[Scores], how: Fusion = "mean") -> npt.NDArray[np.float64]:
    """Give the scores [N, K] of sequences [T, K].

    "mean": over all steps; "last": what a stream says at the sequence's end.
    """
    rows = [p.mean(0, dtype=np.float64) if how == "mean" else p[-1] for p in probabilities]
    return np.stack(rows).astype(np.float64)


def top_k(scores: Scores, labels: Labels, k: int = 1) -> float:
    """Give the share of sequences whose label is among the k best, NaN without sequences.

    Of equal scores those of the first classes count as better.
    """
    if not len(labels):
        return float("nan")
    best = np.argsort(-np.asarray(scores), axis=1, kind="stable")[:, :k]
    return float((best == np.asarray(labels)[:, None]).any(1).mean())


def class_table(scores: Scores, labels: Labels, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Give sequences, recall and precision of each class that occurs or is predicted.

    A share of nothing is None.
    """
    counts = confusion(np.asarray(scores).argmax(1), labels, len(names))
    out: dict[str, dict[str, Any]] = {}
    for k, name in enumerate(names):
        true, said, right = int(counts[k].sum()), int(counts[:, k].sum()), int(counts[k, k])
        if true or said:
            out[name] = {
                "sequences": true,
                "recall": _share(right, true),
                "precision": _share(right, said),
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
