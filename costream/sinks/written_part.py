"""The part of the records of a watch that is written: its events, its steps, or all."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import Literal

from costream.core.places import Crossing, ZoneEvent
from costream.core.records import (
    Alert,
    Compute,
    Fault,
    Gap,
    Header,
    Level,
    Objects,
    Prediction,
    Record,
    Segment,
    Summary,
)
from costream.sinks.base import Sink

Part = Literal["events", "steps", "all"]
AROUND_S = 2.0  # steps up to this long before and after an event are written
EVERY_S = 10.0  # and one step at this interval, with its cost
HOLD_S = 60.0  # steps are held back for this time: events are often known later
_OF_A_STEP = (Prediction, Objects, Compute, Level)


@dataclass
class _Step:
    """The records of a step that is held back."""

    time_s: float
    near: bool  # to an event
    records: list[Record] = field(default_factory=list)


class WrittenPart:
    """Sink that passes a part of the records on.

    ``events``: events at once; steps within AROUND_S of the start or the end of an event, without
    costs; one step every EVERY_S; and all lines of text. Steps are HOLD_S late, and a crash loses
    those. ``steps``: all but the costs. The header's options say which part it is.
    """

    def __init__(self, sink: Sink, part: Literal["events", "steps"]) -> None:
        self._sink, self._part = sink, part
        self._steps: deque[_Step] = deque()
        self._near_until_s = self._regular_s = float("-inf")

    def open(self, header: Header) -> None:
        """Forward the header."""
        self._sink.open(replace(header, options={**header.options, "write": self._part}))

    def write(self, record: Record) -> None:
        """Forward an event, or hold a record of a step back."""
        if self._part == "steps":
            if not isinstance(record, Compute):
                self._sink.write(record)
        elif isinstance(record, Prediction) and record.text is not None:
            self._sink.write(record)
        elif isinstance(record, _OF_A_STEP):
            self._hold(record)
        else:
            for time_s in _edges(record):
                self._mark(time_s)
            if isinstance(record, Gap):  # after it, curves begin again
                self._release(float("inf"))
            self._sink.write(record)

    def close(self, summary: Summary) -> None:
        """Write the steps that were held back, and forward the summary."""
        self._release(float("inf"))
        self._sink.close(summary)

    def _hold(self, record: Prediction | Objects | Compute | Level) -> None:
        time_s = record.time_s
        if not self._steps or self._steps[-1].time_s != time_s:
            self._release(time_s - HOLD_S)
            self._steps.append(_Step(time_s, time_s <= self._near_until_s))
        self._steps[-1].records.append(record)

    def _mark(self, time_s: float) -> None:
        """Mark the steps around the start or the end of an event, also those to come."""
        self._near_until_s = max(self._near_until_s, time_s + AROUND_S)
        for step in reversed(self._steps):
            if step.time_s < time_s - AROUND_S:
                break
            step.near = step.near or step.time_s <= time_s + AROUND_S

    def _release(self, until_s: float) -> None:
        """Write the marked steps up to a time, and those that are due; drop the others."""
        while self._steps and self._steps[0].time_s <= until_s:
            step = self._steps.popleft()
            # A clock may jump back.
            regular = not 0 <= step.time_s - self._regular_s < EVERY_S
            if regular:
                self._regular_s = step.time_s
            for record in step.records:
                if regular or (step.near and not isinstance(record, Compute)):
                    self._sink.write(record)


def _edges(record: Record) -> tuple[float, ...]:
    """Return the times of the start and the end of an event; () where there is nothing to see."""
    if isinstance(record, Segment):
        return record.start_s, record.end_s
    if isinstance(record, Alert):
        return record.since_s, record.time_s
    if isinstance(record, Gap):
        return record.start_s, record.end_s
    is_visit = isinstance(record, ZoneEvent) and record.event != "dwell"
    if is_visit or isinstance(record, (Crossing, Fault)):
        return () if record.time_s is None else (record.time_s,)
    return ()
