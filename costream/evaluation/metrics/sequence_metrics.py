"""Metrics of sequences of one class each. NumPy only.

Probabilities are [T, K], one row per step; a sequence's scores are the mean of its rows, their
votes or the last one. Scores of N sequences are [N, K], labels int [N].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from costream.core.records import Segment
from costream.evaluation.metrics import Floats, Integers
from costream.evaluation.metrics.frames import average_precisions, confusion

Fusion = Literal["mean", "vote", "last"]


def fuse(probabilities: Sequence[Floats], how: Fusion = "mean") -> npt.NDArray[np.float64]:
    """Return the scores [N, K] of sequences [T, K].

    "mean": over all steps; "vote": the share of steps whose best class it is, where the mean
    has half a vote, which breaks ties; "last": the last step of the stream.
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


def pool(probabilities: Sequence[Floats], groups: Sequence[str]) -> dict[str, Floats]:
    """Return the steps [T, K] of all sequences of each group, in order of first occurrence."""
    parts: dict[str, list[Floats]] = {}
    for rows, group in zip(probabilities, groups, strict=True):
        parts.setdefault(group, []).append(rows)
    return {group: np.concatenate(rows) for group, rows in parts.items()}


def top_k(scores: Floats, labels: Integers, k: int = 1) -> float:
    """Return the share of sequences whose label is among the k best, NaN without sequences.

    Equal scores rank by class number.
    """
    if not len(labels):
        return float("nan")
    best = np.argsort(-np.asarray(scores), axis=1, kind="stable")[:, :k]
    return float((best == np.asarray(labels)[:, None]).any(1).mean())


def top1_by_rivals(
    scores: Floats, labels: Integers, background: int | None = None
) -> dict[str, float]:
    """Return top-1 by the classes that compete, the same in evaluations and cards.

    ``top1_own``: the classes of the sequences; ``top1_all``: all but the ``background``, unless
    some sequence is of it; ``top1_background``: all, the background too, if there is one.
    """
    rows = np.asarray(scores, np.float64)
    occurring = np.zeros(rows.shape[1], bool)
    occurring[np.unique(labels)] = True
    events = np.ones_like(occurring)
    if background is not None:
        events[background] = occurring[background]
    out = {
        "top1_own": top_k(np.where(occurring, rows, -1.0), labels),
        "top1_all": top_k(np.where(events, rows, -1.0), labels),
    }
    return out if background is None else out | {"top1_background": top_k(rows, labels)}


def timeline_shares(
    timelines: Sequence[Sequence[Segment]], names: Sequence[str], background: str | None = None
) -> dict[str, float]:
    """Return what the timelines of sequences of one class each show, as shares of them.

    ``right``: the right label somewhere; ``longest``: it is shown longer than any other;
    ``wrong``: some other label, too or alone; ``nothing``: no label. Sequences of the
    ``background`` do not count. ``names``: the label of each. NaN without sequences.
    """
    counts = []
    for segments, name in zip(timelines, names, strict=True):
        if name == background:
            continue
        shown: dict[str, float] = {}
        for s in segments:
            shown[s.label] = shown.get(s.label, 0.0) + s.end_s - s.start_s
        longest = max(shown, key=lambda label: shown[label], default=None)
        counts.append((name in shown, longest == name, bool(set(shown) - {name}), not shown))
    shares = np.mean(counts, 0).tolist() if counts else [float("nan")] * 4
    return dict(zip(("right", "longest", "wrong", "nothing"), shares, strict=True))


def class_table(
    scores: Floats, labels: Integers, names: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Return sequences, recall, precision and AP of each class that occurs or is predicted.

    Undefined shares are None. The average precision ranks all sequences by the class's score.
    """
    counts = confusion(np.asarray(scores).argmax(1), labels, len(names))
    ranked = average_precisions(scores, labels)
    out: dict[str, dict[str, Any]] = {}
    for k, name in enumerate(names):
        true, predicted, right = int(counts[k].sum()), int(counts[:, k].sum()), int(counts[k, k])
        if true or predicted:
            out[name] = {
                "sequences": true,
                "recall": _share(right, true),
                "precision": _share(right, predicted),
                "average_precision": round(float(ranked[k]), 4) if true else None,
            }
    return out


def confused(scores: Floats, labels: Integers, names: Sequence[str]) -> list[tuple[str, str, int]]:
    """Return (label, predicted label, count) of all errors, the most frequent first."""
    counts = confusion(np.asarray(scores).argmax(1), labels, len(names))
    np.fill_diagonal(counts, 0)
    order = np.argsort(-counts, axis=None, kind="stable")
    pairs = [divmod(int(k), len(names)) for k in order if counts.flat[k]]
    return [(names[i], names[j], int(counts[i, j])) for i, j in pairs]


def _share(part: int, total: int) -> float | None:
    return round(part / total, 4) if total else None
