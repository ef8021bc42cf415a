"""Timeline metrics over many recordings: segments, starts and latency."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from costream.evaluation.intervals import Counts as Drawn
from costream.evaluation.intervals import Interval, intervals
from costream.evaluation.latency import latencies, latency_scores
from costream.evaluation.metrics.segments import Counts, count, segment_precision
from costream.evaluation.starts import (
    TOLERANCES_S,
    Start,
    start_precision,
    starts_of_segments,
    starts_of_steps,
)
from costream.evaluation.truth import EvaluatedRecording
from costream.records import Segment

OVERLAPS = (0.3, 0.5, 0.7)  # tIoU

Timelines = Sequence[Sequence[Segment]]


def segment_scores(judged: Sequence[EvaluatedRecording], labels: Sequence[str]) -> dict[str, Any]:
    """Return F1 and mAP at each tIoU, over all segments and by true or predicted label.

    The mean average precision is over the labels that are true somewhere; None if the predicted
    segments have no scores. Predicted segments mostly in unlabelled time do not count.
    """
    told = [one.judgeable(one.told.segments) for one in judged]
    truth = [one.segments for one in judged]
    ranked = all(np.isfinite(s.score) for said in told for s in said)
    classes: dict[str, dict[str, Any]] = {}
    for label in labels:
        own, true = _only(told, label), _only(truth, label)
        if any(own) or any(true):
            classes[label] = {
                "segments": sum(map(len, true)),
                "told": sum(map(len, own)),
                "f1": {str(t): _f1(own, true, t) for t in OVERLAPS},
                "average_precision": {
                    str(t): segment_precision(told, truth, label, t) if ranked else None
                    for t in OVERLAPS
                },
            }
    true_ones = [c["average_precision"] for c in classes.values() if c["segments"]]
    return {
        "segments": sum(map(len, truth)),
        "told": sum(map(len, told)),
        "f1": {str(t): _f1(told, truth, t) for t in OVERLAPS},
        "f1_95": _f1_limits(judged, told),
        "mAP": {
            str(t): _mean([c[str(t)] for c in true_ones]) if ranked else None for t in OVERLAPS
        },
        "classes": classes,
    }


def start_scores(
    judged: Sequence[EvaluatedRecording], labels: Sequence[str], background: str | None
) -> dict[str, Any]:
    """Return the point-level mAP of action starts at each tolerance, and of each true label.

    Starts are those of the best labels of the steps, or without step scores those of the
    timeline. ``labels``: all, in the order of the scores.
    """
    stepwise = all(len(one.told.times) for one in judged)
    told = [_starts(one, labels, background, stepwise) for one in judged]
    truth = [starts_of_segments(one.segments) for one in judged]
    classes = {}
    for label in labels:
        own, true = ([[s for s in each if s.label == label] for each in x] for x in (told, truth))
        if any(true):
            each = {str(t): start_precision(own, true, label, t) for t in TOLERANCES_S}
            classes[label] = each
    return {
        "of": "steps" if stepwise else "timeline",
        "starts": sum(map(len, truth)),
        "mAP": {str(t): _mean([c[str(t)] for c in classes.values()]) for t in TOLERANCES_S},
        "classes": classes,
    }


def detection_latency(
    judged: Sequence[EvaluatedRecording], labels: Sequence[str]
) -> dict[str, Any]:
    """Return the detection latency over all segments and for each true label."""
    waits: dict[str, list[float]] = {}
    for one in judged:
        each = latencies(one.told.segments, one.segments, one.told.delay_s)
        for segment, wait in zip(one.segments, each, strict=True):
            waits.setdefault(segment.label, []).append(wait)
    return {
        **latency_scores(wait for each in waits.values() for wait in each),
        "classes": {label: latency_scores(waits[label]) for label in labels if label in waits},
    }


def _starts(
    judged: EvaluatedRecording, labels: Sequence[str], background: str | None, stepwise: bool
) -> list[Start]:
    told = judged.told
    if stepwise:
        places = told.times - told.delay_s
        starts = starts_of_steps(places, told.probabilities, labels, background)
    else:
        starts = starts_of_segments(told.segments)
    return [s for s in starts if not any(a <= s.time_s < b for a, b in judged.unknown)]


def _only(timelines: Timelines, label: str) -> list[list[Segment]]:
    return [[s for s in segments if s.label == label] for segments in timelines]


def _f1(told: Timelines, truth: Timelines, least: float) -> float:
    pairs = zip(told, truth, strict=True)
    return sum((count(said, true, least) for said, true in pairs), Counts()).f1


def _f1_limits(judged: Sequence[EvaluatedRecording], told: Timelines) -> dict[str, Interval | None]:
    """Return the 95 % interval of F1 at each tIoU."""
    groups: dict[str, list[Counts]] = {}
    for one, said in zip(judged, told, strict=True):
        before = groups.get(one.group, [Counts()] * len(OVERLAPS))
        own = [count(said, one.segments, least) for least in OVERLAPS]
        groups[one.group] = [a + b for a, b in zip(before, own, strict=True)]
    table = np.array(
        [[(c.found, c.false, c.missed) for c in counts] for counts in groups.values()]
    )  # [groups, tIoU, 3]

    def f1(drawn: Drawn) -> list[float]:
        return [Counts(*row).f1 for row in np.tensordot(drawn, table, 1).tolist()]

    limits = intervals(f1, len(groups))
    return {str(t): limit for t, limit in zip(OVERLAPS, limits, strict=True)}


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else float("nan")
