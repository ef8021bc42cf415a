"""Segment metrics of timelines: F1 and average precision.

``tIoU`` is the intersection over union of two time intervals. F1 scores the complete timeline
(as Lea et al., "Temporal Convolutional Networks", CVPR 2017, but with the best pairs first);
average precision scores the ranking of its segments (as THUMOS14 and ActivityNet).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from costream.core.records import Segment
from costream.evaluation.metrics import Mask
from costream.evaluation.metrics.bootstrap import Interval, Multiplicities, intervals
from costream.evaluation.metrics.detection import best_precision_beyond, ranked_precision, take_best
from costream.evaluation.truth import EvaluatedRecording
from costream.runtime.instances import Instance, first_reports

OVERLAPS = (0.1, 0.25, 0.3, 0.5, 0.7, 0.75)  # tIoU
TOLERANCES_S = tuple(range(1, 11))  # of action starts
Timelines = Sequence[Sequence[Segment]]
Event = TypeVar("Event", "Segment", "Start")


@dataclass(frozen=True)
class Counts:
    """Numbers of segments found, falsely predicted and missed; counts of videos add up."""

    found: int = 0
    false: int = 0
    missed: int = 0

    def __add__(self, other: Counts) -> Counts:
        """Return the sum over two videos."""
        return Counts(
            self.found + other.found, self.false + other.false, self.missed + other.missed
        )

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall; 1 without true and predicted segments."""
        total = 2 * self.found + self.false + self.missed
        return 2 * self.found / total if total else 1.0


def overlap(one: Segment, other: Segment) -> float:
    """Return the intersection over union of two segments, 0..1."""
    shared = min(one.end_s, other.end_s) - max(one.start_s, other.start_s)
    union = max(one.end_s, other.end_s) - min(one.start_s, other.start_s)
    return max(0.0, shared) / union if union > 0 else 0.0


def match(
    predicted: Sequence[Segment], truth: Sequence[Segment], least: float
) -> list[Segment | None]:
    """Return, for every true segment, the predicted one of its label that overlaps it most.

    None if no tIoU is at least ``least``. Best pairs first; each segment is used once.
    """
    pairs = sorted(
        (
            (-overlap(p, t), i, j)
            for i, t in enumerate(truth)
            for j, p in enumerate(predicted)
            if p.label == t.label and overlap(p, t) >= least and overlap(p, t) > 0
        ),
    )
    out: list[Segment | None] = [None] * len(truth)
    used: set[int] = set()
    for _, i, j in pairs:
        if out[i] is None and j not in used:
            out[i] = predicted[j]
            used.add(j)
    return out


def count(predicted: Sequence[Segment], truth: Sequence[Segment], least: float) -> Counts:
    """Return the counts of a timeline against the true one; see ``match``."""
    found = sum(m is not None for m in match(predicted, truth, least))
    return Counts(found, len(predicted) - found, len(truth) - found)


def segment_precision(
    predicted: Sequence[Sequence[Segment]],
    truth: Sequence[Sequence[Segment]],
    label: str,
    least: float,
) -> float:
    """Return the average precision of a label's segments over recordings; NaN without true ones.

    By falling score, each takes the true one of its recording that it overlaps most, if the tIoU
    is ``least`` or more and none before took it. Interpolated at every recall, as in
    the evaluation code of ActivityNet.
    """
    return best_precision_beyond(*_ranked(predicted, truth, label, overlap, least))


def _ranked(
    predicted: Sequence[Sequence[Event]],
    truth: Sequence[Sequence[Event]],
    label: str,
    likeness: Callable[[Event, Event], float],
    least: float,
) -> tuple[Mask, int]:
    """Return whether each prediction of a label is right, by falling score, and the true count."""
    scores, right = [np.zeros(0)], [np.zeros(0, bool)]
    total = 0
    for events, true in zip(predicted, truth, strict=True):
        candidates = sorted((s for s in events if s.label == label), key=lambda s: -s.score)
        targets = [t for t in true if t.label == label]
        total += len(targets)
        shared = np.array([[likeness(s, t) for t in targets] for s in candidates])
        scores.append(np.array([s.score for s in candidates]))
        right.append(take_best(shared.reshape(len(candidates), len(targets)), least))
    order = np.argsort(-np.concatenate(scores), kind="stable")
    return np.concatenate(right)[order], total


def latencies(
    predicted: Sequence[Segment], truth: Sequence[Segment], delay_s: float
) -> list[float]:
    """Return the detection latency of every true segment in seconds; NaN: not detected.

    It is detected when a segment of its label that overlaps it opens, or at its onset if that
    was already open. ``delay_s``: how long after the time of an event the model reports it.
    """
    out = []
    for true in truth:
        opened = [
            s.start_s
            for s in predicted
            if s.label == true.label and s.start_s < true.end_s and s.end_s > true.start_s
        ]
        known_s = min(opened) + delay_s if opened else float("nan")
        out.append(known_s if np.isnan(known_s) else max(0.0, known_s - true.start_s))
    return out


def latency_scores(waits: Iterable[float]) -> dict[str, Any]:
    """Return the share of true segments found, and median and p90 of their latency in seconds.

    Values without data are None.
    """
    every = np.array(list(waits), np.float64)
    found = every[~np.isnan(every)]
    return {
        "segments": len(every),
        "found": float(len(found) / len(every)) if len(every) else None,
        "median_s": float(np.median(found)) if len(found) else None,
        "p90_s": float(np.percentile(found, 90)) if len(found) else None,
    }


class Start(NamedTuple):
    """The start of an action: online detection of action starts (Shou et al., ECCV 2018)."""

    time_s: float
    label: str
    score: float = 1.0


def starts_of_steps(
    times: npt.NDArray[np.float64],
    scores: npt.NDArray[np.floating],
    labels: Sequence[str],
    background: str | None,
) -> list[Start]:
    """Return a start at each change of the best label of scores [T, K] to an action.

    As in StartNet (Gao et al., ICCV 2019).
    """
    best = scores.argmax(1)
    changed = np.append(True, best[1:] != best[:-1])[: len(best)]
    return [
        Start(float(times[k]), labels[best[k]], float(scores[k, best[k]]))
        for k in np.flatnonzero(changed)
        if labels[best[k]] != background
    ]


def starts_of_segments(segments: Sequence[Segment]) -> list[Start]:
    """Return the starts of the segments of a timeline."""
    return [Start(s.start_s, s.label, s.score) for s in segments]


def start_precision(
    predicted: Sequence[Sequence[Start]],
    truth: Sequence[Sequence[Start]],
    label: str,
    tolerance_s: float,
) -> float:
    """Return the point-level average precision of the starts of a label, NaN without true ones.

    By falling score, each takes the nearest true start of its recording that is at most
    ``tolerance_s`` away and that none before took. At full recall, not interpolated.
    """
    least = -tolerance_s - 1e-9  # times are sums of 1/rate in floating point
    return ranked_precision(*_ranked(predicted, truth, label, _nearness, least))


def _nearness(one: Start, other: Start) -> float:
    return -abs(one.time_s - other.time_s)


def segment_scores(
    recordings: Sequence[EvaluatedRecording], labels: Sequence[str]
) -> dict[str, Any]:
    """Return F1 and mAP at each tIoU, over all segments and by true or predicted label.

    The mean average precision is over the labels that are true somewhere; None if the predicted
    segments have no scores. Predicted segments mostly in unlabelled time do not count.
    """
    predicted = [recording.judgeable(recording.predictions.segments) for recording in recordings]
    truth = [recording.segments for recording in recordings]
    ranked = all(np.isfinite(s.score) for own_segments in predicted for s in own_segments)
    classes: dict[str, dict[str, Any]] = {}
    for label in labels:
        of_label, true = _only(predicted, label), _only(truth, label)
        if any(of_label) or any(true):
            classes[label] = {
                "segments": sum(map(len, true)),
                "predicted": sum(map(len, of_label)),
                "f1": {str(t): _f1(of_label, true, t) for t in OVERLAPS},
                "average_precision": {
                    str(t): segment_precision(predicted, truth, label, t) if ranked else None
                    for t in OVERLAPS
                },
            }
    true_ones = [c["average_precision"] for c in classes.values() if c["segments"]]
    return {
        "segments": sum(map(len, truth)),
        "predicted": sum(map(len, predicted)),
        "f1": {str(t): _f1(predicted, truth, t) for t in OVERLAPS},
        "f1_95": _f1_limits(recordings, predicted),
        "mAP": {
            str(t): _mean([c[str(t)] for c in true_ones]) if ranked else None for t in OVERLAPS
        },
        "classes": classes,
    }


def instance_scores(
    recordings: Sequence[EvaluatedRecording], labels: Sequence[str]
) -> dict[str, Any] | None:
    """Return F1 and mAP of instances at each tIoU as first reported, and how late they were.

    None if no recording has any. ``revised``: the share that was corrected later; ``after_s``: the
    median time from the end of an instance to its first report.
    """
    reports = [first_reports(recording.predictions.instances) for recording in recordings]
    if not any(recording.predictions.instances for recording in recordings):
        return None
    predicted = [
        recording.judgeable([_segment(instance) for instance in each])
        for recording, each in zip(recordings, reports, strict=True)
    ]
    truth = [recording.segments for recording in recordings]
    true_ones = [label for label in labels if any(_only(truth, label))]
    last = [{i.number: i for i in r.predictions.instances} for r in recordings]
    revised = [last[k][i.number].revised > 0 for k, each in enumerate(reports) for i in each]
    waits = [i.known_s - _segment(i).end_s for each in reports for i in each]
    return {
        "instances": len(waits),
        "revised": float(np.mean(revised)) if revised else None,
        "after_s": float(np.median(waits)) if waits else None,
        "f1": {str(t): _f1(predicted, truth, t) for t in OVERLAPS},
        "mAP": {
            str(t): _mean([segment_precision(predicted, truth, label, t) for label in true_ones])
            for t in OVERLAPS
        },
    }


def _segment(instance: Instance) -> Segment:
    """Return an instance that has an end as a segment."""
    end_s = instance.start_s if instance.end_s is None else instance.end_s
    return Segment(instance.start_s, end_s, instance.label, instance.score)


def start_scores(
    recordings: Sequence[EvaluatedRecording], labels: Sequence[str], background: str | None
) -> dict[str, Any]:
    """Return the point-level mAP of action starts at each tolerance, and of each true label.

    Starts come from the best labels of the steps, or from the timeline if there are no step
    scores. ``labels``: all, in the order of the scores.
    """
    stepwise = all(len(recording.predictions.times) for recording in recordings)
    predicted = [_starts(recording, labels, background, stepwise) for recording in recordings]
    truth = [starts_of_segments(recording.segments) for recording in recordings]
    classes = {}
    for label in labels:
        found, true = (
            [[s for s in each if s.label == label] for each in x] for x in (predicted, truth)
        )
        if any(true):
            each = {str(t): start_precision(found, true, label, t) for t in TOLERANCES_S}
            classes[label] = each
    return {
        "of": "steps" if stepwise else "timeline",
        "starts": sum(map(len, truth)),
        "mAP": {str(t): _mean([c[str(t)] for c in classes.values()]) for t in TOLERANCES_S},
        "classes": classes,
    }


def detection_latency(
    recordings: Sequence[EvaluatedRecording], labels: Sequence[str]
) -> dict[str, Any]:
    """Return the detection latency over all segments and for each true label."""
    waits: dict[str, list[float]] = {}
    for recording in recordings:
        each = latencies(
            recording.predictions.segments, recording.segments, recording.predictions.delay_s
        )
        for segment, wait in zip(recording.segments, each, strict=True):
            waits.setdefault(segment.label, []).append(wait)
    return {
        **latency_scores(wait for each in waits.values() for wait in each),
        "classes": {label: latency_scores(waits[label]) for label in labels if label in waits},
    }


def _starts(
    judged: EvaluatedRecording, labels: Sequence[str], background: str | None, stepwise: bool
) -> list[Start]:
    predicted = judged.predictions
    if stepwise:
        places = predicted.times - predicted.delay_s
        starts = starts_of_steps(places, predicted.probabilities, labels, background)
    else:
        starts = starts_of_segments(predicted.segments)
    return [s for s in starts if not any(a <= s.time_s < b for a, b in judged.unknown)]


def _only(timelines: Timelines, label: str) -> list[list[Segment]]:
    return [[s for s in segments if s.label == label] for segments in timelines]


def _f1(predicted: Timelines, truth: Timelines, least: float) -> float:
    pairs = zip(predicted, truth, strict=True)
    return sum((count(own_segments, true, least) for own_segments, true in pairs), Counts()).f1


def _f1_limits(
    recordings: Sequence[EvaluatedRecording], predicted: Timelines
) -> dict[str, Interval | None]:
    """Return the 95 % interval of F1 at each tIoU."""
    groups: dict[str, list[Counts]] = {}
    for recording, own_segments in zip(recordings, predicted, strict=True):
        before = groups.get(recording.group, [Counts()] * len(OVERLAPS))
        added = [count(own_segments, recording.segments, least) for least in OVERLAPS]
        groups[recording.group] = [a + b for a, b in zip(before, added, strict=True)]
    table = np.array(
        [[(c.found, c.false, c.missed) for c in counts] for counts in groups.values()]
    )  # [groups, tIoU, 3]

    def f1(drawn: Multiplicities) -> list[float]:
        return [Counts(*row).f1 for row in np.tensordot(drawn, table, 1).tolist()]

    limits = intervals(f1, len(groups))
    return {str(t): limit for t, limit in zip(OVERLAPS, limits, strict=True)}


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else float("nan")
