"""Output of one head during a run: scores, current label and timeline so far."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from costream.core.hysteresis import Hysteresis, LastingPresence, Smoother
from costream.core.records import Head, Prediction, Scored, Segment

_SLICES = 256


@dataclass(frozen=True)
class ActiveLabel:
    """The label that is active now."""

    label: str
    since_s: float


class HeadState:
    """Output of one head so far; its current label is the one its timeline would end with now.

    The strip has the segments of the timeline and, after them, labels that are not segments yet.
    Such a label is removed with the next segment if it has not become one, or as soon as it cannot
    become one, see ``LastingPresence``.

    ``length_s``: length of the run, if known. ``step_s``: seconds per step. ``only``: as for
    ``Hysteresis``. ``overlaps``: segments of different labels may overlap.
    """

    def __init__(
        self,
        head: Head,
        length_s: float | None,
        step_s: float,
        only: Collection[str] | None = None,
        *,
        overlaps: bool = False,
    ) -> None:
        self.head = head
        self.top: tuple[Scored, ...] = ()
        self.familiar = True  # whether the newest input is familiar to the model
        self.current: ActiveLabel | None = None
        self.strip: Strip | None = None
        self._overlaps = overlaps
        self._final_s = 0.0  # end of the newest segment of the timeline
        self._smoother = Smoother(head.smooth_s)
        self._hysteresis = Hysteresis(head.labels, head, head.background, only)
        self._presence = LastingPresence(head, head.labels, head.background)
        self._open: int | None = None  # column of the label that is open
        self._since_s = 0.0  # since then
        self._lasts = False  # whether it is certain to count, see ``LastingPresence``
        self._columns = {label: k for k, label in enumerate(head.labels)}
        self._background = self._columns.get(head.background or "")
        self._length_s, self._step_s = length_s, step_s
        self._marked_s: float | None = None  # the strip is marked up to here

    def predict(self, record: Prediction, start_s: float) -> None:
        """Add the prediction of a step of a run that began at ``start_s``."""
        self.top = record.top
        least, familiarity = self.head.familiar, record.familiarity
        self.familiar = least is None or familiarity is None or familiarity >= least
        scores = np.zeros(len(self.head.labels))  # 0 for labels that are not among the best
        for label, score in record.top:
            scores[self._columns[label]] = score
        column = self._hysteresis.step(self._smoother.push(record.time_s, scores), self._open)
        if column != self._open:
            self._close(record.time_s)
            self._open, self._lasts = column, False
            self._since_s = max(record.time_s - self.head.delay_s, start_s)
        if self._background is not None and scores[self._background] == 0:
            scores[self._background] = max(0.0, 1 - scores.sum())  # the rest may all be of it
        self._lasts |= self._presence.push(record.time_s, scores)
        was = self.current
        if column is None or not (self._lasts or self._presence.now):
            self.current = None
        else:
            self.current = ActiveLabel(self.head.labels[column], self._since_s)
        self._mark(record.time_s)
        if self.strip is not None and self.current is not None and self.current != was:
            self.strip.paint(self._since_s, record.time_s, self.current.label)

    def add_segment(self, segment: Segment) -> None:
        """Add a finished segment of the timeline."""
        if self.strip is not None and not self._overlaps:
            self.strip.paint(self._final_s, segment.start_s, None)
            self.strip.paint(segment.start_s, segment.end_s, segment.label)
            self._final_s = segment.end_s
            self._since_s = max(self._since_s, segment.end_s)

    def add_pending(self, segment: Segment) -> None:
        """Add a segment that the timeline would end with now; it may still begin earlier."""
        if self.strip is None or self._overlaps:
            return
        self.strip.paint(segment.start_s, segment.end_s, segment.label)
        current = self.current
        if current is not None and current.label == segment.label:
            self._since_s = segment.start_s
            self.current = ActiveLabel(current.label, segment.start_s)

    def end_step(self, time_s: float) -> None:
        """Mark a step as over; without a prediction in it, the current label continues."""
        if self.top and time_s != self._marked_s:
            self._mark(time_s)

    def interrupt(self) -> None:
        """Discard the current label, at a gap."""
        if self._marked_s is not None:
            self._close(self._marked_s)
        self.current = self._open = None
        self._presence.reset()
        self._smoother.reset()

    def _close(self, time_s: float) -> None:
        """Remove the label that was open until now from the strip if it cannot be a segment."""
        if self.strip is not None and self.current is not None and not self._lasts:
            self.strip.paint(self._since_s, time_s, None)

    def _mark(self, time_s: float) -> None:
        """Add the current label to the strip."""
        if self.strip is None:
            self.strip = Strip(time_s, self._length_s, self._step_s)
        self.strip.add(time_s, self.current.label if self.current else None)
        self._marked_s = time_s


class Strip:
    """Timeline so far: number of steps of each label, for each slice of time.

    ``length_s``: length of the run, if known. Otherwise the slices double in length whenever
    the run exceeds them.
    """

    def __init__(self, start_s: float, length_s: float | None, step_s: float) -> None:
        self._start_s = start_s
        self._slice_s = max(step_s, (length_s or 0.0) / _SLICES)
        self._slices: list[dict[str | None, int]] = []

    def add(self, time_s: float, label: str | None) -> None:
        """Count a step; ``label`` None: no event."""
        k = max(0, int((time_s - self._start_s) / self._slice_s + 1e-9))
        while k >= _SLICES:
            pairs = range(0, len(self._slices), 2)
            self._slices = [_merged(self._slices[i : i + 2]) for i in pairs]
            self._slice_s *= 2
            k //= 2
        while len(self._slices) <= k:
            self._slices.append({})
        counts = self._slices[k]
        counts[label] = counts.get(label, 0) + 1

    def paint(self, start_s: float, end_s: float, label: str | None) -> None:
        """Count all steps from a time to another as ``label``."""
        first, last = ((time_s - self._start_s) / self._slice_s for time_s in (start_s, end_s))
        for k in range(max(0, math.ceil(first - 0.5)), min(len(self._slices), round(last + 1e-9))):
            self._slices[k] = {label: sum(self._slices[k].values())} if self._slices[k] else {}

    def cells(self, width: int, length_s: float | None) -> list[tuple[str | None, bool]]:
        """Return ``width`` cells over ``length_s`` (None: over the time so far).

        A cell is the label with the most steps and whether there was any step.
        """
        total = self._total(length_s)
        return [self._cell(k * total / width, (k + 1) * total / width) for k in range(width)]

    def counts(self, width: int, length_s: float | None) -> list[dict[str | None, int]]:
        """Return the counts of each of ``width`` cells, divided as in ``cells``."""
        total = self._total(length_s)
        return [self._counts(k * total / width, (k + 1) * total / width) for k in range(width)]

    def _total(self, length_s: float | None) -> float:
        return len(self._slices) if length_s is None else max(1.0, length_s / self._slice_s)

    def _counts(self, begin: float, end: float) -> dict[str | None, int]:
        slices = self._slices[int(begin) : max(int(begin) + 1, int(end))]
        return slices[0] if len(slices) == 1 else _merged(slices)

    def _cell(self, begin: float, end: float) -> tuple[str | None, bool]:
        counts = self._counts(begin, end)
        if not counts:
            return None, False
        if len(counts) == 1:
            return next(iter(counts)), True
        return max(counts, key=lambda label: (counts[label], label is not None)), True


def _merged(slices: list[dict[str | None, int]]) -> dict[str | None, int]:
    out: dict[str | None, int] = {}
    for counts in slices:
        for label, count in counts.items():
            out[label] = out.get(label, 0) + count
    return out
