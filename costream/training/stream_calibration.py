"""Calibration of temperature and timeline on validation streams.

NumPy only. Two things are chosen, one after the other, from a network's predictions for streams
that it was not trained on:

1. The temperature: that with the least cross entropy (Guo et al., "On Calibration of Modern
   Neural Networks", ICML 2017).
2. The timeline: by hill climbing from the initial settings, one setting at a time over a small
   grid, while the F1 of segments rises. Settings without gain are left unchanged.

Choices from few examples do not generalise, so with few of them the temperature stays 1, and a
label with few of them has no separate threshold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle, islice, pairwise

import numpy as np
import numpy.typing as npt

from costream.core.records import LOW, Segment
from costream.evaluation.metrics import Floats
from costream.evaluation.metrics.segment_metrics import Counts, count
from costream.labels.recording import UNSCORED
from costream.runtime.segments import Segmenter
from costream.weights_io.card import Timeline

StepLabels = npt.NDArray[np.int64]
MIN_EXAMPLES = 20  # minimum examples of all events to choose a temperature
MIN_LABEL_EXAMPLES = 30  # of a label, to choose its threshold: a dozen did not generalise
OVERLAP = 0.5  # intersection over union from which a segment counts as found
MIN_TEMPERATURE = 0.25
MAX_TEMPERATURE = 4.0
_THRESHOLDS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
_LOWS = (0.6, 0.8, 1.0)  # of the threshold
_TIMES_S = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
_SMOOTH_STEPS = (0.0, 1.0, 2.0, 4.0)
_ROUNDS = 3
_GAIN = 1e-9
_LEAST = 1e-30  # float32 probabilities may be 0


@dataclass(frozen=True)
class StreamPredictions:
    """Predictions for a stream, at temperature 1, with the ground truth."""

    probabilities: Floats  # [T, K]
    labels: StepLabels  # [T], index of the label, UNSCORED where unknown; 0 is the background


def clips_alone(rows: Sequence[Floats], labels: Iterable[int]) -> list[StreamPredictions]:
    """Return clips as streams, with their labels, from the probabilities [T, K] of each."""
    return [
        StreamPredictions(row, np.full(len(row), label))
        for row, label in zip(rows, labels, strict=True)
    ]


def true_segments(steps: StepLabels, labels: Sequence[str], rate_hz: float) -> list[Segment]:
    """Return the runs of one label in steps [T], without background and unknown time."""
    edges = np.flatnonzero(np.diff(steps, prepend=-2, append=-2))
    return [
        Segment(a / rate_hz, b / rate_hz, labels[steps[a]], 1.0)
        for a, b in pairwise(edges)
        if steps[a] > 0
    ]


def segments(
    scores: Floats, timeline: Timeline, labels: Sequence[str], rate_hz: float
) -> list[Segment]:
    """Return the segments of probabilities [T, K], one row every 1 / rate_hz seconds."""
    segmenter = Segmenter(labels, timeline, rate_hz, background=labels[0])
    out: list[Segment] = []
    for i, row in enumerate(scores):
        out += segmenter.push(i / rate_hz, row)
    return out + segmenter.flush()


def count_segments(
    streams: Sequence[StreamPredictions],
    timeline: Timeline,
    labels: Sequence[str],
    rate_hz: float,
    overlap: float,
) -> Counts:
    """Return the counts of found, false and missed segments over these streams.

    ``overlap``: the least intersection over union. Segments mostly in time with unknown labels
    are ignored.
    """
    total = Counts()
    for stream in streams:
        is_scored = stream.labels != UNSCORED
        predicted = [
            s
            for s in segments(stream.probabilities, timeline, labels, rate_hz)
            if is_scored[round(s.start_s * rate_hz) : round(s.end_s * rate_hz)].mean() >= 0.5
        ]
        total += count(predicted, true_segments(stream.labels, labels, rate_hz), overlap)
    return total


Group = Sequence[StreamPredictions]  # streams that are scored together


@dataclass(frozen=True)
class Calibration:
    """The chosen settings and their effect on the streams they were chosen on."""

    temperature: float
    timeline: Timeline
    start: Timeline  # the initial one
    f1: tuple[float, float]  # of segments, mean over groups: before and after
    how: str  # description for the card


def calibrate(
    groups: Sequence[Group],
    labels: Sequence[str],
    rate_hz: float,
    start: Timeline,
    *,
    examples: Mapping[str, int] | None = None,
    overlap: float = OVERLAP,
    least_threshold: float = 0.0,
) -> Calibration:
    """Choose temperature and timeline on groups of streams of equal weight.

    ``labels``: names of the columns, the background first. ``rate_hz``: rows per second.
    ``start``: initial settings. ``examples``: number of distinct examples of each label in the
    streams; default: their true segments. ``least_threshold``: of any label.

    The F1 of segments is never below the F1 with ``start`` at temperature 1.
    """
    counts = _segments(groups, labels, rate_hz) if examples is None else examples
    events = sum(counts.get(label, 0) for label in labels[1:])
    frequent = [
        k for k in labels[1:] if events >= MIN_EXAMPLES and counts.get(k, 0) >= MIN_LABEL_EXAMPLES
    ]
    changes = list(_changes(frequent, rate_hz, least_threshold))
    about = (labels, rate_hz, overlap)
    before = segment_f1(groups, start, *about)
    temperature = best_temperature(groups) if events >= MIN_EXAMPLES else 1.0
    after, timeline = _climb(_at(groups, temperature), start, changes, *about)
    if after < before:
        temperature = 1.0
        after, timeline = _climb(groups, start, changes, *about)
    how = _how(temperature, timeline, (before, after), events)
    return Calibration(temperature, timeline, start, (before, after), how)


def segment_f1(
    groups: Sequence[Group],
    timeline: Timeline,
    labels: Sequence[str],
    rate_hz: float,
    overlap: float = OVERLAP,
) -> float:
    """Return the F1 of segments, averaged over the groups."""
    return float(
        np.mean([count_segments(g, timeline, labels, rate_hz, overlap).f1 for g in groups])
    )


def best_temperature(groups: Sequence[Group]) -> float:
    """Return the temperature with the least mean cross entropy, within the bounds above.

    The cross entropy is convex in b = 1 / temperature: its slope, the mean over steps of the
    expected logit minus the true one, increases with b.
    """
    parts = []
    for group in groups:
        truth = np.concatenate([stream.labels for stream in group])
        is_scored = truth != UNSCORED
        logs = _logs(np.concatenate([stream.probabilities for stream in group])[is_scored])
        parts.append((logs, logs[np.arange(len(logs)), truth[is_scored]].mean()))

    def slope(b: float) -> float:
        each = [(_softmax(b * logs) * logs).sum(-1).mean() - true for logs, true in parts]
        return float(np.mean(each))

    low, high = 1 / MAX_TEMPERATURE, 1 / MIN_TEMPERATURE
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if slope(middle) > 0 else (middle, high)
    return round(1 / low, 3)


def at_temperature(probabilities: Floats, temperature: float) -> Floats:
    """Return probabilities [..., K] with their logits divided by ``temperature``."""
    return probabilities if temperature == 1 else _softmax(_logs(probabilities) / temperature)


def _at(groups: Sequence[Group], temperature: float) -> list[Group]:
    return [
        [replace(t, probabilities=at_temperature(t.probabilities, temperature)) for t in group]
        for group in groups
    ]


def _climb(
    groups: Sequence[Group],
    start: Timeline,
    changes: Sequence[Callable[[Timeline], Timeline]],
    labels: Sequence[str],
    rate_hz: float,
    overlap: float,
) -> tuple[float, Timeline]:
    """Return the best F1 that such changes lead to, and its timeline."""
    best, timeline = segment_f1(groups, start, labels, rate_hz, overlap), start
    failed = 0  # tries since the last gain
    for change in islice(cycle(changes), _ROUNDS * len(changes)):
        changed, failed = change(timeline), failed + 1
        f1 = segment_f1(groups, changed, labels, rate_hz, overlap) if changed != timeline else best
        if f1 > best + _GAIN:
            best, timeline, failed = f1, changed, 0
        elif failed == len(changes):
            break
    return best, timeline


def _changes(
    frequent: Sequence[str], rate_hz: float, least_threshold: float
) -> Iterator[Callable[[Timeline], Timeline]]:
    """Yield the changes to try, setting by setting; ``frequent``: labels that get thresholds."""
    thresholds = [threshold for threshold in _THRESHOLDS if threshold >= least_threshold]
    for threshold in thresholds:
        yield partial(_opened, threshold=threshold)
    for share in _LOWS:
        yield partial(_closed, share=share)
    for time_s in _TIMES_S:
        yield partial(replace, min_length_s=time_s)
    for time_s in _TIMES_S:
        yield partial(replace, min_gap_s=time_s)
    for steps in _SMOOTH_STEPS:
        yield partial(replace, smooth_s=steps / rate_hz)
    for label in frequent:
        for threshold in thresholds:
            yield partial(_own, label=label, threshold=threshold)


def _opened(timeline: Timeline, threshold: float) -> Timeline:
    share = LOW if timeline.low is None else timeline.low / timeline.threshold
    return replace(timeline, threshold=threshold, low=round(share * threshold, 3))


def _closed(timeline: Timeline, share: float) -> Timeline:
    return replace(timeline, low=round(share * timeline.threshold, 3))


def _own(timeline: Timeline, label: str, threshold: float) -> Timeline:
    return replace(timeline, thresholds={**timeline.thresholds, label: threshold})


def _segments(groups: Sequence[Group], labels: Sequence[str], rate_hz: float) -> Counter[str]:
    """Count the true segments of each label."""
    streams = [stream.labels for group in groups for stream in group]
    return Counter(s.label for steps in streams for s in true_segments(steps, labels, rate_hz))


def _how(temperature: float, timeline: Timeline, f1: tuple[float, float], events: int) -> str:
    what = "timeline" if temperature == 1 else f"temperature ({temperature:g}) and the timeline"
    sentences = [
        f"The {what} were chosen" if temperature != 1 else f"The {what} was chosen",
        f"on the validation streams: F1 of segments {f1[1]:.2f}, {f1[0]:.2f} with the initial"
        " settings.",
    ]
    if events < MIN_EXAMPLES:
        sentences.append(
            f"{events} examples are too few for a temperature and per-label thresholds."
        )
    elif timeline.thresholds:
        listed = ", ".join(f"{label} {value:g}" for label, value in timeline.thresholds.items())
        sentences.append(f"Per-label thresholds: {listed}; all others {timeline.threshold:g}.")
    return " ".join(sentences)


def _logs(probabilities: Floats) -> npt.NDArray[np.float64]:
    return np.log(np.maximum(np.asarray(probabilities, np.float64), _LEAST))


def _softmax(logits: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    shares = np.exp(logits - logits.max(-1, keepdims=True))
    return np.asarray(shares / shares.sum(-1, keepdims=True))
