"""Online segmentation: per-step probabilities to a timeline, in constant memory.

The rule, for one label at a time (the background label is ignored). Every label has its own
``threshold`` and ``low``, and the probabilities are smoothed first (``smooth_s``, ``Smoother``):

1. Labels open and close as in ``Hysteresis``.
2. The same label again within ``min_gap_s`` of its last end continues the segment. Stretches of
   other labels in between are ignored when they are shorter than ``min_length_s``.
3. Segments that are shorter than ``min_length_s`` after that are dropped. With ``presence_s``,
   segments without a ``LastingPresence`` at any of their steps are dropped too.

A segment is returned once nothing can change it any more: ``min_gap_s`` after its end, or as
soon as another label has lasted ``min_length_s``.

When the data end (``finish``), the open label lasts until their end. A presence at the last step
then counts, however short it was. If the data are shorter than ``min_length_s``, a label that lasts
as long as they do is long enough.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from costream.core.clock import SLACK_S
from costream.core.errors import UsageError
from costream.core.hysteresis import Hysteresis, LastingPresence, Smoother, finite, is_among
from costream.core.records import Box, Segment
from costream.weights_io.card import Timeline


@dataclass
class _Piece:
    """A stretch of one label. The tail: the steps after its end, which may still become part."""

    label: int
    start_s: float
    end_s: float
    total: float  # sum of the label's probability over the steps up to end_s
    steps: int
    most: int | None = None  # largest count up to end_s
    present: bool = True  # whether there was presence, see ``LastingPresence``, up to end_s
    tail_total: float = 0.0
    tail_steps: int = 0
    tail_most: int | None = None
    tail_present: bool = False
    open: bool = True
    lead_s: float = 0.0  # the part that the first step covers, which does not count as duration
    whole: bool = False  # it lasts from the start of the data to their end

    def add_tail(self, score: float, count: int | None, present: bool) -> None:
        """Add a step after the end to the tail."""
        self.tail_total += score
        self.tail_steps += 1
        self.tail_most = _larger(self.tail_most, count)
        self.tail_present |= present

    def extend(self, end_s: float) -> None:
        """Move the end to ``end_s``; the tail becomes part of the piece."""
        self.end_s = end_s
        self.total += self.tail_total
        self.steps += self.tail_steps
        self.most = _larger(self.most, self.tail_most)
        self.present |= self.tail_present
        self.tail_total, self.tail_steps, self.tail_most, self.open = 0.0, 0, None, True
        self.tail_present = False

    @property
    def length_s(self) -> float:
        return self.end_s - self.start_s


class Segmenter:
    """Turns the steps of one stream into segments.

    A step at time t covers [t, t + 1 / rate_hz) shifted back by ``delay_s``, but nothing before
    the start of the data (``begin``; else the first step) or the end of a gap, and nothing that an
    earlier step covers.

    ``labels``: names of the classes, in the order of the probabilities. ``background``: the
    label that is not an event, or None. ``only``: as for ``Hysteresis``. ``ahead``: the data of
    a step come before its time, as for a block of sound, whose time is that of its end. ``each``:
    the steps are separate things, such as lines of text, at any distance. Then a step covers at
    most the time up to the next one, and counts as 1 / rate_hz for ``min_length_s``.
    Raises UsageError for settings that contradict each other.
    """

    def __init__(
        self,
        labels: Sequence[str],
        timeline: Timeline,
        rate_hz: float,
        delay_s: float = 0.0,
        background: str | None = None,
        only: Collection[str] | None = None,
        *,
        ahead: bool = False,
        each: bool = False,
    ) -> None:
        _check(timeline)
        self._each = each
        self._labels = tuple(labels)
        self._hysteresis = Hysteresis(self._labels, timeline, background, only)
        self.smoother = Smoother(timeline.smooth_s)
        self.presence = LastingPresence(timeline, labels, background)
        self._min_length_s = timeline.min_length_s
        self._min_gap_s = timeline.min_gap_s
        self._step_s = 1.0 / rate_hz
        self._delay_s = delay_s
        # The time that the data of a step cover before and after its time.
        self._lead_s, self._tail_s = (self._step_s, 0.0) if ahead else (0.0, self._step_s)
        self._covered_s: float | None = None  # end of the time covered so far
        self._began_s = -math.inf  # start of the data
        self._data_s = math.inf  # end of the data of the newest step
        # The last piece that is long enough, and a later one that is not long enough (yet).
        self._long: _Piece | None = None
        self._short: _Piece | None = None

    def push(
        self, time_s: float, probabilities: npt.NDArray[np.floating], count: int | None = None
    ) -> list[Segment]:
        """Take one step (``probabilities``: [C]) and return the segments that became final.

        ``count``: number of objects in the step; a segment has the largest of its steps.
        """
        p = finite(probabilities)
        present = self.presence.push(time_s, p)
        p = self.smoother.push(time_s, p)
        start_s, end_s = self.cover(time_s)
        for piece in (self._long, self._short):
            if piece is not None:
                piece.end_s = min(piece.end_s, start_s) if self._each else piece.end_s
                piece.add_tail(float(p[piece.label]), count, present)
        piece = self._open
        label = self._hysteresis.step(p, None if piece is None else piece.label)
        out = self._assign(label, start_s, end_s, p, count, present)
        if self._long and not self._long.open and not self._near(self._long, end_s):
            out += self._finished(self._long)
            self._long = None
        return out

    @property
    def idle(self) -> bool:
        """Whether no segment is open or may still be continued."""
        return self._long is None and self._short is None

    @property
    def counts(self) -> bool:
        """Whether a segment is open that counts already, see ``presence_s``."""
        return self._open is not None and self._open.present

    @property
    def unfinished(self) -> list[tuple[Segment, bool]]:
        """Segments that are long enough and were not returned yet, and whether each is open."""
        pieces = [piece for piece in (self._long, self._short) if piece is not None]
        return [(segment, piece.open) for piece in pieces for segment in self._finished(piece)]

    @property
    def label(self) -> str | None:
        """The label of the newest step, if one is open."""
        return None if self._open is None else self._labels[self._open.label]

    @property
    def _open(self) -> _Piece | None:
        return next((x for x in (self._short, self._long) if x and x.open), None)

    def cover(self, time_s: float) -> tuple[float, float]:
        """Return start and end of the time that a step covers."""
        self._data_s = time_s + self._tail_s
        covered_s = time_s if self._covered_s is None or self._each else self._covered_s
        back_s = self._delay_s
        if covered_s == self._began_s:
            back_s = max(back_s, self._lead_s)
        start_s = max(time_s - back_s, covered_s)
        self._covered_s = max(time_s + self._step_s - self._delay_s, start_s)
        return start_s, self._covered_s

    def follow(self, other: Segmenter) -> None:
        """Take the times of another segmenter; an idle one needs nothing else of quiet steps."""
        self._covered_s, self._began_s = other._covered_s, other._began_s
        self._data_s, self._lead_s = other._data_s, other._lead_s

    def begin(self, start_s: float) -> None:
        """Take the start of the data, before the first step."""
        if self._covered_s is None:
            self._covered_s = self._began_s = start_s

    def gap(self, start_s: float, end_s: float) -> list[Segment]:
        """Take a gap between the data at ``start_s`` and those at ``end_s``.

        The data at ``start_s`` count for one step; the open segment ends there, others do at the
        latest, and none continues across the gap.
        """
        limit_s = start_s + self._tail_s
        for piece in (self._long, self._short):
            if piece is not None:
                piece.end_s = (
                    min(limit_s, self._data_s)
                    if piece.open
                    else min(piece.end_s, limit_s - self._delay_s)
                )
        out = self.flush()
        self.smoother.reset()
        self.presence.reset()
        self._covered_s = None if self._covered_s is None else max(self._covered_s, end_s)
        self._began_s, self._lead_s = end_s, 0.0
        return out

    def finish(
        self, end_s: float, length_s: float = math.inf, *, late: bool = False
    ) -> list[Segment]:
        """Take the end of the data and return all segments that were not returned yet.

        ``length_s``: length of all data; a label that lasts as long is long enough.
        ``late``: the only step came after the data, and covers all of them.
        """
        piece = self._open
        if piece is not None:
            piece.end_s = end_s
            if late and math.isfinite(self._began_s):
                piece.start_s = self._began_s
            piece.present |= self.presence.now
            piece.whole = piece.length_s >= length_s - SLACK_S
        return self.flush()

    def pending(self, end_s: float) -> list[Segment]:
        """Return what ``finish`` would return now, without any effect."""
        kept = self._long, self._short
        self._long, self._short = (None if piece is None else replace(piece) for piece in kept)
        out = self.finish(end_s)
        self._long, self._short = kept
        return out

    def flush(self) -> list[Segment]:
        """End open segments and return all that were not returned yet."""
        out = self._finished(self._long) + self._finished(self._short)
        self._long = self._short = None
        return out

    def snapshot(self) -> dict[str, Any]:
        """Return the segments that are open, as JSON values; see ``restore``."""
        pieces = {"long": self._long, "short": self._short}
        return {
            "covered_s": self._covered_s,
            "presence": self.presence.snapshot(),
            **{name: piece and asdict(piece) for name, piece in pieces.items()},
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Continue from a snapshot. Raises KeyError or TypeError if it is not one."""
        self._covered_s = snapshot["covered_s"]
        self.presence.restore(snapshot.get("presence"))
        pieces = [snapshot[name] for name in ("long", "short")]
        self._long, self._short = (None if piece is None else _Piece(**piece) for piece in pieces)

    def _assign(
        self,
        label: int | None,
        start_s: float,
        end_s: float,
        p: npt.NDArray[np.float64],
        count: int | None,
        present: bool,
    ) -> list[Segment]:
        """Assign the step [start_s, end_s) to ``label``; return the segments that became final."""
        for piece in (self._long, self._short):
            if piece is not None and piece.label != label:
                piece.open = False
        if label is None:
            return []
        near = (p for p in (self._short, self._long) if p is not None and self._near(p, start_s))
        piece = next((p for p in near if p.label == label), None)
        if piece is None:
            piece = _Piece(label, start_s, end_s, float(p[label]), 1, count, present)
            piece.lead_s = self._lead_s if start_s == self._began_s else 0.0
            self._short = piece
        else:
            piece.extend(end_s)
            if piece is self._long:
                self._short = None
        if piece is self._short and self._is_long(piece):
            out = self._finished(self._long)
            self._long, self._short = piece, None
            return out
        return []

    def _near(self, piece: _Piece, start_s: float) -> bool:
        return piece.open or start_s - piece.end_s <= self._min_gap_s + SLACK_S

    def _is_long(self, piece: _Piece) -> bool:
        if piece.whole:
            return piece.length_s > 0
        length_s = piece.length_s - piece.lead_s
        if self._each:
            length_s = max(length_s, piece.steps * self._step_s)
        return length_s > 0 and length_s >= self._min_length_s - SLACK_S

    def _finished(self, piece: _Piece | None) -> list[Segment]:
        if piece is None or not self._is_long(piece) or not piece.present:
            return []
        label, score = self._labels[piece.label], piece.total / piece.steps
        return [Segment(piece.start_s, piece.end_s, label, score, count=piece.most)]


def _larger(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else max(one, other)


def _check(timeline: Timeline) -> None:
    """Raise UsageError when the settings of the timeline contradict each other."""
    low = timeline.low
    for threshold in (timeline.threshold, *timeline.thresholds.values()):
        if not 0 < threshold <= 1:
            raise UsageError("must be a probability above 0, at most 1", where="threshold")
    if low is not None and not 0 <= low <= timeline.threshold:
        raise UsageError("the lower threshold must lie between 0 and the threshold", where="low")
    for name in ("min_length_s", "min_gap_s", "smooth_s", "presence_s"):
        if not getattr(timeline, name) >= 0:
            raise UsageError("must be 0 s or more", where=name)


class IndependentSegmenter:
    """Turns the steps of one stream into segments of labels that do not exclude one another.

    Segments of different labels may overlap. Those of a label are computed by ``Segmenter`` from
    its scores alone. Arguments as there; labels that are not among ``only`` have no segments.
    """

    counts = True  # as of ``Segmenter``

    def __init__(
        self,
        labels: Sequence[str],
        timeline: Timeline,
        rate_hz: float,
        delay_s: float = 0.0,
        only: Collection[str] | None = None,
        *,
        ahead: bool = False,
    ) -> None:
        self._labels, self._timeline = tuple(labels), timeline
        self.smoother = Smoother(timeline.smooth_s)
        alone = replace(timeline, smooth_s=0.0, presence_s=0.0)
        self._segmenters = {
            k: Segmenter((name,), alone, rate_hz, delay_s, ahead=ahead)
            for k, name in enumerate(labels)
            if is_among(name, only)
        }
        self._thresholds = np.array([timeline.threshold_of(name) for name in labels])
        # Hundreds of labels are quiet at most times: their times are those of this segmenter.
        self._quiet = Segmenter((), alone, rate_hz, delay_s, ahead=ahead)

    def push(
        self,
        time_s: float,
        probabilities: npt.NDArray[np.floating],
        counts: Sequence[int] | None = None,
    ) -> list[Segment]:
        """Take one step, [C], and return the segments that became final.

        ``counts``: number of objects of each label, see ``Segmenter.push``.
        """
        scores = self.smoother.push(time_s, finite(probabilities))
        out: list[Segment] = []
        heard = {*(~(scores < self._thresholds)).nonzero()[0].tolist()}
        busy = {k for k, segmenter in self._segmenters.items() if not segmenter.idle}
        for k in sorted(heard & self._segmenters.keys() | busy):
            self._segmenters[k].follow(self._quiet)
            count = None if counts is None else counts[k]
            out += self._segmenters[k].push(time_s, scores[k : k + 1], count)
        self._quiet.cover(time_s)
        return _in_order(out)

    def _all(self) -> list[Segmenter]:
        """Return the segmenters of all labels, whose times are those of the newest step."""
        for segmenter in self._segmenters.values():
            segmenter.follow(self._quiet)
        return [*self._segmenters.values()]

    def begin(self, start_s: float) -> None:
        """Take the start of the data, see ``Segmenter.begin``."""
        self._quiet.begin(start_s)

    def gap(self, start_s: float, end_s: float) -> list[Segment]:
        """Take a gap in the data, see ``Segmenter.gap``."""
        self.smoother.reset()
        out = [s for each in self._all() for s in each.gap(start_s, end_s)]
        self._quiet.gap(start_s, end_s)
        return _in_order(out)

    def snapshot(self) -> dict[str, Any]:
        """Return the segments that are open, see ``Segmenter.snapshot``."""
        return {"labels": [each.snapshot() for each in self._all()]}

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Continue from a snapshot. Raises KeyError, TypeError or ValueError if it is not one."""
        segmenters = self._segmenters.values()
        for each, part in zip(segmenters, snapshot["labels"], strict=True):
            each.restore(part)
            self._quiet.follow(each)

    def finish(
        self, end_s: float, length_s: float = math.inf, *, late: bool = False
    ) -> list[Segment]:
        """Take the end of the data, see ``Segmenter.finish``."""
        return _in_order([s for e in self._all() for s in e.finish(end_s, length_s, late=late)])

    def flush(self) -> list[Segment]:
        """End open segments and return all that were not returned yet."""
        return _in_order([s for each in self._all() for s in each.flush()])


class PresenceSegmenter(IndependentSegmenter):
    """Turns detected objects into segments, each as long as an object of its label is seen.

    The score of a label is the score of its most confident object. The ``count`` of a segment is
    the largest number of objects at or above the threshold in one step.
    """

    def push_boxes(self, time_s: float, boxes: Sequence[Box]) -> list[Segment]:
        """Take the objects of a step and return the segments that became final."""
        counts = dict.fromkeys(self._labels, 0)
        for box in boxes:
            counts[box.label] += box.score >= self._timeline.threshold_of(box.label)
        return self.push(time_s, best_scores(boxes, self._labels), list(counts.values()))


def best_scores(boxes: Sequence[Box], labels: Sequence[str]) -> npt.NDArray[np.float32]:
    """Return the highest object score of each label, [C]; 0 where there is none."""
    best = dict.fromkeys(labels, 0.0)
    for box in boxes:
        best[box.label] = max(best[box.label], box.score)
    return np.array(list(best.values()), np.float32)


def _in_order(segments: list[Segment]) -> list[Segment]:
    return sorted(segments, key=lambda segment: segment.start_s)
