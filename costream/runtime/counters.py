"""Counts of one stream: its steps, their cost, its segments, faults and labels, and its times."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from costream.core.clock import Tick
from costream.core.errors import ExitCode
from costream.core.records import AudioBlock, Data, Fault, Segment, Summary, TextLine, VideoFrame
from costream.core.status import SeenLabel
from costream.models.base import StepResult

if TYPE_CHECKING:
    from costream.runtime.timelines import HeadTimeline


@dataclass
class StreamCounters:
    """What a stream has counted since it began; ``StreamRecorder`` reports what happens."""

    first_step: int = 0  # number of the first step: above 0 in a resumed stream
    steps: int = 0
    segments: int = 0
    gaps: int = 0
    errors: int = 0  # of the source
    fatal: str = ""  # the message of the error after which nothing could be read
    dropped: int = 0  # steps or items that were left out to keep up
    macs: int = 0
    dense_macs: int = 0
    network_macs: int | None = 0  # without the frontend; None: not known
    network_dense_macs: int | None = 0
    unfamiliar_steps: int | None = None  # None: no model measures familiarity
    seen: dict[str, SeenLabel] = field(default_factory=dict)  # labels, in order of appearance
    newest_number: int = 0  # the highest number of a person or an object
    persons: int | None = None  # who were seen; None: no model has predictions for each
    person_steps: int = 0  # the sum over persons
    acting_s: float = 0.0  # length of the segments of persons
    _last_person: int = 0  # the highest number of those who were seen
    first_s: float | None = None  # time of the first step
    last_s: float = 0.0  # time of the newest step
    lag_s: float = 0.0  # age of its data
    took_s: dict[str, float] = field(default_factory=dict)  # models that share a budget
    joules: float | None = None  # used by the machine so far; None: not measured

    @property
    def next_step(self) -> int:
        """The number of the next step."""
        return self.first_step + self.steps

    def add_step(self, tick: Tick, result: StepResult, dropped: int) -> int:
        """Count a step and its cost; return its number. ``dropped``: steps left out so far."""
        step = self.next_step
        self.steps += 1
        self.first_s = tick.time_s if self.first_s is None else self.first_s
        self.last_s = tick.time_s
        self.lag_s = _lag_s(tick.item)
        self.dropped = dropped
        self.macs += result.macs
        self.dense_macs += result.dense_macs
        self.network_macs = add_costs(self.network_macs, result.network_macs)
        self.network_dense_macs = add_costs(self.network_dense_macs, result.network_dense_macs)
        for name, cost in (result.costs or {}).items():
            self.took_s[name] = self.took_s.get(name, 0.0) + cost.s
        return step

    def _shares(self) -> dict[str, float] | None:
        """Return the share of the time of each model of several that share a budget."""
        total = sum(self.took_s.values())
        if len(self.took_s) < 2 or not total:
            return None
        return {name: round(s / total, 3) for name, s in self.took_s.items()}

    def resume(
        self, next_step: int, newest_number: int, first_s: float | None, last_s: float
    ) -> None:
        """Continue the numbers and times of an earlier stream; see ``StreamRecorder.resume``."""
        self.first_step, self.newest_number = next_step, newest_number
        self.first_s, self.last_s = first_s, last_s

    def add_energy(self, joules: float | None) -> float | None:
        """Take the energy so far; return what it has increased by since the step before."""
        before, self.joules = self.joules or 0.0, joules
        return None if joules is None else joules - before

    def end_data(self, last_s: float | None) -> None:
        """Set the time of the newest data, if steps were taken after them."""
        self.last_s = self.last_s if last_s is None else last_s

    def add_gap(self) -> None:
        """Count a gap in the data."""
        self.gaps += 1

    def add_segment(self, labelled: Segment | None) -> None:
        """Count a segment, and its label unless ``labelled`` is None."""
        self.segments += 1
        if labelled is not None and labelled.person is not None:
            self.acting_s += labelled.end_s - labelled.start_s
        if labelled is not None:
            self.add_label(labelled.label, labelled.end_s)

    def add_familiarity(self, unfamiliar: bool | None) -> None:
        """Count a step by ``is_unfamiliar``."""
        if unfamiliar is not None:
            self.unfamiliar_steps = (self.unfamiliar_steps or 0) + unfamiliar

    def add_fault(self, fault: Fault) -> None:
        """Count the errors of a fault."""
        self.errors += fault.count
        if fault.fatal and not self.fatal:
            self.fatal = fault.message

    def add_label(self, label: str | None, time_s: float) -> None:
        """Count a segment, or a line of text, by its label, if it has one."""
        if label is None:
            return
        before = self.seen.get(label)
        self.seen[label] = SeenLabel(label, 1 if before is None else before.count + 1, time_s)

    def add_persons(self, numbers: Sequence[int]) -> None:
        """Count the persons who are there in a step."""
        new = [number for number in numbers if number > self._last_person]
        self.persons = (self.persons or 0) + len(new)
        self._last_person = max(self._last_person, *new, 0)
        self.person_steps += len(numbers)

    def add_numbers(self, numbers: Sequence[int]) -> None:
        """Take the numbers of the persons or objects of a step."""
        self.newest_number = max(self.newest_number, *numbers, 0)

    def summary(
        self,
        exit_code: ExitCode,
        rate_hz: float,
        wall_s: float,
        *,
        complete: bool,
        dropped: int,
        drift_ppm: float | None,
    ) -> Summary:
        """Return the summary of the stream so far; ``rate_hz``: its steps per second."""
        self.dropped = dropped
        media_s = 0.0 if self.first_s is None else self.last_s - self.first_s + 1 / rate_hz
        unfamiliar = self.unfamiliar_steps
        return Summary(
            steps=self.steps,
            segments=self.segments,
            dropped=self.dropped,
            errors=self.errors,
            media_s=media_s,
            wall_s=wall_s,
            x_realtime=media_s / wall_s if wall_s > 0 else None,
            macs=self.macs,
            dense_macs=self.dense_macs,
            complete=complete,
            exit=int(exit_code),
            drift_ppm=drift_ppm,
            network_macs=self.network_macs if self.steps else None,
            network_dense_macs=self.network_dense_macs if self.steps else None,
            unfamiliar_s=None if unfamiliar is None else unfamiliar / rate_hz,
            persons=self.persons,
            persons_s=None if self.persons is None else self.person_steps / rate_hz,
            acting_s=None if self.persons is None else self.acting_s,
            shares=self._shares(),
            joules=self.joules,
        )


def is_unfamiliar(*parts: tuple[StepResult, Sequence[HeadTimeline]]) -> bool | None:
    """Return whether the best event of a step is unfamiliar to every model that measures it.

    None if no model does. ``parts``: results, each with the timelines of the heads of its first
    row. Models with different inputs count separately: a familiar sound does not make an unfamiliar
    picture familiar. The step is unfamiliar if it is so to all models of one input.
    """
    verdicts: dict[tuple[int, str | None], list[bool]] = {}
    measured = False
    for part, (result, timelines) in enumerate(parts):
        if result.familiarity is None or result.probabilities is None or not timelines:
            continue
        measured = True
        for number, entry in enumerate(timelines):
            card = entry.head.card
            scores = result.probabilities[0, entry.head.columns]
            if card.familiarity is not None and not np.isnan(scores[0]):
                is_event = card.labels[scores.argmax()] != card.background
                below = result.familiarity[0, number] < card.familiarity.limit
                verdicts.setdefault((part, card.frontend), []).append(is_event and below)
    return any(map(all, verdicts.values())) if measured else None


def add_costs(total: int | None, part: int | None) -> int | None:
    """Return the sum of two costs; None (unknown) if one of them is."""
    return None if total is None or part is None else total + part


def _lag_s(item: Data) -> float:
    """Return the age of a live item since its arrival; 0 for items that are not live."""
    arrived_s = item.arrived_s if isinstance(item, (AudioBlock, VideoFrame, TextLine)) else None
    return 0.0 if arrived_s is None else time.monotonic() - arrived_s
