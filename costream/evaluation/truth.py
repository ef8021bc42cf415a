"""Ground truth of a recording, in the labels of the evaluated model."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from costream.core.errors import UsageError
from costream.core.records import Segment
from costream.evaluation.predictions import ModelPredictions
from costream.labels.collector import shortened
from costream.labels.examples import name_matcher
from costream.labels.recording import Label, Recording, frame_labels, frame_targets

log = logging.getLogger("costream")

Stretch = tuple[float, float]  # time interval: start and end, seconds


@dataclass(frozen=True)
class EvaluatedRecording:
    """Predictions and ground truth of a recording (T outputs, K labels)."""

    name: str
    group: str  # unit of resampling for intervals
    predictions: ModelPredictions
    labels: npt.NDArray[np.int64]  # [T], index into the names; -1: not scored
    positive: npt.NDArray[np.bool_]  # [T, K]: several labels may be true at once
    segments: tuple[Segment, ...]  # ground truth without the background
    unknown: tuple[Stretch, ...]  # unlabelled time

    def judgeable(self, segments: Sequence[Segment]) -> list[Segment]:
        """Return the segments of which at least half is in labelled time."""
        return [
            s
            for s in segments
            if sum(_shared(s, gap) for gap in self.unknown) <= (s.end_s - s.start_s) / 2
        ]


def fit_truth(
    recordings: Sequence[Recording],
    names: Sequence[str],
    ignored: Sequence[str] = (),
    background: str | None = None,
) -> list[Recording]:
    """Return the recordings with their labels in the spelling of ``names``; warn of others.

    Spelling is compared as in ``name_matcher``. UsageError if none of the labels is known.
    ``ignored``: labels without a warning.
    """
    all_names = (*names, *ignored)
    match = name_matcher(all_names, background)

    def fit(one: Label) -> Label:
        return replace(one, label=match(one.label) or one.label)

    fitted = [replace(r, labels=tuple(map(fit, r.labels))) for r in recordings]
    unknown = Counter(one.label for r in fitted for one in r.labels if one.label not in all_names)
    if unknown and not any(one.label in names for r in fitted for one in r.labels):
        first = next(one for r in fitted for one in r.labels)
        raise UsageError(
            f"the model has none of the labels: {', '.join(map(repr, list(unknown)[:5]))}",
            where=first.where,
            hint="'costream models show NAME' lists its labels",
        )
    if unknown:
        counts = [f"{label} ({count})" for label, count in unknown.most_common()]
        what = "the model lacks these labels, whose time is not scored: %s"
        log.warning(what, shortened(counts, 8))
    return fitted


def align_truth(
    recording: Recording,
    predictions: ModelPredictions,
    names: Sequence[str],
    background: str | None,
    ignored: Sequence[str] = (),
) -> EvaluatedRecording:
    """Return the ground truth at the outputs of a model.

    ``recording``: fitted to ``names``, see ``fit_truth``. These times are not scored: labels that
    are not in ``names``, unless another one is true as well; ``ignored`` labels; and the rest of a
    recording that is not labelled completely. True segments are cut
    to the part that was processed.
    """
    known = tuple(one for one in recording.labels if one.label in names)
    other = [one for one in recording.labels if one.label not in names]
    at = predictions.middles()
    fitted = replace(recording, labels=known)
    labels = frame_labels(fitted, at, names, background)
    positive = frame_targets(fitted, at, names, background)
    here = np.zeros(len(at), bool)
    for one in known:
        here |= _inside(one, at)
    for one in other:
        inside = _inside(one, at)
        labels[inside if one.label in ignored else inside & ~here] = -1
    labels[at < predictions.times[:1]] = -1  # no timeline covers the time before the first output
    positive[labels < 0] = False
    end_s = _end(recording, predictions)
    begin_s, stop_s = predictions.part
    segments = tuple(
        Segment(
            max(begin_s, one.start_s),
            min(stop_s, end_s if one.end_s is None else one.end_s),
            one.label,
            1.0,
        )
        for one in known
        if one.label != background
    )
    return EvaluatedRecording(
        recording.source,
        recording.group,
        predictions,
        labels,
        positive,
        tuple(s for s in segments if s.end_s > s.start_s),
        tuple(_unknown(recording, known, other, end_s)),
    )


def _inside(one: Label, at: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    inside: npt.NDArray[np.bool_] = at >= one.start_s
    return inside if one.end_s is None else inside & (at < one.end_s)


def _end(recording: Recording, predictions: ModelPredictions) -> float:
    ends = [one.end_s for one in recording.labels if one.end_s is not None]
    return max([recording.duration_s or 0.0, predictions.end_s, *ends])


def _unknown(
    recording: Recording, known: Sequence[Label], other: Sequence[Label], end_s: float
) -> list[Stretch]:
    """Return the unlabelled time as non-overlapping intervals."""
    if recording.whole:
        marks = [(one.start_s, end_s if one.end_s is None else one.end_s) for one in other]
        return _without(_joined(marks), known, end_s)
    return _without([(-math.inf, math.inf)], known, end_s)


def _joined(stretches: Sequence[Stretch]) -> list[Stretch]:
    out: list[Stretch] = []
    for start, end in sorted(stretches):
        if out and start <= out[-1][1]:
            out[-1] = (out[-1][0], max(end, out[-1][1]))
        else:
            out.append((start, end))
    return out


def _without(stretches: list[Stretch], labels: Sequence[Label], end_s: float) -> list[Stretch]:
    """Return the intervals without the time of the labels."""
    for one in labels:
        low, high = one.start_s, end_s if one.end_s is None else one.end_s
        cut: list[Stretch] = []
        for start, end in stretches:
            cut += [(start, min(end, low)), (max(start, high), end)]
        stretches = [(start, end) for start, end in cut if end > start]
    return stretches


def _shared(segment: Segment, stretch: Stretch) -> float:
    return max(0.0, min(segment.end_s, stretch[1]) - max(segment.start_s, stretch[0]))
