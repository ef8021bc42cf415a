"""Online action instances: each begins and ends as soon as the steps show it, and may be revised.

A timeline has a segment when nothing can change it any more, ``min_gap_s`` after its end. Here an
instance is reported once it is long enough, again when its label closes, and once more if the label
returns within ``min_gap_s``. The rules are those of ``Segmenter``; a start may reach back to
earlier steps whose score is at least the lower threshold. The task is online temporal action
localisation (Kang et al., "CAG-QIL", ICCV 2021; Tang et al., "SimOn", 2022; Song et al., "MATR",
ECCV 2024, which takes starts from a memory, too).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from costream.core.clock import SLACK_S
from costream.core.hysteresis import finite
from costream.core.records import Header, Prediction, Segment
from costream.runtime.segments import Segmenter
from costream.weights_io.card import Timeline


@dataclass(frozen=True)
class Instance:
    """An action instance, as known at a step.

    ``end_s``: None while it goes on. ``revised``: how often its end was taken back. ``final``:
    nothing will change it.
    """

    number: int  # from 1
    label: str
    start_s: float
    end_s: float | None
    score: float  # mean probability of the label so far
    known_s: float  # time of the step that shows it
    revised: int = 0
    final: bool = False


class InstanceTracker:
    """Turns the steps of one stream into instances, and their corrections.

    Args:
        labels, timeline, rate_hz, delay_s, background: as for ``Segmenter``.
        look_back_s: how far a start may reach back.
    """

    def __init__(
        self,
        labels: Sequence[str],
        timeline: Timeline,
        rate_hz: float,
        delay_s: float = 0.0,
        background: str | None = None,
        *,
        look_back_s: float = 0.0,
    ) -> None:
        self._segmenter = Segmenter(labels, timeline, rate_hz, delay_s, background)
        self._labels, self._delay_s = list(labels), delay_s
        self._lows = [timeline.low_of(label) for label in labels]
        self._look_back_s = look_back_s
        self._memory_s = look_back_s + timeline.min_length_s + timeline.min_gap_s + 1 / rate_hz
        self._past: deque[tuple[float, npt.NDArray[np.float64]]] = deque()  # starts and scores
        self._known: dict[tuple[str, float], Instance] = {}  # by label and start of the segment
        self._ends: dict[str, float] = {}  # of the last instance of a label
        self._count, self._now_s = 0, 0.0

    def push(self, time_s: float, probabilities: npt.ArrayLike) -> list[Instance]:
        """Take the probabilities [C] of a step, return the instances that it changes."""
        self._now_s = time_s
        finished = self._segmenter.push(time_s, finite(probabilities))
        scores = self._segmenter.smoother.scores
        if self._look_back_s and scores is not None:
            self._past.append((time_s - self._delay_s, scores))
            while self._past[0][0] < time_s - self._delay_s - self._memory_s:
                self._past.popleft()
        return self._changes(finished)

    def finish(self, end_s: float) -> list[Instance]:
        """Take the end of the data, return the last changes."""
        self._now_s = end_s
        return self._changes(self._segmenter.finish(end_s))

    def _changes(self, finished: Iterable[Segment]) -> list[Instance]:
        out = [self._update(segment, segment.end_s, final=True) for segment in finished]
        for segment, is_open in self._segmenter.unfinished:
            out.append(self._update(segment, None if is_open else segment.end_s, final=False))
        return [instance for instance in out if instance is not None]

    def _update(self, segment: Segment, end_s: float | None, *, final: bool) -> Instance | None:
        """Return the instance of a segment, or None if it has not changed."""
        key = segment.label, segment.start_s
        known = self._known.pop(key, None)
        now = known
        if known is None:
            self._count += 1
            start_s = self._start(segment)
            now = Instance(self._count, segment.label, start_s, end_s, segment.score, self._now_s)
            now = replace(now, final=final)
        elif final or end_s != known.end_s:
            taken_back = known.end_s is not None and end_s != known.end_s
            now = replace(
                known,
                end_s=end_s,
                score=segment.score,
                known_s=self._now_s,
                revised=known.revised + taken_back,
                final=final,
            )
        if not final and now is not None:
            self._known[key] = now
        if end_s is not None:
            self._ends[segment.label] = end_s
        return None if now is known else now

    def _start(self, segment: Segment) -> float:
        """Return the start of the steps before a segment whose score is high enough."""
        start_s, label = segment.start_s, self._labels.index(segment.label)
        last_s = self._ends.get(segment.label, -np.inf)
        least_s = max(start_s - self._look_back_s, last_s) - SLACK_S
        for time_s, scores in reversed(self._past):
            if time_s >= start_s:
                continue
            if time_s < least_s or scores[label] < self._lows[label]:
                break
            start_s = time_s
        return start_s


def instances_of(
    header: Header, predictions: Sequence[Prediction], look_back_s: float = 0.0
) -> list[Instance]:
    """Return all reports of instances, in their order, of a run or of one person in it.

    The thresholds are those of the run; a gap in the data ends no instance. Empty without
    predictions that have all scores, and for models whose labels do not exclude one another.
    """
    found = [p for p in predictions if p.scores is not None and p.model is None]
    settings = header.options.get("timeline")
    if header.background is None or settings is None or not found:
        return []
    timeline = settings if isinstance(settings, Timeline) else Timeline(**settings)
    stride = int(np.diff([p.i for p in found]).min()) if len(found) > 1 else 1
    tracker = InstanceTracker(
        header.labels,
        timeline,
        header.rate_hz / stride,
        header.delay_s,
        header.background,
        look_back_s=look_back_s,
    )
    scores = [p.scores for p in found]
    end_s = found[-1].time_s + stride / header.rate_hz
    return instances([p.time_s for p in found], np.array(scores), tracker, end_s)


def instances(
    times: Sequence[float] | npt.NDArray[np.floating],
    probabilities: npt.ArrayLike,
    tracker: InstanceTracker,
    end_s: float,
) -> list[Instance]:
    """Return all reports of instances, in their order, of probabilities [T, C] at ``times`` [T].

    ``end_s``: end of the data.
    """
    rows = np.asarray(probabilities, np.float64)
    out = [i for t, row in zip(times, rows, strict=True) for i in tracker.push(float(t), row)]
    return out + tracker.finish(end_s)


def first_reports(reports: Iterable[Instance]) -> list[Instance]:
    """Return the first report of each instance that has an end."""
    first: dict[int, Instance] = {}
    for instance in reports:
        if instance.end_s is not None:
            first.setdefault(instance.number, instance)
    return list(first.values())
