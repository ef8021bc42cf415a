"""State of a run in progress, from its records, for the live view and for plain lines."""

from __future__ import annotations

import time
from collections import deque

from rich.cells import cell_len

from costream.core.formatting import clean
from costream.core.records import (
    STAGES,
    AudioBlock,
    Compute,
    Fault,
    Gap,
    Header,
    Objects,
    Picture,
    Prediction,
    Record,
    Segment,
    finds_objects,
    has_overlaps,
    heads_of,
)
from costream.draw.audio_meter import AudioMeter
from costream.draw.palette import Palette
from costream.draw.skeleton import Figure, SkeletonView
from costream.ui.run.detection_state import DetectionState
from costream.ui.run.glyphs import Legend
from costream.ui.run.tracks import HeadState

# Weight of the newest step in the displayed times, so that a single slow step changes them little.
_NEWEST = 0.05
_GONE_S = 1.0  # after this long without a prediction of a person, nobody is there


class RunState:
    """State of one run. ``now_s`` arguments are seconds of a monotonic clock."""

    def __init__(self, header: Header, now_s: float, *, live: bool = False) -> None:
        """``live``: after a fault, no data come until the next step."""
        step_s = 1 / header.rate_hz
        self.header = header
        self.began_s = now_s
        self.start_s: float | None = None  # time of the first step
        self.time_s: float | None = None  # time of the newest step
        self.steps = 0
        self.sounds = _of_sound(header)
        self.is_silent = bool(self.sounds) and isinstance(header.options.get("sound"), str)
        heard = [head for head in heads_of(header) if not (self.is_silent and head in self.sounds)]
        self.head_states = {name: self._head_state(name) for name in heard}
        self._heads = self.head_states  # of the stream, not of persons
        self._people: dict[int, HeadState] = {}  # persons who have predictions
        self._here: list[int] = []  # persons in this step
        self._persons_s = 0.0  # time of the newest step with persons
        self.legend = Legend(Palette.of(header))
        self.label_width = max((cell_len(clean(label)) for label in header.labels), default=0)
        self.segments: deque[Segment] = deque(maxlen=8)
        self.ms = dict.fromkeys(STAGES, 0.0)
        self.macs = 0
        self.dense_macs = 0
        self.dropped = 0
        self.errors = 0
        self.lag_s = 0.0
        self.lost = ""  # why and since when no data come from a live source; '' if they do
        self._live = live
        self.figure: Figure | None = None  # the persons of the newest step
        self._view = SkeletonView()
        self.audio_meter = AudioMeter(step_s) if header.kind == "audio" else None
        self.object_state = (
            DetectionState(header.duration_s, step_s) if finds_objects(header) else None
        )
        self.detector = next(iter(self.head_states.values()))  # its head, where there are objects

    def add(self, record: Record) -> None:
        """Add one record."""
        if isinstance(record, Prediction):
            self._add_prediction(record)
        elif isinstance(record, Objects):
            self._tick(record.time_s)
            if self.object_state is not None:
                self.object_state.add_objects(record)
        elif isinstance(record, Compute):
            self._spend(record)
        elif isinstance(record, Segment):
            self.segments.append(record)
            if (state := self._state_of(record)) is not None:
                state.add_segment(record)
        elif isinstance(record, Fault):
            self.errors += record.count
            if self._live:
                self.lost = f"no data since {time.strftime('%H:%M:%S')}: {record.message}"
        elif isinstance(record, Gap):
            self._interrupt()

    def _add_prediction(self, record: Prediction) -> None:
        self._tick(record.time_s)
        state = self.head_states.get(record.model)
        if record.person is not None:
            state = self._person_state(record.person, record.model)
        if state is not None:
            state.predict(record, self.start_s or 0.0)

    def _interrupt(self) -> None:
        """End what is open at a gap."""
        for head_state in self.head_states.values():
            head_state.interrupt()
        if self.object_state is not None:
            self.object_state.interrupt()

    def _state_of(self, segment: Segment) -> HeadState | None:
        """Return the state of the head or of the person that a segment belongs to."""
        if segment.person is not None:
            return self._people.get(segment.person)
        return self.head_states.get(segment.model)

    def _person_state(self, person: int, head: str | None) -> HeadState:
        """Return the state of a person who has a prediction in this step."""
        self._here.append(person)
        self._heads = {name: one for name, one in self._heads.items() if name != head}
        if person not in self._people:
            self._people[person] = self._head_state(head)
        return self._people[person]

    def _head_state(self, name: str | None) -> HeadState:
        header = self.header
        return HeadState(
            heads_of(header)[name],
            header.duration_s,
            1 / header.rate_hz,
            header.options.get("only"),
            overlaps=has_overlaps(header),
        )

    def add_input(self, picture: Picture) -> None:
        """Add the input of the newest step: persons, objects or audio."""
        for segment in picture.pending:
            if (state := self._state_of(segment)) is not None:
                state.add_pending(segment)
        if picture.skeleton is not None:
            self.figure = self._view.figure(picture.skeleton)
        if self.object_state is not None:
            self.object_state.add_input(picture)
        if self.audio_meter is not None and isinstance(picture.item, AudioBlock):
            self.audio_meter.add(picture.time_s, picture.item.samples, picture.spectrum)

    @property
    def media_s(self) -> float:
        """Media time processed, seconds."""
        if self.start_s is None or self.time_s is None:
            return 0.0
        return self.time_s - self.start_s + 1 / self.header.rate_hz

    def x_realtime(self, now_s: float) -> float:
        """Return media time over elapsed time since the run began."""
        return self.media_s / max(now_s - self.began_s, 1e-9)

    def eta_s(self, now_s: float) -> float | None:
        """Return the estimated remaining seconds; None: unknown."""
        if self.header.duration_s is None or not self.steps:
            return None
        left_s = max(0.0, self.header.duration_s - self.media_s)
        return left_s / max(self.x_realtime(now_s), 1e-9)

    def _spend(self, record: Compute) -> None:
        self._tick(record.time_s)
        if self.object_state is not None:
            self.object_state.spend(record)
        if self._here:  # all others have left
            self._people = {person: self._people[person] for person in self._here}
            self._show_people()
            self._here, self._persons_s = [], record.time_s
        elif self._people and record.time_s - self._persons_s > _GONE_S:
            self._people = {}
            self._show_people()
        for head_state in self.head_states.values():
            head_state.end_step(record.time_s)
        weight = _NEWEST if self.steps else 1.0
        for name in STAGES:
            self.ms[name] += weight * (getattr(record.ms, name) - self.ms[name])
        self.steps += 1
        self.macs += record.macs
        self.dense_macs += record.dense_macs
        self.dropped = record.dropped
        self.lag_s = record.lag_s

    def _show_people(self) -> None:
        """Show the persons who are there, below the heads of the stream."""
        named = len(self._people) > 1 or bool(self._heads)
        people = {f"person {n}" if named else None: one for n, one in self._people.items()}
        self.head_states = {**self._heads, **people}

    def _tick(self, time_s: float) -> None:
        self.start_s = time_s if self.start_s is None else self.start_s
        self.time_s = time_s
        self.lost = ""


def _of_sound(header: Header) -> tuple[str, ...]:
    """Return the heads of the sound of a video: those after the first, actions of persons apart."""
    names = tuple(head.model for head in header.heads or ())
    if header.kind != "video":
        return ()
    return names[1:] if header.persons is None else names[1:-1]
